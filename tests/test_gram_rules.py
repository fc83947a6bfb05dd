"""Rules from the rows' inner products, against loops written from the papers, examples worked by hand, and known mistakes of others."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrust import CAF, DnC, FedAvg, GeometricMedian, InputError, Krum, MultiKrum, Received, Rule
from fltrust.rules.gram import GramRule
from fltrust.rules.krum import krum_picks
from fltrust.rules.pairs import inner_products, sq_distances, sq_distances_of
from fltrust.rules.preaggregation import Measured, PreAggregation
from fltrust.rules.rows import measure
from fltrust.rules.rule import take_step
from fltrust.rules.spectral import along_top

Array = NDArray[np.float64]


def rows_of(seed: int, n: int = 13, d: int = 9, malicious: int = 3) -> Array:
    """Honest rows around a common one, malicious rows elsewhere."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=d) + draw.normal(size=(n, d)) * draw.uniform(0.5, 1.5, size=d)
    rows[:malicious] += draw.uniform(0, 4) * draw.normal(size=d)
    return rows[draw.permutation(n)]


def result(rule: Rule, rows: Array | Tensor) -> Array:
    return np.asarray(rule(torch.as_tensor(rows)).update)


# ---------------------------------------------------------------- references: slow, from the papers


def krum_scores_of(rows: list[Array], neighbours: int, power: int = 2, with_itself: bool = False) -> list[float]:
    """For each row the sum of its smallest distances to others, to some power."""
    scores = []
    for i, row in enumerate(rows):
        distances = sorted(math.dist(row, other) ** power for j, other in enumerate(rows) if with_itself or j != i)
        scores.append(sum(distances[:neighbours]))
    return scores


def multi_krum(rows: Array, f: int, keep: int) -> Array:
    """Blanchard et al. 2017, section 4: the average of the vectors with the best scores."""
    scores = krum_scores_of(list(rows), len(rows) - f - 2)
    best = sorted(range(len(rows)), key=lambda i: (scores[i], i))[:keep]
    return np.asarray(sum(rows[i] for i in best) / keep)


def iterated_krum(rows: Array, f: int, leave: int) -> list[int]:
    """The rows in the order in which Krum takes them out."""
    left, taken = list(range(len(rows))), []
    while len(left) > leave:
        scores = krum_scores_of([rows[i] for i in left], max(len(left) - f - 2, 0))
        to_all = krum_scores_of([rows[i] for i in left], len(left))
        taken.append(left.pop(min(range(len(left)), key=lambda i: (scores[i], to_all[i], i))))
    return taken


