"""Who holds which examples, as two arrays: however many clients there are, none of them is an object of its own.

N clients; k examples that somebody holds.
"""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Holdings(Sequence[Indices]):
    """The examples of each client: client i holds `examples[edges[i]:edges[i + 1]]`. It reads like a list of arrays.

    >>> held = Holdings.of([np.array([4, 5]), np.array([], int), np.array([7])])
    >>> len(held), held[0], held.sizes
    (3, array([4, 5]), array([2, 0, 1]))
    >>> held.without(np.array([5])).taken(np.array([2, 0]))
    Holdings([array([7]), array([4])])
    """

    def __init__(self, examples: Indices, edges: Indices) -> None:
        self.examples, self.edges = examples, edges  # (k,), (N + 1,)

    @staticmethod
    def of(owned: Sequence[Indices]) -> "Holdings":
        """The same as a list of arrays says."""
        if isinstance(owned, Holdings):
            return owned
        parts = [np.asarray(own, np.int64) for own in owned]
        examples = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return Holdings(examples, _edges(np.array([len(part) for part in parts], np.int64)))

    @property
    def sizes(self) -> Indices:
        """(N,): how many examples each client holds."""
        return np.diff(self.edges)

    def taken(self, clients: Indices) -> "Holdings":
        """What these clients hold, in this order."""
        sizes = self.sizes[clients]
        edges = _edges(sizes)
        shift = np.repeat(self.edges[clients] - edges[:-1], sizes)  # from a place in the new array to one in the old
        return Holdings(self.examples[shift + np.arange(edges[-1])], edges)

    def without(self, root: Indices) -> "Holdings":
        """What is left to the clients when the server takes these examples."""
        kept = ~np.isin(self.examples, root)
        return Holdings(self.examples[kept], np.append(0, np.cumsum(kept))[self.edges])

    def __add__(self, more: "Holdings") -> "Holdings":
        edges = np.append(self.edges, self.edges[-1] + more.edges[1:])
        return Holdings(np.append(self.examples, more.examples), edges)

    def __len__(self) -> int:
        return len(self.edges) - 1

    @overload
    def __getitem__(self, which: int) -> Indices: ...

    @overload
    def __getitem__(self, which: slice) -> "Holdings": ...

    def __getitem__(self, which: int | slice) -> "Indices | Holdings":
        if isinstance(which, slice):
            return self.taken(np.arange(len(self))[which])
        i = range(len(self))[which]  # from the end if negative; refused outside
        return self.examples[self.edges[i] : self.edges[i + 1]]

    def __repr__(self) -> str:
        return f"Holdings({list(self)})" if len(self) <= 10 else f"Holdings({len(self):,} clients, {len(self.examples):,} examples)"


def _edges(sizes: Indices) -> Indices:
    return np.append(0, np.cumsum(sizes))
