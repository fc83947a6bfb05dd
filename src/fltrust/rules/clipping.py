"""Rules that bound how far one client can pull."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.rows import divisor, finite, measure, median_of, room_for, weighted_sum
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("centred-clipping", label="Centred clipping", reference="Karimireddy, He, Jaggi, ICML 2021")
@dataclass(frozen=True)
class CentredClipping(Rule):
    """The mean of the updates, each clipped to a distance from last round's result (Karimireddy et al. 2021).

    v <- v + mean_i (g_i - v) min(1, tau / ||g_i - v||), `steps` times. v starts as last round's result, and as zero in the first round.
    The shares say how much of the result comes from each client. The rest, up to 1, comes from last round's v.

    Parameters
    ----------
    tau : float or None, default None
        The largest distance. None takes the median distance in each step. The authors' values, 10 and 100, are for momentum that is not
        normalised; shorter updates are never clipped by them.
    steps : int, default 1
        How often v moves in a round.

    Examples
    --------
    >>> import torch
    >>> from fltrust import CentredClipping, Received
    >>> rule = CentredClipping(tau=3.0)
    >>> memory = rule.init(num_clients=3, like=torch.zeros(2))
    >>> result, memory = rule.step(Received(torch.tensor([[3.0, 0.0], [3.0, 0.0], [-300.0, 0.0]])), memory)
    >>> result
    Aggregate(update=tensor([1., 0.]), shares=tensor([0.3333, 0.3333, 0.0033]))
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
            away = torch.sub(updates, centre, out=room_for(len(updates), updates))  # (n, d)
            rows = measure(away)
            distance = rows.norm
            tau = median_of(distance, usable) if self.tau is None else self.tau
            pull = torch.where(usable, torch.where(distance > tau, tau / distance, 1), 0) / divisor(count)  # (n,)
            centre = finite(centre + weighted_sum(away, rows, pull * distance), updates)
            shares = shares * (1 - pull.sum()) + pull
        none = count == 0
        return Aggregate(torch.where(none, 0, centre), shares.to(updates.dtype)), torch.where(none, memory, centre)
