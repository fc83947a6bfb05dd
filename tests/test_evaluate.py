"""What a model is worth, on examples whose answers are known by construction."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_task
from torch import Tensor, nn
from torch.nn import functional

import fltrust
from fltrust.attacks import LabelFlip, Scaling, Trigger, TrimAttack
from fltrust.errors import InputError
from fltrust.experiment import BatchNorm, Experiment
from fltrust.metrics import Evaluation, evaluate
from fltrust.objectives import BinaryCrossEntropy, CrossEntropy, Objective
from fltrust.registry import METRICS
from fltrust.simulation import simulate
from fltrust.tasks.task import Task


def reader() -> nn.Linear:
    """A model that answers the place of the largest of its three inputs."""
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
        model.bias.zero_()
    return model


def task(malicious: int = 0) -> Task:
    images = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2, 0, 1]]
    labels = np.array([0, 1, 2, 1, 1, 0, 0, 1])  # of the clients' six examples, the two last are wrong
    test = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 2, 2, 2, 2, 2, 2]]
    test_labels = np.array([0, 1, 1, 1, 2, 2, 2, 2, 2, 0])  # two of ten are wrong
    clients = [np.array([0, 1, 2]), np.array([3, 4, 5])]
    attack = LabelFlip() if malicious else None
    return Task.from_arrays(
        images, labels, test, test_labels, clients=clients, root=np.array([6, 7]), model=reader(), malicious=malicious, attack=attack
    )


@pytest.mark.parametrize("malicious", [0, 1, 2])
def test_errors_are_counted_on_clean_examples(malicious: int) -> None:
    measured = evaluate(task(malicious), task(malicious).model.initial_weights)
    assert measured["train_error"] == pytest.approx(2 / 6)
    assert measured["test_error"] == pytest.approx(2 / 10)
    assert "success" not in measured


def test_success_leaves_out_examples_of_the_target_class() -> None:
    one = task()
    # A trigger too weak to change an answer: of the five examples that are not of class 2, one is taken for it anyway.
    weak = Trigger(((1,),), 0.5, 2)
    assert evaluate(one, one.model.initial_weights, Scaling(weak))["success"] == pytest.approx(1 / 5)
    strong = Trigger(((2,),), 5.0, 2)
    assert evaluate(one, one.model.initial_weights, Scaling(strong))["success"] == 1
    assert evaluate(one, one.model.initial_weights, Scaling(Trigger(((2,),), -5.0, 2)))["success"] == 0


def test_batch_norm_takes_its_statistics_from_the_root_set() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(40, 2, 3, 3)).astype(np.float32)
    images[:20] += 10  # the root set is elsewhere
    last = nn.Linear(18, 2)
    network = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), last)
    with torch.no_grad():
        last.weight.copy_(torch.stack([torch.ones(18), -torch.ones(18)]))
        last.bias.zero_()
    labels = np.ones(40, int)
    made = Task.from_arrays(images, labels, images[20:], labels[20:], clients=[np.arange(20, 40)], root=np.arange(20), model=network)
    # By the root set's mean of 10 all test images are dark, and dark ones get answer 1; by their own mean half of them would not.
    assert evaluate(made, made.model.initial_weights)["test_error"] == 0


def test_batch_norm_can_take_other_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fltrust.tasks.task.CLIENT_BATCH", 3)
    monkeypatch.setattr("fltrust.tasks.task.TEST_BATCH", 2)
    values = np.arange(15, dtype=np.float32)[:, None]
    labels = np.zeros(15, int)
    clients = [np.array([0, 1]), np.array([2]), np.arange(3, 10)]  # one example alone has no variance
    network = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))
    made = Task.from_arrays(values, labels, values[:5] - 1, labels[:5], clients=clients, root=np.array([10, 14]), model=network)
    assert [batch.flatten().tolist() for batch in made.norm_batches()] == [[10, 14]]
    assert [batch.flatten().tolist() for batch in made.norm_batches("clients")] == [[0, 1], [3, 6, 9]]
    assert [batch.flatten().tolist() for batch in made.norm_batches("test")] == [[-1, 2]]


@pytest.mark.parametrize("of", ["root", "clients", "test"])
def test_a_run_is_measured_and_its_model_made_with_the_statistics_it_names(of: BatchNorm) -> None:
    points = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    labels = (points.sum(1) > 0).astype(int)
    points[:20] += 1
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    clients = [np.arange(20, 30), np.arange(30, 40)]
    made = Task.from_arrays(points, labels, points[40:], labels[40:], clients=clients, root=np.arange(20), model=network)
    settings: dict[str, Any] = {"rounds": 3, "evaluate_every": 3, "batch_size": 5, "global_lr": 0.5, "metrics": ("test_loss",)}
    result = fltrust.run(made, rule="fedavg", batch_norm=of, **settings)
    norm = result.model.get_submodule("0")
    batches = [made.test_inputs] if of == "test" else [made.inputs[own] for own in ([slice(20)] if of == "root" else clients)]
    torch.testing.assert_close(norm.running_mean, torch.stack([batch.mean(0) for batch in batches]).mean(0))
    assert result.metrics["test_loss"] == pytest.approx(functional.cross_entropy(result.model(made.test_inputs), made.test_targets).item())


def test_a_model_without_batch_norm_has_no_statistics_to_choose() -> None:
    with pytest.raises(InputError, match="batch_norm = 'clients' changes nothing: the model has no batch norm"):
        fltrust.run(small_task(), rule="fedavg", global_lr=0.1, rounds=1, batch_norm="clients")


def measure(task: Task, *names: str, **more: Any) -> dict[str, object]:
    return dict(evaluate(task, task.model.initial_weights, more=names, **more))


def test_classes_are_counted() -> None:
    measured = measure(task(), "confusion", "class_error", "test_loss")
    assert measured["confusion"] == [[1, 0, 1], [1, 2, 0], [0, 0, 5]]
    assert measured["class_error"] == pytest.approx([1 / 2, 1 / 3, 0])
    of = task()
    loss = functional.cross_entropy(of.test_inputs, of.test_targets)  # the model gives back its inputs
    assert measured["test_loss"] == pytest.approx(loss.item())


def test_a_class_without_examples_has_no_error_and_more_outputs_than_classes_have_columns() -> None:
    points = np.eye(4, dtype=np.float32)[[0, 3, 0, 0]]
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.copy_(torch.eye(4))
        model.bias.zero_()
    parts: dict[str, Any] = {"clients": [np.array([0, 1])], "root": np.array([2]), "model": model}
    odd = Task.from_arrays(points, np.zeros(4, int), points, np.zeros(4, int), num_classes=2, **parts)
    measured = measure(odd, "confusion", "class_error")
    assert measured["confusion"] == [[3, 0, 0, 1], [0, 0, 0, 0]]
    assert measured["class_error"] == [0.25, None]


def sequences() -> Task:
    """A model that answers every token with itself, on five sequences of two tokens."""
    tokens = np.array([[0, 1], [2, 2], [1, 1], [0, 2], [2, 1]])
    targets = np.array([[0, 1], [2, 0], [0, 0], [0, 2], [2, 1]])
    model = nn.Embedding(3, 3)
    with torch.no_grad():
        model.weight.copy_(5 * torch.eye(3))
    return Task.from_arrays(tokens, targets, tokens, targets, clients=[np.arange(4)], root=np.array([4]), model=model)


def test_sequences_are_counted_by_token() -> None:
    measured = measure(sequences(), "confusion", "class_error")
    assert measured["test_error"] == pytest.approx(3 / 10)
    assert measured["train_error"] == pytest.approx(3 / 8)
    assert measured["confusion"] == [[2, 2, 1], [0, 2, 0], [0, 0, 3]]
    assert measured["class_error"] == pytest.approx([3 / 5, 0, 0])


def test_labels_are_counted_one_by_one() -> None:
    logits = np.array([[1.0, -1], [2, 2], [-1, -3]])
    targets = np.array([[1, 0], [1, 0], [1, 0]])
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    parts: dict[str, Any] = {"clients": [np.array([0, 1])], "root": np.array([2]), "model": model, "objective": BinaryCrossEntropy()}
    measured = measure(Task.from_arrays(logits, targets, logits, targets, **parts), "confusion", "test_loss")
    assert measured["test_error"] == pytest.approx(2 / 6)
    assert measured["confusion"] == [[2, 1], [1, 2]]
    expected = np.log1p(np.exp(-(2 * targets - 1) * logits)).mean()
    assert measured["test_loss"] == pytest.approx(expected)


class SquaredError(Objective):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().flatten(1).mean(1)

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets).clamp(max=1)


def test_without_classes_there_is_nothing_to_count() -> None:
    points = np.ones((3, 1))
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.5)
    parts: dict[str, Any] = {"clients": [np.array([0, 1])], "root": np.array([2]), "model": model, "objective": SquaredError()}
    measured = measure(Task.from_arrays(points, points, points, points, **parts), "confusion", "class_error", "test_loss")
    assert measured == pytest.approx({"train_error": 0.25, "test_error": 0.25, "test_loss": 0.25})


def test_all_outputs_never_exist_at_once() -> None:
    largest = []

    class Watching(CrossEntropy):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            largest.append(outputs.shape[0])
            return super().loss(outputs, targets)

    tokens = np.random.default_rng(0).integers(0, 4, (333, 6))
    parts: dict[str, Any] = {"clients": [np.arange(300)], "root": np.array([300]), "model": nn.Embedding(4, 4)}
    watched = measure(Task.from_arrays(tokens, tokens, tokens, tokens, objective=Watching(), **parts), "test_loss")
    assert max(largest) <= 50 < len(tokens)
    assert sum(largest) > 2 * 300
    plain = Task.from_arrays(tokens, tokens, tokens, tokens, **parts)
    whole = plain.model.outputs(plain.model.initial_weights, plain.test_inputs)
    assert watched["test_loss"] == pytest.approx(CrossEntropy().loss(whole, plain.test_targets).mean().item())
    assert watched["test_error"] == pytest.approx((whole.argmax(-1) != plain.test_targets).float().mean().item())


def test_shares_of_honest_and_malicious_clients() -> None:
    names = ("honest_share", "malicious_share")
    shares = torch.tensor([0.1, 0.3, 0.0, 0.2, 0.4])
    measured = measure(task(), *names, shares=shares, malicious=2)
    assert [measured[name] for name in names] == pytest.approx([0.2, 0.2])
    assert set(measure(task(), *names, shares=shares, malicious=0)) & set(names) == {"honest_share"}
    assert set(measure(task(), *names, shares=shares, malicious=5)) & set(names) == {"malicious_share"}
    assert not set(measure(task(), *names)) & set(names)  # the median has no shares


def test_a_run_records_what_it_was_asked_for() -> None:
    names = ("confusion", "class_error", "test_loss", "honest_share", "malicious_share")
    numbers: dict[str, Any] = {"num_clients": 6, "clients_per_round": 6, "malicious": 2, "rounds": 2, "evaluate_every": 1, "metrics": names}
    run = Experiment(attack=TrimAttack(), global_lr=3e-4, loss="sum", **numbers)
    made = small_task(malicious=2, attack=TrimAttack())
    for record in simulate(run, made):
        assert set(record.metrics) == {"train_error", "test_error", *names}
        assert record.shares is not None
        assert record.metrics["malicious_share"] == pytest.approx(sum(record.shares[:2]) / 2)
        assert record.metrics["honest_share"] == pytest.approx(sum(record.shares[2:]) / 4)
        assert sum(map(sum, record.metrics["confusion"])) == 90


def test_a_metric_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    METRICS.entry("test_error")
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))

    @METRICS.register("largest")
    def largest(of: Evaluation) -> Tensor:
        return of.test.loss.max()

    @METRICS.register("broken")
    def broken(of: Evaluation) -> float:
        return 1 / 0

    @METRICS.register("words")
    def words(of: Evaluation) -> list[str]:
        return ["good"]

    assert isinstance(measure(task(), "largest")["largest"], float)
    with pytest.raises(InputError, match="the metric 'broken' cannot be computed: ZeroDivisionError"):
        measure(task(), "broken")
    with pytest.raises(InputError, match="'words' must be a number, a list of numbers or None, not"):
        measure(task(), "words")
