"""Named randomness: every draw of a run belongs to a stream named by the seed and what it is for.

Nothing is drawn from a global state, so a run can stop and go on at any round, and adding a draw somewhere changes no other.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def _digest(seed: int, name: tuple[str | int, ...]) -> bytes:
    return hashlib.blake2b(repr((seed, *name)).encode(), digest_size=16).digest()


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """The stream of this name on the CPU: the same numbers on every machine and device."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, name), "little")))


def drawn_rows(rng: np.random.Generator, draw: Callable[[int], NDArray[Any]], rows: NDArray[np.int64], width: int) -> NDArray[Any]:
    """(n, width): these rows, in ascending order, of a table that `draw` fills from the stream's start, without drawing the others.

    `draw(count)` must take one 64-bit number of the stream for each of its values. The stream can skip fours of them.

    >>> rng = stream(0, "table")
    >>> some = drawn_rows(rng, rng.random, np.array([3, 70]), 5)
    >>> bool((some == stream(0, "table").random((100, 5))[[3, 70]]).all())
    True
    """
    philox: Any = rng.bit_generator  # `advance` is not every bit generator's
    parts, reached = [], 0
    for row in rows.tolist():
        fours, ahead = divmod(row * width, 4)
        philox.advance(fours - reached)
        parts.append(draw(ahead + width)[ahead:])
        reached = fours - (-(ahead + width) // 4)
    return np.stack(parts)


def reseed(generator: torch.Generator, seed: int, *name: str | int) -> torch.Generator:
    """Puts a torch generator at the start of the stream of this name, for noise that is drawn on its device."""
    return generator.manual_seed(int.from_bytes(_digest(seed, name)[:8], "little") >> 1)
