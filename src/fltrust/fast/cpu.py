"""The rules on the CPU in numba: few reads of the (n, d) matrix, memory for a few vectors (d,) beside it.

updates    (n, d)  float32, rows one after the other in memory
direction  (d,)    float64, of norm 1 (or the root update itself, float32)

A Python thread per core runs each kernel on its part (numba lets go of the interpreter lock), as many as torch is set to use.
Inner loops run over slices from 0, four rows or 256 columns at a time, since that is what the compiler turns into vector code.
"""

import math
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Compiled = TypeVar("Compiled", bound=Callable[..., Any])
Floats = NDArray[np.float64]
Rows = NDArray[np.float32]  # (n, d)
Bits = NDArray[np.int32]
Keys = NDArray[np.int16]  # halves of 32 bits
Index = NDArray[np.int64]

_WIDTH = 512  # columns whose inner products are taken at the same time
_LANES = 256  # columns that are selected from at the same time
_SORTED = 64  # columns that are sorted at the same time: 100 clients of them stay in the first cache
MOST_SORTED = 1 << 15  # clients that `nearest_mean` takes
_LOWEST, _HIGHEST = np.int16(-32768), np.int16(32767)


def compiled(kernel: Compiled) -> Compiled:
    """Sums may be reordered, but NaN and infinity keep their meaning."""
    fast: Compiled = numba.njit(kernel, cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
    return fast


def _in_threads(work: Callable[[int, int, int], None], count: int, unit: int) -> None:
    """work(part, start, stop) for consecutive parts of range(count) that begin at multiples of `unit`, one for each thread."""
    size = -(-count // (_parts(count, unit) * unit)) * unit
    threads = [Thread(target=work, args=(start // size, start, min(start + size, count))) for start in range(size, count, size)]
    for thread in threads:
        thread.start()
    work(0, 0, min(size, count))
    for thread in threads:
        thread.join()


def _parts(count: int, unit: int) -> int:
    return min(torch.get_num_threads(), -(-count // unit))


# ---------------------------------------------------------------- rows: cosines, norms and weighted sums, four at a time


@compiled
def _sums_of_four(a: Rows, b: Rows, c: Rows, d: Rows, direction: NDArray[Any], along: Floats, squares: Floats) -> None:
    along_a = along_b = along_c = along_d = 0.0
    squares_a = squares_b = squares_c = squares_d = 0.0
    for column in range(direction.size):
        toward = np.float64(direction[column])
        value = np.float64(a[column])
        along_a += value * toward
        squares_a += value * value
        value = np.float64(b[column])
        along_b += value * toward
        squares_b += value * value
        value = np.float64(c[column])
        along_c += value * toward
        squares_c += value * value
        value = np.float64(d[column])
        along_d += value * toward
        squares_d += value * value
    along[0], along[1], along[2], along[3] = along_a, along_b, along_c, along_d
    squares[0], squares[1], squares[2], squares[3] = squares_a, squares_b, squares_c, squares_d


@compiled
def _add_four(total: Floats, updates: Rows, first: int, factor: Floats) -> None:
    """total += factor @ updates[first : first + 4]; rows of factor 0, which may hold anything, are not read."""
    some = -1
    for k in range(4):
        if factor[k] != 0:
            some = k
    if some < 0:
        return
    a = updates[first + (0 if factor[0] != 0 else some)]
    b = updates[first + (1 if factor[1] != 0 else some)]
    c = updates[first + (2 if factor[2] != 0 else some)]
    d = updates[first + (3 if factor[3] != 0 else some)]
    factor_a, factor_b, factor_c, factor_d = factor[0], factor[1], factor[2], factor[3]
    for column in range(total.size):
        total[column] += (factor_a * a[column] + factor_b * b[column]) + (factor_c * c[column] + factor_d * d[column])


@compiled
def _row_sums(updates: Rows, direction: NDArray[Any], along: Floats, squares: Floats, start: int, stop: int) -> None:
    along_four, squares_four = np.empty(4), np.empty(4)
    for first in range(start, stop, 4):
        last = stop - 1
        a, b, c, d = updates[first], updates[min(first + 1, last)], updates[min(first + 2, last)], updates[min(first + 3, last)]
        _sums_of_four(a, b, c, d, direction, along_four, squares_four)
        for k in range(min(4, stop - first)):
            along[first + k], squares[first + k] = along_four[k], squares_four[k]


@compiled
def _weighted_sum(updates: Rows, factor: Floats, total: Floats, start: int, stop: int) -> None:
    four = np.empty(4)
    for first in range(start, stop, 4):
        for k in range(4):
            four[k] = factor[first + k] if first + k < stop else 0.0
        _add_four(total, updates, first, four)


@compiled
def _trusted_sum(
    updates: Rows,
    root_update: Rows,
    root_norm: float,
    least_trust: float,
    stretch: tuple[float, float],
    trust: Floats,
    total: Floats,
    start: int,
    stop: int,
) -> None:
    """Each row is added right after it was measured, while it is still in the cache: one read from memory."""
    along, squares, factor = np.empty(4), np.empty(4), np.empty(4)
    for first in range(start, stop, 4):
        last = stop - 1
        a, b, c, d = updates[first], updates[min(first + 1, last)], updates[min(first + 2, last)], updates[min(first + 3, last)]
        _sums_of_four(a, b, c, d, root_update, along, squares)
        for k in range(4):
            factor[k] = 0.0
            if first + k < stop and 0 < squares[k] < math.inf:  # usable
                norm = math.sqrt(squares[k])
                trust[first + k] = min(max(along[k] / (norm * root_norm), least_trust), 1.0)
                factor[k] = trust[first + k] * min(max(root_norm / norm, stretch[0]), stretch[1])
        _add_four(total, updates, first, factor)


def _together(totals: Floats) -> Tensor:
    """The sum of the threads' sums (threads, ..)."""
    for total in totals[1:]:
        totals[0] += total
    return torch.from_numpy(totals[0])


def row_sums(updates: Tensor, direction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Each row's inner product with the direction and its sum of squares, both (n,) in float64."""
    n, d = updates.shape
    rows = updates.detach().numpy()
    toward = np.zeros(d) if direction is None else direction.numpy()
    along, squares = np.empty(n), np.empty(n)
    _in_threads(lambda _, start, stop: _row_sums(rows, toward, along, squares, start, stop), n, 4)
    return torch.from_numpy(along), torch.from_numpy(squares)


def weighted_sum(updates: Tensor, factor: Tensor) -> Tensor:
    """factor @ updates (d,) in float64; rows of factor 0 may hold anything."""
    n, d = updates.shape
    rows, factors, totals = updates.detach().numpy(), factor.numpy(), np.zeros((_parts(n, 4), d))
    _in_threads(lambda part, start, stop: _weighted_sum(rows, factors, totals[part], start, stop), n, 4)
    return _together(totals)


def trusted_sum(updates: Tensor, root_update: Tensor, least_trust: float, stretch: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """See `fltrust.rules.trusted_sum`."""
    n, d = updates.shape
    rows, root = updates.detach().numpy(), np.ascontiguousarray(root_update.detach().numpy())
    along, squares, trust, totals = np.empty(1), np.empty(1), np.zeros(n), np.zeros((_parts(n, 4), d))
    _row_sums(root[None], root, along, squares, 0, 1)
    if 0 < squares[0] < math.inf:  # usable
        norm = math.sqrt(squares[0])

        def work(part: int, start: int, stop: int) -> None:
            _trusted_sum(rows, root, norm, least_trust, stretch, trust, totals[part], start, stop)

        _in_threads(work, n, 4)
    return _together(totals), torch.from_numpy(trust)


# ---------------------------------------------------------------- pairs of rows: inner products, four rows by four


@compiled
def _four_by_four(rows: Floats, i: int, j: int, gram: Floats) -> None:
    """gram[i : i + 4, j : j + 4] += the inner products of these rows; the sixteen sums stay in registers."""
    a, b, c, d = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
    e, f, g, h = rows[j], rows[j + 1], rows[j + 2], rows[j + 3]
    ae = af = ag = ah = be = bf = bg = bh = ce = cf = cg = ch = de = df = dg = dh = 0.0
    for column in range(a.size):
        in_a, in_b, in_c, in_d = a[column], b[column], c[column], d[column]
        other = e[column]
        ae, be, ce, de = ae + in_a * other, be + in_b * other, ce + in_c * other, de + in_d * other
        other = f[column]
        af, bf, cf, df = af + in_a * other, bf + in_b * other, cf + in_c * other, df + in_d * other
        other = g[column]
        ag, bg, cg, dg = ag + in_a * other, bg + in_b * other, cg + in_c * other, dg + in_d * other
        other = h[column]
        ah, bh, ch, dh = ah + in_a * other, bh + in_b * other, ch + in_c * other, dh + in_d * other
    sums = ((ae, af, ag, ah), (be, bf, bg, bh), (ce, cf, cg, ch), (de, df, dg, dh))
    for k in range(4):
        for m in range(4):
            gram[i + k, j + m] += sums[k][m]


@compiled
def _gram(updates: Rows, gram: Floats, start: int, stop: int) -> None:
    n, d = updates.shape
    block = np.zeros((len(gram), _WIDTH))  # in float64, in the cache; rows of zeros fill up the last four
    for first in range(start * _WIDTH, min(stop * _WIDTH, d), _WIDTH):
        width = min(_WIDTH, d - first)
        for i in range(n):
            row, values = block[i], updates[i, first : first + width]
            for column in range(width):
                row[column] = values[column]
            row[width:] = 0
        for i in range(0, len(gram), 4):
            for j in range(0, i + 4, 4):
                _four_by_four(block, i, j, gram)


def gram(updates: Tensor) -> Tensor:
    """The inner products (n, n) of the rows in float64; above the diagonal only some are filled in."""
    n, d = updates.shape
    rows, blocks, height = updates.detach().numpy(), -(-d // _WIDTH), -(-n // 4) * 4
    grams = np.zeros((_parts(blocks, 1), height, height))
    _in_threads(lambda part, start, stop: _gram(rows, grams[part], start, stop), blocks, 1)
    return _together(grams)[:n, :n]


# ---------------------------------------------------------------- columns: the value of a rank, without sorting
#
# A float's bits, with all but the sign flipped if it is negative, are an integer (its key) in the same order. The key of a rank is
# found bit by bit: how many keys lie below a pivot says on which side the wanted one is. Keys are looked at as two halves of
# 16 bits, since twice as many of these fit into a vector.


@compiled
def _key(bits: int) -> int:
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)  # its own inverse


@compiled
def _count_below(keys: Keys, pivot: Keys, below: Keys) -> None:
    for lane in range(_LANES):
        below[lane] = 0
    for first in range(0, len(keys), 8):
        a, b, c, d = keys[first], keys[first + 1], keys[first + 2], keys[first + 3]
        e, f, g, h = keys[first + 4], keys[first + 5], keys[first + 6], keys[first + 7]
        for lane in range(_LANES):
            limit = pivot[lane]
            below[lane] += (
                np.int16(a[lane] < limit)
                + np.int16(b[lane] < limit)
                + np.int16(c[lane] < limit)
                + np.int16(d[lane] < limit)
                + np.int16(e[lane] < limit)
                + np.int16(f[lane] < limit)
                + np.int16(g[lane] < limit)
                + np.int16(h[lane] < limit)
            )


@compiled
def _select_half(keys: Keys, rank: Keys, found: Keys, under: Keys, pivot: Keys, below: Keys) -> None:
    """Per lane: found = the key of that rank, under = how many keys are smaller."""
    for lane in range(_LANES):
        found[lane], under[lane] = _LOWEST, 0
    for bit in range(15, -1, -1):
        for lane in range(_LANES):
            pivot[lane] = found[lane] + np.int16(1 << bit)  # the highest bit takes the lowest number to 0
        _count_below(keys, pivot, below)
        for lane in range(_LANES):
            higher = below[lane] <= rank[lane]
            found[lane] = pivot[lane] if higher else found[lane]
            under[lane] = below[lane] if higher else under[lane]


@compiled
def _select(high: Keys, low: Keys, rank: int, key: Bits, masked: Keys, scratch: Keys) -> None:
    """Per lane: key = the key of that rank."""
    wanted, found, under, pivot, below = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    for lane in range(_LANES):
        wanted[lane] = rank
    _select_half(high, wanted, found, under, pivot, below)
    for i in range(len(high)):
        high_row, low_row, masked_row = high[i], low[i], masked[i]
        for lane in range(_LANES):
            masked_row[lane] = low_row[lane] if high_row[lane] == found[lane] else _HIGHEST
    for lane in range(_LANES):
        wanted[lane] -= under[lane]
        key[lane] = np.int32(found[lane]) << 16
    _select_half(masked, wanted, found, under, pivot, below)
    for lane in range(_LANES):
        key[lane] |= (np.int32(found[lane]) & 0xFFFF) ^ 0x8000


@compiled
def _split(bits: Bits, usable: Index, column: int, high: Keys, low: Keys) -> None:
    for i in range(usable.size):
        row, high_row, low_row = bits[usable[i], column : column + _LANES], high[i], low[i]
        for lane in range(_LANES):
            key = _key(row[lane])
            high_row[lane] = key >> 16
            low_row[lane] = np.int16(key ^ 0x8000)  # as a signed number in the same order


@compiled
def _next_above(bits: Bits, usable: Index, column: int, rank: int, key: Bits, above: Bits) -> None:
    """Per lane: above = the key of the rank after `rank`, whose own key is given."""
    up_to = np.zeros(_LANES, np.int32)
    above[:] = 0x7FFFFFFF
    for i in range(usable.size):
        row = bits[usable[i], column : column + _LANES]
        for lane in range(_LANES):
            value = np.int32(_key(row[lane]))
            up_to[lane] += np.int32(value <= key[lane])
            above[lane] = min(above[lane], value if value > key[lane] else np.int32(0x7FFFFFFF))
    for lane in range(_LANES):
        above[lane] = key[lane] if up_to[lane] > rank + 1 else above[lane]


@compiled
def _sum_clamped(updates: Rows, usable: Index, column: int, lowest: Rows, highest: Rows, total: Floats) -> None:
    """Per lane: total = the sum of the values, those outside [lowest, highest] moved to its nearer end."""
    total[:] = 0
    for i in range(usable.size):
        row = updates[usable[i], column : column + _LANES]
        for lane in range(_LANES):
            total[lane] += np.float64(min(max(row[lane], lowest[lane]), highest[lane]))


@compiled
def _ranked_mean(updates: Rows, usable: Index, trim: int, mean: Floats, start: int, stop: int) -> None:
    count, left = usable.size, usable.size - 2 * trim
    height = -(-count // 8) * 8  # rows of the highest key fill up the last eight
    high, low = np.full((height, _LANES), _HIGHEST), np.full((height, _LANES), _HIGHEST)
    masked, scratch = np.empty((height, _LANES), np.int16), np.empty((5, _LANES), np.int16)
    lowest_key, highest_key, total = np.empty(_LANES, np.int32), np.empty(_LANES, np.int32), np.empty(_LANES)
    bits, lowest, highest = updates.view(np.int32), lowest_key.view(np.float32), highest_key.view(np.float32)
    for block in range(start, stop):
        column = min(block * _LANES, mean.size - _LANES)  # the last block overlaps the one before
        _split(bits, usable, column, high, low)
        _select(high, low, trim, lowest_key, masked, scratch)
        if left > 2:
            _select(high, low, count - 1 - trim, highest_key, masked, scratch)
        elif left == 2:
            _next_above(bits, usable, column, trim, lowest_key, highest_key)
        else:
            highest_key[:] = lowest_key
        for lane in range(_LANES):
            lowest_key[lane], highest_key[lane] = _key(lowest_key[lane]), _key(highest_key[lane])  # the bits of floats again
        if left > 2:
            _sum_clamped(updates, usable, column, lowest, highest, total)
            for lane in range(_LANES):  # each trimmed value was moved to one of the ends
                mean[column + lane] = (total[lane] - trim * (np.float64(lowest[lane]) + highest[lane])) / left
        else:
            for lane in range(_LANES):
                mean[column + lane] = (np.float64(lowest[lane]) + highest[lane]) / 2


def ranked_mean(updates: Tensor, usable: Tensor, trim: int | None) -> Tensor:
    """See `fltrust.rules.ranked_mean`."""
    d = updates.shape[1]
    index = usable.nonzero().flatten().numpy()
    half = max(0, (index.size - 1) // 2)
    drop = half if trim is None else min(trim, half)
    mean = np.zeros(max(d, _LANES))
    if index.size:
        rows = updates.detach().numpy()
        if d < _LANES:
            rows = np.pad(rows, ((0, 0), (0, _LANES - d)))
        _in_threads(lambda _, start, stop: _ranked_mean(rows, index, drop, mean, start, stop), -(-mean.size // _LANES), 1)
    return torch.from_numpy(mean[:d])


# ---------------------------------------------------------------- columns: the values nearest to the middle, by sorting
#
# Batcher's merge exchange (Knuth 5.2.2, algorithm M) compares the same pairs whatever the values, so many columns go through it at a
# time. It sorts keys, since the smaller of two integers is one vector instruction.


@compiled
def _exchange(a: Bits, b: Bits) -> None:
    for lane in range(_SORTED):
        one, other = a[lane], b[lane]
        a[lane], b[lane] = min(one, other), max(one, other)


@compiled
def _sort(keys: Bits) -> None:
    """Sorts each column of (n, lanes)."""
    n, top = len(keys), 1
    while 2 * top < n:
        top *= 2
    length = top
    while length > 0:
        gap, rest, reach = length, 0, top
        while True:
            for i in range(n - gap):
                if i & length == rest:
                    _exchange(keys[i], keys[i + gap])
            if reach == length:
                break
            gap, rest, reach = reach - length, length, reach >> 1
        length >>= 1


@compiled
def _nearest_mean(updates: Rows, usable: Index, drop: int, trim: int, mean: Floats, start: int, stop: int) -> None:
    count, left, kept = usable.size, usable.size - 2 * trim, usable.size - drop
    keys = np.empty((count, _SORTED), np.int32)
    bits, values = updates.view(np.int32), keys.view(np.float32)
    centre, total, first = np.empty(_SORTED), np.empty(_SORTED), np.empty(_SORTED, np.int32)
    for block in range(start, stop):
        column = min(block * _SORTED, mean.size - _SORTED)  # the last block overlaps the one before
        for i in range(count):
            row, into = bits[usable[i], column : column + _SORTED], keys[i]
            for lane in range(_SORTED):
                into[lane] = _key(row[lane])
        _sort(keys)
        for i in range(count):
            into = keys[i]
            for lane in range(_SORTED):
                into[lane] = _key(into[lane])  # the bits of floats again
        centre[:], total[:], first[:] = 0, 0, 0
        for i in range(trim, count - trim):
            row = values[i]
            for lane in range(_SORTED):
                centre[lane] += np.float64(row[lane])  # `left` times the centre
        for i in range(drop):  # the window moves up while the value that enters is nearer than the one that leaves
            low, high = values[i], values[i + kept]
            for lane in range(_SORTED):
                first[lane] += np.int32((np.float64(low[lane]) + np.float64(high[lane])) * left < 2 * centre[lane])
        for i in range(count):
            row = values[i]
            for lane in range(_SORTED):
                inside = first[lane] <= i < first[lane] + kept
                total[lane] += np.float64(row[lane]) if inside else 0.0
        for lane in range(_SORTED):
            mean[column + lane] = total[lane] / kept


def nearest_mean(updates: Tensor, usable: Tensor, drop: int, trim: int | None) -> Tensor:
    """See `fltrust.rules.rows.nearest_mean`."""
    d = updates.shape[1]
    index = usable.nonzero().flatten().numpy()
    half = max(0, (index.size - 1) // 2)
    around, leaving = half if trim is None else min(trim, half), min(drop, 2 * half)
    mean = np.zeros(max(d, _SORTED))
    if index.size:
        rows = updates.detach().numpy()
        if d < _SORTED:
            rows = np.pad(rows, ((0, 0), (0, _SORTED - d)))
        _in_threads(lambda _, start, stop: _nearest_mean(rows, index, leaving, around, mean, start, stop), -(-mean.size // _SORTED), 1)
    return torch.from_numpy(mean[:d])
