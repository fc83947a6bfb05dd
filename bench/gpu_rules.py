"""What each rule adds to a whole round on one CUDA device, beside FedAvg's round.

    PYTHONPATH=src python bench/gpu_rules.py            # every registered rule
    PYTHONPATH=src python bench/gpu_rules.py krum nnm+median

The task of `gpu_rounds.py`: 100 clients, the paper's CNN (139,960 parameters), random images, float16 products. The median of five blocks
of 40 rounds, after 20 rounds to warm up. FedAvg is timed first and last. Rules that ask how many clients are malicious are told 20.
"""

import statistics
import sys
import time

import gpu_rounds
import torch

from fltrust.attacks import ATTACKS
from fltrust.codec import built
from fltrust.errors import InputError
from fltrust.rules import RULES, Median

TOLD = {"tolerate": 20, "trim": 20, "rule": Median()}  # the last is for rules that hold one
MOST_SECONDS = 90.0


def main() -> None:
    gpu_rounds.BLOCK, gpu_rounds.WARM = 40, 20
    begin, data = time.perf_counter(), gpu_rounds.task()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    fedavg = 0.0
    for name in ("fedavg", *(sys.argv[1:] or [name for name in RULES if name != "fedavg"]), "fedavg"):
        if time.perf_counter() - begin > MOST_SECONDS:
            print(f"{name:<28} not run: {MOST_SECONDS:g} s are over", flush=True)
            continue
        try:
            times = gpu_rounds.milliseconds(data, rule=built(RULES, name, TOLD), attack=ATTACKS["none"]())
        except InputError as problem:  # one rule that cannot run here must not hide the others
            print(f"{name:<28} not run: {problem}", flush=True)
            continue
        middle = statistics.median(times)
        fedavg = fedavg or middle
        print(f"{name:<28} {middle:8.3f} ms a round ({times[0]:.3f} to {times[-1]:.3f}), {middle - fedavg:+8.3f} beside FedAvg", flush=True)


if __name__ == "__main__":
    main()
