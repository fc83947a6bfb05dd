"""What a round costs the server of a federation: seconds and memory of our strategy beside Flower's own, on the same replies.

    python bench/flower_load.py                 # both sizes, about 20 minutes; needs 20 GB of memory for Flower's median
    python bench/flower_load.py --only small

1,000 replies of 139,960 parameters (the paper's CNN, 8 arrays), then 100 replies of 11 million (55 arrays). A grid in this process makes
each reply when it is asked for, so that memory is the strategy's; Flower's strategies get them as from Flower's grids, in one list. The
time that it takes to make them is not counted, and neither is the training of FLTrust's root update. Each strategy has its own process.
"""

import argparse
import itertools
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import flwr
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedMedian, Strategy
from flwr.supercore.task_identity import TaskIdentity
from rich.console import Console
from rich.table import Table
from setting import wait_until_quiet

import fltrust
from fltrust.flower import RobustStrategy

SIZES: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "small": (
        1000,
        {
            "conv1": (30, 1, 3, 3),
            "b1": (30,),
            "conv2": (50, 30, 3, 3),
            "b2": (50,),
            "fc1": (100, 1250),
            "b3": (100,),
            "fc2": (10, 100),
            "b4": (10,),
        },
    ),
    "large": (100, {f"layer{i}": (200, 1000) for i in range(55)}),
}
STATUS = Path("/proc/self/status")


def model(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(seed)
    return {name: chance.standard_normal(shape, np.float32) for name, shape in shapes.items()}


class Load(Grid):
    """Nodes that have all answered: each reply is made when it is fetched, from one of four models, with its node's number in it."""

    in_process = True

    def __init__(self, shapes: dict[str, tuple[int, ...]], nodes: int) -> None:
        self.nodes, self.ids = nodes, itertools.count()
        self.pool = [{name: Array(array) for name, array in model(shapes, seed).items()} for seed in range(1, 5)]
        self.sent: dict[str, Message] = {}
        self.begun: list[float] = []
        self.making = 0.0  # seconds spent on making replies, in all
        self.made: list[float] = []  # ... before each round

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> object:
        return None

    def create_message(self, *arguments: object, **named: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return range(1, self.nodes + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.begun.append(time.perf_counter())
        self.made.append(self.making)
        self.sent = {}
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.ids)}"
            self.sent[message.metadata.message_id] = message
        return list(self.sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        started = time.perf_counter()
        replies = [self.reply(self.sent.pop(message_id)) for message_id in list(message_ids)]
        self.making += time.perf_counter() - started
        return replies

    def reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        own = np.array([node], np.float32).tobytes()
        arrays = {  # bytes of its own, as if they had come over a network; the first number, behind a header of 128, is its node's
            name: Array(array.dtype, array.shape, array.stype, b"".join((array.data[:128], own, array.data[132:])))
            for name, array in self.pool[node % len(self.pool)].items()
        }
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10})}), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        return list(self.pull_messages(self.push_messages(messages))) if messages else []


def root_of(shapes: dict[str, tuple[int, ...]]) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    change = model(shapes, 1)
    return lambda arrays: change


def _flower(kind: type[FedAvg]) -> Strategy:
    return kind(fraction_evaluate=0.0, min_train_nodes=1)


CONTENDERS: dict[str, Callable[[dict[str, tuple[int, ...]], Path], Strategy]] = {
    "fltrust FLTrust": lambda shapes, path: RobustStrategy(fltrust.FLTrust(), root=root_of(shapes)),
    "fltrust FLTrust, audit and model on disk": lambda shapes, path: RobustStrategy(
        fltrust.FLTrust(), root=root_of(shapes), directory=path
    ),
    "fltrust FedAvg": lambda shapes, path: RobustStrategy(fltrust.FedAvg()),
    "fltrust Median": lambda shapes, path: RobustStrategy(fltrust.Median()),
    "Flower FedAvg": lambda shapes, path: _flower(FedAvg),
    "Flower FedMedian": lambda shapes, path: _flower(FedMedian),
}


def memory_mb(which: str) -> float:
    """VmRSS: now; VmHWM: the most since the mark was reset."""
    return next(float(line.split()[1]) / 1e3 for line in STATUS.read_text().splitlines() if line.startswith(which))


def measured(name: str, size: str, rounds: int) -> tuple[list[float], float, float]:
    """Seconds of each round, MB before the first and at most."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    with tempfile.TemporaryDirectory(dir=".") as folder:
        tiny = {"tiny": (5,)}
        CONTENDERS[name](tiny, Path(folder) / "tiny").start(
            Load(tiny, 8), ArrayRecord({"tiny": Array(np.ones(5, np.float32))}), num_rounds=1
        )
        nodes, shapes = SIZES[size]
        grid, strategy = Load(shapes, nodes), CONTENDERS[name](shapes, Path(folder) / "run")
        start = ArrayRecord({key: Array(array) for key, array in model(shapes, 0).items()})
        before = memory_mb("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        strategy.start(grid, start, num_rounds=rounds)
        ends = [*grid.begun[1:], time.perf_counter()]
        made = [*grid.made[1:], grid.making]
        spent = [end - begin - (after - so_far) for begin, end, so_far, after in zip(grid.begun, ends, grid.made, made, strict=True)]
        return spent, before, memory_mb("VmHWM")


def in_own_process(work: Callable[..., Any], *arguments: object) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def sizes(only: str | None) -> Iterator[str]:
    return (size for size in SIZES if only in (None, size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contender", choices=list(CONTENDERS))
    options = parser.parse_args()
    console = Console(width=max(130, Console().width))
    for size in sizes(options.only):
        nodes, shapes = SIZES[size]
        d = sum(int(np.prod(shape)) for shape in shapes.values())
        table = Table(
            title=f"{nodes:,} replies of {d:,} parameters; {options.rounds} rounds; Flower {flwr.__version__}, torch {torch.__version__}"
        )
        for heading in ("strategy", "median, s", "fastest to slowest, s", "peak memory above the start, MB", "at the start, MB"):
            table.add_column(heading, justify="left" if heading == "strategy" else "right")
        for name in CONTENDERS:
            if options.contender in (None, name):
                wait_until_quiet()
                seconds, before, peak = in_own_process(measured, name, size, options.rounds)
                spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
                table.add_row(name, f"{statistics.median(seconds):.2f}", spread, f"{peak - before:,.0f}", f"{before:,.0f}")
        console.print(table)


if __name__ == "__main__":
    main()