def weiszfeld(rows: Array, steps: int, smoothing: float, start: str) -> Array:
    """Pillutla et al. 2022, algorithm 2, with equal weights and nu in units of the median distance."""
    z = rows.mean(0)
    if start == "inner":  # ours
        median = [sorted(math.dist(row, other) for other in rows)[(len(rows) - 1) // 2] for row in rows]
        z = sum(row / distance for row, distance in zip(rows, median, strict=True)) / sum(1 / distance for distance in median)
    for _ in range(steps):
        distances = [math.dist(row, z) for row in rows]
        nu = smoothing * sorted(distances)[(len(rows) - 1) // 2]
        b = [1 / max(nu, distance) for distance in distances]
        z = sum(weight * row for weight, row in zip(b, rows, strict=True)) / sum(b)
    return np.asarray(z)


def dnc(rows: Array, drop: int) -> list[int]:
    """Shejwalkar and Houmansadr 2021, algorithm 2, on the coordinates it is given: which rows are kept."""
    centred = rows - rows.mean(0)
    v = np.linalg.svd(centred)[2][0]
    outlying = [float(row @ v) ** 2 for row in centred]
    return sorted(sorted(range(len(rows)), key=lambda i: outlying[i])[: len(rows) - drop])


def caf(rows: Array, f: int) -> tuple[Array, list[tuple[float, Array]]]:
    """Allouah et al. 2025, the covariance-bound agnostic filter; also every top eigenvalue with its mean."""
    n, c, seen = len(rows), np.ones(len(rows)), []
    while c.sum() > n - 2 * f + 1e-12:
        mean = sum(weight * row for weight, row in zip(c, rows, strict=True)) / c.sum()
        covariance = sum(weight * np.outer(row - mean, row - mean) for weight, row in zip(c, rows, strict=True)) / c.sum()
        values, vectors = np.linalg.eigh(covariance)
        seen.append((float(values[-1]), mean))
        t = np.array([float((row - mean) @ vectors[:, -1]) ** 2 for row in rows])
        c = c * np.maximum(0, 1 - t / t[c > 0].max())
    return min(seen, key=lambda step: step[0])[1], seen


# ---------------------------------------------------------------- against the references


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("n", "f"), [(4, 0), (5, 1), (13, 3), (13, 5)])
def test_multi_krum(seed: int, n: int, f: int) -> None:
    rows = rows_of(seed, n, malicious=f)
    np.testing.assert_allclose(result(MultiKrum(f), rows), multi_krum(rows, f, n - f), rtol=1e-12)
    np.testing.assert_allclose(result(MultiKrum(f, keep=2), rows), multi_krum(rows, f, 2), rtol=1e-12)
    if n > 2 * f + 2:
        taken = iterated_krum(rows, f, 2 * f + 2)
        assert len(taken) == n - 2 * f - 2
        np.testing.assert_allclose(result(MultiKrum(f, iterated=True), rows), rows[taken].mean(0), rtol=1e-12)
        np.testing.assert_allclose(result(MultiKrum(f, keep=1, iterated=True), rows), rows[taken[0]], rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "f"), [(3, 0), (7, 1), (11, 2)])
def test_krum_picks_down_to_rows_without_neighbours(seed: int, n: int, f: int) -> None:
    rows = rows_of(seed, n, malicious=f)
    picked = krum_picks(sq_distances(torch.from_numpy(rows)), f, torch.ones(n, dtype=torch.bool), 2 * f, n)
    assert picked.nonzero().flatten().tolist() == sorted(iterated_krum(rows, f, 2 * f))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rule", [GeometricMedian(), GeometricMedian(steps=3), GeometricMedian(steps=60, smoothing=0.3)], ids=repr)
@pytest.mark.parametrize("start", ["inner", "mean"])
def test_geometric_median(seed: int, rule: GeometricMedian, start: Literal["inner", "mean"]) -> None:
    rows = rows_of(seed)
    expected = weiszfeld(rows, rule.steps, rule.smoothing, start)
    np.testing.assert_allclose(result(replace(rule, start=start), rows), expected, rtol=1e-9, atol=1e-12)


def test_many_steps_reach_the_smallest_sum_of_distances() -> None:
    rows = rows_of(1)
    z = result(GeometricMedian(steps=300), rows)
    pulls = [(row - z) / math.dist(row, z) for row in rows]  # the gradient is zero where the pulls cancel
    assert np.linalg.norm(sum(pulls)) < 1e-6
    assert np.linalg.norm(sum((row - rows.mean(0)) / math.dist(row, rows.mean(0)) for row in rows)) > 0.1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("f", "c"), [(0, 1.0), (3, 1.0), (3, 1.5), (5, 1.0), (10, 1.1)])
