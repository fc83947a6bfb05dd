"""Rules that remember each client: what it sent in earlier rounds counts too."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.pairs import cosines_between
from fltrust.rules.rows import copied, divisor, finite, measure, room_for, usable_only, weighted_sum
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("foolsgold", label="FoolsGold", reference="Fung, Yoon, Beschastnikh, RAID 2020")
@dataclass(frozen=True)
class FoolsGold(Rule):
    """The mean of the updates, in which clients with similar histories share one vote (Fung et al. 2020).

    M_i is the sum of all updates that client i has sent. c_ij = cos(M_i, M_j) and c_ii = 0. v_i = max_j c_ij + 1e-5. Where v_i < v_j,
    c_ij is multiplied by v_i / v_j. a_i = 1 - max_j c_ij, clipped to [0, 1], is divided by the largest a_j and kept at 0.99 or below. Then
    a_i = ln(a_i / (1 - a_i) + 1e-5) + 0.5, clipped to [0, 1]. The result is sum_i a_i g_i / sum_i a_i; the authors do not divide.

    The largest a_i always becomes 1. So a single client that resembles no other can take over: a weakness of the rule that we keep.

    Parameters
    ----------
    last : int or None, default None
        How many of the last coordinates of M_i are compared. With as many as the output layer has, these are the authors' indicative
        features. None compares all.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FoolsGold, Received
    >>> rule = FoolsGold()
    >>> memory = rule.init(num_clients=3, like=torch.zeros(2))
    >>> updates = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 4.0]])  # the first two clients send the same
    >>> result, memory = rule.step(Received(updates, client_ids=torch.arange(3)), memory)
    >>> result
    Aggregate(update=tensor([0., 4.]), shares=tensor([0., 0., 1.]))
    """

    last: int | None = None

    needs_ids = True

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise InputError(f"FoolsGold compares at least 1 coordinate, not {self.last}")

    def init(self, num_clients: int, like: Tensor) -> Tensor:
        if self.last is not None and self.last > like.numel():
            raise InputError(f"FoolsGold cannot compare the last {self.last} of {like.numel()} coordinates")
        return like.new_zeros(num_clients, self.last or like.numel())  # (N, d), or the last columns of it

    def step(self, received: Received, memory: Tensor) -> tuple[Aggregate, Tensor]:
        updates, ids = received.updates, received.client_ids
        assert ids is not None  # take_step checks this
        rows = measure(updates)
        seen = usable_only(updates, rows.usable)[:, -memory.shape[1] :]
        memory = copied(memory).index_add_(0, ids, seen)
        history = torch.index_select(memory, 0, ids, out=room_for(len(ids), memory))  # (n, d)
        known = measure(history)
        counts = rows.usable & known.usable  # a client whose history has overflowed is out for good
        alike = cosines_between(history, known._replace(usable=counts)).clamp(-1, 1).fill_diagonal_(0)  # (n, n)
        most = torch.where(counts, alike.amax(1), -1) + 1e-5  # (n,): v
        pardon = torch.where(most[:, None] < most, most[:, None] / most, 1)
        voice = torch.where(counts, 1 - (alike * pardon).amax(1), 0).clamp(0, 1)
        voice = (voice / divisor(voice.amax())).clamp(max=0.99)
        voice = torch.where(counts, ((voice / (1 - voice) + 1e-5).log() + 0.5).clamp(0, 1), 0)
        shares = voice / divisor(voice.sum())
        update = finite(weighted_sum(updates, rows, shares * rows.norm), updates)
        return Aggregate(update, shares.to(updates.dtype)), memory
