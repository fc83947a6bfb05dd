"""Arithmetic on the rows of an (n, d) tensor of updates: what the rules compute with. `pairs.py` has that on pairs of rows.

A row that holds NaN or infinity and a row of zeros are not usable: every rule leaves them out. Sums are in float64. Nothing here
looks at values to choose a path on a GPU, so a round can be captured as a CUDA graph.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import fltrust.threads  # noqa: F401  rules must not hang in a forked process
from fltrust.errors import InputError

_BLOCK = 1 << 22  # values of (n, d) that are held in float64 at a time
_SHORT = 256  # values; NumPy sorts so few many times faster than torch
LARGEST = torch.finfo(torch.float64).max


class Rows(NamedTuple):
    """What is known of each row: row = scale * (a vector of that length), scaled so that no square overflows or vanishes."""

    usable: Tensor  # (n,) bool
    scale: Tensor  # (n,) float64, infinite where not usable
    length: Tensor  # (n,) float64, 0 where not usable
    cosine: Tensor  # (n,) float64, with the direction asked for; 0 where not usable
    norm: Tensor  # (n,) float64: scale times length, at most the largest number; 0 where not usable


@cache
def _cpu_kernels() -> ModuleType | None:
    try:
        from fltrust.fast import cpu
    except (ImportError, RuntimeError):  # no numba, or no place where it could keep compiled code
        return None
    return cpu


@cache
def gpu_kernels() -> ModuleType | None:
    try:
        from fltrust.fast import gpu
    except ImportError:  # no Triton
        return None
    return gpu


def kernels_for(updates: Tensor) -> ModuleType | None:
    """The fast kernels for these updates, or None for plain torch: the one place that chooses."""
    plain_rows = _is_plain(updates) and updates.dtype == torch.float32 and updates.is_contiguous() and len(updates) > 0
    if plain_rows and updates.device.type == "cpu" and len(updates) < 1 << 15:  # 50 MB of tiles for each thread that sorts
        return _cpu_kernels()
    if plain_rows and updates.device.type == "cuda" and len(updates) <= 8192:  # as many as the selection of ranks takes
        return gpu_kernels()
    return None


def column_blocks(updates: Tensor) -> Iterator[slice]:
    n, d = updates.shape
    width = max(1, _BLOCK // max(1, n))
    return (slice(start, min(start + width, d)) for start in range(0, d, width))


def _peak(updates: Tensor) -> Tensor:
    """The largest absolute value of each row, in float64; NaN if there is one."""
    return torch.maximum(updates.amax(dim=-1), -updates.amin(dim=-1)).double()


def scaled(updates: Tensor, scale: Tensor) -> Tensor:
    """Rows divided by their scale, in float64; rows of infinite scale become zeros, whatever they hold."""
    return torch.div(updates, scale[:, None]).nan_to_num_(0, 0, 0)


def counts(size: Tensor) -> Tensor:
    """Whether it is finite and more than zero; NaN is neither."""
    return (size > 0) & (size < torch.inf)


def _on_cpu(updates: Tensor) -> bool:
    return updates.device.type == "cpu" and _is_plain(updates)


def _is_plain(updates: Tensor) -> bool:
    """Whether these are values in memory, and not a stand-in for them, as in `torch.vmap` and `torch.func.grad`."""
    return type(updates) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(updates)


def room_for(count: int, updates: Tensor) -> Tensor:
    """Memory (count, d) for rows like these. On a CPU NumPy's: it asks for large pages, and torch's takes four times as long to fill."""
    d = updates.shape[1]
    if _on_cpu(updates):
        return torch.from_numpy(np.empty((count, d), np.float32 if updates.dtype == torch.float32 else np.float64))
    return updates.new_empty(count, d)


def copied(rows: Tensor) -> Tensor:
    return room_for(len(rows), rows).copy_(rows)


def usable_only(updates: Tensor, usable: Tensor) -> Tensor:
    """The updates, with zeros for rows that are not usable; on a CPU not a copy if all are."""
    if _on_cpu(updates) and usable.all():
        return updates
    return torch.where(usable[:, None], updates, 0)


def measure(updates: Tensor, direction: Tensor | None = None) -> Rows:
    """Which rows are usable, how long they are, and their cosine with a direction (d,) of norm 1: one read, sums in float64."""
    if kernels := kernels_for(updates):
        along, squares = kernels.row_sums(updates, direction)
        usable = counts(squares)
        scale = torch.nn.functional.threshold(usable.double(), 0, torch.inf)  # 1: float32 values squared never leave float64's range
        squares = torch.where(usable, squares, 0)
    else:
        peak = _peak(updates)
        usable = counts(peak)
        scale = torch.where(usable, peak, torch.inf)
        along, squares = torch.zeros_like(peak), torch.zeros_like(peak)
        for columns in column_blocks(updates):
            block = scaled(updates[:, columns], scale)
            if direction is not None:
                along += block @ direction[columns]
            squares += torch.einsum("nd,nd->n", block, block)
    length = squares.sqrt()
    cosine = torch.zeros_like(length) if direction is None else torch.where(usable, along / length, 0).clamp(-1, 1)
    norm = length if kernels else (scale * length).nan_to_num(0, LARGEST)  # infinity times 0 is NaN
    return Rows(usable, scale, length, cosine, norm)


def direction_and_norm(update: Tensor) -> tuple[Tensor, Tensor]:
    """The update's direction (d,), of norm 1, and its norm, both in float64; both zero if it is not usable."""
    row = measure(update[None])
    return scaled(update[None], row.scale)[0].div_(torch.where(row.usable, row.length, 1)), row.norm[0]


