"""Krum in float32 with an error bound against Krum in float64: the same row, also where rows tie or hardly differ."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from fltrust import Krum
from fltrust.rules.krum import krum_scores
from fltrust.rules.pairs import gram, rough_sq_distances, sq_distances, sq_distances_from
from fltrust.rules.rows import measure

pytest.importorskip("numba")
from fltrust.fast import cpu

N = 90


@pytest.fixture(autouse=True)
def few_rows_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else so few would be compared in float64 at once."""
    monkeypatch.setattr("fltrust.rules.pairs._FEW", 2)


def rows_of(kind: str, chance: torch.Generator) -> Tensor:
    updates = torch.randn(N, 3000, generator=chance)
    if kind == "twins":  # of each row, so that every score has its equal
        updates[N // 2 :] = updates[: N // 2]
    elif kind == "far from zero":  # float32 cannot tell the distances apart
        updates = 1 + updates * 1e-4
    elif kind == "one is huge":
        updates[5] *= 1e15
    elif kind == "not usable":
        updates[3, 7], updates[50], updates[60, 0] = torch.nan, 0, torch.inf
    elif kind == "overflow":
        updates[4] *= 1e37
    elif kind == "tiny":
        updates *= 1e-30
    elif kind == "a cluster":
        updates[40:60] = updates[40] + 1e-3 * updates[40:60]
    return updates


KINDS = ["random", "twins", "far from zero", "one is huge", "not usable", "overflow", "tiny", "a cluster"]


@pytest.mark.parametrize("tolerate", [0, 20, 87])
@pytest.mark.parametrize("kind", KINDS)
def test_krum_picks_the_row_that_float64_picks(kind: str, tolerate: int) -> None:
    for seed in range(3):
        updates = rows_of(kind, torch.Generator().manual_seed(seed))
        usable = measure(updates).usable
        scores = krum_scores(sq_distances(updates), tolerate, usable)
        aggregate = Krum(tolerate)(updates)
        assert aggregate.shares is not None
        if usable.sum() > tolerate:
            assert aggregate.shares.nonzero().flatten().tolist() == [int(scores.argmin())]


@pytest.mark.parametrize("kind", ["random", "twins", "one is huge", "tiny", "a cluster"])
def test_no_rough_distance_is_more_wrong_than_its_bound(kind: str) -> None:
    updates = rows_of(kind, torch.Generator().manual_seed(0))
    rough = rough_sq_distances(updates, measure(updates))
    assert rough is not None
    distances, wrong = rough
    apart = ~torch.eye(N, dtype=torch.bool)
    assert ((distances - sq_distances(updates)).abs() <= wrong)[apart].all()


def test_the_bound_is_that_of_a_sum_of_as_many_products_as_a_block_has() -> None:
    """Errors seen in practice are a hundredth of it, so no comparison with them would notice a bound that is too small."""
    updates = torch.linspace(1, 2, 65)[:64, None].expand(64, 5000).contiguous()  # rounding goes the same way at each step
    wrong = cpu.rough_gram(updates)[1]
    assert wrong == pytest.approx(2048 * 2**-24 / (1 - 2048 * 2**-24), rel=1e-12)
    rough = rough_sq_distances(updates, measure(updates))
    assert rough is not None
    apart = ~torch.eye(64, dtype=torch.bool)
    assert ((rough[0] - sq_distances(updates)).abs() <= rough[1])[apart].all()


def test_the_bound_holds_for_long_rows_whose_sums_round_the_same_way_at_each_step() -> None:
    d, value = 20_000_000, 1.90811288356781
    updates = torch.zeros(2, d)
    updates[0], updates[1, 0] = value, 1e-10
    rough = rough_sq_distances(updates, measure(updates))
    assert rough is not None
    distance, wrong = (part[0, 1].item() for part in rough)
    assert abs(Fraction(distance) - Fraction(value) ** 2 * d) <= wrong


def test_float32_is_used_where_it_decides_and_left_where_it_does_not() -> None:
    chance = torch.Generator().manual_seed(0)
    for kind, decides in (("random", True), ("far from zero", False), ("overflow", False), ("not usable", False)):
        updates = rows_of(kind, chance)
        assert (Krum(20)._choose_fast(updates, measure(updates)) is not None) == decides


def test_a_programs_lower_precision_does_not_choose_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that bfloat16 rounds up seems to lie nearer to all others than they to each other."""
    chance = torch.Generator().manual_seed(0)
    level = 1 + 1e-3 * torch.randn(N, 1, generator=chance)
    level[:3] = 1.0042  # far from the others; 1.0078 in bfloat16, and most others 1
    updates = level * (1 + 1e-4 * torch.randn(N, 4096, generator=chance))
    expected = Krum(20)(updates)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Krum(20)(updates).update, expected.update)
    updates, before = rows_of("random", chance), torch.get_float32_matmul_precision()
    assert rough_sq_distances(updates, measure(updates)) is not None
    torch.set_float32_matmul_precision("medium")  # not all processors do it
    try:
        assert rough_sq_distances(updates, measure(updates)) is None
    finally:
        torch.set_float32_matmul_precision(before)
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    assert rough_sq_distances(updates, measure(updates)) is None


def test_without_onednn_torchs_own_product_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = rows_of("random", torch.Generator().manual_seed(0))
    products, wrong = cpu.rough_gram(updates)
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    monkeypatch.setattr(cpu, "linear", None)
    most = 2 * wrong * products.diagonal().max().item()
    torch.testing.assert_close(cpu.rough_gram(updates)[0].tril(), products.tril(), rtol=0, atol=most)


def test_chosen_rows_of_the_distances_are_those_of_the_whole_to_the_bit() -> None:
    updates = rows_of("twins", torch.Generator().manual_seed(0))
    chosen = torch.tensor([0, 3, 44, 45, 89])
    assert torch.equal(sq_distances_from(updates, chosen), sq_distances(updates)[chosen])
    assert torch.equal(gram(updates), gram(updates).T)
