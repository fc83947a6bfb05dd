"""OpenFL's aggregation functions."""

import numpy as np

from .comparison import Comparison
from .packages import module

geometric = module("openfl.interface.aggregation_functions.geometric_median")
median = module("openfl.interface.aggregation_functions.median")


class Tensor:
    """What OpenFL hands to an aggregation function: a client's values and its share."""

    def __init__(self, tensor: np.ndarray, weight: float) -> None:
        self.tensor, self.weight = tensor, weight


def tensors(rows: np.ndarray) -> list[Tensor]:
    return [Tensor(row, 1 / len(rows)) for row in rows]


COMPARISONS: list[Comparison] = [
    Comparison("Median()", lambda rows, f: median.Median().call(tensors(rows)), "median", "numpy's median"),
    Comparison(
        "GeometricMedian()",
        lambda rows, f: geometric.GeometricMedian().call(tensors(rows)),
        "geometric-median",
        "4 steps from the mean, or until the objective changes by 1e-6; each step divides the weights of the step before",
    ),
]
ATTACKS: list[Comparison] = []
