"""The searched attack beside every single attack of the package, on small data: the table in docs/worst-case.md.

    python bench/worst_case.py --seeds 0 1 2 --out worst_case.json      # two processes: about 30 minutes on two cores

Runs that the file already holds are not repeated.
"""

import argparse
import functools
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from fltrust import Experiment, build_task, simulate
from fltrust.datasets import examples_of

RULES = ("fltrust", "krum", "median", "nnm+geometric-median", "centred-clipping", "dnc")
SINGLE = ["none", "sign-flip", "trim", "krum", "adaptive", "optimal-adaptive", "mimic", "gaussian", "free-rider", "alie", "ipm", "min-max"]
SINGLE += ["min-sum", "mpaf", "poisonedfl"]
SINGLE_TOO: list[Any] = [{"name": "alie", "z": 1.5}, {"name": "ipm", "epsilon": 100.0}]
SEARCHED: list[Any] = [{"name": "searched", "aim": aim} for aim in ("mean", "sign")]
SETTING = {"model": "logistic", "rounds": 100, "evaluate_every": 100}

Job = tuple[str, Any, int]
_read_once = functools.cache(examples_of)


def played(job: Job) -> dict[str, Any]:
    rule, attack, seed = job
    torch.set_num_threads(1)
    run = Experiment.on("mnist-5k", rule, attack, seed=seed, **SETTING)
    started = time.perf_counter()
    *_, last = simulate(run, build_task(run, load=_read_once))
    return {"rule": rule, "attack": attack, "seed": seed, "error": last.test_error, "seconds": time.perf_counter() - started}


def table(done: list[dict[str, Any]]) -> None:
    def error(rule: str, attack: Any) -> float:
        errors = [one["error"] for one in done if (one["rule"], one["attack"]) == (rule, attack)]
        return mean(errors) if errors else float("nan")

    print("| rule | no attack | best single attack | " + " | ".join(f"searched, {attack['aim']}" for attack in SEARCHED) + " |")
    print("|---|---|---|" + "---|" * len(SEARCHED))
    for rule in RULES:
        worst, attack = max((error(rule, attack), json.dumps(attack)) for attack in [*SINGLE[1:], *SINGLE_TOO])
        cells = [f"{error(rule, 'none'):.3f}", f"{worst:.3f} ({attack})", *(f"{error(rule, attack):.3f}" for attack in SEARCHED)]
        print(f"| {rule} | " + " | ".join(cells) + " |")


def all_played(play: Callable[[Job], dict[str, Any]], jobs: list[Job], out: Path) -> list[dict[str, Any]]:
    """What `play` says of each job that the file does not hold yet, two at a time, and all that it holds."""
    done: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    jobs = [job for job in jobs if not any((one["rule"], one["attack"], one["seed"]) == job for one in done)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for result in pool.imap_unordered(play, jobs):
            done.append(result)
            out.write_text(json.dumps(done, indent=0))
            print(result, flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("--out", type=Path, default=Path("worst_case.json"))
    parser.add_argument("--searched-only", action="store_true")
    options = parser.parse_args()
    attacks = SEARCHED if options.searched_only else [*SEARCHED, *SINGLE, *SINGLE_TOO]
    table(all_played(played, [(rule, attack, seed) for seed in options.seeds for attack in attacks for rule in options.rules], options.out))


if __name__ == "__main__":
    main()
