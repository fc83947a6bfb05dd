"""The report of a federation: its audit, nodes by name, and how to repeat it."""

import ast
import json
import re
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from test_audit import Change, forged, opposite, written

from fltrust.report import build
from fltrust.report.repeat import strategy_call
from fltrust.rules import Krum
from fltrust.store.results import Federation

DECLARED = {
    "rule": {"name": "fltrust"},
    "root": {"lr": 0.1, "function": "\n</script><b>x</b>"},
    "seed": None,
    "global_lr": 0.5,
    "min_replies": 0.5,
    "limits": {"most_value": 1e9, "take_buffers": False, "weighted_by_key": "num-examples"},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Node 2 sends what is no reply, node 3 the opposite from round 3 on."""
    misbehave: Change = lambda t, i, said: forged(t, i, said) if i == 2 else opposite(t, i, said) if i == 3 and t >= 3 else None  # noqa: E731
    path = written(tmp_path / "run", 6, misbehave, seconds=2.5, kept=None)
    about = {"versions": {"fltrust": "1"}, "hardware": "two cores", "files": None, "warnings": None}
    (path / "experiment.json").write_text(json.dumps({"kind": "federation", "key": "k", "experiment": DECLARED, **about}))
    (path / "nodes.json").write_text(json.dumps({"2": {"name": "<b>hospital</b>\x1b"}, "3": {"name": "clinic"}}))
    return path


def test_the_page_says_who_and_why_and_since_when(run: Path, tmp_path: Path) -> None:
    build([run], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    text = re.sub(r"<[^>]+>", " ", page)
    assert "2 of 10 nodes look hostile: " in text
    assert "&lt;b&gt;hospital&lt;/b&gt;\\x1b" in page
    assert "<b>hospital" not in page
    assert "its reply was rejected in 6 of 6 rounds: shape 3, encoding 3" in text
    assert re.search(r"clinic\s+node 3\s+hostile\s+round 3\s+2026-01-01T00:00:03", text)
    assert "6 rounds in 15 s, the longest 2 s, 2026-01-01T00:00:01+00:00 to 2026-01-01T00:00:06+00:00." in text
    assert "R" * 6 in page


def test_how_to_repeat_a_federation() -> None:
    said = strategy_call(Federation("k", Krum(tolerate=2), None, 10, 6, DECLARED))
    call = ast.parse(said, mode="eval").body
    assert isinstance(call, ast.Call)
    inner = call.func.value  # type: ignore[attr-defined]
    assert ast.unparse(inner.args[0]) == "Krum(tolerate=2)"
    given = {word.arg: ast.literal_eval(word.value) for word in inner.keywords}
    assert given == {
        "root": ...,
        "seed": None,
        "global_lr": 0.5,
        "min_replies": 0.5,
        "most_value": 1e9,
        "take_buffers": False,
    }
    assert said.isascii()
    assert said.endswith(".start(grid, arrays, num_rounds=6)")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(run: Path, tmp_path: Path, width: int) -> None:
    build([run], tmp_path / "report")
    with Browser(tmp_path / "profile") as browser:
        browser.resize(width, 900)
        browser.open(tmp_path / "report" / "index.html")
        assert browser.errors == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelectorAll('.audit tbody tr').length") == 10
        assert browser.run("[...document.querySelectorAll('.audit .hostile')].length") == 2
        assert "no trust: no update" in browser.run("document.querySelector('.scale').textContent")  # a rejected reply is no trust of 0
        assert "global_lr=0.5" in browser.run("document.querySelector('.command').textContent")
