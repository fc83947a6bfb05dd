"""Min-Max and Min-Sum (Shejwalkar and Houmansadr, NDSS 2021): as far from the honest mean as honest updates are from one another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge, Level, check_choice, check_level, measured_rows
from fltrust.attacks.rows import SeenRows, bounded, units
from fltrust.registry import ATTACKS

Direction = Literal["deviation", "sign", "mean"]
Bound = Literal["max", "min"]
Gamma = Callable[[SeenRows, Tensor, Tensor], Tensor]  # of the rows, b_i (n-m,) and a ()


@ATTACKS.register("min-max", label="Min-Max", reference="Shejwalkar, Houmansadr, NDSS 2021")
@dataclass(frozen=True)
class MinMax(Attack):
    """The farthest shift of the honest mean that is no farther from any honest update than these are from each other.

    All malicious clients send mu + gamma p, with the largest gamma for which max_i ||mu + gamma p - x_i|| <= max_ij ||x_i - x_j||. This is
    computed exactly: with c_i = mu - x_i, b_i = <c_i, p>, a = <p, p> and D the largest squared distance, gamma is the least of
    (-b_i + sqrt(b_i^2 - a (||c_i||^2 - D))) / a. The authors search for it, from 10 on, and cannot go beyond 20.

    Parameters
    ----------
    direction : "deviation", "sign" or "mean", default "deviation"
        p is -sd (the honest updates' standard deviation), -sign(mu) or -mu / ||mu||.
    knowledge : "full" or "partial", default "full"
        The honest clients' updates, or the malicious clients' own in their place.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, MinMax
    >>> own, others = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    >>> known = Knowledge(own, others, root_update=None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> MinMax().craft(known)  # 2 away from the farther one, as these are from each other
    tensor([[1., 0.]])
    """

    direction: Direction = "deviation"
    knowledge: Level = "full"

    def __post_init__(self) -> None:
        check_level(self.knowledge)
        check_choice("direction", self.direction, Direction)

    def craft(self, known: Knowledge) -> Tensor:
        return _shifted(known, self.knowledge, self.direction, _largest_gamma)


@ATTACKS.register("min-sum", label="Min-Sum", reference="Shejwalkar, Houmansadr, NDSS 2021")
@dataclass(frozen=True)
class MinSum(Attack):
    """The farthest shift of the honest mean whose squared distances to honest updates sum up to no more than those of an honest update.

    All malicious clients send mu + gamma p, with the largest gamma for which sum_i ||mu + gamma p - x_i||^2 <= S. In the paper S is the
    largest of an honest update's sums max_i sum_j ||x_i - x_j||^2. In the authors' release it is the smallest. Since the c_i = mu - x_i
    sum up to zero, gamma is max_i ||c_i|| / ||p|| (or min_i).

    Parameters
    ----------
    direction : "deviation", "sign" or "mean", default "deviation"
        p is -sd (the honest updates' standard deviation), -sign(mu) or -mu / ||mu||.
    bound : "max" or "min", default "max"
        S as in the paper ("max") or as in the release ("min").
    knowledge : "full" or "partial", default "full"
        The honest clients' updates, or the malicious clients' own in their place.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, MinSum
    >>> own, others = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])
    >>> known = Knowledge(own, others, root_update=None, n=4, tolerate=1, num_clients=4, generator=torch.Generator())
    >>> MinSum().craft(known).round(decimals=3)  # the mean, 2, less the 3 that 5 is away from it
    tensor([[-1.,  0.]])
    >>> MinSum(bound="min").craft(known).round(decimals=3)
    tensor([[1., 0.]])
    """

    direction: Direction = "deviation"
    bound: Bound = "max"
    knowledge: Level = "full"

    def __post_init__(self) -> None:
        check_level(self.knowledge)
        check_choice("direction", self.direction, Direction)
        check_choice("bound", self.bound, Bound)

    def craft(self, known: Knowledge) -> Tensor:
        def gamma(seen: SeenRows, along: Tensor, steep: Tensor) -> Tensor:
            square = seen.centred_squares
            return ((square.amax() if self.bound == "max" else square.amin()) / steep).sqrt()

        return _shifted(known, self.knowledge, self.direction, gamma)


def _largest_gamma(seen: SeenRows, along: Tensor, steep: Tensor) -> Tensor:
    room = steep * (seen.centred_squares - seen.farthest)
    return (((along.square() - room).clamp(min=0).sqrt() - along) / steep).amin()


def _shifted(known: Knowledge, knowledge: Level, direction: Direction, gamma: Gamma) -> Tensor:
    """m times mu + gamma p; mu where p is zero or the rows are all equal."""
    m, seen = len(known.own), measured_rows(known, knowledge)
    if m == 0:
        return known.own.clone()
    push = _push(seen, direction)  # (d,): p
    along = (seen.centred @ push).double()  # (n-m,): b_i
    steep = torch.linalg.vector_norm(push, dtype=torch.float64).square()  # (): a
    far = torch.where(steep > 0, gamma(seen, along, steep), 0)
    return bounded(torch.addcmul(seen.mean, far.to(push.dtype), push) * seen.peak).repeat(m, 1)


def _push(seen: SeenRows, direction: Direction) -> Tensor:
    if direction == "deviation":
        return -seen.deviation
    return -seen.mean.sign() if direction == "sign" else -units(seen.mean[None])[0]
