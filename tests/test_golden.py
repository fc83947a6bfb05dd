"""Short curves that change only on purpose: then run `python tests/test_golden.py`, and say so in the CHANGELOG."""

import json
from pathlib import Path
from typing import Any

import pytest

from fltrust.experiment import Experiment
from fltrust.simulation import simulate
from fltrust.tasks.build import build_task

CURVES = Path(__file__).parent / "golden" / "curves.json"
CASES: dict[str, dict[str, Any]] = {
    "fltrust, trim attack": {"rule": "fltrust", "attack": "trim"},
    "fedavg, label flip, three local steps": {"rule": "fedavg", "attack": "label-flip", "local_steps": 3, "local_lr": 0.003},
    "krum, krum attack, half of the clients": {"rule": "krum", "attack": "krum", "clients_per_round": 10},
    "trimmed mean, scaling attack": {"rule": "trim-mean", "attack": "scaling"},
    "median, adaptive attack": {"rule": "median", "attack": "adaptive"},
    "fltrust, exact adaptive attack, biased root set in batches": {
        "rule": "fltrust",
        "attack": "optimal-adaptive",
        "root_bias": 0.4,
        "root_batch": "batch",
        "loss": "mean",
        "global_lr": 0.1,
    },
}


def curve(case: dict[str, Any]) -> list[list[float]]:
    """Per round: training error, test error, mean norm of what was sent, norm of the global weights."""
    run = Experiment.on("mnist-5k", **{"rounds": 6, "batch_size": 8, "evaluate_every": 1, "global_lr": 0.01, **case})
    rows = []
    for record in simulate(run, build_task(run)):
        assert record.train_error is not None
        assert record.test_error is not None
        assert record.norm is not None
        assert record.weights is not None
        rows.append([record.train_error, record.test_error, sum(record.norm) / len(record.norm), record.weights.norm().item()])
    return rows


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    expected = json.loads(CURVES.read_text())[name]
    for row, golden in zip(curve(CASES[name]), expected, strict=True):
        assert row[:2] == pytest.approx(golden[:2], abs=0.004)  # a handful of examples on the edge, on another processor
        assert row[2:] == pytest.approx(golden[2:], rel=1e-3)


if __name__ == "__main__":
    CURVES.write_text(json.dumps({name: curve(case) for name, case in CASES.items()}, indent=1) + "\n")
