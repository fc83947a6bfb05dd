"""From arrays to a task's tensors and owners: what cannot work is refused, and says why."""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fltrust.errors import InputError
from fltrust.objectives import Objective
from fltrust.randomness import stream
from fltrust.tasks.holdings import Holdings, Indices
from fltrust.tasks.splits import IID, Split, partition


def standardised(train: NDArray[np.generic], test: NDArray[np.generic]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Every feature with mean 0 and deviation 1 over the training examples; one that never changes there becomes 0."""
    mean, deviation = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64)
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return ((train - mean) * scale).astype(np.float32), ((test - mean) * scale).astype(np.float32)


def split_between(
    targets: NDArray[np.generic],
    num_clients: int,
    root_size: Indices | int,
    split: Split | None,
    objective: Objective,
    num_classes: int | None,
    malicious: int,
    seed: int,
) -> tuple[Holdings, Indices]:
    """The examples of so many clients, and the root set."""
    if not isinstance(root_size, int | np.integer):
        raise InputError("the clients' examples are to be split: root must be a number too")
    classes = targets.ndim == 1 and targets.dtype.kind in "biu" and objective.classes != 0
    labels = targets.astype(np.int64) if classes else np.zeros(len(targets), np.int64)
    count = objective.classes or num_classes or int(labels.max(initial=0)) + 1
    sampling = "quota" if classes else "random"
    held = partition(
        labels,
        None,
        num_clients=int(num_clients),
        num_classes=count,
        split=split or IID(),
        root_size=int(root_size),
        root_sampling=sampling,
        malicious=malicious,
        rng=stream(seed, "partition"),
    )
    return held.clients, held.root


def as_inputs(inputs: NDArray[np.generic]) -> Tensor:
    kind = inputs.dtype.kind
    if kind not in "biuf":
        raise InputError(f"examples must be numbers, not {inputs.dtype}")
    if inputs.dtype == np.uint8:
        return torch.from_numpy(inputs.astype(np.uint8, order="C")).float() / 255
    if kind in "iu":
        if inputs.size and inputs.min() < 0:
            raise InputError("whole numbers as examples are tokens from 0 on; a negative one was found (features must be floating point)")
        return torch.from_numpy(inputs.astype(np.int64, order="C"))
    with np.errstate(over="ignore"):  # refused below
        tensor = torch.from_numpy(inputs.astype(np.float32, order="C"))
    if tensor.numel() and not torch.isfinite(torch.stack(tensor.aminmax())).all():  # as NaN would be, and without a copy of the data
        raise InputError("the examples contain NaN or infinity")
    return tensor


def as_targets(targets: ArrayLike, count: int, objective: Objective) -> Tensor:
    array = np.asarray(targets)
    kinds, what = ("biuf", "numbers") if objective.classes == 0 else ("biu", "whole numbers")
    if array.shape[:1] != (count,) or array.dtype.kind not in kinds or not array.size:
        raise InputError(f"{count} examples need {count} {what} (or rows of them) as targets, not {array.dtype} of shape {array.shape}")
    if objective.classes == 0:
        if not np.isfinite(array).all():
            raise InputError("the targets contain NaN or infinity")
        return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))
    if array.min() < 0:
        raise InputError("classes start at 0; a negative target was found")
    return torch.from_numpy(array.astype(np.int64))


def count_classes(objective: Objective, given: int | None, *targets: Tensor) -> int:
    if objective.classes == 0:
        return 0
    found = max(int(part.max()) for part in targets) + 1
    expected = objective.classes or given or found
    if found > expected:
        raise InputError(f"there are {expected} classes, 0 to {expected - 1}, but a target is {found - 1}")
    return expected
