"""Backdoors beyond the Scaling attack: DBA, Neurotoxin and edge cases. In all of them the malicious clients train on poisoned examples."""

import importlib.util
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrust.attacks.attack import Attack, Backdoor, Knowledge, MaliciousClient, Seen
from fltrust.attacks.rows import bounded, cut
from fltrust.errors import InputError
from fltrust.registry import ATTACKS
from fltrust.rules.rows import measure, median_of
from fltrust.state import Memory
from fltrust.triggers import NO_TRIGGER, Trigger


@ATTACKS.register("dba", label="DBA", reference="Xie, Huang, Chen, Li, ICLR 2020")
@dataclass(frozen=True)
class DBA(Attack):
    """The distributed backdoor attack: each malicious client trains on its own part of the trigger; tests use all of it (Xie et al. 2020).

    The trigger's features are cut into `parts` runs of equal length, in their order. Malicious client i uses part i modulo `parts`: a
    random share of its examples carries that part and has the target label. `triggers.four_bars` makes the authors' triggers of four bars.
    The default is the data set's trigger, so that DBA and the Scaling attack can be compared.

    Parameters
    ----------
    trigger : Trigger, default None
        The whole pattern. None is refused; `Experiment.on` replaces it by the data set's trigger.
    parts : int, default 4
        How many parts there are.
    share : float, default 0.3125
        The share of a malicious client's examples that are poisoned: 20 of 64, as the authors' on MNIST (on CIFAR-10: 5 of 64).
    factor : float, default 1.0
        What the update is multiplied by: 1 if the clients attack in every round, 100 in the authors' single shot.

    Examples
    --------
    >>> import torch
    >>> from fltrust import DBA, MaliciousClient, Trigger
    >>> attack = DBA(Trigger(where=((0,), (1,), (2,), (3,)), value=9.0, target=1), parts=2, share=1.0)
    >>> attack.poison(torch.zeros(1, 4), torch.tensor([3]), MaliciousClient(num_classes=10, index=1))
    (tensor([[0., 0., 9., 9.]]), tensor([1]))
    """

    trigger: Trigger
    parts: int = 4
    share: float = 0.3125
    factor: float = 1.0

    independent = True

    def __post_init__(self) -> None:
        _check_trigger("DBA", self.trigger)
        _check_share("DBA", self.share)
        if not 1 <= self.parts <= len(self.trigger.where):
            raise InputError(f"DBA cannot cut a trigger of {len(self.trigger.where)} features into {self.parts} parts")
        if not 0 < self.factor < math.inf:
            raise InputError(f"DBA needs a positive factor, not {self.factor}")

    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        return _stamped(self.trigger.part(client.index % self.parts, self.parts), self.share, images, labels, client)

    def craft(self, known: Knowledge) -> Tensor:
        return known.own * self.factor


@ATTACKS.register("neurotoxin", label="Neurotoxin", reference="Zhang et al., ICML 2022")
@dataclass(frozen=True)
class Neurotoxin(Attack):
    """A backdoor that lasts: it changes only coordinates that honest clients hardly change (Zhang et al. 2022).

    Malicious clients train on examples of which a share carries the trigger. Of their updates they keep the `ratio` of coordinates in which
    the last global update has the smallest absolute values; the others become 0. In the first round that they see, no update is known and
    they keep all. Then they cut the update to `norm`.

    The authors project every local step; here the whole update is projected, which is the same with one local step. They choose
    coordinates layer by layer or over the whole model; here it is the whole model.

    Parameters
    ----------
    trigger : Trigger, default None
        The pattern of the backdoor. None is refused; `Experiment.on` replaces it by the data set's trigger.
    ratio : float, default 0.95
        The share of coordinates that are kept. The authors try 0.85 to 0.99.
    norm : float or None, default None
        The longest update that is sent; None does not cut. The authors' 0.2 on CIFAR-10 belongs to their learning rate.
    share : float, default 0.5
        The share of a malicious client's examples that are poisoned.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, Neurotoxin, Trigger
    >>> attack = Neurotoxin(Trigger(where=((0,),), value=9.0, target=1), ratio=0.5)
    >>> memory = attack.init(num_clients=3, like=torch.zeros(4))
    >>> for weights in (torch.zeros(4), torch.tensor([-3.0, 0.1, 2.0, -0.2])):
    ...     own = torch.ones(1, 4)
    ...     known = Knowledge(own, None, None, n=3, tolerate=1, num_clients=3, generator=torch.Generator(), weights=weights)
    ...     row, memory = attack.step(known, memory)
    >>> row
    tensor([[0., 1., 0., 1.]])
    """

    trigger: Trigger
    ratio: float = 0.95
    norm: float | None = None
    share: float = 0.5

    def __post_init__(self) -> None:
        _check_trigger("Neurotoxin", self.trigger)
        _check_share("Neurotoxin", self.share)
        if not 0 < self.ratio <= 1:
            raise InputError(f"Neurotoxin keeps a share of coordinates above 0 and at most 1, not {self.ratio}")
        if self.norm is not None and not 0 < self.norm < math.inf:
            raise InputError(f"Neurotoxin needs a positive norm, not {self.norm}")

    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        return _stamped(self.trigger, self.share, images, labels, client)

    def init(self, num_clients: int, like: Tensor) -> Memory:
        return Seen.nothing(like)

    def step(self, known: Knowledge, memory: Seen) -> tuple[Tensor, Seen]:
        changes = memory.update(known).abs()  # (d,)
        quiet = changes.argsort(stable=True)[: math.ceil(self.ratio * len(changes))]
        kept = torch.zeros_like(changes).index_fill(0, quiet, 1.0)
        rows = known.own * torch.where(memory.rounds > 0, kept, 1.0)
        return rows if self.norm is None else cut(rows, self.norm), memory.now(known)


