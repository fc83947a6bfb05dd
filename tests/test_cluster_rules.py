"""FLAME and SignGuard: their clusters are scikit-learn's, the rest is as in the papers, row by row."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_task
from sklearn.cluster import HDBSCAN, MeanShift, estimate_bandwidth

from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.rules import FLAME, Aggregate, FoolsGold, Received, SignGuard, take_step
from fltrust.rules.cluster import bandwidth_of, largest_cluster, majority_cluster, model_distances
from fltrust.rules.rows import measure
from fltrust.simulation import simulate
from fltrust.testing import received

FLOAT64 = torch.float64


def seen(rows: Any, weights: Any = None, seed: int = 0, dtype: torch.dtype = FLOAT64) -> Received:
    updates = torch.as_tensor(rows, dtype=dtype)
    at = torch.zeros(updates.shape[1], dtype=dtype) if weights is None else torch.as_tensor(weights, dtype=dtype)
    return Received(updates, weights=at, generator=torch.Generator().manual_seed(seed), client_ids=torch.arange(len(updates)))


def once(rule: FLAME | SignGuard, view: Received) -> Aggregate:
    return take_step(rule, view, rule.init(len(view.updates), view.updates[0]))[0]


# ---------------------------------------------------------------- FLAME


def hdbscan(distances: np.ndarray) -> np.ndarray:
    n = len(distances)
    found = HDBSCAN(min_cluster_size=n // 2 + 1, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True)
    labels = found.fit(distances).labels_
    assert set(labels) <= {-1, 0}  # there is never a second cluster
    return np.asarray(labels == 0)


@pytest.mark.parametrize("ties", [False, True])
def test_the_cluster_is_that_of_hdbscan(ties: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(2, 40))
        rows = rng.normal(size=(n, 4)) + 2 * rng.random() * rng.normal(size=4)
        rows = np.round(rows) + 0.1 if ties else rows
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        distances = np.clip(1 - rows @ rows.T, 0, 2).round(12)
        np.fill_diagonal(distances, 0)
        ours = majority_cluster(torch.from_numpy(distances), torch.ones(n, dtype=torch.bool)).numpy()
        np.testing.assert_array_equal(ours, hdbscan(distances))
        assert ours.sum() > n / 2


def test_distances_are_between_models_and_exact_for_short_updates() -> None:
    rng = np.random.default_rng(1)
    weights = rng.normal(size=50)
    for size in (10.0, 1.0, 1e-3):
        updates = size * rng.normal(size=(8, 50))
        models = weights + updates
        unit = models / np.linalg.norm(models, axis=1, keepdims=True)
        expected = np.square(unit[:, None] - unit[None]).sum(2) / 2  # 1 - cos, without a difference of near equals
        view = seen(updates, weights)
        assert view.weights is not None
        torch.testing.assert_close(
            model_distances(view.updates, measure(view.updates), view.weights), torch.from_numpy(expected), rtol=1e-6, atol=0
        )


def flame(updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Algorithm 1 of the paper without noise, a client at a time."""
    models = updates + weights
    norms = [np.linalg.norm(row) for row in updates]
    distances = np.array([[1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a in models] for b in models])
    np.fill_diagonal(distances, 0)
    admitted = hdbscan((distances + distances.T) / 2)
    bound = np.median(norms)  # of all updates, also of those that are not admitted
    clipped = [row * min(1, bound / norm) for row, norm, is_in in zip(updates, norms, admitted, strict=True) if is_in]
    return np.asarray(np.mean(clipped, axis=0))


@pytest.mark.parametrize("seed", range(5))
def test_flame_is_the_papers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights, common = rng.normal(size=30), rng.normal(size=30)
    updates = (common + rng.normal(size=(15, 30))) * rng.uniform(0.2, 5, size=(15, 1))  # each row has a length of its own
    updates[:5] = -20 * common + rng.normal(size=(5, 30))  # longer than all, so that they move the median
    result = once(FLAME(noise=0), seen(updates, weights))
    np.testing.assert_allclose(result.update.numpy(), flame(updates, weights), rtol=1e-10)
    assert result.shares is not None
    assert not result.shares[:5].any()
    np.testing.assert_allclose((result.shares.double()[:, None] * torch.from_numpy(updates)).sum(0), result.update, rtol=1e-10)


