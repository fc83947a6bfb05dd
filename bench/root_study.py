"""How much a rule with a root set loses if that set is small, biased, wrongly labelled or old: the tables of docs/root-set.md.

    python bench/root_study.py --rules fltrust fltrust-two-level --seeds 0 1 --out root_study.jsonl
    python bench/root_study.py --dataset har --data-dir DATA --out root_study.jsonl
    python bench/root_study.py --out root_study.jsonl --print       # only the tables of what the file holds

One in five clients is malicious. Attacks: none, trim, and the search on the rule itself with two aims. One process with one thread; runs
that the file already holds are not repeated, the first seed of everything comes first.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import argparse
import functools
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fltrust import Experiment, Task, build_task, simulate
from fltrust.datasets import examples_of
from fltrust.randomness import stream
from fltrust.rootset.measure import by_mean

ATTACKS = ("none", "trim", "searched", "searched unseen")  # a search may say its aim
# What is done to a root set of 100 even examples.
USUAL = {"size": 100}
SETTINGS: list[dict[str, Any]] = [
    USUAL,
    *({"size": size} for size in (10, 20, 50, 200, 500)),
    *({"size": 100, "wrong": share} for share in (0.1, 0.2, 0.3)),
    *({"size": 100, "bias": bias} for bias in (0.3, 0.5, 0.8, 1.0)),
    {"size": 100, "old": True},
]
_read_once = functools.cache(examples_of)


def spoiled(task: Task, wrong: float, old: bool, seed: int) -> Task:
    """The task with wrong labels on a share of its root set, or with a root set from an older sensor."""
    root = torch.from_numpy(task.root)
    inputs, targets = task.inputs.clone(), task.targets.clone()
    if wrong:
        rng = stream(seed, "wrong root labels")
        liars = root[rng.permutation(len(root))[: round(wrong * len(root))]]
        others = torch.from_numpy(rng.integers(1, task.num_classes, len(liars)))
        targets[liars] = (targets[liars] + others) % task.num_classes
    if old and inputs.dim() > 2:  # images: moved by 3 pixels
        inputs[root] = torch.roll(inputs[root], 3, dims=-1)
    elif old:  # features: each moved by half a standard deviation, up or down
        signs = torch.from_numpy(stream(seed, "old root").integers(0, 2, inputs.shape[1]) * 2.0 - 1).to(inputs.dtype)
        inputs[root] += 0.5 * inputs.std(0) * signs
    return replace(task, inputs=inputs, targets=targets)


def played(job: dict[str, Any], data_dir: str | None, rounds: int) -> dict[str, Any]:
    setting, (name, _, aim) = job["setting"], job["attack"].partition(" ")
    attack = {"name": name, "aim": aim} if aim else name
    # By the mean loss, so that a larger root set does not mean longer steps.
    run = by_mean(Experiment.on(job["dataset"], job["rule"], attack, model="logistic", seed=job["seed"], rounds=rounds))
    run = replace(run, root_size=setting["size"], root_bias=setting.get("bias"), evaluate_every=rounds)
    task = spoiled(build_task(run, data_dir=data_dir, load=_read_once), setting.get("wrong", 0.0), setting.get("old", False), job["seed"])
    started = time.perf_counter()
    *_, last = simulate(run, task)
    return {**job, "rounds": rounds, "error": last.test_error, "seconds": round(time.perf_counter() - started, 1)}


def named(setting: dict[str, Any]) -> str:
    if "wrong" in setting:
        return f"{setting['wrong']:.0%} wrong labels"
    if "bias" in setting:
        return f"{setting['bias']:g} of class 1"
    return "old" if "old" in setting else f"{setting['size']} examples"


def tables(done: list[dict[str, Any]]) -> None:
    rules, seeds = list(dict.fromkeys(one["rule"] for one in done)), {one["seed"] for one in done}

    def cell(dataset: str, setting: dict[str, Any], attack: str, rule: str) -> str:
        asked = (dataset, setting, attack, rule)
        errors = [one["error"] for one in done if (one["dataset"], one["setting"], one["attack"], one["rule"]) == asked]
        if not errors:
            return "not run"
        spread = f" ± {statistics.stdev(errors):.3f}" if len(errors) > 1 else ""
        return f"{statistics.fmean(errors):.3f}{spread}" + (f" (n = {len(errors)})" if len(errors) < len(seeds) else "")

    for dataset in dict.fromkeys(one["dataset"] for one in done):
        here = [one for one in done if one["dataset"] == dataset]
        print(f"\n{dataset}, {here[0]['rounds']} rounds, seeds {', '.join(map(str, sorted(seeds)))}\n")
        heads = [f"{attack}: {rule}" for attack in ATTACKS for rule in rules]
        print("| root set | " + " | ".join(heads) + " |\n|---|" + "---:|" * len(heads))
        for setting in SETTINGS:
            if any(one["setting"] == setting for one in here):
                cells = [cell(dataset, setting, attack, rule) for attack in ATTACKS for rule in rules]
                print(f"| {named(setting)} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="+", default=["fltrust"])
    parser.add_argument("--dataset", default="mnist-5k")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS))
    parser.add_argument(
        "--only", nargs="+", metavar="ROOT_SET", default=[named(setting) for setting in SETTINGS], help="by their names in the table"
    )
    parser.add_argument("--out", type=Path, default=Path("root_study.jsonl"))
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    known = [{name: one[name] for name in ("dataset", "rule", "setting", "attack", "seed")} for one in done]
    jobs = [
        {"dataset": options.dataset, "rule": rule, "setting": setting, "attack": attack, "seed": seed}
        for seed in options.seeds
        for setting in SETTINGS
        if named(setting) in options.only
        for attack in options.attacks
        for rule in options.rules
    ]
    for job in [] if options.print else jobs:
        if job not in known:
            done.append(played(job, options.data_dir, options.rounds))
            with options.out.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
            print(done[-1], flush=True)
    tables(done)


if __name__ == "__main__":
    main()