def test_dnc(seed: int, f: int, c: float) -> None:
    rows = rows_of(seed, malicious=min(f, 5))
    kept = dnc(rows, {1.0: f, 1.5: 4, 1.1: 11}[c])
    np.testing.assert_allclose(result(DnC(f, filter=c), rows), rows[kept].mean(0), rtol=1e-9)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_dnc_on_drawn_coordinates(seed: int) -> None:
    rows = rows_of(seed)
    received = Received(torch.from_numpy(rows), generator=torch.Generator().manual_seed(seed))
    shares = take_step(DnC(3, rounds=4, coordinates=5), received, ())[0].shares
    assert shares is not None
    chance, kept = torch.Generator().manual_seed(seed), set(range(13))
    for _ in range(4):
        drawn = torch.rand(9, generator=chance).topk(5).indices.numpy()
        assert len(set(drawn)) == 5
        kept &= set(dnc(rows[:, drawn], 3))
    assert set(shares.nonzero().flatten().tolist()) == kept
    assert 0 < len(kept) < 10  # the rounds differ


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("n", "f"), [(3, 1), (13, 3), (13, 6), (30, 8)])
def test_caf(seed: int, n: int, f: int) -> None:
    rows = rows_of(seed, n, malicious=f)
    expected, seen = caf(rows, f)
    assert len(seen) <= 2 * f
    np.testing.assert_allclose(result(CAF(f), rows), expected, rtol=1e-5, atol=1e-5)


def test_caf_returns_the_mean_with_the_smallest_top_eigenvalue() -> None:
    """And that is neither always the first nor always the last."""
    places = set()
    for seed in range(30):
        rows = rows_of(seed, n=13, malicious=3)
        seen = caf(rows, 5)[1]
        values = [value for value, _ in seen]
        place = int(np.argmin(values))
        np.testing.assert_allclose(result(CAF(5), rows), seen[place][1], rtol=1e-5, atol=1e-5)
        places.add("last" if place == len(seen) - 1 else "earlier")
    assert places == {"last", "earlier"}


def test_caf_needs_as_many_steps_as_outliers_in_directions_of_their_own() -> None:
    """Each malicious row is far out in a direction of its own, so each costs a step; all are removed."""
    rows = np.random.default_rng(0).normal(size=(20, 40)) * 0.01
    rows[range(6), range(6)] += [10.0**power for power in range(1, 7)]
    shares = CAF(6)(torch.from_numpy(rows)).shares
    assert shares is not None
    assert not shares[:6].any()
    assert len(caf(rows, 6)[1]) > 6


# ---------------------------------------------------------------- worked by hand, and mistakes that others have made


def test_five_krums_differ_and_ours_is_the_papers() -> None:
    """Squared, n - f - 2 others; not n - f - 1, not unsquared, not the fourth power, not with itself."""
    differ = {"n - f - 1": 0, "unsquared": 0, "fourth power": 0, "with itself": 0}
    for seed in range(200):
        rows, f = list(rows_of(seed, n=11, d=3)), 3
        scores = krum_scores_of(rows, 11 - f - 2)
        chosen = int(np.argmin(scores))
        shares = Krum(f)(torch.from_numpy(np.array(rows))).shares
        assert shares is not None
        assert int(shares.argmax()) == chosen
        others = {
            "n - f - 1": krum_scores_of(rows, 11 - f - 1),
            "unsquared": krum_scores_of(rows, 11 - f - 2, power=1),
            "fourth power": krum_scores_of(rows, 11 - f - 2, power=4),
            "with itself": krum_scores_of(rows, 11 - f - 2, with_itself=True),
        }
        for name, theirs in others.items():
            differ[name] += int(np.argmin(theirs)) != chosen
    assert all(differ.values()), differ


def test_multi_krum_worked_by_hand() -> None:
    rows = np.array([[1.0], [2.0], [3.0], [5.0], [90.0]])
    assert result(MultiKrum(1), rows) == pytest.approx(2.75)
    assert result(MultiKrum(1, keep=3), rows) == pytest.approx(2.0)
    assert result(MultiKrum(1, keep=2), rows) == pytest.approx(1.5)  # 1 and 3 tie: the first
    assert result(MultiKrum(1, iterated=True), rows) == pytest.approx(2.0)  # one pick, Krum's
    assert result(MultiKrum(0, keep=2, iterated=True), rows) == pytest.approx(2.5)  # 3, then 2


