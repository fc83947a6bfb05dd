"""Fallback: after every round that moves the model, it is not much worse on held-out root examples than the server alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fltrust.attacks import Knowledge, Searched
from fltrust.attacks.attack import Server, take_step
from fltrust.attacks.searched.finals import _largest_let_through
from fltrust.attacks.searched.rivals import rivals_rows, rivals_with
from fltrust.attacks.searched.scene import aim_of, scene_of
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.rules import Aggregate, Anchor, Fallback, FedAvg, FLTrust, Krum, Median, NormClipping, Received, Rule, Zeno
from fltrust.rules.fallback import Alone
from fltrust.simulation import simulate
from fltrust.state import Memory
from fltrust.tasks.build import build_task
from fltrust.tasks.root import hold_out
from fltrust.training.optimisers import Momentum

D, N = 5, 6
GOAL = torch.arange(D).double() / 3  # the best model; the server's own examples lead to another
SERVERS = GOAL + 0.4


def loss(models: Tensor) -> Tensor:
    return (models.double() - GOAL).square().sum(1)


def far(model: Tensor) -> float:
    return float(loss(model[None])[0])


def from_root(weights: Tensor) -> Tensor:
    return (SERVERS.to(weights) - weights) / 4


def received(weights: Tensor, updates: Tensor, lr: float = 1.0, **changes: Any) -> Received:
    seen = Received(
        updates,
        from_root(weights),
        client_ids=torch.arange(len(updates)),
        weights=weights,
        root_loss=loss,
        global_lr=torch.tensor(lr, dtype=weights.dtype),
        root_update_from=from_root,
    )
    return replace(seen, **changes)


def rows(t: int, weights: Tensor, malicious: int) -> Tensor:
    """Honest clients go a quarter of the way to the best model, with noise; malicious ones far away from it."""
    generator = torch.Generator().manual_seed(t)
    honest = (GOAL - weights) / 4 + 0.05 * torch.randn(N, D, generator=generator, dtype=torch.float64)
    honest[:malicious] = -5 * torch.rand(malicious, 1, generator=generator, dtype=torch.float64) * (GOAL - weights + 0.1)
    return honest


def twin(lr: float, slack: float, malicious: int, rounds: int) -> tuple[list[Tensor], int]:
    """The models of a run with FedAvg, in plain Python, and how often it fell back."""
    weights = torch.zeros(D, dtype=torch.float64)
    alone, models, fell_back = [weights], [weights], 0
    for t in range(rounds):
        alone.append(alone[-1] + lr * from_root(alone[-1]))
        best = min(alone + models, key=far)
        lowest = min(far(model) for model in alone)
        moved = weights + lr * rows(t, weights, malicious).mean(0)
        if far(moved) > lowest + slack * (far(alone[0]) - lowest):
            moved, fell_back = best, fell_back + 1
        weights = moved
        models.append(weights)
    return models[1:], fell_back


@pytest.mark.parametrize(("lr", "slack"), [(1.0, 0.1), (0.5, 0.0), (0.3, 0.5)])
@pytest.mark.parametrize("malicious", [0, 2, 5])
def test_a_run_is_that_of_the_plain_twin(lr: float, slack: float, malicious: int) -> None:
    rule, weights = Fallback(FedAvg(by_size=False), slack), torch.zeros(D, dtype=torch.float64)
    memory, count = rule.init(N, weights), 0
    expected, fell_back = twin(lr, slack, malicious, rounds=15)
    for t, model in enumerate(expected):
        aggregate, memory = rule.step(received(weights, rows(t, weights, malicious), lr), memory)
        assert aggregate.shares is not None
        count += not aggregate.shares.any()
        weights = weights + lr * aggregate.update
        torch.testing.assert_close(weights, model)
    assert count == fell_back
    assert malicious < 5 or fell_back > 0


@pytest.mark.parametrize("rule", [FedAvg(), Median(), Anchor(), FLTrust(), Krum(2)], ids=repr)
def test_no_majority_gets_past_the_bound(rule: Rule) -> None:
    """All clients are malicious, and send what is long, short, random or nothing."""
    subject, weights, generator = Fallback(rule), torch.zeros(D, dtype=torch.float64), torch.Generator().manual_seed(1)
    memory, alone = subject.init(N, weights), [weights]
    for t in range(40):
        updates = torch.randn(N, D, generator=generator, dtype=torch.float64) * 10.0 ** (t % 5 - 2)
        aggregate, memory = subject.step(received(weights, updates), memory)
        weights = weights + aggregate.update
        alone.append(alone[-1] + from_root(alone[-1]))
        lowest = min(far(model) for model in alone)
        bound = lowest + subject.slack * (far(alone[0]) - lowest)
        assert far(weights) <= bound + 1e-12
    assert far(weights) < far(alone[0])  # it learnt something all the same


def test_good_clients_are_those_of_the_rule_within_bit_for_bit() -> None:
    rule, weights = Fallback(Anchor()), torch.zeros(D, dtype=torch.float64)
    memory, within = rule.init(N, weights), rule.rule.init(N, weights)
    for t in range(5):
        seen = received(weights, rows(t, weights, 0))
        (update, shares), memory = rule.step(seen, memory)
        (expected, theirs), within = rule.rule.step(seen, within)
        assert torch.equal(update, expected)
        assert shares is not None
        assert theirs is not None
        assert torch.equal(shares, theirs)
        weights = weights + update


def test_a_loss_that_is_no_number_moves_nothing_and_is_not_remembered() -> None:
    rule, weights = Fallback(FedAvg()), torch.zeros(D, dtype=torch.float64)
    broken = received(weights, rows(0, weights, 0), root_loss=lambda models: torch.full((len(models),), torch.nan))
    (update, _), memory = rule.step(broken, rule.init(N, weights))
    assert not update.any()
    (update, _), memory = rule.step(received(weights, rows(0, weights, 0)), memory)
    assert update.any()
    assert isinstance(memory, Alone)
    assert torch.isfinite(memory.first)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_without_a_usable_root_update_it_goes_back(value: float) -> None:
    rule, weights = Fallback(FedAvg()), torch.zeros(D, dtype=torch.float64)
    (update, _), memory = rule.step(received(weights, rows(0, weights, 0)), rule.init(N, weights))
    weights = weights + update + 0.1
    seen = received(weights, rows(1, weights, 0), root_update=torch.full((D,), value, dtype=torch.float64))
    (update, shares), memory = rule.step(seen, memory)
    torch.testing.assert_close(weights + update, memory.best)
    assert shares is not None
    assert not shares.any()


def test_a_rule_that_moves_nothing_does_not_keep_a_bad_model() -> None:
    rule, weights = Fallback(FLTrust()), torch.zeros(D, dtype=torch.float64)
    memory, alone = rule.init(N, weights), weights
    for _ in range(10):  # all clients send the opposite of the root update, so that FLTrust trusts nobody
        (update, _), memory = rule.step(received(weights, -from_root(weights).expand(N, -1).contiguous()), memory)
        weights, alone = weights + update, alone + from_root(alone)
    assert far(weights) <= far(alone) + rule.slack * far(torch.zeros(D))


def test_a_model_from_which_no_step_leads_back_is_not_taken() -> None:
    """Two layers of one weight each: scaled up and down they are the same function, and rounding would swallow the way back."""
    rule, weights, best = Fallback(FedAvg(by_size=False)), torch.tensor([0.5, 0.5]), torch.ones(2)
    scaled = torch.tensor([2.0**30, 2.0**-30])
    seen = Received(
        (scaled - weights).expand(N, -1).contiguous(),
        best - weights,
        weights=weights,
        root_loss=lambda models: (models.prod(1) - 1).square(),
        root_update_from=lambda model: best - model,
    )
    update = rule.step(seen, rule.init(N, weights))[0].update
    assert torch.equal(weights + update, best)


def test_a_model_whose_way_back_is_rounded_away_is_not_taken() -> None:
    """From 1e9, float32 rounds away the step back to the best model."""
    rule, weights, alone = Fallback(FedAvg(by_size=False)), torch.zeros(1), [torch.zeros(1)]

    def to_one(models: Tensor) -> Tensor:
        return 1 - torch.exp(-torch.where(models.abs() > 1e8, 0.535, (models - 1).abs()).sum(1))

    memory = rule.init(N, weights)
    for sent in (1e9, 1.0, 1.0):
        update = torch.full((N, 1), sent)
        seen = Received(update, (1 - weights) / 2, weights=weights, root_loss=to_one, root_update_from=lambda model: (1 - model) / 2)
        (update, _), memory = rule.step(seen, memory)
        weights = weights + update
        alone.append((1 + alone[-1]) / 2)
        first, *_, lowest = sorted(to_one(torch.stack(alone)).tolist(), reverse=True)
        assert to_one(weights[None]).item() <= lowest + rule.slack * (first - lowest) + 1e-6


def test_a_first_model_whose_loss_is_no_number_is_left() -> None:
    rule, weights = Fallback(FedAvg()), torch.full((D,), -5.0, dtype=torch.float64)

    def undefined_at_first(models: Tensor) -> Tensor:
        return torch.where((models <= -5).all(1), torch.nan, loss(models))

    memory = rule.init(N, weights)
    for t in range(10):  # all clients are malicious
        (update, _), memory = rule.step(received(weights, rows(t, weights, N), root_loss=undefined_at_first), memory)
        weights = weights + update
    assert far(weights) < 0.2 * far(torch.full((D,), -5.0))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="needs a rule within"):
        Fallback("anchor")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a slack of 0 to 1, not 2"):
        Fallback(FedAvg(), 2.0)
    for within in (Zeno(2), Fallback(FedAvg())):
        with pytest.raises(InputError, match="would choose updates by the examples that are held out"):
            Fallback(within)
    with pytest.raises(InputError, match="clip inside"):
        NormClipping(Fallback(FedAvg()), noise=0.1)
    with pytest.raises(InputError, match="leave out the server's optimiser"):
        Experiment.on("har", "fallback+anchor", server=Momentum())


# ---------------------------------------------------------------- the examples held out


def test_every_class_gives_its_part() -> None:
    labels = np.tile(np.arange(4), 10)
    root = 100 + np.arange(40)
    trained, held = hold_out(root, labels)
    assert sorted([*trained, *held]) == root.tolist()
    assert np.bincount(labels[held - 100]).tolist() == [2, 2, 2, 2]


def test_other_targets_and_small_root_sets() -> None:
    trained, held = hold_out(np.arange(10), np.linspace(1, 0, 10))
    assert held.tolist() == [4, 9]  # the lowest number and the one in the middle
    assert len(trained) == 8
    assert hold_out(np.arange(7), np.zeros((7, 3)))[1].tolist() == [0, 5]
    assert [len(part) for part in hold_out(np.arange(2), np.array([1, 0]))] == [1, 1]
    with pytest.raises(InputError, match="at least 2 are needed"):
        hold_out(np.arange(1), np.zeros(1))


def mnist(rule: Any, **changes: Any) -> Experiment:
    settings: dict[str, Any] = {
        "model": "logistic",
        "num_clients": 10,
        "malicious": 6,
        "rounds": 30,
        "batch_size": 16,
        "evaluate_every": 30,
    }
    return Experiment.on("mnist-5k", rule, "sign-flip", **settings | changes)


def test_a_malicious_majority_does_little_in_the_simulator() -> None:
    ends = {}
    for rule in ("fedavg", "fallback+fedavg", "fltrust-server"):
        run = mnist(rule)
        ends[rule] = list(simulate(run, build_task(run)))[-1].test_error or 1.0
    assert 0.8 < ends["fedavg"] < 1.0
    assert ends["fallback+fedavg"] < ends["fltrust-server"] + 0.1


def test_the_held_out_examples_change_no_root_update() -> None:
    run = mnist("fallback+fedavg", rounds=1, evaluate_every=1, malicious=0)
    task = build_task(run)
    _, held = hold_out(task.root, task.targets[torch.from_numpy(task.root)].numpy())
    (record,) = simulate(run, task)
    task.inputs[torch.from_numpy(held)] = 0.5
    (again,) = simulate(run, task)
    assert record.root_norm == again.root_norm
    rest = np.setdiff1d(task.root, held)
    task.inputs[torch.from_numpy(rest)] = 0.5
    (changed,) = simulate(run, task)
    assert record.root_norm != changed.root_norm


# ---------------------------------------------------------------- the search


class Opposite(Fallback):
    """A user's own: what is known of Fallback does not hold for it."""

    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        aggregate, memory = super().step(received, memory)
        return aggregate._replace(update=-aggregate.update), memory


