"""geom-median, the geometric median by the authors of RFA."""

from geom_median.numpy import compute_geometric_median

from .comparison import Comparison

COMPARISONS: list[Comparison] = [
    Comparison(
        "compute_geometric_median(), 100 steps or 1e-20",
        lambda rows, f: compute_geometric_median(rows).median,
        {"name": "geometric-median", "steps": 100, "start": "mean"},
        "Weiszfeld from the mean, distances at least 1e-6",
        fewest=3,
    ),
    Comparison(
        "compute_geometric_median() beside our default",
        lambda rows, f: compute_geometric_median(rows).median,
        "geometric-median",
        "ours stops after 8 steps from another start",
        fewest=3,
    ),
    Comparison(
        "compute_geometric_median(maxiter=8)",
        lambda rows, f: compute_geometric_median(rows, maxiter=8).median,
        {"name": "geometric-median", "start": "mean"},
        "the same number of steps from the mean",
    ),
]
ATTACKS: list[Comparison] = []
