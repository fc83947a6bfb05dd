"""FLTrust's updates through `TrustAccumulator`: in one process, in several that are merged, and in Ray actors that are merged.

    python bench/sharded.py                          # a minute or two
    python bench/sharded.py --updates 1000000        # as many in all, whoever adds them

Updates of 139,960 parameters. Every worker holds the same updates of its own before the clock starts, as an aggregator does that has
received them. The clock stops when the parts have been sent back, merged, and made into one global update. The ways take turns.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from rich.console import Console
from rich.table import Table
from setting import others_busy

from fltrust import TrustAccumulator
from fltrust.models import PAPER_CNN
from fltrust.store.files import hardware

POOL = 1_000  # different updates of a worker, 560 MB: more than any cache holds, so each is read from memory
CHUNK = 200  # updates that are added together


class Worker:
    """An aggregator with updates of its own."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.updates = torch.randn(POOL, PAPER_CNN, generator=torch.Generator().manual_seed(0))
        self.root_update = self.updates[:10].mean(0)
        self.total(CHUNK)  # compiles

    def total(self, count: int) -> TrustAccumulator:
        total = TrustAccumulator(self.root_update)
        while total.count < count:
            first = total.count % POOL
            total.add_many(self.updates[first : first + min(CHUNK, count - total.count)])
        return total


def serve(orders: Connection, threads: int) -> None:
    worker = Worker(threads)
    orders.send(None)  # ready
    while count := orders.recv():
        orders.send(worker.total(count))


class Processes:
    """Workers in processes of their own, one thread each if there are several."""

    def __init__(self, shards: int) -> None:
        threads = torch.get_num_threads() if shards == 1 else 1
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(shards)]
        self.workers = [context.Process(target=serve, args=(theirs, threads), daemon=True) for _, theirs in pipes]
        self.pipes = [ours for ours, _ in pipes]
        for worker in self.workers:
            worker.start()
        for pipe in self.pipes:
            pipe.recv()

    def totals(self, count: int) -> list[TrustAccumulator]:
        for pipe in self.pipes:
            pipe.send(count // len(self.pipes))
        return [pipe.recv() for pipe in self.pipes]

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(0)


class Actors:
    """Workers as Ray actors."""

    def __init__(self, shards: int) -> None:
        import ray

        ray.init(num_cpus=shards, include_dashboard=False, logging_level="error")
        self.get, actor = ray.get, ray.remote(num_cpus=1)(Worker)
        self.workers = [actor.remote(1) for _ in range(shards)]
        ray.get([worker.total.remote(1) for worker in self.workers])

    def totals(self, count: int) -> list[TrustAccumulator]:
        return self.get([worker.total.remote(count // len(self.workers)) for worker in self.workers])


def seconds_of(totals: Callable[[int], list[TrustAccumulator]], count: int) -> tuple[float, torch.Tensor]:
    start = time.perf_counter()
    first, *others = totals(count)
    for other in others:
        first.merge(other)
    update = first.result().update
    seconds = time.perf_counter() - start
    assert first.count == count
    return seconds, update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--shards", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    whole = 2 * POOL * options.shards  # every worker adds each of its updates equally often, so that all ways have the same result
    count = -(-options.updates // whole) * whole
    one, several = Processes(1), Processes(options.shards)
    ways = {
        f"one process, {torch.get_num_threads()} threads": one.totals,
        f"{options.shards} processes, merged": several.totals,
        f"{options.shards} Ray actors, merged": Actors(options.shards).totals,
    }
    print(f"{hardware('cpu')}; others use {others_busy():.1f} cores")
    turns = [{name: seconds_of(totals, count) for name, totals in ways.items()} for _ in range(options.turns)]
    one.close()
    several.close()
    (_, expected), *_ = turns[0].values()
    table = Table(title=f"{count:,} updates of {PAPER_CNN:,} parameters, {options.turns} turns, torch {torch.__version__}")
    for heading in ("how", "fastest, s", "median, s", "slowest, s", "updates / s, fastest", "largest difference"):
        table.add_column(heading, justify="right")
    for name in ways:
        seconds = sorted(turn[name][0] for turn in turns)
        difference = max(float((turn[name][1] - expected).abs().max() / expected.abs().max()) for turn in turns)
        table.add_row(
            name,
            f"{seconds[0]:.2f}",
            f"{statistics.median(seconds):.2f}",
            f"{seconds[-1]:.2f}",
            f"{count / seconds[0]:,.0f}",
            f"{difference:.0e}",
        )
    Console(width=max(120, Console().width)).print(table)


if __name__ == "__main__":
    main()
