"""docs/own-data.md, from its first snippet to its last: a reader who pastes them gets what the page says."""

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

PAGE = Path(__file__).parent.parent / "docs" / "own-data.md"
SNIPPETS = re.findall(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))  # no other test sees the page's own
    names: dict[str, Any] = {}
    printed = ""
    for language, file, text in SNIPPETS:
        if file:
            Path(file).write_text(text)
        elif language == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(text, "own-data.md", "exec"), names)
            printed = out.getvalue()
        elif language == "text":  # what the snippet before prints
            assert printed == text
        else:
            assert language == "sh"
            for line in text.splitlines():
                _, *arguments = shlex.split(line)
                done = CliRunner().invoke(app, arguments)
                assert done.exit_code in ((0, 3) if "check" in arguments else (0,)), f"{line}: {done.output} {done.exception}"
    assert names["result"].test_error < 0.3
    assert len(names["result"].history) == 10
    assert Path("report/index.html").stat().st_size > 10_000
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "fedavg",
        "fltrust",
        "from-a-folder",
        "from-a-function",
        "krum",
        "median",
    ]
