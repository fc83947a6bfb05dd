"""What is known after a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fltrust.state import State


@dataclass(frozen=True)
class Record:
    """What is known after a round. Rounds that are not evaluated have only their number.

    Parameters
    ----------
    round : int
        1 in the first round.
    metrics : mapping, default empty
        By name, a number or a list of numbers; see 'fltrust list metrics'.
    malicious : int or None, default None
        How many of the round's clients are malicious. They come first in the fields below.
    clients : tuple of int or None, default None
        The clients that took part.
    shares : tuple of float or None, default None
        Each client's share of the global update. None for rules that work coordinate by coordinate.
    cosine : tuple of float or None, default None
        Of each update with the root update, where there is one. None in rounds with more clients than fit in memory.
    norm : tuple of float or None, default None
        The length of each update. None in rounds with more clients than fit in memory.
    peers : tuple of float or None, default None
        The median cosine of each update with the others, from sketches: within about 0.05. None where the norm is None.
    closest : tuple of float or None, default None
        The largest cosine of each update with another, from sketches.
    closest_to : tuple of (int or None) or None, default None
        The client whose update that is.
    root_norm : float or None, default None
        The length of the root update, where there is one.
    state : State or None, default None
        All that the next round needs.

    Examples
    --------
    >>> from fltrust import Record
    >>> record = Record(round=50, metrics={"test_error": 0.25}, malicious=1, clients=(4, 7), cosine=(-0.5, 1.0))
    >>> record.test_error
    0.25
    >>> record.trust
    (0.0, 1.0)
    """

    round: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    malicious: int | None = None
    clients: tuple[int, ...] | None = None
    shares: tuple[float, ...] | None = None
    cosine: tuple[float, ...] | None = None
    norm: tuple[float, ...] | None = None
    peers: tuple[float, ...] | None = None
    closest: tuple[float, ...] | None = None
    closest_to: tuple[int | None, ...] | None = None
    root_norm: float | None = None
    state: State | None = None

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
        """The backdoor's success rate, if the attack has a backdoor."""
        return self.metrics.get("success")

    @property
    def trust(self) -> tuple[float, ...] | None:
        return self.cosine and tuple(max(0.0, cosine) for cosine in self.cosine)
