"""The geometric median: the point with the smallest sum of distances to the rows."""

import math
from dataclasses import dataclass

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
    since sizes are what clients claim. If an update lies exactly on z, z leaves it slowly: a weakness of the method that we keep.

    Parameters
    ----------
    steps : int, default 8
        How often z moves.
    smoothing : float, default 1e-06
        The distance below which an update pulls no harder, as a fraction of the median distance.

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

    def __post_init__(self) -> None:
        if not self.steps >= 1:
            raise InputError(f"a geometric median needs at least 1 step, not {self.steps}")
        if not 0 <= self.smoothing < math.inf:
            raise InputError(f"a geometric median needs a smoothing of 0 or more, not {self.smoothing}")

    def weigh(self, products: Tensor, usable: Tensor) -> Tensor:
        distances = sq_distances_of(products)  # (.., n, n)
        count = usable.sum(-1, keepdim=True)
        middle = ((count - 1) // 2).clamp(min=0)  # of two in the middle the nearer one
        shares = usable.double() / divisor(count)
        for _ in range(self.steps):
            to_rows = (distances @ shares[..., None])[..., 0]  # (.., n): sum_j w_j ||g_i - g_j||^2
            spread = (shares * to_rows).sum(-1, keepdim=True) / 2
            distance = torch.where(usable, (to_rows - spread).clamp(min=0).sqrt(), torch.inf)  # ||g_i - z||
            nu = self.smoothing * distance.sort(dim=-1).values.gather(-1, middle)
            reach = distance.maximum(nu)
            nearest = reach.amin(-1, keepdim=True)
            pull = torch.where(usable, torch.where(reach > nearest, nearest / reach, 1), 0)  # b_i, the largest 1
            shares = pull / divisor(pull.sum(-1, keepdim=True))
        return shares
