"""The geometric median: the point with the smallest sum of distances to the rows."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.gram import GramRule
from fltrust.rules.rows import divisor, sq_distances_of


@RULES.register("geometric-median", label="Geometric median", reference="Pillutla, Kakade, Harchaoui, IEEE TSP 2022")
@dataclass(frozen=True)
class GeometricMedian(GramRule):
    """The point z with the smallest sum of distances to the updates, approximately (RFA, Pillutla et al. 2022).

    z starts as the mean. Each step weights the updates by b_i = 1 / max(nu, ||g_i - z||) and moves z to sum_i b_i g_i / sum_i b_i
    (smoothed Weiszfeld). nu is `smoothing` times the median distance to z, so the rule does not depend on the scale of the updates.

    The authors weight clients by their size, take nu = 1e-5 whatever the scale, and take at most 4 steps. Here all clients count the same,
    since sizes are what clients claim.

    Few steps from the mean do not suffice against very long updates: f of them at distance L leave z about L (f / (n - f))^steps away from
    the others. `start="inner"` has no such weakness. If an update lies exactly on z, z leaves it slowly, wherever it starts.

    Parameters
    ----------
    steps : int, default 8
        How often z moves.
    smoothing : float, default 1e-06
        The distance below which an update pulls no harder, as a fraction of the median distance.
    start : {"mean", "inner"}, default "mean"
        "mean" is the authors' start. "inner" weights each update by 1 / its median distance to the others, so no length of a minority's
        updates can move it far.

    Examples
    --------
    >>> import torch
    >>> from fltrust import GeometricMedian
    >>> GeometricMedian()(torch.tensor([[1.0], [4.0], [7.0]])).update
    tensor([4.])
    >>> GeometricMedian()(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])).shares
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    steps: int = 8
    smoothing: float = 1e-6
    start: Literal["mean", "inner"] = "mean"

    def __post_init__(self) -> None:
        if not self.steps >= 1:
            raise InputError(f"a geometric median needs at least 1 step, not {self.steps}")
        if not 0 <= self.smoothing < math.inf:
            raise InputError(f"a geometric median needs a smoothing of 0 or more, not {self.smoothing}")
        if self.start not in ("mean", "inner"):
            raise InputError(f"a geometric median starts at 'mean' or 'inner', not {self.start!r}")

    def weigh(self, products: Tensor, usable: Tensor) -> Tensor:
        distances = sq_distances_of(products)  # (.., n, n)
        shares = usable.double() / divisor(usable.sum(-1, keepdim=True))
        if self.start == "inner":
            shares = _pull(_median(torch.where(usable[..., None, :], distances.sqrt(), torch.inf), usable[..., None, :])[..., 0], usable)
        for _ in range(self.steps):
            to_rows = (distances @ shares[..., None])[..., 0]  # (.., n): sum_j w_j ||g_i - g_j||^2
            spread = (shares * to_rows).sum(-1, keepdim=True) / 2
            distance = torch.where(usable, (to_rows - spread).clamp(min=0).sqrt(), torch.inf)  # ||g_i - z||
            shares = _pull(distance.maximum(self.smoothing * _median(distance, usable)), usable)
        return shares


def _pull(distance: Tensor, usable: Tensor) -> Tensor:
    """Shares (.., n) in proportion to 1 / distance; those at distance 0 have everything."""
    nearest = torch.where(usable, distance, torch.inf).amin(-1, keepdim=True)
    pull = torch.where(usable, torch.where(distance > nearest, nearest / distance, 1), 0)
    return pull / divisor(pull.sum(-1, keepdim=True))


def _median(distances: Tensor, usable: Tensor) -> Tensor:
    """The median (.., 1) of the usable distances (.., n), of two in the middle the smaller; the others are infinite."""
    middle = ((usable.sum(-1, keepdim=True) - 1) // 2).clamp(min=0)
    return distances.sort(dim=-1).values.gather(-1, middle.expand(*distances.shape[:-1], 1))
