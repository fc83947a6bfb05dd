"""The open choices: each does what its name says."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from fltrust import threads
from fltrust.attacks import Knowledge, TrimAttack
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.models import CNN, initialise
from fltrust.rules import FedAvg
from fltrust.tasks.arrays import standardised
from fltrust.tasks.splits import partition


def known(own: torch.Tensor, others: torch.Tensor) -> Knowledge:
    chance = torch.Generator().manual_seed(0)
    return Knowledge(own, others, None, n=len(own) + len(others), tolerate=len(own), num_clients=10, generator=chance)


def test_fedavg_by_size_and_plain() -> None:
    updates, sizes = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([3.0, 1.0])
    assert FedAvg()(updates, None, sizes).update.tolist() == [0.75, 0.25]
    assert FedAvg(by_size=False)(updates, None, sizes).update.tolist() == [0.5, 0.5]


def test_the_trim_attacks_reach() -> None:
    own, others = torch.full((50, 1), 2.0), torch.tensor([[4.0], [6.0]])
    near = TrimAttack(reach=1.0).craft(known(own, others))
    assert near.unique().tolist() == [2.0]  # the sum is positive, so the least value, and no step beyond it
    far = TrimAttack(reach=10.0).craft(known(own, others))
    assert 0.2 <= far.min() < 0.3
    assert 1.5 < far.max() <= 2.0
    with pytest.raises(InputError, match="at least 1"):
        TrimAttack(reach=0.5)


def test_the_trim_attack_from_honest_updates_only() -> None:
    own, others = torch.full((3, 1), -9.0), torch.tensor([[4.0], [6.0]])
    assert TrimAttack(reach=1.0, honest_only=True).craft(known(own, others)).unique().tolist() == [4.0]
    assert TrimAttack(reach=1.0).craft(known(own, others)).unique().tolist() == [6.0]  # with their own the sum is negative: the largest


def test_standardised_features() -> None:
    train = np.array([[1.0, 5.0, 7.0], [3.0, 9.0, 7.0]], np.float32)
    ours, theirs = standardised(train, np.array([[2.0, 11.0, 8.0]], np.float32))
    assert ours.tolist() == [[-1, -1, 0], [1, 1, 0]]
    assert theirs.tolist() == [[0, 2, 0]]  # the third never changes in training: nothing is known of its scale


def test_torchs_own_first_weights() -> None:
    torch.manual_seed(0)
    theirs = CNN((1, 28, 28), 10)
    ours = initialise(CNN((1, 28, 28), 10), np.random.default_rng(0), "torch")
    for (name, parameter), own in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert own.abs().max().item() == pytest.approx(parameter.abs().max().item(), rel=0.1 if parameter.numel() > 200 else 0.3), name
        assert own.any()


def test_a_root_set_at_random_has_no_quota() -> None:
    labels = np.repeat(np.arange(10), 100)

    def counts(sampling: str) -> list[int]:
        held = partition(
            labels, None, num_clients=10, num_classes=10, bias=0.5, root_size=100, root_sampling=sampling, rng=np.random.default_rng(0)
        )
        assert sum(map(len, held.clients)) == 900  # nobody else holds them
        return [int(count) for count in np.bincount(labels[held.root], minlength=10)]

    assert counts("quota") == [10] * 10
    assert counts("random") != [10] * 10
    assert sum(counts("random")) == 100
    with pytest.raises(InputError, match="exact numbers"):
        Experiment.on("mnist-0.5", root_sampling="random", root_bias=0.4)


def test_a_cluster_can_give_a_process_fewer_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    everyone = threads.cores.__wrapped__()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads.cores.__wrapped__() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    assert threads.cores.__wrapped__() == everyone
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert threads.cores.__wrapped__() == everyone


LATER = """
import threading, torch
from fltrust.threads import each

before = torch.get_num_threads()
assert each(lambda part: torch.get_num_threads(), range(9)) == [1] * 9
later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
seen = []
later.start()
later.join()
assert seen == [before] == [torch.get_num_threads()], seen
"""


def test_threads_of_the_program_around_it_keep_their_cores() -> None:
    """torch gives one thread's setting to all threads that begin later."""
    subprocess.run([sys.executable, "-c", LATER], check=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
