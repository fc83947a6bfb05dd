"""On a CUDA device: the rules as on the CPU, and a run as a CUDA graph equal to the same run without one."""

import dataclasses
from typing import Any

import pytest
import torch
from conftest import small_attack

from fltrust.attacks import ATTACKS
from fltrust.codec import built
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.rules import FLAME, RULES, Aggregate, Anchor, FLDetector, FoolsGold, Median, Received, Rule, SignGuard, pairs, rows, take_step
from fltrust.rules.krum import krum_picks
from fltrust.simulation import _Plain, simulate
from fltrust.tasks.task import Task
from fltrust.training.optimisers import Adam, Momentum

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

import numpy as np

from fltrust.attacks import Trigger
from fltrust.models import CNN, BucketingCNN, ResNet20, initialise


def rule_of(name: str, tolerate: int) -> Rule:
    rule: Rule = built(RULES, name, {"tolerate": tolerate, "trim": tolerate, "rule": Median()})
    return rule


def every_rule() -> list[Rule]:
    """Those that draw nothing: a GPU draws other numbers."""
    rules = [rule_of(name, 2) for name in RULES]
    within = [rule_of(f"{name}+krum", 2) for name in ("nnm", "arc", "by-size")]
    return [rule for rule in rules if not rule.needs_generator] + [FLAME(noise=0), FoolsGold(last=1000), Anchor(directions=2), *within]


def two_rounds(rule: Rule, updates: torch.Tensor, root: torch.Tensor, sizes: torch.Tensor) -> Aggregate:
    """The second of two rounds, so that what a rule remembers of the first counts."""
    view = Received(
        updates,
        root,
        sizes,
        client_ids=torch.arange(len(updates), device=updates.device),
        weights=10 * root,
        root_loss=lambda models: (models - 11 * root).square().sum(1),
        root_update_from=lambda weights: (11 * root - weights) / 2,
        round=torch.ones((), dtype=torch.int64, device=updates.device),
        global_lr=torch.ones((), device=updates.device),
    )
    memory = take_step(rule, view, rule.init(len(updates), root))[1]
    return take_step(rule, dataclasses.replace(view, updates=updates.flip(0, 1)), memory)[0]


@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("broken", [False, True])
def test_rules_are_those_of_the_cpu(rule: Rule, broken: bool) -> None:
    updates = torch.randn(20, 30_011, generator=torch.Generator().manual_seed(1))
    root = torch.randn(30_011, generator=torch.Generator().manual_seed(2))
    updates += 0.3 * root
    if broken:
        updates[3, 7], updates[5, 1], updates[9] = float("nan"), float("inf"), 0
        updates[11] *= 1e30
    sizes = torch.arange(1.0, 21)
    here, there = (two_rounds(rule, updates.to(device), root.to(device), sizes.to(device)) for device in ("cpu", "cuda"))
    torch.testing.assert_close(there.update.cpu(), here.update, rtol=1e-4, atol=1e-5)
    assert (here.shares is None) == (there.shares is None)
    if here.shares is not None and there.shares is not None:
        torch.testing.assert_close(there.shares.cpu(), here.shares, rtol=1e-4, atol=1e-6)


def image_task(attack: Any, device: str, *, residual: bool = False, dropout: bool = False) -> Task:
    rng = np.random.default_rng(0)
    shape = (3, 16, 16) if residual else (1, 28, 28)
    labels = rng.integers(0, 10, 400)
    images = (rng.random((400, *shape)) + labels[:, None, None, None] / 5).astype(np.float32)
    network = (ResNet20 if residual else BucketingCNN if dropout else CNN)(shape, 10)
    clients = np.split(np.arange(30, 390), 12)
    return Task.from_arrays(
        images,
        labels,
        images[:200],
        labels[:200],
        clients=clients,
        root=np.arange(30),
        model=initialise(network, np.random.default_rng(1)),
        malicious=3,
        attack=attack,
        device=device,
    )


def run_of(rule: str, attack: Any, **changes: Any) -> Experiment:
    made_rule = rule_of(rule, 2 if rule == "bulyan" else 3)  # Bulyan needs 4f + 3 clients
    fixed = {"dataset": "own", "model": "own", "num_clients": 12, "clients_per_round": 12, "malicious": 3, "batch_size": 8, "root_size": 30}
    return Experiment(
        **{
            **fixed,
            "rule": made_rule,
            "attack": attack,
            "rounds": 4,
            "global_lr": 1e-3,
            "loss": "sum",
            "evaluate_every": 1,
            **changes,
        }
    )


def made(attack: str) -> Any:
    return small_attack(attack, Trigger(((1, 1), (2, 2), (1, 3), (3, 1)), 5.0, 1))