@pytest.mark.parametrize(
    "rule", [*map(Fallback, (FedAvg(), Anchor(), Median())), Opposite(FLTrust(), 1.0), Opposite(Anchor(momentum=0.0), 1.0)], ids=repr
)
def test_the_search_is_never_weaker_than_another_attack(rule: Fallback) -> None:
    weights, m = torch.zeros(D, dtype=torch.float64), 3
    memory = rule.init(N, weights)
    attack = Searched(tries=10, steps=1)
    remembered = attack.init(N, weights)
    rivals = rivals_with("full")
    theirs = tuple(rival.init(N, weights) for rival in rivals)
    for t in range(3):
        updates = rows(t, weights, 0)
        known = Knowledge(
            updates[:m],
            updates[m:],
            from_root(weights),
            n=N,
            tolerate=m,
            num_clients=N,
            generator=torch.Generator().manual_seed(t),
            client_ids=torch.arange(N),
            round=torch.tensor(t + 1),
            weights=weights,
            global_lr=torch.tensor(1.0),
            server=Server(rule, memory, None, loss, from_root),
        )
        sent, remembered = take_step(attack, known, remembered)
        scene = scene_of(known, "full", False, 1)
        others, _, theirs = rivals_rows(rivals, known, theirs)
        aim = aim_of("mean", scene, scene.undisturbed())
        worst = max(float(aim.mean_damage(scene, other, 0)) for other in others)
        assert float(aim.mean_damage(scene, sent, 0)) >= worst - 1e-12
        (update, _), memory = rule.step(received(weights, torch.cat((sent, updates[m:]))), memory)
        weights = weights + update


