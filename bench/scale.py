"""What a round costs as clients become many, and how many updates a second go through the accumulator.

    python bench/scale.py                  # a few minutes; draws docs/scale.png
    python bench/scale.py --updates 10000      # fewer through the accumulator than a million

The round: n = 100 to 10,000 clients that all take part, two examples each, the paper's CNN (d = 139,960), FLTrust. Each size has a
process of its own, so that its peak memory is its own. The examples themselves are in memory too: n x 2 images of 3 kB.
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from setting import our_rounds, our_run, wait_until_quiet

from fltrust import TrustAccumulator
from fltrust.models import PAPER_CNN
from fltrust.round import AT_ONCE, MANY, in_chunks

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


# ---------------------------------------------------------------- the accumulator

POOL = 2000  # different updates, 1.1 GB: more than any cache holds, so each is read from memory


def stream(chunk: int, count: int) -> tuple[TrustAccumulator, float, float]:
    """`count` updates added in chunks (1: one at a time): the accumulator, the seconds, and by how many MB the process grew."""
    updates = torch.randn(POOL, PAPER_CNN, generator=torch.Generator().manual_seed(0))
    root_update = updates[:10].mean(0)
    TrustAccumulator(root_update).add_many(updates[:chunk])  # compiles
    stream, before = TrustAccumulator(root_update), peak_mb()
    start = time.perf_counter()
    while stream.count < count:
        first = stream.count % POOL
        if chunk == 1:
            stream.add(updates[first])
        else:
            stream.add_many(updates[first : first + min(chunk, count - stream.count)])
    return stream, time.perf_counter() - start, peak_mb() - before


def half(chunk: int, count: int) -> tuple[TrustAccumulator, float, float]:
    torch.set_num_threads(1)
    return stream(chunk, count)


def merged(chunk: int, count: int) -> tuple[TrustAccumulator, float, float]:
    """Two processes with one thread and half of the updates each, merged into one."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        halves = [pool.submit(half, chunk, count // 2) for _ in range(2)]
        (total, seconds, grown), (other, other_seconds, other_grown) = (half.result() for half in halves)
    start = time.perf_counter()
    total.merge(other)
    total.result()
    return total, max(seconds, other_seconds) + time.perf_counter() - start, max(grown, other_grown)


def reads_per_second() -> list[float]:
    """Updates a second if each were only read from memory once: sums over a matrix of POOL updates."""
    updates = torch.randn(POOL, PAPER_CNN)
    rates = []
    for _ in range(9):
        start = time.perf_counter()
        updates.sum()
        rates.append(POOL / (time.perf_counter() - start))
    return rates[2:]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1_000_000, help="through the accumulator")
    options = parser.parse_args()
    console = Console(width=max(120, Console().width))

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

    wait_until_quiet()
    read = statistics.median(in_own_process(reads_per_second))
    streams = table(f"TrustAccumulator, {PAPER_CNN:,} parameters", "how", "updates", "seconds", "updates / s", "of one read", "grew by, MB")
    streams.add_row("one read (torch.sum)", "", "", f"{read:,.0f}", "1.00", "")
    for name, work, chunk, count in (
        ("add_many, 200 at a time", stream, 200, options.updates),
        ("add_many in two processes, merged", merged, 200, options.updates),
        ("add, one at a time", stream, 1, options.updates // 10),  # slower, and its rate is the same
    ):
        wait_until_quiet()
        total, seconds, grown = in_own_process(work, chunk, count)
        rate = total.count / seconds
        streams.add_row(name, f"{total.count:,}", f"{seconds:.1f}", f"{rate:,.0f}", f"{rate / read:.2f}", f"{grown:.0f}")
    console.print(streams)


if __name__ == "__main__":
    main()
