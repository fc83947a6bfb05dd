"""The page of a red team in a real browser: the breaking point first, every number opens its runs, and names from files stay text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from made_up import made_up
from test_redteam import FACTS, breaks_at_4

from fltrust.experiment import Experiment
from fltrust.redteam.plan import changes, question_of, stages
from fltrust.report.reading import Problem
from fltrust.report.redteam import answer
from fltrust.report.redteam_checklist import checklist
from fltrust.report.redteam_page import redteam_page
from fltrust.store.results import Results

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

HOSTILE = "</script><img src=x onerror='window.hacked = 1'>"
SEEN = {"rounds": 10, "malicious": 4, "found": 4, "hostile": 4, "honest": 16, "accused": 1, "since": 3, "evidence": HOSTILE}
SEEN |= {"trust": {"malicious": 0.1, "honest": 0.5}, "share": {"malicious": None, "honest": None}}


def written(path: Path, rules: str, **about: Any) -> Path:
    given = {"dataset": "mnist-5k", "rule": rules, "attack": "trim,scaling"}
    question = question_of(given, [], shares="5,10,20,40", points=5.0, seeds=2, tried="median", precision="float32")
    runs = [run for stage in stages(question)[0] for run in stage.runs]
    searched = next(run for run in runs if type(run.attack).__name__ == "Searched").to_dict()["attack"]
    made, _ = changes(question, searched, 4, broken=True, train_examples=4000)
    every = [*runs, *(run for change in made for run in change.runs)]
    results = [made_up(run, error=breaks_at_4(run) + 0.002 * run.seed, success=0.02, seed=run.seed, hardware=HOSTILE) for run in every]
    found = answer(
        question,
        runs,
        made,
        Results(results),
        command=f"fltrust redteam --task {HOSTILE}",
        plugins=(),
        where=(),
        facts=FACTS,
        audits=lambda key: SEEN,
        problems=[Problem(f"rule {HOSTILE}", f"failed: {HOSTILE}")],
    )
    path.write_text(redteam_page(found, checklist(found)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("page") / "index.html", "fltrust")


@pytest.fixture(autouse=True)
def opened(browser: Browser, page: Path) -> Iterator[None]:
    browser.dark(False)
    browser.resize(1400, 900)
    browser.open(page)
    yield
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("data:", "file:"))] == []
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.run("document.querySelectorAll('img').length") == 0


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.run(f"[...document.querySelectorAll({selector!r})].map(one => one.innerText.trim().replace(/\\s+/g, ' '))")
    return found


def test_the_answer_comes_first_and_then_every_part(browser: Browser) -> None:
    assert texts(browser, "h1") == ["FLTrust breaks at 20 % malicious clients"]
    said = texts(browser, "header li")
    assert said[1].startswith(
        "The largest tested share that costs at most 5 points is 10 %. "
        "With 20 % (4 of 20), an attack searched on the rule (“searched”: it pushes against the honest mean) takes the error to 0.301"
    )
    noticed = "The audit would have noticed this attack, which does not try to hide."
    assert said[2] == f"{noticed} In 2 runs with 4 malicious clients each, it accuses 8 of 8 malicious and 2 of 32 honest clients."
    assert said[3].startswith("What helped most: a root set of 500 instead of 100.")
    sections = browser.run("[...document.querySelectorAll('main > section')].map(one => one.id)")
    assert sections == ["breaking-point", "noticed", "changes", "checklist", "repeat", "leftovers"]


def test_curves_show_every_attack_with_its_spread_and_the_limit(browser: Browser) -> None:
    browser.wait("document.querySelectorAll('#breaking-point .plot svg .curve').length")
    assert texts(browser, "#breaking-point h4") == ["fltrust: test error", "fltrust: backdoor success"]
    first = "document.querySelector('#breaking-point .plot')"
    assert browser.run(f"{first}.querySelectorAll('.curve').length") == 5
    assert browser.run(f"{first}.querySelectorAll('.dot').length") == 5 * 5
    assert browser.run(f"{first}.querySelectorAll('.bar').length") == 5 * 5
    assert browser.run(f"{first}.querySelectorAll('.reference').length") == 1
    assert "5 points above no attack" in texts(browser, "#breaking-point .keys")[0]


def test_every_number_opens_its_runs_with_seeds_and_commands(browser: Browser) -> None:
    rows = texts(browser, "#breaking-point tbody tr")
    assert [row.split(" ")[0] for row in rows] == ["scaling", "trim", "searched", "searched,", "searched,"]
    assert "0.301 ▲ ± 0.001" in rows[2]
    assert browser.run("document.querySelectorAll('#breaking-point td.cell button[data-cell]').length") == 5 * 5
    browser.click("#breaking-point tbody tr:nth-child(3) td:nth-child(5) button")
    browser.wait("document.querySelectorAll('#panel .curve').length")
    panel = browser.run("document.querySelector('#panel').innerText")
    assert "fltrust · searched · 4 of 20 malicious" in panel
    assert "Seeds 0, 1." in panel
    assert "fltrust run --dataset mnist-5k --rule fltrust --attack searched" in panel
    browser.click("#panel .close")
    browser.click("#changes tbody tr:first-child td [data-cell]")
    browser.wait("document.querySelector('#panel').open")
    assert "a root set of 500 instead of 100" in browser.run("document.querySelector('#panel h2').textContent")
    assert "--root-size 500" in browser.run("document.querySelector('#panel').innerText")


def test_names_from_files_are_text(browser: Browser) -> None:
    for section in ("noticed", "leftovers", "repeat"):
        assert HOSTILE in browser.run(f"document.querySelector('#{section}').textContent")
    assert HOSTILE in browser.run("document.querySelector('header').textContent")


def test_rivals_get_the_table_of_a_sweep(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path / "rivals.html", "fltrust,median"))
    browser.wait("document.querySelectorAll('#survival .plot').length")
    rules = browser.run("[...document.querySelectorAll('#survival tbody th')].map(one => one.textContent)")
    assert rules == ["fltrust", "median"]
    assert browser.run("document.querySelectorAll('#numbers tbody tr').length") > 10
    assert "median instead" in texts(browser, "#changes tbody th")


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_has_no_sideways_scroll(browser: Browser, page: Path, dark: bool) -> None:
    browser.dark(dark)
    browser.resize(390, 844)
    browser.open(page)
    browser.wait("document.documentElement.scrollWidth === 390")


def test_a_page_without_a_single_result_says_so(browser: Browser, tmp_path: Path) -> None:
    question = question_of({"dataset": "mnist-5k", "rule": "krum"}, [], shares="20", points=5.0, seeds=1, tried="none", precision="float32")
    runs: list[Experiment] = stages(question)[0][0].runs
    nothing = answer(
        question, runs, [], Results(), command="fltrust redteam", plugins=(), where=(), facts={}, audits=lambda key: None, problems=[]
    )
    path = tmp_path / "empty.html"
    path.write_text(redteam_page(nothing, checklist(nothing)), encoding="utf-8")
    browser.open(path)
    assert texts(browser, "h1") == ["Krum: no breaking point yet"]
    assert "krum has no finished run without attack" in texts(browser, "header .finding")[0]