@pytest.mark.parametrize("slack", [0.0, 0.5])
def test_the_search_tries_the_best_first_and_misses_nothing(slack: float) -> None:
    """Honest clients learn in four coordinates, the held-out loss looks at the fifth: to be refused does more than to be let through."""
    generator, m, weights = torch.Generator().manual_seed(0), 2, torch.zeros(D, dtype=torch.float64)
    updates = torch.rand(N, D, generator=generator, dtype=torch.float64)
    updates[:, 4] = 0
    rule = Fallback(FedAvg(by_size=False), slack)

    def fifth(models: Tensor) -> Tensor:
        return models[:, 4].square()

    known = Knowledge(
        updates[:m],
        updates[m:],
        torch.ones(D, dtype=torch.float64),
        n=N,
        tolerate=m,
        num_clients=N,
        generator=generator,
        client_ids=torch.arange(N),
        weights=weights,
        server=Server(rule, rule.init(N, weights), None, fifth, torch.zeros_like),
    )
    scene = scene_of(known, "full", False, 1)
    aim = aim_of("mean", scene, scene.undisturbed())
    refused = torch.zeros(3, m, D, dtype=torch.float64)
    refused[:, :, 4] = 10
    rows = torch.cat((-updates[m:].mean(0) * torch.rand(4, m, 1, generator=generator, dtype=torch.float64), refused + updates[:m]))
    let_through = replace(scene, rule=rule.rule, memory=())
    values = torch.stack([aim.mean_damage(let_through, each, 0) for each in rows])
    done = torch.stack([aim.mean_damage(scene, each, 0) for each in rows])
    assert (done[4:] > values[4:]).all()
    assert done[4:].min() > done[:4].max()
    chosen = _largest_let_through(scene, rule, aim, rows, values)
    assert aim.mean_damage(scene, chosen, 0) == done.max()


