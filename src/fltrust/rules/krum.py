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

    f = `tolerate` malicious clients are expected. Among equal scores the first client's update is taken.
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
