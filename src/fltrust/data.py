"""A Task: all examples as tensors on the device, who owns which, and the model to train; a batch is an index.

n clients in a round, of which the m malicious come first; b examples per batch; k examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fltrust.attacks import Attack
from fltrust.errors import InputError
from fltrust.models import Model
from fltrust.randomness import stream

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    images: Tensor  # (k, ...) float32: pixels / 255, or features as they are
    labels: Tensor  # (k,) int64
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    clients: tuple[Indices, ...]  # the examples of each client, malicious clients first
    malicious: int
    root: Indices  # the server's own examples, in nobody else's hands
    clean: Indices  # all clients' examples before any poisoning, for the training error
    model: Model
    attack: Attack | None = None  # that the malicious clients' examples were poisoned for
    files: dict[str, str] = field(default_factory=dict)  # data files read -> sha256
    warnings: tuple[str, ...] = ()

    @staticmethod
    def from_arrays(
        images: NDArray[np.generic],
        labels: ArrayLike,
        test_images: NDArray[np.generic],
        test_labels: ArrayLike,
        *,
        clients: Sequence[Indices],
        root: Indices,
        model: nn.Module,
        num_classes: int | None = None,
        malicious: int = 0,
        attack: Attack | None = None,
        device: str = "cpu",
        files: dict[str, str] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> "Task":
        """A task of one's own: `clients` and `root` are indices into `images`; the first `malicious` clients follow the attack."""
        clients = tuple(np.asarray(own, np.int64) for own in clients)
        root = np.asarray(root, np.int64)
        if not 0 <= malicious <= len(clients):
            raise InputError(f"{malicious} malicious clients of {len(clients)}")
        clean = np.concatenate(clients) if clients else root[:0]
        if not len(clean) or not len(root) or not len(test_images):
            raise InputError(
                f"{len(clean)} examples of clients, {len(root)} of the root set, {len(test_images)} for testing: none may be empty"
            )
        held = np.concatenate([clean, root])
        if held.min() < 0 or held.max() >= len(images):
            raise InputError(f"an index of a client or of the root set is outside 0..{len(images) - 1}")
        if len(np.unique(held)) < len(held):
            raise InputError("an example is held twice: clients and the root set must not overlap")
        train_labels, wanted = (_as_labels(part, len(of)) for part, of in ((labels, images), (test_labels, test_images)))
        num_classes = num_classes or int(max(train_labels.max(), wanted.max())) + 1
        task = Task(
            images=_as_float(images),
            labels=train_labels,
            test_images=_as_float(test_images),
            test_labels=wanted,
            num_classes=num_classes,
            clients=clients,
            malicious=malicious,
            root=root,
            clean=clean,
            model=Model(model),
            attack=attack,
            files=files or {},
            warnings=warnings,
        )
        task._try_model()
        return task._poisoned(attack)._to(torch.device(device))

    def _try_model(self) -> None:
        """Refuses what could not work, before any work."""
        try:
            logits = self.model.logits(self.model.initial_weights, self.images[:2])
        except (RuntimeError, ValueError, IndexError, TypeError) as problem:
            shape = tuple(self.images.shape[1:])
            raise InputError(f"the model cannot take examples of shape {shape}: {str(problem).splitlines()[0]}") from problem
        if logits.dim() != 2 or logits.shape[1] < self.num_classes:
            raise InputError(f"the model must give {self.num_classes} numbers for an example, not {tuple(logits.shape[1:])}")
        trigger = self.attack.trigger if self.attack else None
        if trigger is not None and not 0 <= trigger.target < self.num_classes:
            raise InputError(f"the trigger's target {trigger.target} is none of the {self.num_classes} classes")

    def _poisoned(self, attack: Attack | None) -> "Task":
        """The task after the malicious clients changed their own examples: each gets a new place behind the clean ones."""
        images, labels, clients = [self.images], [self.labels], list(self.clients)
        count = len(self.images)
        for i in range(self.malicious if attack else 0):
            assert attack is not None
            own = torch.from_numpy(clients[i])
            poisoned, flipped = attack.poison(self.images[own], self.labels[own], self.num_classes)
            images.append(poisoned)
            labels.append(flipped)
            clients[i] = np.arange(count, count + len(flipped))
            count += len(flipped)
        return replace(self, images=torch.cat(images), labels=torch.cat(labels), clients=tuple(clients))

    def _to(self, device: torch.device) -> "Task":
        self.model.module.to(device)  # its buffers and frozen parameters
        tensors = {name: getattr(self, name).to(device) for name in ("images", "labels", "test_images", "test_labels")}
        return replace(self, **tensors)

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.array([len(own) for own in self.clients])


def standardised(train: NDArray[np.generic], test: NDArray[np.generic]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Every feature with mean 0 and deviation 1 over the training examples; one that never changes there becomes 0."""
    mean, deviation = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64)
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return ((train - mean) * scale).astype(np.float32), ((test - mean) * scale).astype(np.float32)


def _as_float(images: NDArray[np.generic]) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(images))
    tensor = tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor.float()
    if not torch.isfinite(tensor).all():
        raise InputError("the examples contain NaN or infinity")
    return tensor


def _as_labels(labels: ArrayLike, count: int) -> Tensor:
    array = np.asarray(labels)
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{count} examples need {count} whole numbers as labels, not {array.dtype} of shape {array.shape}")
    if array.min() < 0:
        raise InputError("labels start at 0; a negative one was found")
    return torch.from_numpy(array.astype(np.int64))


class Batch(NamedTuple):
    """Which examples each client uses in each local step, and how much each counts in the loss."""

    examples: NDArray[np.int64]  # (..., steps, b)
    share: NDArray[np.float32]  # (..., steps, b): 0 where a client with fewer than b examples repeats itself

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
        """The batches of these rounds for the clients (rounds, n) taking part: examples and share are (rounds, n, steps, b)."""
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
