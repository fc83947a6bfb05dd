"""The shortest input on which a peer and ours differ: found by trying all small ones, never guessed.

In order: few rows, few coordinates, small f, small whole numbers from 1 on (we leave rows of zeros out on purpose). An input on which
either side's result depends on the order of the rows is passed over: that is a tie, and a tie is nobody's mistake. (Attacks may look at the
order: a client has a row of its own.)
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, combinations_with_replacement, islice, product
from pathlib import Path

import numpy as np

from .comparison import SAME, Call, Comparison, call, difference

FOUND = Path(__file__).with_name("shortest.json")
MOST_ROWS, MOST_COORDINATES, MOST_VALUE, MOST_INPUTS = 8, 2, 6, 300  # the last: of one number of rows, coordinates and f
LONGEST_STAIR = 50


@dataclass(frozen=True)
class Shortest:
    """An input and what the two sides make of it."""

    f: int
    rows: list[list[float]]
    theirs: list[float]
    ours: list[float]


def small(fewest: int = 1) -> Iterator[tuple[np.ndarray, int]]:
    for n, d in product(range(fewest, MOST_ROWS + 1), range(1, MOST_COORDINATES + 1)):
        for f in range(n // 2 + 1):
            yield from ((np.array(chosen, dtype=float), f) for chosen in islice(_points(n, d), MOST_INPUTS))


def _points(n: int, d: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """n points of d whole numbers in any order, those with a small largest number first."""
    for most in range(1, MOST_VALUE + 1):
        points = product(range(1, most + 1), repeat=d)
        yield from (chosen for chosen in combinations_with_replacement(points, n) if max(map(max, chosen)) == most)


def stairs() -> Iterator[tuple[np.ndarray, int]]:
    """1, 2 .. n - 1, 1000 and f = 1: for what goes wrong only at a certain number of rows."""
    for n in range(3, LONGEST_STAIR + 1):
        yield np.array([*range(1, n), 1000], dtype=float)[:, None], 1


def steady(side: Call, rows: np.ndarray, f: int) -> np.ndarray | None:
    """The side's result; None if it refuses the input or depends on the order of the rows."""
    try:
        result = call(side, rows, f)
        others = [call(side, moved, f) for moved in (rows[::-1], np.roll(rows, 1, axis=0), np.roll(rows, len(rows) // 2, axis=0))]
    except Exception:  # whatever a peer raises
        return None
    return result if all(np.allclose(result, other, rtol=1e-9, atol=1e-12, equal_nan=True) for other in others) else None


def search(comparison: Comparison, most: int) -> Shortest | None:
    """The first input on which the sides differ by more than rounding: a stair, or one of the first `most` small ones."""
    for rows, f in chain(islice(small(comparison.fewest), most), stairs()):
        if f == 0 and comparison.registry.plural == "attacks":
            continue
        try:  # the cheap look first
            ours = call(comparison.our_call, rows, f)
            apart = difference(call(comparison.call, rows, f), ours)
        except Exception:  # one of them refuses it
            continue
        if apart <= SAME:
            continue
        theirs = call(comparison.call, rows, f)
        sides = [side for side, ordered in ((comparison.call, comparison.by_order), (comparison.our_call, False)) if not ordered]
        if comparison.registry.plural == "attacks" or all(steady(side, rows, f) is not None for side in sides):
            return Shortest(f, rows.tolist(), theirs.tolist(), ours.tolist())
    return None


def load() -> dict[str, Shortest]:
    return {name: Shortest(**found) for name, found in json.loads(FOUND.read_text()).items()} if FOUND.exists() else {}


def store(found: dict[str, Shortest]) -> None:
    lines = [f"  {json.dumps(name)}: {json.dumps(asdict(found[name]))}" for name in sorted(found)]
    FOUND.write_text("{\n" + ",\n".join(lines) + "\n}\n")
