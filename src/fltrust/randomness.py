"""Named randomness: every draw of a run belongs to a stream named by the seed and what it is for.

Nothing is drawn from a global state, so a run can stop and go on at any round, and adding a draw somewhere changes no other.
"""

import hashlib

import numpy as np
import torch


def _digest(seed: int, name: tuple[str | int, ...]) -> bytes:
    return hashlib.blake2b(repr((seed, *name)).encode(), digest_size=16).digest()


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """The stream of this name on the CPU: the same numbers on every machine and device."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, name), "little")))


def reseed(generator: torch.Generator, seed: int, *name: str | int) -> torch.Generator:
    """Puts a torch generator at the start of the stream of this name, for noise that is drawn on its device."""
    return generator.manual_seed(int.from_bytes(_digest(seed, name)[:8], "little") >> 1)