def test_models_decide_not_updates() -> None:
    """Updates that point in opposite directions along the weights leave the model's direction as it is."""
    updates = [[1.0, 0.0], [-1.0, 0.0], [0.5, 0.0], [0.0, 6.0], [0.0, -6.0]]
    result = once(FLAME(noise=0), seen(updates, [10.0, 0.0]))
    assert result.shares is not None
    assert (result.shares > 0).tolist() == [True, True, True, False, False]


def test_noise_is_drawn_once_and_has_the_length_of_the_median_update() -> None:
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(9, 20_000)) + 3 * rng.normal(size=20_000)
    view = seen(updates, rng.normal(size=20_000))
    noise = once(FLAME(noise=0.01), view).update - once(FLAME(noise=0), view).update
    expected = 0.01 * np.median(np.linalg.norm(updates, axis=1))
    assert float(noise.std()) == pytest.approx(expected, rel=0.03)  # not smaller by the square root of the number of clients
    assert float(noise.mean()) == pytest.approx(0, abs=expected / 20)
    again = once(FLAME(noise=0.01), replace(view, generator=torch.Generator().manual_seed(1))).update
    assert not torch.equal(again, once(FLAME(noise=0.01), replace(view, generator=torch.Generator().manual_seed(2))).update)


def test_only_a_rule_with_noise_asks_for_randomness() -> None:
    assert FLAME().needs_generator
    assert not FLAME(noise=0).needs_generator
    with pytest.raises(InputError, match="FLAME needs randomness"):
        take_step(FLAME(), Received(torch.ones(2, 3), weights=torch.ones(3)), ())


@pytest.mark.parametrize("rule", [FLAME(noise=0), FLAME(), SignGuard(), SignGuard(similarity=True)], ids=repr)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("kind", ["equal", "zero", "NaN", "one NaN", "opposite"])
def test_few_clients_and_rows_that_say_nothing(rule: FLAME | SignGuard, n: int, kind: str) -> None:
    rows = torch.ones(n, 10, dtype=FLOAT64)
    if kind == "opposite":
        rows[0] = -2
    elif kind == "one NaN":
        rows[0, 3] = torch.nan
    elif kind != "equal":
        rows[:] = 0 if kind == "zero" else torch.nan
    result = once(rule, seen(rows, torch.arange(10.0)))
    assert torch.isfinite(result.update).all()
    nobody = kind in ("zero", "NaN") or (kind == "one NaN" and n == 1)
    assert result.update.any() != nobody
    if kind == "equal":
        torch.testing.assert_close(result.update, rows[0], rtol=0.02, atol=0.02)
    if kind == "one NaN":
        assert result.shares is not None
        assert result.shares[0] == 0


# ---------------------------------------------------------------- SignGuard


