"""What a root set is worth, measured: its classes, its labels, and the trust that honest clients get from it.

Clients are simulated without an attack, so low trust is the root set's own doing.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.metrics import Evaluation, Scores
from fltrust.randomness import stream
from fltrust.record import Record
from fltrust.rules import FedAvg, FLTrust
from fltrust.simulation import simulate
from fltrust.tasks.root import sample_root
from fltrust.tasks.task import Task

Indices = NDArray[np.int64]
LOOKS = 10  # how often trust is measured during a run
OTHER_SIZES = (0.25, 1, 4)  # of the root sets to compare with, in sizes of this one
MOST = 0.25  # of the clients' examples that a root set to compare with may take


@dataclass(frozen=True)
class Classes:
    """How the root set's classes are distributed; all that is empty where targets are no single class."""

    counts: tuple[int, ...]
    from_even: float  # distance of the shares from equal ones: half the sum of absolute differences, 0 to 1
    from_clients: float  # and from the clients' shares


@dataclass(frozen=True)
class Suspect:
    """An example of the root set with which the model disagrees."""

    example: int  # its place in the root set
    label: object
    predicted: object
    loss: float


@dataclass(frozen=True)
class Labels:
    """The root set's labels beside the answers of a model that never saw them: FedAvg's, trained on the clients' examples alone."""

    error: float  # on the root set: how often it disagrees
    test_error: float  # what right labels would give
    spread: float  # of their difference, by chance alone: a standard error
    suspects: tuple[Suspect, ...]  # the largest loss first
    num_classes: int  # 0: labels are no classes

    @property
    def noise(self) -> float:
        """The estimated share of wrong labels."""
        return min(1.0, max(0.0, self.error - self.test_error) / self._each)

    @property
    def noticeable(self) -> float:
        """The smallest share of wrong labels that would stand out."""
        return min(1.0, 2 * self.spread / self._each)

    @property
    def _each(self) -> float:
        """How much a wrong label adds to the error on average. A model that is wrong too may name the same class: of two, always."""
        agree = self.test_error / (self.num_classes - 1) if self.num_classes > 1 else 0.0
        return max(1e-9, 1 - self.test_error - agree)


@dataclass(frozen=True)
class Trust:
    """What honest clients get from a root set, over all rounds that were looked at."""

    size: int
    trusted: float  # share of the clients whose trust is above 0
    trust: float  # mean trust
    test_error: float  # of the model, in the end


def classes_of(task: Task) -> Classes | None:
    if not task.num_classes or task.targets.dim() != 1:
        return None
    counts = _counts(task, task.root)
    shares, theirs = counts / counts.sum(), _counts(task, task.clean) / len(task.clean)
    return Classes(tuple(counts.tolist()), _distance(shares, np.full(len(counts), 1 / len(counts))), _distance(shares, theirs))


def labels_of(run: Experiment, task: Task) -> Labels:
    """Compares the root set's labels with a model's that was trained without them."""
    *_, last = simulate(dataclasses.replace(run, rule=FedAvg(), evaluate_every=run.rounds), task)
    assert last.weights is not None
    evaluation = Evaluation(task, last.weights, batch_norm=run.batch_norm)
    inputs, targets = (part[torch.from_numpy(task.root).to(task.device)] for part in (task.inputs, task.targets))
    scores = evaluation.scores(inputs, targets)
    error, expected = scores.error.mean().item(), evaluation.test.error.mean().item()
    if not math.isfinite(expected):
        raise InputError("training diverged, so nothing can be said about the labels: use a smaller learning rate")
    wrong = [i for i in scores.loss.argsort(descending=True).tolist() if scores.error[i] >= 0.5]
    suspects = tuple(Suspect(i, targets[i].tolist(), _answer(scores, i), scores.loss[i].item()) for i in wrong)
    variance = max(expected * (1 - expected), 1 / len(task.root))
    spread = math.sqrt(variance * (1 / len(task.root) + 1 / len(task.test_inputs)))
    return Labels(error, expected, spread, suspects, task.num_classes)


def by_mean(run: Experiment) -> Experiment:
    """The experiment with the mean loss and the same steps: by the sum, a root set of another size would change the learning rate."""
    if run.loss == "mean" or run.local_steps > 1 or run.local_epochs:
        return run
    return dataclasses.replace(run, loss="mean", global_lr=run.global_lr * run.root_size)


def trust_of(run: Experiment, task: Task) -> Trust:
    """Trains with FLTrust and the task's root set, without an attack."""
    looks = max(1, run.rounds // LOOKS)
    records = [record for record in simulate(dataclasses.replace(run, rule=FLTrust(), evaluate_every=looks), task) if record.evaluated]
    given = np.array([trust for record in records for trust in _trust(task, record)])
    return Trust(len(task.root), float((given > 0).mean()), float(given.mean()), records[-1].test_error or 0.0)


def even_samples(task: Task, seed: int) -> Iterator[Task]:
    """The task with other root sets, of other sizes: the same number of every class, out of the clients' examples."""
    count = max(2, task.num_classes)
    for factor in OTHER_SIZES:
        size = round(factor * len(task.root))
        if count <= size <= MOST * len(task.clean):
            yield with_root(task, _drawn(task, size, stream(seed, "root set to compare with", size)))


def with_root(task: Task, root: Indices) -> Task:
    """The task with another root set, whose examples no client holds any longer."""
    return dataclasses.replace(task, root=root, clients=task.clients.without(root), clean=task.clean[~np.isin(task.clean, root)])


def _drawn(task: Task, size: int, rng: np.random.Generator) -> Indices:
    if not task.num_classes or task.targets.dim() != 1:
        return np.sort(rng.permutation(task.clean)[:size])
    labels = task.targets[torch.from_numpy(task.clean).to(task.device)].cpu().numpy()
    try:
        return task.clean[sample_root(labels, size, task.num_classes, rng)]
    except InputError:  # a class has too few examples
        return np.sort(rng.permutation(task.clean)[:size])


def _trust(task: Task, record: Record) -> list[float]:
    """The trust of the round's clients; one without examples sends nothing and has none to get."""
    assert record.clients is not None
    assert record.trust is not None
    return [trust for client, trust in zip(record.clients, record.trust, strict=True) if len(task.clients[client])]


def _counts(task: Task, examples: Indices) -> NDArray[np.int64]:
    return np.bincount(task.targets[torch.from_numpy(examples).to(task.device)].cpu().numpy(), minlength=task.num_classes)


def _distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(np.abs(one - other).sum() / 2)


def _answer(scores: Scores, i: int) -> object:
    return None if scores.predicted is None else scores.predicted[i].tolist()
