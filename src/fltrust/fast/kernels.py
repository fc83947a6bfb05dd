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
    threads = [Thread(target=work, args=(start // size, start, min(start + size, count))) for start in range(size, count, size)]
    for thread in threads:
        thread.start()
    work(0, 0, min(size, count))
    for thread in threads:
        thread.join()


def parts(count: int, unit: int) -> int:
    return min(torch.get_num_threads(), -(-count // unit))
