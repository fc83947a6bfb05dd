"""ByzPy's aggregators, pre-aggregators and attacks, on torch rows (float64), one by one as its interface asks."""

import numpy as np
import torch

from .comparison import AttackComparison, Comparison
from .packages import module

coordinate = module("byzpy.aggregators.coordinate_wise")
geometric = module("byzpy.aggregators.geometric_wise")
norm = module("byzpy.aggregators.norm_wise")
before = module("byzpy.pre_aggregators")
attacks = {name: module(f"byzpy.attacks.{name}") for name in ("empire", "little", "mimic", "sign_flip")}


def each(rows: np.ndarray) -> list[torch.Tensor]:
    return list(torch.from_numpy(rows))


def mixed(step: object, rows: np.ndarray) -> np.ndarray:
    return torch.stack(step.pre_aggregate(each(rows))).numpy()  # type: ignore[attr-defined]


COMPARISONS: list[Comparison] = [
    Comparison(
        "CoordinateWiseMedian()",
        lambda rows, f: coordinate.CoordinateWiseMedian().aggregate(each(rows)),
        "median",
        "torch's median: the lower of the two middle values if n is even",
    ),
    Comparison(
        "CoordinateWiseTrimmedMean(f)",
        lambda rows, f: coordinate.CoordinateWiseTrimmedMean(f).aggregate(each(rows)),
        "trim-mean",
        "cuts f values at each end",
    ),
    Comparison(
        "MeanOfMedians(f)",
        lambda rows, f: coordinate.MeanOfMedians(f).aggregate(each(rows)),
        "meamed",
        "mean of the n - f values nearest to torch's (lower) median",
    ),
    Comparison("Krum(f)", lambda rows, f: geometric.Krum(f).aggregate(each(rows)), "krum", "squared distances to the n - f - 1 nearest"),
    Comparison(
        "MultiKrum(f, q=n-f)",
        lambda rows, f: geometric.MultiKrum(f, len(rows) - f).aggregate(each(rows)),
        "multi-krum",
        "the same scores; mean of the q best",
    ),
    Comparison(
        "GeometricMedian(), 256 steps or 1e-6",
        lambda rows, f: geometric.GeometricMedian().aggregate(each(rows)),
        {"name": "geometric-median", "steps": 256},
        "Weiszfeld from the (lower) median until a step is at most 1e-6 long, whatever the rows' length",
        fewest=3,
    ),
    Comparison(
        "GeometricMedian() beside our default",
        lambda rows, f: geometric.GeometricMedian().aggregate(each(rows)),
        "geometric-median",
        "ours stops after 8 steps",
        fewest=3,
    ),
    Comparison(
        "CenteredClipping(c_tau=5.0, M=3, init='zero')",
        lambda rows, f: norm.CenteredClipping(c_tau=5.0, M=3, init="zero").aggregate(each(rows)),
        {"name": "centred-clipping", "tau": 5.0, "steps": 3},
        "three steps from zero; init='mean' and M=10 by default, nothing is remembered",
    ),
    Comparison(
        "NearestNeighborMixing(f), then the median",
        lambda rows, f: np.median(mixed(before.NearestNeighborMixing(f), rows), axis=0),
        {"name": "nnm", "rule": "median"},
        "mean of the n - f rows nearest to each row, itself included",
    ),
    Comparison(
        "ARC(f), then the mean",
        lambda rows, f: mixed(before.ARC(f), rows).mean(axis=0),
        {"name": "arc", "rule": "fedavg"},
        "rows longer than the floor(2(f/n)(n - f))-th longest but one are cut to it",
    ),
    Comparison(
        "Clipping(threshold=2.0), then the mean",
        lambda rows, f: mixed(before.Clipping(threshold=2.0), rows).mean(axis=0),
        {"name": "norm-clipping", "bound": 2.0},
        "rows longer than the threshold are cut to it",
    ),
    Comparison(
        "Bucketing(1), then the median",
        lambda rows, f: np.median(mixed(before.Bucketing(1), rows), axis=0),
        {"name": "bucketing", "size": 1, "rule": "median"},
        "a random permutation, then means of s rows",
    ),
]

ATTACKS: list[Comparison] = [
    AttackComparison(
        "SignFlipAttack(scale=-1) on a client's own row",
        lambda rows, m: attacks["sign_flip"].SignFlipAttack().apply(base_grad=torch.from_numpy(rows[-1])),
        "sign-flip",
        "minus the client's own row",
    ),
    AttackComparison(
        "EmpireAttack(scale=-0.1)",
        lambda rows, m: attacks["empire"].EmpireAttack(-0.1).apply(honest_grads=each(rows)),
        {"name": "ipm", "epsilon": 0.1},
        "scale times the honest mean; scale=-1.0 by default",
    ),
    AttackComparison(
        "LittleAttack(f=m)",
        lambda rows, m: attacks["little"].LittleAttack(m).apply(honest_grads=each(rows)),
        {"name": "alie", "upwards": True},
        "mean + z sd, z = Phi^-1((n - s)/n) with s = n//2 + 1 - m",
    ),
    AttackComparison(
        "MimicAttack(epsilon=0)",
        lambda rows, m: attacks["mimic"].MimicAttack().apply(honest_grads=each(rows)),
        "mimic",
        "copies honest row 0",
    ),
]
