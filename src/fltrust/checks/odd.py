"""Rules and attacks as other authors' releases have them, where these differ from the definition. Only the checks use them.

They are registered, so that a stored result can be read again, but not listed: no league, no law and no list of names holds them.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge
from fltrust.attacks.rows import finite
from fltrust.registry import ATTACKS, RULES
from fltrust.rules import pairs, rows
from fltrust.rules.pairs import sq_distances
from fltrust.rules.rows import divisor, measure, median_of, ranked_mean, weighted_sum
from fltrust.rules.rule import Aggregate, Received, Rule


def _weighted(updates: Tensor, shares: Tensor) -> Aggregate:
    measured = measure(updates)
    return Aggregate(rows.finite(weighted_sum(updates, measured, shares * measured.norm), updates), shares.to(updates.dtype))


@RULES.register("krum-4th-power", label="Krum, 4th power", listed=False)
@dataclass(frozen=True)
class KrumFourthPower(Rule):
    """Krum with distances to the fourth power: epfml/byzantine-robust-noniid-optimizer squares squared distances.

    tolerate: f; the n - f - 2 nearest other rows count, as in Krum.
    """

    tolerate: int

    def aggregate(self, received: Received) -> Aggregate:
        updates, n = received.updates, len(received.updates)
        usable = measure(updates).usable
        apart = ~torch.eye(n, dtype=torch.bool, device=updates.device) & usable
        fourth = torch.where(apart, sq_distances(updates).square(), torch.inf)
        scores = fourth.sort(1).values[:, : max(1, n - self.tolerate - 2)].sum(1)
        best = torch.where(usable, scores, torch.inf).argmin()
        chosen = (torch.arange(n, device=updates.device) == best) & usable
        return _weighted(updates, chosen.double())


@RULES.register("rfa-from-zero", label="RFA from zero", listed=False)
@dataclass(frozen=True)
class RFAFromZero(Rule):
    """The smoothed Weiszfeld steps of RFA, from zero instead of the mean: epfml/byzantine-robust-noniid-optimizer, ByzFL.

    steps: how many; nu: the smallest distance that counts, in the units of the updates.
    """

    steps: int = 8
    nu: float = 0.1

    def aggregate(self, received: Received) -> Aggregate:
        updates = received.updates
        usable = measure(updates).usable
        products = torch.where(usable[:, None] & usable, pairs.gram(updates), 0)  # (n, n)
        shares = torch.zeros(len(updates), dtype=torch.float64, device=updates.device)
        for _ in range(self.steps):
            along = products @ shares
            squares = (products.diagonal() - 2 * along + shares @ along).clamp(min=0)
            near = torch.where(usable, 1 / squares.sqrt().clamp(min=self.nu), 0)
            shares = near / divisor(near.sum())
        return _weighted(updates, shares)


@RULES.register("median-upper", label="Median, upper", listed=False)
@dataclass(frozen=True)
class UpperMedian(Rule):
    """Of an even number of values the upper one in the middle: NDSS21-Model-Poisoning takes torch.median of gradients, the lower one."""

    by_coordinate = True

    def aggregate(self, received: Received) -> Aggregate:
        updates = received.updates
        usable = measure(updates).usable
        largest = torch.where(usable[:, None], updates, -torch.inf).amax(0, keepdim=True).nan_to_num(0, 0, 0)
        # One more value at the upper end makes the upper one of the two the median.
        upper = ranked_mean(torch.cat((updates, largest)), torch.cat((usable, usable.any()[None])), None)
        even = usable.sum() % 2 == 0
        return Aggregate(rows.finite(torch.where(even, upper, ranked_mean(updates, usable, None)), updates), None)


@RULES.register("sign-guard-2-means", label="SignGuard, 2-means", listed=False)
@dataclass(frozen=True)
class SignGuardTwoMeans(Rule):
    """SignGuard as in fedlib (Blades): rows are cut to the median norm before the norm filter, signs of all coordinates, 2-means.

    The features (shares of positive, negative and zero coordinates) lie on a line where no coordinate is zero, so the best 2-means
    clustering is a cut of the rows in the order of their signs. All cuts are tried; fedlib's k-means starts at random.
    """

    def aggregate(self, received: Received) -> Aggregate:
        updates, n = received.updates, len(received.updates)
        measured = measure(updates)
        usable = measured.usable
        middle = median_of(measured.norm, usable)
        norm = measured.norm.clamp(max=middle)
        signs = torch.stack([(updates > 0).sum(1), (updates < 0).sum(1), (updates == 0).sum(1)], 1).double() / updates.shape[1]  # (n, 3)
        order = torch.where(usable, signs[:, 0] - signs[:, 1], torch.inf).argsort()
        features = torch.where(usable[order, None], signs[order], 0)
        count, total = usable.sum(), features.sum(0)
        below = torch.arange(1, n + 1, device=updates.device)  # rows of the lower cluster
        sums = features.cumsum(0)
        # The sum of squares within clusters is least where this is largest.
        between = sums.square().sum(1) / below + (total - sums).square().sum(1) / (count - below).clamp(min=1)
        cut = torch.where(below < count, between, -torch.inf).argmax() + 1
        lower = torch.empty_like(usable).scatter_(0, order, below <= cut)
        kept = usable & (norm >= 0.1 * middle) & torch.where(2 * cut >= count, lower, ~lower)
        shares = torch.where(kept & (measured.norm > 0), norm / measured.norm, 0) / divisor(kept.sum())
        return _weighted(updates, shares)


@ATTACKS.register("trim-inert", label="Trim attack as released in 2021", listed=False)
@dataclass(frozen=True)
class InertTrim(Attack):
    """Fang et al.'s Trim attack as in the notebooks of NDSS21-Model-Poisoning, where it hardly does anything.

    Values above the largest and below the smallest are both kept where the mean gradient is positive, and their sum is sent. Where it is
    negative, zero is sent. In the original, one of the two is kept where it is positive and the other where it is negative.
    """

    knowledge = "full"

    def craft(self, known: Knowledge) -> Tensor:
        m, d = known.own.shape
        if m == 0 or len(known.honest) == 0:
            return known.own
        gradients = -finite(known.honest)
        largest, smallest = gradients.amax(0), gradients.amin(0)
        share = known.uniform(m, d)
        above = largest + share * (torch.where(largest > 0, 2 * largest, largest / 2) - largest)
        outermost = torch.where(smallest < 0, 2 * smallest, smallest / 2)
        below = outermost + share * (smallest - outermost)
        return -torch.where(gradients.mean(0) > 0, above + below, 0)


@ATTACKS.register("lie-never-run", label="LIE as released in 2021", listed=False)
@dataclass(frozen=True)
class LIENeverRun(Attack):
    """LIE as in the notebooks of NDSS21-Model-Poisoning, where it never runs: they ask for "LIE" and look for "lie".

    So the rule gets the honest rows alone. Rows that no rule can use stand for those that were not sent.
    """

    def craft(self, known: Knowledge) -> Tensor:
        return torch.full_like(known.own, torch.nan)


@ATTACKS.register("min-max-on-gradients", label="Min-Max on gradients", listed=False)
@dataclass(frozen=True)
class MinMaxOnGradients(Attack):
    """Min-Max as in the notebooks of NDSS21-Model-Poisoning: the deviation is taken from gradients, so it is added to updates."""

    knowledge = "full"

    def craft(self, known: Knowledge) -> Tensor:
        others = None if known.others is None else -known.others
        crafted: Tensor = -ATTACKS["min-max"]().craft(replace(known, own=-known.own, others=others))
        return crafted


@ATTACKS.register("min-max-blades", label="Min-Max of Blades", listed=False)
@dataclass(frozen=True)
class MinMaxBlades(Attack):
    """Min-Max as Blades has it against SignGuard: half of the deviation is turned round, and the search ends at 5.

    The deviation's first d / 2 coordinates change their sign, so that the signs of the row stay balanced. The row is the last one that
    was tried, whether or not it was near enough.
    """

    knowledge = "full"

    def craft(self, known: Knowledge) -> Tensor:
        m, honest = len(known.own), finite(known.honest)
        if m == 0 or len(honest) < 2:
            return known.own
        mean, push = honest.mean(0), -honest.std(0)
        push = torch.where(torch.arange(len(push), device=push.device) < len(push) // 2, -push, push)
        centred = mean - honest
        square, along = centred.double().square().sum(1), (centred @ push).double()  # (n-m,)
        steep, farthest = push.double().square().sum(), sq_distances(honest).amax()
        low, tried, high = (torch.full((), number, dtype=torch.float64, device=push.device) for number in (0.0, 0.0, 5.0))
        for _ in range(9):  # then the two ends are less than 0.01 apart
            tried = (low + high) / 2
            near = (square + 2 * tried * along + tried.square() * steep).amax() < farthest
            low, high = torch.where(near, tried, low), torch.where(near, high, tried)
        return (mean + tried.to(push.dtype) * push).repeat(m, 1)
