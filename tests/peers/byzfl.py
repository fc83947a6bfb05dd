"""ByzFL's aggregators, pre-aggregators and attacks, on numpy rows (float64; torch rows become float32 in it)."""

import numpy as np

from .comparison import AttackComparison, Comparison
from .packages import module

rules = before = module("byzfl.aggregators")
attacks = module("byzfl.attacks.attacks")


def median_after(mixed: np.ndarray) -> np.ndarray:
    return np.asarray(np.median(mixed, axis=0))


def caf(rows: np.ndarray, f: int) -> np.ndarray:
    result = rules.CAF(f)(rows)
    if result is None:  # at f = 0
        raise ValueError("CAF returned None")
    return np.asarray(result)


COMPARISONS: list[Comparison] = [
    Comparison("Average()", lambda rows, f: rules.Average()(rows), "fedavg", "mean"),
    Comparison("Median()", lambda rows, f: rules.Median()(rows), "median", "numpy's median"),
    Comparison("TrMean(f)", lambda rows, f: rules.TrMean(f)(rows), "trim-mean", "cuts f values at each end"),
    Comparison("Meamed(f)", lambda rows, f: rules.Meamed(f)(rows), "meamed", "mean of the n - f values nearest to the median"),
    Comparison("Krum(f)", lambda rows, f: rules.Krum(f)(rows), "krum", "squared distances to the n - f - 1 nearest"),
    Comparison("MultiKrum(f)", lambda rows, f: rules.MultiKrum(f)(rows), "multi-krum", "the same scores; mean of the n - f best"),
    Comparison(
        "GeometricMedian(nu=0.1, T=3), the defaults",
        lambda rows, f: rules.GeometricMedian()(rows),
        "geometric-median",
        "3 Weiszfeld steps from zero, distances at least 0.1",
        fewest=3,
    ),
    Comparison(
        "GeometricMedian(nu=1e-9, T=100)",
        lambda rows, f: rules.GeometricMedian(nu=1e-9, T=100)(rows),
        {"name": "geometric-median", "steps": 100},
        "100 steps from zero",
        largest=25,
        fewest=3,
    ),
    Comparison(
        "CenteredClipping(tau=100.0, L=1), the defaults",
        lambda rows, f: rules.CenteredClipping()(rows),
        {"name": "centred-clipping", "tau": 100.0},
        "one step from zero in the first round",
    ),
    Comparison(
        "CenteredClipping(tau=5.0, L=3)",
        lambda rows, f: rules.CenteredClipping(tau=5.0, L=3)(rows),
        {"name": "centred-clipping", "tau": 5.0, "steps": 3},
        "three steps from zero in the first round",
    ),
    Comparison("CAF(f)", caf, "caf", "top eigenvector by one power step from a random vector"),
    Comparison(
        "NNM(f), then the median",
        lambda rows, f: median_after(before.NNM(f)(rows)),
        {"name": "nnm", "rule": "median"},
        "mean of the n - f rows nearest to each row, itself included",
    ),
    Comparison(
        "ARC(f), then the mean",
        lambda rows, f: before.ARC(f)(rows).mean(axis=0),
        {"name": "arc", "rule": "fedavg"},
        "the int((2f/n)(n - f)) longest rows are cut to the length of the next; changes the rows it is given",
    ),
    Comparison(
        "Clipping(c=2.0), then the mean",
        lambda rows, f: before.Clipping(2.0)(rows).mean(axis=0),
        {"name": "norm-clipping", "bound": 2.0},
        "rows longer than c are cut to c; changes the rows it is given",
    ),
    Comparison(
        "Bucketing(s=1), then the median",
        lambda rows, f: median_after(before.Bucketing(1)(rows)),
        {"name": "bucketing", "size": 1, "rule": "median"},
        "a random permutation, then means of s rows",
    ),
]

ATTACKS: list[Comparison] = [
    AttackComparison("SignFlipping()", lambda rows, m: attacks.SignFlipping()(rows), "sign-flip", "minus the mean of the honest rows"),
    AttackComparison(
        "InnerProductManipulation(tau=0.1)",
        lambda rows, m: attacks.InnerProductManipulation(0.1)(rows),
        {"name": "ipm", "epsilon": 0.1},
        "-tau times the honest mean; tau=2.0 by default",
    ),
    AttackComparison(
        "ALittleIsEnough(tau=1.5)",
        lambda rows, m: attacks.ALittleIsEnough(1.5)(rows),
        {"name": "alie", "z": 1.5, "upwards": True},
        "mean + tau sd, with the sample's sd (divided by n - 1)",
    ),
    AttackComparison(
        "ALittleIsEnough(), default tau=1.5",
        lambda rows, m: attacks.ALittleIsEnough()(rows),
        "alie",
        "tau does not depend on n and m; the shift is upwards",
    ),
    AttackComparison("Mimic(epsilon=0)", lambda rows, m: attacks.Mimic()(rows), "mimic", "copies honest row 0"),
]
