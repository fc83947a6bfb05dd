"""FedAvg's one read of the updates against the plain sum, and what it does where a row is not usable."""

import pytest
import torch

from fltrust import FedAvg
from fltrust.rules.rows import mean_if_usable


@pytest.mark.parametrize(("n", "d"), [(1, 1), (3, 5), (4, 8192), (7, 8193), (101, 20_000)])
def test_the_sum_is_that_of_the_rows(n: int, d: int) -> None:
    cpu = pytest.importorskip("fltrust.fast.cpu")
    chance = torch.Generator().manual_seed(n)
    updates, factor = torch.randn(n, d, generator=chance), torch.rand(n, generator=chance, dtype=torch.float64)
    torch.testing.assert_close(cpu.weighted_sum(updates, factor), factor @ updates.double(), rtol=1e-12, atol=1e-13)
    mean = mean_if_usable(updates, factor / factor.sum())
    assert mean is not None
    torch.testing.assert_close(mean.double(), factor @ updates.double() / factor.sum(), rtol=2**-24, atol=1e-13)  # rounded once


@pytest.mark.parametrize("bad", [torch.nan, 0.0])
def test_a_row_that_counts_nothing_may_hold_anything(bad: float) -> None:
    pytest.importorskip("numba")
    updates = torch.randn(7, 3000, generator=torch.Generator().manual_seed(0))
    updates[2], sizes = bad, torch.tensor([3, 1, 0, 2, 5, 1, 1])
    mean = mean_if_usable(updates, sizes / sizes.sum().double())
    assert mean is not None
    torch.testing.assert_close(mean, (sizes.double() @ updates.double().nan_to_num(0) / sizes.sum()).float())
    torch.testing.assert_close(FedAvg()(updates, sizes=sizes).update, mean)


def test_rows_that_begin_with_zeros_are_no_zeros() -> None:
    pytest.importorskip("numba")
    updates = torch.zeros(5, 3000)
    updates[:, 2999] = 1
    assert mean_if_usable(updates, torch.ones(5, dtype=torch.float64)) is not None
    updates[3, 2999] = 0
    assert mean_if_usable(updates, torch.ones(5, dtype=torch.float64)) is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 0.0])
@pytest.mark.parametrize("row", [0, 4, 6])
def test_a_row_that_is_not_usable_leaves_and_the_others_share_its_part(row: int, bad: float) -> None:
    updates = torch.randn(7, 3000, generator=torch.Generator().manual_seed(0))
    if bad == 0:
        updates[row] = 0
    else:
        updates[row, 2999] = bad
    others = [i for i in range(7) if i != row]
    assert mean_if_usable(updates, torch.ones(7, dtype=torch.float64)) is None
    aggregate = FedAvg()(updates)
    torch.testing.assert_close(aggregate.update, updates[others].double().mean(0).float())
    assert aggregate.shares is not None
    assert aggregate.shares[row] == 0


def test_what_goes_wrong_in_a_thread_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from fltrust.fast.kernels import in_threads

    monkeypatch.setattr("torch.get_num_threads", lambda: 2)

    def work(part: int, _start: int, _stop: int) -> None:
        if part == 1:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        in_threads(work, 10, 1)
