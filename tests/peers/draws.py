"""The rows that every package gets, drawn by name and seed."""

import numpy as np

from fltrust.randomness import stream

KINDS = {
    "plain": "a common direction plus noise, most of it in a few coordinates",
    "groups": "rows of three groups of clients, each with a direction of its own",
    "outliers": "plain, but f of the n rows point the other way and are ten times as long",
    "short": "the plain rows divided by 1,000",
}
SIZES = (10, 25, 50, 100)
SEEDS = range(5)
D = 20


def told(n: int) -> int:
    """f, the number of malicious rows that the rules are told: n >= 4f + 3, so that Bulyan can take part."""
    return n // 6


def rows(kind: str, n: int, seed: int) -> np.ndarray:
    """(n, d) float64."""
    chance = stream(seed, "peers", n)
    common = chance.standard_normal(D)
    noise = 4 * chance.standard_normal((n, D)) / np.arange(1, D + 1)  # like gradients: few directions hold most of it
    drawn = common + noise
    if kind == "groups":
        drawn = 3 * chance.standard_normal((3, D))[chance.integers(0, 3, n)] + drawn
    if kind == "outliers":
        drawn[: told(n)] = -10 * drawn[: told(n)]
    return drawn / 1000 if kind == "short" else drawn