def weighted_sum(updates: Tensor, rows: Rows, norm: Tensor) -> Tensor:
    """The sum (d,), in float64, of the rows, each brought to the norm (n,) that is given for it (negative: turned round)."""
    factor = torch.where(rows.usable, norm / rows.length, 0)  # (n,) of row / scale
    if kernels := kernels_for(updates):
        return torch.as_tensor(kernels.weighted_sum(updates, factor))
    return torch.cat([factor @ scaled(updates[:, columns], rows.scale) for columns in column_blocks(updates)])


def mean_if_usable(updates: Tensor, shares: Tensor) -> Tensor | None:
    """The mean (d,) by shares (n,), which sum to 1 or 0, in one read; None without a kernel, or if a row that counts is not usable."""
    kernels = kernels_for(updates) if updates.device.type == "cpu" else None
    mean: Tensor | None = kernels.mean_if_usable(updates, shares) if kernels else None
    return mean


def trusted_sum(
    updates: Tensor, root_update: Tensor, least_trust: float = 0.0, stretch: tuple[float, float] = (0.0, torch.inf)
) -> tuple[Tensor, Tensor]:
    """FLTrust's sum (d,) before it is divided by the sum of trust, and the trust (n,), both in float64.

    The trust is the cosine with the root update, at least `least_trust`. Each row is brought to the norm of the root update, but made
    longer or shorter by a factor within `stretch` only.
    """
    if updates.device.type == "cpu" and (kernels := kernels_for(updates)):  # one read of memory for both sums below
        total, trust = kernels.trusted_sum(updates, root_update, least_trust, stretch)
        return total, trust
    direction, root_norm = direction_and_norm(root_update)
    rows = measure(updates, direction)
    trust = rows.cosine.clamp(min=least_trust)
    norm = root_norm
    if stretch != (0.0, torch.inf):
        norm = root_norm.maximum(stretch[0] * rows.norm).minimum(stretch[1] * rows.norm)
    return weighted_sum(updates, rows, trust * norm), trust


def more_than(tolerate: int, usable: Tensor) -> Tensor:
    """Whether more rows are usable than may be malicious (.., 1). If not, all that is left may be malicious, and nobody is trusted.

    If so, a rule goes on with what is left, even if it needs more rows to begin with: otherwise malicious clients could end training by
    sending rows that are dropped.
    """
    return usable.sum(-1, keepdim=True) > tolerate


