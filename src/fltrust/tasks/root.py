"""The server's root set: a few examples that nobody else holds.

k training examples with labels 0..M-1.
"""

import numpy as np
from numpy.typing import NDArray

from fltrust.errors import InputError

Indices = NDArray[np.int64]
HELD_OUT = 5  # of so many root examples one is held out, for a rule that asks for it
BIASED_CLASS = 1  # the class that the paper's biased root set (case II) favours


def sample_root(labels: NDArray[np.integer], size: int, num_classes: int, rng: np.random.Generator, bias: float | None = None) -> Indices:
    """The server's root set: exact numbers per class, drawn without replacement.

    Case I (bias None): the same number of every class. Case II: int(bias * size) of class 1, and the same number of every other. What
    does not divide evenly goes to classes drawn at random, at most one more each.
    """
    check_labels(labels, num_classes)
    if not 1 <= size <= len(labels):
        raise InputError(f"a root set of {size:,} examples out of {len(labels):,}: it needs 1 to {len(labels):,}")
    if bias is not None and not 0 <= bias <= 1:
        raise InputError(f"a root bias of {bias}: it must be in [0, 1]")
    quota = np.zeros(num_classes, np.int64)  # (M,)
    even = np.arange(num_classes)
    if bias is not None:
        quota[BIASED_CLASS] = int(bias * size)
        even = np.delete(even, BIASED_CLASS)
    rest = size - int(quota.sum())
    quota[even] = rest // len(even)
    quota[rng.permutation(even)[: rest % len(even)]] += 1
    available = np.bincount(labels, minlength=num_classes)
    if (short := np.flatnonzero(quota > available)).size:
        raise InputError(
            f"the root set needs {quota[short[0]]:,} examples of class {short[0]}, the training data have {available[short[0]]:,}"
        )
    chosen = [rng.permutation(np.flatnonzero(labels == label))[: quota[label]] for label in range(num_classes)]
    return np.sort(np.concatenate(chosen))


def hold_out(root: Indices, targets: NDArray[np.generic]) -> tuple[Indices, Indices]:
    """The root examples that the server trains on, and those that only tell how good a model is: every fifth, in the order of targets.

    So every class gives its part. Targets (k, ...) that are no single number have no order: every fifth as they come.
    """
    if len(root) < 2:
        raise InputError("a root set of 1 example: at least 2 are needed to train on some and hold out others")
    order = np.argsort(targets, kind="stable") if targets.ndim == 1 else np.arange(len(root))
    held = np.zeros(len(root), bool)
    held[order[::HELD_OUT]] = True
    return root[~held], root[held]


def check_labels(labels: NDArray[np.integer], num_classes: int) -> None:
    """Refuses what is not one class 0..M-1 per example."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"one class per example is needed, not labels of type {labels.dtype} and shape {labels.shape}")
    if num_classes < 2:
        raise InputError(f"{num_classes} classes: at least 2 are needed")
    if not len(labels) or labels.min() < 0 or labels.max() >= num_classes:
        raise InputError(
            f"labels must be 0 to {num_classes - 1}" + (f", got {labels.min()} to {labels.max()}" if len(labels) else ", got none")
        )
