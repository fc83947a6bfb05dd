"""Attacks on the malicious clients' data: label flipping, DBA, Neurotoxin, edge cases; and every attack in a short run on images."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FOUR_FEATURES, small_attack, small_task
from torch import Tensor

from fltrust.attacks import (
    ATTACKS,
    DBA,
    EdgeCase,
    Knowledge,
    LabelFlipDynamic,
    LabelFlipRandom,
    LabelFlipTargeted,
    MaliciousClient,
    Neurotoxin,
    Trigger,
)
from fltrust.attacks import attack as interface
from fltrust.attacks.backdoors import _edge_cases
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.metrics import evaluate
from fltrust.objectives import BinaryCrossEntropy
from fltrust.registry import DATASETS
from fltrust.round import Draw, client_updates
from fltrust.rules import FLTrust
from fltrust.simulation import _draws, simulate
from fltrust.tasks.build import build_task
from fltrust.tasks.task import Task
from fltrust.triggers import four_bars

TEN = MaliciousClient(num_classes=10)
SMALL: dict[str, Any] = {"dataset": "small", "model": "own", "num_clients": 6, "clients_per_round": 6, "batch_size": 4, "root_size": 12}


def small_run(**changes: Any) -> Experiment:
    return Experiment(**{**SMALL, "malicious": 2, "rounds": 3, "global_lr": 0.05, "loss": "sum", "evaluate_every": 1, **changes})


def client(index: int, seed: int = 0) -> MaliciousClient:
    return MaliciousClient(10, index, torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- labels


def test_targeted_flipping_changes_one_class_only() -> None:
    images, labels = torch.rand(20, 3), torch.arange(20) % 10
    same, flipped = LabelFlipTargeted(source=4, target=7).poison(images, labels, TEN)
    assert torch.equal(same, images)
    assert flipped.tolist() == [7 if label == 4 else label for label in labels.tolist()]


def test_the_success_of_targeted_flipping_is_measured_on_the_source_class() -> None:
    attack = LabelFlipTargeted(source=0, target=2)
    task = small_task()
    predicted = task.model.outputs(task.model.initial_weights, task.test_inputs).argmax(1)
    of_source = task.test_targets == 0
    expected = (predicted[of_source] == 2).float().mean().item()
    assert evaluate(task, task.model.initial_weights, attack)["success"] == pytest.approx(expected)
    nobody = replace(task, test_targets=torch.ones_like(task.test_targets))
    assert "success" not in evaluate(nobody, task.model.initial_weights, attack)


def test_random_flipping_draws_evenly_among_the_other_classes() -> None:
    labels = torch.full((9_000,), 3)
    _, flipped = LabelFlipRandom().poison(torch.zeros(9_000, 1), labels, client(0))
    counts = torch.bincount(flipped, minlength=10).tolist()
    assert counts[3] == 0
    assert all(850 < count < 1150 for label, count in enumerate(counts) if label != 3)
    again = LabelFlipRandom().poison(torch.zeros(9_000, 1), labels, client(0))[1]
    assert torch.equal(flipped, again)


def test_each_malicious_client_has_its_own_randomness_that_the_seed_decides() -> None:
    def labels(seed: int) -> list[Tensor]:
        parts = Task.from_arrays(
            np.zeros((33, 2), np.float32), np.zeros(33, np.int64), np.zeros((2, 2), np.float32), [0, 1],
            clients=np.split(np.arange(30), 3), root=np.arange(30, 33), model=torch.nn.Linear(2, 9), num_classes=9, malicious=2,
            attack=LabelFlipRandom(), seed=seed,
        )  # fmt: skip
        return [parts.targets[own] for own in parts.clients]

    first, second, honest = labels(0)
    assert not torch.equal(first, second)
    assert not honest.any()
    assert torch.equal(first, labels(0)[0])
    assert not torch.equal(first, labels(1)[0])


@pytest.mark.parametrize("to", ["least-likely", "runner-up"])
def test_dynamic_flipping_by_hand(to: Any) -> None:
    outputs = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(50) % 7
    expected = []
    for row, label in zip(outputs.tolist(), labels.tolist(), strict=True):
        order = sorted(range(7), key=lambda k, row=row: row[k])  # type: ignore[misc]
        expected.append(order[0] if to == "least-likely" else next(k for k in reversed(order) if k != label))
    assert LabelFlipDynamic(to).relabel(labels, outputs).tolist() == expected


def drawn(run: Experiment, task: Task) -> Draw:
    return next(iter(_draws(run, task, 0)))[2]


@pytest.mark.parametrize("changes", [{}, {"local_steps": 3}, {"local_epochs": 2}])
@pytest.mark.parametrize("gathered", [1, 60, 100_000])
def test_malicious_clients_train_on_the_models_least_likely_labels(
    changes: dict[str, Any], gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same updates as from data that were relabelled beforehand, for malicious clients only, however a round is cut."""
    monkeypatch.setattr("fltrust.round.GATHERED", gathered)
    monkeypatch.setattr("fltrust.round.RELABELLED", 7)
    attack = LabelFlipDynamic()
    run, task = small_run(attack=attack, local_lr=0.1, **changes), small_task(malicious=2, attack=attack)
    weights, draw = task.model.initial_weights, drawn(run, task)
    least = task.model.outputs(weights, task.inputs).argmin(1)
    own = torch.from_numpy(np.concatenate(task.clients[:2]))
    beforehand = replace(task, targets=task.targets.index_copy(0, own, least[own]))
    honest = replace(run, attack=ATTACKS["none"]())
    expected = client_updates(honest, beforehand, weights, draw, 2)
    torch.testing.assert_close(client_updates(run, task, weights, draw, 2), expected)
    plain = client_updates(honest, task, weights, draw, 2)
    assert not torch.allclose(expected[:2], plain[:2])
    assert torch.equal(expected[2:], plain[2:])


