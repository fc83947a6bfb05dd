"""Whom the audit finds, and whom it accuses wrongly: writes the tables of docs/audit.md.

    python bench/detection.py                                      # all of it: 2,000 runs
    python bench/detection.py --seeds 2 --print
    python bench/detection.py --first 100 --seeds 5 --keep tuning  # the seeds that the thresholds were chosen on

Federations: the app of `fltrust new-federation` with a linear model, in one process; 4 of 10 nodes are hostile. Simulations: 3 of 10
clients are malicious, logistic regression. Both on MNIST-5k with a bias of 0.5. A node counts as found if the audit calls it hostile or
suspicious.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}  # before torch is imported: a process per core

import argparse
import json
import logging
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

PAGE = Path(__file__).resolve().parent.parent / "docs" / "audit.md"
BEGIN, END = "<!-- tables: bench/detection.py -->", "<!-- end of tables -->"
SEEDS, NODES, HOSTILE, MALICIOUS, FEDERATION_ROUNDS, ROUNDS = 20, 10, 4, 3, 5, 6
RULES = ("fltrust", "median", "krum")
BIASES = (0.1, 0.5, 0.8)
FLAGGED = ("hostile", "suspicious")


class Job(NamedTuple):
    where: str  # "federation" or "simulation"
    what: str  # the kind of hostile node, or the attack
    rule: str
    bias: float
    seed: int

    @property
    def name(self) -> str:
        return "-".join(map(str, self)).replace(".", "")


class Count(NamedTuple):
    """How many nodes were found, of how many that are hostile; and how many were accused, of how many that are honest."""

    found: int
    hostile: int
    accused: int
    honest: int


def kinds() -> list[str]:
    from fltrust.flower.hostile import KINDS

    return [kind for kind in KINDS if kind not in ("silent", "crash")]  # these two need processes of their own


def jobs_of(seeds: range) -> list[Job]:
    from fltrust.registry import ATTACKS

    federations = [Job("federation", kind, "fltrust", 0.5, seed) for kind in kinds() for seed in seeds]
    attacks = [Job("simulation", attack, rule, 0.5, seed) for attack in ATTACKS if attack != "none" for rule in RULES for seed in seeds]
    honest = [Job("federation", "none", "fltrust", bias, seed) for bias in BIASES for seed in seeds]
    honest += [Job("simulation", "none", rule, bias, seed) for bias in BIASES for rule in RULES for seed in seeds]
    return federations + attacks + honest


def played(job: Job, folder: Path) -> Path:
    """The run directory of a job; one that is there is not run again."""
    path = folder / job.name
    if not path.exists():
        beside = path.with_suffix(".part")
        shutil.rmtree(beside, ignore_errors=True)
        (_federation if job.where == "federation" else _simulation)(job, beside, folder)
        beside.rename(path)
    return path


def _federation(job: Job, path: Path, folder: Path) -> None:
    from flower_processes import new_app, play

    logging.disable(logging.INFO)
    app = folder / f"app-{os.getpid()}"
    if not app.exists():
        new_app(app)
    hostile = {} if job.what == "none" else {"malicious": HOSTILE, "hostile": job.what}
    play(app, path, NODES, rounds=FEDERATION_ROUNDS, seed=job.seed, bias=job.bias, steps=20, **hostile)


def _simulation(job: Job, path: Path, folder: Path) -> None:
    from fltrust import datasets
    from fltrust.experiment import Experiment
    from fltrust.simulation import simulate
    from fltrust.store.records import line_of
    from fltrust.tasks.build import build_task

    if not hasattr(datasets.load, "cache_info"):
        datasets.load = cache(datasets.load)  # every run reads the same images
    run = Experiment.on(
        "mnist-5k",
        job.rule,
        job.what,
        model="logistic",
        num_clients=NODES,
        malicious=MALICIOUS,
        rounds=ROUNDS,
        evaluate_every=1,
        local_steps=5,
        loss="mean",
        local_lr=0.1,
        global_lr=1.0,
        bias=job.bias,
        seed=job.seed,
    )
    path.mkdir(parents=True)
    (path / "experiment.json").write_text(json.dumps({"kind": "simulation", "key": run.key, "experiment": run.to_dict()}))
    (path / "records.jsonl").write_bytes(b"".join(line_of(record) for record in simulate(run, build_task(run))))


def count(job: Job, path: Path) -> Count:
    from fltrust.audit import Audit

    bad = 0 if job.what == "none" else HOSTILE if job.where == "federation" else MALICIOUS
    first = 2 if job.where == "federation" else 0  # the id of node 0
    findings = {finding.node - first: finding.verdict in FLAGGED for finding in Audit(path).findings()}
    hostile, honest = range(bad), range(bad, NODES)
    return Count(sum(findings[i] for i in hostile), len(hostile), sum(findings[i] for i in honest), len(honest))


def counted(job: Job, folder: Path) -> tuple[Count, float]:
    began = time.process_time()
    return count(job, played(job, folder)), time.process_time() - began


def tables(found: dict[Job, Count]) -> str:
    said = ["### Hostile nodes in a federation, FLTrust", "", "| `hostile` | found | honest nodes accused |", "|---|---:|---:|"]
    said += [f"| {kind} | {' | '.join(_cells(found, 'federation', kind, 'fltrust', 0.5))} |" for kind in _whats(found, "federation")]
    said += ["", "### Attacks in the simulator", ""]
    said += ["| attack | " + " | ".join(f"{rule}: found | accused" for rule in RULES) + " |", "|---|" + "---:|" * 2 * len(RULES)]
    for attack in _whats(found, "simulation"):
        cells = [cell for rule in RULES for cell in _cells(found, "simulation", attack, rule, 0.5)]
        said.append(f"| {attack} | {' | '.join(cells)} |")
    said += ["", "### Honest nodes alone", "", "| bias of the split | " + " | ".join(f"{BIAS}" for BIAS in BIASES) + " |"]
    said.append("|---|" + "---:|" * len(BIASES))
    for where, rule in (("federation", "fltrust"), *(("simulation", rule) for rule in RULES)):
        cells = [_cells(found, where, "none", rule, bias)[1] for bias in BIASES]
        said.append(f"| {where}, {rule}: accused | {' | '.join(cells)} |")
    return "\n".join(said) + "\n"


def _whats(found: dict[Job, Count], where: str) -> list[str]:
    return list(dict.fromkeys(job.what for job in found if job.where == where and job.what != "none"))


def _cells(found: dict[Job, Count], *of: Any) -> tuple[str, str]:
    these = [one for job, one in found.items() if job[:-1] == of]
    sums = [sum(column) for column in zip(*these, strict=True)]
    return (f"{sums[0]} of {sums[1]}", f"{sums[2]} of {sums[3]}") if these else ("not run", "not run")


def write(text: str) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--keep", type=Path, help="a folder for the runs; those that are there are not run again")
    parser.add_argument("--print", action="store_true", help="print the tables instead of writing the page")
    options = parser.parse_args()
    jobs = jobs_of(range(options.first, options.first + options.seeds))
    found: dict[Job, Count] = {}
    seconds = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(2) as pool:
            for job, (one, took) in zip(jobs, pool.map(counted, jobs, [folder] * len(jobs), chunksize=10), strict=True):
                found[job], seconds = one, seconds + took
    rates = Counter[str]()
    for one in found.values():
        rates.update(one._asdict())
    took = "" if options.keep else f", {seconds:.0f} s of processor time"
    said = (
        f"{len(jobs)} runs, seeds {options.first} to {options.first + options.seeds - 1}, on {platform.machine()}{took}. "
        f"Found {rates['found']} of {rates['hostile']} hostile nodes, accused {rates['accused']} of {rates['honest']} honest ones."
    )
    text = f"{said}\n\n{tables(found)}"
    print(text) if options.print else write(text)


if __name__ == "__main__":
    main()
