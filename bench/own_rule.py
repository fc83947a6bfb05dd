"""Whole rounds through `simulate` with this package's own rule, beside FLTrust's: what its memory and its levelling cost.

    python bench/own_rule.py
    python bench/own_rule.py --device cuda --precision float16 --repeats 200

100 clients, the paper's CNN (139,960 parameters), batches of 32, a root set of 100, random images. The rules take turns, a round each.
"""

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
import torch
from setting import HELD, B, N, examples, our_run, processor

from fltrust import Anchor, FLTrust, Task, simulate
from fltrust.models import CNN

RULES = {"FLTrust": FLTrust(), "Anchor": Anchor(), "Anchor, levelled": Anchor(limit=1e6, directions=1)}
WARM = 3  # rounds that are not timed: a GPU records its graph in the first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    images, labels = (part.numpy() for part in examples())
    clients, root = list(np.arange(N * HELD).reshape(N, HELD)), np.arange(N * HELD, len(images))
    task = Task.from_arrays(
        images, labels, images[:10], labels[:10], clients=clients, root=root, model=CNN((1, 28, 28), 10), device=options.device
    )
    run = replace(our_run(N, B), precision=options.precision)
    rounds = {name: simulate(replace(run, rule=rule), task) for name, rule in RULES.items()}
    times: dict[str, list[float]] = {name: [] for name in RULES}
    for turn in range(WARM + options.repeats):
        for name, records in rounds.items():
            began = time.perf_counter()
            next(records)
            if options.device == "cuda":
                torch.cuda.synchronize()
            if turn >= WARM:
                times[name].append(1000 * (time.perf_counter() - began))
    print(torch.cuda.get_device_name() if options.device == "cuda" else processor(), f"torch {torch.__version__}", sep=", ")
    usual = statistics.median(times["FLTrust"])
    for name, taken in times.items():
        middle = statistics.median(taken)
        print(f"{name:<18} {middle:8.3f} ms a round ({min(taken):.3f} to {max(taken):.3f}), {middle / usual:.2f} x FLTrust's")


if __name__ == "__main__":
    main()
