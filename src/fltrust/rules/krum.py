"""Krum: rules that judge a row by its distances to the others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES, Look
from fltrust.rules.gram import GramRule
from fltrust.rules.pairs import gpu_picks, rough_sq_distances, sq_distances, sq_distances_from, sq_distances_of
from fltrust.rules.rows import LARGEST, Rows, divisor, in_order, measure, more_than
from fltrust.rules.rule import Aggregate, Received


@RULES.register("krum", label="Krum", look=Look("orange", "s"), reference="Blanchard et al., NeurIPS 2017")
@dataclass(frozen=True)
class Krum(GramRule):
    """The one update with the smallest sum of squared distances to its n - f - 2 nearest others (Blanchard et al. 2017).

    score_i = sum_j ||g_i - g_j||^2 over the n - f - 2 updates g_j nearest to g_i. If scores are equal, the first client's update wins.

    Parameters
    ----------
    tolerate : int
        f, the number of malicious clients to expect. Krum needs at least f + 3 clients.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Krum
    >>> Krum(tolerate=1)(torch.tensor([[1.0], [2.0], [3.0], [5.0], [90.0]]))  # scores 5, 2, 5, 13 and 14,794
    Aggregate(update=tensor([2.]), shares=tensor([0., 1., 0., 0., 0.]))
    """

    tolerate: int

    def __post_init__(self) -> None:
        if not self.tolerate >= 0:
            raise InputError(f"Krum cannot tolerate {self.tolerate} clients: give 0 or more")

    def weigh(self, products: Tensor, usable: Tensor) -> Tensor:
        chosen, enough = self._choose(sq_distances_of(products), usable)
        return (_is_row(chosen, usable) & enough).double()

    def aggregate(self, received: Received) -> Aggregate:
        """The chosen row as it is: no sum of rows is needed, and no rounding."""
        updates = received.updates
        rows = measure(updates)
        usable, enough = rows.usable, more_than(self.tolerate, rows.usable)
        chosen = self._choose_fast(updates, rows)
        if chosen is None:
            chosen = self._choose(sq_distances(updates), usable)[0]
        update = torch.where(enough, updates.index_select(0, chosen)[0], 0)
        return Aggregate(update, (_is_row(chosen, usable) & enough).to(updates.dtype))

    def _choose_fast(self, updates: Tensor, rows: Rows) -> Tensor | None:
        """The row with the smallest score: float32 leaves a few that it may be, float64 decides. None where that does not help."""
        n = len(updates)
        _check_krum(n, self.tolerate)
        if (rough := rough_sq_distances(updates, rows)) is None:
            return None
        distances, wrong = rough
        lowest = krum_scores(distances - wrong, self.tolerate, rows.usable)
        highest = krum_scores(distances.add_(wrong), self.tolerate, rows.usable)
        left = (rows.usable & (lowest <= highest.amin())).nonzero()[:, 0]
        if not 0 < len(left) <= n // 8:
            return None
        scores = torch.full_like(lowest, torch.inf)
        others = rows.usable & (torch.arange(n) != left[:, None])  # (m, n)
        scores[left] = _sums_of_nearest(torch.where(others, sq_distances_from(updates, left), torch.inf), self.tolerate, rows.usable)
        return _smallest(scores, rows.usable)

    def _choose(self, distances: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """The row with the smallest score, and whether there are enough rows to choose from, (.., 1) each."""
        scores = krum_scores(distances, self.tolerate, usable)
        return _smallest(scores, usable), more_than(self.tolerate, usable)


@RULES.register("multi-krum", label="Multi-Krum", reference="Blanchard et al., NeurIPS 2017")
@dataclass(frozen=True)
class MultiKrum(GramRule):
    """The mean of the updates with the smallest Krum scores (Blanchard et al. 2017).

    score_i = sum_j ||g_i - g_j||^2 over the n - f - 2 updates g_j nearest to g_i, as in `Krum`. The result is the mean of the updates with
    the smallest scores. If scores are equal, the first client's update wins. n counts the usable updates only.

    The iterated form is that of Shejwalkar and Houmansadr (NDSS 2021): it takes Krum's choice out and scores the rest again, until 2f + 2
    updates are left. Their notebooks count an update among its own nearest; here it never is. If scores are equal, the one nearer to all
    updates that are left wins, by its sum of squared distances; then the first.

    Parameters
    ----------
    tolerate : int
        f, the number of malicious clients to expect. The rule needs at least f + 3 clients, and 2f + 3 in its iterated form.
    keep : int or None, default None
        How many updates to average, and at most so many. None keeps n - f, or n - 2f - 2 in the iterated form. More is refused. 1 is Krum.
    iterated : bool, default False
        Whether to score the rest again after each choice.

    Examples
    --------
    >>> import torch
    >>> from fltrust import MultiKrum
    >>> updates = torch.tensor([[1.0], [2.0], [3.0], [5.0], [90.0]])  # scores 5, 2, 5, 13 and 14,794
    >>> MultiKrum(tolerate=1)(updates)
    Aggregate(update=tensor([2.7500]), shares=tensor([0.2500, 0.2500, 0.2500, 0.2500, 0.0000]))
    >>> MultiKrum(tolerate=0, iterated=True)(updates).shares  # 3, then 2, then 5: it has 16 like 1, but is nearer to 90
    tensor([0.0000, 0.3333, 0.3333, 0.3333, 0.0000])
    """

    tolerate: int
    keep: int | None = None
    iterated: bool = False

    def __post_init__(self) -> None:
        if not self.tolerate >= 0:
            raise InputError(f"Multi-Krum cannot tolerate {self.tolerate} clients: give 0 or more")
        if self.keep is not None and not self.keep >= 1:
            raise InputError(f"Multi-Krum cannot keep {self.keep} updates: give 1 or more")

    def weigh(self, products: Tensor, usable: Tensor) -> Tensor:
        n, leave = products.shape[-1], 2 * self.tolerate + 2 if self.iterated else self.tolerate
        _check_krum(n, self.tolerate)
        if n <= leave:
            raise InputError(f"iterated Multi-Krum cannot tolerate {self.tolerate} of {n}: it needs at least {leave + 1} clients")
        keep = n - leave if self.keep is None else self.keep
        if keep > n - leave:
            raise InputError(f"Multi-Krum cannot keep {keep} of {n} updates and tolerate {self.tolerate}: keep at most {n - leave}")
        distances = sq_distances_of(products)
        if self.iterated:
            kept = krum_picks(distances, self.tolerate, usable, leave, keep)
        else:
            scores = krum_scores(distances, self.tolerate, usable)
            count = usable.sum(-1, keepdim=True)
            rank = scores.argsort(dim=-1, stable=True).argsort(dim=-1)
            kept = usable & (rank < (count - leave).clamp(max=keep))
        kept &= more_than(self.tolerate, usable)
        return kept.double() / divisor(kept.sum(-1, keepdim=True))


def krum_picks(sq_distances: Tensor, tolerate: int, usable: Tensor, leave: int, most: int) -> Tensor:
    """Which rows (.., n) Krum picks, one after the other, from those it has not picked yet, until `leave` usable rows or `most` picks.

    It picks at least one. Equal scores: the row with the smaller sum of squared distances to all rows left, then the lowest row.
    """
    if (picks := gpu_picks(sq_distances, tolerate, usable, leave, most)) is not None:
        return picks
    n = sq_distances.shape[-1]
    row = torch.arange(n, device=sq_distances.device)
    left = usable.expand(sq_distances.shape[:-1])  # (.., n)
    count = left.sum(-1, keepdim=True)  # (.., 1)
    rank = _others(sq_distances, usable).argsort(-1).argsort(-1)  # (.., n, n); not usable and itself come last
    near = torch.where(rank < count[..., None] - tolerate - 2, sq_distances, -1)  # to neighbours that count; else -1
    for step in range(min(n - leave, most)):
        scores = torch.where(left, near.clamp(min=0).sum(-1), torch.inf)
        tied = left & (scores == scores.amin(-1, keepdim=True))
        to_all = torch.where(left[..., None, :], sq_distances, 0).sum(-1)
        picked = torch.where(tied, to_all, torch.inf).argmin(-1, keepdim=True)  # (.., 1)
        left = left & ~((row == picked) & (step < (count - leave).clamp(min=1)))
        # Each row has one neighbour fewer: the picked row if it was one, else the farthest.
        was_near = torch.where(row == picked[..., None], near, -1).amax(-1, keepdim=True) >= 0  # (.., n, 1)
        lost = torch.where(was_near, picked[..., None], near.argmax(-1, keepdim=True))
        near = near.scatter(-1, lost, -1)
    return usable & ~left


def _smallest(scores: Tensor, usable: Tensor) -> Tensor:
    """The usable row (.., 1) with the smallest score; one wins even if all are infinitely far away."""
    return torch.where(usable, scores.clamp(max=LARGEST), torch.inf).argmin(-1, keepdim=True)


def _is_row(chosen: Tensor, like: Tensor) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device) == chosen


def krum_scores(sq_distances: Tensor, tolerate: int, usable: Tensor | None = None) -> Tensor:
    """Krum's scores (.., n): each row's sum of squared distances to its n - f - 2 nearest other usable rows, at least one; f = `tolerate`.

    Infinite for rows that are not usable. Distances (.., n, n) as from `sq_distances`, with any leading dimensions.
    """
    n = sq_distances.shape[-1]
    _check_krum(n, tolerate)
    if usable is None:
        usable = sq_distances.new_ones(n, dtype=torch.bool)
    return torch.where(usable, _sums_of_nearest(_others(sq_distances, usable), tolerate, usable), torch.inf)


def _sums_of_nearest(others: Tensor, tolerate: int, usable: Tensor) -> Tensor:
    """The sums (.., m) over the nearest others, from distances (.., m, n) that are infinite where they do not count."""
    neighbours = (usable.sum(-1, keepdim=True) - tolerate - 2).clamp(min=1)  # (.., 1)
    near = torch.arange(usable.shape[-1], device=usable.device) < neighbours  # (.., n)
    return torch.where(near[..., None, :], in_order(others), 0).sum(-1)


def _others(sq_distances: Tensor, usable: Tensor) -> Tensor:
    """The squared distances to other usable rows; infinite to itself and to the rest."""
    itself = torch.eye(sq_distances.shape[-1], dtype=torch.bool, device=sq_distances.device)
    return torch.where(usable[..., None, :] & ~itself, sq_distances, torch.inf)


def _check_krum(n: int, tolerate: int) -> None:
    if n < tolerate + 3:
        raise InputError(f"Krum cannot tolerate {tolerate} of {n}: it needs at least 3 more clients than it tolerates")
