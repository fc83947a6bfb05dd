"""Aggregation rules: how the server turns what n clients sent into one update.

updates      (n, d)  one row per client, a change of weights
root_update  (d,)    the server's own update, from its small clean root set
sizes        (n,)    training examples per client
trust        (n,)    FLTrust's score of each client

A row that holds NaN or infinity and a row of zeros are not usable: whichever the rule, the result is the rule's result on the other
rows. If too few rows are left the update is zero: the model stays as it is. Nothing here looks at values to choose a path on a GPU,
so a round can be captured as a CUDA graph.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fltrust.errors import InputError

_BLOCK = 1 << 22  # values of (n, d) that are held in float64 at a time
_LARGEST = torch.finfo(torch.float64).max


class Aggregate(NamedTuple):
    """What a rule returns."""

    update: Tensor  # (d,) the global update
    weight: Tensor | None  # (n,) the share that each client had in it; None for rules that work coordinate by coordinate


# ---------------------------------------------------------------- what the rules compute with


class Rows(NamedTuple):
    """What is known of each row: row = scale * (a vector of that length), scaled so that no square overflows or vanishes."""

    usable: Tensor  # (n,) bool
    scale: Tensor  # (n,) float64, infinite where not usable
    length: Tensor  # (n,) float64, 0 where not usable
    cosine: Tensor  # (n,) float64, with the direction asked for; 0 where not usable

    @property
    def norm(self) -> Tensor:
        return torch.where(self.usable, self.scale * self.length, 0).clamp(max=_LARGEST)  # (n,)


@cache
def _cpu_kernels() -> ModuleType | None:
    try:
        from fltrust.fast import cpu
    except (ImportError, RuntimeError):  # no numba, or no place where it could keep compiled code
        return None
    return cpu


@cache
def _gpu_kernels() -> ModuleType | None:
    try:
        from fltrust.fast import gpu
    except ImportError:  # no Triton
        return None
    return gpu


def _kernels(updates: Tensor) -> ModuleType | None:
    """The fast kernels for these updates, or None for plain torch: the one place that chooses."""
    plain_rows = type(updates) is Tensor and updates.dtype == torch.float32 and updates.is_contiguous()
    if plain_rows and updates.device.type == "cpu" and len(updates) < 1 << 15:  # the kernels count clients in 16 bits
        return _cpu_kernels()
    if plain_rows and updates.device.type == "cuda" and len(updates) <= 8192:  # as many as the selection of ranks takes
        return _gpu_kernels()
    return None


def _column_blocks(updates: Tensor) -> Iterator[slice]:
    n, d = updates.shape
    width = max(1, _BLOCK // n)
    return (slice(start, min(start + width, d)) for start in range(0, d, width))


def _peak(updates: Tensor) -> Tensor:
    """The largest absolute value of each row, in float64; NaN if there is one."""
    return torch.maximum(updates.amax(dim=-1), -updates.amin(dim=-1)).double()


def _scaled(updates: Tensor, scale: Tensor) -> Tensor:
    """Rows divided by their scale, in float64; rows of infinite scale become zeros, whatever they hold."""
    return torch.div(updates, scale[:, None]).nan_to_num_(0, 0, 0)


def measure(updates: Tensor, direction: Tensor | None = None) -> Rows:
    """Which rows are usable, how long they are, and their cosine with a direction (d,) of norm 1: one read, sums in float64."""
    if kernels := _kernels(updates):
        along, squares = kernels.row_sums(updates, direction)
        usable = torch.isfinite(squares) & (squares > 0)
        scale = torch.where(usable, 1.0, torch.inf).double()  # float32 values squared never leave float64's range
        along, squares = torch.where(usable, along, 0), torch.where(usable, squares, 0)
    else:
        peak = _peak(updates)
        usable = torch.isfinite(peak) & (peak > 0)
        scale = torch.where(usable, peak, torch.inf)
        along, squares = torch.zeros_like(peak), torch.zeros_like(peak)
        for columns in _column_blocks(updates):
            block = _scaled(updates[:, columns], scale)
            if direction is not None:
                along += block @ direction[columns]
            squares += torch.einsum("nd,nd->n", block, block)
    length = squares.sqrt()
    cosine = torch.where(usable, along / length, 0).clamp(-1, 1)
    return Rows(usable, scale, length, cosine)


def direction_and_norm(update: Tensor) -> tuple[Tensor, Tensor]:
    """The update's direction (d,), of norm 1, and its norm, both in float64; both zero if it is not usable."""
    row = measure(update[None])
    return _scaled(update[None], row.scale)[0].div_(torch.where(row.usable, row.length, 1)), row.norm[0]


