"""Rules that look for outliers along the direction in which the rows differ most."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.gram import GramRule
from fltrust.rules.pairs import inner_products
from fltrust.rules.rows import Rows, combined, divisor, measure, medians_of, more_than
from fltrust.rules.rule import Aggregate, Received

_NORMALISE_EVERY = 5  # squarings; n^-32 is far from vanishing
_ROUNDING = 1e-10  # if no unit vector is farther from the mean (squared), they have no direction in which they differ
_DEVIATION = 1.4826  # median absolute deviations: a standard deviation, if values are normal


@RULES.register("dnc", label="DnC", reference="Shejwalkar and Houmansadr, NDSS 2021")
@dataclass(frozen=True)
class DnC(GramRule):
    """The mean of the updates without those farthest out along the direction of most variance (Shejwalkar and Houmansadr 2021).

    v is the direction in which the updates vary most (the top right singular vector of the centred updates). The rule drops the c f updates
    with the largest <g_i - mean, v>^2 and takes the mean of the rest. If they are equal, the later rows go.

    The authors look at 10,000 random coordinates, several times, and keep the updates that were kept every time. Here all coordinates count
    by default, at the cost of one Gram matrix and without randomness. If no update is kept every time, the result is the zero update.

    Parameters
    ----------
    tolerate : int
        f, the number of malicious clients to expect. The rule needs more than c f clients.
    filter : float, default 1.0
        c, how many updates to drop for each malicious client to expect; c f is rounded down.
    rounds : int, default 1
        How often to draw coordinates. More than one draw can drop more than c f updates.
    coordinates : int or None, default None
        How many coordinates to draw; all if there are fewer. None takes all of them, without drawing.

    Examples
    --------
    >>> import torch
    >>> from fltrust import DnC
    >>> DnC(tolerate=1)(torch.tensor([[1.0], [2.0], [3.0], [10.0]]))  # the mean is 4; squared distances from it: 9, 4, 1 and 36
    Aggregate(update=tensor([2.]), shares=tensor([0.3333, 0.3333, 0.3333, 0.0000]))
    """

    tolerate: int
    filter: float = 1.0
    rounds: int = 1
    coordinates: int | None = None

    def __post_init__(self) -> None:
        if not self.tolerate >= 0:
            raise InputError(f"DnC cannot tolerate {self.tolerate} clients: give 0 or more")
        if not 0 < self.filter < math.inf:
            raise InputError(f"DnC needs a positive filter, not {self.filter}")
        if not self.rounds >= 1 or (self.coordinates is not None and not self.coordinates >= 1):
            raise InputError(f"DnC needs at least 1 round and 1 coordinate, not {self.rounds} and {self.coordinates}")
        if self.rounds > 1 and self.coordinates is None:
            raise InputError(f"DnC would drop the same updates in all {self.rounds} rounds: give coordinates, how many to draw in each")
        for trait in ("needs_generator", "needs_rows"):
            object.__setattr__(self, trait, self.coordinates is not None)

    def weigh(self, products: Tensor, usable: Tensor) -> Tensor:
        if self.needs_rows:
            raise InputError("DnC with drawn coordinates needs the updates themselves: inner products are not enough")
        return _equal_shares(self._kept(products, usable))

    def aggregate(self, received: Received) -> Aggregate:
        if self.coordinates is None:
            return super().aggregate(received)
        updates = received.updates
        rows = measure(updates)
        drawn = torch.stack([_drawn_products(received, rows, self.coordinates) for _ in range(self.rounds)])  # (rounds, n, n)
        shares = _equal_shares(self._kept(drawn, rows.usable).all(0))
        return Aggregate(combined(updates, rows, shares), shares.to(updates.dtype))

    def _kept(self, products: Tensor, usable: Tensor) -> Tensor:
        n, drop = products.shape[-1], int(self.filter * self.tolerate + 1e-9)  # 1.1 x 10 is 11
        if n <= drop:
            raise InputError(f"DnC cannot drop {drop} of {n} updates: it needs at least {drop + 1} clients")
        shares = _equal_shares(usable)
        outlying = along_top(_centred(products, shares) * (usable[..., :, None] & usable[..., None, :]), squarings=20)
        rank = torch.where(usable, outlying, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
        return usable & (rank < usable.sum(-1, keepdim=True) - drop)


@RULES.register("caf", label="CAF", reference="Allouah, Guerraoui, Stephan, ICML 2025")
@dataclass(frozen=True)
class CAF(GramRule):
    """The mean after a filter that lowers the weight of outliers, at the step with the least variance (Allouah et al. 2025).

    All weights c_i start as 1. While sum c > n - 2f: take the weighted mean of the updates and v, the direction in which they vary most
    around it; then c_i <- c_i (1 - t_i / max t) with t_i = <g_i - mean, v>^2. The result is the mean whose largest variance was smallest.

    max t is over the updates that still have weight, so each step takes the weight of one at least, and there are at most 2f steps. Always
    2f steps are computed; those after the end change nothing. Updates within a billionth of max t lose all their weight too: rounding must
    not keep a copy of a removed update. Without malicious clients (f = 0) the result is the mean.

    Parameters
    ----------
    tolerate : int
        f, the number of malicious clients to expect. The rule needs at least 2f + 1 clients.

    Examples
    --------
    >>> import torch
    >>> from fltrust import CAF
    >>> CAF(tolerate=1)(torch.tensor([[1.0], [2.0], [3.0], [10.0]]))  # c is 1, 1, 1, 1, then 27/36, 32/36, 35/36 and 0
    Aggregate(update=tensor([2.0851]), shares=tensor([0.2872, 0.3404, 0.3723, 0.0000]))
    """

    tolerate: int

    def __post_init__(self) -> None:
        if not self.tolerate >= 0:
            raise InputError(f"CAF cannot tolerate {self.tolerate} clients: give 0 or more")

    def weigh(self, products: Tensor, usable: Tensor) -> Tensor:
        n, most = products.shape[-1], 2 * self.tolerate
        if n <= most:
            raise InputError(f"CAF cannot tolerate {self.tolerate} of {n}: it needs at least {most + 1} clients")
        end = (usable.sum(-1, keepdim=True) - most).clamp(min=1)  # (.., 1)
        weights = usable.double()  # (.., n): c
        best, least = _equal_shares(usable), torch.full_like(weights[..., :1], torch.inf)
        for _ in range(most):
            going_on = weights.sum(-1, keepdim=True) > end
            shares = weights / divisor(weights.sum(-1, keepdim=True))
            root = shares.sqrt()
            parts = along_top(root[..., :, None] * _centred(products, shares) * root[..., None, :], squarings=12)
            variance = parts.sum(-1, keepdim=True)
            better = going_on & (variance < least)
            best, least = torch.where(better, shares, best), torch.where(better, variance, least)
            outlying = parts / divisor(shares)  # t
            rest = 1 - outlying / divisor(outlying.amax(-1, keepdim=True))
            weights = torch.where(going_on, weights * torch.where(rest > 1e-9, rest, 0), weights)
        return torch.where(more_than(self.tolerate, usable), best, 0)


def _drawn_products(received: Received, rows: Rows, coordinates: int) -> Tensor:
    """The inner products (n, n) of the rows in some coordinates, drawn without replacement."""
    updates = received.updates
    chance = torch.rand(updates.shape[1], generator=received.generator, device=updates.device)
    columns = updates.index_select(1, chance.topk(min(coordinates, len(chance))).indices)
    columns = torch.where(rows.usable[:, None], columns, 0)
    return inner_products(columns, measure(columns))


def along_top(matrix: Tensor, squarings: int) -> Tensor:
    """The parts (.., n) of a covariance's largest eigenvalue: l u_i^2, with (l, u) the top pair of the matrix (.., n, n).

    It needs the q-th power of the matrix, q = 2^squarings, which turns to l^q u u'. Where other eigenvalues nearly equal l, the result is
    the mean over their directions, weighted by the q-th powers of the eigenvalues. So the sum, which is the variance along the direction
    that was found, is at least l n^(-1/q), whatever the eigenvalues are.
    """
    power = matrix
    for step in range(squarings - 1):
        if step % _NORMALISE_EVERY == 0:
            power = power / divisor(_trace(power))[..., None, None]
        power = power @ power
    total = power.square().sum((-2, -1))
    return ((matrix @ power) * power).sum(-1).clamp(min=0) / divisor(total)[..., None]


def winsorised(cosines: Tensor, usable: Tensor, directions: int) -> Tensor:
    """Shares (.., n) of a mean of unit vectors, the usable rows (.., n), that far-out ones move less, from their cosines (.., n, n).

    Along each of the `directions` in which rows differ most, at least 1, every row is brought to at most one deviation from the median
    there. Across all other directions the result is the mean. Shares sum to 1, up to rounding; an outlier may have a negative one. If rows
    differ equally in two directions, rounding and the rows' order decide which is the first. It takes 8 products of (n, n) matrices for
    each direction: seconds for 2,000 rows.
    """
    equal = _equal_shares(usable)
    rest = _centred(cosines, equal) * (usable[..., :, None] & usable[..., None, :])
    found = [_top_places(rest)]
    while len(found) < directions:
        # Nothing is left along the last one, t: (I - tt') R (I - tt') = R - pt' - tp', with p = Rt - (t'Rt / 2) t.
        top = found[-1]
        part = (rest @ top[..., None])[..., 0]
        part = part - (part * top).sum(-1, keepdim=True) / 2 * top
        rest = rest - part[..., :, None] * top[..., None, :] - top[..., :, None] * part[..., None, :]
        found.append(_top_places(rest))
    places = torch.stack(found, -2)  # (.., directions, n)
    there = usable[..., None, :].expand_as(places)
    middle = medians_of(places, there)
    reach = _DEVIATION * medians_of((places - middle).abs(), there)
    levelled = torch.maximum(torch.minimum(places, middle + reach), middle - reach)
    moved = levelled @ equal[..., None]  # (.., directions, 1): the mean along each direction, which was 0
    return equal + (moved.mT @ places)[..., 0, :]


def _top_places(matrix: Tensor) -> Tensor:
    """Where unit vectors (.., n) stand along the direction of most variance, from their covariance (.., n, n).

    The squares sum to 1; all are 0 if the vectors differ by rounding only. The direction is that of the covariance's 256th power.
    """
    power, largest = matrix, _largest_variance(matrix)
    differ = (largest > _ROUNDING)[..., 0]
    for _ in range(2):
        power = power / divisor(_largest_variance(power))  # no value is above 1 then, and after 4 squarings none above n^15
        for _ in range(4):
            power = power @ power
    clearest = power.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None].expand(*matrix.shape[:-1], 1)
    return normalize(power.gather(-1, clearest)[..., 0], dim=-1) * differ


def _largest_variance(matrix: Tensor) -> Tensor:
    """The largest value (.., 1, 1) of a covariance, which stands on its diagonal."""
    return matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _centred(products: Tensor, shares: Tensor) -> Tensor:
    """The inner products of the rows less their weighted mean."""
    with_mean = (products @ shares[..., None])[..., 0]  # (.., n)
    mean_square = (with_mean * shares).sum(-1, keepdim=True)
    return products - with_mean[..., :, None] - (with_mean - mean_square)[..., None, :]


def _equal_shares(kept: Tensor) -> Tensor:
    return kept.double() / divisor(kept.sum(-1, keepdim=True))