# ---------------------------------------------------------------- a federation


def examples() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    return inputs, inputs[:, :3].argmax(1)


def test_a_federation_falls_back_too(tmp_path: Path, quiet_flower: None, clock: object) -> None:
    flower = pytest.importorskip("fake_federation")
    from fltrust.flower import root_of

    root = root_of(nn.Linear(4, 3), examples(), lr=0.5, hold_out=True)
    away = {"weight": -3 * np.eye(3, 4, dtype=np.float32), "bias": np.zeros(3, np.float32)}  # the first three inputs tell the class

    def hostile(node: int, message: Any) -> Any:
        arrays = flower.arrays_of(message)
        return flower.reply_with(message, {name: array + away[name] for name, array in arrays.items()})

    def final_loss(rule: Rule, **options: Any) -> float:
        arrays, _ = flower.run(hostile, rule, rounds=6, **options)
        return root.loss(arrays)  # type: ignore[attr-defined,no-any-return]

    alone, losses = {name: array.copy() for name, array in flower.MODEL.items()}, []
    for _ in range(6):
        losses.append(root.loss(alone))  # type: ignore[attr-defined]
        alone = {name: array + root(alone)[name] for name, array in alone.items()}
    losses.append(root.loss(alone))  # type: ignore[attr-defined]
    bound = min(losses) + 0.1 * (losses[0] - min(losses))
    assert final_loss(FedAvg()) > 0.9
    assert final_loss(Fallback(FedAvg()), root=root, directory=tmp_path / "whole") <= bound + 1e-6
    for rounds in (2, 6):  # killed and resumed, it is the same
        arrays, _ = flower.run(hostile, Fallback(FedAvg()), rounds=rounds, root=root, directory=tmp_path / "part")
    assert flower.same(arrays, flower.run(hostile, Fallback(FedAvg()), rounds=6, root=root)[0])
    assert all(verdict == "not-chosen" for verdict in flower.records(tmp_path / "part")[-1]["verdict"])