def weighted_sum(updates: Tensor, rows: Rows, norm: Tensor) -> Tensor:
    """The sum (d,), in float64, of the rows, each brought to the norm (n,) that is given for it (negative: turned round)."""
    factor = torch.where(rows.usable, norm / rows.length, 0)  # (n,) of row / scale
    if kernels := _kernels(updates):
        return torch.as_tensor(kernels.weighted_sum(updates, factor))
    return torch.cat([factor @ _scaled(updates[:, columns], rows.scale) for columns in _column_blocks(updates)])


def trusted_sum(
    updates: Tensor, root_update: Tensor, least_trust: float = 0.0, stretch: tuple[float, float] = (0.0, torch.inf)
) -> tuple[Tensor, Tensor]:
    """FLTrust's sum (d,) before it is divided by the sum of trust, and the trust (n,), both in float64.

    The trust is the cosine with the root update, at least `least_trust`. Each row is brought to the norm of the root update, but made
    longer or shorter by a factor within `stretch` only.
    """
    if updates.device.type == "cpu" and (kernels := _kernels(updates)):  # one read of memory for both sums below
        total, trust = kernels.trusted_sum(updates, root_update, least_trust, stretch)
        return total, trust
    direction, root_norm = direction_and_norm(root_update)
    rows = measure(updates, direction)
    trust = rows.cosine.clamp(min=least_trust)
    norm = root_norm.maximum(stretch[0] * rows.norm).minimum(stretch[1] * rows.norm)
    return weighted_sum(updates, rows, trust * norm), trust