@pytest.mark.parametrize("iterated", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_multi_krum_that_keeps_one_is_krum(seed: int, iterated: bool) -> None:
    rows = torch.from_numpy(rows_of(seed)).float()
    rows[4] = math.nan
    one, other = Krum(3)(rows), MultiKrum(3, keep=1, iterated=iterated)(rows)
    assert torch.equal(one.update, other.update)
    assert one.shares is not None
    assert other.shares is not None
    assert torch.equal(one.shares, other.shares)
    assert torch.equal(Krum(3).weigh(inner_products(rows, measure(rows)), measure(rows).usable).float(), one.shares)


def test_multi_krum_counts_usable_rows() -> None:
    rows = np.vstack([rows_of(3, n=10), np.full((2, 9), np.nan), np.zeros((1, 9))])
    for iterated in (False, True):
        np.testing.assert_allclose(result(MultiKrum(3, iterated=iterated), rows), result(MultiKrum(3, iterated=iterated), rows[:10]))
    assert not result(MultiKrum(10), rows).any()  # 10 are usable, and all of them may be malicious
    both = result(MultiKrum(8), rows)  # n - f = 2 stay, by the distance to the nearest
    np.testing.assert_allclose(both, rows[np.argsort(krum_scores_of(list(rows[:10]), 1), kind="stable")[:2]].mean(0))
    np.testing.assert_allclose(result(MultiKrum(4, iterated=True), rows), result(Krum(4), rows[:10]))  # one is picked at least


def test_geometric_median_of_1_4_7_is_4() -> None:
    assert result(GeometricMedian(start="mean"), np.array([[1.0], [4.0], [7.0]])) == pytest.approx(4)
    assert result(GeometricMedian(), np.array([[1.0], [4.0], [7.0]])) == pytest.approx(4)
    five = np.array([[1.0], [4.0], [7.0], [900.0], [3.0]])
    assert result(GeometricMedian(steps=60, start="mean"), five) == pytest.approx(4, rel=1e-4)
    assert result(GeometricMedian(steps=60), five) == pytest.approx(4, rel=1e-4)


@pytest.mark.parametrize("rule", [GeometricMedian(), GeometricMedian(start="mean")], ids=repr)
@pytest.mark.parametrize("scale", [1e-30, 1e-4, 1e20])
def test_geometric_median_is_equivariant(scale: float, rule: Rule) -> None:
    rows = rows_of(2)
    plain = result(rule, rows)
    np.testing.assert_allclose(result(rule, scale * rows), scale * plain, rtol=1e-9)
    np.testing.assert_allclose(result(rule, rows + 100.0), plain + 100.0, rtol=1e-9)
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 9)))[0]
    np.testing.assert_allclose(result(rule, rows @ turned), plain @ turned, rtol=1e-9, atol=1e-12)


def test_how_far_long_rows_move_the_geometric_median() -> None:
    """From the mean as far as the docstring says; from the inner start a bounded distance, however long they are."""
    rows = rows_of(2, malicious=0)
    best = result(GeometricMedian(steps=200, start="inner"), rows)
    for far in (1e3, 1e6, 1e9):
        rows[:3] = far
        assert math.dist(result(GeometricMedian(start="inner"), rows), best) < 3
    length = math.dist(rows[0], best)
    moved = math.dist(result(GeometricMedian(start="mean"), rows), best)
    assert 0.1 * length * (3 / 10) ** 8 < moved < length * (3 / 10) ** 8
    assert moved > 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [1e12, 1e20, 1e30, 1e37])
def test_very_long_rows_do_not_drown_the_distances_of_the_others(length: float, dtype: torch.dtype) -> None:
    """Sums that hold the long rows' squares would lose the honest rows' distances, and then the long rows gain a share."""
    for seed in range(40):
        chance = torch.Generator().manual_seed(seed)
        rows = torch.cat((torch.randn(16, 3, generator=chance), torch.full((4, 3), length))).to(dtype)
        assert GeometricMedian()(rows).update.norm() < 5