@pytest.mark.parametrize("ties", [False, True])
def test_the_cluster_is_that_of_mean_shift(ties: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(25):
        n = int(rng.integers(4, 50))
        points = np.abs(rng.normal(0.5, 0.05, (n, 3)))
        points[: n // 4] += 0.3 * rng.random()
        points = points.round(2) if ties else points
        bandwidth = estimate_bandwidth(points, quantile=0.5)
        assert bandwidth_of(points, np.arange(n)) == pytest.approx(bandwidth, rel=1e-12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that each bin holds one point
            labels = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False).fit(points).labels_
        largest = np.bincount(labels[labels >= 0]).argmax()
        np.testing.assert_array_equal(largest_cluster(points, bandwidth), labels == largest)


def test_equal_points_are_one_cluster_and_unequal_ones_are_not() -> None:
    same = np.full((6, 3), 0.7)
    assert bandwidth_of(same, np.arange(6)) == 0
    assert largest_cluster(same, 0.0).all()
    halves = np.repeat([[0.2, 0.0, 0.8], [0.8, 0.0, 0.2]], 3, axis=0)
    assert bandwidth_of(halves, np.arange(6)) == 0
    assert largest_cluster(halves, 0.0).tolist() == [False] * 3 + [True] * 3  # a tie: the greater centre
    assert largest_cluster(halves[::-1].copy(), 0.0).tolist() == [True] * 3 + [False] * 3


def honest(n: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(0.3, 1, size=(n, d)))  # more positive values than negative ones


def test_flipped_and_scaled_rows_are_left_out_and_the_rest_is_cut_to_the_median() -> None:
    rows = honest(20, 2000)
    rows[3] *= -1
    rows[7] *= 4  # longer than three medians
    rows[9] *= 0.05  # shorter than a tenth
    rows[11] *= 2  # long, but not too long: it is cut
    result = once(SignGuard(block=0.5), seen(rows))
    assert result.shares is not None
    assert not result.shares[[3, 7, 9]].any()
    norms = np.linalg.norm(rows, axis=1)
    admitted = (result.shares > 0).numpy()
    assert admitted.sum() >= 10
    assert admitted[11]
    bound = np.median(norms)
    expected = np.mean([row * min(1, bound / norm) for row, norm, is_in in zip(rows, norms, admitted, strict=True) if is_in], axis=0)
    np.testing.assert_allclose(result.update.numpy(), expected, rtol=1e-10)


def test_the_filter_comes_before_the_cut() -> None:
    """A row of four medians is left out, not cut and let in."""
    rows = np.repeat(honest(1, 100), 9, axis=0)
    rows[0] *= 4
    result = once(SignGuard(), seen(rows))
    assert result.shares is not None
    assert result.shares[0] == 0
    torch.testing.assert_close(result.update, torch.from_numpy(rows[1]))


def test_one_block_of_neighbours_is_looked_at() -> None:
    """Rows that are flipped in their first half only: seen when the block lies there, and only then; a scattered sample would always."""
    rows = np.repeat(np.abs(honest(1, 1000)), 10, axis=0)
    rows[:3, :500] *= -1
    caught = []
    for seed in range(60):
        shares = once(SignGuard(), seen(rows, seed=seed)).shares
        assert shares is not None
        assert (shares[3:] > 0).all()
        assert shares[0] == shares[1] == shares[2]
        caught.append(float(shares[0]) == 0)
    # The block begins at one of 901 places; 500 of them touch the first half.
    assert 0.35 < np.mean(caught) < 0.75


def test_the_bandwidth_is_of_at_most_fifty_rows() -> None:
    rows = honest(120, 400)
    results = {float(once(SignGuard(block=1.0), seen(rows, seed=seed)).update.norm()) for seed in range(8)}
    assert len(results) > 1  # which fifty is chance, though the block is everything
    few = honest(40, 400)
    assert len({float(once(SignGuard(block=1.0), seen(few, seed=seed)).update.norm()) for seed in range(8)}) == 1


def test_similarity_remembers_the_last_result() -> None:
    """Rows with the right signs that point elsewhere pass until there is a result to compare them with."""
    d = 1000
    rng = np.random.default_rng(0)
    rows = np.repeat(np.abs(rng.normal(1, 0.1, size=(1, d))), 12, axis=0) + 0.01 * rng.normal(size=(12, d))
    rows[:3] = 0
    rows[:3, : d // 20] = np.linalg.norm(rows[-1]) / np.sqrt(d // 20)  # a spike: no zero and no negative value
    rows[:3, d // 20 :] = 1e-3
    rule = SignGuard(similarity=True)
    view = seen(rows)
    memory = rule.init(12, view.updates[0])
    first, memory = take_step(rule, view, memory)
    torch.testing.assert_close(memory, first.update)
    assert first.shares is not None
    assert (first.shares > 0).all()
    second, _ = take_step(rule, seen(rows, seed=1), memory)
    assert second.shares is not None
    assert (second.shares > 0).tolist() == [False] * 3 + [True] * 9
    nobody, kept = take_step(rule, seen(np.zeros((12, d))), memory)
    assert not nobody.update.any()
    assert torch.equal(kept, memory)


def test_signguard_without_similarity_has_no_memory() -> None:
    assert not SignGuard().has_memory
    assert SignGuard().init(3, torch.zeros(2)) == ()
    assert SignGuard(similarity=True).has_memory


@pytest.mark.parametrize("bad", ["NaN", "zeros"])
def test_unusable_rows_change_nothing(bad: str) -> None:
    rows = honest(12, 500)
    rows[3] *= -1
    rule = SignGuard(block=1.0)  # with fewer than fifty rows, nothing is left to chance
    without = once(rule, seen(rows))
    worse = np.insert(rows, 5, np.nan if bad == "NaN" else 0.0, axis=0)
    result = once(rule, seen(worse))
    torch.testing.assert_close(result.update, without.update)
    order = np.random.default_rng(0).permutation(12)
    torch.testing.assert_close(once(rule, seen(rows[order])).update, without.update)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FLAME(noise=-1.0),
        lambda: FLAME(noise=float("nan")),
        lambda: SignGuard(lower=1.5),
        lambda: SignGuard(upper=0.5),
        lambda: SignGuard(block=0.0),
        lambda: SignGuard(block=1.5),
        lambda: FoolsGold(last=0),
        lambda: FoolsGold(last=9).init(2, torch.zeros(5)),
    ],
)
def test_bad_parameters_are_one_line(make: Any) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- FoolsGold's indicative features


def test_foolsgold_compares_the_last_coordinates_and_adds_up_whole_rows() -> None:
    view = received(1, FLOAT64)
    rows = view.updates.clone()
    rows[1, -5:] = rows[0, -5:]  # two clients agree there, and nowhere else
    rule = FoolsGold(last=5)
    memory = rule.init(16, rows[0])
    assert memory.shape == (16, 5)
    result, memory = take_step(rule, replace(view, updates=rows), memory)
    last, _ = take_step(
        FoolsGold(), replace(view, updates=rows[:, -5:], weights=None, root_update=None), FoolsGold().init(16, rows[0, -5:])
    )
    assert result.shares is not None
    assert last.shares is not None
    torch.testing.assert_close(result.shares, last.shares)
    assert result.shares[0] == result.shares[1] == 0
    torch.testing.assert_close(result.update, result.shares @ rows)


# ---------------------------------------------------------------- in a run


@pytest.mark.parametrize("rule", [FLAME(), SignGuard(), SignGuard(similarity=True)], ids=repr)
def test_a_run_learns_and_resumes_with_the_same_bits(rule: Any) -> None:
    task = small_task()
    run = Experiment(
        dataset="small", model="own", num_clients=6, clients_per_round=6, batch_size=4, root_size=12, malicious=0, rounds=6,
        global_lr=0.05, loss="sum", evaluate_every=1, rule=rule,
    )  # fmt: skip
    whole = list(simulate(run, task))
    rest = list(simulate(run, task, after=3, state=whole[2].state))
    for one, other in zip(whole[3:], rest, strict=True):
        assert one.weights is not None
        assert other.weights is not None
        assert torch.equal(one.weights, other.weights)
    assert whole[-1].weights is not None
    assert whole[0].weights is not None
    assert not torch.equal(whole[-1].weights, whole[0].weights)


@pytest.mark.parametrize("length", [1e3, 1e10, 1e30])
def test_a_very_long_row_is_not_near_to_all_others(length: float) -> None:
    """With a formula that cancels, its distances to all others come out as 0: one group, which it belongs to."""
    chance = torch.Generator().manual_seed(3)
    weights = torch.randn(500, generator=chance)
    updates = 0.1 * torch.randn(9, 500, generator=chance)
    updates[4] = length * torch.randn(500, generator=chance)
    result = FLAME(noise=0).aggregate(Received(updates, weights=weights))
    rest = torch.arange(9) != 4
    models = (weights + updates[rest]).double()
    cosines = torch.nn.functional.cosine_similarity(models[:, None], models[None], dim=2)
    expected = HDBSCAN(metric="precomputed", min_cluster_size=5, min_samples=1, allow_single_cluster=True, copy=True)
    admitted = expected.fit((1 - cosines).clamp(min=0).fill_diagonal_(0).numpy()).labels_ == 0
    assert result.shares is not None
    assert result.shares[4] == 0
    assert ((result.shares[rest] > 0).numpy() == admitted).all()
