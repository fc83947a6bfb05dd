"""Ranks of columns on the CPU in numba: medians, trimmed means and their kin. See `cpu.py`.

Networks sort many columns at a time: they compare the same pairs of rows whatever the values. A tile is LANES columns of all rows.

values  (16 groups * LANES,)  float32: a tile, row after row; rows of the largest number fill up the last group and stay its last
wrong   (LANES,)              float32: 0, and NaN once a value of the column was not finite

The sorter stays in this file: numba does not notice that compiled code is out of date if what it calls changes in another.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import get_item_pointer
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from fltrust.fast.kernels import Floats, Rows, compiled, in_threads, some_zero

Index = NDArray[np.int64]
Values = NDArray[np.float32]  # flat: numba would count references of views of rows
Pairs = list[tuple[int, int]]

LANES = 48  # columns: 100 clients of them stay in the first cache, where groups of rows 4 KB apart would be in each other's way
GROUP = 16  # rows: as many values as every processor has registers for
_SIZE = GROUP * LANES
_AHEAD = 4  # tiles: so early memory is asked for the values of a tile, else each row would wait for them
_LARGEST = np.finfo(np.float32).max
MOST_SORTED = 1 << 15  # clients that `nearest_mean` takes

# ---------------------------------------------------------------- sorting
#
# Batcher's merge exchange (Knuth 5.2.2, algorithm M) sorts a group of rows, and bitonic merging makes longer runs of sorted groups.
# Both are straight-line code on 16 values, which stay in registers for as many columns as a vector holds.


def merge_exchange() -> Pairs:
    """Sorts a group."""
    pairs, length = [], GROUP // 2
    while length > 0:
        gap, rest, reach = length, 0, GROUP // 2
        while gap > 0:
            pairs += [(i, i + gap) for i in range(GROUP - gap) if i & length == rest]
            gap, rest, reach = reach - length, length, reach // 2
        length //= 2
    return pairs


def bitonic_merge() -> Pairs:
    """Sorts a group that rises and then falls, or the other way round."""
    return [(i, i + gap) for gap in (8, 4, 2, 1) for i in range(GROUP) if i & gap == 0]


def _network(name: str, arguments: str, pairs: Pairs, before: str = "pass") -> Callable[..., Any]:
    """A kernel that puts these pairs of a group's rows x0 .. x15 in order, one after the other. Numba needs it as source."""
    lines = [f"def {name}({arguments}):", f"    start = uint64(group * {_SIZE})", f"    for lane in range(uint64({LANES})):"]
    lines += [f"        x{i} = values[start + lane + uint64({i * LANES})]" for i in range(GROUP)]
    lines += [f"        {before}"]
    lines += [f"        x{i}, x{j} = min(x{i}, x{j}), max(x{i}, x{j})" for i, j in pairs]
    lines += [f"        values[start + lane + uint64({i * LANES})] = x{i}" for i in range(GROUP)]
    names: dict[str, Any] = {"__name__": __name__, "uint64": np.uint64, "float32": np.float32}
    exec(compile("\n".join(lines), __file__, "exec"), names)  # as part of this file: numba keeps compiled code next to it
    network: Callable[..., Any] = compiled(names[name], {"contract", "nsz"})
    return network


_CHECK = "wrong[lane] += " + " + ".join(f"x{i} * float32(0)" for i in range(GROUP))  # each by itself, in this order: sums may overflow
_sort_group = _network("_sort_group", "values, wrong, group", merge_exchange(), before=_CHECK)
_merge_group = _network("_merge_group", "values, group", bitonic_merge())


@compiled
def _order(values: Values, first: int, second: int, count: int) -> None:
    """The smaller of each pair goes to the first place."""
    one, other = np.uint64(first), np.uint64(second)  # numba would ask each time whether a signed index is negative
    for k in range(np.uint64(count)):
        a, b = values[one + k], values[other + k]
        values[one + k], values[other + k] = min(a, b), max(a, b)


