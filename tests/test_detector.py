"""FLDetector against a slow one from the paper, part by part, and in small federations whose clients use all their data."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from conftest import shares_in, small_task
from torch import Tensor

from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.registry import RULES
from fltrust.rules import Aggregate, CentredClipping, FedAvg, FLDetector, Median, Received, take_step
from fltrust.rules.detector import Watched, hessian_product, upper_cluster
from fltrust.simulation import simulate
from fltrust.state import copied, leaves, restored

FLOAT64 = torch.float64

# ---------------------------------------------------------------- the parts


def bfgs_matrix(steps: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """BFGS by its textbook recursion, from the scaled identity: one rank-two update for each pair."""
    s, y = steps[-1], changes[-1]
    matrix = (y @ s) / (s @ s) * np.eye(len(s))
    for s, y in zip(steps, changes, strict=True):
        moved = matrix @ s
        matrix = matrix - np.outer(moved, moved) / (s @ moved) + np.outer(y, y) / (y @ s)
    return np.asarray(matrix)


def definite(d: int, rng: np.random.Generator) -> np.ndarray:
    root = rng.normal(size=(d, d))
    return np.asarray(-root @ root.T - np.eye(d))  # updates go downhill, so they fall as weights grow


@pytest.mark.parametrize("m", [1, 3, 6])
@pytest.mark.parametrize("size", [1.0, 1e-12, 1e12])
def test_the_product_is_that_of_bfgs(m: int, size: float) -> None:
    rng = np.random.default_rng(m)
    steps = rng.normal(size=(m, 12)) * rng.uniform(0.01, 10, size=(m, 1))
    changes, move = steps @ definite(12, rng), rng.normal(size=12)
    got = hessian_product(*(torch.from_numpy(part) for part in (size * steps, changes, move)))
    np.testing.assert_allclose(got.numpy(), bfgs_matrix(size * steps, changes) @ move, rtol=1e-8)


def test_the_last_move_gives_the_last_change() -> None:
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(4, 9))
    changes = steps @ definite(9, rng)
    got = hessian_product(torch.from_numpy(steps), torch.from_numpy(changes), torch.from_numpy(steps[-1]))
    np.testing.assert_allclose(got.numpy(), changes[-1], rtol=1e-8)


def test_pairs_that_say_the_same_twice_are_no_problem() -> None:
    step, change = torch.ones(2, 5, dtype=FLOAT64), -2 * torch.ones(2, 5, dtype=FLOAT64)
    torch.testing.assert_close(hessian_product(step, change, step[0]), change[0])
    assert not hessian_product(step, 0 * change, step[0]).any()
    assert not hessian_product(step, change, 0 * step[0]).any()


def least_spread(values: np.ndarray, k: int) -> float:
    """The best k-means of numbers, by trying every way to cut them."""
    values = np.sort(values)
    cuts = combinations(range(1, len(values)), k - 1)
    return min(sum(float(np.square(part - part.mean()).sum()) for part in np.split(values, list(cut))) for cut in cuts)


def number_of_clusters(scores: np.ndarray, references: np.ndarray, most: int) -> int:
    """Tibshirani, Walther, Hastie 2001: the least k with gap(k) >= gap(k + 1) - s(k + 1)."""
    scores = (scores - scores.min()) / np.ptp(scores)
    logs = np.array([[np.log(least_spread(some, k)) for some in references] for k in range(1, most + 1)])
    gaps = logs.mean(1) - [np.log(least_spread(scores, k)) for k in range(1, most + 1)]
    errors = logs.std(1) * np.sqrt(1 + 1 / len(references))
    return next((k for k in range(1, most) if gaps[k - 1] >= gaps[k] - errors[k]), most)


def test_the_gap_statistic_counts_from_one() -> None:
    rng = np.random.default_rng(0)
    found = []
    for apart in (0.0, 0.3, 0.6, 1.0, 3.0) * 6:
        scores = rng.random(11)
        scores[:3] += apart
        references = rng.random((10, 11))
        k = number_of_clusters(scores, references, most=4)
        caught = upper_cluster(scores, references)
        assert caught.any() == (k > 1)
        if k > 1:
            split = min(range(1, 11), key=lambda i: sum(np.var(part) * len(part) for part in np.split(np.sort(scores), [i])))
            assert caught.sum() == 11 - split
            assert scores[caught].min() > scores[~caught].max()
        found.append(k > 1)
    assert 5 < sum(found) < 25  # both answers are tried


def test_scores_of_one_kind_catch_nobody_and_two_kinds_the_upper() -> None:
    rng = np.random.default_rng(0)
    wrongly = 0
    for _ in range(100):
        references = rng.random((10, 100))
        wrongly += bool(upper_cluster(rng.normal(1, 0.05, 100), references).any())
        scores = np.append(rng.normal(1, 0.05, 80), rng.normal(2, 0.05, 20))
        assert upper_cluster(scores, references).tolist() == [False] * 80 + [True] * 20
    assert wrongly < 5


@pytest.mark.parametrize("scores", [[], [1.0], [1.0, 9.0], [2.0, 2.0, 2.0]])
def test_too_few_or_equal_scores_catch_nobody(scores: list[float]) -> None:
    assert not upper_cluster(np.array(scores), np.random.default_rng(0).random((10, len(scores)))).any()


# ---------------------------------------------------------------- the rule


class Federation:
    """Clients with least-squares losses and all their data in every round: updates are linear in the weights, up to a little noise."""

    def __init__(self, n: int, d: int = 6, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        common = self.rng.normal(size=(3 * d, d))
        self.data = common + 0.05 * self.rng.normal(size=(n, 3 * d, d))
        self.targets = self.data @ self.rng.normal(size=d) + 0.1 * self.rng.normal(size=(n, 3 * d))
        self.n, self.d = n, d

    def updates(self, weights: np.ndarray) -> np.ndarray:
        errors = self.data @ weights - self.targets
        noise = 0.003 * self.rng.normal(size=(self.n, self.d))
        return np.asarray(noise - 0.01 * np.einsum("nkd,nk->nd", self.data, errors))


def view(updates: np.ndarray, weights: Any, ids: Any = None, seed: int = 0) -> Received:
    return Received(
        torch.as_tensor(updates, dtype=FLOAT64),
        client_ids=torch.arange(len(updates)) if ids is None else torch.as_tensor(ids),
        weights=torch.as_tensor(weights, dtype=FLOAT64),
        generator=torch.Generator().manual_seed(seed),
    )


def play(rule: FLDetector, malicious: int, rounds: int, *, n: int = 12, since: int = 0) -> tuple[list[Aggregate], Watched, Tensor]:
    """A federation whose malicious clients send noise, from the round after `since` on."""
    clients, results = Federation(n), []
    weights, memory = torch.zeros(6, dtype=FLOAT64), rule.init(n, torch.zeros(6, dtype=FLOAT64))
    for t in range(1, rounds + 1):
        updates = clients.updates(weights.numpy())
        noise = clients.rng.normal(size=(malicious, 6))
        if t > since:
            updates[:malicious] = noise
        result, memory = take_step(rule, view(updates, weights, seed=t), memory)
        weights = weights + 0.3 * result.update
        results.append(result)
    return results, memory, weights


def test_the_errors_are_the_papers() -> None:
    n, window, clients = 8, 3, Federation(8)
    rule = FLDetector(window=window, start=100)
    memory = rule.init(n, torch.zeros(6, dtype=FLOAT64))
    weights = np.zeros(6)
    moves: list[np.ndarray] = []
    changes: list[np.ndarray] = []
    recorded: list[np.ndarray] = []
    before: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # last round's weights, updates and result
    for t in range(1, 9):
        updates = clients.updates(weights)
        result, memory = take_step(rule, view(updates, weights, seed=t), memory)
        if before is not None:
            if moves:
                h = bfgs_matrix(np.array(moves[-window:]), np.array(changes[-window:])) @ (weights - before[0])
                distances = np.array([np.linalg.norm(old + h - new) for old, new in zip(before[1], updates, strict=True)])
                recorded.append(distances / distances.sum())
            moves.append(weights - before[0])
            changes.append(result.update.numpy() - before[2])
        before = weights, updates, result.update.numpy()
        weights = weights + result.update.numpy()
        np.testing.assert_allclose(result.update.numpy(), updates.mean(0), rtol=1e-12)
        expected = np.full((n, window), -1.0)
        if recorded:
            last = np.array(recorded[-window:]).T
            expected[:, -last.shape[1] :] = last
        np.testing.assert_allclose(memory.errors.numpy(), expected, rtol=1e-6)
    assert len(recorded) == 6


def test_nobody_is_left_out_before_the_start_and_noise_is_found_after_it() -> None:
    results, _, _ = play(FLDetector(), malicious=3, rounds=60)
    for t, result in enumerate(results, 1):
        assert result.shares is not None
        assert (result.shares[3:] > 0).all()
        assert (result.shares[:3] > 0).all() == (t <= 50), t


def test_a_federation_without_attackers_keeps_everybody() -> None:
    results, _, _ = play(FLDetector(start=10), malicious=0, rounds=40)
    left_out = [int((result.shares == 0).sum()) for result in results if result.shares is not None]
    assert len(left_out) == 40
    assert sum(left_out) < 0.1 * 40 * 12


def test_an_attack_that_begins_later_is_found_within_the_window() -> None:
    results, _, _ = play(FLDetector(start=10), malicious=3, rounds=40, since=25)
    for result in results[25 + 10 :]:
        assert result.shares is not None
        assert not result.shares[:3].any()
        assert (result.shares[3:] > 0).all()


def test_for_good_means_that_nobody_comes_back() -> None:
    """The attackers behave again after a while: they are taken back, or not."""
    clients, weights = Federation(12), np.zeros(6)
    rules = {rule.for_good: rule for rule in (FLDetector(start=10), FLDetector(start=10, for_good=True))}
    memories = {for_good: rule.init(12, torch.zeros(6, dtype=FLOAT64)) for for_good, rule in rules.items()}
    for t in range(1, 60):
        updates = clients.updates(weights)
        if 12 < t < 25:
            updates[:3] = clients.rng.normal(size=(3, 6))
        shares: dict[bool, Tensor] = {}
        for for_good, rule in rules.items():
            result, memories[for_good] = take_step(rule, view(updates, weights, seed=t), memories[for_good])
            shares[for_good] = shares_in(result)
        weights = weights + 0.1 * updates[3:].mean(0)
    assert (shares[False] > 0)[:3].any()
    assert not shares[True][:3].any()
    assert memories[True].removed[:3].all()
    assert not memories[False].removed.any()


def test_a_client_that_was_away_is_predicted_from_its_last_prediction() -> None:
    clients, weights = Federation(6), np.zeros(6)
    rule = FLDetector(window=4, start=100)
    memory = rule.init(6, torch.zeros(6, dtype=FLOAT64))
    present = [[0, 1, 2, 3, 4, 5]] * 6 + [[0, 2, 3, 4, 5]] * 2 + [[0, 1, 2, 3, 4, 5]]
    expected = None
    for t, ids in enumerate(present, 1):
        updates = clients.updates(weights)[ids]
        if 1 not in ids:
            m = int(memory.pairs)
            change = hessian_product(memory.steps[-m:], memory.changes[-m:], torch.from_numpy(weights) - memory.weights)
            expected = memory.expected[1] + change
            before = memory.errors[1]
        result, memory = take_step(rule, view(updates, weights, ids, seed=t), memory)
        if 1 not in ids:
            assert expected is not None
            torch.testing.assert_close(memory.expected[1], expected)
            assert torch.equal(memory.errors[1], before)
        weights = weights + 0.3 * result.update.numpy()
    assert memory.errors[1, -1] >= 0
    assert not torch.equal(memory.errors[1], before)


def test_a_new_client_is_not_judged() -> None:
    clients, weights = Federation(8), np.zeros(6)
    rule = FLDetector(window=3, start=2)
    memory = rule.init(8, torch.zeros(6, dtype=FLOAT64))
    for t in range(1, 8):
        ids = list(range(7)) if t < 7 else list(range(8))
        updates = clients.updates(weights)[ids]
        if t == 7:
            updates[7] = 50.0
        result, memory = take_step(rule, view(updates, weights, ids, seed=t), memory)
        weights = weights + 0.3 * result.update.numpy()
    assert result.shares is not None
    assert result.shares[7] > 0
    assert (memory.errors[7] == -1).all()


def test_another_rule_aggregates_what_remains_and_keeps_its_memory() -> None:
    clients, weights = Federation(10), np.zeros(6)
    for inner in (Median(), CentredClipping(tau=0.1)):
        rule = FLDetector(window=3, start=4, rule=inner)
        assert rule.by_coordinate == inner.by_coordinate
        memory = rule.init(10, torch.zeros(6, dtype=FLOAT64))
        for t in range(1, 9):
            updates = clients.updates(weights)
            updates[:2] = clients.rng.normal(size=(2, 6))
            within = memory.rule
            result, memory = take_step(rule, view(updates, weights, seed=t), memory)
            weights = weights + 0.3 * result.update.numpy()
        alone = take_step(inner, view(updates[2:], weights), within)
        torch.testing.assert_close(result.update, alone[0].update)
        assert memory.rule is within or torch.equal(memory.rule, alone[1])
    assert RULES.name_of(FLDetector()) == "fldetector"
    assert RULES.label_of(FLDetector(rule=Median())) == "FLDetector + Median"


def test_unusable_rows_and_the_order_of_rows_change_nothing() -> None:
    clients, weights = Federation(10), np.zeros(6)
    rule = FLDetector(window=3, start=3)
    plain, broken, turned = (rule.init(10, torch.zeros(6, dtype=FLOAT64)) for _ in range(3))
    order = np.random.default_rng(0).permutation(10)
    for t in range(1, 9):
        updates = clients.updates(weights)
        updates[:2] = clients.rng.normal(size=(2, 6))
        bad = updates.copy()
        bad[5] = np.nan if t > 2 else bad[5]
        result, plain = take_step(rule, view(updates, weights, seed=t), plain)
        other, turned = take_step(rule, view(updates[order], weights, order, seed=t), turned)
        torch.testing.assert_close(other.update, result.update)
        torch.testing.assert_close(turned.errors, plain.errors)
        worse, broken = take_step(rule, view(bad, weights, seed=t), broken)
        assert worse.shares is not None
        assert torch.isfinite(worse.update).all()
        assert t <= 2 or worse.shares[5] == 0
        weights = weights + 0.3 * result.update.numpy()
    assert shares_in(worse)[:2].tolist() == [0, 0]
    before = copied(broken)
    nobody, after = take_step(rule, view(np.full((10, 6), np.nan), weights), broken)
    assert not nobody.update.any()
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(leaves(before), leaves(after), strict=True))


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("rows", ["equal", "zero"])
def test_few_clients(n: int, rows: str) -> None:
    rule = FLDetector(window=2, start=1)
    memory = rule.init(n, torch.zeros(6, dtype=FLOAT64))
    for t in range(1, 6):
        updates = np.full((n, 6), 0.0 if rows == "zero" else -1 / t)
        result, memory = take_step(rule, view(updates, np.full(6, float(t)), seed=t), memory)
        np.testing.assert_allclose(result.update.numpy(), updates[0])


@pytest.mark.parametrize("make", [lambda: FLDetector(window=0), lambda: FLDetector(start=-1)])
def test_bad_parameters_are_one_line(make: Any) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_restored_memory_continues_bit_for_bit() -> None:
    rule = FLDetector(window=4, start=6, for_good=True)
    whole, end, _ = play(rule, malicious=3, rounds=20)
    clients, weights = Federation(12), torch.zeros(6, dtype=FLOAT64)
    memory = rule.init(12, weights)
    for t in range(1, 21):
        updates = clients.updates(weights.numpy())
        updates[:3] = clients.rng.normal(size=(3, 6))
        stored = {name: torch.from_numpy(leaf.numpy().copy()) for name, leaf in leaves(memory)}
        result, memory = take_step(rule, view(updates, weights, seed=t), restored(rule.init(12, weights), stored, "the memory"))
        assert torch.equal(result.update, whole[t - 1].update)
        weights = weights + 0.3 * result.update
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(leaves(memory), leaves(end), strict=True))
    assert end.removed[:3].all()


def test_a_run_carries_its_memory() -> None:
    run = Experiment(
        dataset="small", model="own", num_clients=6, clients_per_round=4, batch_size=4, root_size=12, malicious=0, rounds=8,
        global_lr=0.05, loss="sum", evaluate_every=1, rule=FLDetector(window=2, start=2, rule=FedAvg()),
    )  # fmt: skip
    whole = list(simulate(run, small_task()))
    rest = list(simulate(run, small_task(), after=4, state=whole[3].state))
    for one, other in zip(whole[4:], rest, strict=True):
        assert one.weights is not None
        assert other.weights is not None
        assert torch.equal(one.weights, other.weights)
