"""What several test files build on: a small task, quick to train."""

import itertools
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded, as the program does
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # before Flower is loaded

import numpy as np
import pytest
import torch
from browser import Browser
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from fltrust.attacks import Attack, Trigger
from fltrust.codec import built
from fltrust.registry import ATTACKS, RULES
from fltrust.rules import Median, Rule
from fltrust.rules.rule import Aggregate
from fltrust.tasks.task import Task

if TYPE_CHECKING:
    from fake_federation import Clock

# Hypothesis looks at the clock unless told otherwise, and a busy machine is no fault of a test.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# A job in a shell's background ignores Ctrl-C, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


SLOW = {"browser", "federation", "secure", "address"}  # fixtures that start a browser, a federation of processes, a cluster


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and not SLOW.isdisjoint(item.fixturenames):
            item.add_marker("slow")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium of its own for the tests of one file, which skip themselves where there is none."""
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def rule_of(name: str, tolerate: int = 1) -> Rule:
    """A registered rule with what it must be told: whom to tolerate (nobody, for Bulyan among few), and the rule within it."""
    tolerate = 0 if name == "bulyan" else tolerate
    rule: Rule = built(RULES, name, {"tolerate": tolerate, "trim": tolerate, "rule": Median()})
    return rule


def shares_in(aggregate: Aggregate) -> Tensor:
    """The shares of an aggregate that has some."""
    assert aggregate.shares is not None
    return aggregate.shares


def small_task(*, num_clients: int = 6, malicious: int = 0, attack: Attack | None = None, seed: int = 0, side: int = 0) -> Task:
    """Three classes of points (or of side x side images) around their centres; client i holds 10 + i examples, the server 12."""
    rng = np.random.default_rng(seed)
    shape = (1, side, side) if side else (8,)
    centres = 2 * rng.standard_normal((3, *shape))
    sizes = [10 + i for i in range(num_clients)]
    count = sum(sizes) + 12

    def points(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 3, count)
        return (centres[labels] + rng.standard_normal((count, *shape))).astype(np.float32), labels

    images, labels = points(count)
    test_images, test_labels = points(90)
    edges = np.cumsum([12, *sizes])
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 5), nn.ReLU(), nn.Linear(5, 3))
    return Task.from_arrays(
        images,
        labels,
        test_images,
        test_labels,
        clients=[np.arange(first, last) for first, last in itertools.pairwise(edges)],
        root=np.arange(12),
        model=model,
        malicious=malicious,
        attack=attack,
    )


FOUR_FEATURES = Trigger(((0,), (2,), (4,), (6,)), 3.0, 1)


def small_attack(name: str, trigger: Trigger = FOUR_FEATURES) -> Attack:
    """An attack by its name, with parameters for a task of three classes."""
    classes = {"source": 0, "target": 2} if name == "label-flip-targeted" else {}
    attack: Attack = built(ATTACKS, {"name": name, **classes}, {"trigger": trigger})
    return attack


@pytest.fixture
def quiet_flower() -> Iterator[None]:
    """Without Flower's lines about each round."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> "Clock":
    """A federation's time passes only where its server sleeps."""
    from fake_federation import Clock  # needs Flower, which not every test does

    clock = Clock()
    monkeypatch.setattr("fltrust.flower.mailbox.time", clock)
    monkeypatch.setattr("fltrust.flower.strategy.time", clock)
    return clock


@pytest.fixture
def task() -> Task:
    return small_task()


@pytest.fixture(scope="session")
def har(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 users with 8 windows each, in UCI's layout."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for part, users in (("train", range(1, 22)), ("test", range(22, 31))):
        where = folder / "har" / "UCI HAR Dataset" / part
        where.mkdir(parents=True)
        owners = np.repeat(list(users), 8)
        labels = rng.integers(1, 7, len(owners))
        features = np.clip(rng.normal(0, 0.3, (len(owners), 561)) + np.eye(6)[labels - 1] @ rng.normal(0, 0.3, (6, 561)), -1, 1)
        np.savetxt(where / f"X_{part}.txt", features, fmt="%.3f")
        np.savetxt(where / f"y_{part}.txt", labels, fmt="%d")
        np.savetxt(where / f"subject_{part}.txt", owners, fmt="%d")
    return folder
