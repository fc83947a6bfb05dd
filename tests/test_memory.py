"""Rules and attacks that remember, clients' momentum and the server's optimisers: against references, and carried by a run."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import small_task
from torch import Tensor

from fltrust.attacks import Attack, Knowledge, Mimic
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.round import in_chunks
from fltrust.rules import Aggregate, Anchor, CentredClipping, FedAvg, FLTrust, FoolsGold, Received, Rule, take_step
from fltrust.simulation import simulate
from fltrust.state import State, copied, leaves, move_into, restored
from fltrust.testing import CLIENTS, D, known, received
from fltrust.training.optimisers import SGD, Adam, Momentum, ServerOptimiser

FLOAT64 = torch.float64


def small_run(**changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "dataset": "small",
        "model": "own",
        "num_clients": 6,
        "clients_per_round": 6,
        "batch_size": 4,
        "root_size": 12,
        "malicious": 0,
        "rounds": 5,
        "global_lr": 0.05,
        "loss": "sum",
        "evaluate_every": 1,
    }
    return Experiment(**{**usual, **changes})


# ---------------------------------------------------------------- centred clipping


def clipped(rows: np.ndarray, centre: np.ndarray, tau: float | None, steps: int) -> np.ndarray:
    """Karimireddy et al. 2021, Algorithm 2, a client at a time."""
    for _ in range(steps):
        distances = [np.linalg.norm(row - centre) for row in rows]
        bound = float(np.median(distances)) if tau is None else tau
        centre = centre + np.mean([(row - centre) * min(1.0, bound / far) for row, far in zip(rows, distances, strict=True)], axis=0)
    return centre


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("tau", [None, 0.5, 1e6])
def test_centred_clipping_is_the_papers(tau: float | None, steps: int) -> None:
    rule, centre = CentredClipping(tau, steps), np.zeros(D)
    memory = rule.init(CLIENTS, torch.empty(D, dtype=FLOAT64))
    for t in range(1, 5):
        view = received(t, FLOAT64)
        result, memory = take_step(rule, view, memory)
        centre = clipped(view.updates.numpy(), centre, tau, steps)
        np.testing.assert_allclose(result.update, centre, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(memory, centre, rtol=1e-10, atol=1e-12)


def test_centred_clipping_by_hand() -> None:
    # From 0 with tau = 1: 3 is cut to 1, 0.5 stays, -2 is cut to -1; the mean is 0.5 / 3.
    rows = torch.tensor([[3.0], [0.5], [-2.0]])
    result, memory = CentredClipping(tau=1.0).step(Received(rows), torch.zeros(1))
    assert result.update.tolist() == memory.tolist() == pytest.approx([0.5 / 3])
    assert result.shares is not None
    assert result.shares.tolist() == pytest.approx([1 / 9, 1 / 3, 1 / 6])


def test_a_huge_tau_is_the_mean_and_translation_moves_the_result() -> None:
    view = received(1, FLOAT64)
    start = torch.zeros(D, dtype=FLOAT64)
    torch.testing.assert_close(CentredClipping(1e9).step(view, start)[0].update, view.updates.mean(0))
    by = torch.randn(D, generator=torch.Generator().manual_seed(3), dtype=FLOAT64)
    moved = dataclasses.replace(view, updates=view.updates + by)
    for rule in (CentredClipping(), CentredClipping(0.7, 3)):
        torch.testing.assert_close(rule.step(moved, start + by)[0].update, rule.step(view, start)[0].update + by)
    scaled = dataclasses.replace(view, updates=view.updates * 1e6)
    torch.testing.assert_close(CentredClipping().step(scaled, start)[0].update, CentredClipping().step(view, start)[0].update * 1e6)


def test_what_a_client_of_any_length_can_do_is_bounded() -> None:
    view = received(1, FLOAT64)
    worst = view.updates.clone()
    worst[0] *= 1e9
    start = torch.zeros(D, dtype=FLOAT64)
    moved = CentredClipping(2.0).step(dataclasses.replace(view, updates=worst), start)[0].update
    other = CentredClipping(2.0).step(view, start)[0].update
    assert (moved - other).norm() <= 2 * 2.0 / len(worst) + 1e-9


# ---------------------------------------------------------------- FoolsGold


def foolsgold(history: np.ndarray) -> np.ndarray:
    """The weights of Fung et al. 2020, Algorithm 1, a pair at a time."""
    n = len(history)
    unit = history / np.linalg.norm(history, axis=1, keepdims=True)
    alike = np.array([[0.0 if i == j else unit[i] @ unit[j] for j in range(n)] for i in range(n)])
    most = [max(row) + 1e-5 for row in alike]
    for i in range(n):
        for j in range(n):
            if most[i] < most[j]:
                alike[i, j] *= most[i] / most[j]
    weights = [min(1.0, max(0.0, 1 - max(row))) for row in alike]
    weights = [weight / max(weights) for weight in weights]
    weights = [0.99 if weight == 1 else weight for weight in weights]
    return np.array([min(1.0, max(0.0, math.log(weight / (1 - weight) + 1e-5) + 0.5)) for weight in weights])


def test_foolsgold_is_the_papers_with_clients_that_come_and_go() -> None:
    rule = FoolsGold()
    memory, history = rule.init(CLIENTS, torch.empty(D, dtype=FLOAT64)), np.zeros((CLIENTS, D))
    several = 0
    for t in range(1, 6):
        view = received(t, FLOAT64)
        assert view.client_ids is not None
        rows, ids = view.updates.numpy(), view.client_ids.numpy()
        history[ids] += rows
        weights = foolsgold(history[ids])
        result, memory = take_step(rule, view, memory)
        assert result.shares is not None
        np.testing.assert_allclose(result.shares, weights / weights.sum(), rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(result.update, weights @ rows / weights.sum(), rtol=1e-8, atol=1e-10)
        several += int((weights > 0).sum() > 1)
    assert several  # one client alone would be a weak check
    np.testing.assert_allclose(memory, history, rtol=1e-12)


def test_foolsgold_silences_twins_by_their_history() -> None:
    generator = torch.Generator().manual_seed(0)
    rule, memory = FoolsGold(), FoolsGold().init(6, torch.empty(50))
    push = torch.randn(50, generator=generator)
    for _ in range(8):
        rows = 3 * torch.randn(6, 50, generator=generator)
        rows[:2] = push + 0.5 * torch.randn(2, 50, generator=generator)
        result, memory = take_step(rule, Received(rows, client_ids=torch.arange(6)), memory)
    assert result.shares is not None
    assert result.shares[:2].max() < 0.01
    assert result.shares[2:].min() > 0.1


def test_foolsgold_needs_to_know_who_sent_what() -> None:
    with pytest.raises(InputError, match="FoolsGold needs to know which client sent which update and got none"):
        take_step(FoolsGold(), Received(torch.ones(3, 4)), FoolsGold().init(3, torch.empty(4)))
    with pytest.raises(InputError, match="FoolsGold remembers earlier rounds"):
        FoolsGold()(torch.ones(3, 4))


# ---------------------------------------------------------------- Mimic


def mimicked(rounds: Iterator[tuple[np.ndarray, np.ndarray]], start: np.ndarray, warmup: int) -> list[int]:
    """The clients that the attack of Karimireddy et al. 2022 copies, round by round."""
    mean, direction, targets = np.zeros(len(start)), start, []
    for t, (rows, ids) in enumerate(rounds):
        if t < warmup:
            mean = (t * mean + rows.mean(0)) / (t + 1)
            pull = sum((row - mean) @ direction * (row - mean) for row in rows)
            direction = (t * direction + pull / np.linalg.norm(pull)) / (t + 1)
            direction = direction / np.linalg.norm(direction)
            targets.append(int(ids[np.argmax(rows @ direction)]))
        else:
            here = targets[warmup - 1] in ids
            targets.append(targets[warmup - 1] if here else int(ids[np.argmax(rows @ direction)]))
    return targets


@pytest.mark.parametrize("warmup", [1, 3])
def test_mimic_copies_the_client_that_its_authors_would(warmup: int) -> None:
    attack = Mimic(warmup)
    memory = attack.init(CLIENTS, torch.empty(D, dtype=FLOAT64))
    views = [known(attack, t, FLOAT64) for t in range(1, 9)]

    def honest() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for view in views:
            assert view.client_ids is not None
            yield view.honest.numpy(), view.client_ids[3:].numpy()

    expected = mimicked(honest(), memory.direction.numpy(), warmup)
    for view, target in zip(views, expected, strict=True):
        sent, memory = attack.step(view, memory)
        assert view.client_ids is not None
        row = view.honest[view.client_ids[3:].tolist().index(target)]
        assert all(torch.equal(copy, row) for copy in sent)
    assert int(memory.rounds) == warmup
    assert len(set(expected)) > 1


def test_mimic_finds_the_direction_in_which_honest_updates_vary_most() -> None:
    attack, generator = Mimic(warmup=10), torch.Generator().manual_seed(0)
    axis = torch.nn.functional.normalize(torch.randn(200, generator=generator), dim=0)
    memory = attack.init(12, torch.empty(200))
    base = known(attack, 1, torch.float32, m=2, n=12)
    for _ in range(10):
        rows = torch.randn(12, 200, generator=generator) + 6 * torch.randn(12, 1, generator=generator) * axis
        memory = attack.step(dataclasses.replace(base, own=rows[:2], others=rows[2:], client_ids=torch.arange(12)), memory)[1]
    assert abs(float(memory.direction @ axis)) > 0.9


# ---------------------------------------------------------------- clients' momentum, server's optimisers


def sent_by_hand(kind: str, beta: float, updates: list[Tensor]) -> list[Tensor]:
    memory, sent = torch.zeros_like(updates[0]), []
    for update in updates:
        memory = beta * memory + (1 - beta if kind == "normalised" else 1) * update
        sent.append(memory)
    return sent


@pytest.mark.parametrize("kind", ["normalised", "plain"])
@pytest.mark.parametrize("per_round", [6, 3])
def test_clients_momentum_is_a_running_mean_of_each_clients_updates(kind: str, per_round: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from fltrust import round as round_module
    from fltrust.training.momentum import with_momentum

    raw: list[tuple[Tensor, Tensor]] = []
    after: list[Tensor] = []

    def watched(run: Experiment, updates: Tensor, ids: Tensor, memory: Any) -> tuple[Tensor, Any]:
        raw.append((updates.clone(), ids.clone()))
        sent, memory = with_momentum(run, updates, ids, memory)
        after.append(sent.clone())
        return sent, memory

    monkeypatch.setattr(round_module, "with_momentum", watched)
    run = small_run(rule=FedAvg(), client_momentum=0.8, momentum_kind=kind, clients_per_round=per_round, rounds=6)
    list(simulate(run, small_task()))
    for client in range(6):
        taking_part = [(t, ids.tolist().index(client)) for t, (_, ids) in enumerate(raw) if client in ids]
        mine = [(raw[t][0][place], t, place) for t, place in taking_part]
        for (_, t, place), expected in zip(mine, sent_by_hand(kind, 0.8, [update for update, _, _ in mine]), strict=True):
            torch.testing.assert_close(after[t][place], expected)


def test_momentum_of_malicious_clients_is_not_what_they_send() -> None:
    """Crafted rows replace what is sent, not what the client remembers."""
    run = small_run(rule=FedAvg(), attack=Mimic(), malicious=2, client_momentum=0.5)
    honest = small_run(rule=FedAvg(), malicious=2, client_momentum=0.5)
    task = small_task(malicious=2)
    attacked, plain = next(simulate(run, task)), next(simulate(honest, task))
    assert attacked.state is not None
    assert plain.state is not None
    assert torch.equal(attacked.state.clients, plain.state.clients)
    assert not torch.equal(attacked.state.weights, plain.state.weights)


@pytest.mark.parametrize("optimiser", [SGD(), Momentum(0.7), Adam(0.8, 0.95, 0.01)], ids=repr)
def test_server_optimisers_by_hand(optimiser: ServerOptimiser) -> None:
    memory: Any = optimiser.init(torch.empty(3, dtype=FLOAT64))
    velocity, first, second = 0.0, 0.0, 0.0
    for value in (1.0, -2.0, 0.5):
        direction, memory = optimiser.step(torch.full((3,), value, dtype=FLOAT64), memory)
        velocity = 0.7 * velocity + value
        first, second = 0.8 * first + 0.2 * value, 0.95 * second + 0.05 * value**2
        expected = {SGD: value, Momentum: velocity, Adam: first / (math.sqrt(second) + 0.01)}[type(optimiser)]
        assert direction.tolist() == pytest.approx([expected] * 3)


def test_the_server_moves_along_its_optimisers_direction() -> None:
    run, task = small_run(rule=FedAvg(), server=Momentum(0.5), rounds=3), small_task()
    plain = small_run(rule=FedAvg(), rounds=1)
    weights, velocity = task.model.initial_weights, torch.zeros(task.model.d)
    records = list(simulate(run, task))
    first = next(simulate(plain, task))
    assert first.weights is not None
    assert records[0].weights is not None
    assert torch.equal(records[0].weights, first.weights)  # the first step has no velocity yet
    for record in records:
        assert record.state is not None
        moved = (record.state.weights - weights) / run.global_lr
        torch.testing.assert_close(moved, record.state.server, rtol=1e-3, atol=1e-4)
        weights, velocity = record.state.weights, record.state.server
    assert velocity.any()


# ---------------------------------------------------------------- the carry

REMEMBERING: dict[str, dict[str, Any]] = {
    "centred clipping": {"rule": CentredClipping()},
    "anchor": {"rule": Anchor()},
    "anchor, some of the clients": {"rule": Anchor(momentum=0.5), "clients_per_round": 4},
    "foolsgold": {"rule": FoolsGold()},
    "foolsgold, some of the clients": {"rule": FoolsGold(), "clients_per_round": 4},
    "mimic": {"rule": FedAvg(), "attack": Mimic(2), "malicious": 2, "seed": 7},
    "momentum": {"rule": FedAvg(), "client_momentum": 0.9},
    "momentum, some of the clients": {"rule": FedAvg(), "client_momentum": 0.9, "clients_per_round": 4, "momentum_kind": "plain"},
    "server adam": {"rule": FedAvg(), "server": Adam()},
    "all of it": {
        "rule": FoolsGold(),
        "attack": Mimic(),
        "malicious": 2,
        "client_momentum": 0.5,
        "server": Momentum(),
        "clients_per_round": 5,
    },
}


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_run_that_resumes_equals_one_that_never_stopped(name: str) -> None:
    changes = REMEMBERING[name]
    run, task = small_run(**changes), small_task(malicious=changes.get("malicious", 0))
    whole = list(simulate(run, task))
    fresh = whole[0].state
    assert fresh is not None
    assert len(list(leaves(fresh))) > 1  # there is something to remember
    for after in range(1, 5):
        before = whole[after - 1].state
        assert before is not None
        stored = {leaf: torch.from_numpy(tensor.numpy().copy()) for leaf, tensor in leaves(before)}
        rest = list(simulate(run, task, after=after, state=restored(fresh, stored, "the checkpoint")))
        for expected, record in zip(whole[after:], rest, strict=True):
            for (_, one), (_, other) in zip(leaves(expected.state), leaves(record.state), strict=True):
                assert torch.equal(one, other)


def test_memory_matters() -> None:
    """Forgetting it at a resume would change the run: otherwise the test above could not fail."""
    for name, changes in REMEMBERING.items():
        run, task = small_run(**changes), small_task(malicious=changes.get("malicious", 0))
        whole = list(simulate(run, task))
        state = whole[2].state
        assert state is not None
        zeros = state._replace(**{part: _zeros(getattr(state, part)) for part in ("rule", "attack", "clients", "server")})
        last = list(simulate(run, task, after=3, state=zeros))[-1]
        assert last.weights is not None
        assert whole[-1].weights is not None
        assert not torch.equal(last.weights, whole[-1].weights), name


def _zeros(memory: Any) -> Any:
    zeroed = copied(memory)
    for _, leaf in leaves(zeroed):
        leaf.zero_()
    return zeroed


def test_a_record_keeps_its_state_while_the_run_goes_on() -> None:
    records = simulate(small_run(rule=FoolsGold()), small_task())
    first = next(records)
    kept = copied(first.state)
    list(records)
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(leaves(kept), leaves(first.state), strict=True))


def test_a_state_of_another_experiment_is_refused_by_name() -> None:
    state = State(torch.zeros(4), rule=torch.zeros(6, 4))
    stored = dict(leaves(state))
    with pytest.raises(InputError, match=r"checkpoint is of another experiment: it lacks 'server'"):
        restored(state._replace(server=torch.zeros(4)), stored, "checkpoint")
    with pytest.raises(InputError, match=r"it holds something else: 'rule'"):
        restored(State(torch.zeros(4)), stored, "checkpoint")
    with pytest.raises(InputError, match=r"'rule' is torch.float32 of shape \(6, 4\), expected torch.float32 of shape \(7, 4\)"):
        restored(state._replace(rule=torch.zeros(7, 4)), stored, "checkpoint")


def test_a_rule_sees_all_that_the_server_knows() -> None:
    seen: list[Received] = []

    @dataclasses.dataclass(frozen=True)
    class Watching(Rule):
        needs_root = True
        needs_root_loss = True

        def aggregate(self, received: Received) -> Aggregate:
            assert received.root_loss is not None
            assert received.weights is not None
            losses = received.root_loss(torch.stack((received.weights, received.weights + received.updates[0])))
            assert losses.shape == (2,)
            seen.append(received)
            return Aggregate(received.updates.mean(0), None)

    run, task = small_run(rule=Watching(), clients_per_round=4, rounds=3), small_task()
    records = list(simulate(run, task))
    for t, (view, record) in enumerate(zip(seen, records, strict=True), 1):
        assert view.client_ids is not None
        assert tuple(view.client_ids.tolist()) == record.clients
        assert view.round == t
        assert view.sizes is not None
        assert view.sizes.tolist() == [10 + client for client in view.client_ids.tolist()]
    assert seen[0].weights is not None
    assert torch.equal(seen[0].weights, task.model.initial_weights)


def test_a_rule_that_returns_nan_stops_the_run_at_the_next_evaluation() -> None:
    @dataclasses.dataclass(frozen=True)
    class Breaks(Rule):
        def aggregate(self, received: Received) -> Aggregate:
            update = received.updates.mean(0)
            return Aggregate(torch.where(torch.as_tensor(received.round == 3), math.nan, update), None)

    records, task = simulate(small_run(rule=Breaks(), rounds=6, evaluate_every=2), small_task()), small_task()
    kept = [next(records), next(records)]
    assert kept[1].weights is not None
    assert not torch.equal(kept[1].weights, task.model.initial_weights)
    next(records)
    with pytest.raises(InputError, match="Breaks returned NaN or infinity, in round 4 or shortly before"):
        next(records)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda rows: Aggregate(rows[0, :-1], None),
            r"of shape \(\d+,\) on cpu as update, expected torch.float32 of shape",
        ),
        (lambda rows: Aggregate(rows[0], rows[:2, 0]), r"as shares, expected torch.float32 of shape \(6,\)"),
        (lambda rows: Aggregate(rows[0].double(), None), "returned torch.float64"),
        (lambda rows: Aggregate(cast(Tensor, None), None), "returned a NoneType as update"),
        (lambda rows: rows[0], "must return"),
    ],
)
def test_a_rule_that_returns_something_else_is_one_line(wrong: Any, message: str) -> None:
    @dataclasses.dataclass(frozen=True)
    class Wrong(Rule):
        def aggregate(self, received: Received) -> Aggregate:
            result: Aggregate = wrong(received.updates)
            return result

    with pytest.raises(InputError, match=message):
        next(simulate(small_run(rule=Wrong()), small_task()))


def test_what_moves_within_a_memory_is_read_before_it_is_overwritten() -> None:
    """As a rule does that remembers its last two updates, or the last global model."""
    state = State(torch.tensor([1.0]), rule=(torch.tensor([2.0]), torch.tensor([3.0])))
    move_into(state, State(torch.tensor([9.0]), rule=(state.weights, state.rule[0])))
    assert [leaf.item() for _, leaf in leaves(state)] == [9, 1, 2]


def test_a_memory_keeps_its_shapes() -> None:
    @dataclasses.dataclass(frozen=True)
    class Grows(Rule):
        def init(self, num_clients: int, like: Tensor) -> Tensor:
            return torch.zeros(2)

        def step(self, received: Received, memory: Tensor) -> tuple[Aggregate, Tensor]:
            return Aggregate(received.updates.mean(0), None), torch.cat((memory, memory))

    with pytest.raises(InputError, match=r"Grows.step must return a memory with the names, shapes and dtypes"):
        next(simulate(small_run(rule=Grows()), small_task()))


@pytest.mark.parametrize("server", [Momentum(), Adam()], ids=repr)
def test_nobody_trusted_nothing_moves_whatever_the_server_remembers(server: ServerOptimiser) -> None:
    @dataclasses.dataclass(frozen=True)
    class Sometimes(Rule):
        def aggregate(self, received: Received) -> Aggregate:
            return Aggregate(torch.where(torch.as_tensor(received.round == 2), 0, received.updates.mean(0)), None)

    first, second, third = simulate(small_run(rule=Sometimes(), server=server, rounds=3), small_task())
    assert first.state is not None
    assert second.state is not None
    assert third.state is not None
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(leaves(first.state), leaves(second.state), strict=True))
    assert not torch.equal(second.state.weights, third.state.weights)


def test_a_subclass_with_another_aggregate_is_not_streamed_as_its_parent() -> None:
    class Other(FLTrust):
        def aggregate(self, received: Received) -> Aggregate:
            return Aggregate(received.updates[0].clone(), None)

    root_update = torch.ones(3)
    assert FLTrust().streamed(root_update) is not None
    assert Other().streamed(root_update) is None


def test_an_attack_with_memory_is_not_played_in_chunks() -> None:
    class Counts(Attack):
        independent = True

        def init(self, num_clients: int, like: Tensor) -> Tensor:
            return torch.zeros(())

        def step(self, known: Knowledge, memory: Tensor) -> tuple[Tensor, Tensor]:
            return known.own, memory + 1

    many = {"num_clients": 2000, "clients_per_round": 2000}
    assert in_chunks(small_run(rule=FLTrust(), **many), 2000)
    assert not in_chunks(small_run(rule=FLTrust(), attack=Counts(), **many), 2000)
