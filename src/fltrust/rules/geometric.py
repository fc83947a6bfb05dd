"""The geometric median: the point with the smallest sum of distances to the rows."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.gram import GramRule
from fltrust.rules.pairs import sq_distances_of
from fltrust.rules.rows import divisor, in_order

_TINY = 1e-300  # no distance between rows, none of them longer than 1, is as small and not 0


@RULES.register("geometric-median", label="Geometric median", reference="Pillutla, Kakade, Harchaoui, IEEE TSP 2022")
@dataclass(frozen=True)
class GeometricMedian(GramRule):
    """The point z with the smallest sum of distances to the updates, approximately (RFA, Pillutla et al. 2022).

    Each step weights the updates by b_i = 1 / max(nu, ||g_i - z||) and moves z to sum_i b_i g_i / sum_i b_i
    (smoothed Weiszfeld). nu is `smoothing` times the median distance to z, so the rule does not depend on the scale of the updates.

    The authors weight clients by their size, start at the mean, take nu = 1e-5 whatever the scale, and take at most 4 steps. Here all
    clients count the same, since sizes are what clients claim. Few steps from the mean do not suffice against very long updates: f of them
    at distance L leave z about L (f / (n - f))^steps away from the others. So z starts further inside. If an update lies exactly on z, z
    leaves it slowly, wherever it starts.

    Parameters
    ----------
    steps : int, default 8
        How often z moves.
    smoothing : float, default 1e-06
        The distance below which an update pulls no harder, as a fraction of the median distance.
    start : {"inner", "mean"}, default "inner"
        "inner" weights each update by 1 / its median distance to the others, so no length of a minority's updates can move it far. "mean"
        is the authors' start.

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
    start: Literal["inner", "mean"] = "inner"

    def __post_init__(self) -> None:
        if not self.steps >= 1:
            raise InputError(f"a geometric median needs at least 1 step, not {self.steps}")
        if not 0 <= self.smoothing < math.inf:
            raise InputError(f"a geometric median needs a smoothing of 0 or more, not {self.smoothing}")
        if self.start not in ("mean", "inner"):
            raise InputError(f"a geometric median starts at 'mean' or 'inner', not {self.start!r}")

    def weigh(self, products: Tensor, usable: Tensor) -> Tensor:
        away = torch.where(usable, 0, torch.inf).double()  # rows that are not usable are infinitely far away
        count = usable.sum(-1, keepdim=True)
        middle = ((count - 1) // 2).clamp(min=0)  # of two in the middle the smaller one
        to_others = in_order(sq_distances_of(products).clamp(min=_TINY).sqrt() + away[..., None, :])
        inner = to_others.gather(-1, middle[..., None].expand(*usable.shape, 1))[..., 0] + away  # (.., n): median distance to the others
        shares = _pull(inner) if self.start == "inner" else usable.double() / divisor(count)
        # All rows as seen from the innermost one: then a very long row, whose share is tiny, does not drown the distances of the others.
        origin = inner.argmin(-1, keepdim=True)
        along = products.gather(-1, origin[..., None].expand(*usable.shape, 1))[..., 0]  # (.., n)
        products = products - along[..., :, None] - along[..., None, :] + along.gather(-1, origin)[..., None]
        squares = products.diagonal(dim1=-2, dim2=-1)
        for _ in range(self.steps):
            to_centre = (products @ shares[..., None])[..., 0]  # (.., n): <g_i, z>
            square = squares - 2 * to_centre + (shares * to_centre).sum(-1, keepdim=True)
            distance = square.clamp(min=0).sqrt() + away  # (.., n): ||g_i - z||
            nu = self.smoothing * in_order(distance).gather(-1, middle)
            shares = _pull(distance.maximum(nu))
        return torch.where(usable, shares, 0)


def _pull(distance: Tensor) -> Tensor:
    """Shares (.., n) in proportion to 1 / distance; those at distance 0 have everything."""
    pull = 1 / distance.clamp(min=_TINY)
    return pull / pull.sum(-1, keepdim=True).clamp(min=_TINY)