def test_a_federation_is_the_simulated_rule_also_in_rounds_that_move_nothing(quiet_flower: None, clock: object) -> None:
    """All nodes break the bound in every round, and the server's steps, on two examples each, do not all lower the loss."""
    flower = pytest.importorskip("fake_federation")
    from fltrust.flower import root_of
    from fltrust.flower.layout import Layout, is_statistic

    root, moves = root_of(nn.Linear(4, 3), examples(), lr=0.5, batch_size=2, hold_out=True), []
    layout = Layout.of(flower.MODEL, is_statistic)

    def arrays_of(weights: Tensor) -> dict[str, np.ndarray]:
        return {name: np.asarray(part) for name, part in layout.parts(weights)}

    def from_root(weights: Tensor) -> Tensor:
        return layout.vector(root(arrays_of(weights)).__getitem__)

    def held_out_losses(models: Tensor) -> Tensor:
        return torch.tensor([root.loss(arrays_of(model)) for model in models], dtype=torch.float64)  # type: ignore[attr-defined]

    def hostile(node: int, message: Any) -> Any:
        arrays = flower.arrays_of(message)
        back = root(arrays)
        return flower.reply_with(message, {name: (array - 100 * back[name]).astype(np.float32) for name, array in arrays.items()})

    rule, weights = Fallback(FedAvg()), layout.vector(flower.MODEL.__getitem__)
    memory = rule.init(6, weights)
    for _ in range(10):
        root_update = from_root(weights)
        sent = (-100 * root_update).expand(6, -1).contiguous()
        seen = Received(sent, root_update, weights=weights, root_loss=held_out_losses, root_update_from=from_root)
        (update, _), memory = rule.step(seen, memory)
        moves.append(bool(update.any()))
        weights = weights + update
    assert not moves[0]
    assert any(moves)
    ended, _ = flower.run(hostile, rule, rounds=len(moves), root=root)
    torch.testing.assert_close(layout.vector(ended.__getitem__), weights, rtol=1e-3, atol=1e-4)


