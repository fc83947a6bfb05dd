"""Ranks of columns on the CPU in numba: medians, trimmed means and their kin. See `cpu.py`."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrust.fast.kernels import Floats, Rows, compiled, in_threads

Bits = NDArray[np.int32]
Keys = NDArray[np.int16]  # halves of 32 bits
Index = NDArray[np.int64]

_LANES = 256  # columns that are selected from at the same time
_SORTED = 64  # columns that are sorted at the same time: 100 clients of them stay in the first cache
MOST_SORTED = 1 << 15  # clients that `nearest_mean` takes
_LOWEST, _HIGHEST = np.int16(-32768), np.int16(32767)

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
        in_threads(lambda _, start, stop: _ranked_mean(rows, index, drop, mean, start, stop), -(-mean.size // _LANES), 1)
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
        in_threads(lambda _, start, stop: _nearest_mean(rows, index, leaving, around, mean, start, stop), -(-mean.size // _SORTED), 1)
    return torch.from_numpy(mean[:d])
