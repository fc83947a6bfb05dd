"""One's own data, named on the command line: `--task my_task.py:build` or `--task folder/`. Their experiments' `dataset` is that name.

    my_task.py:build    a function without arguments that returns `Examples` with `settings`; the file may also register a model
    folder/             train_inputs.npy, train_targets.npy, test_inputs.npy, test_targets.npy and task.toml; perhaps owners.npy (the user
                        of each training example) and root.npy (which training examples are the server's root set)

task.toml holds the usual settings of an experiment on these data; model, num_clients, malicious, rounds, batch_size and global_lr must be
there, since no other data's would do. The loss is the mean over a batch unless `loss` says otherwise. It may also say `objective`
(default: cross-entropy) and `num_classes`, how many outputs the model has (default: what the targets need):

    model = "mlp"
    num_clients = 20
    malicious = 4
    rounds = 200
    batch_size = 32
    global_lr = 0.1

Arrays are read as plain numbers, never unpickled. A result names the sha256 of every file, and of what a function built.
"""

import hashlib
import io
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fltrust.beside import importing_beside
from fltrust.codec import built, read_toml
from fltrust.datasets.dataset import Examples, Profile
from fltrust.datasets.reading import DamagedError
from fltrust.errors import InputError
from fltrust.experiment import check_fields
from fltrust.registry import DATASETS, OBJECTIVES, load_plugin, plugin_files, where_in

SETTINGS = "task.toml"
MOST_CLASSES = 1_000_000  # a model of more outputs is a mistake
ARRAYS = ("train_inputs", "train_targets", "test_inputs", "test_targets")


def find(name: str) -> Profile | None:
    """The usual experiment on a user's own data, by its file and function or by its folder; None for a name that is neither."""
    if not ("/" in name or ".py" in name or Path(name).is_dir()):
        return None
    if code := code_of(name):
        examples = _built(code.resolve(), name.rpartition(":")[2])
        return _profile(name, examples.settings, examples.owners is not None, examples.root, lambda data_dir: examples)
    if Path(name).is_dir():
        folder = Path(name)
        settings = read_toml(folder / SETTINGS)
        chosen: dict[str, Any] = {part: settings.pop(part) for part in ("objective", "num_classes") if part in settings}
        check_fields(settings, folder / SETTINGS)
        root = read_npy("root.npy", _read(folder / "root.npy")) if (folder / "root.npy").exists() else None
        return _profile(name, settings, (folder / "owners.npy").exists(), root, partial(_load_folder, folder, chosen))
    raise _no_task(name)


def code_of(name: str) -> Path | None:
    """The file with the function that builds these data; None for all other data."""
    file = name.rpartition(":")[0]
    return Path(file) if file.endswith(".py") else None


def is_own(name: str) -> bool:
    """Whether a user brings these data: in a file, in a folder or with a plug-in."""
    return name not in DATASETS or DATASETS[name].load is not None


def own(name: str) -> str:
    """The name as it is. Refused if it can be neither a folder nor a file: then it would be taken for a data set of the package."""
    if "/" in name or ".py" in name or Path(name).is_dir():
        return name
    raise _no_task(name)


def _no_task(name: str) -> InputError:
    return InputError(f"no task {name}: it must be a folder with a {SETTINGS}, or a file and its function, my_task.py:build")


def _profile(name: str, settings: Mapping[str, Any], by_owner: bool, root: NDArray[Any] | None, load: Any) -> Profile:
    usual: dict[str, Any] = {"loss": "mean"}  # so that the learning rate is the usual one of SGD
    if by_owner or "split" in settings:
        usual["bias"] = None
    if root is not None:
        usual["root_size"] = root.size
    return Profile({**usual, **settings}, name, load=load)


# ---------------------------------------------------------------- a function


