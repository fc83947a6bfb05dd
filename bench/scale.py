"""What a round costs as clients become many, in the round and in the federation.

    python bench/scale.py                  # a few minutes; draws docs/scale.png
    python bench/scale.py --only drawn     # the federation of up to a million clients

The round: n = 100 to 10,000 clients that all take part, two examples each, the paper's CNN (d = 139,960), FLTrust. The federation: a
thousand of up to a million clients take part, two examples each, a network of 75,010 parameters, FLTrust. Each size has a process of its
own, so that its peak memory is its own. The examples are in memory too: for each client two images of 3 kB, or two vectors of 256 bytes.
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from setting import others_busy, our_rounds, our_run, wait_until_quiet
from torch import nn

from fltrust import Task, simulate
from fltrust.models import PAPER_CNN
from fltrust.round import AT_ONCE, MANY, in_chunks
from fltrust.store.files import hardware

SIZES = (100, 300, 1000, 3000, 10_000)
HELD, ROOT, ROUNDS = 2, 100, 5
PLOT = Path(__file__).parent.parent / "docs" / "scale.png"


def in_own_process(work: Callable, *arguments: object) -> object:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def rounds_of(n: int) -> tuple[list[float], float, float, bool]:
    """Seconds of each round after the first, the process's peak memory in MB before the task was made and at the end, chunks or not."""
    rng = np.random.default_rng(0)
    before = peak_mb()
    count = n * HELD + ROOT
    images, labels = rng.random((count, 1, 28, 28), np.float32), rng.integers(0, 10, count)
    run = our_run(n, HELD)
    records = our_rounds(run, images, labels, HELD)
    next(records)  # compiles
    seconds = []
    for _ in range(ROUNDS):
        wait_until_quiet()
        start = time.perf_counter()
        next(records)
        seconds.append(time.perf_counter() - start)
    return seconds, before, peak_mb(), in_chunks(run, n)


# ---------------------------------------------------------------- a thousand of N clients

FEDERATIONS = (1_000, 10_000, 100_000, 1_000_000)
DRAWN, FEATURES, HIDDEN, TURNS = 1_000, 64, 1_000, 3


def drawn_of(num_clients: int) -> tuple[float, float, float, float]:
    """Seconds to make the task and of a round (with what is drawn for it), peak memory in MB after each."""
    rng = np.random.default_rng(0)
    count = num_clients * HELD + ROOT
    inputs, targets = rng.random((count, FEATURES), np.float32), rng.integers(0, 10, count)
    network = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    start = time.perf_counter()
    task = Task.from_arrays(inputs, targets, inputs[:10], targets[:10], clients=num_clients, root=ROOT, model=network)
    made, after_making = time.perf_counter() - start, peak_mb()
    run = replace(our_run(num_clients, HELD), clients_per_round=min(DRAWN, num_clients), rounds=ROUNDS + 1)
    next(simulate(run, task))  # compiles
    records = simulate(run, task)
    start = time.perf_counter()
    for _ in range(ROUNDS):  # and not the last, which is evaluated
        next(records)
    return made, after_making, (time.perf_counter() - start) / ROUNDS, peak_mb()


# ---------------------------------------------------------------- tables and the plot


def table(title: str, *headings: str) -> Table:
    result = Table(title=title)
    for i, heading in enumerate(headings):
        result.add_column(heading, justify="right" if i else "left")
    return result


def plot(measured: dict[int, tuple[float, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    n = list(measured)
    seconds, memory = ([value[i] for value in measured.values()] for i in (0, 1))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(n, [seconds[-1] * size / n[-1] for size in n], "--", color="grey", label="proportional to n")
    left.set(title="Time of a round, seconds", ylim=(seconds[0] / 2, seconds[-1] * 3), yscale="log", yticks=(0.1, 1, 10))
    right.plot(n, [size * PAPER_CNN * 4e-6 for size in n], "--", color="grey", label="one (n, d) matrix of updates")
    right.set(title="Peak memory of the process, MB", ylim=(30, 10_000), yscale="log", yticks=(100, 1000, 10_000))
    for axes, values, digits, place in ((left, seconds, ".2f", (-20, 5)), (right, memory, ",.0f", (0, -16))):
        axes.axvspan(MANY, 14_000, color="tab:blue", alpha=0.08, lw=0, label=f"{AT_ONCE} clients at a time")
        axes.plot(n, values, "o-", color="tab:blue", label="measured")
        for size, value in zip(n, values, strict=True):
            axes.annotate(f"{value:{digits}}", (size, value), place, textcoords="offset points", ha="center")
        axes.set(xlabel="clients in the round, n", xscale="log", xlim=(50, 14_000))
        axes.set_xticks(n, [f"{size:,}" for size in n])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, loc="lower right")
    PLOT.parent.mkdir(exist_ok=True)
    figure.savefig(PLOT, dpi=120)


def all_take_part(console: Console) -> None:
    rounds = table(
        f"A round of n clients x {HELD} examples, FLTrust, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "n", "median, s", "fastest to slowest, s", "ms per client", "peak memory, MB", "of which before, MB", "in chunks",
    )  # fmt: skip
    measured = {}
    for n in SIZES:
        seconds, before, peak, chunks = in_own_process(rounds_of, n)
        median = statistics.median(seconds)
        measured[n] = median, peak
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        rounds.add_row(
            f"{n:,}", f"{median:.3f}", spread, f"{1e3 * median / n:.2f}", f"{peak:.0f}", f"{before:.0f}", "yes" if chunks else "no"
        )
    console.print(rounds)
    plot(measured)


def some_are_drawn(console: Console) -> None:
    federations = table(
        f"{DRAWN:,} of N clients x {HELD} examples of {FEATURES} features, FLTrust, {TURNS} turns", "N", "making the task, s",
        "round, fastest, s", "fastest to slowest, s", "peak memory, MB", "of which after making, MB", "examples, MB",
    )  # fmt: skip
    turns = [{n: in_own_process(drawn_of, n) for n in FEDERATIONS} for _ in range(TURNS)]  # in turns, so that a busy minute hits all
    for n in FEDERATIONS:
        made, after_making, seconds, peak = (sorted(values) for values in zip(*(turn[n] for turn in turns), strict=True))
        examples = (n * HELD + ROOT) * FEATURES * 4e-6
        federations.add_row(
            f"{n:,}", f"{made[0]:.2f}", f"{seconds[0]:.3f}", f"{seconds[0]:.3f} to {seconds[-1]:.3f}",
            f"{peak[0]:.0f}", f"{after_making[0]:.0f}", f"{examples:.0f}",
        )  # fmt: skip
    console.print(federations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("all", "drawn"), help="all: every client takes part; drawn: a thousand do")
    options = parser.parse_args()
    console = Console(width=max(120, Console().width))
    console.print(f"{hardware('cpu')}; others use {others_busy():.1f} cores")
    if options.only != "drawn":
        all_take_part(console)
    if options.only != "all":
        some_are_drawn(console)


if __name__ == "__main__":
    main()