def ranked_mean(updates: Tensor, usable: Tensor, trim: int | None) -> Tensor:
    """Per coordinate, the mean (d,) of the usable values without the `trim` smallest and largest; of the middle one or two if None."""
    if kernels := _kernels(updates):
        return torch.as_tensor(kernels.ranked_mean(updates, usable, trim))
    n = len(updates)
    count = usable.sum()
    rank = torch.arange(n, device=updates.device)
    drop = ((count - 1) // 2).clamp(min=0) if trim is None else trim
    kept = (rank >= drop) & (rank < count - drop)  # (n,)
    share = kept.double() / kept.sum().clamp(min=1)
    means = []
    for columns in _column_blocks(updates):
        values = torch.where(usable[:, None], updates[:, columns], torch.inf).sort(dim=0).values  # those not usable come last
        means.append(share @ torch.where(kept[:, None], values, 0).double())
    return torch.cat(means)


def finite(update: Tensor, like: Tensor) -> Tensor:
    """Back from float64: whatever happened, a finite update."""
    largest = torch.finfo(like.dtype).max
    return update.to(like.dtype).nan_to_num_(0, largest, -largest)


def norms(updates: Tensor) -> Tensor:
    """The rows' Euclidean norms (n,); NaN or infinite where the row is."""
    _check(updates)
    rows = measure(updates)
    return torch.where(rows.usable, rows.norm, _peak(updates)).to(updates.dtype)


def cosines(updates: Tensor, root_update: Tensor) -> Tensor:
    """The cosine (n,) of each row with the root update; 0 where either is not usable."""
    _check(updates, root_update)
    return measure(updates, direction_and_norm(root_update)[0]).cosine.to(updates.dtype)


def trust_scores(updates: Tensor, root_update: Tensor) -> Tensor:
    """FLTrust's trust (n,), TS_i = ReLU(cos(g_i, g_0)): equation 2 of the paper."""
    return cosines(updates, root_update).relu()


def sq_distances(updates: Tensor) -> Tensor:
    """Squared distances (n, n) between rows, in float64, from one Gram matrix; infinite where not finite, 0 on the diagonal."""
    _check(updates)
    if kernels := _kernels(updates):
        gram: Tensor = kernels.gram(updates)
    else:
        gram = updates.new_zeros(len(updates), len(updates), dtype=torch.float64)
        for columns in _column_blocks(updates):
            block = updates[:, columns].double()
            gram.addmm_(block, block.T)
    squares = gram.diagonal()  # only what is below the diagonal counts beside it
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_(min=0)
    below = distances.nan_to_num_(torch.inf, torch.inf).tril_(-1)
    return below + below.T  # exactly symmetric, so that two nearest neighbours of each other tie


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


def _check(updates: Tensor, root_update: Tensor | None = None, sizes: Tensor | None = None) -> None:
    if not isinstance(updates, Tensor):
        raise InputError(f"updates must be a torch tensor with one row per client, not a {type(updates).__name__}")
    if updates.ndim != 2 or updates.shape[1] == 0:
        raise InputError(f"updates must be a matrix with one row per client, not of shape {tuple(updates.shape)}")
    n, d = updates.shape
    if n == 0:
        raise InputError("there are no updates: a rule needs at least one")
    if updates.dtype not in (torch.float32, torch.float64):
        raise InputError(f"updates must be float32 or float64, not {updates.dtype}")
    if root_update is not None:
        check_like(root_update, (d,), updates, "the root update")
    if sizes is not None and sizes.shape != (n,):
        raise InputError(f"sizes must hold one number for each of the {n} clients, not be of shape {tuple(sizes.shape)}")


def check_like(tensor: Tensor, shape: tuple[int, ...], like: Tensor, name: str) -> None:
    """Refuses a tensor that has not this shape, or that differs from another in dtype or device."""
    if tensor.shape != shape:
        raise InputError(f"{name} must have the shape {tuple(shape)}, not {tuple(tensor.shape)}")
    if (tensor.dtype, tensor.device) != (like.dtype, like.device):
        raise InputError(f"{name} must be {like.dtype} on {like.device}, not {tensor.dtype} on {tensor.device}")


def _check_krum(n: int, tolerate: int) -> None:
    if n < tolerate + 3:
        raise InputError(f"Krum cannot tolerate {tolerate} of {n}: it needs at least 3 more clients than it tolerates")


# ---------------------------------------------------------------- the rules


@dataclass(frozen=True)
class Rule(ABC):
    """An aggregation rule: its fields are its parameters, calling it aggregates."""

    needs_root: ClassVar[bool] = False

    def __call__(self, updates: Tensor, root_update: Tensor | None = None, sizes: Tensor | None = None) -> Aggregate:
        _check(updates, root_update, sizes)
        if self.needs_root and root_update is None:
            raise InputError(f"{type(self).__name__} needs a root update and got none")
        with torch.no_grad():
            return self.aggregate(updates.detach(), root_update, sizes)

    @abstractmethod
    def aggregate(self, updates: Tensor, root_update: Tensor | None, sizes: Tensor | None) -> Aggregate:
        """The rule itself, on tensors whose shapes are right."""


@dataclass(frozen=True)
class FedAvg(Rule):
    """The mean of the updates, weighted by the clients' numbers of examples (McMahan et al. 2017): g = sum_i |D_i| / N g_i.

    `by_size=False` is the plain mean (the released code's).
    """

    by_size: bool = True

    def aggregate(self, updates: Tensor, root_update: Tensor | None, sizes: Tensor | None) -> Aggregate:
        rows = measure(updates)
        weight = rows.usable.double() if sizes is None or not self.by_size else torch.where(rows.usable, sizes, 0).double()
        weight = weight.nan_to_num(0, 0, 0).clamp(min=0)  # a size that cannot be counts nothing
        weight = weight / weight.amax().clamp(min=1)
        share = weight / _divisor(weight.sum())
        return Aggregate(finite(weighted_sum(updates, rows, share * rows.norm), updates), share.to(updates.dtype))


@dataclass(frozen=True)
class Krum(Rule):
    """The one update with the smallest sum of squared distances to its n - f - 2 nearest others (Blanchard et al. 2017).

    f = `tolerate` malicious clients are expected. Among equal scores the first client's update is taken.
    """

    tolerate: int

    def __post_init__(self) -> None:
        if self.tolerate < 0:
            raise InputError(f"Krum cannot tolerate {self.tolerate} clients: give 0 or more")

    def aggregate(self, updates: Tensor, root_update: Tensor | None, sizes: Tensor | None) -> Aggregate:
        n = len(updates)
        _check_krum(n, self.tolerate)
        usable = measure(updates).usable
        scores = krum_scores(sq_distances(updates), self.tolerate, usable)
        scores = torch.where(usable, scores.clamp(max=_LARGEST), torch.inf)  # so a usable row wins even if all are far away
        chosen = scores.argmin()
        enough = usable.sum() >= self.tolerate + 3
        update = torch.where(enough, updates.index_select(0, chosen[None])[0], 0)
        weight = (torch.arange(n, device=updates.device) == chosen) & enough
        return Aggregate(update, weight.to(updates.dtype))


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Per coordinate, the mean of the values without the `trim` largest and the `trim` smallest (Yin et al. 2018)."""

    trim: int

    def __post_init__(self) -> None:
        if self.trim < 0:
            raise InputError(f"a trimmed mean cannot trim {self.trim} values: give 0 or more")

    def aggregate(self, updates: Tensor, root_update: Tensor | None, sizes: Tensor | None) -> Aggregate:
        n = len(updates)
        if n <= 2 * self.trim:
            raise InputError(f"a trimmed mean cannot trim {self.trim} from each side of {n}: it needs at least {2 * self.trim + 1} clients")
        return Aggregate(finite(ranked_mean(updates, measure(updates).usable, self.trim), updates), None)


@dataclass(frozen=True)
class Median(Rule):
    """Per coordinate, the median; of an even number of values, the mean of the two in the middle (Yin et al. 2018)."""

    def aggregate(self, updates: Tensor, root_update: Tensor | None, sizes: Tensor | None) -> Aggregate:
        return Aggregate(finite(ranked_mean(updates, measure(updates).usable, None), updates), None)


@dataclass(frozen=True)
class FLTrust(Rule):
    """The mean of the updates at the root update's length, weighted by trust: how far each points the same way (Cao et al. 2021).

    Equation 4: g = 1 / (sum_i TS_i) * sum_i TS_i * (||g_0|| / ||g_i||) * g_i.
    TS_i = ReLU(cos(g_i, g_0)) is client i's trust, g_0 the root update. If no client is trusted, the update is zero.
    """

    needs_root = True
    least_trust: ClassVar[float] = 0.0  # the ReLU
    stretch: ClassVar[tuple[float, float]] = (0.0, torch.inf)  # least and largest factor that brings a row to the root update's norm
    server_trust: ClassVar[float] = 0.0  # of the root update, as if the server were one more client

    def aggregate(self, updates: Tensor, root_update: Tensor | None, sizes: Tensor | None) -> Aggregate:
        assert root_update is not None  # __call__ has seen to it
        total, trust = trusted_sum(updates, root_update, self.least_trust, self.stretch)
        total_trust = trust.sum()
        if self.server_trust:
            usable = direction_and_norm(root_update)[1] > 0
            total += self.server_trust * torch.where(usable, root_update, 0)
            total_trust += self.server_trust * usable
        divisor = _divisor(total_trust)
        return Aggregate(finite(total.div_(divisor), updates), (trust / divisor).to(updates.dtype))


@dataclass(frozen=True)
class FLTrustServer(Rule):
    """FLTrust-Server: the root update alone, whatever the clients send."""

    needs_root = True

    def aggregate(self, updates: Tensor, root_update: Tensor | None, sizes: Tensor | None) -> Aggregate:
        assert root_update is not None  # __call__ has seen to it
        _, root_norm = direction_and_norm(root_update)
        return Aggregate(torch.where(root_norm > 0, root_update, 0), updates.new_zeros(len(updates)))


@dataclass(frozen=True)
class FLTrustWithServer(FLTrust):
    """FLTrust-withServer: the root update takes part, with trust 1; the clients' shares then sum to less than 1."""

    server_trust = 1.0


@dataclass(frozen=True)
class FLTrustNoReLU(FLTrust):
    """FLTrust-NoReLU: the trust is the cosine itself, also where it is negative."""

    least_trust = -1.0


@dataclass(frozen=True)
class FLTrustNoNorm(FLTrust):
    """FLTrust-NoNorm: the rows keep their lengths."""

    stretch = (1.0, 1.0)


@dataclass(frozen=True)
class FLTrustParNorm(FLTrust):
    """FLTrust-ParNorm: only the rows that are longer than the root update are shortened to its norm."""

    stretch = (0.0, 1.0)


def _divisor(total: Tensor) -> Tensor:
    """What weights are divided by to get shares; infinite if they sum to zero: then no share at all, not NaN and not a uniform one."""
    return torch.where(total != 0, total, torch.inf)


RULES: dict[str, type[Rule]] = {
    "fedavg": FedAvg,
    "krum": Krum,
    "trim-mean": TrimmedMean,
    "median": Median,
    "fltrust": FLTrust,
    "fltrust-server": FLTrustServer,
    "fltrust-withserver": FLTrustWithServer,
    "fltrust-norelu": FLTrustNoReLU,
    "fltrust-nonorm": FLTrustNoNorm,
    "fltrust-parnorm": FLTrustParNorm,
}
