"""What a red team must know of the data: what a guess would get wrong, and how different the clients are."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fltrust import datasets
from fltrust.codec import built
from fltrust.datasets import Examples
from fltrust.experiment import Experiment
from fltrust.objectives import BinaryCrossEntropy, CrossEntropy, Objective, SquaredError
from fltrust.registry import OBJECTIVES
from fltrust.tasks.build import build_task, data_files


@dataclass(frozen=True)
class Facts:
    train_examples: int
    test_examples: int
    guess_error: float | None  # of whoever always gives the most frequent answer; None for an objective of the user's own
    difference: float | None  # mean total variation distance of a client's classes from those of all clients: 0 alike, 1 nothing in common
    own_root: bool  # the data name the root set
    files: Mapping[str, str]  # the data's and their objective's, and their sha256

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "files"}


def facts_of(run: Experiment, data_dir: str | None) -> Facts:
    """Loads the data of a run, once, and builds its task: data that cannot be used are refused here."""
    examples = datasets.examples_of(run.dataset, data_dir)
    task = build_task(run, data_dir=data_dir, load=lambda name, folder: examples)
    objective: Objective = built(OBJECTIVES, examples.objective, {})
    single = examples.train_labels.ndim == 1 and objective.classes != 0
    difference = _difference([examples.train_labels[own] for own in task.clients]) if single else None
    sizes = len(examples.train_labels), len(examples.test_labels)
    return Facts(*sizes, _guess_error(examples, objective), difference, examples.root is not None, data_files(examples))


def _guess_error(examples: Examples, objective: Objective) -> float | None:
    train, test = examples.train_labels, examples.test_labels
    if type(objective) is CrossEntropy:
        return float((test != np.bincount(train.ravel()).argmax()).mean())
    if type(objective) is BinaryCrossEntropy:
        return float((test != (train.mean(0) > 0.5)).mean())
    if type(objective) is SquaredError:
        off = (test - train.mean(0)) ** 2
        return float(np.minimum(off.reshape(len(test), -1).mean(1), 1).mean())
    return None


def _difference(clients: list[NDArray[np.int64]]) -> float:
    classes = 1 + max(int(labels.max()) for labels in clients if len(labels))
    counts = np.stack([np.bincount(labels, minlength=classes) for labels in clients if len(labels)])  # (clients, classes)
    shares, overall = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
    return float(np.abs(shares - overall).sum(1).mean() / 2)
