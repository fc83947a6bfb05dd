"""What a global model is worth, by name. `evaluate` computes what an experiment records; one more metric is one more function here.

Metrics that count classes count targets: the examples of a task with one class each, the tokens of sequences, the labels of a multi-label
task. A metric that does not apply to a task, a rule or an attack returns None and is left out of the record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fltrust import threads
from fltrust.errors import InputError
from fltrust.experiment import BatchNorm
from fltrust.registry import METRICS

if TYPE_CHECKING:
    from fltrust.attacks import Attack
    from fltrust.tasks.task import Task

ALWAYS = ("train_error", "test_error", "success")  # recorded by every run
TRAIN_EXAMPLES = 10_000  # enough for an error to within half a percent; all 60,000 would cost more than the rounds between
CPU_CHUNK = 50  # examples at a time: few, so that their activations stay in the cache
GPU_CHUNK = 5_000  # many, so that all of it is busy


class Scores(NamedTuple):
    """What k predictions are worth."""

    error: Tensor  # (k,)
    loss: Tensor  # (k,)
    predicted: Tensor | None  # the classes, in the shape of the targets; None where these are no classes


@dataclass(frozen=True)
class Evaluation:
    """A model to be measured, and the round it came from: what metrics are functions of."""

    task: "Task"
    weights: Tensor  # (d,)
    attack: "Attack | None" = None  # whose backdoor is measured
    shares: Tensor | None = None  # (n,) of the round's clients in the global update, the malicious clients first
    malicious: int = 0  # how many of them
    batch_norm: BatchNorm = "root"  # whose statistics it uses

    @cached_property
    def predict(self) -> Any:
        """inputs -> outputs, as the server uses the model."""
        return self.task.model.frozen(self.weights, *self.task.norm_batches(self.batch_norm))

    @cached_property
    def test(self) -> Scores:
        """The scores of the test examples."""
        return self.scores(self.task.test_inputs, self.task.test_targets)

    def scores(self, inputs: Tensor, targets: Tensor) -> Scores:
        """The scores of examples, computed in chunks: all outputs together may be too large."""
        objective, predict = self.task.objective, self.predict

        def part(chunk: tuple[Tensor, Tensor]) -> Scores:
            inputs, targets = chunk
            with torch.no_grad():  # a thread's own setting
                outputs = predict(inputs)
                return Scores(objective.error(outputs, targets), objective.loss(outputs, targets), objective.predict(outputs))

        size = GPU_CHUNK if inputs.is_cuda else CPU_CHUNK
        chunks = zip(torch.split(inputs, size), torch.split(targets, size), strict=True)
        errors, losses, predicted = zip(*(map(part, chunks) if inputs.is_cuda else threads.each(part, chunks)), strict=True)
        return Scores(torch.cat(errors), torch.cat(losses), None if predicted[0] is None else torch.cat(predicted).view(targets.shape))


@torch.no_grad()
def evaluate(
    task: "Task",
    weights: Tensor,
    attack: "Attack | None" = None,
    more: tuple[str, ...] = (),
    *,
    shares: Tensor | None = None,
    malicious: int = 0,
    batch_norm: BatchNorm = "root",
) -> Mapping[str, Any]:
    """The metrics that every run records, and those asked for; a metric that does not apply is left out."""
    evaluation = Evaluation(task, weights, attack, shares, malicious, batch_norm)
    measured = {name: _measured(name, evaluation) for name in dict.fromkeys((*ALWAYS, *more))}
    return {name: value for name, value in measured.items() if value is not None}


def _measured(name: str, evaluation: Evaluation) -> Any:
    metric = METRICS.entry(name).kind
    if name in ALWAYS:
        return metric(evaluation)
    try:
        value = metric(evaluation)
    except Exception as problem:  # it may be a user's own
        raise InputError(f"the metric {name!r} cannot be computed: {type(problem).__name__}: {problem}") from problem
    value = value.tolist() if hasattr(value, "tolist") else value  # of a tensor or an array
    if not _recordable(value):
        raise InputError(f"the metric {name!r} must be a number, a list of numbers or None, not {value!r}")
    return value


def _recordable(value: Any) -> bool:
    return all(map(_recordable, value)) if isinstance(value, list) else value is None or isinstance(value, int | float)


@METRICS.register("train_error", label="training error")
def train_error(of: Evaluation) -> float:
    """The error on the clients' examples before any poisoning (at most 10,000 of them)."""
    task = of.task
    clean = torch.from_numpy(task.clean[:: -(-len(task.clean) // TRAIN_EXAMPLES)]).to(task.device)
    return of.scores(task.inputs[clean], task.targets[clean]).error.mean().item()


@METRICS.register("test_error", label="test error")
def test_error(of: Evaluation) -> float:
    """The error on the test examples."""
    return of.test.error.mean().item()


@METRICS.register("success", label="backdoor success")
def success(of: Evaluation) -> float | None:
    """The share of the backdoor's test examples that the model calls the target. Only under an attack that aims at a class.

    These are the test examples of other classes with the trigger in them, unless the attack says otherwise.
    """
    backdoor = of.attack.backdoor(of.task.test_inputs, of.task.test_targets) if of.attack else None
    if backdoor is None or not len(backdoor.inputs):
        return None
    wanted = of.task.test_targets.new_full((len(backdoor.inputs),), backdoor.target)
    predicted = of.scores(backdoor.inputs, wanted).predicted
    return None if predicted is None else (predicted == wanted).float().mean().item()


@METRICS.register("test_loss", label="test loss")
def test_loss(of: Evaluation) -> float:
    """The mean loss on the test examples."""
    return of.test.loss.mean().item()


@METRICS.register("class_error", label="error per class")
def class_error(of: Evaluation) -> list[float | None] | None:
    """The error on the test targets of each class; None for a class without any."""
    counts = confusion(of)
    if counts is None:
        return None
    return [1 - row[label] / sum(row) if sum(row) else None for label, row in enumerate(counts)]


@METRICS.register("confusion", label="confusion matrix")
def confusion(of: Evaluation) -> list[list[int]] | None:
    """How many test targets of each class (row) the model calls each class (column)."""
    if of.test.predicted is None:
        return None
    classes, targets, predicted = of.task.num_classes, of.task.test_targets.flatten(), of.test.predicted.flatten()
    columns = max(classes, int(predicted.max()) + 1)  # a model may have more outputs than there are classes
    counts: list[list[int]] = torch.bincount(targets * columns + predicted, minlength=classes * columns).view(classes, columns).tolist()
    return counts


@METRICS.register("honest_share", label="share of an honest client")
def honest_share(of: Evaluation) -> float | None:
    """The mean share of the round's honest clients in the global update. Only for rules with shares."""
    return _mean(of.shares, slice(of.malicious, None))


@METRICS.register("malicious_share", label="share of a malicious client")
def malicious_share(of: Evaluation) -> float | None:
    """The mean share of the round's malicious clients in the global update. Only for rules with shares."""
    return _mean(of.shares, slice(of.malicious))


def _mean(shares: Tensor | None, clients: slice) -> float | None:
    return None if shares is None or not len(shares[clients]) else shares[clients].mean().item()
