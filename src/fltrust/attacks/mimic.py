"""Mimic: an attack with memory."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge, finite, units
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

    The client is the one farthest along z, the direction in which honest updates vary most. z is learnt online in the first `warmup`
    rounds: with t rounds before this one, mu <- (t mu + mean_i x_i) / (t + 1), z <- t z + c / ||c||, normalised, where
    c = sum_i <x_i - mu, z> (x_i - mu); z starts as noise. After the warm-up the target stays fixed. Our choice where it is not drawn in
    a round: the client farthest along z among those that are.
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
        rows = finite(honest)  # (n-m, d)
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
