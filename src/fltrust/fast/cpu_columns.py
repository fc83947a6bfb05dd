"""Ranks of columns on the CPU in numba: medians, trimmed means and their kin. See `cpu.py`."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrust.fast.kernels import Floats, Rows, compiled, in_threads

Bits = NDArray[np.int32]
Keys = NDArray[np.int16]  # halves of 32 bits
Index = NDArray[np.int64]

_LANES = 128  # columns that are selected from at the same time: a half of the keys of 100 clients stays in the first cache
_SORTED = 64  # columns that are sorted at the same time: 100 clients of them stay in the first cache
MOST_SORTED = 1 << 15  # clients that `nearest_mean` takes
_LOWEST, _HIGHEST = np.int16(-32768), np.int16(32767)

# ---------------------------------------------------------------- columns: the value of a rank, without sorting
#
# A float's bits, with all but the sign flipped if it is negative, are an integer (its key) in the same order. The key of a rank is
# found bit by bit: how many keys lie below a pivot says on which side the wanted one is. Keys are looked at as two halves of
# 16 bits, since twice as many of these fit into a vector. Inner loops take no views of rows, which numba would count references of,
# and unsigned columns, which it need not check: either would cost more than the loops.


@compiled
def _key(bits: int) -> int:
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)  # its own inverse


@compiled
def _count_below(keys: Keys, pivot: Keys, below: Keys) -> None:
    for lane in range(_LANES):
        below[lane] = 0
    for i in range(0, len(keys), 8):
        for lane in range(_LANES):
            limit = pivot[lane]
            below[lane] += (
                np.int16(keys[i, lane] < limit)
                + np.int16(keys[i + 1, lane] < limit)
                + np.int16(keys[i + 2, lane] < limit)
                + np.int16(keys[i + 3, lane] < limit)
                + np.int16(keys[i + 4, lane] < limit)
                + np.int16(keys[i + 5, lane] < limit)
                + np.int16(keys[i + 6, lane] < limit)
                + np.int16(keys[i + 7, lane] < limit)
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
def _first_or_last(high: Keys, low: Keys, found: Keys, wanted: Keys, key: Bits, scratch: Keys) -> bool:
    """Whether, in each lane, the key wanted is the smallest or the largest of those whose high half was found; then `key` is it."""
    least, most, count = scratch[3], scratch[4], scratch[5]
    for lane in range(_LANES):
        least[lane], most[lane], count[lane] = _HIGHEST, _LOWEST, 0
    for i in range(len(high)):
        for lane in range(_LANES):
            same, value = high[i, lane] == found[lane], low[i, lane]
            least[lane] = min(least[lane], value if same else _HIGHEST)
            most[lane] = max(most[lane], value if same else _LOWEST)
            count[lane] += np.int16(same)
    between = 0
    for lane in range(_LANES):
        half = least[lane] if wanted[lane] == 0 else most[lane]
        key[lane] = (np.int32(found[lane]) << 16) | ((np.int32(half) & 0xFFFF) ^ 0x8000)
        between += (wanted[lane] != 0) & (wanted[lane] != count[lane] - 1)
    return between == 0


@compiled
def _select(high: Keys, low: Keys, rank: int, key: Bits, masked: Keys, scratch: Keys) -> None:
    """Per lane: key = the key of that rank."""
    wanted, found, under, pivot, below = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    for lane in range(_LANES):
        wanted[lane] = rank
    _select_half(high, wanted, found, under, pivot, below)
    for lane in range(_LANES):
        wanted[lane] -= under[lane]
    if _first_or_last(high, low, found, wanted, key, scratch):  # so it is nearly always: few values share a high half
        return
    for i in range(len(high)):
        for lane in range(_LANES):
            masked[i, lane] = low[i, lane] if high[i, lane] == found[lane] else _HIGHEST
    for lane in range(_LANES):
        key[lane] = np.int32(found[lane]) << 16
    _select_half(masked, wanted, found, under, pivot, below)
    for lane in range(_LANES):
        key[lane] |= (np.int32(found[lane]) & 0xFFFF) ^ 0x8000


@compiled
def _split(bits: Bits, usable: Index, column: np.uint64, high: Keys, low: Keys) -> None:
    for i in range(usable.size):
        row = usable[i]
        for lane in range(np.uint64(_LANES)):
            key = _key(bits[row, column + lane])
            high[i, lane] = key >> 16
            low[i, lane] = np.int16(key ^ 0x8000)  # as a signed number in the same order


@compiled
def _next_above(high: Keys, low: Keys, rank: int, key: Bits, above: Bits, scratch: Keys) -> None:
    """Per lane: above = the key of the rank after `rank`, whose own key is given."""
    half, rest, up_to, least, lowest = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    for lane in range(_LANES):
        half[lane], rest[lane] = key[lane] >> 16, np.int16(key[lane] ^ 0x8000)
        up_to[lane], least[lane], lowest[lane] = 0, _HIGHEST, _HIGHEST
    for i in range(len(high)):
        for lane in range(_LANES):
            greater = (high[i, lane] > half[lane]) | ((high[i, lane] == half[lane]) & (low[i, lane] > rest[lane]))
            up_to[lane] += np.int16(not greater)
            least[lane] = min(least[lane], high[i, lane] if greater else _HIGHEST)
    for i in range(len(high)):
        for lane in range(_LANES):
            greater = (high[i, lane] > half[lane]) | ((high[i, lane] == half[lane]) & (low[i, lane] > rest[lane]))
            lowest[lane] = min(lowest[lane], low[i, lane] if greater & (high[i, lane] == least[lane]) else _HIGHEST)
    for lane in range(_LANES):
        after = (np.int32(least[lane]) << 16) | ((np.int32(lowest[lane]) & 0xFFFF) ^ 0x8000)
        above[lane] = key[lane] if up_to[lane] > rank + 1 else after


@compiled
def _sum_clamped(updates: Rows, usable: Index, column: np.uint64, lowest: Rows, highest: Rows, total: Floats) -> None:
    """Per lane: total = the sum of the values, those outside [lowest, highest] moved to its nearer end."""
    total[:] = 0
    for i in range(usable.size):
        row = usable[i]
        for lane in range(np.uint64(_LANES)):
            total[lane] += np.float64(min(max(updates[row, column + lane], lowest[lane]), highest[lane]))


@compiled
def _ranked_mean(updates: Rows, usable: Index, trim: int, mean: Floats, start: int, stop: int) -> None:
    count, left = usable.size, usable.size - 2 * trim
    height = -(-count // 8) * 8  # rows of the highest key fill up the last eight
    high, low = np.full((height, _LANES), _HIGHEST), np.full((height, _LANES), _HIGHEST)
    masked, scratch = np.empty((height, _LANES), np.int16), np.empty((6, _LANES), np.int16)
    lowest_key, highest_key, total = np.empty(_LANES, np.int32), np.empty(_LANES, np.int32), np.empty(_LANES)
    bits, lowest, highest = updates.view(np.int32), lowest_key.view(np.float32), highest_key.view(np.float32)
    for block in range(start, stop):
        column = min(block * _LANES, mean.size - _LANES)  # the last block overlaps the one before
        _split(bits, usable, np.uint64(column), high, low)
        _select(high, low, trim, lowest_key, masked, scratch)
        if left > 2:
            _select(high, low, count - 1 - trim, highest_key, masked, scratch)
        elif left == 2:
            _next_above(high, low, trim, lowest_key, highest_key, scratch)
        else:
            highest_key[:] = lowest_key
        for lane in range(_LANES):
            lowest_key[lane], highest_key[lane] = _key(lowest_key[lane]), _key(highest_key[lane])  # the bits of floats again
        if left > 2:
            _sum_clamped(updates, usable, np.uint64(column), lowest, highest, total)
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
