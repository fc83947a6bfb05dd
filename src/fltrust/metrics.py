"""What a global model is worth, by name. `evaluate` computes what an experiment records; one more metric is one more function here."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fltrust import threads
from fltrust.registry import METRICS

if TYPE_CHECKING:
    from fltrust.tasks.task import Task
    from fltrust.triggers import Trigger

ALWAYS = ("train_error", "test_error", "success")  # recorded by every run
TRAIN_EXAMPLES = 10_000  # enough for an error to within half a percent; all 60,000 would cost more than the rounds between
CPU_CHUNK = 50  # examples at a time: few, so that their activations stay in the cache
GPU_CHUNK = 5_000  # many, so that all of it is busy


@dataclass(frozen=True)
class Evaluation:
    """A model to be measured: what metrics are functions of."""

    task: "Task"
    weights: Tensor  # (d,)
    trigger: "Trigger | None" = None  # of the attack's backdoor

    @cached_property
    def _predict(self) -> Any:
        root = torch.from_numpy(self.task.root).to(self.task.device)
        return self.task.model.frozen(self.weights, self.task.inputs[root])

    def outputs(self, inputs: Tensor) -> Tensor:
        """The model's outputs (k, ...), as the server uses it."""

        def part(chunk: Tensor) -> Tensor:
            with torch.no_grad():  # a thread's own setting
                outputs: Tensor = self._predict(chunk)
                return outputs

        if inputs.is_cuda:
            return torch.cat([part(chunk) for chunk in torch.split(inputs, GPU_CHUNK)])
        _ = self._predict  # made once, before the threads ask for it
        return torch.cat(threads.each(part, torch.split(inputs, CPU_CHUNK)))

    @cached_property
    def test_outputs(self) -> Tensor:
        return self.outputs(self.task.test_inputs)


@torch.no_grad()
def evaluate(task: "Task", weights: Tensor, trigger: "Trigger | None" = None, more: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """The metrics that every run records, and those asked for; a metric that does not apply is left out."""
    evaluation = Evaluation(task, weights, trigger)
    measured = {name: METRICS.entry(name).kind(evaluation) for name in dict.fromkeys((*ALWAYS, *more))}
    return {name: value for name, value in measured.items() if value is not None}


@METRICS.register("train_error", label="training error")
def train_error(of: Evaluation) -> float:
    """The error on the clients' examples before any poisoning (at most 10,000 of them)."""
    task = of.task
    clean = torch.from_numpy(task.clean[:: -(-len(task.clean) // TRAIN_EXAMPLES)]).to(task.device)
    return task.objective.error(of.outputs(task.inputs[clean]), task.targets[clean]).mean().item()


@METRICS.register("test_error", label="test error")
def test_error(of: Evaluation) -> float:
    """The error on the test examples."""
    return of.task.objective.error(of.test_outputs, of.task.test_targets).mean().item()


@METRICS.register("success", label="backdoor success")
def success(of: Evaluation) -> float | None:
    """The share of triggered test examples, not of the target class, that the model calls the target. Only under a backdoor."""
    if of.trigger is None:
        return None
    others = of.task.test_inputs[of.task.test_targets != of.trigger.target]
    return (of.outputs(of.trigger.stamp(others)).argmax(1) == of.trigger.target).float().mean().item()


@METRICS.register("test_loss", label="test loss")
def test_loss(of: Evaluation) -> float:
    """The mean loss on the test examples."""
    return of.task.objective.loss(of.test_outputs, of.task.test_targets).mean().item()


@METRICS.register("class_error", label="error per class")
def class_error(of: Evaluation) -> list[float | None]:
    """The error on the test examples of each class; None for a class without any."""
    wrong, targets = of.task.objective.error(of.test_outputs, of.task.test_targets), of.task.test_targets
    errors = [wrong[targets == label] for label in range(of.task.num_classes)]
    return [error.mean().item() if len(error) else None for error in errors]


@METRICS.register("confusion", label="confusion matrix")
def confusion(of: Evaluation) -> list[list[int]]:
    """How many test examples of each class (row) the model calls each class (column)."""
    classes = of.task.num_classes
    places = of.task.test_targets * classes + of.test_outputs.argmax(1)
    counts: list[list[int]] = torch.bincount(places, minlength=classes * classes).reshape(classes, classes).tolist()
    return counts