@pytest.mark.parametrize(
    ("rule", "attack"),
    [(rule, "trim") for rule in RULES] + [(rule, attack) for rule in ("fedavg", "fltrust") for attack in ATTACKS if attack != "trim"],
)
def test_a_graphed_run_is_the_plain_one(monkeypatch: pytest.MonkeyPatch, rule: str, attack: str) -> None:
    run, task = run_of(rule, made(attack)), image_task(made(attack), "cuda")
    graphed = list(simulate(run, task))
    monkeypatch.setattr("fltrust.simulation._Graphed", _Plain)
    assert_same(graphed, list(simulate(run, task)), 1e-5)


ON_HOST: list[Rule] = [FLDetector(window=2, start=1), FLDetector(window=2, start=1, for_good=True), SignGuard(similarity=True)]


@pytest.mark.parametrize("changes", [{}, {"clients_per_round": 6}, {"server": Momentum()}, {"client_momentum": 0.9}], ids=repr)
@pytest.mark.parametrize("attack", ["none", "trim", "mimic"])
@pytest.mark.parametrize("rule", ON_HOST, ids=repr)
def test_a_run_with_a_rule_on_the_host_is_the_plain_one(
    monkeypatch: pytest.MonkeyPatch, rule: Rule, attack: str, changes: dict[str, Any]
) -> None:
    run = dataclasses.replace(run_of("fedavg", made(attack), **{**changes, "rounds": 8}), rule=rule)
    task = image_task(made(attack), "cuda")
    half_graphed = list(simulate(run, task))
    rest = list(simulate(run, task, after=5, state=half_graphed[4].state))
    assert_same(rest, half_graphed[5:], 1e-6)
    monkeypatch.setattr("fltrust.simulation._Graphed", _Plain)
    assert_same(half_graphed, list(simulate(run, task)), 1e-5)


@pytest.mark.parametrize("local_steps", [1, 2])
def test_dropout_on_the_gpu_is_that_of_the_cpu(local_steps: int) -> None:
    run = run_of("fedavg", made("none"), local_steps=local_steps, local_lr=0.01)
    there, here = (list(simulate(run, image_task(made("none"), device, dropout=True))) for device in ("cuda", "cpu"))
    assert_same(there, here, 1e-3)


REMEMBERING: list[dict[str, Any]] = [
    {"client_momentum": 0.9},
    {"client_momentum": 0.9, "momentum_kind": "plain", "clients_per_round": 6},
    {"server": Momentum()},
    {"server": Adam()},
]


@pytest.mark.parametrize("changes", REMEMBERING, ids=repr)
@pytest.mark.parametrize(("rule", "attack"), [("fedavg", "mimic"), ("foolsgold", "none"), ("centred-clipping", "mimic")])
def test_memory_on_the_gpu_is_that_of_the_cpu(rule: str, attack: str, changes: dict[str, Any]) -> None:
    run = run_of(rule, made(attack), **changes)
    there, here = (list(simulate(run, image_task(made(attack), device))) for device in ("cuda", "cpu"))
    assert_same(there, here, 1e-3)
    rest = list(simulate(run, image_task(made(attack), "cuda"), after=2, state=there[1].state))
    assert_same(rest, there[2:], 1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clients_per_round": 6},
        {"clients_per_round": 6, "participation": "fixed"},
        {"local_steps": 2, "local_lr": 0.01},
        {"local_epochs": 2, "local_lr": 0.01},
        {"root_batch": "batch"},
        {"loss": "mean"},
    ],
)
@pytest.mark.parametrize("attack", ["none", "trim", "scaling", "optimal-adaptive"])
def test_a_run_on_the_gpu_has_the_batches_and_numbers_of_the_cpu(attack: str, changes: dict[str, Any]) -> None:
    run = run_of("fltrust", made(attack), **changes)
    if attack == "trim":  # its noise is drawn on the device, so only what does not depend on it is equal
        run = run_of("fltrust-server", made(attack), **changes)
    there, here = (list(simulate(run, image_task(made(attack), device))) for device in ("cuda", "cpu"))
    assert_same(there, here, 2e-4)


@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
def test_batch_norm_on_the_gpu(precision: str) -> None:
    run = run_of("fedavg", made("none"), rounds=2, precision=precision)
    there = list(simulate(run, image_task(made("none"), "cuda", residual=True)))
    here = list(simulate(run, image_task(made("none"), "cpu", residual=True)))
    assert_same(there, here, {"float32": 1e-4, "tf32": 2e-3, "float16": 1e-2}[precision])