@lru_cache(maxsize=1)  # asked for its settings first, for its data later
def _built(path: Path, function: str) -> Examples:
    name = f"{path.name}:{function}"
    build = getattr(load_plugin(path, "task"), function, None)
    if not callable(build):
        raise InputError(f"{path} has no function {function!r}")
    try:
        with importing_beside(path):  # it may import where it is called
            examples = build()
    except Exception as problem:
        kind = "" if isinstance(problem, InputError) else f"{type(problem).__name__}: "
        raise InputError(f"{name} failed: {where_in(problem, path)}{kind}{problem}") from problem
    if not isinstance(examples, Examples):
        raise InputError(f"{name} must return fltrust.datasets.Examples, not {type(examples).__name__}")
    try:
        examples = _checked(examples)
    except InputError as problem:
        raise InputError(f"{name}: {problem}") from problem
    objective = built(OBJECTIVES, examples.objective, {})
    parameters = re.sub(" at 0x[0-9a-f]+", "", repr(objective))  # another process has other addresses
    digest = hashlib.sha256(f"{parameters} {examples.num_classes} {plugin_files(type(objective))}".encode())
    for array in (examples.train, examples.train_labels, examples.test, examples.test_labels, examples.owners, examples.root):
        if array is not None:
            digest.update(f"{array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    code = hashlib.sha256(path.read_bytes()).hexdigest()
    return replace(examples, files={**examples.files, path.name: code, f"{name}()": digest.hexdigest()})


# ---------------------------------------------------------------- a folder


def _load_folder(folder: Path, chosen: Mapping[str, Any], data_dir: str | None) -> Examples:
    names = [*ARRAYS, *(name for name in ("owners", "root") if (folder / f"{name}.npy").exists())]
    files = {name: _read(folder / name) for name in (SETTINGS, *(f"{name}.npy" for name in names))}
    try:
        arrays = {name: read_npy(f"{name}.npy", files[f"{name}.npy"]) for name in names}
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        train, targets, test, test_targets = (arrays[name] for name in ARRAYS)
        owners, root = arrays.get("owners"), arrays.get("root")
        return _checked(replace(Examples(train, targets, test, test_targets, owners=owners, root=root, files=hashes), **chosen))
    except InputError as problem:
        raise InputError(f"{folder}: {problem}") from problem


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}") from problem


def read_npy(file: str, data: bytes) -> NDArray[Any]:
    """The numbers in a .npy file. Its header is a claim: nothing is allocated for it before it agrees with the file's length."""
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, by_column, dtype = read_header(stream)
    except Exception as problem:  # a hostile header makes numpy raise almost anything
        raise DamagedError(file, f"is no .npy file ({' '.join(str(problem).split())})") from problem
    if dtype.kind not in "biuf":
        raise DamagedError(file, f"holds {dtype}; numbers are needed")
    start = stream.tell()
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise DamagedError(file, f"has {len(data) - start:,} bytes of numbers, its header says {dtype} of shape {shape}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if by_column else "C")


# ---------------------------------------------------------------- both


def _checked(examples: Examples) -> Examples:
    """What splitting and building the model rely on; `Task.from_arrays` checks the rest."""
    objective = built(OBJECTIVES, examples.objective, {})
    kinds, what = ("biuf", "numbers") if objective.classes == 0 else ("biu", "whole numbers")
    for part, inputs, targets in (("training", examples.train, examples.train_labels), ("test", examples.test, examples.test_labels)):
        if not (isinstance(inputs, np.ndarray) and isinstance(targets, np.ndarray) and inputs.ndim and targets.ndim):
            raise InputError(f"{part} inputs and targets must be arrays of examples")
        if len(inputs) != len(targets) or not targets.size:
            raise InputError(f"{len(inputs):,} {part} inputs and {len(targets):,} targets: there must be as many, and none empty")
        if targets.dtype.kind not in kinds:
            raise InputError(f"{part} targets must be {what}, not {targets.dtype}")
    labels, test_labels = (
        part if part.dtype.kind == "f" else part.astype(np.int64) for part in (examples.train_labels, examples.test_labels)
    )
    count = examples.num_classes
    if count == 0:  # one output per class, or per number to predict
        count = max(int(labels.max()), int(test_labels.max())) + 1 if objective.classes is None else math.prod(labels.shape[1:])
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_CLASSES:
        raise InputError(f"num_classes must be a whole number from 1 to {MOST_CLASSES:,}, not {count!r}")
    owners = examples.owners
    if owners is not None:
        if not isinstance(owners, np.ndarray) or owners.shape != (len(labels),) or owners.dtype.kind not in "iu":
            raise InputError(f"owners must be {len(labels):,} whole numbers, one per training example")
        owners = np.unique(owners, return_inverse=True)[1].astype(np.int64)  # users count from 0 on
    root = None if examples.root is None else root_indices(examples.root, len(labels))
    return replace(examples, train_labels=labels, test_labels=test_labels, num_classes=count, owners=owners, root=root)


def root_indices(root: Any, count: int) -> NDArray[np.int64]:
    """A root set as indices into `count` training examples; anything else is refused."""
    if not isinstance(root, np.ndarray) or root.ndim != 1 or root.dtype.kind not in "iu" or not len(root):
        raise InputError("root must be whole numbers: which training examples are the server's")
    if root.min() < 0 or root.max() >= count or len(np.unique(root)) < len(root):
        raise InputError(f"root must name training examples, 0 to {count - 1:,}, each at most once")
    return root.astype(np.int64)
