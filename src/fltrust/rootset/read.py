"""A root set from a file: which training examples it is, or examples of its own.

root.npy    whole numbers: which training examples
root.npz    `indices`: the same; or `inputs` and `targets`: examples that no client holds
"""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fltrust.datasets.dataset import Examples
from fltrust.datasets.own import read_npy, root_indices
from fltrust.errors import InputError

MOST_BYTES = 2**31  # of an array in an .npz file


def with_root_of(examples: Examples, path: Path) -> Examples:
    """The examples with the root set in this file."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}") from problem
    try:
        arrays = {"indices": read_npy(path.name, data)} if path.suffix == ".npy" else _unzipped(data)
        if set(arrays) == {"indices"}:
            return replace(examples, root=root_indices(arrays["indices"], len(examples.train_labels)))
        if set(arrays) == {"inputs", "targets"}:
            return _appended(examples, arrays["inputs"], arrays["targets"])
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from problem
    raise InputError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: a root set is 'indices', or 'inputs' and 'targets'")


def _unzipped(data: bytes) -> dict[str, NDArray[np.generic]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > MOST_BYTES:
                raise InputError(f"it holds more than {MOST_BYTES:,} bytes")
            return {member.filename.removesuffix(".npy"): read_npy(member.filename, archive.read(member)) for member in members}
    except InputError:
        raise
    except Exception as problem:  # a damaged archive makes zipfile raise nearly anything
        raise InputError(f"it is neither an .npy nor an .npz file ({' '.join(str(problem).split())})") from problem


def _appended(examples: Examples, inputs: NDArray[np.generic], targets: NDArray[np.generic]) -> Examples:
    train, labels = examples.train, examples.train_labels
    if inputs.ndim != train.ndim or inputs.shape[1:] != train.shape[1:] or inputs.dtype.kind != train.dtype.kind:
        raise InputError(f"inputs are {inputs.dtype} of shape {inputs.shape[1:]}, training examples {train.dtype} of {train.shape[1:]}")
    if len(targets) != len(inputs) or targets.shape[1:] != labels.shape[1:] or not len(targets):
        raise InputError(f"{len(inputs)} inputs and targets of shape {targets.shape}: there must be as many, as in training")
    if targets.dtype.kind not in ("biu" if labels.dtype.kind in "iu" else "biuf"):
        raise InputError(f"targets must be whole numbers, not {targets.dtype}")
    owners = examples.owners
    return replace(
        examples,
        train=np.concatenate((train, _as(train, inputs))),
        train_labels=np.concatenate((labels, _as(labels, targets))),
        owners=None if owners is None else np.append(owners, np.zeros(len(inputs), owners.dtype)),  # of no matter: they leave the clients
        root=np.arange(len(train), len(train) + len(inputs)),
    )


def _as(theirs: NDArray[np.generic], ours: NDArray[np.generic]) -> NDArray[np.generic]:
    """Ours in the type of the training examples. Whole numbers that do not fit would become others."""
    cast = ours.astype(theirs.dtype)
    if theirs.dtype.kind in "iu" and not np.array_equal(cast, ours):
        raise InputError(f"it holds numbers that do not fit {theirs.dtype}, the type of the training examples")
    return cast
