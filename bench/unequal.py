"""What unequal clients cost each rule, without and with an attack: writes the tables of docs/unequal-clients.md.

    python bench/unequal.py                    # all of it: 297 runs
    python bench/unequal.py --sites 5 --seeds 1 --print

5, 10 and 20 sites share the training images of MNIST-5k. Sizes are drawn from a log-normal distribution; classes are alike everywhere.
Every site trains a logistic regression for one epoch per round. One site flips its labels: a small one (a quarter of the sites are
smaller), the largest, or none. The page is written after each block of runs, so an interrupted study leaves the blocks that it finished.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process per core

import argparse
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fltrust.attacks import LabelFlip, NoAttack
from fltrust.datasets import Examples, examples_of
from fltrust.experiment import Experiment
from fltrust.models import initialise
from fltrust.randomness import stream
from fltrust.registry import MODELS
from fltrust.rules import BySize, FedAvg, GeometricMedian, Median, NormClipping, Rule, TrimmedMean
from fltrust.simulation import simulate
from fltrust.tasks.splits import partition
from fltrust.tasks.splits_drawn import QuantityLogNormal
from fltrust.tasks.task import Task

PAGE = Path(__file__).resolve().parent.parent / "docs" / "unequal-clients.md"
BEGIN, END = "<!-- tables: bench/unequal.py -->", "<!-- end of tables -->"
SITES, SEEDS, ROUNDS, SIGMA, ROOT = (5, 10, 20), 3, 15, 2.0, 100
LIARS = ("nobody", "a small site", "the largest site")
RULES: dict[str, Rule] = {
    "FedAvg, by size without a bound": FedAvg(),
    "mean": FedAvg(by_size=False),
    "mean, by size": BySize(FedAvg()),
    "median": Median(),
    "median, by size": BySize(Median()),
    "trimmed mean": TrimmedMean(1),
    "trimmed mean, by size": BySize(TrimmedMean(1)),
    "geometric median": GeometricMedian(),
    "geometric median, by size": BySize(GeometricMedian()),
    "norm clipping": NormClipping(),
    "norm clipping, by size": NormClipping(BySize(FedAvg())),
}


class Job(NamedTuple):
    rule: str
    sites: int
    liar: str
    seed: int


@cache
def examples() -> Examples:
    return examples_of("mnist-5k", None)


def split(sites: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The sites' examples, the smallest site first, and the root set, which no rule here uses."""
    held = partition(
        examples().train_labels,
        None,
        num_clients=sites,
        num_classes=10,
        split=QuantityLogNormal(SIGMA, min_size=10),
        root_size=ROOT,
        rng=stream(seed, "partition"),
    )
    return sorted(held.clients, key=len), held.root


def error(job: Job) -> float:
    data = examples()
    clients, root = split(job.sites, job.seed)
    liar = {"nobody": None, "a small site": job.sites // 4, "the largest site": job.sites - 1}[job.liar]
    if liar is not None:  # malicious clients come first
        clients.insert(0, clients.pop(liar))
    attack: Any = NoAttack() if liar is None else LabelFlip()
    malicious = int(liar is not None)
    network = initialise(MODELS["logistic"](data.train.shape[1:], 10), stream(job.seed, "weights"))
    task = Task.from_arrays(
        data.train,
        data.train_labels,
        data.test,
        data.test_labels,
        clients=clients,
        root=root,
        model=network,
        malicious=malicious,
        attack=attack,
    )
    run = Experiment(
        dataset="mnist-5k",
        model="logistic",
        rule=RULES[job.rule],
        attack=attack,
        seed=job.seed,
        bias=None,
        num_clients=job.sites,
        clients_per_round=job.sites,
        malicious=malicious,
        rounds=ROUNDS,
        local_epochs=1,
        batch_size=64,
        local_lr=0.2,
        global_lr=1.0,
        loss="mean",
        evaluate_every=ROUNDS,
    )
    *_, last = simulate(run, task)
    assert last.test_error is not None
    return last.test_error


def tables(errors: dict[Job, float]) -> str:
    """A table per number of sites; the mean over seeds and, in brackets, the lowest and the highest."""
    said = []
    for sites in sorted({job.sites for job in errors}):
        seeds = sorted({job.seed for job in errors if job.sites == sites})
        sizes = "; ".join(", ".join(str(len(own)) for own in split(sites, seed)[0]) for seed in seeds)
        said += [f"### {sites} sites", "", f"Examples of each site, seed by seed: {sizes}.", ""]
        said += [f"| test error, % | {' | '.join(f'{liar} lies' for liar in LIARS)} |", "|---|" + "---:|" * len(LIARS)]
        for rule in RULES:
            cells = []
            for liar in LIARS:
                found = [100 * errors[job] for seed in seeds if (job := Job(rule, sites, liar, seed)) in errors]
                spread = f" ({min(found):.1f} to {max(found):.1f})" if len(found) > 1 else ""
                missing = f", {len(found)} of {len(seeds)} seeds" if len(found) < len(seeds) else ""
                cells.append(f"{statistics.mean(found):.1f}{spread}{missing}" if found else "not run")
            said.append(f"| {rule} | {' | '.join(cells)} |")
        said.append("")
    return "\n".join(said)


def write(errors: dict[Job, float]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(errors)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=SITES)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--print", action="store_true", help="print the tables instead of writing the page")
    options = parser.parse_args()
    jobs = [Job(rule, sites, liar, seed) for seed in range(options.seeds) for sites in options.sites for liar in LIARS for rule in RULES]
    errors: dict[Job, float] = {}
    with ProcessPoolExecutor(2) as pool:
        for job, found in zip(jobs, pool.map(error, jobs), strict=True):
            errors[job] = found
            print(f"{len(errors)} of {len(jobs)}: {job.sites} sites, {job.rule}, {job.liar} lies: {found:.3f}", file=sys.stderr)
            if not options.print and len(errors) % (len(LIARS) * len(RULES)) == 0:
                write(errors)
    if options.print:
        print(tables(errors))


if __name__ == "__main__":
    main()