@ATTACKS.register("edge-case", label="Edge cases", reference="Wang et al., NeurIPS 2020")
@dataclass(frozen=True)
class EdgeCase(Attack):
    """A backdoor without a trigger: unusual examples, which honest clients hardly have, learn a wrong label (Wang et al. 2020).

    A share of each malicious client's examples is replaced by edge cases with the target label. Its update is cut to `radius` (the
    authors' projected gradient descent) and multiplied by `factor` (model replacement). The backdoor's success is the share of other edge
    cases that the model calls the target.

    The authors use sevens of the ARDIS collection as "one". Here the edge cases are the sevens of scikit-learn's digits, of 8 x 8 pixels,
    enlarged to the size of the task's images and equal in all channels: half of them to train, the others to test. Tasks whose examples
    are not images are refused. The authors project every few local steps; here the whole update is projected, which is the same with one
    local step.

    Parameters
    ----------
    target : int, default 1
        The class that the attacker wants.
    share : float, default 0.5
        The share of a malicious client's examples that are replaced.
    radius : float or None, default None
        The longest update before `factor`. None takes the median length of the malicious clients' updates of the round. The authors' 2 is
        for whole local trainings.
    factor : float, default 1.0
        What the update is multiplied by.

    Examples
    --------
    >>> import torch
    >>> from fltrust import EdgeCase, MaliciousClient
    >>> images, labels = EdgeCase().poison(torch.zeros(4, 1, 28, 28), torch.tensor([5, 5, 5, 5]), MaliciousClient(num_classes=10))
    >>> labels.sort().values
    tensor([1, 1, 5, 5])
    """

    target: int = 1
    share: float = 0.5
    radius: float | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_share("the edge-case attack", self.share)
        if self.target < 0:
            raise InputError(f"the edge-case attack's target must be a class, not {self.target}")
        if not 0 < self.factor < math.inf or not (self.radius is None or 0 < self.radius < math.inf):
            raise InputError(f"the edge-case attack needs a positive factor and radius, not {self.factor} and {self.radius}")

    @property
    def independent(self) -> bool:  # type: ignore[override]
        return self.radius is not None

    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        edge = _edge_cases(images, held_out=False)
        if not self.target < client.num_classes or labels.dim() != 1:
            raise InputError(f"the edge-case attack's target {self.target} is none of the {client.num_classes} classes of these examples")
        chosen = _chosen(len(images), self.share, client)
        drawn = torch.randint(len(edge), (len(chosen),), generator=client.generator)
        return images.index_copy(0, chosen, edge[drawn].to(images.dtype)), labels.index_fill(0, chosen, self.target)

    def backdoor(self, inputs: Tensor, labels: Tensor) -> Backdoor:
        return Backdoor(_edge_cases(inputs, held_out=True), self.target)

    def craft(self, known: Knowledge) -> Tensor:
        if len(known.own) == 0:
            return known.own.clone()
        if self.radius is not None:
            return bounded(cut(known.own, self.radius) * self.factor)
        rows = measure(known.own)
        return bounded(cut(known.own, median_of(rows.norm, rows.usable)) * self.factor)


def _check_trigger(name: str, trigger: Trigger | None) -> None:
    if trigger is None:
        raise InputError(f"{name} {NO_TRIGGER}")


def _check_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise InputError(f"{name} poisons a share of the examples above 0 and at most 1, not {share}")


def _chosen(count: int, share: float, client: MaliciousClient) -> Tensor:
    """Which of a client's examples are poisoned: a random share, at least one."""
    return torch.randperm(count, generator=client.generator)[: max(1, round(share * count))]


def _stamped(trigger: Trigger, share: float, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
    chosen = _chosen(len(images), share, client)
    return images.index_copy(0, chosen, trigger.stamp(images[chosen])), labels.index_fill(0, chosen, trigger.target)


def _edge_cases(like: Tensor, *, held_out: bool) -> Tensor:
    """Edge cases (k, c, h, w) for images like these: half of the sevens; the other half if `held_out`."""
    if like.dim() != 4 or not like.is_floating_point():
        raise InputError(f"the edge-case attack has only images of digits: it cannot attack examples of shape {tuple(like.shape[1:])}")
    sevens = torch.from_numpy(_sevens())[held_out::2].to(like.device)
    enlarged = torch.nn.functional.interpolate(sevens, like.shape[2:], mode="bilinear", align_corners=False)
    return enlarged.expand(-1, like.shape[1], -1, -1).to(like.dtype)


@cache
def _sevens() -> NDArray[np.float32]:
    """The sevens (k, 1, 8, 8) of scikit-learn's digits, 0 to 1. The package is only looked for: importing it takes seconds."""
    package = importlib.util.find_spec("sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz" if package and package.origin else None
    if file is None or not file.is_file():
        raise InputError("the edge-case attack takes its examples from scikit-learn's digits: install scikit-learn")
    digits = np.loadtxt(file, delimiter=",", dtype=np.float32)  # 64 pixels of 0 to 16, and the digit
    return np.asarray(digits[digits[:, 64] == 7, :64].reshape(-1, 1, 8, 8) / 16, np.float32)
