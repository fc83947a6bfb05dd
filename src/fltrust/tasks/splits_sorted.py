"""Splits by the order of labels: gamma-similarity, sorted, shards; the long tail, which thins classes out before another split; and
malicious clients with IID data among honest ones that are split in another way.

k training examples with labels 0..M-1, n clients.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fltrust.errors import InputError
from fltrust.registry import SPLITS
from fltrust.tasks.holdings import Indices
from fltrust.tasks.root import check_labels
from fltrust.tasks.splits import IID, NOBODY, Split, Unsplit, evenly


@SPLITS.register("similarity", label="gamma-similarity", reference="Karimireddy et al., ICML 2020; ByzFL")
@dataclass(frozen=True)
class Similarity(Split):
    """A share gamma of the examples is IID; the rest is sorted by label and cut into equal pieces, one per client.

    Also called s % similarity (Hsu et al. 2019; Karimireddy et al. 2020). gamma = 1 is IID, gamma = 0 is "sorted". Every client has the
    same number of examples, to within two.

    gamma: share of the examples that is IID, 0 to 1 (default 0.5).

    >>> labels = np.repeat([0, 1], 8)
    >>> [np.bincount(labels[own]).tolist() for own in Similarity(gamma=0.0)(labels, None, 2, 2, np.random.default_rng(0))]
    [[8], [0, 8]]
    """

    gamma: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise InputError(f"gamma must be 0 to 1, not {self.gamma}")

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        check_labels(data.labels, data.num_classes)
        shuffled = rng.permutation(len(data.labels))
        alike, rest = np.split(shuffled, [round(self.gamma * len(shuffled))])
        rest = rest[np.argsort(data.labels[rest], kind="stable")]
        client = np.empty(len(shuffled), np.int64)
        for part in (alike, rest):
            client[part] = evenly(len(part), data.num_clients)
        return client


@SPLITS.register("sorted", label="Sorted", reference="Karimireddy et al., ICLR 2022")
@dataclass(frozen=True)
class Sorted(Split):
    """Sorted by label and cut into equal pieces: each client sees one class or few (the "non-IID" of Karimireddy et al. 2022).

    Sizes are equal to within one. Which examples of a class a client gets is random.

    >>> labels = np.array([1, 0, 1, 0])
    >>> [own.tolist() for own in Sorted()(labels, None, 2, 2, np.random.default_rng(0))]
    [[1, 3], [0, 2]]
    """

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        return Similarity(0.0).assign(data, rng)


@SPLITS.register("shards", label="Shards", reference="McMahan et al., AISTATS 2017")
@dataclass(frozen=True)
class Shards(Split):
    """Sorted by label and cut into n * per_client shards, of which each client gets `per_client` at random (McMahan et al. 2017).

    Shards are equal to within one example. With 2 shards each, most clients see one or two classes.

    per_client: shards of each client (default 2).

    >>> labels = np.repeat([0, 1, 2, 3], 5)
    >>> [np.unique(labels[own]).size for own in Shards(per_client=1)(labels, None, 4, 4, np.random.default_rng(0))]
    [1, 1, 1, 1]
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise InputError(f"per_client must be at least 1, not {self.per_client}")

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        shards = data.num_clients * self.per_client
        if shards > len(data.labels):
            raise InputError(f"{shards:,} shards ({data.num_clients} x {self.per_client}) for {len(data.labels):,} examples: too many")
        shard = Sorted().assign(data._replace(num_clients=shards), rng)
        return rng.permutation(np.repeat(np.arange(data.num_clients), self.per_client))[shard]


@SPLITS.register("long-tail", label="Long tail", reference="Karimireddy et al., ICLR 2022")
@dataclass(frozen=True)
class LongTail(Split):
    """Class i keeps beta^i of its examples (rounded, at least one); what is left is split by another split.

    The other examples belong to nobody. Karimireddy et al. 2022 test IID and sorted clients on such data.

    beta: above 0 and at most 1, where 1 drops nothing (default 0.5).
    then: the split of what is left (default "iid").

    >>> labels = np.repeat([0, 1, 2], 8)
    >>> [np.bincount(labels[own]).tolist() for own in LongTail(beta=0.5)(labels, None, 1, 3, np.random.default_rng(0))]
    [[8, 4, 2]]
    """

    keeps_all: ClassVar[bool] = False
    beta: float = 0.5
    then: Split = field(default_factory=IID)

    def __post_init__(self) -> None:
        if not 0 < self.beta <= 1:
            raise InputError(f"beta must be above 0 and at most 1, not {self.beta}")

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        check_labels(data.labels, data.num_classes)
        of_class = [np.flatnonzero(data.labels == label) for label in range(data.num_classes)]
        kept = [rng.permutation(own)[: max(1, round(self.beta**label * len(own)))] for label, own in enumerate(of_class)]
        left = np.sort(np.concatenate(kept))
        owners = None if data.owners is None else data.owners[left]
        client = np.full(len(data.labels), NOBODY, np.int64)
        client[left] = self.then.assign(data._replace(labels=data.labels[left], owners=owners), rng)
        return client


@SPLITS.register("malicious-iid", label="Malicious IID", reference="Karimireddy et al., ICLR 2022")
@dataclass(frozen=True)
class MaliciousIID(Split):
    """Malicious clients hold random examples, an n-th of all each; the honest clients split the rest by another split.

    With the default, this is the non-IID setting of Karimireddy et al. 2022: honest clients see one class or few, malicious ones see all.
    There the malicious clients' examples are the honest clients' too. Here no example has two clients.

    then: the split of the honest clients (default "sorted").

    >>> labels = np.repeat([0, 1], 6)
    >>> clients = MaliciousIID()(labels, None, 3, 2, np.random.default_rng(0), malicious=1)
    >>> [len(own) for own in clients], len(np.unique(labels[clients[0]])), np.unique(labels[clients[1]])
    ([4, 4, 4], 2, array([0]))
    """

    knows_malicious: ClassVar[bool] = True
    then: Split = field(default_factory=Sorted)

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        count, m, honest = len(data.labels), data.malicious, data.num_clients - data.malicious
        if not honest:
            return IID().assign(data, rng)
        theirs = rng.permutation(count)[: round(count * m / data.num_clients)]
        client = np.empty(count, np.int64)
        client[theirs] = evenly(len(theirs), m) if m else 0
        rest = np.setdiff1d(np.arange(count), theirs)
        owners = None if data.owners is None else data.owners[rest]
        of_honest = self.then.assign(data._replace(labels=data.labels[rest], owners=owners, num_clients=honest, malicious=0), rng)
        client[rest] = np.where(of_honest == NOBODY, NOBODY, of_honest + m)
        return client
