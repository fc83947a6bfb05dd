"""The CPU's ranks of columns against sorting, where values are close together, tie, differ in sign or in size."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fltrust.rules import Median, TrimmedMean
from fltrust.rules.rows import ranked_mean, ranked_mean_of_usable


def close_together(n: int, d: int, chance: torch.Generator) -> Tensor:
    """Float32 values that differ in their last sixteen bits only."""
    return 1 + torch.randint(0, 1 << 12, (n, d), generator=chance) * 2.0**-23


VALUES: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "apart": lambda n, d, chance: torch.randn(n, d, generator=chance),
    "close together": close_together,
    "close together, negative": lambda n, d, chance: -close_together(n, d, chance),
    "three values": lambda n, d, chance: torch.randint(-1, 2, (n, d), generator=chance).float(),
    "tiny, and zeros of both signs": lambda n, d, chance: torch.randint(-2, 3, (n, d), generator=chance) * 1e-45 * -1.0,
    "some columns close together": lambda n, d, chance: torch.where(
        torch.arange(d) % 7 == 0, close_together(n, d, chance), torch.randn(n, d, generator=chance)
    ),
}


@pytest.mark.parametrize("trim", [None, 0, 7])
@pytest.mark.parametrize("n", [15, 16, 17, 32, 33, 64, 65, 100, 101, 128, 129, 257, 600])
@pytest.mark.parametrize("kind", VALUES)
def test_ranked_mean_equals_sorting(kind: str, n: int, trim: int | None) -> None:
    updates = VALUES[kind](n, 300, torch.Generator().manual_seed(n))
    drop = (n - 1) // 2 if trim is None else trim
    expected = updates.double().sort(dim=0).values[drop : n - drop].mean(dim=0)
    torch.testing.assert_close(ranked_mean(updates, torch.ones(n, dtype=torch.bool), trim), expected, rtol=1e-13, atol=1e-15)


def by_sorting(updates: Tensor, drop: int) -> Tensor:
    return updates.double().sort(dim=0).values[drop : len(updates) - drop].mean(dim=0)


@pytest.mark.parametrize("n", [*range(1, 20), 31, 34, 47, 49, 63, 66])
def test_every_trim(n: int) -> None:
    updates = torch.randint(-9, 10, (n, 50), generator=torch.Generator().manual_seed(n)).float()
    for trim in range((n + 1) // 2):
        assert torch.equal(ranked_mean(updates, torch.ones(n, dtype=torch.bool), trim).float(), by_sorting(updates, trim).float())


@pytest.mark.parametrize("trim", [0, 7, None])
@pytest.mark.parametrize("n", [16, 100, 257, 600])
def test_values_far_apart(n: int, trim: int | None) -> None:
    """Where large values cancel, the order of adding up shows: the error is a part of their size, not of their sum."""
    chance = torch.Generator().manual_seed(n)
    updates = torch.randn(n, 300, generator=chance) * 10.0 ** torch.randint(-30, 30, (n, 300), generator=chance)
    drop = (n - 1) // 2 if trim is None else trim
    kept = updates.double().sort(dim=0).values[drop : n - drop]
    error = (ranked_mean(updates, torch.ones(n, dtype=torch.bool), trim) - kept.mean(0)).abs()
    assert (error <= 1e-14 * kept.abs().amax(0)).all()


@pytest.mark.parametrize("d", [1, 47, 48, 49, 383, 384, 385, 1000])
@pytest.mark.parametrize("largest", [1e30, torch.finfo(torch.float32).max])
def test_huge_values_leave_without_a_trace(d: int, largest: float) -> None:
    updates = torch.randn(90, d, generator=torch.Generator().manual_seed(d))
    sent = torch.cat((updates, torch.full((5, d), largest), torch.full((5, d), -largest)))
    everyone = torch.ones(100, dtype=torch.bool)
    for trim in (5, 20, None):
        drop = 49 if trim is None else trim
        torch.testing.assert_close(ranked_mean(sent, everyone, trim), by_sorting(sent, drop), rtol=1e-13, atol=1e-15)


def test_networks_sort_every_column_of_zeros_and_ones() -> None:
    """So they sort every column of numbers (Knuth 5.3.4, theorem Z)."""
    pytest.importorskip("numba")
    from fltrust.fast.cpu_columns import bitonic_merge, merge_exchange

    def through(network: list[tuple[int, int]], columns: Tensor) -> Tensor:
        for i, j in network:
            columns[i], columns[j] = torch.minimum(columns[i], columns[j]), torch.maximum(columns[i], columns[j])
        return columns

    every = torch.arange(1 << 16) >> torch.arange(16)[:, None] & 1  # (16, 2^16)
    assert (through(merge_exchange(), every.clone()).diff(dim=0) >= 0).all()
    turns = (every.diff(dim=0) != 0).sum(0)
    assert (through(bitonic_merge(), every[:, turns <= 2].clone()).diff(dim=0) >= 0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 0.0])
@pytest.mark.parametrize(("n", "row", "column"), [(7, 0, 0), (7, 6, 999), (100, 99, 384), (100, 17, 47), (130, 128, 960)])
def test_a_row_that_is_not_usable_leaves(n: int, row: int, column: int, bad: float) -> None:
    updates = torch.randn(n, 1000, generator=torch.Generator().manual_seed(n))
    updates[row, column if bad else slice(None)] = bad
    others = torch.arange(n) != row
    mean, usable = ranked_mean_of_usable(updates, 2)
    assert torch.equal(usable, others)
    torch.testing.assert_close(mean, by_sorting(updates[others], 2), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(TrimmedMean(2)(updates).update, mean.float())
    torch.testing.assert_close(Median()(updates).update, by_sorting(updates[others], (n - 2) // 2).float())


def test_huge_values_are_usable() -> None:
    pytest.importorskip("numba")
    from fltrust.fast.cpu import ranked_mean_if_usable

    updates = torch.full((37, 60), torch.finfo(torch.float32).max)
    mean = ranked_mean_if_usable(updates, 3)
    assert mean is not None
    assert torch.equal(mean.float(), updates[0])
