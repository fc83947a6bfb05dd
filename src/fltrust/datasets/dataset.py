"""What a data set is: its examples once they are read, and what is known about it before."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fltrust.triggers import Trigger

Inputs = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
Labels = NDArray[np.int64]
Files = list[tuple[str, bytes]]  # name on disk and unpacked content, in the order `find` gave


@dataclass(frozen=True, eq=False)
class Examples:
    """A whole data set in memory: k training and j test examples, pixels as they are (0..255), not yet divided by anything.

    One's own data for `--task my_task.py:build` are what its function `build()` returns:

    >>> from fltrust.datasets import Examples
    >>> def build():
    ...     rng = np.random.default_rng(0)
    ...     points = rng.normal(size=(120, 4)).astype(np.float32)
    ...     classes = (points.sum(1) > 0).astype(np.int64)
    ...     settings = {"model": "logistic", "num_clients": 5, "malicious": 1, "bias": 0.5, "rounds": 10, "batch_size": 8, "global_lr": 0.1}
    ...     return Examples(points[:100], classes[:100], points[100:], classes[100:], settings=settings)
    >>> build().train.shape
    (100, 4)
    """

    train: Inputs  # (k, channels, height, width) uint8 pixels, (k, features) float32, or (k, T) int64 tokens
    train_labels: Labels  # (k,), or (k, ...) as the objective wants its targets
    test: Inputs  # (j, ...)
    test_labels: Labels  # (j, ...)
    num_classes: int = 0  # outputs of the model: classes, labels or numbers; 0, for one's own data: as many as the targets need
    owners: Labels | None = None  # (k,) the user each training example came from, where the data say so
    files: dict[str, str] = field(default_factory=dict)  # file read -> its sha256
    warnings: tuple[str, ...] = ()  # what a reader of the results should know about these files
    objective: Any = "cross-entropy"  # an Objective, its name, or a table with its name and parameters
    settings: Mapping[str, Any] = field(default_factory=dict)  # of one's own data: the usual fields of an experiment; see `Profile`
    root: Labels | None = None  # which training examples are the server's; None: `Experiment.root_size` of them are drawn


@dataclass(frozen=True)
class Download:
    """A file of a public home; the mirrors hold the same bytes and are tried in order."""

    file: str
    known_hash: str  # "sha256:..." or "md5:..."
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """The usual experiment on a data set: its settings (fields of `Experiment`) and what loads its examples."""

    settings: Mapping[str, Any]  # at least model, num_clients, malicious, rounds, batch_size and global_lr
    label: str = ""
    trigger: Trigger | None = None  # of the Scaling attack
    load: Callable[[str | None], Examples] | None = None  # from the folder of all data sets; None: the files of `family`
    family: str = ""  # the data set in `fltrust data`

    @property
    def summary(self) -> str:
        settings = self.settings
        split = "by user" if settings.get("bias") is None else f"q = {settings['bias']}"
        work = f"{settings['rounds']} rounds of batch {settings['batch_size']}"
        return f"{settings['num_clients']} clients ({split}), {settings['model']}, {work}"


@dataclass(frozen=True)
class Dataset:
    name: str
    what: str
    size: str
    home: str
    licence: str
    cite: str
    find: Callable[[Path], list[Path]]  # the files that would be read from this folder, there or not; a fetched original comes first
    parse: Callable[[Files], Examples]  # their content -> arrays; refuses whatever is not as it should be
    max_bytes: int  # no file of it is larger than this, packed or unpacked
    downloads: tuple[Download, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)  # further originals a user may have: file name -> hash
    package: str | None = None  # the Python package that brings the data, where there is nothing to download
    profiles: Mapping[str, Profile] = field(default_factory=dict)  # the usual experiments on it, by name

    def hash_of(self, file: str) -> str | None:
        """The known hash of the original of this name."""
        return {download.file: download.known_hash for download in self.downloads}.get(file) or self.known.get(file)
