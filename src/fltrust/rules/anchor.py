"""Anchor: every client has the same voice, whatever it says, and the server speaks beside them."""

import operator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.pairs import cosines_between
from fltrust.rules.rows import (
    copied,
    direction_and_norm,
    divisor,
    finite,
    in_order,
    in_the_middle,
    kernels_for,
    measure,
    median_of,
    room_for,
    upper_quartile,
    usable_only,
    weighted_sum,
)
from fltrust.rules.rule import Aggregate, Received, Rule
from fltrust.rules.spectral import winsorised
from fltrust.state import Memory

LONGEST_MEMORY = 0.9999  # closer to 1, float32 loses what a client sends


class Voices(NamedTuple):
    """What Anchor remembers of each client."""

    sums: Tensor  # (N, d): of its updates, each older one weighing `momentum` times as much
    rounds: Tensor  # (N,) int64: in how many it took part


@RULES.register("anchor", label="Anchor")
@dataclass(frozen=True)
class Anchor(Rule):
    """The mean of the clients' directions at one length, plus the server's own step. This package's own rule.

    h_i is the running mean of the updates that client i has sent, u_i = h_i / ||h_i||, l the median of the lengths ||h_i||, and g_0 the
    root update. g = l * mean_i u_i + voice * g_0. l is at most `limit` times ||g_0||. g_0 is cut to the upper quartile of the lengths
    ||h_i|| if it is longer than that. An update enters the running mean at 1 / (1 - momentum) times the round's median length at most, so
    that one lie is soon forgotten.

    With `directions` = k, the u_i are levelled before the mean: along each of the k directions in which they differ most, every u_i is
    brought to at most one deviation (1.4826 median absolute deviations) from the median there. If clients push together and theirs is the
    direction in which all differ most, they count there no more than honest clients differ. But where honest clients form two groups of
    about the same size, a few clients can decide which of them the median belongs to.

    Each part answers an attack. Without levelling, a client that lies in every round has one n-th of the voice, however long its update.
    The running mean takes away the honest clients' noise, in which lies hide. And the further clients push the model away from what the
    root set says, the longer g_0 becomes and the harder it pulls back; once the root set is learnt, g_0 is short and leaves the model to
    the clients. Nobody is scored, so there is no score to play: docs/anchor.md measures each part under attacks that are searched on
    this very rule.
    More than half of the clients must be honest, or the median length is not theirs. `limit` bounds what a round without such a majority
    can do; if you must fear one in every round, set it to 1.

    The server keeps a row of d numbers per client. `momentum = 0` needs none; then let clients send running means (`client_momentum`).
    The clients' shares, before levelling, are equal and sum to 1 / (1 + voice); the rest is the server's.

    Parameters
    ----------
    momentum : float, default 0.9
        How much an update weighs in the running mean, against the one after it; at most 0.9999. A client's mean begins with its first
        update.
    voice : float, default 1.0
        How much the server's step counts. More protects against more malicious clients, and learns more of the root set by heart.
    limit : float, default 30.0
        How long l may be, in lengths of the root update. 1 holds against a malicious majority and learns less from the clients.
    directions : int, default 0
        Along how many directions the clients are levelled, the one of most variance first; 0 takes the plain mean. docs/anchor.md says
        how far this has been tried.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Anchor
    >>> updates = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-900.0, 0.0]])
    >>> Anchor(momentum=0.0)(updates, root_update=torch.tensor([1.0, 1.0]))  # all speak at length 3
    Aggregate(update=tensor([1., 2.]), shares=tensor([0.1667, 0.1667, 0.1667]))
    >>> updates = torch.tensor([[3.0, 0.1], [3.0, -0.1], [3.0, 0.2], [3.0, -0.2], [0.0, 9.0]])
    >>> levelled = Anchor(momentum=0.0, voice=0.0, directions=1)
    >>> levelled(updates, root_update=torch.ones(2)).update  # the plain mean is (2.40, 0.60)
    tensor([2.9609, 0.0377])
    """

    momentum: float = 0.9
    voice: float = 1.0
    limit: float = 30.0
    directions: int = 0

    needs_root = True

    def __post_init__(self) -> None:
        if not 0 <= self.momentum <= LONGEST_MEMORY:
            raise InputError(f"Anchor needs a momentum of at least 0 and below 1, at most {LONGEST_MEMORY}, not {self.momentum}")
        if not 0 <= self.voice <= 1000:
            raise InputError(f"Anchor needs a voice of 0 to 1000, not {self.voice}")
        if not 0 < self.limit <= 1e6:
            raise InputError(f"Anchor needs a limit above 0 and of at most 1000000, not {self.limit}")
        try:
            whole = -1 if isinstance(self.directions, bool) else operator.index(self.directions)  # NumPy's whole numbers too
        except TypeError:
            whole = -1
        if not 0 <= whole <= 100:
            raise InputError(f"Anchor needs 0 to 100 directions, a whole number, not {self.directions!r}")
        object.__setattr__(self, "directions", whole)
        object.__setattr__(self, "needs_ids", self.has_memory)

    @property
    def has_memory(self) -> bool:
        return self.momentum > 0

    def init(self, num_clients: int, like: Tensor) -> Memory:
        if not self.has_memory:
            return ()
        return Voices(like.new_zeros(num_clients, like.numel()), torch.zeros(num_clients, dtype=torch.int64, device=like.device))

    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        if not self.has_memory:
            return self.aggregate(received), memory
        means, memory = self.means(received, memory)
        return self.aggregate(replace(received, updates=means)), memory

    def means(self, received: Received, memory: Voices) -> tuple[Tensor, Voices]:
        """The clients' running means (n, d), zeros for rows that are not usable, and the memory with this round's updates."""
        updates, ids = received.updates, received.client_ids
        assert ids is not None  # take_step checks this
        rows = measure(updates)
        usable = rows.usable
        longest = median_of(rows.norm, usable) / (1 - self.momentum)
        weight = (1 - self.momentum) * (longest / rows.norm).clamp(max=1)  # (n,): of this round's updates
        rounds = memory.rounds[ids] + usable
        # Few copies of the (n, d) rows, since each costs more than what is done to it. A row that is not usable changes nothing.
        decay, weight = torch.where(usable, torch.full_like(weight, self.momentum), 1), torch.where(usable, weight, 0)
        whole = 1 - self.momentum ** rounds.clamp(min=1).to(updates.dtype)  # (n,): the sum of the weights so far
        everybody = len(ids) == len(memory.sums)
        later = room_for(len(ids), updates) if everybody else copied(memory.sums)
        if updates.is_cuda and (kernels := kernels_for(updates)):
            means = torch.as_tensor(kernels.running_means(updates, usable, memory.sums, later, ids, decay, weight, whole))
        else:
            heard = usable_only(updates, usable)
            sums = torch.index_select(memory.sums, 0, ids, out=room_for(len(ids), updates))
            sums.mul_(decay.to(updates.dtype)[:, None]).addcmul_(heard, weight.to(updates.dtype)[:, None])
            later.index_copy_(0, ids, sums)
            means = finite(sums.div_(whole[:, None]), updates).masked_fill_(~usable[:, None], 0)
        return means, Voices(later, memory.rounds.index_copy(0, ids, rounds))

    def aggregate(self, received: Received) -> Aggregate:
        updates, root_update = received.updates, received.root_update
        assert root_update is not None  # take_step checks this
        rows, (direction, root_norm) = measure(updates), direction_and_norm(root_update)
        present = root_norm > 0  # no root update, no change
        count = rows.usable.sum(-1, keepdim=True)  # (1,)
        equal = torch.where(present, rows.usable.double() / divisor(count), 0)  # (n,)
        level = equal
        if self.directions:
            level = winsorised(cosines_between(updates, rows), rows.usable, self.directions)
        ordered = in_order(torch.where(rows.usable, rows.norm, torch.inf))
        length = torch.where(count > 0, in_the_middle(ordered, count), 0)[0].minimum(self.limit * root_norm)
        clients = weighted_sum(updates, rows, level * length)
        reach = torch.where(count > 0, upper_quartile(ordered, count), 0)[0]  # how long the server's step may be; 0 if there is no client
        server = self.voice * root_norm.minimum(reach) * direction
        return Aggregate(finite(clients + server, updates), (equal / (1 + self.voice)).to(updates.dtype))