@pytest.mark.parametrize("at_once", [1, 4])
def test_dynamic_flipping_in_chunks_is_the_same(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = LabelFlipDynamic()
    run, task = small_run(attack=attack, rule=FLTrust()), small_task(malicious=2, attack=attack)
    whole = list(simulate(run, task))[-1]
    monkeypatch.setattr("fltrust.round.MANY", 3)
    monkeypatch.setattr("fltrust.round.AT_ONCE", at_once)
    chunked = list(simulate(run, task))[-1]
    assert chunked.norm is None
    assert whole.weights is not None
    assert chunked.weights is not None
    torch.testing.assert_close(chunked.weights, whole.weights, rtol=1e-5, atol=1e-6)


def test_batch_norm_sees_each_batch_by_itself_when_labels_are_chosen() -> None:
    task = small_task(malicious=2, attack=LabelFlipDynamic())
    network = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    task = Task.from_arrays(
        task.inputs.numpy(), task.targets.numpy(), task.test_inputs.numpy(), task.test_targets.numpy(),
        clients=task.clients, root=task.root, model=network, malicious=2, attack=LabelFlipDynamic(),
    )  # fmt: skip
    seen: list[Tensor] = []

    class Watching(LabelFlipDynamic):
        def relabel(self, labels: Tensor, outputs: Tensor) -> Tensor:
            seen.append(outputs)
            return super().relabel(labels, outputs)

    run = small_run(attack=Watching())
    draw = drawn(run, task)
    client_updates(run, task, task.model.initial_weights, draw, 2)
    alone = [task.model.outputs(task.model.initial_weights, task.inputs[draw.examples[i, 0]]) for i in range(2)]
    torch.testing.assert_close(seen[-1], torch.cat(alone))


def test_label_flipping_needs_classes() -> None:
    for attack in (LabelFlipTargeted(), LabelFlipRandom()):
        with pytest.raises(InputError, match="needs classes"):
            attack.poison(torch.zeros(2, 1), torch.zeros(2), MaliciousClient(num_classes=0))
    with pytest.raises(InputError, match="from 5 to 3: there are 3 classes"):
        small_task(malicious=1, attack=LabelFlipTargeted())
    with pytest.raises(InputError, match="two classes, not 3 and 3"):
        LabelFlipTargeted(3, 3)
    with pytest.raises(InputError, match="at least two classes"):
        LabelFlipRandom().poison(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64), MaliciousClient(num_classes=1))
    with pytest.raises(InputError, match="unknown label to flip to"):
        LabelFlipDynamic("likeliest")  # type: ignore[arg-type]
    features, wanted = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    with pytest.raises(InputError, match="a number for each class"):
        Task.from_arrays(
            features, wanted, features, wanted, clients=[np.arange(2)], root=np.arange(2, 4), model=torch.nn.Linear(2, 1),
            objective=BinaryCrossEntropy(), attack=LabelFlipDynamic(), malicious=1,
        )  # fmt: skip


# ---------------------------------------------------------------- DBA


def test_the_authors_four_bars() -> None:
    mnist = four_bars(4, 3, 6)
    assert mnist.target == 2
    bars = [mnist.part(i, 4).where for i in range(4)]
    starts = [(0, 0), (0, 6), (3, 0), (3, 6)]
    assert bars == [tuple((row, column + i) for i in range(4)) for row, column in starts]
    cifar = four_bars(6, 4, 9)
    assert cifar.part(3, 4).where == tuple((4, column) for column in range(9, 15))


