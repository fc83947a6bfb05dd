"""Whole rounds through `simulate` on one CUDA device: what memory costs beside the round itself.

    PYTHONPATH=src python bench/gpu_rounds.py [part of a case's name]

100 clients, the paper's CNN (139,960 parameters), batches of 32, a root set of 100, random images, float16 products unless a case says
float32. Each case: the median and the range of five blocks of 200 rounds, after 100 rounds to warm up.
"""

import sys
import time
from typing import Any

import numpy as np
import torch

from fltrust import Experiment, Task, simulate
from fltrust.attacks import ATTACKS
from fltrust.models import CNN, initialise
from fltrust.rules import RULES
from fltrust.training.optimisers import Adam

N, BLOCK, BLOCKS, WARM = 100, 200, 5, 100


def task() -> Task:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20_100, 1, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, len(images))
    network = initialise(CNN((1, 28, 28), 10), np.random.default_rng(1))
    clients = np.split(np.arange(100, len(images)), N)
    return Task.from_arrays(
        images, labels, images[:1000], labels[:1000], clients=clients, root=np.arange(100), model=network, malicious=20, device="cuda"
    )


def milliseconds(data: Task, **changes: Any) -> list[float]:
    rounds = WARM + BLOCK * BLOCKS + 1
    fixed = {"global_lr": 3e-4, "loss": "sum", "evaluate_every": 10**9, "precision": "float16"}
    run = Experiment(dataset="random", model="cnn", rounds=rounds, **fixed | changes)
    records, times = simulate(run, data), []
    for _ in range(WARM):
        next(records)
    for _ in range(BLOCKS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(BLOCK):
            next(records)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / BLOCK * 1000)
    return sorted(times)


def cases() -> dict[str, dict[str, Any]]:
    fedavg, fltrust = RULES["fedavg"](), RULES["fltrust"]()
    return {
        "FLTrust": {"rule": fltrust},
        "FLTrust, float32": {"rule": fltrust, "precision": "float32"},
        **{f"FLTrust, {ATTACKS.entry(name).label}": {"rule": fltrust, "attack": ATTACKS[name]()} for name in ("trim", "krum", "adaptive")},
        "FLTrust, searched": {"rule": fltrust, "attack": ATTACKS["searched"]()},
        "Anchor": {"rule": RULES["anchor"]()},
        "Anchor, levelled": {"rule": RULES["anchor"](limit=1e6, directions=1)},
        "Anchor, searched": {"rule": RULES["anchor"](), "attack": ATTACKS["searched"]()},
        "FedAvg": {"rule": fedavg},
        "Krum": {"rule": RULES["krum"](20)},
        "FedAvg, clients' momentum": {"rule": fedavg, "client_momentum": 0.9},
        "FedAvg, clients' momentum, 50 of 100 a round": {"rule": fedavg, "client_momentum": 0.9, "clients_per_round": 50},
        "FedAvg, 50 of 100 a round": {"rule": fedavg, "clients_per_round": 50},
        "FedAvg, server Adam": {"rule": fedavg, "server": Adam()},
        "centred clipping": {"rule": RULES["centred-clipping"]()},
        "FoolsGold": {"rule": RULES["foolsgold"]()},
        "FedAvg, Mimic": {"rule": fedavg, "attack": ATTACKS["mimic"]()},
    }


if __name__ == "__main__":
    data = task()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    for name, changes in cases().items():
        if len(sys.argv) > 1 and sys.argv[1] not in name:
            continue
        times = milliseconds(data, **changes)
        print(f"{name:<46} {times[BLOCKS // 2]:7.3f} ms a round ({times[0]:.3f} to {times[-1]:.3f})", flush=True)
