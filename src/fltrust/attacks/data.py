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
    """No attack: the malicious clients follow the protocol.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, NoAttack
    >>> own = torch.tensor([[1.0, -2.0]])
    >>> known = Knowledge(own, others=None, root_update=None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> NoAttack().craft(known)
    tensor([[ 1., -2.]])
    """

    independent = True
    idle = True


@ATTACKS.register("label-flip", label="Label flipping", look=Look("sky", "X"), reference="Tolpegin et al., ESORICS 2020")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Label l becomes M - 1 - l on the malicious clients' examples, where M is the number of classes (Tolpegin et al. 2020).

    Examples
    --------
    >>> import torch
    >>> from fltrust import LabelFlip
    >>> images, labels = LabelFlip().poison(torch.zeros(3, 2), torch.tensor([0, 1, 9]), num_classes=10)
    >>> labels
    tensor([9, 8, 0])
    """

    independent = True

    def poison(self, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        if not num_classes:
            raise InputError("label flipping needs classes: these targets are numbers")
        return images, num_classes - 1 - labels


@ATTACKS.register("scaling", label="Scaling attack", look=Look("pink", "D"), reference="Bagdasaryan et al., AISTATS 2020")
@dataclass(frozen=True)
class Scaling(Attack):
    """The Scaling attack: a backdoor in the data, and updates multiplied by a factor (Bagdasaryan et al. 2020).

    A malicious client adds a copy of each of its examples. The copy carries the trigger and has the target label. So the client reports
    twice as many examples, and FedAvg believes it. It then sends `factor` times its update.

    Parameters
    ----------
    trigger : Trigger, default None
        The pattern of the backdoor. None is refused; `Experiment.on` replaces it by the data set's trigger.
    factor : float or None, default None
        None takes the number of clients in the federation.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, Scaling, Trigger
    >>> attack = Scaling(Trigger(where=((1,),), value=9.0, target=0))
    >>> attack.poison(torch.tensor([[1.0, 2.0]]), torch.tensor([3]), num_classes=10)
    (tensor([[1., 2.],
            [1., 9.]]), tensor([3, 0]))
    >>> own = torch.tensor([[1.0, -2.0]])
    >>> known = Knowledge(own, others=None, root_update=None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> attack.craft(known)
    tensor([[ 3., -6.]])
    """

    trigger: Trigger
    factor: float | None = None

    independent = True

    def __post_init__(self) -> None:
        if self.trigger is None:
            raise InputError("the Scaling attack must be told its trigger: these data have none of their own")

    def poison(self, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        target = torch.full_like(labels, self.trigger.target)
        return torch.cat((images, self.trigger.stamp(images))), torch.cat((labels, target))

    def craft(self, known: Knowledge) -> Tensor:
        return known.own * (known.num_clients if self.factor is None else self.factor)
