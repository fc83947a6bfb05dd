"""How kernels in numba are compiled, and how a thread per core shares their work (numba lets go of the interpreter lock)."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from numpy.typing import NDArray

Compiled = TypeVar("Compiled", bound=Callable[..., Any])
Floats = NDArray[np.float64]
Rows = NDArray[np.float32]  # (n, d)


def compiled(kernel: Compiled, freedom: Iterable[str] = ("reassoc", "contract", "nsz")) -> Compiled:
    """Sums may be reordered, but NaN and infinity keep their meaning."""
    fast: Compiled = numba.njit(kernel, cache=True, nogil=True, error_model="numpy", fastmath=set(freedom))
    return fast


@compiled
def _find_zeros(updates: Rows, chosen: NDArray[np.int64], zero: NDArray[np.bool_], start: int, stop: int) -> None:
    """zero[i] = whether the row chosen[i] is all zeros: it is looked at up to its first value that is not."""
    for i in range(start, stop):
        column = 0
        while column < updates.shape[1] and updates[chosen[i], column] == 0:
            column += 1
        zero[i] = column == updates.shape[1]


def some_zero(updates: Rows, chosen: NDArray[np.int64]) -> bool:
    """Whether one of the chosen rows is all zeros."""
    suspects = chosen[updates[chosen, 0] == 0]
    zero = np.zeros(suspects.size, np.bool_)
    if suspects.size:
        in_threads(lambda _, start, stop: _find_zeros(updates, suspects, zero, start, stop), suspects.size, 1)
    return bool(zero.any())


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())  # its threads stay: to start one takes longer than to wake it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads are not forked


def in_threads(work: Callable[[int, int, int], None], count: int, unit: int) -> None:
    """work(part, start, stop) for consecutive parts of range(count) that begin at multiples of `unit`, one for each thread.

    `work` must not call this: its parts would wait for threads that wait for them.
    """
    size = -(-count // (parts(count, unit) * unit)) * unit
    others, own = [], [0]
    for start in range(size, count, size):
        try:
            others.append(_pool().submit(work, start // size, start, min(start + size, count)))
        except RuntimeError:  # the interpreter is about to end
            own.append(start)
    try:
        for start in own:
            work(start // size, start, min(start + size, count))
    finally:
        wait(others)  # they write to the same arrays
    for other in others:
        other.result()  # raises what went wrong in it


def parts(count: int, unit: int) -> int:
    return min(torch.get_num_threads(), -(-count // unit))
