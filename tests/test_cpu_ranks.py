"""The CPU's selection of ranks against sorting, where values share their high bits, tie, or differ in sign."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fltrust.rules.rows import ranked_mean


def close_together(n: int, d: int, chance: torch.Generator) -> Tensor:
    """Float32 values that differ in their last sixteen bits only."""
    return 1 + torch.randint(0, 1 << 12, (n, d), generator=chance) * 2.0**-23


VALUES: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "apart": lambda n, d, chance: torch.randn(n, d, generator=chance),
    "close together": close_together,
    "close together, negative": lambda n, d, chance: -close_together(n, d, chance),
    "three values": lambda n, d, chance: torch.randint(-1, 2, (n, d), generator=chance).float(),
    "some columns close together": lambda n, d, chance: torch.where(
        torch.arange(d) % 7 == 0, close_together(n, d, chance), torch.randn(n, d, generator=chance)
    ),
}


@pytest.mark.parametrize("trim", [None, 0, 7])
@pytest.mark.parametrize("n", [15, 16, 100, 101])
@pytest.mark.parametrize("kind", VALUES)
def test_ranked_mean_equals_sorting(kind: str, n: int, trim: int | None) -> None:
    updates = VALUES[kind](n, 300, torch.Generator().manual_seed(n))
    drop = (n - 1) // 2 if trim is None else trim
    expected = updates.double().sort(dim=0).values[drop : n - drop].mean(dim=0)
    torch.testing.assert_close(ranked_mean(updates, torch.ones(n, dtype=torch.bool), trim), expected, rtol=1e-13, atol=1e-15)
