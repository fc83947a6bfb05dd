"""Zeno and Zeno++ against loops written from their papers, and the losses that Zeno asks for against one model at a time."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import shares_in, small_task
from numpy.typing import NDArray
from torch import Tensor

from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.models import Model
from fltrust.registry import MODELS
from fltrust.round import TRIED_AT_ONCE, root_losses
from fltrust.rules import FLTrust, Received, Zeno, ZenoPlusPlus, cosines
from fltrust.simulation import _draws, simulate
from fltrust.tasks.task import Task
from fltrust.testing import received

Array = NDArray[np.float64]


def zeno(updates: Array, weights: Array, loss: Any, b: int, rho: float, lr: float, mean_square: bool) -> Array:
    """Xie et al. 2019, definitions 2 and 3."""
    scores = []
    for row in updates:
        square = float((row**2).mean() if mean_square else (row**2).sum())
        scores.append(loss(weights) - loss(weights + lr * row) - rho * lr * square)
    best = sorted(range(len(updates)), key=lambda i: -scores[i])[: len(updates) - b]
    return np.asarray(np.mean([updates[i] for i in best], axis=0))


def zeno_plus_plus(updates: Array, root_update: Array, threshold: float) -> Array:
    """Xie et al. 2020, algorithm 1 with the whole round's updates at once."""
    kept = []
    for row in updates:
        rescaled = row * np.linalg.norm(root_update) / np.linalg.norm(row)
        if root_update @ rescaled - threshold * (root_update @ root_update) >= 0:
            kept.append(rescaled)
    return np.mean(kept, axis=0) if kept else np.zeros_like(root_update)


def seen(rows: list[list[float]], loss: Any, **known: Any) -> Received:
    updates = torch.tensor(rows)
    return Received(updates, weights=torch.zeros(updates.shape[1]), root_loss=loss, **known)


@pytest.mark.parametrize("lr", [None, 0.1])
@pytest.mark.parametrize("mean_square", [False, True])
@pytest.mark.parametrize(("b", "rho"), [(0, 0.0), (3, 0.0), (3, 0.5), (10, 0.005)])
def test_zeno_is_the_papers(b: int, rho: float, mean_square: bool, lr: float | None) -> None:
    for seed in range(3):
        view = received(seed, torch.float64)
        assert view.weights is not None
        assert view.root_update is not None
        weights = view.weights
        goal = (weights + view.root_update).numpy()

        def loss(model: Array, goal: Array = goal) -> float:
            return float(((model - goal) ** 2).sum())

        view = replace(view, global_lr=None if lr is None else torch.tensor(lr))
        expected = zeno(view.updates.numpy(), weights.numpy(), loss, b, rho, lr or 1.0, mean_square)
        np.testing.assert_allclose(Zeno(b, rho, mean_square).aggregate(view).update.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_zeno_worked_by_hand() -> None:
    # loss 4 at 0; the updates 1, 2, 5 and -1 lead to 1, 0, 9 and 9: they lower it by 3, 4, -5 and -5.
    def loss(models: Tensor) -> Tensor:
        return (models - 2).square().sum(1)

    view = seen([[1.0], [2.0], [5.0], [-1.0]], loss)
    assert Zeno(2, rho=0.0).aggregate(view).update.tolist() == [1.5]
    assert Zeno(3, rho=1.0).aggregate(view).update.tolist() == [1.0]  # 3 - 1 and 4 - 4
    assert shares_in(Zeno(1, rho=0.0).aggregate(view)).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])  # of equals the first
    half = replace(view, global_lr=torch.tensor(0.5))
    assert Zeno(3, rho=0.0).aggregate(half).update.tolist() == [5.0]  # 2.5 is nearer to 2 than 1 and 0.5


