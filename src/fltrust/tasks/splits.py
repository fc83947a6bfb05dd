"""Who holds which examples: the paper's split by bias q among n clients, and the server's root set, which nobody else holds.

k training examples with labels 0..M-1; every function returns indices into them, in ascending order.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fltrust.errors import InputError
from fltrust.registry import SPLITS, Registry

Indices = NDArray[np.int64]
BIASED_CLASS = 1  # the class that the paper's biased root set (case II) favours


class Partition(NamedTuple):
    clients: list[Indices]  # a client may hold nothing; it then has nothing to learn from, and sends an update of zeros
    root: Indices


def partition(
    labels: NDArray[np.integer],
    owners: NDArray[np.integer] | None,
    *,
    num_clients: int,
    num_classes: int,
    bias: float | None,
    root_size: int,
    root_bias: float | None = None,
    root_sampling: str = "quota",
    rng: np.random.Generator,
) -> Partition:
    """Splits the examples by bias q, or by their owners where the data know them (then bias is None), and takes the root set out.

    Every example first gets its client, then the root set is drawn from all of them and removed: since examples are placed
    independently, this is the same as taking it out before, and the clients' data hardly change with the root set's size.
    """
    if owners is None:
        if bias is None:
            raise InputError("these data have no owners: a bias q in (0, 1] must say how they are split")
        clients = split_by_bias(labels, num_clients, num_classes, bias, rng)
    else:
        if bias is not None:
            raise InputError(f"a bias of {bias} makes no sense for data that are split by their owners")
        clients = split_by_owner(owners, num_clients)
    if root_sampling == "quota":
        root = sample_root(labels, root_size, num_classes, rng, root_bias)
    else:
        root = np.sort(rng.permutation(len(labels))[:root_size])
    in_root = np.zeros(len(labels), bool)
    in_root[root] = True
    return Partition([own[~in_root[own]] for own in clients], root)


def split_by_bias(labels: NDArray[np.integer], num_clients: int, num_classes: int, bias: float, rng: np.random.Generator) -> list[Indices]:
    """The clients are split at random into M groups (Section VI-A of the paper; Fang et al. 2020).

    An example of label l goes to group l with probability q and to any other with (1 - q) / (M - 1), and within the group to any
    client with the same probability; q = 1/M is IID. Groups differ by at most one client; each needs at least one.
    """
    _check_labels(labels, num_classes)
    if not 0 < bias <= 1:
        raise InputError(f"a bias q of {bias}: it must be in (0, 1]")
    if num_clients < num_classes:
        raise InputError(f"{num_clients} clients for {num_classes} classes: the split by bias needs at least one client per class")
    groups = np.array_split(rng.permutation(num_clients), num_classes)
    stays = rng.random(len(labels)) < bias
    other = rng.integers(num_classes - 1, size=len(labels))
    other += other >= labels  # any group but the label's own
    group = np.where(stays, labels, other)
    start = np.cumsum([0, *(len(members) for members in groups)])  # group g's clients stand at start[g] .. start[g+1]
    client = np.concatenate(groups)[rng.integers(start[group], start[group + 1])]  # (k,)
    return _held_by(client, num_clients)


def split_by_owner(owners: NDArray[np.integer], num_clients: int) -> list[Indices]:
    """Every user is a client (the paper's HAR)."""
    users = int(owners.max()) + 1
    if users != num_clients or owners.min() < 0:
        raise InputError(f"{num_clients} clients for data of {users} users: each user is a client, so there are {users}")
    return _held_by(owners, num_clients)


def sample_root(labels: NDArray[np.integer], size: int, num_classes: int, rng: np.random.Generator, bias: float | None = None) -> Indices:
    """The server's root set: exact numbers per class, drawn without replacement.

    Case I (bias None): the same number of every class. Case II: int(bias * size) of class 1, and the same number of every other. What
    does not divide evenly goes to classes drawn at random, at most one more each.
    """
    _check_labels(labels, num_classes)
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


def _held_by(client: NDArray[np.integer], num_clients: int) -> list[Indices]:
    """(k,) the client of each example -> the examples of each client."""
    by_client = np.argsort(client, kind="stable")
    return np.split(by_client, np.cumsum(np.bincount(client, minlength=num_clients))[:-1])


def _check_labels(labels: NDArray[np.integer], num_classes: int) -> None:
    if num_classes < 2:
        raise InputError(f"{num_classes} classes: at least 2 are needed")
    if not len(labels) or labels.min() < 0 or labels.max() >= num_classes:
        raise InputError(
            f"labels must be 0 to {num_classes - 1}" + (f", got {labels.min()} to {labels.max()}" if len(labels) else ", got none")
        )


@dataclass(frozen=True)
class Split:
    """How training examples are split over clients: a frozen dataclass of its parameters."""

    registry: ClassVar[Registry] = SPLITS

    def __call__(
        self, labels: NDArray[np.integer], owners: NDArray[np.integer] | None, num_clients: int, num_classes: int, rng: np.random.Generator
    ) -> list[Indices]:
        """The examples of each client, in ascending order; each example belongs to at most one client."""
        raise InputError(f"{type(self).__name__} must define __call__")
