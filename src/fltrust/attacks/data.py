"""Attacks on the malicious clients' own data: no attack at all, label flipping of four kinds, and the Scaling attack's backdoor."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Backdoor, Knowledge, MaliciousClient, check_choice
from fltrust.errors import InputError
from fltrust.registry import ATTACKS, Look
from fltrust.triggers import NO_TRIGGER, Trigger


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
    >>> from fltrust import LabelFlip, MaliciousClient
    >>> images, labels = LabelFlip().poison(torch.zeros(3, 2), torch.tensor([0, 1, 9]), MaliciousClient(num_classes=10))
    >>> labels
    tensor([9, 8, 0])
    """

    independent = True

    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        return images, _classes(client) - 1 - labels


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
    >>> from fltrust import Knowledge, MaliciousClient, Scaling, Trigger
    >>> attack = Scaling(Trigger(where=((1,),), value=9.0, target=0))
    >>> attack.poison(torch.tensor([[1.0, 2.0]]), torch.tensor([3]), MaliciousClient(num_classes=10))
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
            raise InputError(f"the Scaling attack {NO_TRIGGER}")

    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        target = torch.full_like(labels, self.trigger.target)
        return torch.cat((images, self.trigger.stamp(images))), torch.cat((labels, target))

    def craft(self, known: Knowledge) -> Tensor:
        return known.own * (known.num_clients if self.factor is None else self.factor)


@ATTACKS.register("label-flip-targeted", label="Targeted label flipping", reference="Tolpegin et al., ESORICS 2020")
@dataclass(frozen=True)
class LabelFlipTargeted(Attack):
    """One class is taught to be another: label `source` becomes `target` on the malicious clients' examples (Tolpegin et al. 2020).

    Its success is the share of test examples of class `source` that the model calls `target`.

    Parameters
    ----------
    source : int, default 5
        The class that is attacked. The authors' choices on CIFAR-10 are 5 (dogs as cats), 0 to 2 and 1 to 9.
    target : int, default 3
        What it is to be called.

    Examples
    --------
    >>> import torch
    >>> from fltrust import LabelFlipTargeted, MaliciousClient
    >>> images, labels = LabelFlipTargeted().poison(torch.zeros(3, 2), torch.tensor([5, 1, 3]), MaliciousClient(num_classes=10))
    >>> labels
    tensor([3, 1, 3])
    """

    source: int = 5
    target: int = 3

    independent = True

    def __post_init__(self) -> None:
        if self.source == self.target or self.source < 0 or self.target < 0:
            raise InputError(f"targeted label flipping needs two classes, not {self.source} and {self.target}")

    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        if max(self.source, self.target) >= _classes(client):
            raise InputError(f"targeted label flipping from {self.source} to {self.target}: there are {client.num_classes} classes")
        return images, torch.where(labels == self.source, self.target, labels)

    def backdoor(self, inputs: Tensor, labels: Tensor) -> Backdoor | None:
        return Backdoor(inputs[labels == self.source], self.target) if labels.dim() == 1 else None


@ATTACKS.register("label-flip-random", label="Random label flipping")
@dataclass(frozen=True)
class LabelFlipRandom(Attack):
    """Each label of the malicious clients' examples becomes one of the other classes, drawn once and evenly.

    Examples
    --------
    >>> import torch
    >>> from fltrust import LabelFlipRandom, MaliciousClient
    >>> images, labels = LabelFlipRandom().poison(torch.zeros(3, 2), torch.tensor([0, 1, 1]), MaliciousClient(num_classes=2))
    >>> labels
    tensor([1, 0, 0])
    """

    independent = True

    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        if _classes(client) < 2:
            raise InputError("random label flipping needs at least two classes")
        return images, (labels + torch.randint(1, client.num_classes, labels.shape, generator=client.generator)) % client.num_classes


Answer = Literal["least-likely", "runner-up"]


@ATTACKS.register("label-flip-dynamic", label="Dynamic label flipping", reference="Shejwalkar et al., S&P 2022")
@dataclass(frozen=True)
class LabelFlipDynamic(Attack):
    """In each round, malicious clients train on the label that the current model finds least likely (Shejwalkar et al. 2022).

    The current model is the one that all clients were sent in this round, also in later local steps. The authors ask a model of the
    attacker's own that stands in for it.

    Parameters
    ----------
    to : "least-likely" or "runner-up", default "least-likely"
        "runner-up" takes the likeliest class other than the true label, as some packages do.

    Examples
    --------
    >>> import torch
    >>> from fltrust import LabelFlipDynamic
    >>> labels, outputs = torch.tensor([0, 1]), torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    >>> LabelFlipDynamic().relabel(labels, outputs)
    tensor([2, 2])
    >>> LabelFlipDynamic(to="runner-up").relabel(labels, outputs)
    tensor([1, 0])
    """

    to: Answer = "least-likely"

    independent = True

    def __post_init__(self) -> None:
        check_choice("label to flip to", self.to, Answer)

    def relabel(self, labels: Tensor, outputs: Tensor) -> Tensor:
        if outputs.shape[:-1] != labels.shape or outputs.shape[-1] < 2 or labels.is_floating_point():
            raise InputError("dynamic label flipping needs a model that gives a number for each class, and targets that are classes")
        if self.to == "least-likely":
            return outputs.argmin(-1)
        return outputs.scatter(-1, labels[..., None], -torch.inf).argmax(-1)


def _classes(client: MaliciousClient) -> int:
    if not client.num_classes:
        raise InputError("label flipping needs classes: these targets are numbers")
    return client.num_classes