def test_it_goes_on_with_the_same_bits() -> None:
    run, task = run_of("fltrust", made("adaptive")), image_task(made("adaptive"), "cuda")
    whole = list(simulate(run, task))
    rest = list(simulate(run, task, after=2, state=whole[1].state))
    assert_same(rest, whole[2:], 1e-6)


@pytest.mark.parametrize("kind", ["normal", "whole", "copies"])
@pytest.mark.parametrize("n", [3, 11, 100, 128, 1000])
def test_the_window_in_registers_is_the_plain_one(n: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    generator = torch.Generator().manual_seed(n)
    updates = torch.randint(-3, 4, (n, 1001), generator=generator).float() if kind == "whole" else torch.randn(n, 1001, generator=generator)
    if kind == "copies":
        updates[n // 2 :] = updates[: n - n // 2].clone()
        updates[-1] *= 1e30
    usable = torch.rand(n, generator=generator) < 0.9
    updates[~usable] = float("nan")
    updates, usable = updates.cuda(), usable.cuda()
    cases = [(drop, trim) for drop in sorted({0, 1, n // 5, (n - 1) // 2, n}) for trim in (None, drop)]
    fast = [rows.nearest_mean(updates, usable, *case) for case in cases]
    monkeypatch.setattr(rows, "gpu_kernels", lambda: None)
    for case, result in zip(cases, fast, strict=True):
        torch.testing.assert_close(result, rows.nearest_mean(updates, usable, *case), rtol=1e-12, atol=1e-14, msg=str(case))


@pytest.mark.parametrize("n", [3, 7, 11, 31, 100, 128])
def test_picks_by_one_program_are_the_plain_ones(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    generator = torch.Generator().manual_seed(n)
    f = (n - 3) // 4
    drawn = [torch.randn(n, 9, generator=generator), torch.randint(-2, 3, (n, 2), generator=generator).double()]  # few ties and many
    distances = [pairs.sq_distances_of(points.double() @ points.double().T).cuda() for points in drawn]
    usable = (torch.rand(n, generator=generator) < 0.9).cuda()
    cases = [(matrix, f, usable, 2 * f, most) for matrix in distances for most in (n, 2)]
    fast = [krum_picks(*case) for case in cases]
    monkeypatch.setattr(pairs, "gpu_kernels", lambda: None)
    for case, picked in zip(cases, fast, strict=True):
        assert torch.equal(picked, krum_picks(*case))


def test_inner_products_on_the_device_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, others = torch.randn(3, 20, 5000, generator=torch.Generator().manual_seed(0)), torch.randn(3, 9, 5000)
    gpu = pytest.importorskip("fltrust.fast.gpu")
    taken, kernel = [], gpu.inner_products

    def counted(*given: torch.Tensor) -> torch.Tensor:
        taken.append(given)
        products: torch.Tensor = kernel(*given)
        return products

    monkeypatch.setattr(gpu, "inner_products", counted)
    monkeypatch.setattr(pairs, "_AT_ONCE", (1 << 20, 60 * 2048))  # 2,048 columns at a time
    fast = pairs.inner_products_with(rows.cuda(), others.cuda())
    assert len(taken) == 3
    torch.testing.assert_close(fast.cpu(), pairs.inner_products_with(rows, others), rtol=0, atol=5e-7 * 5000)
    monkeypatch.setattr("fltrust.rules.rows.gpu_kernels", lambda: None)
    plain = pairs.inner_products_with(rows.cuda(), others.cuda())
    torch.testing.assert_close(fast, plain, rtol=0, atol=5e-7 * 5000)


def test_equal_rows_have_equal_products_and_a_broken_row_breaks_its_own() -> None:
    updates = torch.randn(12, 5000, generator=torch.Generator().manual_seed(0)).cuda()
    updates[7] = updates[2]
    products = pairs.gram(updates)
    assert products[2, 2] == products[2, 7] == products[7, 2] == products[7, 7]
    far = torch.tensor([2.0**120, 2.0**-60, 1.0]).cuda().repeat(4)  # a power of two rounds nothing
    assert torch.equal(pairs.gram(updates * far[:, None]), products * far.double()[:, None] * far.double())
    broken = updates.clone()
    broken[4, 9], broken[5, 1] = torch.nan, torch.inf
    there = torch.ones(12, dtype=torch.bool).cuda()
    there[4:6] = False
    assert torch.equal(pairs.gram(broken)[there][:, there], products[there][:, there])


def assert_same(some: list[Record], others: list[Record], tolerance: float) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.weights is not None
        assert other.weights is not None
        assert one.clients == other.clients
        difference = (one.weights.cpu() - other.weights.cpu()).norm() / other.weights.cpu().norm()
        assert difference < tolerance