def ranked_mean(updates: Tensor, usable: Tensor, trim: int | None) -> Tensor:
    """Per coordinate, the mean (d,) of the usable values without the `trim` smallest and largest; one or two in the middle always stay.

    Only these stay if `trim` is None.
    """
    if kernels := kernels_for(updates):
        return torch.as_tensor(kernels.ranked_mean(updates, usable, trim))
    n = len(updates)
    count = usable.sum()
    rank = torch.arange(n, device=updates.device)
    drop = ((count - 1) // 2).clamp(0, trim)
    kept = (rank >= drop) & (rank < count - drop)  # (n,)
    share = kept.double() / kept.sum().clamp(min=1)
    means = []
    for columns in column_blocks(updates):
        values = in_order(torch.where(usable[:, None], updates[:, columns], torch.inf).T).T  # those not usable come last
        means.append(share @ torch.where(kept[:, None], values, 0).double())
    return torch.cat(means)


def ranked_mean_of_usable(updates: Tensor, trim: int | None) -> tuple[Tensor, Tensor]:
    """The `ranked_mean` (d,) of the rows that are usable, and which are (n,): on a CPU in one read if all of them are."""
    kernels = kernels_for(updates) if updates.device.type == "cpu" else None
    if kernels and (mean := kernels.ranked_mean_if_usable(updates, trim)) is not None:
        return mean, torch.ones(len(updates), dtype=torch.bool)
    usable = measure(updates).usable
    return ranked_mean(updates, usable, trim), usable


def nearest_mean(updates: Tensor, usable: Tensor, drop: int, trim: int | None) -> Tensor:
    """Per coordinate, the mean (d,) of the usable values without the `drop` farthest from the centre; one or two always stay.

    The centre is the `ranked_mean` of the usable values. The values that are kept are a window of the sorted column. Of two values
    equally far away, the lower one is kept. 0 if none is usable.
    """
    if (kernels := kernels_for(updates)) and len(updates) <= kernels.MOST_SORTED:
        return torch.as_tensor(kernels.nearest_mean(updates, usable, drop, trim))
    n = len(updates)
    count = usable.sum()
    rank = torch.arange(n, device=updates.device)
    half = ((count - 1) // 2).clamp(min=0)
    around = half.clamp(0, trim)
    middle = (rank >= around) & (rank < count - around)  # (n,)
    leaving = (2 * half).clamp(max=drop)
    kept = count - leaving
    enters = (rank[:drop] + kept).clamp(max=n - 1)  # beside the value that would leave
    small = 0.5 ** (n.bit_length() + 1)  # so that no sum overflows
    means = []
    for columns in column_blocks(updates):
        ordered = in_order(torch.where(usable[:, None], updates[:, columns], torch.inf).T).T  # those not usable come last
        values = torch.where(rank[:, None] < count, ordered, 0).double() * small
        centre = torch.where(middle[:, None], values, 0).sum(0)  # times the number of values in the middle
        nearer = ((values[: len(enters)] + values[enters]) * middle.sum() < 2 * centre) & (rank[:drop, None] < leaving)
        first = nearer.sum(0)  # the window moves up while the value that enters is nearer than the one that leaves
        inside = (rank[:, None] >= first) & (rank[:, None] < first + kept)
        means.append(torch.where(inside, values, 0).sum(0) / kept.clamp(min=1) / small)
    return torch.where(middle.any(), torch.cat(means), 0)


def sign_sums(updates: Tensor, usable: Tensor) -> Tensor:
    """Per coordinate, how many more usable values are positive than negative (d,)."""
    return torch.cat([usable_only(updates[:, columns], usable).sign().sum(0) for columns in column_blocks(updates)])


def finite(update: Tensor, like: Tensor) -> Tensor:
    """Back from float64: whatever happened, a finite update."""
    largest = torch.finfo(like.dtype).max
    return update.to(like.dtype).nan_to_num_(0, largest, -largest)


def norms(updates: Tensor) -> Tensor:
    """The Euclidean norms (n,) of the rows; NaN or infinite where the row is.

    Parameters
    ----------
    updates : Tensor
        (n, d), a row per client.

    Examples
    --------
    >>> import torch
    >>> from fltrust import norms
    >>> norms(torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]]))
    tensor([1., 5., 5.])
    """
    check(updates)
    rows = measure(updates)
    return torch.where(rows.usable, rows.norm, _peak(updates)).to(updates.dtype)


def cosines(updates: Tensor, root_update: Tensor) -> Tensor:
    """The cosine (n,) of each row with the root update; 0 if either is zero, NaN or infinite.

    Parameters
    ----------
    updates : Tensor
        (n, d), a row per client.
    root_update : Tensor
        (d,), the server's own update.

    Examples
    --------
    >>> import torch
    >>> from fltrust import cosines
    >>> cosines(torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]]), torch.tensor([2.0, 0.0]))
    tensor([ 1.0000,  0.6000, -1.0000])
    """
    check(updates, root_update)
    return measure(updates, direction_and_norm(root_update)[0]).cosine.to(updates.dtype)


def trust_scores(updates: Tensor, root_update: Tensor) -> Tensor:
    """FLTrust's trust scores (n,): TS_i = ReLU(cos(g_i, g_0)), equation 2 of the paper.

    Parameters
    ----------
    updates : Tensor
        (n, d), a row per client.
    root_update : Tensor
        (d,), the server's own update.

    Examples
    --------
    >>> import torch
    >>> from fltrust import trust_scores
    >>> trust_scores(torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]]), torch.tensor([2.0, 0.0]))
    tensor([1.0000, 0.6000, 0.0000])
    """
    return cosines(updates, root_update).relu()


def combined(updates: Tensor, rows: Rows, shares: Tensor) -> Tensor:
    """The sum (d,) of shares (n,) times rows, of the updates' dtype."""
    return finite(weighted_sum(updates, rows, shares * rows.norm), updates)


def in_order(values: Tensor) -> Tensor:
    """The values (.., n) from the smallest to the largest; NaN comes last."""
    if values.shape[-1] <= _SHORT and values.device.type == "cpu" and type(values) is Tensor:
        with suppress(RuntimeError):  # it stands for a batch: then it has no values of its own
            if values.requires_grad:  # the same values; of equal ones any has the slope
                return values.gather(-1, torch.from_numpy(np.argsort(values.detach().numpy(), axis=-1)))
            return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(dim=-1).values


def median_of(values: Tensor, usable: Tensor) -> Tensor:
    """The median () of the usable values (n,), of an even number the mean of the two in the middle; 0 if there is none."""
    return medians_of(values, usable)[0]


def medians_of(values: Tensor, usable: Tensor) -> Tensor:
    """The medians (.., 1) of the usable values (.., n), as `median_of`."""
    count = usable.sum(-1, keepdim=True)
    return torch.where(count > 0, in_the_middle(in_order(torch.where(usable, values, torch.inf)), count), 0)


def in_the_middle(ordered: Tensor, count: Tensor) -> Tensor:
    """The median (.., 1) of the first `count` (.., 1) of values (.., n) in order."""
    middle = (count + torch.arange(-1, 1, device=count.device)) // 2  # (.., 2)
    return ordered.gather(-1, middle.clamp(0, ordered.shape[-1] - 1)).mean(-1, keepdim=True)


def upper_quartile(ordered: Tensor, count: Tensor) -> Tensor:
    """The upper quartile (.., 1) of the first `count` (.., 1) of values (.., n) in order: one of them, the lower one between two."""
    return ordered.gather(-1, 3 * (count - 1).clamp(min=0) // 4)


def check(updates: Tensor, root_update: Tensor | None = None, sizes: Tensor | None = None) -> None:
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


def divisor(total: Tensor) -> Tensor:
    """What weights are divided by to get shares; infinite if they sum to zero: then no share at all, not NaN and not a uniform one."""
    return torch.where(total != 0, total, torch.inf)
