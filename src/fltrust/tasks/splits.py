"""Who holds which examples: how the training examples are split over the clients, and the server's root set, which nobody else holds.

k training examples with labels 0..M-1, n clients. A split says for each example which client gets it, so no example has two clients.
This file: what a split is, and the simplest ones. `splits_sorted.py`: by order of labels. `splits_drawn.py`: by shares drawn at random.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fltrust.errors import InputError
from fltrust.registry import SPLITS, Registry
from fltrust.tasks.holdings import Holdings, Indices
from fltrust.tasks.root import check_labels, sample_root

Labels = NDArray[np.integer]
NOBODY = -1  # the client of an example that the split leaves out


class Partition(NamedTuple):
    clients: Holdings  # a client may hold nothing; it then has nothing to learn from, and sends an update of zeros
    root: Indices


def partition(
    labels: Labels,
    owners: Labels | None,
    *,
    num_clients: int,
    num_classes: int,
    bias: float | None = None,
    split: "Split | None" = None,
    root_size: int,
    root_bias: float | None = None,
    root_sampling: str = "quota",
    malicious: int = 0,
    root: Indices | None = None,
    rng: np.random.Generator,
) -> Partition:
    """Splits the examples by `split`, else by bias q, else by their owners, and takes the root set out. All indices are ascending.

    root: the root set, instead of one that is drawn.

    Every example first gets its client, then the root set is drawn from all of them and removed. So the clients' data hardly change with
    the root set's size. The sizes that a split promises are those before the root set is removed.
    """
    if split is None and bias is not None and owners is not None:
        raise InputError(
            f"a bias of {bias} makes no sense for data that are split by their owners; to ignore the owners, give a split: "
            f'split = {{ name = "bias", q = {bias} }}'
        )
    split = split or (Users() if bias is None else Bias(bias))
    clients = split(labels, owners, num_clients, num_classes, rng, malicious)
    if root is not None:
        root = np.sort(root)
    elif root_sampling == "quota":
        root = sample_root(labels, root_size, num_classes, rng, root_bias)
    else:
        root = np.sort(rng.permutation(len(labels))[:root_size])
    return Partition(clients.without(root), root)


class Unsplit(NamedTuple):
    """What a split is given."""

    labels: Labels  # (k,): the class of each example; (k, ...) where the task has no classes
    owners: Labels | None  # (k,): the user of each example, where the data say so
    num_clients: int
    num_classes: int
    malicious: int = 0  # for a split that knows them: the first so many clients are malicious


@dataclass(frozen=True)
class Split:
    """How training examples are split over clients: a frozen dataclass of its parameters.

    A split of one's own defines `assign`, and gets its name from `@SPLITS.register("in-turn")`:

    >>> @dataclass(frozen=True)
    ... class InTurn(Split):
    ...     def assign(self, data, rng):
    ...         return np.arange(len(data.labels)) % data.num_clients
    >>> InTurn()(np.zeros(5, int), None, 2, 10, np.random.default_rng(0))
    Holdings([array([0, 2, 4]), array([1, 3])])
    """

    registry: ClassVar[Registry] = SPLITS
    keeps_all: ClassVar[bool] = True  # whether every example gets a client
    knows_malicious: ClassVar[bool] = False  # whether malicious clients get other data; else chance decides who is malicious

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        """(k,): the client of each example, 0..n-1, or NOBODY."""
        raise InputError(f"{type(self).__name__} must define assign")

    def __call__(
        self, labels: Labels, owners: Labels | None, num_clients: int, num_classes: int, rng: np.random.Generator, malicious: int = 0
    ) -> Holdings:
        """The examples of each client, in ascending order; each example belongs to at most one client."""
        if num_clients < 1:
            raise InputError(f"{num_clients} clients: at least 1 is needed")
        client = np.asarray(self.assign(Unsplit(labels, owners, num_clients, num_classes, malicious), rng))
        if client.shape != labels.shape[:1] or not np.issubdtype(client.dtype, np.integer):
            raise InputError(
                f"{type(self).__name__} must give one client for each of {len(labels):,} examples, "
                f"not {client.dtype} of shape {client.shape}"
            )
        if len(client) and (client.min() < NOBODY or client.max() >= num_clients):
            raise InputError(f"{type(self).__name__} gave an example to client {client.min()} or {client.max()} of {num_clients}")
        order = np.argsort(client, kind="stable")
        edges = np.searchsorted(client[order], np.arange(num_clients + 1))
        return Holdings(order[edges[0] :], edges - edges[0])  # NOBODY's come first


@SPLITS.register("bias", label="Bias q", reference="Fang et al., USENIX Security 2020")
@dataclass(frozen=True)
class Bias(Split):
    """The paper's split by bias q, in which each class prefers one group of clients (Section VI-A; Fang et al. 2020).

    The clients are split at random into M groups. An example of label l goes to group l with probability q and to any other with
    (1 - q) / (M - 1), and within the group to any client with the same probability; q = 1/M is IID. Groups differ by at most one client;
    each needs at least one. `Experiment.bias` is the short way to ask for it.

    q: share of each class that goes to its own group, above 0 and at most 1 (default 0.5).

    >>> labels = np.array([0, 0, 1, 1])
    >>> sorted(own.tolist() for own in Bias(q=1.0)(labels, None, 2, 2, np.random.default_rng(0)))
    [[0, 1], [2, 3]]
    """

    q: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.q <= 1:
            raise InputError(f"a bias q of {self.q}: it must be in (0, 1]")

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        labels, num_clients, num_classes = data.labels, data.num_clients, data.num_classes
        check_labels(labels, num_classes)
        if num_clients < num_classes:
            raise InputError(f"{num_clients} clients for {num_classes} classes: the split by bias needs at least one client per class")
        groups = np.array_split(rng.permutation(num_clients), num_classes)
        stays = rng.random(len(labels)) < self.q
        other = rng.integers(num_classes - 1, size=len(labels))
        other += other >= labels  # any group but the label's own
        group = np.where(stays, labels, other)
        start = np.cumsum([0, *(len(members) for members in groups)])  # group g's clients stand at start[g] .. start[g+1]
        return np.concatenate(groups)[rng.integers(start[group], start[group + 1])]


@SPLITS.register("users", label="Users", reference="Caldas et al., LEAF, 2018")
@dataclass(frozen=True)
class Users(Split):
    """Every user's examples stay together: with as many clients as users, each user is a client (the paper's HAR).

    Fewer clients: users are dealt at random, and the numbers of users of two clients differ by at most one. More clients: refused, or
    with `divide` users' examples are cut at random into equal parts, one more part for whoever has the largest parts, until there are
    enough; every client then has examples of one user.

    divide: whether one user's examples may go to several clients (default False).

    >>> owners = np.array([0, 0, 1, 1, 2, 2])
    >>> [own.tolist() for own in Users()(np.zeros(6, int), owners, 3, 10, np.random.default_rng(0))]
    [[0, 1], [2, 3], [4, 5]]
    """

    divide: bool = False

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        owners, n = data.owners, data.num_clients
        if owners is None:
            raise InputError("these data have no owners: a bias q in (0, 1] or a split must say how they are split")
        if owners.shape != data.labels.shape[:1] or not len(owners) or owners.min() < 0:
            raise InputError(f"{len(data.labels):,} examples need the number (0, 1, ...) of the user of each")
        users = int(owners.max()) + 1
        if n == users:
            return owners.astype(np.int64)
        if n < users:
            return rng.permutation(evenly(users, n))[owners]
        if not self.divide:
            raise InputError(f"{n} clients for data of {users} users: there can be at most {users}, or more with divide = true")
        return self._divided(owners, users, n, rng)

    def _divided(self, owners: Labels, users: int, n: int, rng: np.random.Generator) -> Indices:
        held = np.bincount(owners, minlength=users)
        parts = np.ones(users, np.int64)
        for _ in range(n - users):
            parts[np.argmax(held / parts)] += 1
        first = np.cumsum(parts) - parts  # user u's clients are first[u] .. first[u] + parts[u] - 1
        client = np.empty(len(owners), np.int64)
        for user in range(users):
            client[owners == user] = first[user] + rng.permutation(evenly(int(held[user]), int(parts[user])))
        return client


@SPLITS.register("iid", label="IID")
@dataclass(frozen=True)
class IID(Split):
    """Examples at random, the same number for every client (to within one).

    >>> [len(own) for own in IID()(np.zeros(7, int), None, 3, 10, np.random.default_rng(0))]
    [3, 2, 2]
    """

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        return rng.permutation(evenly(len(data.labels), data.num_clients))


def evenly(count: int, parts: int) -> Indices:
    """(count,): the part of each place, in ascending order; the parts' sizes differ by at most one, larger ones first."""
    small, larger = divmod(count, parts)
    return np.repeat(np.arange(parts), small + (np.arange(parts) < larger))
