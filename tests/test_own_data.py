"""docs/own-data.md and docs/root-set.md, from the first snippet to the last: a reader who pastes them gets what the pages say."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fltrust.cli import app
from fltrust.registry import MODELS

DOCS = Path(__file__).parent.parent / "docs"
SNIPPET = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FEW = ["--rounds", "1"]  # for a check, whose numbers are not the page's point


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))  # no other test sees a page's own


def follow(page: str) -> tuple[dict[str, Any], list[str]]:
    """Runs the snippets of a page in order. Returns the names that Python has in the end, and what the commands printed."""
    names: dict[str, Any] = {}
    printed, outputs = "", []
    for language, file, text in SNIPPET.findall((DOCS / page).read_text(encoding="utf-8")):
        if file:
            Path(file).write_text(text)
        elif language == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(text, page, "exec"), names)
            printed = out.getvalue()
        elif language == "text":  # what the Python snippet before prints
            assert printed == text
        elif language == "sh":
            for line in text.splitlines():
                _, *arguments = shlex.split(line)
                checks = arguments[:2] == ["root", "check"]
                done = CliRunner().invoke(app, [*arguments, *(FEW if checks else [])])
                assert done.exit_code in ((0, 3) if checks else (0,)), f"{line}: {done.output} {done.exception}"
                outputs.append(done.output)
    return names, outputs


@pytest.mark.slow
def test_own_data() -> None:
    pytest.importorskip("matplotlib")
    names, _ = follow("own-data.md")
    assert names["result"].test_error < 0.15
    assert len(names["result"].history) == 10
    assert Path("report/index.html").stat().st_size > 10_000
    runs = {path.name for path in Path("runs").iterdir()}
    assert runs == {"fedavg", "fltrust", "from-a-folder", "from-a-function", "krum", "median"}


@pytest.mark.slow
def test_root_set() -> None:
    _, (drawn, mostly_ones) = follow("root-set.md")
    assert "fine, classes: The classes are balanced: 10 to 10 examples of each." in drawn
    assert "attention, classes: Class 1 is" in mostly_ones
