"""What is known after a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fltrust.state import State


@dataclass(frozen=True)
class Record:
    """What is known after a round. All but `round` is empty in rounds that are not evaluated."""

    round: int
    metrics: Mapping[str, Any] = field(default_factory=dict)  # by name: a number, or a list of numbers; see metrics.py
    malicious: int | None = None  # how many of the clients below; they come first
    clients: tuple[int, ...] | None = None
    shares: tuple[float, ...] | None = None  # each client's share of the global update; None for the coordinate-wise rules
    cosine: tuple[float, ...] | None = None  # with the root update, where there is one; trust is its positive part
    norm: tuple[float, ...] | None = None  # (like cosine, not kept in rounds of more clients than fit in memory)
    state: State | None = None  # all that the next round needs

    @property
    def evaluated(self) -> bool:
        return self.state is not None

    @property
    def weights(self) -> Tensor | None:
        """(d,) the global model."""
        return None if self.state is None else self.state.weights

    @property
    def train_error(self) -> float | None:
        return self.metrics.get("train_error")

    @property
    def test_error(self) -> float | None:
        return self.metrics.get("test_error")

    @property
    def success(self) -> float | None:
        """Of a backdoor, where the attack has one."""
        return self.metrics.get("success")

    @property
    def trust(self) -> tuple[float, ...] | None:
        return self.cosine and tuple(max(0.0, cosine) for cosine in self.cosine)
