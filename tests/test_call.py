"""`fltrust.run`: one call for an experiment, a data set's name, or a task of one's own."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FOUR_FEATURES, small_task
from torch import Tensor, nn

import fltrust
from fltrust import Experiment, InputError, LabelFlip, RunResult, Scaling, Task, build_task, simulate
from fltrust.running import rates
from fltrust.store.records import read_records
from fltrust.tasks.splits import Bias

SHORT: dict[str, Any] = {"rounds": 3, "evaluate_every": 1, "batch_size": 4}
RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(300, 4)).astype(np.float32)
SUMS = POINTS.sum(1)


def own(model: nn.Module, targets: np.ndarray, **more: Any) -> Task:
    return Task.from_arrays(POINTS[:200], targets[:200], POINTS[200:], targets[200:], model=model, **{"clients": 8, "root": 40, **more})


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([part.detach().flatten() for part in model.parameters()])


@pytest.mark.slow
def test_an_experiment_equals_simulate() -> None:
    run = Experiment.on("mnist-5k", "fltrust", "scaling", **SHORT)
    result = fltrust.run(run)
    *_, last = simulate(run, build_task(run))
    assert last.weights is not None
    assert torch.equal(weights_of(result.model), last.weights)
    assert result.metrics == pytest.approx(last.metrics)
    assert result.experiment == run
    assert [record["round"] for record in result.records] == [1, 2, 3]
    errors = (result.model(result.task.test_inputs).argmax(1) != result.task.test_targets).float().mean().item()
    assert result.test_error == pytest.approx(errors, abs=0.002)
    assert "mnist-5k, fltrust, attack scaling: train_error" in repr(result)
    assert "\n" not in repr(result)


@pytest.mark.slow
def test_the_name_of_a_data_set_and_fields() -> None:
    by_name = fltrust.run("MNIST-5k", rule="Trim-Mean", attack="TRIM", **SHORT)
    assert by_name.experiment == Experiment.on("mnist-5k", "trim-mean", "trim", **SHORT)
    with pytest.raises(InputError, match="the experiment says everything: change rounds there"):
        fltrust.run(by_name.experiment, rounds=2)


def test_history_is_a_table() -> None:
    run = {"attack": "trim", "malicious": 2, "global_lr": 0.5, "metrics": ("class_error", "confusion"), **SHORT}
    result = fltrust.run(small_task(), **run)
    columns = ["round", "train_error", "test_error", "class_error/0", "class_error/1", "class_error/2", "honest_trust", "malicious_trust"]
    frame = pytest.importorskip("pandas").DataFrame
    assert isinstance(result.history, frame)
    assert list(result.history.columns) == columns
    assert result.history["test_error"].iloc[-1] == result.test_error
    trust = result.records[-1]["trust"]
    assert result.history["honest_trust"].iloc[-1] == pytest.approx(sum(trust[2:]) / 4)
    assert len(result.metrics["confusion"]) == 3  # not a number, so not in the table


def test_history_without_pandas_is_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    history = fltrust.run(small_task(), rule="median", global_lr=0.5, **SHORT).history
    assert isinstance(history, list)
    assert [sorted(row) for row in history] == [["round", "test_error", "train_error"]] * 3


def test_a_directory_resumes_and_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"attack": "label-flip", "malicious": 2, "global_lr": 0.5, **SHORT}
    whole = fltrust.run(small_task(), **fields)

    def stop(self: Any, record: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("fltrust.running.call._Kept.record", stop)
    with pytest.raises(KeyboardInterrupt):
        fltrust.run(small_task(), directory=tmp_path / "run", **fields)
    assert [record["round"] for record in read_records(tmp_path / "run")] == [1, 2]
    monkeypatch.undo()
    for _ in range(2):  # resumed, then finished already
        again = fltrust.run(small_task(), directory=tmp_path / "run", **fields)
        assert again.records == whole.records
        assert torch.equal(weights_of(again.model), weights_of(whole.model))
    declared = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert declared["files"] == {"arrays": again.task.sha256}
    with pytest.raises(InputError, match=r"begun with other data files or plug-ins \(arrays\)"):
        fltrust.run(small_task(seed=1), directory=tmp_path / "run", **fields)
    with pytest.raises(InputError, match="seed"):
        fltrust.run(small_task(), directory=tmp_path / "run", seed=1, **fields)


def test_an_attack_poisons_a_clean_task_and_leaves_the_callers_alone() -> None:
    clean = small_task()
    result = fltrust.run(clean, attack="label-flip", malicious=2, global_lr=0.5, **SHORT)
    expected = small_task(malicious=2, attack=LabelFlip())
    assert torch.equal(result.task.targets, expected.targets)
    assert (clean.malicious, clean.attack) == (0, None)
    built = fltrust.run(expected, global_lr=0.5, **SHORT)  # the task names its attack itself
    assert built.experiment == result.experiment
    assert built.records == result.records
    with pytest.raises(InputError, match="poisoned for LabelFlip already"):
        fltrust.run(expected, attack="label-flip-random", global_lr=0.5)


def test_rules_are_told_how_many_clients_are_malicious() -> None:
    assert fltrust.run(small_task(), rule="Krum", attack="trim", malicious=2, global_lr=0.5, **SHORT).experiment.rule == fltrust.Krum(2)


# ---------------------------------------------------------------- learning rates


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, 'give global_lr, the learning rate: a number such as 0.1, or "search" to try 0.01, 0.1, 1 on the root set'),
        ({"local_lr": 0.1}, "give global_lr"),
        ({"global_lr": 1.0, "local_steps": 3}, "give local_lr"),
        ({"global_lr": 1.0, "local_epochs": 1}, "give local_lr"),
        ({"global_lr": "serch"}, "global_lr cannot be 'serch': expected a number"),
        ({"lr": 0.1}, "unknown field 'lr': did you mean 'global_lr'"),
        ({"global_lr": 0.1, "num_clients": 3}, "the task decides num_clients"),
        ({"global_lr": 0.1, "attack": "trim"}, "the attack 'trim' needs malicious clients"),
        ({"global_lr": 0.1, "attack": "scaling", "malicious": 2}, "needs a trigger"),
        ({"global_lr": 0.1, "malicious": 7}, "7 malicious clients of 6"),
        ({"global_lr": 0.1, "rule": "krum", "malicious": 6}, "6"),
        ({"global_lr": 0.1, "metrics": ("f1",)}, "unknown metric 'f1'"),
        ({"global_lr": 0.1, "rounds": 0}, "rounds must be at least 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        fltrust.run(small_task(), **fields)
    assert "\n" not in str(caught.value)


def test_a_rate_is_searched_on_the_root_set_and_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    searched = fltrust.run(small_task(), global_lr="search", **SHORT)
    assert searched.experiment.global_lr in rates.RATES
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "global_lr: tried on the two halves of the root set (12 examples), 0.01 gives error" in said
    assert f": {searched.experiment.global_lr:g} is taken" in said
    given = fltrust.run(small_task(), global_lr=searched.experiment.global_lr, **SHORT)
    assert searched.records == given.records

    monkeypatch.setattr(rates, "RATES", (1e-9, 0.5, 1e9))  # of these, only one learns anything
    assert fltrust.run(small_task(), global_lr="search", **{**SHORT, "rounds": 60}).experiment.global_lr == 0.5
    local = fltrust.run(small_task(), local_lr="search", **{**SHORT, "local_steps": 2, "rounds": 30}).experiment
    assert (local.local_lr, local.global_lr) == (0.5, 1.0)


def test_the_search_never_looks_at_clients_or_tests() -> None:
    """Their labels may be anything: the choice stays the same."""
    run = Experiment(dataset="own", num_clients=6, clients_per_round=6, malicious=0, rounds=20, global_lr=0.01, loss="mean", root_size=12)
    task = small_task()
    chosen = rates.with_searched_rate(run, task, "global_lr")
    wrong = torch.randint(0, 3, task.targets.shape, generator=torch.Generator().manual_seed(0))
    wrong[task.root] = task.targets[task.root]
    other = dataclasses.replace(task, targets=wrong, test_targets=1 - task.test_targets.clamp(max=1))
    assert rates.with_searched_rate(run, other, "global_lr") == chosen
    huge = dataclasses.replace(task, inputs=task.inputs * 1e30)
    with pytest.raises(InputError, match=r"global_lr: training diverged with 0\.01 and 0\.1 and 1: give a smaller number"):
        rates.with_searched_rate(run, huge, "global_lr")
    few = dataclasses.replace(task, root=task.root[:3])
    with pytest.raises(InputError, match="cannot be searched on a root set of 3 examples"):
        rates.with_searched_rate(run, few, "global_lr")


def test_an_experiment_inherits_no_learning_rate() -> None:
    """As README once showed: a task from arrays, and an experiment that says neither its learning rate nor its loss."""
    cases: list[tuple[dict[str, Any], str]] = [({}, "global_lr"), ({"global_lr": 0.1}, "loss"), ({"loss": "mean"}, "global_lr")]
    names: list[dict[str, Any]] = [{"dataset": "mine"}, {}]
    for given, missing in cases:
        for name in names:
            with pytest.raises(InputError, match=f"must be given {missing}: no value fits all data"):
                Experiment(model="mine", num_clients=6, **name, **given)


# ---------------------------------------------------------------- models and objectives of all kinds


KINDS: dict[str, tuple[Callable[[], nn.Module], np.ndarray, str, float]] = {
    "classes": (lambda: nn.Linear(4, 2), (SUMS > 0).astype(int), "cross-entropy", 0.1),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)),
        (SUMS > 0).astype(int),
        "cross-entropy",
        0.15,
    ),
    "one logit": (lambda: nn.Linear(4, 1), (SUMS > 0).astype(int), "binary", 0.1),
    "one flat logit": (lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), SUMS > 0, "binary", 0.1),
    "regression": (lambda: nn.Linear(4, 1), SUMS / 2, "squared-error", 0.05),
    "two numbers": (lambda: nn.Linear(4, 2), POINTS[:, :2] * 0.5, "squared-error", 0.05),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
        (SUMS > 0).astype(int),
        "cross-entropy",
        0.15,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [{"global_lr": 0.5}, {"local_lr": 0.1, "local_steps": 3}], ids=["one step", "three steps"])
def test_models_and_objectives_of_all_kinds_learn(kind: str, steps: dict[str, Any]) -> None:
    build, targets, objective, enough = KINDS[kind]
    torch.manual_seed(0)
    task = own(build(), targets, objective=objective)
    before = torch.get_rng_state()
    fields = {"rounds": 40, "attack": "trim", "malicious": 2, "metrics": ("test_loss",), **steps}
    result, again = (fltrust.run(task, **fields) for _ in range(2))
    assert result.test_error < enough
    assert result.records == again.records
    assert torch.equal(torch.get_rng_state(), before)  # nothing is drawn from outside of the run
    outputs = result.model(task.test_inputs)
    assert task.objective.error(outputs, task.test_targets).mean().item() == pytest.approx(result.test_error, abs=1e-5)
    assert task.objective.loss(outputs, task.test_targets).mean().item() == pytest.approx(result.metrics["test_loss"], rel=1e-4)


@pytest.mark.parametrize("rule", ["zeno", "bucketing+krum", "foolsgold"])
@pytest.mark.parametrize("kind", ["one logit", "regression", "dropout"])
def test_other_rules_take_them_too(kind: str, rule: str) -> None:
    build, targets, objective, _ = KINDS[kind]
    result = fltrust.run(own(build(), targets, objective=objective), rule=rule, attack="alie", malicious=1, global_lr=0.1, **SHORT)
    assert np.isfinite(result.test_error)


def test_a_backdoor_in_a_model_with_one_logit_is_measured() -> None:
    trigger = dataclasses.replace(FOUR_FEATURES, where=((0,),))
    fields: dict[str, Any] = {"rule": "fedavg", "attack": Scaling(trigger), "malicious": 2, "rounds": 20, "global_lr": 0.5}
    result = fltrust.run(own(nn.Linear(4, 1), (SUMS > 0).astype(int), objective="binary"), **fields)
    assert result.metrics["success"] > 0.9  # one class is the trigger's target, and FedAvg lets it in


# ---------------------------------------------------------------- numbers instead of indices


def test_a_number_of_clients_is_a_split() -> None:
    task = own(nn.Linear(4, 2), (SUMS > 0).astype(int), clients=7, root=30)
    held = np.concatenate([*task.clients, task.root])
    assert sorted(held) == list(range(200))
    assert task.sizes.max() - task.sizes.min() <= 12  # even before the root set was taken out
    assert np.bincount(task.targets[task.root].numpy()).tolist() == [15, 15]
    other = own(nn.Linear(4, 2), (SUMS > 0).astype(int), clients=7, root=30, seed=1)
    assert other.root.tolist() != task.root.tolist()
    biased = own(nn.Linear(4, 2), (SUMS > 0).astype(int), clients=6, root=20, split=Bias(1.0))
    assert all(len(np.unique(biased.targets[own_examples])) == 1 for own_examples in biased.clients)
    assert own(nn.Linear(4, 1), SUMS, objective="squared-error").root.size == 40


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clients": 5, "root": np.arange(3)}, "root must be a number too"),
        ({"clients": [np.arange(5)], "root": 3}, "root must be indices too"),
        ({"clients": [np.arange(5)], "root": np.arange(5, 8), "split": Bias()}, "nothing to split"),
        ({"clients": 0}, "0 clients"),
        ({"root": 0}, "a root set of 0 examples"),
        ({"root": 199}, "the root set needs 100 examples of class"),
        ({"objective": "best"}, "unknown objective 'best'"),
        ({"attack": "scaling", "malicious": 1}, "needs a trigger"),
        ({"model": nn.Linear(4, 1)}, "must give 2 numbers for an example, not .1,.: with one logit, the objective is 'binary'"),
        ({"model": nn.Linear(4, 3), "objective": "binary"}, r"logits of shape \(\) for an example, not \(3,\)"),
        ({"model": nn.Linear(4, 2), "objective": "squared-error"}, r"numbers of shape \(\) for an example, not \(2,\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_task_is_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        own(**{"model": nn.Linear(4, 2), "targets": (SUMS > 0).astype(int), **given})
    assert "\n" not in str(caught.value)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.dropout(self.output(inputs), 0.01, self.training)


def test_a_model_that_draws_for_itself_is_refused() -> None:
    with pytest.raises(InputError, match=r"draws random numbers of its own.*use layers of nn\.Dropout"):
        own(Functional(), (SUMS > 0).astype(int))


def test_run_is_the_function_whatever_was_imported() -> None:
    import fltrust.running.loop

    assert callable(fltrust.run)
    assert isinstance(fltrust.run(small_task(), global_lr=0.5, **SHORT), RunResult)