def test_an_update_whose_loss_is_no_number_is_left_out() -> None:
    def loss(models: Tensor) -> Tensor:
        return torch.where(models[:, 0] > 4, math.nan, torch.where(models[:, 0] < -4, math.inf, (models - 2).square().sum(1)))

    view = seen([[1.0], [5.0], [2.0], [-5.0]], loss)
    assert shares_in(Zeno(0).aggregate(view)).tolist() == [0.5, 0, 0.5, 0]
    assert shares_in(Zeno(1).aggregate(view)).tolist() == [0, 0, 1, 0]
    assert not Zeno(2).aggregate(view).update.any()  # two are left, and both may be malicious
    lost = seen([[1.0], [2.0]], lambda models: torch.full((len(models),), math.nan))
    assert not Zeno(0).aggregate(lost).update.any()


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.1, 0.3, 0.9])
def test_zeno_plus_plus_is_the_papers(threshold: float) -> None:
    for seed in range(4):
        view = received(seed, torch.float64)
        assert view.root_update is not None
        expected = zeno_plus_plus(view.updates.numpy(), view.root_update.numpy(), threshold)
        np.testing.assert_allclose(ZenoPlusPlus(threshold).aggregate(view).update.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_zeno_plus_plus_keeps_whom_fltrust_trusts() -> None:
    view = received(1, torch.float64)
    assert view.root_update is not None
    view.updates[2], view.updates[4] = -view.root_update, -2 * view.updates[4]
    ours, theirs = (rule.aggregate(view).shares for rule in (ZenoPlusPlus(), FLTrust()))
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours > 0, theirs > 0)
    assert torch.equal(ours > 0, cosines(view.updates, view.root_update) > 0)
    assert set(ours[ours > 0].tolist()) == {1 / int((ours > 0).sum())}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Zeno(-1), "cannot tolerate -1"),
        (lambda: Zeno(1, rho=-0.1), "rho of 0 or more"),
        (lambda: Zeno(1, rho=math.nan), "rho of 0 or more"),
        (lambda: Zeno(3).aggregate(seen([[1.0]] * 3, lambda models: models.sum(1))), "cannot tolerate 3 of 3"),
        (lambda: Zeno(1)(torch.ones(3, 2)), "needs the global model"),
        (lambda: ZenoPlusPlus(1.0), "between -1 and 1"),
        (lambda: ZenoPlusPlus()(torch.ones(3, 2)), "needs a root update"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        make()


# ---------------------------------------------------------------- the losses


def small_run(**changes: Any) -> Experiment:
    fixed = {
        "dataset": "small",
        "num_clients": 6,
        "clients_per_round": 6,
        "malicious": 0,
        "rounds": 1,
        "batch_size": 4,
        "evaluate_every": 1,
        "global_lr": 3e-4,
        "loss": "sum",
    }
    return Experiment(**{**fixed, **changes})


def one_at_a_time(task: Task, draw: Any, models: Tensor) -> Tensor:
    """The slow twin of `round.root_losses`."""
    inputs, targets = task.inputs[draw.root_examples[0, 0]], task.targets[draw.root_examples[0, 0]]
    counts = draw.root_loss_weights[0, 0]
    losses = [task.objective.loss(task.model.outputs(weights, inputs), targets) for weights in models]
    return torch.stack([(loss * counts).sum() / counts.sum() for loss in losses])


@pytest.mark.parametrize("changes", [{}, {"root_batch": "batch"}, {"loss": "mean"}], ids=str)
def test_losses_of_many_models_are_those_of_each(changes: dict[str, Any]) -> None:
    run, task = small_run(**changes), small_task()
    ((_, _, draw),) = _draws(run, task, 0)
    for k in (1, 3, TRIED_AT_ONCE + 2):
        models = task.model.initial_weights + torch.randn(k, task.model.d, generator=torch.Generator().manual_seed(k))
        torch.testing.assert_close(root_losses(task, draw, models), one_at_a_time(task, draw, models))


@pytest.mark.parametrize(("name", "shape"), [("cnn", (1, 12, 12)), ("mlp", (7,)), ("resnet20", (3, 8, 8))])
def test_losses_of_the_papers_networks(name: str, shape: tuple[int, ...]) -> None:
    run, task = small_run(), small_task()
    ((_, _, draw),) = _draws(run, task, 0)
    inputs = torch.randn(len(task.inputs), *shape, generator=torch.Generator().manual_seed(0))
    task = replace(task, inputs=inputs, model=Model(MODELS[name](shape, task.num_classes)))
    models = task.model.initial_weights + 0.01 * torch.randn(3, task.model.d, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(root_losses(task, draw, models), one_at_a_time(task, draw, models), rtol=1e-4, atol=1e-5)


def test_zeno_learns_in_a_run() -> None:
    run = small_run(rule=Zeno(1), rounds=20, global_lr=0.05)
    *_, last = simulate(run, small_task())
    assert last.shares is not None
    assert sorted(last.shares)[0] == 0  # the worst one is out
    assert sum(last.shares) == pytest.approx(1)
