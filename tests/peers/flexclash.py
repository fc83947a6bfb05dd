"""FLEX-Clash, the attacks and defences of FLEXible."""

from typing import Any

import numpy as np

from .comparison import Comparison
from .packages import module

defences = module("flexclash.pool.defences")
defences.set_tensorly_backend([[np.zeros(1)]])


def models(rows: np.ndarray) -> list[list[np.ndarray]]:
    return [[row] for row in rows]


def inner(decorated: Any) -> Any:
    """The function under FLEXible's decorator, which wants a pool of clients."""
    return decorated.__wrapped__


multikrum, bulyan = inner(defences.multikrum), inner(defences.bulyan)

COMPARISONS: list[Comparison] = [
    Comparison(
        "median",
        lambda rows, f: defences.median_f(models(rows))[0],
        "median",
        "the value at n // 2: the upper of the two middle values if n is even",
    ),
    Comparison(
        "trimmed_mean(trim_proportion=f/n)",
        lambda rows, f: defences.trimmed_mean_f(models(rows), f / len(rows))[0],
        "trim-mean",
        "cuts f values below and f - 1 above",
    ),
    Comparison(
        "multikrum(f, m=1)", lambda rows, f: multikrum(models(rows), f=f, m=1)[0], "krum", "squared distances to the n - f - 2 nearest"
    ),
    Comparison(
        "multikrum(f, m=n-f)",
        lambda rows, f: multikrum(models(rows), f=f, m=len(rows) - f)[0],
        "multi-krum",
        "the same scores; (upper) median of the best, not their mean",
    ),
    Comparison(
        "bulyan(f, m=f)",
        lambda rows, f: bulyan(models(rows), f=f, m=f)[0],
        "bulyan",
        "n - 2f times the best Krum score, rows of the distance matrix sorted in place; then its trimmed mean",
        largest=25,
        fewest=7,
    ),
]
ATTACKS: list[Comparison] = []
