"""TorchJD's aggregators for multi-task learning: a task's gradient stands where a client's update stands here."""

import torch
from torchjd.aggregation import Krum, TrimmedMean

from .comparison import Comparison

COMPARISONS: list[Comparison] = [
    Comparison(
        "TrimmedMean(trim_number=f)", lambda rows, f: TrimmedMean(f)(torch.from_numpy(rows)), "trim-mean", "cuts f values at each end"
    ),
    Comparison(
        "Krum(n_byzantine=f)", lambda rows, f: Krum(f)(torch.from_numpy(rows)), "krum", "distances, not squared, to the n - f - 2 nearest"
    ),
    Comparison(
        "Krum(n_byzantine=f, n_selected=n-f)",
        lambda rows, f: Krum(f, len(rows) - f)(torch.from_numpy(rows)),
        "multi-krum",
        "the same scores; mean of the n - f best",
    ),
]
ATTACKS: list[Comparison] = []
