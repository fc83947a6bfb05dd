"""What chance decides about a round: who takes part, which examples each client trains on, how images are cropped and flipped.

n clients take part, the m malicious ones first; b examples per batch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fltrust.randomness import drawn_rows, stream
from fltrust.tasks.holdings import Holdings, Indices

SHIFTED = 10_000  # clients whose crops and flips are drawn together


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
        self.owned = Holdings.of(owned)
        self.examples = np.append(self.owned.examples, 0)  # one more, for a last client that holds nothing
        self.sizes = self.owned.sizes
        self.size = max(1, min(size, int(self.sizes.max())))

    def draw(self, rounds: Sequence[int], clients: NDArray[np.int64]) -> Batch:
        """The batches of these rounds for the clients (rounds, n) taking part: examples and loss_weights are (rounds, n, steps, b)."""
        streams, of_all = [stream(self.seed, self.name, t) for t in rounds], (len(self.owned), self.steps, self.size)
        chance = np.stack([_of_clients(rng, rng.random, of_all, own) for rng, own in zip(streams, clients, strict=True)])
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
        index = np.where(held[..., None] > 0, self.examples[self.owned.edges[clients][:, :, None, None] + local], 0)
        return Batch(index, np.broadcast_to(share, index.shape).astype(np.float32))


class Epochs:
    """Draws the batches of whole passes: each client goes through its own examples `epochs` times, in another order each time.

    A pass over k examples is ceil(k / b) batches, the last one smaller. Clients with fewer examples take fewer steps; shapes are equal
    because the steps that they do not take have loss weights of 0, which changes nothing.

    >>> from fltrust.tasks.batches import Epochs
    >>> batch = Epochs(0, "batches", [np.arange(5), np.array([7])], epochs=1, size=2, mean=True).draw([1], np.array([[0, 1]]))
    >>> batch.examples.shape, sorted(batch.examples[0, 0].ravel()[:5].tolist())
    ((1, 2, 3, 2), [0, 1, 2, 3, 4])
    >>> batch.loss_weights[0, 1].tolist()
    [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """

    def __init__(self, seed: int, name: str, owned: Sequence[Indices], *, epochs: int, size: int, mean: bool) -> None:
        self.seed, self.name, self.owned, self.epochs, self.mean = seed, name, Holdings.of(owned), epochs, mean
        most = max(1, int(self.owned.sizes.max()))
        self.size = min(size, most)
        self.steps = epochs * -(-most // self.size)

    def draw(self, rounds: Sequence[int], clients: NDArray[np.int64]) -> Batch:
        """The batches of these rounds for the clients (rounds, n) taking part: examples and loss_weights are (rounds, n, steps, b)."""
        shape = (*clients.shape, self.steps, self.size)
        batch = Batch(np.zeros(shape, np.int64), np.zeros(shape, np.float32))
        for t, taking_part, examples, loss_weights in zip(rounds, clients.tolist(), *batch, strict=True):
            for i, client in enumerate(taking_part):
                if len(own := self.owned[client]):
                    self._draw_one(own, stream(self.seed, self.name, t, client), examples[i], loss_weights[i])
        return batch

    def _draw_one(self, own: Indices, rng: np.random.Generator, examples: Indices, loss_weights: NDArray[np.float32]) -> None:
        """Fills in one client's steps (steps, b)."""
        examples[:] = np.resize(own, examples.shape)  # what counts nothing repeats own examples
        steps = -(-len(own) // self.size)  # of an epoch
        counts = np.full(steps, self.size)
        counts[-1] = len(own) - (steps - 1) * self.size
        used = np.arange(self.size) < counts[:, None]  # (steps, b)
        for first in range(0, self.epochs * steps, steps):
            examples[first : first + steps][used] = rng.permutation(own)
            loss_weights[first : first + steps] = used / counts[:, None] if self.mean else used


FEW = 20  # if fewer than 1 in 20 clients take part, the others' numbers are skipped, not drawn


def _of_clients(rng: np.random.Generator, draw: Callable[[int], NDArray[Any]], shape: tuple[int, ...], clients: Indices) -> NDArray[Any]:
    """(n, ...): the part of the clients who take part in what is drawn for all of them, `shape` (N, ...)."""
    if len(clients) * FEW >= shape[0]:
        return draw(math.prod(shape)).reshape(shape)[clients]
    return drawn_rows(rng, draw, clients, math.prod(shape[1:])).reshape(len(clients), *shape[1:])


def draw_clients(
    seed: int, rounds: Sequence[int], num_clients: int, clients_per_round: int, fixed: tuple[int, int] | None = None
) -> NDArray[np.int64]:
    """(rounds, n) ids of the clients that take part, in ascending order, so that malicious ones stay first.

    fixed: None, all clients are drawn alike. (m, malicious): every round has exactly m of the `malicious` clients 0, 1, ...; the others
    are honest.

    >>> draw_clients(0, [1, 2], 10, 4, fixed=(1, 3))[:, 0] < 3
    array([ True,  True])
    """
    if clients_per_round == num_clients:
        return np.tile(np.arange(num_clients), (len(rounds), 1))
    # Malicious clients first, then honest ones; without `fixed`, all of them are one group. So many of a group, and the group's first.
    m, malicious = (0, 0) if fixed is None else fixed
    groups = ((malicious, m, 0), (num_clients - malicious, clients_per_round - m, malicious))

    def drawn(rng: np.random.Generator) -> Indices:
        return np.sort(np.concatenate([first + rng.choice(size, count, replace=False) for size, count, first in groups if size]))

    return np.stack([drawn(stream(seed, "clients", t)) for t in rounds])


def draw_shifts(seed: int, purpose: str, rounds: Sequence[int], shape: tuple[int, ...], clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """(rounds, n, steps, b, 3): how far each image is moved down and right (0..8 of a border of 4), and whether it is mirrored."""
    return np.stack([_shifts_of(stream(seed, purpose, t), shape, own) for t, own in zip(rounds, clients, strict=True)])


def _shifts_of(rng: np.random.Generator, shape: tuple[int, ...], clients: Indices) -> Indices:
    """(n, steps, b, 3) of one round. Who does not take part is drawn too, a number of clients at a time: these draws cannot be skipped."""
    parts = []
    for first in range(0, shape[0], SHIFTED):
        some = min(SHIFTED, shape[0] - first)
        drawn = rng.integers(0, (9, 9, 2), (some, *shape[1:], 3))
        parts.append(drawn[clients[(clients >= first) & (clients < first + some)] - first])
    return np.concatenate(parts)


def draw_dropout(seed: int, rounds: Sequence[int], shape: tuple[int, ...], clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """(rounds, n, steps, b): the seed of each example's dropout, of N clients' (N, steps, b)."""

    def seeds(rng: np.random.Generator, own: Indices) -> Indices:
        return _of_clients(rng, lambda count: rng.integers(2**62, size=count), shape, own)  # below a power of two no draw is repeated

    return np.stack([seeds(stream(seed, "dropout", t), own) for t, own in zip(rounds, clients, strict=True)])


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
