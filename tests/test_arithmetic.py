"""bench/arithmetic.py: which runs died, how sure that is, and the program from its plan to its table."""

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from made_up import made_up

from fltrust.experiment import Experiment
from fltrust.paper import EXHIBITS
from fltrust.store.results import Result
from fltrust.training import precision

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def arithmetic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("arithmetic")


def ended(*errors: float, seed: int = 0) -> Result:
    return dataclasses.replace(made_up(Experiment.on("mnist-0.1"), seed=seed), test_error=errors)


def test_a_run_dies_that_had_learned(arithmetic: ModuleType) -> None:
    assert arithmetic.fate(ended(0.9, 0.4, 0.9)) == "died"
    assert arithmetic.fate(ended(0.4, 0.9, 0.3)) == "lived"  # it recovered
    assert arithmetic.fate(ended(0.4, 0.3, 0.7)) == "lived"
    assert arithmetic.fate(ended(0.9, 0.6, 0.9)) == "never learned"


@pytest.mark.parametrize(("count", "low", "high"), [(0, 0.0, 0.161), (1, 0.009, 0.236), (10, 0.299, 0.701), (20, 0.839, 1.0)])
def test_wilsons_interval(arithmetic: ModuleType, count: int, low: float, high: float) -> None:
    assert arithmetic.wilson(count, 20) == pytest.approx((low, high), abs=6e-4)


def test_deaths_are_counted_and_named(arithmetic: ModuleType) -> None:
    results = [ended(0.2, 0.9, seed=12), ended(0.2, 0.1, seed=10), ended(0.2, 0.9, seed=11), ended(0.9, 0.9, seed=13)]
    assert arithmetic.row("a cell", "float16", results, 5) == "| a cell | float16 | 2 of 4 | 15 to 85 % | 11, 12 | 13 | 1 |"
    assert arithmetic.row("a cell", "float32", [], 5) == "| a cell | float32 | 0 of 0 | 0 to 100 % | none | none | 5 |"


def test_the_experiments_are_the_tables(arithmetic: ModuleType) -> None:
    assert set(arithmetic.CELLS.values()) <= {cell.run for cell in EXHIBITS["methods"].cells}


def test_what_the_device_lacks_is_said(arithmetic: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda: True)
    assert arithmetic.precisions("cpu") == ["float32", "bfloat16"]
    assert capsys.readouterr().out == "not run: precision float16 is for a GPU: a CPU computes in float32 or bfloat16\n"
    assert arithmetic.precisions("cuda") == ["float32", "float16"]


@pytest.mark.slow
def test_the_table_of_tiny_runs_and_nothing_is_run_twice(
    arithmetic: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = Experiment.on("mnist-5k", "fedavg", "none", rounds=2, evaluate_every=1, batch_size=4)
    monkeypatch.setattr(arithmetic, "CELLS", {"tiny": tiny})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    monkeypatch.setattr("sys.argv", ["arithmetic.py", "--seeds", "10", "11", "--jobs", "2", "--out", str(tmp_path)])
    arithmetic.main()
    first = capsys.readouterr().out
    assert "2 runs, 0 done, 2 to do" in first
    assert "| tiny | float32 | 0 of 2 | 0 to 66 % | none | 10, 11 | 0 |" in first
    written = {path.name: path.read_bytes() for path in tmp_path.glob("float32/mnist-5k/*.json")}
    assert len(written) == 2
    arithmetic.main()
    again = capsys.readouterr().out
    assert "2 runs, 2 done, 0 to do" in again
    assert first[first.index("| cell") :] == again[again.index("| cell") :]
    assert {path.name: path.read_bytes() for path in tmp_path.glob("float32/mnist-5k/*.json")} == written
