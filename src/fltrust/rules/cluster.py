"""Rules that group the clients, and admit the largest group only."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.pairs import inner_products, sq_distances_of, unit_of
from fltrust.rules.rows import Rows, direction_and_norm, divisor, finite, measure, median_of, weighted_sum
from fltrust.rules.rule import Aggregate, Received, Rule
from fltrust.state import Memory


def _mean_of_cut(updates: Tensor, rows: Rows, admitted: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (d,) of the admitted rows, each cut to the length `bound`, and the clients' shares (n,) of it; both in float64."""
    weight = admitted.double() / divisor(admitted.sum())  # (n,)
    length = rows.norm.minimum(bound)
    return weighted_sum(updates, rows, weight * length), weight * length / divisor(rows.norm)


# ---------------------------------------------------------------- FLAME


def model_distances(updates: Tensor, rows: Rows, weights: Tensor) -> Tensor:
    """The cosine distances (n, n), in float64, between the models w + x_i; infinite for rows that are not usable, 0 on the diagonal.

    1 - cos(a, b) = (|a - b|^2 - (|a| - |b|)^2) / (2 |a| |b|): where models are near each other, as honest ones are, nothing cancels in it.
    Where they are far apart, it is <a, b> that is precise.
    """
    direction, norm = direction_and_norm(weights)
    longest = rows.norm.amax()
    unit = torch.where((longest > 0) | (norm > 0), longest.maximum(norm), 1)  # so that no square overflows
    along = measure(updates, direction).cosine * (rows.norm / unit) * (norm / unit)  # (n,): <w, x_i>
    squares = (rows.norm / unit).square()  # (n,): |x_i|^2
    beyond = 2 * along + squares  # (n,): |w + x_i|^2 - |w|^2
    length = ((norm / unit).square() + beyond).clamp(min=0).sqrt()  # (n,): |w + x_i|
    products = inner_products(updates, rows) * (unit_of(rows) / unit).square()  # (n, n): <x_i, x_j>
    apart = sq_distances_of(products)  # (n, n): |x_i - x_j|^2
    longer = (beyond[:, None] - beyond) / divisor(length[:, None] + length)  # |w + x_i| - |w + x_j|
    sizes = length[:, None] * length
    near = (apart - longer.square()) / divisor(2 * sizes)
    far = 1 - ((norm / unit).square() + along[:, None] + along + products) / divisor(sizes)
    distances = torch.where(sizes > 0, torch.where(apart < sizes, near, far), 1).clamp(0, 2)
    pair = rows.usable[:, None] & rows.usable
    return torch.where(pair, distances.fill_diagonal_(0), torch.inf)


