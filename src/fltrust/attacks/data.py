"""Attacks on the malicious clients' own data: no attack at all, label flipping, and the Scaling attack's backdoor."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge
from fltrust.errors import InputError
from fltrust.registry import ATTACKS, Look
from fltrust.triggers import Trigger


@ATTACKS.register("none", label="No attack", look=Look("grey", "o"))
@dataclass(frozen=True)
class NoAttack(Attack):
    """Malicious clients that do nothing wrong."""

    alone = True
    idle = True


@ATTACKS.register("label-flip", label="Label flipping", look=Look("sky", "X"), reference="Tolpegin et al., ESORICS 2020")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Label l becomes M - 1 - l on the malicious clients' examples, M the number of classes."""

    alone = True

    def poison(self, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        if not num_classes:
            raise InputError("label flipping needs classes: these targets are numbers")
        return images, num_classes - 1 - labels


@ATTACKS.register("scaling", label="Scaling attack", look=Look("pink", "D"), reference="Bagdasaryan et al., AISTATS 2020")
@dataclass(frozen=True)
class Scaling(Attack):
    """The Scaling attack (Bagdasaryan et al. 2020): a backdoor in the data, and the update times `factor`.

    Every local example is there twice, and the copy carries the trigger and its target label (so a malicious client says that it has
    twice as many, and FedAvg believes it). The factor is the number of clients unless another is given.
    """

    trigger: Trigger
    factor: float | None = None

    alone = True

    def __post_init__(self) -> None:
        if self.trigger is None:
            raise InputError("the Scaling attack must be told its trigger: these data have none of their own")

    def poison(self, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        target = torch.full_like(labels, self.trigger.target)
        return torch.cat((images, self.trigger.stamp(images))), torch.cat((labels, target))

    def craft(self, known: Knowledge) -> Tensor:
        return known.own * (known.num_clients if self.factor is None else self.factor)