def test_two_clients_can_move_the_geometric_median_as_far_as_they_like() -> None:
    """One sends a long row, the other the mean of all: z starts on that row and leaves it slowly. Not so from the inner start."""
    rows = rows_of(2, n=10, malicious=0)
    best = result(GeometricMedian(steps=200), rows[2:])
    rows[0] = 1e4
    rows[1] = (rows[0] + rows[2:].sum(0)) / 9
    mean = math.dist(rows.mean(0), best)
    assert math.dist(result(GeometricMedian(start="mean"), rows), best) > mean / 10
    assert math.dist(result(GeometricMedian(start="inner"), rows), best) < 3


def test_the_geometric_median_is_where_most_rows_are() -> None:
    """Also where the median distance, and so nu, goes to zero."""
    rows = np.array([[2.0, 1.0]] * 6 + [[50.0, 0.0], [0.0, -70.0], [3.0, 3.0]])
    for start in ("mean", "inner"):
        np.testing.assert_allclose(result(GeometricMedian(steps=40, start=start), rows), [2.0, 1.0], atol=1e-3)


def test_dnc_worked_by_hand() -> None:
    """Most variance is along the first coordinate, where 9 is farthest out; the second coordinate's 3 stays."""
    rows = np.array([[1.0, 0.0], [-1.0, 3.0], [2.0, 0.0], [9.0, 0.0], [-2.0, -3.0]])
    np.testing.assert_allclose(result(DnC(1), rows), rows[[0, 1, 2, 4]].mean(0))


def test_dnc_with_nothing_kept_every_time_is_the_zero_update() -> None:
    """Row i is far out in coordinate i alone, and the only one: each round drops another row, until none is left."""
    rows = torch.eye(4, dtype=torch.float64) * 100 + 1
    received = Received(rows, generator=torch.Generator().manual_seed(0))
    few, _ = take_step(DnC(1, rounds=1, coordinates=1), received, ())
    assert few.shares is not None
    assert few.shares.count_nonzero() == 3
    none, _ = take_step(DnC(1, rounds=60, coordinates=1), received, ())
    assert not none.update.any()
    assert none.shares is not None
    assert not none.shares.any()


def test_dnc_takes_all_coordinates_if_there_are_fewer_than_it_would_draw() -> None:
    rows = torch.from_numpy(rows_of(0))
    drawn, _ = take_step(DnC(3, coordinates=10_000), Received(rows, generator=torch.Generator().manual_seed(0)), ())
    torch.testing.assert_close(drawn.update, DnC(3)(rows).update)


def test_dnc_ignores_a_broken_row_whose_drawn_coordinates_are_sound() -> None:
    rows = torch.from_numpy(rows_of(0))
    rows[3, 0] = math.inf
    for seed in range(5):
        shares = take_step(DnC(3, coordinates=2), Received(rows, generator=torch.Generator().manual_seed(seed)), ())[0].shares
        assert shares is not None
        assert shares[3] == 0
        assert shares.count_nonzero() == 9


def test_caf_worked_by_hand() -> None:
    """From 4, with variance 12.5, to (27 + 2 x 32 + 3 x 35) / 94; the third mean is not looked at."""
    assert result(CAF(1), np.array([[1.0], [2.0], [3.0], [10.0]])) == pytest.approx(196 / 94)


def test_caf_that_expects_nobody_is_the_mean() -> None:
    np.testing.assert_allclose(result(CAF(0), rows_of(0)), rows_of(0).mean(0))


def test_caf_removes_copies_of_an_outlier_together() -> None:
    rows = rows_of(0, n=20, malicious=0)
    rows[:5] = rows[0] + 1e3
    shares = CAF(5)(torch.from_numpy(rows)).shares
    assert shares is not None
    assert not shares[:5].any()


# ---------------------------------------------------------------- the direction of most variance, without an eigensolver


def covariance(values: list[float], seed: int = 0) -> Array:
    turned = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    return np.asarray(turned * values @ turned.T)