@pytest.mark.parametrize("trigger", [*(DATASETS[name].trigger for name in ("mnist-0.5", "har", "cifar-10")), four_bars(4, 3, 6)])
@pytest.mark.parametrize("parts", [1, 3, 4])
def test_the_parts_of_a_trigger_are_the_trigger(trigger: Trigger, parts: int) -> None:
    cut = [trigger.part(i, parts) for i in range(parts)]
    assert tuple(spot for part in cut for spot in part.where) == trigger.where
    lengths = [len(part.where) for part in cut]
    assert max(lengths) - min(lengths) <= 1
    assert {(part.value, part.target) for part in cut} == {(trigger.value, trigger.target)}


def test_each_malicious_client_trains_on_its_own_part_and_tests_use_all() -> None:
    attack = DBA(four_bars(4, 3, 6))
    images, labels = torch.full((64, 1, 28, 28), 0.5), torch.full((64,), 7)
    for index in range(6):
        poisoned, flipped = attack.poison(images, labels, client(index))
        changed = (poisoned != images).flatten(1).any(1)
        assert changed.sum() == 20  # of 64, as the authors
        assert flipped.tolist() == [2 if change else 7 for change in changed.tolist()]
        expected = attack.trigger.part(index % 4, 4).stamp(images)[0]
        assert all(torch.equal(image, expected) for image in poisoned[changed])
    backdoor = attack.backdoor(images[:3], torch.tensor([2, 7, 7]))
    assert backdoor is not None
    assert torch.equal(backdoor.inputs, attack.trigger.stamp(images[:2]))
    known = Knowledge(torch.ones(1, 2), None, None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    assert DBA(four_bars(4, 3, 6), factor=100.0).craft(known).tolist() == [[100.0, 100.0]]


def test_dba_on_vectors() -> None:
    attack = DBA(DATASETS["har"].trigger, share=1.0)
    poisoned, _ = attack.poison(torch.ones(1, 561), torch.tensor([0]), client(1))
    assert (poisoned[0] == 0).nonzero().flatten().tolist() == [19 + 20 * k for k in range(7, 14)]


# ---------------------------------------------------------------- Neurotoxin


def test_neurotoxin_keeps_what_others_change_least_by_absolute_value() -> None:
    attack = Neurotoxin(FOUR_FEATURES, ratio=0.8)
    generator = torch.Generator().manual_seed(0)
    path, own = torch.randn(3, 50, generator=generator).cumsum(0), torch.randn(2, 50, generator=generator)
    memory, sent = attack.init(4, path[0]), []
    for weights in path:
        known = Knowledge(own, None, None, n=4, tolerate=2, num_clients=4, generator=generator, weights=weights)
        rows, memory = attack.step(known, memory)
        sent.append(rows)
    assert torch.equal(sent[0], own)  # nothing is known of the model's movement yet
    for t in (1, 2):
        movement = (path[t] - path[t - 1]).tolist()
        quiet = sorted(range(50), key=lambda j, movement=movement: abs(movement[j]))[:40]  # type: ignore[misc]
        expected = torch.zeros_like(own)
        expected[:, quiet] = own[:, quiet]
        assert torch.equal(sent[t], expected)
        assert any(movement[j] < 0 for j in set(range(50)) - set(quiet))  # large negative movements are left alone too


def test_neurotoxin_cuts_to_its_norm() -> None:
    attack = Neurotoxin(FOUR_FEATURES, ratio=1.0, norm=2.0)
    own = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    known = Knowledge(own, None, None, n=4, tolerate=2, num_clients=4, generator=torch.Generator(), weights=torch.zeros(2))
    rows, _ = attack.step(known, attack.init(4, torch.zeros(2)))
    torch.testing.assert_close(rows, torch.tensor([[1.2, 1.6], [0.3, 0.4]]))


# ---------------------------------------------------------------- edge cases


def test_edge_cases_are_scikit_learns_sevens_and_those_of_the_test_are_others() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    sevens = torch.from_numpy(digits.images[digits.target == 7]).float() / 16  # (179, 8, 8)
    small = torch.zeros(1, 1, 8, 8)
    train, test = _edge_cases(small, held_out=False), _edge_cases(small, held_out=True)
    assert (len(train), len(test)) == (90, 89)
    assert torch.equal(train[:, 0], sevens[::2])
    assert torch.equal(test[:, 0], sevens[1::2])
    large = _edge_cases(torch.zeros(1, 3, 28, 28), held_out=False)
    assert large.shape == (90, 3, 28, 28)
    assert torch.equal(large[:, 0], large[:, 2])
    torch.testing.assert_close(torch.nn.functional.avg_pool2d(large, 7).mean((1, 2, 3)), train.mean((1, 2, 3)), rtol=0.15, atol=0.02)


def test_edge_cases_replace_a_share_of_the_examples() -> None:
    images, labels = torch.full((40, 1, 28, 28), -1.0), torch.full((40,), 7)
    poisoned, flipped = EdgeCase(share=0.25).poison(images, labels, client(0))
    changed = (poisoned != images).flatten(1).any(1)
    assert changed.sum() == 10
    assert flipped.tolist() == [1 if change else 7 for change in changed.tolist()]
    ours = _edge_cases(images, held_out=False)
    assert all((image == ours).flatten(1).all(1).any() for image in poisoned[changed])
    assert not torch.equal(poisoned, EdgeCase(share=0.25).poison(images, labels, client(1, seed=1))[0])


def test_edge_cases_project_and_then_replace() -> None:
    own = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 2.0]])
    known = Knowledge(own, None, None, n=6, tolerate=3, num_clients=6, generator=torch.Generator())
    torch.testing.assert_close(EdgeCase(radius=2.5, factor=2.0).craft(known), torch.tensor([[3.0, 4.0], [1.2, 1.6], [0.0, 4.0]]))
    torch.testing.assert_close(EdgeCase().craft(known), torch.tensor([[1.2, 1.6], [0.6, 0.8], [0.0, 2.0]]))  # the median length is 2
    assert EdgeCase(radius=2.5).independent
    assert not EdgeCase().independent


