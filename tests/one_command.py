"""A command as a user types it, in this process and in a folder of its own."""

import json
import sys
from pathlib import Path
from typing import Protocol

import pytest
from made_up import made_up

from fltrust.cli import main
from fltrust.experiment import Experiment
from fltrust.store import results


class Program(Protocol):
    def __call__(self, *arguments: str) -> tuple[object, str, str]:
        """Exit code, what it printed, and its errors."""


def program_of(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """`fltrust COMMAND` in this folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["fltrust", command, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


def assert_refused(program: Program, arguments: list[str], said: str) -> None:
    """In one line, with exit code 2."""
    code, _, err = program(*arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert said in err


def assert_damage_is_named(program: Program, arguments: list[str], run: Experiment) -> None:
    """A result of the run whose numbers are none, or that ends before the last round, counts as not run."""
    Path("results").mkdir()
    _, empty, _ = program(*arguments, "--format", "csv")
    path = results.write(made_up(run), Path("results"))
    whole = json.loads(path.read_text())
    code, table, err = program(*arguments, "--format", "csv")
    assert (code, err) == (0, "")
    assert table != empty
    said = f"damaged, so it counts as not run: {path}: is no result of a run: an error is no number from 0 to 1\n"
    shorter = {name: whole[name][:-1] for name in ("rounds", "train_error_curve", "test_error_curve")}
    for change, why in (
        ({"test_error_curve": [*shorter["test_error_curve"], "x"]}, said),
        ({"test_error_curve": [*shorter["test_error_curve"], -5.0]}, said),
        ({"test_error_curve": [*shorter["test_error_curve"], float("nan")]}, said),
        (shorter, ""),
    ):
        path.write_text(json.dumps({**whole, **change}))
        assert program(*arguments, "--format", "csv") == (0, empty, why)
        code, out, _ = program(*arguments, "--dry-run")
        assert code == 0
        assert why in out
        assert ", 0 done" in out
