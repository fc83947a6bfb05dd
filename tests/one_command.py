"""A command as a user types it, in this process and in a folder of its own."""

import sys
from pathlib import Path
from typing import Protocol

import pytest

from fltrust.cli import main


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
