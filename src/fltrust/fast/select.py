"""Coordinate-wise rules on a CUDA device: medians and trimmed means by selection in registers, the values nearest to them by sorting there.

Import this file only where the tensors are on such a device: it needs Triton.

n clients, d parameters; a program takes all n values of a few columns, so each update is read once.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from fltrust.errors import InputError

MOST_CLIENTS = 8192  # what the registers of one multiprocessor hold, eight columns wide
MOST_SORTED = 1024  # more take too long to compile and to sort


def ranked_mean(updates: Tensor, usable: Tensor, trim: int | None) -> Tensor:
    """(d,): see `fltrust.rules.rows.ranked_mean`. updates (n, d) float32, usable (n,) bool.

    The result is zero if none is usable. How many are usable is not known to the host.
    """
    n, d = updates.shape
    if n > MOST_CLIENTS:
        raise InputError(f"{n} clients; selection on the GPU takes at most {MOST_CLIENTS}")
    rows = max(16, triton.next_power_of_2(n))
    columns = max(8, min(32, 16384 // rows))
    result = torch.empty(d, device=updates.device)
    warps = max(4, rows * columns // 2048)  # 64 values per thread
    _ranked_mean[(triton.cdiv(d, columns),)](
        updates, usable.view(torch.uint8), result, n, d, updates.stride(0), -1 if trim is None else trim, rows, columns, num_warps=warps
    )
    return result


@triton.jit
def _ranked_mean(updates, usable, result, n, d, row_stride, trim, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    kept = tl.load(usable + row, row < n, 0) != 0
    count = tl.sum(kept.to(tl.int32), 0)
    half = tl.maximum(count - 1, 0) // 2
    trim = tl.where(trim < 0, half, tl.minimum(trim, half))  # the one or two values in the middle always stay
    left = count - 2 * trim

    offset = row.to(tl.int64)[:, None] * row_stride + column[None, :]
    value = tl.load(updates + offset, kept[:, None] & (column < d)[None, :], 0.0)
    key = _key(value.to(tl.int32, bitcast=True))
    key = tl.where(kept[:, None], key, 0x7FFFFFFF)  # unusable rows come last
    low, high = _of_ranks(key, trim, count - 1 - trim, COLUMNS)

    # Several clients may share the lowest or the highest value that is left: take as many of them as are left.
    between = (key > low[None, :]) & (key < high[None, :])
    at_low = tl.sum((key <= low[None, :]).to(tl.int32), 0) - trim
    at_high = left - at_low - tl.sum(between.to(tl.int32), 0)
    low_value = _key(low).to(tl.float32, bitcast=True)
    high_value = _key(high).to(tl.float32, bitcast=True)
    total = tl.sum(tl.where(between, value, 0.0), 0) + low_value * at_low + high_value * at_high
    mean = tl.where(low == high, low_value, total / tl.maximum(left, 1))
    tl.store(result + column, tl.where(count > 0, mean, 0.0), column < d)


def nearest_mean(updates: Tensor, usable: Tensor, drop: int, trim: int | None) -> Tensor:
    """(d,) float64: see `fltrust.rules.rows.nearest_mean`. updates (n, d) float32, usable (n,) bool."""
    n, d = updates.shape
    rows = max(16, triton.next_power_of_2(n))
    result = torch.empty(d, dtype=torch.float64, device=updates.device)
    columns, around = 32, -1 if trim is None else trim
    warps = max(1, rows * columns // 4096)  # 128 values per thread: all of a column, if there are no more
    grid = (triton.cdiv(d, columns),)
    _nearest_mean[grid](updates, usable.view(torch.uint8), result, n, d, updates.stride(0), drop, around, columns, rows, num_warps=warps)
    return result


@triton.jit
def _nearest_mean(updates, usable, result, n, d, row_stride, drop, trim, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    counts = tl.load(usable + row, row < n, 0) != 0
    count = tl.sum(counts.to(tl.int32), 0)
    half = tl.maximum(count - 1, 0) // 2
    trim = tl.where(trim < 0, half, tl.minimum(trim, half))
    drop = tl.minimum(drop, 2 * half)
    left = count - 2 * trim
    kept = count - drop

    offset = row.to(tl.int64)[None, :] * row_stride + column[:, None]
    value = tl.load(updates + offset, counts[None, :] & (column < d)[:, None], float("inf"))
    value = tl.sort(value)  # unusable rows come last
    place = row[None, :]
    middle = (place >= trim) & (place < count - trim)
    centre = tl.sum(tl.where(middle, value, 0.0).to(tl.float64), 1)  # `left` times the centre

    # The window moves up while the value that enters is nearer than the one that leaves: how far is found bit by bit.
    first = tl.zeros((COLUMNS,), tl.int32)
    step = ROWS // 2
    while step > 0:
        leaves = (first + step - 1)[:, None]
        low = tl.sum(tl.where(place == leaves, value, 0.0), 1).to(tl.float64)
        high = tl.sum(tl.where(place == leaves + kept, value, 0.0), 1).to(tl.float64)
        nearer = (low + high) * left < 2 * centre
        first = tl.where((first + step <= drop) & nearer, first + step, first)
        step = step // 2
    inside = (place >= first[:, None]) & (place < first[:, None] + kept)
    total = tl.sum(tl.where(inside, value, 0.0).to(tl.float64), 1)
    tl.store(result + column, tl.where(count > 0, total / tl.maximum(kept, 1), 0.0), column < d)


@triton.jit
def _key(bits):
    """The bits of floats as integers of the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _of_ranks(key, low_rank, high_rank, COLUMNS: tl.constexpr):
    """The keys of these two ranks (0 is the smallest) in each column, bit by bit: the largest that at most `rank` keys are below."""
    bit = tl.full((COLUMNS,), -0x80000000, tl.int32)
    low, high = bit, bit
    for _ in range(32):
        try_low, try_high = low ^ bit, high ^ bit
        below = tl.where(key < try_low[None, :], 1, 0) + tl.where(key < try_high[None, :], 65536, 0)
        below = tl.sum(below, 0)  # both counts in one number: sums across threads are what costs
        low = tl.where(below % 65536 <= low_rank, try_low, low)
        high = tl.where(below // 65536 <= high_rank, try_high, high)
        bit = (bit >> 1) & 0x7FFFFFFF
    return low, high
