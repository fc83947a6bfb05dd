"""Each rule against loops in float64 written from the papers, and against an example worked by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fltrust.errors import InputError
from fltrust.rules import (
    FedAvg,
    FLTrust,
    FLTrustNoNorm,
    FLTrustNoReLU,
    FLTrustParNorm,
    FLTrustServer,
    FLTrustTwoLevel,
    FLTrustWithServer,
    Krum,
    Median,
    Rule,
    TrimmedMean,
    krum_scores,
    sq_distances,
)

Array = NDArray[np.float64]


def fedavg(updates: Array, sizes: Array) -> Array:
    total = np.zeros(updates.shape[1])
    for update, size in zip(updates, sizes, strict=True):
        total += size / sizes.sum() * update
    return total


def krum_sums(updates: Array, tolerate: int) -> list[float]:
    """Blanchard et al. 2017, section 4: the sum over the n - f - 2 closest vectors of the squared distance."""
    sums = []
    for i, update in enumerate(updates):
        distances = sorted(float(((update - other) ** 2).sum()) for j, other in enumerate(updates) if j != i)
        sums.append(sum(distances[: len(updates) - tolerate - 2]))
    return sums


def trimmed_mean(updates: Array, trim: int) -> Array:
    """Yin et al. 2018, definition 2."""
    result = []
    for column in updates.T:
        values = sorted(column)
        for _ in range(trim):
            values.pop(0)
            values.pop()
        result.append(sum(values) / len(values))
    return np.array(result)


def median(updates: Array) -> Array:
    """Yin et al. 2018, definition 1."""
    return np.array([np.median(column) for column in updates.T])


def fltrust(updates: Array, root_update: Array, *, relu: bool = True, normalise: str = "all", with_server: bool = False) -> Array:
    """Cao et al. 2021, equations 2 to 4, and the variants of section VI."""
    root_norm = np.sqrt((root_update**2).sum())
    total, total_trust = np.zeros_like(root_update), 0.0
    for update in updates:
        norm = np.sqrt((update**2).sum())
        cosine = (update * root_update).sum() / (norm * root_norm)
        trust = max(cosine, 0.0) if relu else cosine
        if normalise == "all" or (normalise == "longer" and norm > root_norm):
            update = root_norm / norm * update
        total += trust * update
        total_trust += trust
    if with_server:
        total, total_trust = total + root_update, total_trust + 1
    return total / total_trust if total_trust else np.zeros_like(root_update)


def matrices(dtype: type, most: int = 12) -> st.SearchStrategy[NDArray[np.floating]]:
    """Rows that are all usable, with many ties, and values whose squares can be told apart."""
    tenths = st.integers(-60, 60).map(lambda tenth: tenth / 10)
    shapes = st.tuples(st.integers(1, most), st.integers(1, 9))
    return hnp.arrays(dtype, shapes, elements=tenths).map(lambda rows: np.where(np.any(rows, axis=1, keepdims=True), rows, dtype(1)))


both_dtypes = st.sampled_from([np.float32, np.float64]).flatmap(matrices)


def check(rule: Rule, updates: Array, expected: Array, root_update: Array | None = None, sizes: Array | None = None) -> None:
    root = None if root_update is None else torch.from_numpy(root_update)
    result = rule(torch.from_numpy(updates), root, None if sizes is None else torch.from_numpy(sizes)).update
    tolerance = 2e-6 if updates.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(result.numpy(), expected, rtol=tolerance, atol=tolerance * 6)


@given(both_dtypes, st.data())
def test_fedavg(updates: Array, data: st.DataObject) -> None:
    sizes = np.array(data.draw(st.lists(st.integers(1, 1000), min_size=len(updates), max_size=len(updates))))
    check(FedAvg(), updates, fedavg(updates.astype(np.float64), sizes), sizes=sizes)
    check(FedAvg(), updates, updates.astype(np.float64).mean(axis=0))


@given(both_dtypes, st.data())
def test_coordinate_wise_rules(updates: Array, data: st.DataObject) -> None:
    trim = data.draw(st.integers(0, (len(updates) - 1) // 2))
    check(TrimmedMean(trim), updates, trimmed_mean(updates.astype(np.float64), trim))
    check(Median(), updates, median(updates.astype(np.float64)))


@given(both_dtypes.filter(lambda updates: len(updates) >= 3), st.data())
def test_krum(updates: Array, data: st.DataObject) -> None:
    tolerate = data.draw(st.integers(0, len(updates) - 3))
    expected = krum_sums(updates.astype(np.float64), tolerate)
    scores = krum_scores(sq_distances(torch.from_numpy(updates)), tolerate)
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-9, atol=1e-9)
    update, weight = Krum(tolerate)(torch.from_numpy(updates))
    assert weight is not None
    chosen = int(weight.argmax())
    assert weight.sum() == 1
    assert torch.equal(update, torch.from_numpy(updates)[chosen])
    assert expected[chosen] == pytest.approx(min(expected), rel=1e-9, abs=1e-9)


def fltrust_case(updates: NDArray[np.floating]) -> st.SearchStrategy[tuple[NDArray[np.floating], NDArray[np.floating]]]:
    tenths = st.integers(1, 60).map(lambda tenth: tenth / 10)
    return hnp.arrays(updates.dtype, updates.shape[1], elements=tenths).map(lambda root_update: (updates, root_update))


@given(both_dtypes.flatmap(fltrust_case))
def test_fltrust_and_its_variants(case: tuple[Array, Array]) -> None:
    updates, root_update = case
    exact, root = updates.astype(np.float64), root_update.astype(np.float64)
    trusts = np.array([row @ root / np.linalg.norm(row) / np.linalg.norm(root) for row in exact])
    check(FLTrustServer(), updates, root, root_update)
    check(FLTrustWithServer(), updates, fltrust(exact, root, with_server=True), root_update)
    if trusts.max() > 1e-3:  # not a quotient of rounding errors
        check(FLTrust(), updates, fltrust(exact, root), root_update)
        check(FLTrustNoNorm(), updates, fltrust(exact, root, normalise="none"), root_update)
        check(FLTrustParNorm(), updates, fltrust(exact, root, normalise="longer"), root_update)
    if abs(trusts.sum()) > 0.5:
        check(FLTrustNoReLU(), updates, fltrust(exact, root, relu=False), root_update)


def two_levels(updates: Array, root: Array, top: float) -> tuple[Array, list[int]]:
    """The deputies' directions and the server's are summed up; FLTrust does the rest."""
    unit = root / np.linalg.norm(root)
    trust = [max(0.0, float(row @ unit / np.linalg.norm(row))) for row in updates]
    least = sorted(trust, reverse=True)[math.ceil(top * len(updates)) - 1]
    deputies = [i for i, score in enumerate(trust) if score >= least and score > 0]
    second = unit + sum(updates[i] / np.linalg.norm(updates[i]) for i in deputies)
    return second / np.linalg.norm(second) * np.linalg.norm(root), deputies


@given(both_dtypes.flatmap(fltrust_case), st.sampled_from([0.1, 0.25, 0.5, 1.0]))
def test_two_levels_of_trust(case: tuple[Array, Array], top: float) -> None:
    updates, root_update = case
    exact, root = updates.astype(np.float64), root_update.astype(np.float64)
    scores = sorted((float(row @ root / np.linalg.norm(row) / np.linalg.norm(root)) for row in exact), reverse=True)
    many = math.ceil(top * len(scores))
    assume(scores[0] > 1e-3)
    assume(all(abs(score) > 1e-6 for score in scores))  # who is a deputy is not a question of rounding
    assume(many == len(scores) or scores[many - 1] - scores[many] > 1e-6)
    second, deputies = two_levels(exact, root, top)
    assert deputies
    check(FLTrustTwoLevel(top), updates, fltrust(exact, second), root_update)


def test_two_levels_by_hand() -> None:
    """The first row is the deputy: with the server's (1, 0) its (0.6, 0.8) makes the direction (2, 1) / sqrt 5, and trust 2, 1 and 0."""
    rows = np.array([[0.6, 0.8], [0.0, 4.0], [-5.0, 0.0]])
    check(FLTrustTwoLevel(), rows, np.array([2 * 1.2 / 3, (2 * 1.6 + 2) / 3]), np.array([2.0, 0.0]))
    nobody = FLTrustTwoLevel()(-torch.eye(2), root_update=torch.ones(2))
    assert torch.equal(nobody.update, torch.zeros(2))
    assert nobody.shares is not None
    assert torch.equal(nobody.shares, torch.zeros(2))
    with pytest.raises(InputError, match="top must be above 0"):
        FLTrustTwoLevel(top=0)


