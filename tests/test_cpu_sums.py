"""FedAvg's one read of the updates against the plain sum, and what it does where a row is not usable."""

import pytest
import torch

from fltrust import FedAvg
from fltrust.rules.rows import sum_if_usable


@pytest.mark.parametrize(("n", "d"), [(1, 1), (3, 5), (4, 2048), (7, 2049), (101, 5000)])
def test_the_sum_is_that_of_the_rows(n: int, d: int) -> None:
    pytest.importorskip("numba")
    chance = torch.Generator().manual_seed(n)
    updates, factor = torch.randn(n, d, generator=chance), torch.rand(n, generator=chance, dtype=torch.float64)
    total = sum_if_usable(updates, factor)
    assert total is not None
    torch.testing.assert_close(total, factor @ updates.double(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 0.0])
@pytest.mark.parametrize("row", [0, 4, 6])
def test_a_row_that_is_not_usable_leaves_and_the_others_share_its_part(row: int, bad: float) -> None:
    updates = torch.randn(7, 3000, generator=torch.Generator().manual_seed(0))
    if bad == 0:
        updates[row] = 0
    else:
        updates[row, 2999] = bad
    others = [i for i in range(7) if i != row]
    assert sum_if_usable(updates, torch.ones(7, dtype=torch.float64)) is None
    aggregate = FedAvg()(updates)
    torch.testing.assert_close(aggregate.update, updates[others].double().mean(0).float())
    assert aggregate.shares is not None
    assert aggregate.shares[row] == 0
