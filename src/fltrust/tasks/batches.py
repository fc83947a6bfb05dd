"""What chance decides about a round: who takes part, which examples each client trains on, how images are cropped and flipped.

n clients take part, the m malicious ones first; b examples per batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fltrust.randomness import stream

Indices = NDArray[np.int64]


class Batch(NamedTuple):
    """Which examples each client uses in each local step, and how much each counts in the loss."""

    examples: NDArray[np.int64]  # (..., steps, b)
    loss_weights: NDArray[np.float32]  # (..., steps, b): 0 where a client with fewer than b examples repeats itself

    @staticmethod
    def whole(own: Indices, *, steps: int, mean: bool) -> "Batch":
        """All examples in every step: (1, 1, steps, b)."""
        examples = np.tile(own, (1, 1, steps, 1))
        return Batch(examples, np.full(examples.shape, 1 / len(own) if mean else 1, np.float32))


class Batches:
    """Draws the batches of any rounds; each round has its own stream, so the blocks in which rounds are drawn change nothing."""

    def __init__(self, seed: int, name: str, owned: Sequence[Indices], *, steps: int, size: int, mean: bool) -> None:
        self.seed, self.name, self.steps, self.mean = seed, name, steps, mean
        self.sizes = np.array([len(own) for own in owned])
        self.size = max(1, min(size, int(self.sizes.max())))
        self.owned = np.zeros((len(owned), max(1, self.sizes.max())), np.int64)  # (clients, most examples)
        for row, own in zip(self.owned, owned, strict=True):
            row[: len(own)] = own

    def draw(self, rounds: Sequence[int], clients: NDArray[np.int64]) -> Batch:
        """The batches of these rounds for the clients (rounds, n) taking part: examples and loss_weights are (rounds, n, steps, b)."""
        chance = np.stack([stream(self.seed, self.name, t).random((len(self.owned), self.steps, self.size)) for t in rounds])
        chance = np.take_along_axis(chance, clients[:, :, None, None], axis=1)
        held = self.sizes[clients][:, :, None]  # (rounds, n, 1)
        taken = np.minimum(self.size, held)
        # Floyd's sampling without replacement, all clients side by side: place j takes a random one of the first
        # held - taken + j + 1 examples, or the last of them if that one is taken already.
        local = np.empty(chance.shape, np.int64)
        for j in range(self.size):
            last = np.maximum(held - taken + j, 0)
            pick = (chance[..., j] * (last + 1)).astype(np.int64)
            repeated = (local[..., :j] == pick[..., None]).any(-1)
            local[..., j] = np.where(repeated, last, pick)
        used = np.arange(self.size) < taken[..., None]  # (rounds, n, 1, b)
        share = used / np.maximum(taken, 1)[..., None] if self.mean else used
        local = np.where(used, local, np.arange(self.size) % np.maximum(held, 1)[..., None])
        index = self.owned[clients[:, :, None, None], local]
        return Batch(index, np.broadcast_to(share, index.shape).astype(np.float32))


def draw_clients(seed: int, rounds: Sequence[int], num_clients: int, per_round: int) -> NDArray[np.int64]:
    """(rounds, n) ids of the clients that take part, in ascending order, so that malicious ones stay first."""
    everyone = np.arange(num_clients)
    if per_round == num_clients:
        return np.tile(everyone, (len(rounds), 1))
    return np.stack([np.sort(stream(seed, "clients", t).choice(everyone, per_round, replace=False)) for t in rounds])


def draw_shifts(seed: int, purpose: str, rounds: Sequence[int], shape: tuple[int, ...], clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """(rounds, n, steps, b, 3): how far each image is moved down and right (0..8 of a border of 4), and whether it is mirrored."""
    drawn = np.stack([stream(seed, purpose, t).integers(0, (9, 9, 2), (*shape, 3)) for t in rounds])
    return np.take_along_axis(drawn, clients[:, :, None, None, None], axis=1)


def crop_and_flip(images: Tensor, shift: Tensor) -> Tensor:
    """Random crop with a border of 4 zeros and random mirroring, for images (..., channels, height, width) and shift (..., 3)."""
    height, width = images.shape[-2:]
    flat = nn.functional.pad(images.flatten(0, -4), (4, 4, 4, 4))  # (k, c, h + 8, w + 8)
    down, right, mirrored = shift.reshape(-1, 3).unbind(1)  # (k,)
    rows = down[:, None] + torch.arange(height, device=images.device)  # (k, h)
    across = torch.arange(width, device=images.device).expand(len(flat), -1)
    columns = right[:, None] + torch.where(mirrored[:, None] == 1, width - 1 - across, across)  # (k, w)
    which = torch.arange(len(flat), device=images.device)[:, None, None]
    return flat.movedim(1, -1)[which, rows[:, :, None], columns[:, None, :]].movedim(-1, 1).reshape(images.shape)
