"""What the measurements share: a quiet machine, and the round's examples, network and FLTrust as it is usually ported to torch.

n = 100 clients, b = 32 examples of each in a round, a root set of 100, d = 139,960 parameters.
"""

import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fltrust import Experiment, FLTrust, Record, Task, simulate
from fltrust.models import CNN
from fltrust.store.files import hardware

N, B, ROOT, HELD = 100, 32, 100, 100  # clients, batch, root set, examples that each client holds
LR = 3e-4
STAT = Path("/proc/stat")


def network() -> nn.Module:
    """The paper's CNN as one writes it: ReLU, then pooling."""
    return nn.Sequential(
        nn.Conv2d(1, 30, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(30, 50, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1250, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip


@cache
def examples() -> tuple[Tensor, Tensor]:
    """Random images and labels: client i holds the HELD examples from i * HELD on, the server the last ROOT."""
    chance = torch.Generator().manual_seed(0)
    count = N * HELD + ROOT
    return torch.rand(count, 1, 28, 28, generator=chance), torch.randint(0, 10, (count,), generator=chance)


def batch_of(client: int) -> tuple[Tensor, Tensor]:
    images, labels = examples()
    picked = client * HELD + torch.randperm(HELD)[:B]
    return images[picked], labels[picked]


def root_batch() -> tuple[Tensor, Tensor]:
    images, labels = examples()
    return images[-ROOT:], labels[-ROOT:]


def our_run(num_clients: int, batch_size: int) -> Experiment:
    """FLTrust, all clients in every round."""
    many = 1_000_000  # rounds, so that none of those timed is evaluated
    return Experiment(
        dataset="random",
        rule=FLTrust(),
        num_clients=num_clients,
        malicious=0,
        clients_per_round=num_clients,
        rounds=many,
        evaluate_every=many,
        batch_size=batch_size,
        global_lr=LR,
        loss="sum",
    )


def our_rounds(run: Experiment, images: np.ndarray, labels: np.ndarray, held: int) -> Iterator[Record]:
    """With the paper's CNN. Each client holds so many of the examples, the server what is left."""
    owned = run.num_clients * held
    clients, root = list(np.arange(owned).reshape(run.num_clients, held)), np.arange(owned, len(images))
    return simulate(run, Task.from_arrays(images, labels, images[:10], labels[:10], clients=clients, root=root, model=CNN((1, 28, 28), 10)))


def usual_fltrust(updates: Tensor, root_update: Tensor) -> Tensor:
    """Cosine similarities, then the matrix of rescaled updates, then its weighted mean."""
    trust = torch.relu(torch.cosine_similarity(updates, root_update[None]))
    rescaled = updates / updates.norm(dim=1, keepdim=True) * root_update.norm()
    mean: Tensor = (trust[:, None] * rescaled).sum(dim=0) / trust.sum()
    return mean


def processor() -> str:
    """Its name, and the vector instructions that torch uses on it."""
    return f"{hardware('cpu')} ({torch.backends.cpu.get_cpu_capability()})"


class Clock:
    """Wall time on a quiet machine, or the processor time of one thread, for a machine that others use too."""

    def __init__(self) -> None:
        self.busy = False

    def on_a_busy_machine(self) -> None:
        self.busy = True
        torch.set_num_threads(1)

    def now(self) -> float:
        return time.process_time() if self.busy else time.perf_counter()

    def wait(self) -> None:
        if not self.busy:
            wait_until_quiet()


CLOCK = Clock()
BUSY = "processor time of one thread, without waiting for a quiet machine"


def others_busy(seconds: float = 0.3) -> float:
    """How many cores work while this process sleeps; 0 where the system does not say."""

    def ticks() -> tuple[int, int]:
        user, nice, system, idle, waiting, *rest = map(int, STAT.read_text().splitlines()[0].split()[1:])
        return user + nice + system + sum(rest[:3]), idle + waiting

    if not STAT.exists():
        return 0.0
    busy, idle = ticks()
    time.sleep(seconds)
    more_busy, more_idle = ticks()
    return (os.cpu_count() or 1) * (more_busy - busy) / max(1, more_busy - busy + more_idle - idle)


def wait_until_quiet(most_seconds: float = 120) -> None:
    """Waits until nothing else runs on the machine, and says so if that does not come."""
    end = time.monotonic() + most_seconds
    while (busy := others_busy()) > 0.1:
        if time.monotonic() > end:
            print(f"not quiet: others use {busy:.1f} cores")
            return
