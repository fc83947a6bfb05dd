"""Rules that bound how far one client can pull."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.rows import divisor, finite, measure, median_of, weighted_sum
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("centred-clipping", label="Centred clipping", reference="Karimireddy, He, Jaggi, ICML 2021")
@dataclass(frozen=True)
class CentredClipping(Rule):
    """The mean of the updates, each cut to a distance from last round's result (Karimireddy et al. 2021).

    `steps` times: v <- v + mean_i (x_i - v) min(1, tau / ||x_i - v||), starting from last round's v, which is zero before the first.

    Parameters
    ----------
    tau : the largest distance; None: the median distance of the step. The authors' 10 and 100 belong to momentum that is not
        normalised, and clip nothing where updates are shorter.
    steps : how often v moves in a round.

    Shares: how much of the result is each client's; what they lack to 1 is the memory's.
    """

    tau: float | None = None
    steps: int = 1

    def __post_init__(self) -> None:
        if self.tau is not None and not 0 < self.tau < math.inf:
            raise InputError(f"centred clipping needs a positive tau, not {self.tau}")
        if self.steps < 1:
            raise InputError(f"centred clipping needs at least 1 step, not {self.steps}")

    def init(self, num_clients: int, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def step(self, received: Received, memory: Tensor) -> tuple[Aggregate, Tensor]:
        updates = received.updates
        usable = measure(updates).usable
        count = usable.sum()
        centre, shares = memory, torch.zeros(len(updates), dtype=torch.float64, device=updates.device)
        for _ in range(self.steps):
            away = updates - centre  # (n, d)
            rows = measure(away)
            distance = rows.norm
            tau = median_of(distance, usable) if self.tau is None else self.tau
            pull = torch.where(usable, torch.where(distance > tau, tau / distance, 1), 0) / divisor(count)  # (n,)
            centre = finite(centre + weighted_sum(away, rows, pull * distance), updates)
            shares = shares * (1 - pull.sum()) + pull
        none = count == 0
        return Aggregate(torch.where(none, 0, centre), shares.to(updates.dtype)), torch.where(none, memory, centre)