def test_edge_cases_are_for_images() -> None:
    with pytest.raises(InputError, match=r"only images of digits: it cannot attack examples of shape \(8,\)"):
        small_task(malicious=1, attack=EdgeCase())
    with pytest.raises(InputError, match="target 3 is none of the 3 classes"):
        small_task(malicious=1, attack=EdgeCase(target=3), side=8)


def test_the_success_of_edge_cases_is_measured_on_those_held_out() -> None:
    task = small_task(side=8)
    held_out = _edge_cases(task.inputs, held_out=True)
    called = (task.model.outputs(task.model.initial_weights, held_out).argmax(1) == 1).float().mean().item()
    assert evaluate(task, task.model.initial_weights, EdgeCase())["success"] == pytest.approx(called)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DBA(None), "needs a trigger"),  # type: ignore[arg-type]
        (lambda: DBA(FOUR_FEATURES, parts=5), "4 features into 5 parts"),
        (lambda: DBA(FOUR_FEATURES, share=0.0), "above 0 and at most 1"),
        (lambda: DBA(FOUR_FEATURES, factor=-1.0), "positive factor"),
        (lambda: Neurotoxin(None), "needs a trigger"),  # type: ignore[arg-type]
        (lambda: Neurotoxin(FOUR_FEATURES, ratio=1.5), "not 1.5"),
        (lambda: Neurotoxin(FOUR_FEATURES, norm=0.0), "positive norm"),
        (lambda: EdgeCase(target=-1), "must be a class"),
        (lambda: EdgeCase(radius=0.0), "positive factor and radius"),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


# ---------------------------------------------------------------- in a run


def test_every_attack_knows_the_global_model_on_both_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, float]] = []

    class Watching(interface.Attack):
        independent = True

        def craft(self, known: Knowledge) -> Tensor:
            assert known.global_lr is not None
            seen.append((known.model.clone(), float(known.global_lr)))
            return known.own

    run, task = small_run(attack=Watching()), small_task(malicious=2)
    for _ in ("whole", "in chunks"):
        seen.clear()
        path = [task.model.initial_weights, *(record.weights for record in simulate(run, task))]
        assert len(seen) == 3
        for (weights, rate), expected in zip(seen, path, strict=False):
            assert expected is not None
            assert torch.equal(weights, expected)
            assert rate == pytest.approx(0.05)
        monkeypatch.setattr("fltrust.round.MANY", 3)


MNIST = DATASETS["mnist-5k"].trigger


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("adaptive", "optimal-adaptive", "krum", "trim")])
def test_a_short_run_on_real_images(name: str) -> None:
    attack = small_attack(name, MNIST)
    run = Experiment.on("mnist-5k", "fltrust", attack, model="logistic", num_clients=10, rounds=2, evaluate_every=2)
    last = list(simulate(run, build_task(run)))[-1]
    assert last.weights is not None
    assert last.weights.isfinite().all()
    assert last.test_error is not None
    assert (last.success is not None) == (name in ("scaling", "dba", "neurotoxin", "edge-case", "label-flip-targeted"))
