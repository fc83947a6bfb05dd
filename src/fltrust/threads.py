"""Work spread over the processor's cores: one thread per core, each with one core to itself.

For networks as small as the paper's, a client per core beats all cores inside each operator; the bits do not depend on the cores.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


@cache
def cores() -> int:
    """How many cores this process may use; OMP_NUM_THREADS, which clusters set, can make it fewer."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(there, int(asked)) if asked.isdecimal() and int(asked) else there


@cache
def _pool() -> ThreadPoolExecutor:
    before, all_there = torch.get_num_threads(), Barrier(cores())
    pool = ThreadPoolExecutor(cores(), initializer=_have_one_core)
    list(pool.map(lambda _: all_there.wait(), range(cores())))
    torch.set_num_threads(before)  # torch gives one thread's setting to all threads that begin later, the user's too
    return pool


def _have_one_core() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # torch reads the setting once in each thread: now, before it changes back


def _without_the_parents_threads() -> None:
    """In a forked process, which has one thread: GNU's OpenMP, on which torch relies, waits forever for those of the process before."""
    _pool.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_without_the_parents_threads)


def each(work: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """work(part) for every part, in order, a core at a time for each."""
    return list(_pool().map(work, parts))