@compiled
def _order_four(values: Values, first: int, gap: int) -> None:
    """Two stages of merging at a time, on four groups: half the traffic."""
    one, two, three, four = np.uint64(first), np.uint64(first + gap), np.uint64(first + 2 * gap), np.uint64(first + 3 * gap)
    for k in range(np.uint64(_SIZE)):
        a, b, c, d = values[one + k], values[two + k], values[three + k], values[four + k]
        a, c, b, d = min(a, c), max(a, c), min(b, d), max(b, d)
        values[one + k], values[two + k], values[three + k], values[four + k] = min(a, b), max(a, b), min(c, d), max(c, d)


@compiled
def _merge(values: Values, first: int, size: int, end: int) -> None:
    """Merges the sorted run of `size` groups from `first` on with the one after it, which ends before the group `end`."""
    for group in range(first + size, end):  # the highest rows of the first run with the lowest of the second
        mirror = 2 * (first + size) - 1 - group
        for row in range(GROUP):
            _order(values, mirror * _SIZE + (GROUP - 1 - row) * LANES, group * _SIZE + row * LANES, LANES)
    gap = size // 2
    while gap > 1:
        for group in range(first, end - gap // 2):
            if (group - first) & (gap + gap // 2) == 0:
                _order_four(values, group * _SIZE, gap // 2 * _SIZE)
        gap //= 4
    if gap == 1:
        for group in range(first, end - 1, 2):
            _order(values, group * _SIZE, (group + 1) * _SIZE, _SIZE)
    for group in range(first, end):
        _merge_group(values, group)


@compiled
def room(count: int) -> Values:
    """(rows * LANES,) of the largest number: `count` rows, and on to the next power of two.

    Each row begins with a cache line, so that no vector lies in two of them.
    """
    rows = GROUP
    while rows < count:
        rows *= 2
    values = np.full(rows * LANES + 16, _LARGEST)
    first = -(values.ctypes.data // 4) % 16
    return values[first : first + rows * LANES]


@compiled
def first_run(count: int) -> int:
    """How many rows the first of two runs has."""
    size = GROUP
    while 2 * size < count:
        size *= 2
    return min(size, count)


def _prefetch(context: Any, updates: Any, row: Any, column: Any) -> Any:
    """Has the cache line of updates[row, column] brought into the second cache; nothing waits for it. Numba needs it as LLVM's code."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind, (array, *place), number = signature.args[0], values, ir.IntType(32)
        item = get_item_pointer(context, builder, kind, context.make_array(kind)(context, builder, array), place)  # type: ignore[no-untyped-call]
        address = builder.bitcast(item, ir.IntType(8).as_pointer())
        takes = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], takes)
        builder.call(prefetch, [address, number(0), number(2), number(1)])  # to read it, into the second cache, as data
        return context.get_dummy_value()

    return types.void(updates, types.uint64, types.uint64), emit


_ask_for: Any = intrinsic(_prefetch)


@compiled
def _gather(updates: Rows, usable: Index, group: int, column: int, values: Values) -> None:
    """Copies a group's rows of the tile that begins with this column, and asks memory for those of a later tile."""
    wide = np.uint64(min(LANES, updates.shape[1]))  # a width known now would be unrolled into single values
    begin, later = np.uint64(column), np.uint64(min(column + _AHEAD * LANES, updates.shape[1] - LANES))
    for i in range(group * GROUP, min(group * GROUP + GROUP, usable.size)):
        row, into = np.uint64(usable[i]), np.uint64(i * LANES)
        for line in range(0, LANES, 16):
            _ask_for(updates, row, later + np.uint64(line))
        for lane in range(wide):
            values[into + lane] = updates[row, begin + lane]


@compiled
def sort(updates: Rows, usable: Index, column: int, values: Values, wrong: Values, runs: int) -> None:
    """Fetches a tile and sorts each of its columns, or leaves `runs` = 2 sorted runs: the last step is a large part of the work."""
    groups = -(-usable.size // GROUP)
    for group in range(groups):
        _gather(updates, usable, group, column, values)
        _sort_group(values, wrong, group)
        size = 1
        while runs * size < groups and ((group + 1) % (2 * size) == 0 or group + 1 == groups):  # merge while it is in the cache
            first = group // (2 * size) * 2 * size
            if first + size <= group:
                _merge(values, first, size, group + 1)
            size *= 2


# ---------------------------------------------------------------- the mean between two ranks
#
# The k + 1 smallest values of two sorted runs A and B are min(A[i], B[k - i]), i = 0 .. k: if they are the first m of A and the first
# k + 1 - m of B, exactly one of each pair is among them. So the largest of these has rank k, and the runs need no merging.
# The other one of each pair stays. If A is so long that none of its values is in a pair at both ends, what stays is known pair by pair.


@compiled
def _ends(values: Values, count: int, trim: int, ends: Values) -> None:
    """Per lane: the first rows of `ends` are the smallest and the largest value left when `trim` are taken away at each end.

    ends (4 * LANES,) has room for another two: in place, each step would wait for the last one's stores.
    """
    top = np.uint64(LANES)
    run = first_run(count)  # more rows than `trim`
    pairs = min(trim + 1, count - run)  # the other values of the first run have no partner
    then = np.uint64(pairs % 2 * 2 * LANES)
    for lane in range(np.uint64(LANES)):
        ends[then + lane], ends[then + top + lane] = np.float32(-np.inf), np.float32(np.inf)
    if pairs <= trim:
        one, other = np.uint64((trim - pairs) * LANES), np.uint64((run - 1 - trim + pairs) * LANES)
        for lane in range(np.uint64(LANES)):
            ends[then + lane], ends[then + top + lane] = values[one + lane], values[other + lane]
    for j in range(pairs - 1, -1, -1):
        now, then = np.uint64((j + 1) % 2 * 2 * LANES), np.uint64(j % 2 * 2 * LANES)
        one, other = np.uint64((trim - j) * LANES), np.uint64((run + j) * LANES)
        if count == 2 * trim + 2:  # the same pairs give both
            for lane in range(np.uint64(LANES)):
                a, b = values[one + lane], values[other + lane]
                ends[then + lane], ends[then + top + lane] = max(ends[now + lane], min(a, b)), min(ends[now + top + lane], max(a, b))
        else:
            for lane in range(np.uint64(LANES)):
                ends[then + lane] = max(ends[now + lane], min(values[one + lane], values[other + lane]))
            one, other = np.uint64((run - 1 - trim + j) * LANES), np.uint64((count - 1 - j) * LANES)
            for lane in range(np.uint64(LANES)):
                ends[then + top + lane] = min(ends[now + top + lane], max(values[one + lane], values[other + lane]))


@compiled
def _sum_kept(values: Values, count: int, trim: int, total: Floats) -> None:
    """Per lane: total = the sum of what is left when `trim` are taken away at each end; 2 trim <= rows of the first run.

    Each value of the second run gives its place to the one that stays, if it is in a pair.
    """
    run, end = first_run(count), count - first_run(count) - trim
    for j in range(count - run):
        if j < trim:
            _order(values, (trim - 1 - j) * LANES, (run + j) * LANES, LANES)
        if j >= end:
            _order(values, (run + j) * LANES, (run - 1 - j + end) * LANES, LANES)
    total[:] = 0
    _add_rows(values, trim, run - trim, total)
    _add_rows(values, run, count, total)


@compiled
def _add_rows(values: Values, first: int, last: int, total: Floats) -> None:
    """Per lane: total += the sum of the rows from the first to the one before the last."""
    fours = first + (last - first) // 4 * 4
    for row in range(first, fours, 4):  # so that the total is read and written once for four rows
        a, b, c, d = np.uint64(row * LANES), np.uint64((row + 1) * LANES), np.uint64((row + 2) * LANES), np.uint64((row + 3) * LANES)
        for lane in range(np.uint64(LANES)):
            one = np.float64(values[a + lane]) + np.float64(values[b + lane])
            other = np.float64(values[c + lane]) + np.float64(values[d + lane])
            total[lane] += one + other
    for row in range(fours, last):
        a = np.uint64(row * LANES)
        for lane in range(np.uint64(LANES)):
            total[lane] += np.float64(values[a + lane])


@compiled
def _sum_clamped(values: Values, count: int, lowest: Values, highest: Values, total: Floats) -> None:
    """Per lane: total = the sum of the values, those outside [lowest, highest] moved to its nearer end."""
    total[:] = 0
    for i in range(count):
        row = np.uint64(i * LANES)
        for lane in range(np.uint64(LANES)):
            total[lane] += np.float64(min(max(values[row + lane], lowest[lane]), highest[lane]))


@compiled
def _ranked_mean(updates: Rows, usable: Index, trim: int, mean: Floats, start: int, stop: int) -> float:
    count, left = usable.size, usable.size - 2 * trim
    values, total = room(count), room(GROUP)[: 2 * LANES].view(np.float64)
    ends = room(GROUP)[: 4 * LANES]
    lowest, highest = ends[:LANES], ends[LANES : 2 * LANES]
    wrong = np.zeros(LANES, np.float32)
    pairwise = 2 * trim <= first_run(count)
    for tile in range(start, stop):
        column = min(tile * LANES, mean.size - LANES)
        sort(updates, usable, column, values, wrong, 2)
        if pairwise:
            _sum_kept(values, count, trim, total)
            for lane in range(LANES):
                mean[column + lane] = total[lane] / left
            continue
        _ends(values, count, trim, ends)
        if left > 2:
            _sum_clamped(values, count, lowest, highest, total)
            for lane in range(LANES):  # each trimmed value was moved to one of the ends
                mean[column + lane] = (total[lane] - trim * (np.float64(lowest[lane]) + highest[lane])) / left
        else:
            for lane in range(LANES):
                mean[column + lane] = (np.float64(lowest[lane]) + highest[lane]) / 2
    return float(wrong.sum())


def ranked_mean(updates: Tensor, usable: Tensor, trim: int | None) -> Tensor:
    """See `fltrust.rules.rows.ranked_mean`."""
    return _ranked(updates, usable.nonzero().flatten().numpy(), trim)[0]


def ranked_mean_if_usable(updates: Tensor, trim: int | None) -> Tensor | None:
    """The `ranked_mean` of all rows; None if one of them is not usable."""
    every = np.arange(len(updates))
    if some_zero(updates.detach().numpy(), every):
        return None
    mean, finite = _ranked(updates, every, trim)
    return mean if finite else None


def _ranked(updates: Tensor, index: Index, trim: int | None) -> tuple[Tensor, bool]:
    half = _half(index)
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
def _nearest_mean(updates: Rows, usable: Index, drop: int, trim: int, mean: Floats, start: int, stop: int) -> float:
    count, values = usable.size, room(usable.size)
    centre, total, lowest = np.empty(LANES), np.empty(LANES), np.empty(LANES, np.int32)
    wrong = np.zeros(LANES, np.float32)
    for tile in range(start, stop):
        column = min(tile * LANES, mean.size - LANES)
        sort(updates, usable, column, values, wrong, 1)
        _mean_of_nearest(values[: count * LANES].reshape(count, LANES), drop, trim, centre, total, lowest)
        mean[column : column + LANES] = total
    return float(wrong.sum())


def nearest_mean(updates: Tensor, usable: Tensor, drop: int, trim: int | None) -> Tensor:
    """See `fltrust.rules.rows.nearest_mean`."""
    index = usable.nonzero().flatten().numpy()
    half = _half(index)
    around, leaving = half if trim is None else min(trim, half), min(drop, 2 * half)
    return _by_column(updates, index, lambda rows, mean, start, stop: _nearest_mean(rows, index, leaving, around, mean, start, stop))[0]


def _half(index: Index) -> int:
    """How many values may go at each end so that one or two stay."""
    return max(0, (index.size - 1) // 2)


def _by_column(updates: Tensor, index: Index, work: Callable[[Rows, Floats, int, int], float]) -> tuple[Tensor, bool]:
    """work(rows, mean, start, stop) fills in the mean (d,) of some tiles of columns; 0 without rows. And whether all values are finite."""
    d = updates.shape[1]
    mean, wrong = np.zeros(max(d, LANES)), np.zeros(torch.get_num_threads())
    if index.size:
        rows = updates.detach().numpy()
        if d < LANES:
            rows = np.pad(rows, ((0, 0), (0, LANES - d)))

        def part(part: int, start: int, stop: int) -> None:
            wrong[part] = work(rows, mean, start, stop)

        in_threads(part, -(-mean.size // LANES), 1)
    return torch.from_numpy(mean[:d]), not wrong.any()  # NaN is not 0
