"""Ranks of columns on the CPU in numba: medians, trimmed means and their kin. See `cpu.py`."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrust.fast.cpu_sort import LANES, Values, first_run, room, sort
from fltrust.fast.kernels import Floats, Rows, compiled, in_threads

Index = NDArray[np.int64]

_TILES = 8  # of columns that are copied at the same time: shorter reads of each row would wait for memory
MOST_SORTED = 1 << 15  # clients that `nearest_mean` takes


@compiled
def _gather(updates: Rows, usable: Index, first: int, stop: int, tiles: Values) -> None:
    """Copies tiles of LANES columns; the last one of all overlaps the one before."""
    last, wide = updates.shape[1] - LANES, min(LANES, updates.shape[1])  # a width known now would be unrolled into single values
    for i in range(usable.size):
        row, into = usable[i], np.uint64(i * LANES)
        for tile in range(first, stop):
            column, place = np.uint64(min(tile * LANES, last)), np.uint64(tile - first)
            for lane in range(np.uint64(wide)):
                tiles[place, into + lane] = updates[row, column + lane]


# ---------------------------------------------------------------- the mean between two ranks
#
# Of two sorted runs A and B, the k + 1 smallest values are min(A[i], B[k - i]), i = 0 .. k: for each i, one of the two has at least
# k + 1 values not above it before the other is reached. So the value of rank k is the largest of these, and the runs need no merging.


@compiled
def _ends(values: Values, count: int, trim: int, lowest: Values, highest: Values) -> None:
    """Per lane: the smallest and the largest value that are left when `trim` are taken away at each end."""
    run = first_run(count)  # more rows than `trim`
    pairs = min(trim + 1, count - run)  # the other values of the first run have no partner
    low, high = np.full(2 * LANES, np.float32(-np.inf)), np.full(2 * LANES, np.float32(np.inf))
    for lane in range(LANES):
        if pairs <= trim:
            low[lane], high[lane] = values[(trim - pairs) * LANES + lane], values[(run - 1 - trim + pairs) * LANES + lane]
    for j in range(pairs):
        now, then = np.uint64(j % 2 * LANES), np.uint64((j + 1) % 2 * LANES)  # in place, it would wait for its own last store
        one, other = np.uint64((trim - j) * LANES), np.uint64((run + j) * LANES)
        for lane in range(np.uint64(LANES)):
            low[then + lane] = max(low[now + lane], min(values[one + lane], values[other + lane]))
        one, other = np.uint64((run - 1 - trim + j) * LANES), np.uint64((count - 1 - j) * LANES)
        for lane in range(np.uint64(LANES)):
            high[then + lane] = min(high[now + lane], max(values[one + lane], values[other + lane]))
    last = pairs % 2 * LANES
    lowest[:], highest[:] = low[last : last + LANES], high[last : last + LANES]


@compiled
def _sum_clamped(values: Values, count: int, lowest: Values, highest: Values, total: Floats) -> None:
    """Per lane: total = the sum of the values, those outside [lowest, highest] moved to its nearer end."""
    total[:] = 0
    for i in range(count):
        row = np.uint64(i * LANES)
        for lane in range(np.uint64(LANES)):
            total[lane] += np.float64(min(max(values[row + lane], lowest[lane]), highest[lane]))


@compiled
def _ranked_mean(updates: Rows, usable: Index, trim: int, mean: Floats, start: int, stop: int) -> None:
    count, left = usable.size, usable.size - 2 * trim
    tiles, total = room(_TILES, count), np.empty(LANES)
    lowest, highest = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    for first in range(start, stop, _TILES):
        _gather(updates, usable, first, min(first + _TILES, stop), tiles)
        for tile in range(first, min(first + _TILES, stop)):
            values, column = tiles[tile - first], min(tile * LANES, mean.size - LANES)
            sort(values, count, 2)
            _ends(values, count, trim, lowest, highest)
            if left > 2:
                _sum_clamped(values, count, lowest, highest, total)
                for lane in range(LANES):  # each trimmed value was moved to one of the ends
                    mean[column + lane] = (total[lane] - trim * (np.float64(lowest[lane]) + highest[lane])) / left
            else:
                for lane in range(LANES):
                    mean[column + lane] = (np.float64(lowest[lane]) + highest[lane]) / 2


def ranked_mean(updates: Tensor, usable: Tensor, trim: int | None) -> Tensor:
    """See `fltrust.rules.ranked_mean`."""
    index, half = _index(usable)
    drop = half if trim is None else min(trim, half)
    return _by_column(updates, index, lambda rows, mean, start, stop: _ranked_mean(rows, index, drop, mean, start, stop))


# ---------------------------------------------------------------- the mean of the values nearest to the middle


@compiled
def _mean_of_nearest(rows: Rows, drop: int, trim: int, centre: Floats, total: Floats, first: NDArray[np.int32]) -> None:
    """Per lane: total = the mean of the values (count, LANES) without the `drop` farthest from the centre."""
    count, left, kept = len(rows), len(rows) - 2 * trim, len(rows) - drop
    centre[:], total[:], first[:] = 0, 0, 0
    for i in range(trim, count - trim):
        row = rows[i]
        for lane in range(LANES):
            centre[lane] += np.float64(row[lane])  # `left` times the centre
    for i in range(drop):  # the window moves up while the value that enters is nearer than the one that leaves
        low, high = rows[i], rows[i + kept]
        for lane in range(LANES):
            first[lane] += np.int32((np.float64(low[lane]) + np.float64(high[lane])) * left < 2 * centre[lane])
    for i in range(count):
        row = rows[i]
        for lane in range(LANES):
            inside = first[lane] <= i < first[lane] + kept
            total[lane] += np.float64(row[lane]) if inside else 0.0
    total /= kept


@compiled
def _nearest_mean(updates: Rows, usable: Index, drop: int, trim: int, mean: Floats, start: int, stop: int) -> None:
    count, tiles = usable.size, room(_TILES, usable.size)
    centre, total, lowest = np.empty(LANES), np.empty(LANES), np.empty(LANES, np.int32)
    for first in range(start, stop, _TILES):
        _gather(updates, usable, first, min(first + _TILES, stop), tiles)
        for tile in range(first, min(first + _TILES, stop)):
            values, column = tiles[tile - first], min(tile * LANES, mean.size - LANES)
            sort(values, count, 1)
            _mean_of_nearest(values[: count * LANES].reshape(count, LANES), drop, trim, centre, total, lowest)
            mean[column : column + LANES] = total


def nearest_mean(updates: Tensor, usable: Tensor, drop: int, trim: int | None) -> Tensor:
    """See `fltrust.rules.rows.nearest_mean`."""
    index, half = _index(usable)
    around, leaving = half if trim is None else min(trim, half), min(drop, 2 * half)
    return _by_column(updates, index, lambda rows, mean, start, stop: _nearest_mean(rows, index, leaving, around, mean, start, stop))


def _index(usable: Tensor) -> tuple[Index, int]:
    """The usable rows, and how many of their values may go at each end so that one or two stay."""
    index = usable.nonzero().flatten().numpy()
    return index, max(0, (index.size - 1) // 2)


def _by_column(updates: Tensor, index: Index, work: Callable[[Rows, Floats, int, int], None]) -> Tensor:
    """(d,): work(rows, mean, start, stop) fills in the mean of some blocks of LANES columns; 0 if no row is usable."""
    d = updates.shape[1]
    mean = np.zeros(max(d, LANES))
    if index.size:
        rows = updates.detach().numpy()
        if d < LANES:
            rows = np.pad(rows, ((0, 0), (0, LANES - d)))
        in_threads(lambda _, start, stop: work(rows, mean, start, stop), -(-mean.size // LANES), _TILES)
    return torch.from_numpy(mean[:d])
