"""Mimic: an attack with memory."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge
from fltrust.attacks.rows import units
from fltrust.errors import InputError
from fltrust.registry import ATTACKS, Look
from fltrust.state import Memory


class Learnt(NamedTuple):
    """What Mimic remembers."""

    rounds: Tensor  # () int64: how many rounds it has seen, at most the warm-up
    mean: Tensor  # (d,): running mean of the honest updates
    direction: Tensor  # (d,): the direction in which honest updates vary most, so far
    target: Tensor  # () int64: the client that is copied


@ATTACKS.register("mimic", label="Mimic", look=Look("sky", "P"), reference="Karimireddy, He, Jaggi, ICLR 2022")
@dataclass(frozen=True)
class Mimic(Attack):
    """All malicious clients copy one honest client, so that its data count for more than the others' (Karimireddy et al. 2022).

    They copy the client farthest along z, the direction in which honest updates vary most. The attacker learns z in the first `warmup`
    rounds. After t earlier rounds, mu <- (t mu + mean_i g_i) / (t + 1) and z <- t z + c / ||c||, normalised, where
    c = sum_i <g_i - mu, z> (g_i - mu). z starts as noise. After the warm-up the target stays the same. If the target does not take part in
    a round, the attacker copies the client farthest along z among those that do; this is our choice.

    Parameters
    ----------
    warmup : int, default 1
        How many rounds the attacker learns.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, Mimic
    >>> known = Knowledge(
    ...     own=torch.tensor([[1.0, 0.0], [2.0, 0.0]]), others=torch.tensor([[0.0, 5.0]]), root_update=None,
    ...     n=3, tolerate=2, num_clients=3, generator=torch.Generator(), client_ids=torch.arange(3),
    ... )
    >>> attack = Mimic()
    >>> rows, memory = attack.step(known, attack.init(num_clients=3, like=torch.zeros(2)))
    >>> rows
    tensor([[0., 5.],
            [0., 5.]])
    """

    warmup: int = 1

    knowledge = "full"

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise InputError(f"Mimic needs at least 1 round of warm-up, not {self.warmup}")

    def init(self, num_clients: int, like: Tensor) -> Memory:
        noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(0), dtype=like.dtype).to(like.device)
        count = torch.zeros((), dtype=torch.int64, device=like.device)
        return Learnt(count, torch.zeros_like(like), units(noise[None])[0], count - 1)

    def step(self, known: Knowledge, memory: Learnt) -> tuple[Tensor, Learnt]:
        m, honest = len(known.own), known.honest
        if m == 0 or len(honest) == 0:
            return known.own, memory
        if known.client_ids is None:
            raise InputError("Mimic needs to know which client sent which update and was not told")
        learning, t = memory.rounds < self.warmup, memory.rounds
        rows = known.seen_others.rows  # (n-m, d)
        mean = torch.where(learning, (t * memory.mean + rows.mean(0)) / (t + 1), memory.mean)
        deviations = rows - mean
        pull = units(((deviations @ memory.direction) @ deviations)[None])[0]  # (d,)
        direction = torch.where(learning, units((t * memory.direction + pull)[None])[0], memory.direction)
        ids = known.client_ids[m:]  # (n-m,)
        farthest = ids.index_select(0, (rows @ direction).argmax()[None])[0]
        target = torch.where(learning, farthest, memory.target)
        here = ids == torch.where((ids == target).any(), target, farthest)
        copy = rows.index_select(0, here.int().argmax()[None])  # (1, d)
        return copy.expand(m, -1).clone(), Learnt(t + learning, mean, direction, target)
