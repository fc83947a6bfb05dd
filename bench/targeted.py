"""Targeted searches beside attacks that poison data, on small data: the table of backdoors and one class in docs/worst-case.md.

    python bench/targeted.py --seeds 0 1 2 --out targeted.json      # two processes

Runs that the file already holds are not repeated.
"""

import argparse
import functools
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from worst_case import Job, all_played

from fltrust import Experiment, build_task, simulate
from fltrust.datasets import examples_of

RULES: dict[str, Any] = {
    "FedAvg": "fedavg",
    "FLTrust": "fltrust",
    "Anchor": "anchor",
    "Anchor, levelled": {"name": "anchor", "limit": 1e6, "directions": 1},
    "Krum": "krum",
    "Median": "median",
    "NNM + geometric median": "nnm+geometric-median",
    "Centred clipping": "centred-clipping",
    "DnC": "dnc",
}
ROUNDS, SOURCE = 100, 5  # the class that is attacked: the one that `label-flip-targeted` takes by default
QUIET = {"behave": ROUNDS}  # nobody attacks, but the run says how far the aim is reached without
ATTACKS: dict[str, Any] = {
    "backdoor, no attack": {"name": "searched", "aim": "backdoor", **QUIET},
    "backdoor, Scaling": "scaling",
    "backdoor, searched": {"name": "searched", "aim": "backdoor"},
    "class, no attack": "none",
    "class, labels flipped": "label-flip-targeted",
    "class, searched": {"name": "searched", "aim": "class", "source": SOURCE},
}
SETTING = {"model": "logistic", "rounds": ROUNDS, "evaluate_every": ROUNDS, "metrics": ("class_error",)}

_read_once = functools.cache(examples_of)


def played(job: Job) -> dict[str, Any]:
    rule, attack, seed = job
    torch.set_num_threads(1)
    run = Experiment.on("mnist-5k", RULES[rule], ATTACKS[attack], seed=seed, **SETTING)
    *_, last = simulate(run, build_task(run, load=_read_once))
    reached = last.success if attack.startswith("backdoor") else last.metrics["class_error"][SOURCE]
    return {"rule": rule, "attack": attack, "seed": seed, "error": last.test_error, "reached": reached}


def table(done: list[dict[str, Any]]) -> None:
    """How far the aim was reached, and the test error behind the slash: mean and standard deviation over seeds."""

    def cell(rule: str, attack: str) -> str:
        found = [one for one in done if (one["rule"], one["attack"]) == (rule, attack)]
        return " / ".join(_spread([one[name] for one in found]) for name in ("reached", "error"))

    print("| rule | " + " | ".join(ATTACKS) + " |")
    print("|---|" + "---:|" * len(ATTACKS))
    for rule in RULES:
        print(f"| {rule} | " + " | ".join(cell(rule, attack) for attack in ATTACKS) + " |")


def _spread(values: list[float]) -> str:
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "") if values else "not run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("targeted.json"))
    options = parser.parse_args()
    table(all_played(played, [(rule, attack, seed) for seed in options.seeds for attack in ATTACKS for rule in RULES], options.out))


if __name__ == "__main__":
    main()
