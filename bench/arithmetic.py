"""How often a run dies in each arithmetic that the device has: for the section Arithmetic of docs/reproduction.md.

    python bench/arithmetic.py --jobs 5      # on a GPU 120 runs: three cells, 20 seeds that no table has, float32 and float16

Runs that the folder --out already holds are not repeated, and a run that was cut off resumes.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from fltrust.cli.many import How, work_through
from fltrust.cli.stopping import Stopped
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.paper.exhibit import declared
from fltrust.running.sinks import describe
from fltrust.store.results import Result
from fltrust.training.precision import check_precision

CELLS: dict[str, Experiment] = {
    "Fashion-MNIST, FLTrust, Krum attack": declared("fashion-mnist", "fltrust", "krum"),
    "Fashion-MNIST, FLTrust, adaptive attack": declared("fashion-mnist", "fltrust", "adaptive"),
    "MNIST-0.1, FedAvg, Scaling attack": declared("mnist-0.1", "fedavg", "scaling"),
}
LEARNED, DEAD = 0.5, 0.8  # test errors; guessing has 0.9


def fate(result: Result) -> str:
    """A run died if its test error was below LEARNED at some evaluation and is above DEAD in the end."""
    if min(result.test_error) >= LEARNED:
        return "never learned"
    return "died" if result.error > DEAD else "lived"


def wilson(count: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    share, weight = count / of, z**2 / of
    centre, half = share + weight / 2, z * math.sqrt(share * (1 - share) / of + weight / of / 4)
    return (centre - half) / (1 + weight), (centre + half) / (1 + weight)


def precisions(device: str) -> list[str]:
    """Those that the device has. Of the others it says why not."""
    found = []
    for precision in ("float32", "float16", "bfloat16"):
        try:
            check_precision(precision, device)
            found.append(precision)
        except InputError as problem:
            print(f"not run: {problem}", flush=True)
    return found


def row(cell: str, precision: str, results: Sequence[Result], asked: int) -> str:
    fates = {result.run.seed: fate(result) for result in results}
    seeds = {end: sorted(seed for seed in fates if fates[seed] == end) for end in ("died", "never learned")}
    low, high = (100 * end for end in wilson(len(seeds["died"]), len(fates))) if fates else (0, 100)
    count = f"{len(seeds['died'])} of {len(fates)} | {low:.0f} to {high:.0f} %"
    return f"| {cell} | {precision} | {count} | {_listed(seeds['died'])} | {_listed(seeds['never learned'])} | {asked - len(fates)} |"


def _listed(seeds: list[int]) -> str:
    return ", ".join(map(str, seeds)) or "none"


def line(result: Result) -> str:
    return f"{describe(result.run)}, {result.run.precision}: {fate(result)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10, 30)))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=Path("arithmetic"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    screen, rows = Console(), []
    for precision in precisions(device):
        # A folder each: elsewhere a run in float32 also stands for one in float16.
        how = How(device, precision, options.jobs, None, options.data_dir, (), out=options.out / precision, reported=False)
        how.prepare(len(options.seeds))
        runs = {
            cell: [dataclasses.replace(run, seed=seed, precision=how.arithmetic) for seed in options.seeds] for cell, run in CELLS.items()
        }
        done = how.done(screen)
        every = [run for of_cell in runs.values() for run in of_cell]
        work_through(screen, every, how, done, parts={}, line=line)
        for cell, asked in runs.items():
            rows.append(row(cell, precision, [result for run in asked if (result := done.of(run))], len(asked)))
    print("| cell | arithmetic | died | 95 % interval | seeds that died | seeds that never learned | not run |")
    print("|---|---|---|---|---|---|--:|", *rows, sep="\n")


if __name__ == "__main__":
    try:
        main()
    except (InputError, Stopped) as problem:
        raise SystemExit(str(problem)) from None