def majority_cluster(distances: Tensor, usable: Tensor) -> Tensor:
    """The members (n,) of the densest cluster that holds more than half of the usable rows.

    Rows are joined, nearest first, until one group holds more than half of them. This is what HDBSCAN finds with min_samples = 1 and a
    least size above n / 2: no two clusters can be that large, so its tree has one cluster, and all that counts is when rows leave it.
    """
    n = len(distances)
    joined = distances.minimum(distances.T)  # (n, n): at which distance two rows come into one group; the same in both directions
    for k in range(n):  # the largest step on the best path, over one more row each time
        joined = torch.minimum(joined, torch.maximum(joined[:, k, None], joined[k]))
    half = (usable.sum() // 2).clamp(max=n - 1)
    in_majority = joined.sort(1).values.index_select(1, half[None])[:, 0]  # (n,): from which distance on
    return usable & (in_majority == torch.where(usable, in_majority, torch.inf).amin())


@RULES.register("flame", label="FLAME", reference="Nguyen et al., USENIX Security 2022")
@dataclass(frozen=True)
class FLAME(Rule):
    """The mean of the largest cluster of models, cut to the median length, with noise (Nguyen et al. 2022).

    HDBSCAN groups the models w + g_i by their cosine distances. It admits the one cluster that holds more than half of the clients.
    S is the median of all ||g_i||. The result is the mean of g_i min(1, S / ||g_i||) over the admitted clients, plus one draw of
    N(0, (noise S)^2) for each coordinate.

    HDBSCAN has a least size of n // 2 + 1, min_samples = 1 and a single cluster allowed. With these settings it is single linkage, stopped
    when one group holds more than half of the clients. The rule computes that, also on a GPU. The authors released no code.

    Parameters
    ----------
    noise : float, default 0.001
        The noise's standard deviation, as a part of S. 0 leaves the noise out.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLAME, Received
    >>> updates = torch.tensor([[3.0, 4.0], [0.0, 4.0], [0.0, -9.0]])  # norms 5, 4 and 9; the last points elsewhere
    >>> FLAME(noise=0).aggregate(Received(updates, weights=torch.tensor([1.0, 0.0])))
    Aggregate(update=tensor([1.5000, 4.0000]), shares=tensor([0.5000, 0.5000, 0.0000]))
    """

    noise: float = 0.001

    needs_weights = True

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise InputError(f"FLAME needs noise of 0 or more, not {self.noise}")
        object.__setattr__(self, "needs_generator", self.noise > 0)

    def aggregate(self, received: Received) -> Aggregate:
        updates, weights = received.updates, received.weights
        assert weights is not None  # take_step checks this
        rows = measure(updates)
        admitted = majority_cluster(model_distances(updates, rows, weights), rows.usable)
        bound = median_of(rows.norm, rows.usable)
        update, shares = _mean_of_cut(updates, rows, admitted, bound)
        if self.noise > 0:
            drawn = torch.randn(updates.shape[1], generator=received.generator, dtype=updates.dtype, device=updates.device)
            update = update + self.noise * bound * drawn
        return Aggregate(finite(update, updates), shares.to(updates.dtype))


# ---------------------------------------------------------------- SignGuard


def bandwidth_of(points: np.ndarray, drawn: np.ndarray) -> float:
    """scikit-learn's estimate_bandwidth(quantile=0.5) over the drawn points: the mean distance to the k-th nearest of k = half of them.

    A point is its own nearest, so of two or three points it takes the next one.
    """
    some = points[drawn]
    k = max(len(some) // 2, min(2, len(some)))
    return float(np.partition(_apart(some, some), k - 1, axis=1)[:, k - 1].mean())


def largest_cluster(points: np.ndarray, bandwidth: float) -> np.ndarray:
    """The members (n,) of mean shift's largest cluster of points (n, k).

    As scikit-learn's MeanShift(bandwidth, bin_seeding=True, cluster_all=False), which takes 100 times as long because it moves its seeds
    one at a time. Of clusters of equal size, the one whose centre has more points around it; then the one with the greater centre.
    """
    bandwidth = max(bandwidth, 1e-9)  # points that are equal are one cluster
    bins = np.unique(np.round(points / bandwidth), axis=0)
    centres = points.copy() if len(bins) == len(points) else bins * bandwidth
    around = np.zeros(len(centres), np.int64)
    moving = np.arange(len(centres))
    for _ in range(301):
        near = _apart(centres[moving], points) <= bandwidth
        around[moving] = near.sum(1)
        moving, near = moving[around[moving] > 0], near[around[moving] > 0]
        means = near @ points / around[moving][:, None]
        shift = np.linalg.norm(means - centres[moving], axis=1)
        centres[moving] = means
        moving = moving[shift > 1e-3 * bandwidth]
        if not len(moving):
            break
    order = np.lexsort((*centres.T[::-1], around))[::-1]  # the densest first
    order = order[around[order] > 0]
    kept: list[int] = []
    for i in order:
        if not (kept and (_apart(centres[i][None], centres[kept]) <= bandwidth).any()):
            kept.append(i)
    distance = _apart(points, centres[kept])
    label = np.where(distance.min(1) <= bandwidth, distance.argmin(1), len(kept))
    sizes = np.bincount(label, minlength=len(kept) + 1)[:-1]
    return np.asarray(label == sizes.argmax())


def _apart(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Distances (k, n) between points."""
    return np.asarray(np.sqrt(np.square(some[:, None] - others[None]).sum(2)))


def _of_largest(feature: Tensor) -> Tensor:
    """Values that are not negative, divided by the largest of them."""
    return feature / divisor(feature.amax(0))


@RULES.register("sign-guard", label="SignGuard", reference="Xu, Huang, Song, Lan, ICDCS 2022")
@dataclass(frozen=True)
class SignGuard(Rule):
    """The mean of the updates of usual length whose signs resemble those of the most others (Xu et al. 2022).

    M is the median of all ||g_i||. Two filters must be passed. The first keeps lower < ||g_i|| / M < upper. The second looks at one block
    of neighbouring coordinates, drawn anew in each round. Each client has three features: its shares of positive, zero and negative values
    there, each divided by the largest such share of all clients. Mean shift groups the clients by these features, and the largest cluster
    passes. The result is the mean of g_i min(1, M / ||g_i||) over the clients that pass both.

    Mean shift's bandwidth is the authors': over at most 50 clients, drawn at random, the mean distance to the k-th nearest, k being half
    of them. Of clusters of equal size, the one whose centre has more clients around it passes; then the one with the greater centre.

    Parameters
    ----------
    lower : float, default 0.1
        Updates must be longer than this part of the median length.
    upper : float, default 3.0
        Updates must be shorter than this many median lengths.
    block : float, default 0.1
        Which part of the coordinates is looked at.
    similarity : bool, default False
        True adds a feature, as in the authors' SignGuard-Sim: the cosine with last round's result, clipped to [0, c] and divided by 5 c,
        where c is the median cosine. In the first round, and while c is not positive, it is 0 for everybody; the authors begin with
        pairwise cosines.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Received, SignGuard
    >>> updates = torch.tensor([[3.0, 4.0], [4.0, 3.0], [5.0, 12.0], [-3.0, -4.0], [30.0, 40.0]])  # flipped signs; ten times as long
    >>> result, _ = SignGuard(block=1.0).step(Received(updates, generator=torch.Generator()), ())
    >>> result  # the median length is 5, so the third is cut
    Aggregate(update=tensor([2.9744, 3.8718]), shares=tensor([0.3333, 0.3333, 0.1282, 0.0000, 0.0000]))
    """

    lower: float = 0.1
    upper: float = 3.0
    block: float = 0.1
    similarity: bool = False

    needs_generator = True
    on_host = True

    def __post_init__(self) -> None:
        if not 0 <= self.lower < 1 < self.upper:
            raise InputError(f"SignGuard keeps lengths from lower < 1 to upper > 1 medians, not from {self.lower} to {self.upper}")
        if not 0 < self.block <= 1:
            raise InputError(f"SignGuard looks at a part of the coordinates, above 0 and at most 1, not {self.block}")

    @property
    def has_memory(self) -> bool:
        return self.similarity

    def init(self, num_clients: int, like: Tensor) -> Memory:
        return torch.zeros_like(like) if self.similarity else ()

    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        updates = received.updates
        rows = measure(updates, direction_and_norm(memory)[0] if self.similarity else None)
        bound = median_of(rows.norm, rows.usable)
        chance = torch.rand(len(updates) + 1, generator=received.generator, dtype=torch.float64, device=updates.device).cpu().numpy()
        features = [self._sign_shares(updates, float(chance[-1]))]
        if self.similarity:
            usual = median_of(rows.cosine, rows.usable)
            features.append(torch.where(usual > 0, rows.cosine.clamp(min=0).minimum(usual) / (5 * usual), 0)[:, None])
        alike = self._alike(torch.cat(features, 1), rows.usable, chance[:-1])
        admitted = alike & (rows.norm > self.lower * bound) & (rows.norm / self.upper < bound)
        update, shares = _mean_of_cut(updates, rows, admitted, bound)
        result = Aggregate(finite(update, updates), shares.to(updates.dtype))
        if not self.similarity:
            return result, memory
        return result, torch.where(admitted.any(), result.update, memory)

    def _sign_shares(self, updates: Tensor, chance: float) -> Tensor:
        """The shares (n, 3), in float64, of positive, zero and negative values in one block of columns."""
        d = updates.shape[1]
        size = max(1, int(self.block * d))
        start = min(int(chance * (d - size + 1)), d - size)
        block = updates[:, start : start + size]
        positive, negative = (block > 0).sum(1), (block < 0).sum(1)
        return torch.stack((positive, size - positive - negative, negative), 1).double() / size

    def _alike(self, features: Tensor, usable: Tensor, chance: np.ndarray) -> Tensor:
        """Who is in the largest cluster (n,): the only work on the host, on n points of three or four features."""
        features = torch.where(usable[:, None], features, 0)
        features[:, :3] = _of_largest(features[:, :3])
        there = torch.cat((features, usable[:, None].double()), 1).cpu().numpy()
        who = np.flatnonzero(there[:, -1])
        alike = np.zeros(len(there), bool)
        if len(who):
            points = there[who, :-1]
            alike[who] = largest_cluster(points, bandwidth_of(points, np.argsort(chance[who])[:50]))
        return torch.from_numpy(alike).to(features.device)
