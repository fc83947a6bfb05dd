"""Splits by shares that are drawn at random: two kinds of Dirichlet, and clients that differ in size only.

k training examples with labels 0..M-1, n clients.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fltrust.errors import InputError
from fltrust.registry import SPLITS
from fltrust.tasks.holdings import Indices
from fltrust.tasks.root import check_labels
from fltrust.tasks.splits import Labels, Split, Unsplit, evenly

DRAWS = 1000  # how often a split with a minimum size is drawn before it gives up


@SPLITS.register("dirichlet-clients", label="Dirichlet over clients", reference="Li et al., NIID-Bench, ICDE 2022")
@dataclass(frozen=True)
class DirichletClients(Split):
    """Each class is cut among the clients by shares p ~ Dir(alpha, ..., alpha) of n parts (Yurochkin et al. 2019; NIID-Bench).

    Sizes become unequal. Where a client would get fewer than `min_size` examples, all is drawn again; NIID-Bench's rule that a client with
    more than its fair share gets no more is left out. "dirichlet-classes" is another split that the literature calls by the same name.

    alpha: small is uneven, large is even; 0.1, 0.5 and 1 are usual (default 0.5).
    min_size: examples that every client gets at least; 0 allows clients without any (default 1; NIID-Bench has 10).

    >>> labels = np.repeat([0, 1], 50)
    >>> clients = DirichletClients(alpha=0.5, min_size=5)(labels, None, 4, 2, np.random.default_rng(0))
    >>> sum(map(len, clients)), min(map(len, clients)) >= 5
    (100, True)
    """

    alpha: float = 0.5
    min_size: int = 1

    def __post_init__(self) -> None:
        _check_positive("alpha", self.alpha)
        _check_min_size(self.min_size)

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        check_labels(data.labels, data.num_classes)
        held = np.bincount(data.labels, minlength=data.num_classes)  # (M,)
        concentration = np.full(data.num_clients, self.alpha)
        counts = _drawn_until(self, data, lambda: np.stack([_cut(rng.dirichlet(concentration), size) for size in held], 1))
        return _dealt(data.labels, counts, rng)


@SPLITS.register("dirichlet-classes", label="Dirichlet over classes", reference="Hsu, Qi, Brown, 2019")
@dataclass(frozen=True)
class DirichletClasses(Split):
    """Each client's mix of classes is p ~ Dir(alpha * prior); all clients have the same number of examples (Hsu et al. 2019).

    The prior (M,) is the share of each class in the data and sums to 1: with ten equal classes, alpha = 1 is Dir(0.1, ..., 0.1). The same
    alpha is thus far less even than in "dirichlet-clients". Sizes are equal to within one.

    One client after the other draws its examples from its mix, without replacement. A class that has run out leaves the mix, whose other
    shares grow in proportion; when all classes of the mix have run out, the client draws from what is left. So the last clients' mixes
    depend on what others took, and every example is given out.

    alpha: small is one class per client, large is the prior (default 0.5).

    >>> labels = np.repeat([0, 1], 50)
    >>> [len(own) for own in DirichletClasses(alpha=0.1)(labels, None, 4, 2, np.random.default_rng(0))]
    [25, 25, 25, 25]
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        _check_positive("alpha", self.alpha)

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        check_labels(data.labels, data.num_classes)
        left = np.bincount(data.labels, minlength=data.num_classes)  # (M,)
        present = np.flatnonzero(left)
        concentration = np.maximum(self.alpha * left[present] / len(data.labels), np.finfo(float).tiny)
        counts = np.zeros((data.num_clients, data.num_classes), np.int64)
        sizes = np.bincount(evenly(len(data.labels), data.num_clients), minlength=data.num_clients)
        for own, size in zip(counts, sizes, strict=True):
            mix = np.zeros(data.num_classes)
            mix[present] = rng.dirichlet(concentration)
            while missing := size - own.sum():
                mix[left == 0] = 0
                if not mix.sum() > 0:
                    mix = left.astype(float)
                taken = np.minimum(rng.multinomial(missing, mix / mix.sum()), left)
                own += taken
                left -= taken
        return _dealt(data.labels, counts, rng)


