"""A Task: all examples as tensors on the device, who owns which, and the model to train; a batch is an index.

k examples; the malicious clients come first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fltrust.attacks.attack import Attack
from fltrust.errors import InputError
from fltrust.models import Model
from fltrust.objectives import CrossEntropy, Objective

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    inputs: Tensor  # (k, ...) float32: pixels / 255, or features as they are
    targets: Tensor  # (k,) int64
    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int
    clients: tuple[Indices, ...]  # the examples of each client, malicious clients first
    malicious: int
    root: Indices  # the server's own examples, in nobody else's hands
    clean: Indices  # all clients' examples before any poisoning, for the training error
    model: Model
    objective: Objective = field(default_factory=CrossEntropy)
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
            inputs=_as_float(images),
            targets=train_labels,
            test_inputs=_as_float(test_images),
            test_targets=wanted,
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
            logits = self.model.outputs(self.model.initial_weights, self.inputs[:2])
        except (RuntimeError, ValueError, IndexError, TypeError) as problem:
            shape = tuple(self.inputs.shape[1:])
            raise InputError(f"the model cannot take examples of shape {shape}: {str(problem).splitlines()[0]}") from problem
        if logits.dim() != 2 or logits.shape[1] < self.num_classes:
            raise InputError(f"the model must give {self.num_classes} numbers for an example, not {tuple(logits.shape[1:])}")
        trigger = self.attack.trigger if self.attack else None
        if trigger is not None and not 0 <= trigger.target < self.num_classes:
            raise InputError(f"the trigger's target {trigger.target} is none of the {self.num_classes} classes")

    def _poisoned(self, attack: Attack | None) -> "Task":
        """The task after the malicious clients changed their own examples: each gets a new place behind the clean ones."""
        inputs, targets, clients = [self.inputs], [self.targets], list(self.clients)
        count = len(self.inputs)
        for i in range(self.malicious if attack else 0):
            assert attack is not None
            own = torch.from_numpy(clients[i])
            poisoned, flipped = attack.poison(self.inputs[own], self.targets[own], self.num_classes)
            inputs.append(poisoned)
            targets.append(flipped)
            clients[i] = np.arange(count, count + len(flipped))
            count += len(flipped)
        return replace(self, inputs=torch.cat(inputs), targets=torch.cat(targets), clients=tuple(clients))

    def _to(self, device: torch.device) -> "Task":
        self.model.module.to(device)  # its buffers and frozen parameters
        tensors = {name: getattr(self, name).to(device) for name in ("inputs", "targets", "test_inputs", "test_targets")}
        return replace(self, **tensors)

    @property
    def device(self) -> torch.device:
        return self.inputs.device

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
