"""The page of a sweep in a real browser: it answers first, sorts, filters, draws, and stays small with 2,000 runs."""

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from browser import CHROMIUM, Browser
from made_up import made_up

from fltrust.attacks import Attack
from fltrust.experiment import Experiment
from fltrust.registry import ATTACKS, RULES, Absent
from fltrust.report.page import runs_page
from fltrust.report.reading import Found, Problem
from fltrust.report.survival import boards
from fltrust.rules import Rule
from fltrust.store.results import Result, Results

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

HOSTILE = "</script><img src=x onerror='window.hacked = 1'>"
COUNTS = (0, 1, 2, 4)


def write(found: Found, path: Path) -> Path:
    path.write_text(runs_page(found, boards(found.results), 0.05), encoding="utf-8", errors="replace")
    return path


def ends_at(rule: str, attack: str, malicious: int) -> float:
    """FedAvg breaks at 2 of 20 under Trim, Krum at 4; nothing harms FLTrust."""
    harmed = {"fedavg": 2, "krum": 4, "fltrust": 99}[rule]
    return 0.05 + (0.3 if attack == "trim" and malicious >= harmed else 0.01)


@pytest.fixture(scope="module")
def some() -> list[Result]:
    found = []
    for rule in ("fedavg", "krum", "fltrust"):
        for attack in ("none", "trim", "scaling"):
            for many in COUNTS:
                run = Experiment.on("mnist-5k", rule, attack, malicious=many)
                works = 0.9 if (rule, attack, many) == ("fedavg", "scaling", 4) else 0.0
                found += [made_up(run, error=ends_at(rule, attack, many) + 0.004 * seed, success=works, seed=seed) for seed in (0, 1)]
    return found