@SPLITS.register("quantity-dirichlet", label="Quantity skew (Dirichlet)", reference="Li et al., NIID-Bench, ICDE 2022")
@dataclass(frozen=True)
class QuantityDirichlet(Split):
    """Clients differ in size only: sizes are shares p ~ Dir(alpha, ..., alpha), examples are IID (NIID-Bench's quantity skew).

    Where a client would get fewer than `min_size` examples, all sizes are drawn again.

    alpha: small is uneven, large is even (default 0.5).
    min_size: examples that every client gets at least; 0 allows clients without any (default 1).

    >>> [len(own) for own in QuantityDirichlet(alpha=1e9)(np.zeros(90, int), None, 3, 10, np.random.default_rng(0))]
    [30, 30, 30]
    """

    alpha: float = 0.5
    min_size: int = 1

    def __post_init__(self) -> None:
        _check_positive("alpha", self.alpha)
        _check_min_size(self.min_size)

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        concentration = np.full(data.num_clients, self.alpha)
        return _of_unequal_sizes(self, data, lambda: rng.dirichlet(concentration), rng)


@SPLITS.register("quantity-log-normal", label="Quantity skew (log-normal)")
@dataclass(frozen=True)
class QuantityLogNormal(Split):
    """Clients differ in size only: sizes are in proportion to exp(sigma z), z ~ N(0, 1), examples are IID.

    Where a client would get fewer than `min_size` examples, all sizes are drawn again.

    sigma: 0 is equal sizes; with 1 the largest of a hundred clients has about twelve times the median (default 1).
    min_size: examples that every client gets at least; 0 allows clients without any (default 1).

    >>> [len(own) for own in QuantityLogNormal(sigma=0.0)(np.zeros(90, int), None, 3, 10, np.random.default_rng(0))]
    [30, 30, 30]
    """

    sigma: float = 1.0
    min_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 10:
            raise InputError(f"sigma must be 0 to 10, not {self.sigma}")
        _check_min_size(self.min_size)

    def assign(self, data: Unsplit, rng: np.random.Generator) -> Indices:
        def shares() -> NDArray[np.float64]:
            weights: NDArray[np.float64] = rng.lognormal(sigma=self.sigma, size=data.num_clients)
            return weights / float(weights.sum())

        return _of_unequal_sizes(self, data, shares, rng)


def _cut(shares: NDArray[np.float64], count: int) -> Indices:
    """(n,): whole numbers in these proportions that sum to `count`."""
    edges = np.rint(np.cumsum(shares) * count).astype(np.int64)
    edges[-1] = count  # the shares' sum is 1 but for rounding
    return np.diff(np.minimum(edges, count), prepend=0)


def _dealt(labels: Labels, counts: Indices, rng: np.random.Generator) -> Indices:
    """(k,): the client of each example; counts (n, M) say how many of each class each client gets, chance says which."""
    client = np.empty(len(labels), np.int64)
    for label, of_class in enumerate(counts.T):
        client[labels == label] = rng.permutation(np.repeat(np.arange(len(counts)), of_class))
    return client


def _of_unequal_sizes(
    split: QuantityDirichlet | QuantityLogNormal, data: Unsplit, shares: Callable[[], NDArray[np.float64]], rng: np.random.Generator
) -> Indices:
    counts = _drawn_until(split, data, lambda: _cut(shares(), len(data.labels))[:, None])  # (n, 1): all examples are of one class
    return _dealt(np.zeros(len(data.labels), np.int64), counts, rng)


def _drawn_until(split: DirichletClients | QuantityDirichlet | QuantityLogNormal, data: Unsplit, draw: Callable[[], Indices]) -> Indices:
    """Counts (n, ...) of which every client has at least `min_size` in all."""
    n, k, wanted = data.num_clients, len(data.labels), split.min_size
    if n * wanted > k:
        raise InputError(f"{n} clients with at least {wanted} examples each need {n * wanted:,}; there are {k:,}")
    for _ in range(DRAWS):
        counts = draw()
        if counts.sum(1).min() >= wanted:
            return counts
    raise InputError(
        f"{split}: in {DRAWS:,} draws, some of {n} clients always got fewer than {wanted} of {k:,} examples; "
        "take a more even split, fewer clients or a smaller min_size"
    )


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < 1e30:
        raise InputError(f"{name} must be a positive number, not {value}")


def _check_min_size(min_size: int) -> None:
    if min_size < 0:
        raise InputError(f"min_size must not be negative, not {min_size}")
