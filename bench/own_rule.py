"""Whole rounds with this package's own rule on this CPU, beside FLTrust's: what its memory and its levelling cost.

    python bench/own_rule.py --repeats 25

100 clients, the paper's CNN (139,960 parameters), batches of 32, a root set of 100, random images. The rules take turns, a round each.
`bench/gpu_rounds.py` does the same on a GPU.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch
from setting import HELD, B, N, examples, our_rounds, our_run, processor

from fltrust import Anchor, FLTrust

RULES = {"FLTrust": FLTrust(), "Anchor": Anchor(), "Anchor, levelled": Anchor(limit=1e6, directions=1)}
WARM = 3  # rounds that are not timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    images, labels = (part.numpy() for part in examples())
    rounds = {name: our_rounds(replace(our_run(N, B), rule=rule), images, labels, HELD) for name, rule in RULES.items()}
    times: dict[str, list[float]] = {name: [] for name in RULES}
    for turn in range(WARM + options.repeats):
        for name, records in rounds.items():
            began = time.perf_counter()
            next(records)
            if turn >= WARM:
                times[name].append(1000 * (time.perf_counter() - began))
    print(f"{processor()}, torch {torch.__version__}")
    usual = statistics.median(times["FLTrust"])
    for name, taken in times.items():
        middle = statistics.median(taken)
        print(f"{name:<18} {middle:8.3f} ms a round ({min(taken):.3f} to {max(taken):.3f}), {middle / usual:.2f} x FLTrust's")


if __name__ == "__main__":
    main()
