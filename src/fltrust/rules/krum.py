"""Krum: rules that judge a row by its distances to the others."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES, Look
from fltrust.rules.rows import LARGEST, measure, sq_distances
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("krum", label="Krum", look=Look("orange", "s"), reference="Blanchard et al., NeurIPS 2017")
@dataclass(frozen=True)
class Krum(Rule):
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
        if self.tolerate < 0:
            raise InputError(f"Krum cannot tolerate {self.tolerate} clients: give 0 or more")

    def aggregate(self, received: Received) -> Aggregate:
        updates = received.updates
        n = len(updates)
        _check_krum(n, self.tolerate)
        usable = measure(updates).usable
        scores = krum_scores(sq_distances(updates), self.tolerate, usable)
        scores = torch.where(usable, scores.clamp(max=LARGEST), torch.inf)  # so a usable row wins even if all are far away
        chosen = scores.argmin()
        enough = usable.sum() >= self.tolerate + 3
        update = torch.where(enough, updates.index_select(0, chosen[None])[0], 0)
        shares = (torch.arange(n, device=updates.device) == chosen) & enough
        return Aggregate(update, shares.to(updates.dtype))


def krum_scores(sq_distances: Tensor, tolerate: int, usable: Tensor | None = None) -> Tensor:
    """Krum's scores (.., n): each row's sum of squared distances to its n - f - 2 nearest other usable rows, f = `tolerate`.

    Infinite for rows that are not usable. Distances (.., n, n) as from `sq_distances`, with any leading dimensions.
    """
    n = sq_distances.shape[-1]
    _check_krum(n, tolerate)
    if usable is None:
        usable = sq_distances.new_ones(n, dtype=torch.bool)
    itself = torch.eye(n, dtype=torch.bool, device=sq_distances.device)
    others = torch.where(usable[..., None, :] & ~itself, sq_distances, torch.inf)
    neighbours = usable.sum(-1, keepdim=True) - tolerate - 2  # (.., 1)
    near = torch.arange(n, device=sq_distances.device) < neighbours  # (.., n)
    scores = torch.where(near[..., None, :], others.sort(dim=-1).values, 0).sum(-1)
    return torch.where(usable, scores, torch.inf)


def _check_krum(n: int, tolerate: int) -> None:
    if n < tolerate + 3:
        raise InputError(f"Krum cannot tolerate {tolerate} of {n}: it needs at least 3 more clients than it tolerates")
