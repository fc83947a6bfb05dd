"""How far each node stands apart from the others in each round, and since when it does so for good.

T rounds, N nodes. A signal (T, N) counts in spreads of the nodes in that round; NaN where nothing is known. Each round is compared with
itself alone: when all nodes' trust falls while the model learns, nobody stands apart, and a round that is added changes nothing before it.
"""

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fltrust.audit.read import History

Array = NDArray[np.float64]

# The thresholds; docs/audit.md says how they were chosen.
USUAL = 2.5  # spreads that a node may stand apart without anything being counted
MOST = 2.9  # what one round can add: no single round makes a node hostile
LEAST = -0.5  # what a good round takes away: a node that alternates is not forgiven at once
HOSTILE, SUSPICIOUS = 5.0, 3.5  # what the rounds must add up to
COSINE, PEERS = 0.05, 0.08  # the least spread of cosines with the server's update, and with the other nodes', which honest nodes differ in
LENGTH = 3.0  # times the usual norm: with less nothing is counted
NEARER, ALIKE = 5.0, 0.9  # look-alikes: so many times nearer to another node than nodes usually are, and of at least this cosine
COPY = 1 - 1e-6  # of this cosine two updates are the same: so near are honest ones only if their data are the same
ALONG = 0.15  # if the better quarter of the nodes has this cosine with the server's update, a negative one means something
FEWEST = 4  # nodes that must have replied before they are compared


class Signal(NamedTuple):
    """One way of standing apart."""

    apart: Array  # (T, N) spreads
    bad: NDArray[np.bool_]  # (T, N) the rounds that count
    total: Array  # (N,) what the rounds added up to, at most
    since: NDArray[np.int64]  # (N,) the first round of those that did; -1: none


def signals(table: History, root_norm: Array) -> dict[str, Signal]:
    """By name: "root" and "away" (direction, against the server's), "peers" (against the others'), "long", "alike"."""
    numbers = table.numbers
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # rounds without a single number
        cosine = numbers["cosine"]
        along = np.nanquantile(cosine, 0.75, axis=1, keepdims=True) >= ALONG
        norm = np.log(np.where(numbers["norm"] > 0, numbers["norm"], np.nan))
        distance = np.log(np.maximum(1 - numbers["closest"], 1e-7))
        apart = {
            "root": -_spreads(cosine, COSINE),
            "away": np.where(along, -cosine / COSINE, np.where(np.isnan(cosine), np.nan, 0.0)),
            "peers": -_spreads(numbers["peers"], PEERS),
            "long": _spreads(norm, np.log(LENGTH) / USUAL),
            "alike": np.where(numbers["closest"] >= ALIKE, -_spreads(distance, np.log(NEARER) / USUAL), distance * 0),
        }
        apart["alike"] = np.where(_copies(numbers["closest"]), 2 * USUAL, apart["alike"])
        nearer_to_the_server = np.abs(norm - np.log(root_norm)[:, None]) < np.abs(_middle(norm) - np.log(root_norm)[:, None])
        apart["long"][nearer_to_the_server] = 0  # most nodes may be hostile, and the honest ones the odd ones out
    return {name: Signal(values, values > USUAL, *_added_up(values)) for name, values in apart.items()}


def _copies(closest: Array) -> NDArray[np.bool_]:
    """(T, N) who sent what another node sent too: half of the nodes or more set the median, so that copies of theirs do not stand apart.

    If all of them sent the same, nobody stands apart.
    """
    there, same = np.isfinite(closest), closest >= COPY
    compared = (there.sum(1) >= FEWEST) & (there & ~same).any(1)
    copies: NDArray[np.bool_] = same & compared[:, None]
    return copies


def _median(values: Array) -> Array:
    """(T, 1) of what is known."""
    median: Array = (np.nanmedian if np.isnan(values).any() else np.median)(values, axis=1, keepdims=True)
    return median


def _middle(values: Array) -> Array:
    """(T, 1) the median of the round's nodes; NaN if they are too few to compare."""
    middle = _median(values)
    few = np.isfinite(values).sum(1, keepdims=True) < FEWEST
    return np.where(few, np.nan, middle)


def _spreads(values: Array, least: float) -> Array:
    """How far from the round's median, in its median deviations (scaled to standard deviations), or in `least` if that is more."""
    off = values - _middle(values)
    return off / np.maximum(1.4826 * _median(np.abs(off)), least)


def _added_up(apart: Array) -> tuple[Array, NDArray[np.int64]]:
    """A cumulative sum test (Page 1954): what is beyond USUAL adds up, a round below takes a little away, and it never falls below 0."""
    total, most = np.zeros(apart.shape[1]), np.zeros(apart.shape[1])
    began, since = np.full(apart.shape[1], -1), np.full(apart.shape[1], -1)
    for t, row in enumerate(np.clip(np.nan_to_num(apart - USUAL, nan=0.0), LEAST, MOST)):
        began = np.where((total == 0) & (row > 0), t, began)
        total = np.maximum(0, total + row)
        reached = total > most
        first = reached & (most < SUSPICIOUS)  # once it is suspicious, its beginning stays
        since[first] = began[first]
        most = np.maximum(most, total)
    return most, since


def groups(alike: Signal, table: History) -> Iterator[list[int]]:
    """Places of nodes that resemble each other, each group once."""
    flagged = alike.total >= SUSPICIOUS
    t, node = np.nonzero(alike.bad & flagged & (table.closest_to >= 0))
    pairs = np.unique(np.stack([node, table.closest_to[t, node]]), axis=1)
    leader = list(range(len(flagged)))

    def top(place: int) -> int:
        while leader[place] != place:
            leader[place] = place = leader[leader[place]]
        return place

    for one, other in pairs.T.tolist():
        if flagged[other]:
            leader[top(one)] = top(other)
    members: dict[int, list[int]] = {}
    for place in np.nonzero(flagged)[0].tolist():
        members.setdefault(top(place), []).append(place)
    return (group for group in members.values() if len(group) > 1)