@pytest.mark.parametrize("squarings", [12, 20])
@pytest.mark.parametrize("gap", [0.5, 1e-1, 2e-2])
def test_the_top_pair_is_that_of_eigh(gap: float, squarings: int) -> None:
    matrix = covariance([1.0, 1 - gap, *np.linspace(0, 0.4, 98)])
    values, vectors = np.linalg.eigh(matrix)
    parts = along_top(torch.from_numpy(matrix), squarings).numpy()
    np.testing.assert_allclose(parts, values[-1] * vectors[:, -1] ** 2, atol=1e-12)


@pytest.mark.parametrize("squarings", [12, 20])
@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("near", [1, 50, 99])
def test_nearly_equal_eigenvalues_give_nearly_the_most_variance(near: int, gap: float, squarings: int) -> None:
    """That is what the rules need: no direction varies much more than the one found. The bound is n^(-1/q)."""
    matrix = covariance([1.0, *[1 - gap] * near, *[0.1] * (99 - near)])
    found = float(along_top(torch.from_numpy(matrix), squarings).sum())
    assert 100 ** (-1 / 2**squarings) - 1e-12 <= found <= 1 + 1e-12
    assert 100 ** (-1 / 2**12) > 0.998  # a thousandth or two at worst


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e150])
def test_units_do_not_matter_to_the_top_pair(scale: float) -> None:
    matrix = torch.from_numpy(covariance([1.0, 0.5, 0.1]))
    torch.testing.assert_close(along_top(scale * matrix, 20) / scale, along_top(matrix, 20))


def test_no_variance_has_no_direction() -> None:
    assert not along_top(torch.zeros(2, 5, 5, dtype=torch.float64), 20).any()


# ---------------------------------------------------------------- what holds for all of them

EVERY: list[GramRule] = [
    Krum(2),
    MultiKrum(2),
    MultiKrum(2, keep=3),
    MultiKrum(2, iterated=True),
    GeometricMedian(),
    GeometricMedian(start="inner"),
    DnC(2),
    DnC(2, filter=2.0),
    CAF(2),
]
every = pytest.mark.parametrize("rule", EVERY, ids=repr)


@every
def test_a_batch_of_matrices_gives_a_batch_of_shares(rule: GramRule) -> None:
    """With other rows usable in each."""
    stacks, masks = [], []
    for seed in range(6):
        rows = torch.from_numpy(rows_of(seed))
        rows[: seed % 4] = math.nan
        measured = measure(rows)
        stacks.append(inner_products(rows, measured))
        masks.append(measured.usable)
    products, usable = torch.stack(stacks).reshape(2, 3, 13, 13), torch.stack(masks).reshape(2, 3, 13)
    shares = rule.weigh(products, usable)
    assert shares.dtype == torch.float64
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(shares[i, j], rule.weigh(products[i, j], usable[i, j]), rtol=1e-9, atol=1e-12)


@every
@pytest.mark.parametrize("unit", [1e-150, 1e-3, 1e100])
def test_the_units_of_the_products_do_not_matter(rule: GramRule, unit: float) -> None:
    rows = torch.from_numpy(rows_of(4))
    products, usable = inner_products(rows, measure(rows)), measure(rows).usable
    torch.testing.assert_close(rule.weigh(unit * products, usable), rule.weigh(products, usable), rtol=1e-9, atol=1e-12)


@every
def test_moved_rows_keep_their_shares(rule: GramRule) -> None:
    rows = torch.from_numpy(rows_of(5))
    one, other = rule(rows).shares, rule(rows + 50.0).shares
    assert one is not None
    assert other is not None
    torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_equal_rows_give_that_row(rule: GramRule, dtype: torch.dtype) -> None:
    row = torch.from_numpy(rows_of(0)[0]).to(dtype)
    update, shares = rule(row.expand(13, -1).contiguous())
    torch.testing.assert_close(update, row)
    assert shares is not None
    assert float(shares.sum()) == pytest.approx(1)


