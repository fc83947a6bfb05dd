"""Networks for features: logistic regression and one hidden layer."""

import math

from torch import Tensor, nn

from fltrust.registry import MODELS


@MODELS.register("logistic", label="logistic regression")
class LogisticRegression(nn.Module):
    """One linear layer on the features: the paper's model for HAR."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(math.prod(shape), num_classes)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(features.flatten(1))
        return logits


@MODELS.register("mlp", label="MLP")
class MLP(nn.Module):
    """One hidden layer of 128 on the features, with ReLU."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), 128)
        self.output = nn.Linear(128, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(self.hidden(features.flatten(1)).relu())
        return logits
