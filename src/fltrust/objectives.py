"""What a model is trained for: a loss and an error per example. Any loss and any prediction is an `Objective`."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Objective:
    """A task's loss and error. Outputs (k, ...) come from the model, targets (k, ...) from the data."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss (k,) of each example; training minimises a weighted sum of them."""
        raise NotImplementedError

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How wrong the prediction for each example is (k,), from 0 (right) to 1 (wrong)."""
        raise NotImplementedError


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """One class per example: outputs (k, M), targets (k,)."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) != targets).float()
