"""The same replies give the same model, bit for bit, in whatever order they arrive and whatever the nodes are called.

Floating-point sums depend on the order of their terms, and which node answers first is chance. A run that was killed and went on must end
with the model of one that was not, so chance must not show. Sorting by node would not do: it needs all replies in memory before the first
can be added, and a restarted SuperLink gives its nodes new ids. So FLTrust's sum is made exact, and where all updates are in memory
anyway, they are put in an order that depends on nothing but themselves.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from fltrust.rules.accumulate import TrustAccumulator
from fltrust.rules.rows import Rows, check_like, direction_and_norm, measure

_BLOCK = 1 << 15  # values that are worked on at a time, so that they stay in the cache
_BEGINNING = 256  # values that tell two updates apart, most likely


class ExactTrust(TrustAccumulator):
    """FLTrust as a stream of at most n updates whose sum has no rounding, so that order and grouping cannot show in it.

    No coordinate of a client's share is larger than the root update's norm. So each is first rounded to a multiple of
    u = 2^(e - 52), where 2^e >= n * norm: then every sum is a multiple of u below 2^53 u, which float64 holds exactly. For 1,000 clients
    u is 2^-42 of the root update's norm: less than the rounding of a float32 update, and twelve digits of a float64 one.
    """

    def __init__(self, root_update: Tensor, n: int) -> None:
        super().__init__(root_update)
        self.direction, norm = direction_and_norm(root_update)
        self.norm = float(norm)
        _, exponent = math.frexp(max(n, 4) * self.norm)
        # Added and taken away again it leaves multiples of u: floats of this size are so far apart.
        self._magnet = math.ldexp(1.5, exponent)

    def add_many(self, updates: Tensor) -> Tensor:
        check_like(updates, (*updates.shape[:1], len(self._root_update)), self._root_update, "a matrix of updates")
        trust = [self.add_measured(updates[i], measure(updates[i : i + 1], self.direction)) for i in range(len(updates))]
        return updates.new_tensor(trust)

    def add_measured(self, update: Tensor, row: Rows) -> float:
        """Takes in an update (d,) whose length and cosine with `direction` are known already, and returns its trust."""
        trust = float(row.cosine[0].clamp(min=0))
        self._trust.append(trust)
        if trust > 0:
            scale, factor = float(row.scale[0]), trust * self.norm / float(row.length[0])
            numbers, total = update.detach().numpy(), self._sum.numpy()  # numpy, since torch would wake its threads for so little
            for start in range(0, len(total), _BLOCK):
                share = numbers[start : start + _BLOCK] / np.float64(scale)
                share *= factor
                share += self._magnet
                share -= self._magnet
                total[start : start + _BLOCK] += share
        return trust


def sort_rows(updates: Tensor, sizes: Sequence[float]) -> list[int]:
    """Puts the rows (n, d) in an order that only their content and size decide, in place, and returns which row each one was."""
    rows = updates.numpy()
    beginnings = [row[:_BEGINNING].tobytes() for row in rows]
    times = Counter(beginnings)
    keys = [
        (beginning, hashlib.sha256(row.data).digest() if times[beginning] > 1 else b"", size)
        for row, beginning, size in zip(rows, beginnings, sizes, strict=True)
    ]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    holds = list(range(len(rows)))  # which row is at each place now ...
    place = list(range(len(rows)))  # ... and the place of each row
    for here, wanted in enumerate(order):
        there = place[wanted]
        if there != here:  # swapped, so that no second matrix is needed
            before = rows[here].copy()
            rows[here] = rows[there]
            rows[there] = before
            holds[here], holds[there] = holds[there], holds[here]
            place[holds[here]], place[holds[there]] = here, there
    return order