@every
def test_shares_sum_to_one_or_nobody_has_one(rule: GramRule) -> None:
    for usable in range(14):
        rows = torch.from_numpy(rows_of(6))
        rows[usable:] = math.nan
        shares = rule(rows).shares
        assert shares is not None
        assert (shares >= 0).all()
        assert float(shares.sum()) == pytest.approx(1) or not shares.any()
        if usable <= 2:
            assert isinstance(rule, GeometricMedian) or not shares.any()


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: MultiKrum(-1), "Multi-Krum cannot tolerate -1"),
    (lambda: MultiKrum(1, keep=0), "cannot keep 0"),
    (lambda: MultiKrum(2)(torch.ones(4, 3)), "cannot tolerate 2 of 4: it needs at least 3 more"),
    (lambda: MultiKrum(2, keep=4)(torch.ones(5, 3)), "cannot keep 4 of 5 updates and tolerate 2: keep at most 3"),
    (lambda: MultiKrum(2, iterated=True)(torch.ones(6, 3)), "cannot tolerate 2 of 6: it needs at least 7"),
    (lambda: MultiKrum(2, keep=2, iterated=True)(torch.ones(7, 3)), "keep at most 1"),
    (lambda: GeometricMedian(steps=0), "at least 1 step, not 0"),
    (lambda: GeometricMedian(smoothing=math.nan), "smoothing of 0 or more, not nan"),
    (lambda: GeometricMedian(smoothing=-1.0), "smoothing of 0 or more, not -1"),
    (lambda: GeometricMedian(start="zero"), "starts at 'mean' or 'inner', not 'zero'"),  # type: ignore[arg-type]
    (lambda: DnC(-1), "DnC cannot tolerate -1"),
    (lambda: DnC(1, filter=math.nan), "a positive filter, not nan"),
    (lambda: DnC(1, filter=0.0), "a positive filter, not 0"),
    (lambda: DnC(1, rounds=0, coordinates=5), "at least 1 round and 1 coordinate, not 0 and 5"),
    (lambda: DnC(1, coordinates=0), "at least 1 round and 1 coordinate, not 1 and 0"),
    (lambda: DnC(1, rounds=5), "the same updates in all 5 rounds"),
    (lambda: DnC(2, filter=1.5)(torch.ones(3, 2)), "cannot drop 3 of 3 updates"),
    (lambda: DnC(1, coordinates=5)(torch.ones(3, 2)), "DnC needs randomness"),
    (lambda: DnC(1, coordinates=5).weigh(torch.eye(3), torch.ones(3, dtype=torch.bool)), "inner products are not enough"),
    (lambda: CAF(-1), "CAF cannot tolerate -1"),
    (lambda: CAF(2)(torch.ones(4, 3)), "cannot tolerate 2 of 4: it needs at least 5"),
]


@pytest.mark.parametrize(("call", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_what_makes_no_sense_is_refused_in_one_line(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Halved(PreAggregation):
    rule: Rule

    def mixing(self, sent: Measured) -> Tensor:
        return torch.diag(sent.rows.usable / 2.0).double()


def test_a_wrapper_mixes_the_rows_themselves_before_a_rule_that_draws_coordinates() -> None:
    rows = torch.from_numpy(rows_of(0))
    rule = DnC(3, rounds=2, coordinates=4)
    within, _ = take_step(Halved(rule), Received(rows, generator=torch.Generator().manual_seed(1)), ())
    alone, _ = take_step(rule, Received(rows, generator=torch.Generator().manual_seed(1)), ())
    torch.testing.assert_close(within.update, alone.update / 2)
    torch.testing.assert_close(Halved(DnC(3))(rows).update, DnC(3)(rows).update / 2)


def test_a_gram_rule_agrees_with_the_mean_where_all_rows_are_kept() -> None:
    rows = torch.from_numpy(rows_of(0))
    torch.testing.assert_close(DnC(0)(rows).update, FedAvg(by_size=False)(rows).update)
    torch.testing.assert_close(MultiKrum(0)(rows).update, FedAvg(by_size=False)(rows).update)
    assert not sq_distances_of(torch.zeros(3, 3)).any()
