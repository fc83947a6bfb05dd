"""Attacks of fake clients, which have no data and know no honest client: MPAF and PoisonedFL. Both remember how the model moved."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge, Seen, check_choice
from fltrust.attacks.rows import bounded, rms, units
from fltrust.errors import InputError
from fltrust.registry import ATTACKS
from fltrust.state import Memory

Base = Literal["random", "first"]


class Target(NamedTuple):
    """What MPAF remembers."""

    rounds: Tensor  # () int64: how many rounds it has seen
    base: Tensor  # (d,): the model towards which it drags; before the first round noise of root mean square 1


@ATTACKS.register("mpaf", label="MPAF", reference="Cao, Gong, CVPR Workshops 2022")
@dataclass(frozen=True)
class MPAF(Attack):
    """Fake clients drag the model towards a bad one: they send `factor` times the way from the global model to it (Cao and Gong 2022).

    All malicious clients send lambda (w_base - w). The paper draws w_base as a network's first weights are drawn. An attack here knows the
    model as one vector and not its layers, so w_base is normal noise, with the root mean square of the first global model that is seen.

    Parameters
    ----------
    factor : float, default 1000000.0
        lambda. We could not check the paper's value. PoisonedFL's release has this attack with a default of 100,000.
    base : "random" or "first", default "random"
        w_base is drawn, or it is the first global model that is seen, as in PoisonedFL's release.

    Examples
    --------
    >>> import torch
    >>> from fltrust import MPAF, Knowledge
    >>> attack, own = MPAF(factor=10.0, base="first"), torch.zeros(1, 2)
    >>> memory = attack.init(num_clients=3, like=torch.zeros(2))
    >>> for weights in (torch.tensor([5.0, 5.0]), torch.tensor([5.0, 6.0])):
    ...     known = Knowledge(own, None, None, n=3, tolerate=1, num_clients=3, generator=torch.Generator(), weights=weights)
    ...     row, memory = attack.step(known, memory)
    >>> row
    tensor([[  0., -10.]])
    """

    factor: float = 1e6
    base: Base = "random"

    def __post_init__(self) -> None:
        check_choice("base", self.base, Base)
        if not 0 < self.factor < math.inf:
            raise InputError(f"MPAF needs a positive factor, not {self.factor}")

    def init(self, num_clients: int, like: Tensor) -> Memory:
        noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(0), dtype=like.dtype).to(like.device)
        return Target(torch.zeros((), dtype=torch.int64, device=like.device), noise)

    def step(self, known: Knowledge, memory: Target) -> tuple[Tensor, Target]:
        weights = known.model
        size = rms(weights)
        drawn = memory.base * torch.where(torch.isfinite(size) & (size > 0), size, 1)
        base = torch.where(memory.rounds == 0, weights if self.base == "first" else drawn, memory.base)
        row = bounded(self.factor * (base - weights))  # (d,)
        return row.repeat(len(known.own), 1), Target(memory.rounds + 1, base)


class Campaign(NamedTuple):
    """What PoisonedFL remembers."""

    seen: Seen
    sign: Tensor  # (d,): s, +1 or -1, drawn once
    row: Tensor  # (d,): r, what was sent last
    earlier: Tensor  # (d,): the global model at the last check
    factor: Tensor  # (): c


@ATTACKS.register("poisonedfl", label="PoisonedFL", reference="Xie, Fang, Gong, CVPR 2025")
@dataclass(frozen=True)
class PoisonedFL(Attack):
    """Fake clients push the model in one random direction, the same in every round, as hard as the server lets them (Xie et al. 2025).

    s is a vector of random signs, drawn once. h is the last global update, r the last malicious row, and u = |h - r ||h|| / ||r|| |. All
    malicious clients send c ||h|| (u * s) / ||u||. Every 50 rounds the attacker counts in how many coordinates the model has moved along s
    since the last check; where it has not moved, the sign of the weight counts. If these are fewer than the 99 % point of
    Binomial(d, 1/2), which chance alone would exceed once in a hundred checks, c becomes 0.7 c, unless that is below 0.5.

    Rounds are those in which a malicious client takes part. In the first one nothing is known of h, and zeros are sent. As the authors'
    server adds the aggregate itself to the model, h is here divided by the server's learning rate. The release compares with the model
    one round after the last check; here it is that of the check.

    Parameters
    ----------
    factor : float, default 8.0
        c in the beginning.
    every : int, default 50
        Rounds between two checks.
    shrink : float, default 0.7
        What c is multiplied by if the attack does not get through.
    least : float, default 0.5
        c does not fall below this.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, PoisonedFL
    >>> attack, own = PoisonedFL(), torch.zeros(1, 2)
    >>> memory = attack.init(num_clients=3, like=torch.zeros(2))
    >>> for weights in (torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])):
    ...     known = Knowledge(own, None, None, n=3, tolerate=1, num_clients=3, generator=torch.Generator(), weights=weights)
    ...     row, memory = attack.step(known, memory)
    >>> row.abs()  # 8 times as long as the model's last step
    tensor([[24., 32.]])
    """

    factor: float = 8.0
    every: int = 50
    shrink: float = 0.7
    least: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.factor < math.inf and self.every >= 1 and 0 < self.shrink <= 1 and self.least >= 0):
            raise InputError(
                "PoisonedFL needs a positive factor, a check every 1 or more rounds, and shrinks by 0 to 1 to at least 0 or more: "
                f"not {self.factor}, {self.every}, {self.shrink} and {self.least}"
            )

    def init(self, num_clients: int, like: Tensor) -> Memory:
        draws = torch.Generator().manual_seed(0)
        sign = torch.randint(0, 2, like.shape, generator=draws).to(like) * 2 - 1
        zeros = torch.zeros_like(like)
        return Campaign(Seen.nothing(like), sign, zeros, zeros.clone(), zeros.new_full((), self.factor))

    def step(self, known: Knowledge, memory: Campaign) -> tuple[Tensor, Campaign]:
        seen, weights = memory.seen, known.model
        checking = seen.rounds % self.every == 0
        moved = weights - memory.earlier
        along = (torch.where(moved == 0, weights, moved).sign() == memory.sign).sum()
        weaker = memory.factor * self.shrink
        fails = checking & (seen.rounds > 0) & (along < agreeing_by_chance(len(weights))) & (weaker >= self.least)
        factor = torch.where(fails, weaker, memory.factor)
        update = seen.update(known)  # (d,): h
        norm = torch.linalg.vector_norm(update, dtype=torch.float64)
        norm = torch.where(torch.isfinite(norm), norm, 0).to(update.dtype)
        apart = (update - units(memory.row[None])[0] * norm).abs()  # (d,): u
        row = bounded(factor * norm * units(apart[None])[0] * memory.sign)
        earlier = torch.where(checking, weights, memory.earlier)
        return row.repeat(len(known.own), 1), Campaign(seen.now(known), memory.sign, row, earlier, factor)


def agreeing_by_chance(d: int) -> int:
    """The 99 % point of Binomial(d, 1/2), from the normal distribution with the correction for whole numbers.

    >>> agreeing_by_chance(139_960)
    70415
    """
    return math.ceil(d / 2 + NormalDist().inv_cdf(0.99) * math.sqrt(d) / 2 - 0.5)
