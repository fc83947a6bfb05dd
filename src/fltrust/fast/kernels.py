"""How kernels in numba are compiled, and how a thread per core shares their work (numba lets go of the interpreter lock)."""

from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from numpy.typing import NDArray

Compiled = TypeVar("Compiled", bound=Callable[..., Any])
Floats = NDArray[np.float64]
Rows = NDArray[np.float32]  # (n, d)


def compiled(kernel: Compiled) -> Compiled:
    """Sums may be reordered, but NaN and infinity keep their meaning."""
    fast: Compiled = numba.njit(kernel, cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
    return fast


def in_threads(work: Callable[[int, int, int], None], count: int, unit: int) -> None:
    """work(part, start, stop) for consecutive parts of range(count) that begin at multiples of `unit`, one for each thread."""
    size = -(-count // (parts(count, unit) * unit)) * unit
    problems: list[BaseException] = []

    def part(start: int) -> None:
        try:
            work(start // size, start, min(start + size, count))
        except BaseException as problem:  # a thread would lose it, and the sums of its part
            problems.append(problem)

    threads = [Thread(target=part, args=(start,)) for start in range(size, count, size)]
    for thread in threads:
        thread.start()
    part(0)
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def parts(count: int, unit: int) -> int:
    return min(torch.get_num_threads(), -(-count // unit))