@pytest.fixture(scope="module")
def page(some: list[Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside these a rule with a hostile name, another data set, an unfinished run and two that could not be read."""
    run = Experiment.on("mnist-5k", "fedavg", "trim", malicious=4)
    strange = [
        made_up(dataclasses.replace(run, rule=cast(Rule, Absent(RULES, HOSTILE, ())), malicious=many), error=0.2, hardware=HOSTILE)
        for many in (0, 4)
    ]
    other = [made_up(Experiment.on("har", "fedavg", "trim", malicious=many), error=0.1) for many in (0, 6)]
    whole = made_up(run, seed=9)
    cut = dataclasses.replace(whole, rounds=whole.rounds[:1], train_error=whole.train_error[:1], test_error=whole.test_error[:1])
    problems = [Problem(f"runs/{HOSTILE}", f"cannot be read: {HOSTILE}"), Problem("rule bulyan, malicious 8", "left out: too few")]
    found = Found(Results([*some, *strange, *other]), [(Path("runs/cut"), cut)], [], problems)
    return write(found, tmp_path_factory.mktemp("page") / "index.html")


@pytest.fixture(autouse=True)
def opened(browser: Browser, page: Path) -> Iterator[None]:
    with browser.visit(page, width=1400):
        yield
    assert browser.run("typeof window.hacked") == "undefined"


BOARD = "[aria-label='mnist-5k']"
ROWS = f'[...document.querySelectorAll("{BOARD} tbody tr")]'


def words(browser: Browser, rows: str = ROWS) -> list[list[str]]:
    found: list[list[str]] = browser.run(f"{rows}.map(row => [...row.cells].map(cell => cell.innerText.trim().replace(/\\s+/g, ' ')))")
    return found


def say(browser: Browser, field: str, text: str) -> None:
    browser.write(f".filters [aria-label='{field}']", text)


def test_the_answer_comes_first(browser: Browser) -> None:
    # The data sets stand in the order of their names, and the first one answers.
    assert browser.run("document.querySelector('header .claim').textContent").startswith("On har ")
    assert browser.run("document.querySelector('h1').textContent") == "How many malicious clients does each rule survive?"
    assert (
        browser.run("document.querySelector('header li').textContent")
        == "fedavg survives all that was tested, 6 of 30 malicious clients (20%)"
    )
    claim = browser.run("document.querySelector('#survival .claim').textContent")
    assert "at most 0.05 above its own error without attack" in claim
    assert [row[:2] for row in words(browser)] == [
        ["fltrust", "≥ 4 of 20, scaling"],
        ["krum", "2 of 20, trim"],
        ["fedavg", "1 of 20, trim"],
        [HOSTILE[:39] + "…plug-in not loaded", "≥ 4 of 20, trim"],  # what is not known comes last
    ]
    heads = browser.run(f'[...document.querySelectorAll("{BOARD} thead th")].map(head => head.textContent)')
    assert heads == ["rule", "worst attack", "error without attack", "scaling", "trim"]
    assert words(browser)[2][3:] == ["2 harmed by 4", "1 harmed by 2"]  # a backdoor that works is harm


def test_damage_is_dark(browser: Browser) -> None:
    shade = """(kind) => {
      const cell = document.querySelector(`#survival .heat-key.${kind}`);
      return getComputedStyle(cell).backgroundColor.match(/[\\d.]+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0);
    }"""
    for dark in (False, True):
        browser.dark(dark)
        shades = browser.run(f"['harm-0', 'harm-1', 'harm-2', 'harm-3', 'harm-4', 'harm-5'].map({shade})")
        assert shades == sorted(shades, reverse=True)
        assert len(set(shades)) == 6
    browser.dark(False)
    say(browser, "Show", "error 4")
    kinds = browser.run(f"{ROWS}.map(row => [...row.cells].slice(1).map(cell => cell.className))")
    assert [row[0] for row in words(browser)][:3] == ["fltrust", "krum", "fedavg"]
    assert kinds[0] == ["cell harm-0"] * 3
    assert kinds[1] == ["cell harm-0", "cell harm-0", "cell harm-4"]
    assert words(browser)[1][3] == "0.352 ▲ ± 0.003"


def test_rules_attacks_and_data_sets_are_filtered(browser: Browser) -> None:
    boards_shown = "[...document.querySelectorAll('#survival h3')].map(one => one.textContent)"
    assert browser.run(boards_shown) == ["har, 30 clients", "mnist-5k, 20 clients"]
    say(browser, "Data sets and settings", "MNIST")
    assert browser.run(boards_shown) == ["mnist-5k, 20 clients"]
    say(browser, "Rules", "krum, fltrust")
    assert [row[0] for row in words(browser)] == ["fltrust", "krum"]
    say(browser, "Attacks", "scal")
    assert [len(row) for row in words(browser)] == [4, 4]
    titles = browser.run("[...document.querySelectorAll('#survival h4')].map(one => one.textContent)")
    assert titles == ["scaling", "scaling: backdoor"]
    numbers = browser.run(
        "[...document.querySelectorAll('#numbers tbody tr')].map(row => row.cells[0].textContent + row.cells[1].textContent)"
    )
    assert sorted(numbers) == ["fltrustscaling"] * 4 + ["krumscaling"] * 4
    say(browser, "Rules", "nobody")
    assert browser.run("document.querySelector('#survival .nothing').hidden") is False
    assert browser.run("document.querySelectorAll('#numbers tbody tr').length") == 0


def test_tables_sort_by_number(browser: Browser) -> None:
    rows = "[...document.querySelectorAll('#numbers tbody tr')]"
    harm = f"{rows}.map(row => Number.parseFloat(row.cells[4].textContent.replace('\\u2212', '-')))"
    before = browser.run(harm)
    assert before == sorted(before, reverse=True)  # the most harm first
    assert before[0] > 0.8
    browser.click("#numbers thead th:nth-child(3) button")
    malicious = browser.run(f"{rows}.map(row => Number.parseInt(row.cells[2].textContent))")
    assert malicious == sorted(malicious, reverse=True)
    head = f"{BOARD} thead th:nth-child(5) button"
    browser.click(head)
    assert [row[4] for row in words(browser)] == ["≥ 4 all tested", "≥ 4 all tested", "2 harmed by 4", "1 harmed by 2"]
    browser.click(head)
    assert words(browser)[0][0] == "fedavg"


def test_attacks_with_the_names_of_other_columns_sort_by_their_own_numbers(browser: Browser, tmp_path: Path) -> None:
    errors = {("fedavg", "worst"): 0.3, ("fedavg", "clean"): 0.1, ("krum", "worst"): 0.2, ("krum", "clean"): 0.4}
    found = [made_up(Experiment.on("mnist-5k", rule, "none", malicious=0), error=0.05) for rule in ("fedavg", "krum")]
    for (rule, attack), error in errors.items():
        named = dataclasses.replace(Experiment.on("mnist-5k", rule, "trim", malicious=4), attack=cast(Attack, Absent(ATTACKS, attack, ())))
        found.append(made_up(named, error=error))
    browser.open(write(Found(Results(found)), tmp_path / "index.html"))
    say(browser, "Show", "error 4")
    for attack, best in (("worst", "krum"), ("clean", "fedavg")):
        heads = browser.run(f'[...document.querySelectorAll("{BOARD} thead th")].map(head => head.textContent)')
        head = f"{BOARD} thead th:nth-child({heads.index(attack) + 1}) button"
        browser.click(head)
        assert words(browser)[-1][0] == best
        browser.click(head)
        assert words(browser)[0][0] == best


def test_pictures_show_the_error_against_malicious_clients_with_its_spread(browser: Browser) -> None:
    say(browser, "Data sets and settings", "mnist")
    browser.wait("document.querySelectorAll('#survival .plot svg .curve').length")
    titles = browser.run("[...document.querySelectorAll('#survival h4')].map(one => one.textContent)")
    assert titles == ["scaling", "scaling: backdoor", "trim"]
    trim = "[...document.querySelectorAll('#survival .plot')][2]"
    assert browser.run(f"{trim}.querySelectorAll('.curve').length") == 4
    assert browser.run(f"{trim}.querySelectorAll('.dot').length") == 3 * len(COUNTS) + 2
    assert browser.run(f"{trim}.querySelectorAll('.bar').length") == 3 * len(COUNTS)  # two seeds; the strange rule has one
    labels = browser.run(f"[...{trim}.querySelectorAll('.axis')].map(one => one.textContent)")
    assert labels == ["malicious clients, of 20", "test error"]
    paths = browser.run("[...document.querySelectorAll('#survival .curve, #survival .dot')].map(one => one.getAttribute('d'))")
    assert all(path and "NaN" not in path for path in paths)


def test_a_click_shows_the_runs_behind_a_number(browser: Browser) -> None:
    browser.click(f"{BOARD} tbody tr:nth-child(3) td:nth-child(5) button")
    browser.wait("document.querySelectorAll('#panel .curve').length")
    panel = browser.run("document.querySelector('#panel').innerText")
    assert "mnist-5k · fedavg · trim · 2 of 20 malicious" in panel
    assert "Test error 0.352 ± 0.003 over 2 seeds." in panel
    assert "Without attack the same rule has error 0.062. Harm +0.290." in panel
    assert "fltrust run --dataset mnist-5k --rule fedavg --attack trim --malicious 2" in panel
    assert browser.run("document.querySelectorAll('#panel .plain tbody tr').length") == 2


def test_what_stands_in_no_table_is_listed_last(browser: Browser) -> None:
    sections = browser.run("[...document.querySelectorAll('main > section')].map(one => one.id)")
    assert sections == ["survival", "numbers", "leftovers"]
    text = browser.run("document.querySelector('#leftovers').innerText")
    assert f"runs/{HOSTILE}" in text
    assert "left out: too few" in text
    assert "This run is not finished" in text
    browser.click("#leftovers [data-cell]")
    browser.wait("document.querySelector('#panel').open")
    assert "runs/cut" in browser.run("document.querySelector('#panel h2').textContent")


def test_hostile_names_are_text(browser: Browser) -> None:
    browser.click("#numbers thead th:nth-child(1) button")
    assert HOSTILE[:30] in browser.run("document.querySelector('#numbers').textContent")
    assert HOSTILE in browser.run("document.querySelector('header').textContent")
    assert browser.run("document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_has_no_sideways_scroll_and_numbers_can_be_read(browser: Browser, page: Path, dark: bool) -> None:
    browser.dark(dark)
    browser.resize(390, 844)
    browser.open(page)
    browser.wait("document.documentElement.scrollWidth === 390")
    box = f'document.querySelector("{BOARD}")'
    browser.wait(f"{box}.classList.contains('goes-on') && !{box}.previousElementSibling.hidden")
    for view in ("survives", "error 4"):
        say(browser, "Show", view)
        contrasts = browser.contrasts("#survival [class*='harm-'] :is(b, small), #survival .heat-key[class*='harm-']", "[class*='harm-']")
        assert len(contrasts) > 10
        assert min(contrasts) >= 4.5  # WCAG AA


def test_2000_runs_are_a_small_page_that_filters(browser: Browser, tmp_path: Path) -> None:
    rules = ("fedavg", "krum", "multi-krum", "median", "trim-mean", "geometric-median", "dnc", "flame", "nnm+krum", "fltrust")
    attacks = ("none", "trim", "krum", "alie", "ipm", "min-max", "mimic", "sign-flip", "label-flip", "scaling")
    chance = random.Random(0)
    found = []
    for rule in rules:
        for attack in attacks:
            for many in (0, 2, 4, 6, 8):
                run = Experiment.on("mnist-5k", rule, attack, malicious=many)
                found += [made_up(run, error=chance.uniform(0.05, 0.9), seed=seed) for seed in range(4)]
    assert len(found) == 2000
    path = write(Found(Results(found)), tmp_path / "many.html")
    assert path.stat().st_size < 1_000_000
    browser.open(path)
    assert browser.run("document.documentElement.scrollHeight") < 5000
    assert browser.run("document.querySelectorAll('*').length") < 4000
    assert browser.run("document.querySelectorAll('#survival .plot').length") == 6
    browser.click("#survival .more")
    browser.wait("document.querySelectorAll('#survival .keys > span').length === 10")
    say(browser, "Rules", "krum")
    assert sorted(row[0] for row in words(browser)) == ["krum", "multi-krum", "nnm+krum"]
    assert "150 of 500 numbers" in browser.run("document.querySelector('#numbers').textContent")
    browser.click("#numbers .more")
    browser.wait("document.querySelectorAll('#numbers tbody tr').length === 150")
    assert browser.run("document.documentElement.scrollHeight") < 5000