# Three clients in the plane and a root update (0, 2): cosines 1, 0.6 and -0.8; norms 4, 5 and 10.
ROWS = [[0.0, 4.0], [4.0, 3.0], [6.0, -8.0]]
BY_HAND = [
    (FedAvg(), [10 / 3, -1 / 3]),
    (TrimmedMean(1), [4, 3]),
    (Median(), [4, 3]),
    (FLTrustServer(), [0, 2]),
    (FLTrust(), [0.6 * 1.6 / 1.6, (2 + 0.6 * 1.2) / 1.6]),  # (1 * (0, 2) + 0.6 * (1.6, 1.2)) / 1.6
    (FLTrustWithServer(), [0.96 / 2.6, (2.72 + 2) / 2.6]),
    (FLTrustNoReLU(), [(0.96 - 0.8 * 1.2) / 0.8, (2.72 + 0.8 * 1.6) / 0.8]),  # the third row becomes (1.2, -1.6)
    (FLTrustNoNorm(), [0.6 * 4 / 1.6, (4 + 0.6 * 3) / 1.6]),
    (FLTrustParNorm(), [0.96 / 1.6, 2.72 / 1.6]),  # all rows are longer than the root update
]


@pytest.mark.parametrize(("rule", "expected"), BY_HAND, ids=lambda value: type(value).__name__)
def test_an_example_by_hand(rule: Rule, expected: list[float]) -> None:
    for dtype in (np.float32, np.float64):
        check(rule, np.array(ROWS, dtype), np.array(expected), np.array([0, 2], dtype))


