"""Sorts columns on the CPU in numba, many at a time: networks compare the same pairs of rows whatever the values.

Rows come in groups of 16. Batcher's merge exchange (Knuth 5.2.2, algorithm M) sorts a group, and bitonic merging makes longer runs of
sorted ones. Both are straight-line code on 16 values, which stay in registers for as many columns as a vector holds.

values  (16 groups, LANES)  float32, no NaN; rows of infinity fill up the last group and stay its last
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fltrust.fast.kernels import compiled

Values = NDArray[np.float32]  # flat: numba would count references of views of rows
Pairs = list[tuple[int, int]]

LANES = 48  # columns that are sorted at the same time: 100 clients of them stay in the first cache; groups 4 KB apart would collide in it
GROUP = 16  # rows: as many values as registers hold, whatever the processor
_SIZE = GROUP * LANES


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


def _network(name: str, pairs: Pairs) -> Callable[..., Any]:
    """name(values, group): puts these pairs of the group's rows in order, one after the other. Written as source, which numba needs."""
    lines = [
        f"def {name}(values, group):",
        f"    start = uint64(group * {_SIZE})",
        f"    for lane in range(start, start + uint64({LANES})):",
    ]
    lines += [f"        x{i} = values[lane + uint64({i * LANES})]" for i in range(GROUP)]
    lines += [f"        x{i}, x{j} = min(x{i}, x{j}), max(x{i}, x{j})" for i, j in pairs]
    lines += [f"        values[lane + uint64({i * LANES})] = x{i}" for i in range(GROUP)]
    names: dict[str, Any] = {"__name__": __name__, "uint64": np.uint64}
    exec(compile("\n".join(lines), __file__, "exec"), names)  # as part of this file: numba keeps compiled code next to it
    network: Callable[..., Any] = compiled(names[name])
    return network


_sort_group = _network("_sort_group", merge_exchange())
_merge_group = _network("_merge_group", bitonic_merge())


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
def room(tiles: int, count: int) -> Values:
    """(tiles, rows * LANES) of infinity: `count` rows, and on to the next power of two.

    Each row begins with a cache line, so that no vector lies in two of them.
    """
    rows = GROUP
    while rows < count:
        rows *= 2
    values = np.full(tiles * rows * LANES + 16, np.float32(np.inf))
    first = -(values.ctypes.data // 4) % 16
    return values[first : first + tiles * rows * LANES].reshape(tiles, rows * LANES)


@compiled
def first_run(count: int) -> int:
    """How many rows the first of two runs has."""
    size = GROUP
    while 2 * size < count:
        size *= 2
    return min(size, count)


@compiled
def sort(values: Values, count: int, runs: int) -> None:
    """Sorts each column of so many rows, or leaves `runs` = 2 sorted runs: the last step is a large part of the work."""
    groups = -(-count // GROUP)
    for group in range(groups):
        _sort_group(values, group)
        size = 1
        while runs * size < groups and ((group + 1) % (2 * size) == 0 or group + 1 == groups):  # merge while it is in the cache
            first = group // (2 * size) * 2 * size
            if first + size <= group:
                _merge(values, first, size, group + 1)
            size *= 2
