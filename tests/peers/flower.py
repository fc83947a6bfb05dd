"""Flower's strategies (`flwr.serverapp.strategy`), and the functions behind its older ones (`flwr.server.strategy.aggregate`)."""

import gc

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.server.strategy import aggregate as older
from flwr.serverapp import strategy as newer
from flwr.supercore.task_identity import TaskIdentity

from .comparison import Comparison

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # what Flower sets in the process of a ServerApp


def replies(rows: np.ndarray, by_size: bool = False) -> list[Message]:
    found = []
    for i, row in enumerate(rows):
        content = RecordDict({"arrays": ArrayRecord({"w": Array(row)}), "metrics": MetricRecord({"num-examples": i + 1 if by_size else 1})})
        found.append(Message(content, dst_node_id=1, message_type="train"))
    return found


def result(chosen: newer.Strategy, rows: np.ndarray, by_size: bool = False) -> np.ndarray:
    sent = replies(rows, by_size)
    gc.freeze()  # Bulyan collects garbage once for every row, which takes a second in a large process
    try:
        arrays, _ = chosen.aggregate_train(1, sent)
    finally:
        gc.unfreeze()
    if arrays is None:
        raise ValueError("the strategy skipped the round")
    return arrays.to_numpy_ndarrays()[0]


def results(rows: np.ndarray) -> list[tuple[list[np.ndarray], int]]:
    return [([row], 1) for row in rows]


COMPARISONS: list[Comparison] = [
    Comparison(
        "FedAvg", lambda rows, f: result(newer.FedAvg(), rows, by_size=True), "fedavg", "mean weighted by number of examples", by_size=True
    ),
    Comparison("FedMedian", lambda rows, f: result(newer.FedMedian(), rows), "median", "numpy's median"),
    Comparison(
        "FedTrimmedAvg(beta=f/n)",
        lambda rows, f: result(newer.FedTrimmedAvg(beta=f / len(rows)), rows),
        "trim-mean",
        "cuts int(beta n) values at each end",
    ),
    Comparison(
        "Krum(num_malicious_nodes=f)",
        lambda rows, f: result(newer.Krum(num_malicious_nodes=f), rows),
        "krum",
        "squared distances to the max(1, n - f - 2) nearest, from the Gram matrix in the rows' own precision",
    ),
    Comparison(
        "MultiKrum(num_nodes_to_select=n-f)",
        lambda rows, f: result(newer.MultiKrum(num_malicious_nodes=f, num_nodes_to_select=len(rows) - f), rows),
        "multi-krum",
        "the same scores; mean of the best, weighted by number of examples",
    ),
    Comparison(
        "MultiKrum(), default num_nodes_to_select=1",
        lambda rows, f: result(newer.MultiKrum(num_malicious_nodes=f), rows),
        "multi-krum",
        "keeps 1 row unless told otherwise",
    ),
    Comparison(
        "Bulyan(num_malicious_nodes=f)",
        lambda rows, f: result(newer.Bulyan(num_malicious_nodes=f), rows),
        "bulyan",
        "takes the n - 2f rows with the best Krum scores at once, scores are not computed anew",
        fewest=7,
    ),
    Comparison("aggregate_median", lambda rows, f: older.aggregate_median(results(rows))[0], "median", "numpy's median"),
    Comparison(
        "aggregate_trimmed_avg(f/n)",
        lambda rows, f: older.aggregate_trimmed_avg(results(rows), f / len(rows))[0],
        "trim-mean",
        "cuts int(proportion n) values at each end",
    ),
    Comparison(
        "aggregate_krum(f, to_keep=0)",
        lambda rows, f: older.aggregate_krum(results(rows), f, 0)[0],
        "krum",
        "squared distances to the max(1, n - f - 2) nearest",
    ),
    Comparison(
        "aggregate_krum(f, to_keep=n-f)",
        lambda rows, f: older.aggregate_krum(results(rows), f, len(rows) - f)[0],
        "multi-krum",
        "the same scores; mean of the best",
    ),
    Comparison(
        "aggregate_bulyan(f, aggregate_krum)",
        lambda rows, f: older.aggregate_bulyan(results(rows), f, older.aggregate_krum, to_keep=0)[0],
        "bulyan",
        "n - 2f times Krum on what is left, with max(1, n' - f - 2) neighbours",
        largest=25,
        fewest=7,
    ),
]
ATTACKS: list[Comparison] = []
