"""FedML's defences, each module alone. Rows are clients' models of one layer, with one example each."""

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .comparison import Comparison
from .packages import module

DEFENCES = "fedml.core.security.defense."
Model = tuple[float, OrderedDict[str, torch.Tensor]]


def clients(rows: np.ndarray) -> list[Model]:
    return [(1.0, OrderedDict(w=torch.from_numpy(row.copy()))) for row in rows]


def mean(kept: list[Model]) -> np.ndarray:
    """What FedML does next: the mean, weighted by number of examples."""
    total = sum(examples for examples, _ in kept)
    return sum(examples / total * model["w"] for examples, model in kept).numpy()  # type: ignore[union-attr]


def before(name: str, kind: str, **config: Any) -> Callable[[np.ndarray], list[Model]]:
    made = getattr(module(DEFENCES + name), kind)(SimpleNamespace(**config))
    return lambda rows: made.defend_before_aggregation(clients(rows), OrderedDict(w=torch.zeros(rows.shape[1], dtype=torch.float64)))


def krum(rows: np.ndarray, f: int, keep: int) -> np.ndarray:
    return mean(before("krum_defense", "KrumDefense", byzantine_client_num=f, krum_param_m=keep)(rows))


def bulyan(rows: np.ndarray, f: int) -> np.ndarray:
    made = module(DEFENCES + "bulyan_defense").BulyanDefense(SimpleNamespace(byzantine_client_num=f, client_num_per_round=len(rows)))
    return np.asarray(made.run(clients(rows))["w"])


def rfa(rows: np.ndarray, f: int) -> np.ndarray:
    kind = module(DEFENCES + "RFA_defense").RFADefense
    return np.asarray(kind.defend_on_aggregation(None, clients(rows))["w"])


def centred(rows: np.ndarray, f: int) -> np.ndarray:
    made = module(DEFENCES + "cclip_defense").CClipDefense(SimpleNamespace(tau=5.0, bucket_size=1))
    moved = mean(made.defend_before_aggregation(clients(rows)))
    return np.asarray(made.defend_after_aggregation({"w": torch.from_numpy(moved)})["w"])


def bucketed(rows: np.ndarray, size: int) -> np.ndarray:
    buckets = module("fedml.core.security.common.bucket").Bucket.bucketization(clients(rows), size)
    return np.stack([model["w"].numpy() for _, model in buckets])


def rlr(rows: np.ndarray, f: int) -> np.ndarray:
    made = module(DEFENCES + "robust_learning_rate_defense").RobustLearningRateDefense(SimpleNamespace(robust_threshold=4))
    return np.asarray(made.run(clients(rows))["w"])


COMPARISONS: list[Comparison] = [
    Comparison(
        "CoordinateWiseMedianDefense",
        lambda rows, f: (
            module(DEFENCES + "coordinate_wise_median_defense").CoordinateWiseMedianDefense(None).defend_on_aggregation(clients(rows))["w"]
        ),
        "median",
        "torch's median: the lower of the two middle values if n is even",
    ),
    Comparison(
        "CoordinateWiseTrimmedMeanDefense(beta=f/n)",
        lambda rows, f: mean(before("coordinate_wise_trimmed_mean_defense", "CoordinateWiseTrimmedMeanDefense", beta=f / len(rows))(rows)),
        "trim-mean",
        "sorts the clients by number of examples and leaves int(beta n) of them out at each end; values are not looked at",
        by_order=True,
    ),
    Comparison(
        "KrumDefense(m=1)", lambda rows, f: krum(rows, f, 1), "krum", "squared distances to the n - f - 2 nearest; asks for n >= 2f + 2 + m"
    ),
    Comparison(
        "KrumDefense(m=n-2f-2)",
        lambda rows, f: krum(rows, f, len(rows) - 2 * f - 2),
        "multi-krum",
        "mean of the n - 2f - 2 best, the most that it accepts; ours keeps n - f",
    ),
    Comparison(
        "RFADefense",
        rfa,
        "geometric-median",
        "clients' weights are a set, so equal ones become one; one median for each layer",
        largest=10,
        fewest=3,
        by_order=True,
    ),
    Comparison(
        "BulyanDefense",
        bulyan,
        "bulyan",
        "Krum by distances, not squared, to n' - f others; then the mean of one value less",
        largest=50,
        fewest=7,
    ),
    Comparison(
        "CClipDefense(tau=5.0, bucket_size=1)",
        centred,
        {"name": "centred-clipping", "tau": 5.0},
        "one step from a random client's row",
        by_order=True,
    ),
    Comparison(
        "NormDiffClippingDefense(norm_bound=2.0)",
        lambda rows, f: mean(before("norm_diff_clipping_defense", "NormDiffClippingDefense", norm_bound=2.0)(rows)),
        {"name": "norm-clipping", "bound": 2.0},
        "rows longer than the bound are cut to it",
    ),
    Comparison("RobustLearningRateDefense(4)", rlr, {"name": "rlr", "threshold": 4}, "signs of what clients send (in FedML, models)"),
    Comparison(
        "Bucket.bucketization(1), then the median",
        lambda rows, f: np.median(bucketed(rows, 1), axis=0),
        {"name": "bucketing", "size": 1, "rule": "median"},
        "means of s rows in the order of arrival, no permutation",
    ),
]
ATTACKS: list[Comparison] = []