def test_partial_normalisation_by_hand() -> None:
    """The first row is shorter than the root update (0, 5) and stays; the second has its norm; the third is shortened, but not trusted."""
    expected = np.array([0.6 * 4 / 1.6, (4 + 0.6 * 3) / 1.6])
    check(FLTrustParNorm(), np.array(ROWS), expected, np.array([0.0, 5.0]))


def test_sizes_by_hand() -> None:
    result = FedAvg()(torch.tensor(ROWS), sizes=torch.tensor([1, 1, 2]))
    torch.testing.assert_close(result.update, torch.tensor([4.0, -2.25]))
    torch.testing.assert_close(result.shares, torch.tensor([0.25, 0.25, 0.5]))


def test_median_of_an_even_count_by_hand() -> None:
    updates = torch.tensor([[1.0, -1.0], [2.0, 5.0], [4.0, 5.0], [100.0, 7.0]])
    assert Median()(updates).update.tolist() == [3.0, 5.0]
    assert TrimmedMean(1)(updates).update.tolist() == [3.0, 5.0]


def test_krum_by_hand() -> None:
    """Points 1, 2, 4, 5, 20 on a line and f = 1: two neighbours count, so the sums of squares are 10, 5, 5, 10 and 481."""
    updates = torch.tensor([[1.0], [2.0], [4.0], [5.0], [20.0]])
    assert krum_scores(sq_distances(updates), 1).tolist() == [10.0, 5.0, 5.0, 10.0, 481.0]
    update, weight = Krum(1)(updates)
    assert update.tolist() == [2.0]  # the first of the two with the lowest score
    assert weight is not None
    assert weight.tolist() == [0, 1, 0, 0, 0]


def test_krum_squares_distances() -> None:
    """Neighbours at 3 and 3 against 1 and 4.5: plain distances would prefer the second (5.5 < 6), squares the first (18 < 21.25)."""
    sq = torch.full((5, 5), 1e4, dtype=torch.float64)
    for i, j, distance in [(0, 2, 3.0), (0, 3, 3.0), (1, 2, 1.0), (1, 4, 4.5)]:
        sq[i, j] = sq[j, i] = distance**2
    assert krum_scores(sq, 1)[:2].tolist() == [18.0, 21.25]


def test_cosines_that_cancel_give_the_zero_update() -> None:
    """Cosines 0.6 and -0.6 with (0, 2): without ReLU their sum is 0, though the sum of the rows is not."""
    for dtype in (torch.float32, torch.float64):
        result = FLTrustNoReLU()(torch.tensor([[4.0, 3.0], [4.0, -3.0]], dtype=dtype), torch.tensor([0.0, 2.0], dtype=dtype))
        assert result.update.tolist() == [0.0, 0.0]
        assert result.shares is not None
        assert result.shares.tolist() == [0.0, 0.0]