def test_a_federation_refuses_a_root_that_holds_nothing_out(quiet_flower: None) -> None:
    flower = pytest.importorskip("fltrust.flower")
    root = flower.root_of(nn.Linear(4, 3), examples(), lr=0.5)
    with pytest.raises(InputError, match="hold_out=True"):
        flower.RobustStrategy(Fallback(FedAvg()), root=root)
    with pytest.raises(InputError, match=r"a loss on the root set: give root=root_of"):
        flower.RobustStrategy(Fallback(FedAvg()), root=lambda arrays: arrays)
    held_out = flower.root_of(nn.Linear(4, 3), examples(), lr=0.5, hold_out=True)
    with pytest.raises(InputError, match="leave out the server's optimiser"):
        flower.RobustStrategy(Fallback(FedAvg()), root=held_out, server=Momentum())
    assert held_out.settings["examples"] == root.settings["examples"] == 20
    assert "hold_out" not in root.settings  # so that what was begun before goes on


def test_a_federation_takes_other_rules_that_ask_for_a_loss(quiet_flower: None, clock: object) -> None:
    flower = pytest.importorskip("fake_federation")
    from fltrust.flower import root_of

    root = root_of(nn.Linear(4, 3), examples(), lr=0.5)
    good = {"weight": np.eye(3, 4, dtype=np.float32), "bias": np.zeros(3, np.float32)}  # the first three inputs tell the class

    def client(node: int, message: Any) -> Any:
        arrays = flower.arrays_of(message)
        return flower.reply_with(message, {name: array + (good if node > 2 else bad)[name] for name, array in arrays.items()})

    bad = {name: -array for name, array in good.items()}
    arrays, _ = flower.run(client, Zeno(2), rounds=3, root=root)
    assert all(np.allclose(arrays[name], flower.MODEL[name] + 3 * good[name]) for name in good)
    assert np.isclose(root.loss(arrays), float(nn.functional.cross_entropy(*logits(arrays))))  # type: ignore[attr-defined]
    held_out = root_of(nn.Linear(4, 3), examples(), lr=0.5, hold_out=True)
    outputs, labels = logits(arrays)
    held = torch.from_numpy(hold_out(np.arange(20), labels.numpy())[1])
    wrong = 1 - outputs.softmax(1)[held, labels[held]]
    assert np.isclose(held_out.loss(arrays), float(wrong.mean()))  # type: ignore[attr-defined]


def logits(arrays: dict[str, np.ndarray]) -> tuple[Tensor, Tensor]:
    inputs, labels = examples()
    return inputs @ torch.from_numpy(arrays["weight"]).T + torch.from_numpy(arrays["bias"]), labels


def test_a_federation_refuses_statistics_that_would_not_be_restored(quiet_flower: None, clock: object) -> None:
    flower = pytest.importorskip("fake_federation")
    from fltrust.flower import root_of

    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    start = {name: array.numpy().copy() for name, array in module.state_dict().items()}
    root = root_of(module, examples(), lr=0.5, hold_out=True)
    with pytest.raises(InputError, match=r"not buffers such as '1.running_mean': use GroupNorm"):
        flower.run(lambda node, message: None, Fallback(FedAvg()), rounds=1, root=root, start=start)
