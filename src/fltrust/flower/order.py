"""The same replies give the same model, bit for bit, in whatever order they arrive and whatever the nodes are called.

Floating-point sums depend on the order of their terms, and which node answers first is chance. A run that was killed and went on must end
with the model of one that was not, so chance must not show. Sorting by node would not do: it needs all replies in memory before the first
can be added, and a restarted SuperLink gives its nodes new ids. So FLTrust's sum is made exact (`rules.accumulate.ExactTrust`), and where
all updates are in memory anyway, they are put in an order that depends on nothing but themselves.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

from torch import Tensor

_BEGINNING = 256  # values that tell two updates apart, most likely


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
