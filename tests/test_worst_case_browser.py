"""The worst-case table in a real browser: it stands on the first screen, sorts, names its attacks, opens runs, and fits a phone."""

import random
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from made_up import made_up

from fltrust.league.worst_case import asked
from fltrust.paper import EXHIBITS
from fltrust.report.agreement import judge
from fltrust.report.page import reproduction_page
from fltrust.report.reading import Found
from fltrust.report.worst_case import WorstCases, worst_cases
from fltrust.store.results import Results

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

ROW = "#worst-case-0 tbody tr:not(.group)"


@pytest.fixture(scope="module")
def tables() -> list[WorstCases]:
    """MNIST-0.5 with two seeds of everything but Krum at 20 %, and one cell of HAR."""
    found = Results()
    questions = asked()
    for cell in questions[0].cells:
        for run in cell.runs if (cell.row.name, cell.share) != ("krum", 20) else ():
            error = random.Random(run.key).uniform(0.03, 0.9) if cell.share else 0.05
            for seed in (0, 1):
                found.add(made_up(run, error=error + 0.01 * seed, seed=seed))
    found.add(made_up(questions[1].cells[1].runs[0], error=0.2))
    return worst_cases(questions, found)


@pytest.fixture(scope="module")
def page(tables: list[WorstCases], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "index.html"
    found = Results(one for table in tables for one in table.results)
    judged = {exhibit: judge(exhibit, found) for exhibit in EXHIBITS.values()}
    path.write_text(reproduction_page(judged, Found(found), worst=tables), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def opened(browser: Browser, page: Path) -> Iterator[None]:
    browser.dark(False)
    browser.resize(1280, 900)
    browser.open(page)
    yield
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("data:", "file:"))] == []


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_it_stands_on_the_first_screen(browser: Browser, page: Path, width: int, height: int) -> None:
    browser.resize(width, height)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth") == width
    third = f"document.querySelectorAll('{ROW}')[2].getBoundingClientRect().bottom"
    assert browser.run(third) < height
    assert "lower bound" in browser.run("document.querySelector('#worst-case').innerText")


def test_a_phone_shows_the_column_that_decides_and_says_that_there_are_more(browser: Browser, page: Path) -> None:
    browser.resize(400, 844)
    browser.open(page)
    box = "document.querySelector('#worst-case-0 .scroll')"
    browser.wait(f"{box}.previousElementSibling.hidden === false")
    assert "Scroll the table sideways" in browser.run(f"{box}.previousElementSibling.textContent")
    right = browser.run(f"document.querySelector('{ROW} td:nth-child(4)').getBoundingClientRect().right")
    assert right < browser.run(f"{box}.getBoundingClientRect().right")


def test_the_best_rule_at_a_fifth_comes_first(browser: Browser, tables: list[WorstCases]) -> None:
    rows = browser.run(f"[...document.querySelectorAll('{ROW}')].map(row => row.cells[0].textContent)")
    assert rows == [one.row.label for one in tables[0].rows]
    assert rows[-1] == "Krum"  # not searched there
    fifth = browser.run(f"[...document.querySelectorAll('{ROW}')].slice(0, -1).map(row => Number(row.cells[3].dataset.sort))")
    assert fifth == sorted(fifth)
    cells = browser.run(f"[...document.querySelectorAll('{ROW}')].map(row => row.cells[3].textContent)")
    assert all("Searched: " in cell and "± 0.007" in cell and "2 runs" in cell for cell in cells[:-1])
    assert cells[-1] == "not run"
    levels = browser.run(f"[...document.querySelectorAll('{ROW}')].map(row => row.cells[3].className.split(' ').at(-1))")
    assert levels[-1] == "not-run"
    assert levels[:-1] == sorted(levels[:-1])  # all rules have the same error without attack, so colours follow the numbers
    assert len(set(levels)) > 3


def test_columns_sort(browser: Browser, tables: list[WorstCases]) -> None:
    head = "#worst-case-0 thead th:nth-child(5) button"
    browser.click(head)
    values = browser.run(f"[...document.querySelectorAll('{ROW}')].map(row => row.cells[4].dataset.sort ?? null)")
    last = browser.run(f"[...document.querySelectorAll('{ROW}')].at(-1).cells[0].textContent")
    assert last == "Krum"  # each group is sorted by itself
    values.pop()
    numbers = [float(value) for value in values if value is not None]
    assert numbers == sorted(numbers)
    assert values[len(numbers) :] == [None] * (len(values) - len(numbers))  # those that cannot run come last


def test_a_click_shows_the_runs(browser: Browser, tables: list[WorstCases]) -> None:
    best = tables[0].rows[0]
    browser.click(f"{ROW}:nth-child(2) td:nth-child(4) button")
    assert browser.run("document.querySelector('#panel h2').textContent") == f"MNIST-0.5 · {best.row.label} · 20 % malicious"
    text = browser.run("document.querySelector('#panel').innerText")
    assert "over 2 seeds" in text
    assert "Of 3 attacks, the next are: Searched: " in text
    assert f"fltrust worst-case --dataset mnist-0.5 --rule {shlex.quote(best.row.name)} --share 20 --seeds 2" in text


def test_what_cannot_run_says_why(browser: Browser, tables: list[WorstCases]) -> None:
    row = next(i for i, one in enumerate(tables[0].rows) if one.row.name == "trim-mean") + 2  # below the heading
    cell = f"{ROW}:nth-child({row}) td:nth-child(6)"
    assert browser.run(f"document.querySelector('{cell}').textContent") == "cannot run"
    browser.click(f"{cell} button")
    assert "Cannot run: a trimmed mean cannot trim 60 from each side of 100" in browser.run("document.querySelector('#panel').innerText")


def test_data_without_runs_have_no_tab(browser: Browser) -> None:
    tabs = browser.run("[...document.querySelectorAll('#worst-case [role=tab]')].map(tab => tab.firstChild.textContent)")
    assert tabs == ["MNIST-0.5", "HAR"]


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_can_be_read(browser: Browser, page: Path, dark: bool) -> None:
    browser.dark(dark)
    browser.open(page)
    contrasts = browser.run(CONTRASTS)
    assert len(contrasts) > 100
    assert min(contrasts) >= 4.5  # WCAG AA


CONTRASTS = """[...document.querySelectorAll('#worst-case-0 .cell b, #worst-case-0 .cell small')].map((words) => {
  const linear = (one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((one) => linear(one / 255))
    .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
  const [ink, ground] = [light(getComputedStyle(words).color), light(getComputedStyle(words.closest('td')).backgroundColor)];
  return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
})"""
