"""The attacks of Fang et al. (USENIX Security 2020) on Krum and on the coordinate-wise rules."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge, Level, check_level
from fltrust.attacks.rows import finite, units, usable
from fltrust.errors import InputError
from fltrust.registry import ATTACKS, Look
from fltrust.rules.krum import krum_scores
from fltrust.rules.pairs import sq_distances


@ATTACKS.register("trim", label="Trim attack", look=Look("green", "^"), reference="Fang et al., USENIX Security 2020")
@dataclass(frozen=True)
class TrimAttack(Attack):
    """The attack on the trimmed mean and the median: every coordinate lies a little beyond the honest ones (Fang et al. 2020).

    s is the sign of the sum of the updates in a coordinate. The malicious values push against it.
    Full knowledge: D is the smallest value of the updates if s > 0, and the largest if s < 0. The crafted values are D / r if s D > 0 and
    D r otherwise, with r ~ U[1, b].
    Partial knowledge: the crafted values are mu - s r sigma, with r ~ U[3, 4]. mu and sigma are the mean and standard deviation of the
    malicious clients' own updates (sigma is 0 if there is only one).
    A sum of exactly 0 has no sign, and either direction harms as much: full knowledge crafts as for s < 0, partial knowledge sends mu.

    Parameters
    ----------
    knowledge : "full" or "partial", default "full"
        Whether the attacker sees the honest clients' updates.
    reach : float, default 2.0
        b, at least 1. At 1 nothing is random under full knowledge.
    honest_only : bool, default False
        True computes s and D from the honest clients' updates. False uses all clients' updates before the attack.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, TrimAttack
    >>> own, others = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, -3.0], [4.0, -2.0]])
    >>> known = Knowledge(own, others, root_update=None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> TrimAttack(reach=1.0).craft(known)
    tensor([[ 1., -1.]])
    """

    knowledge: Level = "full"
    reach: float = 2.0
    honest_only: bool = False

    def __post_init__(self) -> None:
        check_level(self.knowledge)
        if not 1 <= self.reach < math.inf:
            raise InputError(f"the Trim attack's reach (Fang et al.'s b) must be at least 1, not {self.reach}")

    def craft(self, known: Knowledge) -> Tensor:
        m, d = known.own.shape
        if m == 0:
            return known.own
        share = known.uniform(m, d)
        if self.knowledge == "partial":
            own = finite(known.own)
            mean, deviation = own.mean(0), own.std(0, correction=0)  # (d,)
            return mean - mean.sign() * (3 + share) * deviation
        sign, extreme = (known.seen_others if self.honest_only and known.n > m else known.seen_updates).against
        factor = 1 + (self.reach - 1) * share  # (m, d)
        return torch.where(sign * extreme > 0, extreme / factor, extreme * factor)


@ATTACKS.register("krum", label="Krum attack", look=Look("orange", "s"), reference="Fang et al., USENIX Security 2020")
@dataclass(frozen=True)
class KrumAttack(Attack):
    """The attack on Krum: the largest step against Krum's choice that Krum still chooses (Fang et al. 2020).

    Every crafted row is -lambda s. All but the first also carry noise of norm at most 0.01. lambda is the first of 1, 1/2, 1/4 ... for
    which Krum picks a crafted row. If there is none, it is the last one that is at least 1e-5.
    Full knowledge: s is the sign of what Krum picks from all updates before the attack. Krum sees the crafted rows and the honest ones.
    Partial knowledge: s is the sign of the mean of the m own updates, which stand in for the honest clients. The attacker adds k = 1 ... m
    crafted rows to them and runs a Krum that expects k malicious clients. It takes the first k, and for it the first lambda, that works.
    (Such a Krum looks at m - 2 neighbours. Here it looks at one or more, so that one or two malicious clients can attack too.)

    Parameters
    ----------
    knowledge : "full" or "partial", default "full"
        Whether the attacker sees the honest clients' updates.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, KrumAttack
    >>> own, others = torch.tensor([[4.0]]), torch.tensor([[1.0], [2.8], [6.0]])
    >>> known = Knowledge(own, others, root_update=None, n=4, tolerate=1, num_clients=4, generator=torch.Generator())
    >>> KrumAttack().craft(known)  # -1.0 would fail: its nearest, 1.0, is 2.0 away, and 1.0 and 2.8 are nearer to each other
    tensor([[-0.5000]])
    """

    knowledge: Level = "full"

    def __post_init__(self) -> None:
        check_level(self.knowledge)

    def craft(self, known: Knowledge) -> Tensor:
        m, d = known.own.shape
        if m == 0:
            return known.own
        noise = 0.01 * known.uniform(m, 1) * units(known.normal(m, d))
        noise[0].zero_()
        strengths = torch.full((_STRENGTHS,), 0.5, dtype=torch.float64, device=noise.device).cumprod(0) * 2  # 1, 1/2, 1/4 ...
        seen = self._against_all if self.knowledge == "full" else self._against_own
        sign, scores = seen(known, noise, strengths)
        works = (scores.argmin(-1) < m).flatten()
        order = torch.arange(len(works), device=noise.device)
        first = torch.where(works, order, len(works) - 1).min()
        return noise - strengths.index_select(0, first[None] % _STRENGTHS).to(noise.dtype) * sign

    def _against_all(self, known: Knowledge, noise: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor]:
        """s (d,), and Krum's scores (strengths, n) of crafted and honest rows."""
        m, n, tolerate = len(noise), known.n, _tolerable(known.tolerate, known.n)
        rows = torch.cat((noise, known.honest, known.own))  # (m+n, d): so that one Gram matrix serves before and after
        sound = usable(rows[m:])  # (n,): honest, own
        rows[m:].masked_fill_(~sound[:, None], 0)
        still = sq_distances(rows)
        chosen = krum_scores(still[m:, m:], tolerate, sound).argmin()
        sign = rows[m:].index_select(0, chosen[None])[0].sign()  # (d,)
        distances = _sq_distances_at(strengths, still[:n, :n], rows[:n], sign, m)  # (strengths, n, n)
        return sign, krum_scores(distances, tolerate, torch.cat((sound.new_ones(m), sound[: n - m])))

    def _against_own(self, known: Knowledge, noise: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor]:
        """s (d,), and Krum's scores (k, strengths, 2m) of k crafted and the own rows, for k = 1 ... m."""
        m, own = len(noise), finite(known.own)
        sign = own.mean(0).sign()  # (d,)
        rows = torch.cat((noise, own))  # (2m, d)
        distances = _sq_distances_at(strengths, sq_distances(rows), rows, sign, m)  # (strengths, 2m, 2m)
        count = torch.arange(m, device=noise.device)
        present = torch.cat((count <= count[:, None], usable(known.own).expand(m, m)), 1)[:, None]  # (k, 1, 2m)
        absent_far = torch.where(present[..., None] & present[..., None, :], distances, torch.inf)  # (k, strengths, 2m, 2m)
        return sign, krum_scores(absent_far, _tolerable(m, 2 * m))  # 2m rows less m: as many neighbours as m + k less k


_STRENGTHS = 17  # 1 ... 2^-16, the last that is not below 1e-5


def _sq_distances_at(strengths: Tensor, still: Tensor, rows: Tensor, sign: Tensor, m: int) -> Tensor:
    """Squared distances (strengths, k, k) of k rows, of which the first m move by -strength * sign, from those while they stand still.

    |x - y - lambda c s|^2 = |x - y|^2 - 2 lambda c <x - y, s> + lambda^2 c^2 |s|^2, c = 1, 0, -1: whether x, both or y move.
    """
    along = (rows @ sign).double()  # (k,)
    moves = (torch.arange(len(rows), device=rows.device) < m).double()  # (k,)
    crossing = moves[:, None] - moves
    strengths = strengths[:, None, None]
    linear = crossing * (along[:, None] - along)
    return (still - 2 * strengths * linear + (strengths * crossing).square() * sign.double().square().sum()).clamp(min=0)


def _tolerable(tolerate: int, rows: int) -> int:
    """What Krum can tolerate among so many rows: a neighbour must remain to look at, and the attacker goes on where a server would stop."""
    return min(tolerate, rows - 3)
