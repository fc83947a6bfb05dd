"""What a model is trained for: a loss, a prediction and an error per example. Any loss and any prediction is an `Objective`.

k examples; M classes. An example has one target (a class), or several (the tokens of a sequence, the labels of a multi-label task).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fltrust.registry import OBJECTIVES, Registry


@dataclass(frozen=True)
class Objective:
    """A task's loss, prediction and error. Outputs (k, ...) come from the model, targets (k, ...) from the data.

    A subclass defines `loss`, and `predict` (for classes) or `error` (for anything else). The absolute error, for example:

    >>> import torch
    >>> class AbsoluteError(Objective):
    ...     def loss(self, outputs, targets):
    ...         return (outputs.view(targets.shape) - targets).abs()
    ...     def error(self, outputs, targets):
    ...         return self.loss(outputs, targets).clamp(max=1)
    >>> AbsoluteError().loss(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0]))
    tensor([0., 2.])
    """

    registry: ClassVar[Registry] = OBJECTIVES
    classes: ClassVar[int | None] = 0  # classes of the targets; None: as many as the data have; 0: targets are no classes

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss (k,) of each example, from its own outputs and targets alone; training minimises a weighted sum of them."""
        raise NotImplementedError

    def predict(self, outputs: Tensor) -> Tensor | None:
        """The predicted classes, in the shape of the targets; None where targets are no classes."""
        return None

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How wrong the prediction for each example is (k,), from 0 (right) to 1 (wrong): the share of targets that were not predicted."""
        predicted = self.predict(outputs)
        if predicted is None:
            raise NotImplementedError
        return _per_example((predicted != targets).float())

    def misfit(self, outputs: Tensor, targets: Tensor, num_classes: int) -> str | None:
        """Why the model's outputs do not fit the targets, in words; None if they do."""
        return None


def bounded_loss(losses: Tensor) -> Tensor:
    """1 - exp(-loss), so that a few examples cannot outweigh all others: with cross-entropy, the probability given to wrong classes."""
    return -torch.expm1(-losses)


@OBJECTIVES.register("cross-entropy", label="cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """One class per example (outputs (k, M), targets (k,)) or per token of a sequence of T (outputs (k, T, M), targets (k, T)).

    The loss and the error of a sequence are the means over its tokens.

    >>> import torch
    >>> outputs = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> CrossEntropy().error(outputs, torch.tensor([0, 0]))
    tensor([0., 1.])
    >>> CrossEntropy().error(outputs[None], torch.tensor([[0, 0]]))  # one sequence of two tokens
    tensor([0.5000])
    """

    classes = None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return _per_example(losses.view(targets.shape))

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def misfit(self, outputs: Tensor, targets: Tensor, num_classes: int) -> str | None:
        if outputs.shape[:-1] == targets.shape and outputs.shape[-1] >= num_classes:
            return None
        wanted = f"{num_classes} numbers" if targets.dim() == 1 else f"outputs of shape {(*targets.shape[1:], num_classes)}"
        hint = ": with one logit, the objective is 'binary'" if num_classes == 2 and outputs.shape[1:] in ((), (1,)) else ""
        return f"the model must give {wanted} for an example, not {tuple(outputs.shape[1:])}{hint}"


@OBJECTIVES.register("binary", label="binary cross-entropy")
@dataclass(frozen=True)
class BinaryCrossEntropy(Objective):
    """Yes or no, once per example (targets (k,), outputs (k,) or (k, 1)) or for each of L labels (targets and outputs (k, L)).

    Outputs are logits: above 0 is yes (1). The loss and the error of several labels are the means over them.

    >>> import torch
    >>> BinaryCrossEntropy().error(torch.tensor([[3.0, -1.0], [3.0, 1.0]]), torch.tensor([[1, 0], [0, 1]]))
    tensor([0.0000, 0.5000])
    """

    classes = 2

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = outputs.view(targets.shape)
        return _per_example(functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none"))

    def predict(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).long()

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().error(outputs.view(targets.shape), targets)

    def misfit(self, outputs: Tensor, targets: Tensor, num_classes: int) -> str | None:
        return _shape_misfit("logits", outputs, targets)


@OBJECTIVES.register("squared-error", label="squared error")
@dataclass(frozen=True)
class SquaredError(Objective):
    """Regression: one number per example (targets (k,), outputs (k,) or (k, 1)) or several (targets and outputs (k, L)).

    The loss is the mean squared error of an example's numbers. The error is the same, but at most 1, since errors are shares: scale the
    targets to a deviation of about 1. The metric `test_loss` is the mean squared error without that limit.

    >>> import torch
    >>> outputs, targets = torch.tensor([[1.0], [3.5]]), torch.tensor([0.5, 1.5])
    >>> SquaredError().loss(outputs, targets), SquaredError().error(outputs, targets)
    (tensor([0.2500, 4.0000]), tensor([0.2500, 1.0000]))
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _per_example((outputs.view(targets.shape) - targets).square())

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets).clamp(max=1)

    def misfit(self, outputs: Tensor, targets: Tensor, num_classes: int) -> str | None:
        return _shape_misfit("numbers", outputs, targets)


def _shape_misfit(what: str, outputs: Tensor, targets: Tensor) -> str | None:
    if outputs.shape in (targets.shape, (*targets.shape, 1)):
        return None
    return f"the model must give {what} of shape {tuple(targets.shape[1:])} for an example, not {tuple(outputs.shape[1:])}"


def _per_example(values: Tensor) -> Tensor:
    """(k,) from (k,) or (k, ...)."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)
