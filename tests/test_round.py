"""A round and a run: equal to the one-file example, independent of how they are cut, and honest about what they record."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from conftest import rule_of, small_attack, small_task
from torch import Tensor, nn

from fltrust.attacks import ATTACKS, Attack, Knowledge, LabelFlip, NoAttack, Scaling, Trigger, TrimAttack
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.round import Draw, Noise, first_state, in_chunks, play_round
from fltrust.rules import RULES, FedAvg, FLTrust, Krum, Median
from fltrust.simulation import _draws, simulate
from fltrust.state import State
from fltrust.tasks.build import build_task
from fltrust.tasks.task import Task

SMALL: dict[str, Any] = {"dataset": "small", "model": "own", "num_clients": 6, "clients_per_round": 6, "batch_size": 4, "root_size": 12}


NOISE = Noise(torch.Generator(), torch.Generator())


def small_run(**changes: Any) -> Experiment:
    return Experiment(**{**SMALL, "malicious": 0, "rounds": 4, "global_lr": 0.05, "loss": "sum", "evaluate_every": 1, **changes})


@pytest.fixture(scope="module")
def one_file() -> ModuleType:
    path = Path(__file__).parent.parent / "examples" / "fltrust_in_one_file.py"
    spec = importlib.util.spec_from_file_location("one_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_file"] = module
    spec.loader.exec_module(module)
    return module


class Liars(Attack):
    """What the example's liars do."""

    def craft(self, known: Knowledge) -> torch.Tensor:
        return -10 * known.own


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("malicious", [0, 2])
def test_three_rounds_equal_the_one_file_example(one_file: ModuleType, malicious: int, steps: int) -> None:
    run = small_run(rounds=3, local_steps=steps, local_lr=0.1, malicious=malicious, attack=Liars())
    task = small_task(malicious=malicious)
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    nn.utils.vector_to_parameters(task.model.initial_weights.clone(), model.parameters())
    records = simulate(run, task)
    for _, _, draw in _draws(run, task, 0):
        clients = [[(task.inputs[draw.examples[i, step]], task.targets[draw.examples[i, step]]) for step in range(steps)] for i in range(6)]
        root = [(task.inputs[draw.root_examples[0, step]], task.targets[draw.root_examples[0, step]]) for step in range(steps)]
        one_file.fltrust_round(model, clients, root, local_lr=0.1, global_lr=0.05, liars=malicious)
        weights = next(records).weights
        assert weights is not None
        torch.testing.assert_close(weights, nn.utils.parameters_to_vector(model.parameters()).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_under_every_attack(rule: str, attack: str) -> None:
    made = small_attack(attack)
    run = small_run(rule=rule_of(rule), attack=made, malicious=1, rounds=2)
    records = list(simulate(run, small_task(malicious=1, attack=made, side=6 if attack == "edge-case" else 0)))
    assert [record.round for record in records] == [1, 2]
    last = records[-1]
    assert last.weights is not None
    assert torch.isfinite(last.weights).all()
    assert last.test_error is not None
    assert last.train_error is not None
    assert 0 <= last.test_error <= 1
    assert 0 <= last.train_error <= 1
    assert (last.success is not None) == (attack in ("scaling", "dba", "neurotoxin", "edge-case", "label-flip-targeted"))
    assert last.norm is not None
    assert len(last.norm) == 6
    assert (last.cosine is not None) == run.needs_root
    assert (last.shares is None) == run.rule.by_coordinate


@pytest.mark.parametrize(
    "changes", [{}, {"clients_per_round": 3}, {"local_steps": 3, "local_lr": 0.1}, {"root_batch": "batch"}, {"loss": "mean"}]
)
def test_a_run_that_goes_on_equals_one_that_never_stopped(changes: dict[str, Any]) -> None:
    run = small_run(rounds=6, attack=TrimAttack(), malicious=2, **changes)
    task = small_task(malicious=2)
    whole = list(simulate(run, task))
    for after in range(6):
        state = whole[after - 1].state if after else None
        rest = list(simulate(run, task, after=after, state=state))
        for expected, record in zip(whole[after:], rest, strict=True):
            assert expected.weights is not None
            assert record.weights is not None
            assert torch.equal(expected.weights, record.weights)
            assert (expected.test_error, expected.cosine, expected.clients) == (record.test_error, record.cosine, record.clients)


@pytest.mark.parametrize("malicious", [0, 1, 4])
@pytest.mark.parametrize("at_once", [1, 2, 4, 100])
def test_a_round_in_chunks_is_the_same_round(monkeypatch: pytest.MonkeyPatch, at_once: int, malicious: int) -> None:
    attack = Scaling(trigger=Trigger(((0,),), 3.0, 1))
    run, task = small_run(attack=attack, malicious=malicious), small_task(malicious=malicious, attack=attack)
    whole = list(simulate(run, task))[-1]
    monkeypatch.setattr("fltrust.round.MANY", 3)
    monkeypatch.setattr("fltrust.round.AT_ONCE", at_once)
    chunked = list(simulate(run, task))[-1]
    assert chunked.norm is None  # the (n, d) tensor was not there to be measured
    assert whole.weights is not None
    assert chunked.weights is not None
    torch.testing.assert_close(chunked.weights, whole.weights, rtol=1e-5, atol=1e-6)
    assert chunked.shares == pytest.approx(whole.shares, abs=1e-6)


def test_only_fltrust_and_clients_that_act_alone_go_in_chunks() -> None:
    many = {"num_clients": 2000, "clients_per_round": 2000}
    assert in_chunks(small_run(**many), 2000)
    assert not in_chunks(small_run(), 6)
    assert not in_chunks(small_run(rule=Median(), **many), 2000)
    assert not in_chunks(small_run(attack=TrimAttack(), **many), 2000)


def test_evaluating_more_often_changes_nothing() -> None:
    task = small_task(malicious=2)
    often = list(simulate(small_run(rounds=5, attack=TrimAttack(), malicious=2), task))[-1]
    rarely = list(simulate(small_run(rounds=5, attack=TrimAttack(), malicious=2, evaluate_every=3), task))
    assert [record.test_error is None for record in rarely] == [True, True, False, True, False]
    assert often.weights is not None
    assert rarely[-1].weights is not None
    assert torch.equal(often.weights, rarely[-1].weights)


def test_an_attack_with_partial_knowledge_sees_only_its_own() -> None:
    seen: list[Knowledge] = []

    class Watching(Attack):
        def craft(self, known: Knowledge) -> torch.Tensor:
            seen.append(known)
            return known.own

    class WatchingAll(Watching):
        knowledge = "full"
        needs_root = True

    for attack in (Watching(), WatchingAll()):
        list(simulate(small_run(rounds=1, malicious=2, attack=attack), small_task(malicious=2)))
    part, full = seen
    assert part.others is None
    assert part.root_update is None
    assert part.own.shape[0] == 2
    assert full.others is not None
    assert full.others.shape[0] == 4
    assert full.root_update is not None
    assert (full.n, full.tolerate, full.num_clients) == (6, 2, 6)


def test_the_round_needs_no_root_update_where_nobody_asks_for_it() -> None:
    run, task = small_run(rule=FedAvg()), small_task()
    draw = next(_draws(run, task, 0))[2]
    state, outcome = play_round(run, task, first_state(run, task), draw, 0, NOISE)
    assert outcome.root_update is None
    assert outcome.sent is not None
    averaged = (outcome.sent * (draw.sizes / draw.sizes.sum())[:, None]).sum(0)
    torch.testing.assert_close(state.weights, task.model.initial_weights + 0.05 * averaged)


def test_honest_clients_learn_and_fltrust_withstands_what_ruins_the_mean() -> None:
    attack = Liars()
    task = small_task(malicious=2)

    def final_error(rule: Any, attack: Attack) -> float:
        run = small_run(rule=rule, attack=attack, malicious=2, rounds=60, local_lr=0.1, global_lr=0.2, evaluate_every=60)
        error = list(simulate(run, task))[-1].test_error
        assert error is not None
        return error

    assert final_error(FedAvg(), NoAttack()) < 0.15
    assert final_error(FLTrust(), attack) < 0.15
    assert final_error(FedAvg(), attack) > 0.5


def test_a_task_of_another_size_is_refused(task: Task) -> None:
    with pytest.raises(InputError, match="6 clients, 0 malicious; the experiment 7 and 0"):
        next(simulate(small_run(num_clients=7, clients_per_round=7), task))


def test_build_task_of_the_embedded_data() -> None:
    run = Experiment.on("mnist-5k", attack="label-flip")
    task = build_task(run)
    assert task.inputs.shape[1:] == (1, 28, 28)
    assert task.model.d == 139_960
    assert len(task.root) == 100
    assert np.bincount(task.targets[task.root]).tolist() == [10] * 10
    assert len(task.clean) == 3_900
    assert len(task.clients) == 20
    assert not set(task.root) & set(task.clean)
    other = build_task(Experiment.on("mnist-5k", seed=1))
    assert not torch.equal(other.model.initial_weights, task.model.initial_weights)
    assert set(other.root) != set(task.root)


def test_malicious_clients_come_first_and_from_all_groups() -> None:
    run = Experiment.on("mnist-5k", bias=1.0, malicious=10, attack=LabelFlip())
    task = build_task(run)
    own_classes = {int(task.targets[own].mode().values) for own in task.clients[:10]}
    assert len(own_classes) > 2


def test_median_of_a_round_is_the_median_of_what_was_sent() -> None:
    run, task = small_run(rule=Median()), small_task()
    draw: Draw = next(_draws(run, task, 0))[2]
    state, outcome = play_round(run, task, first_state(run, task), draw, 0, NOISE)
    assert outcome.sent is not None
    expected = task.model.initial_weights + 0.05 * torch.from_numpy(np.median(outcome.sent.numpy(), axis=0))
    torch.testing.assert_close(state.weights, expected)


def test_the_schedule_scales_each_round() -> None:
    run = small_run(rounds=3, warmup=2, lr_decay=((3, 0.1),))
    task = small_task()
    weights = task.model.initial_weights
    for record, (_, _, draw), rate in zip(simulate(run, task), _draws(run, task, 0), (0.025, 0.05, 0.005), strict=True):
        state, _ = play_round(run, task, State(weights), draw._replace(global_lr=torch.tensor(1.0)), 0, NOISE)
        assert record.weights is not None
        torch.testing.assert_close(record.weights, weights + rate * (state.weights - weights), rtol=1e-4, atol=1e-6)
        weights = record.weights


def test_augmented_images_are_what_clients_and_server_train_on() -> None:
    run, task = small_run(rounds=1, augment=True), small_task(side=6)
    (_, _, draw), *_ = _draws(run, task, 0)
    assert draw.shift is not None
    assert draw.root_shift is not None
    still = draw._replace(shift=unmoved(draw.shift), root_shift=unmoved(draw.root_shift))

    def trained(draw: Draw) -> tuple[Tensor, Tensor]:
        outcome = play_round(run, task, first_state(run, task), draw, 0, NOISE)[1]
        assert outcome.sent is not None
        assert outcome.root_update is not None
        return outcome.sent, outcome.root_update

    for clients_or_server in (0, 1):
        plain = trained(draw._replace(shift=None, root_shift=None))[clients_or_server]
        assert torch.equal(plain, trained(still)[clients_or_server])
        assert not torch.allclose(plain, trained(draw)[clients_or_server])
    with pytest.raises(InputError, match="only images"):
        next(simulate(run, small_task()))


def unmoved(shift: Tensor) -> Tensor:
    return torch.tensor([4, 4, 0]).expand(shift.shape)


def test_a_task_that_was_not_poisoned_is_refused() -> None:
    with pytest.raises(InputError, match="not poisoned for LabelFlip"):
        next(simulate(small_run(malicious=2, attack=LabelFlip()), small_task(malicious=2)))


def test_the_krum_attacker_knows_what_the_servers_krum_tolerates() -> None:
    told = []

    class Watching(Attack):
        def craft(self, known: Knowledge) -> torch.Tensor:
            told.append(known.tolerate)
            return known.own

    list(simulate(small_run(rounds=6, malicious=3, clients_per_round=5, rule=Krum(1), attack=Watching()), small_task(malicious=3)))
    assert set(told) == {1}
