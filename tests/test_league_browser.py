"""The league in a real browser: it opens, sorts, filters, shows a cell's runs, and fits a phone."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from made_up import made_up

from fltrust.league import BOARDS, Column, cells
from fltrust.league.table import IMPOSSIBLE
from fltrust.paper import EXHIBITS
from fltrust.report.agreement import judge
from fltrust.report.page import reproduction_page
from fltrust.report.reading import Found
from fltrust.report.standings import Standings, whole_league
from fltrust.store.results import Results

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

ROW = "#league-0 tbody tr"


@pytest.fixture(scope="module")
def tables() -> Iterator[list[Standings]]:
    """MNIST-0.5 with two seeds of everything but Krum under the Krum attack; the Trim attack cannot be run on HAR."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(IMPOSSIBLE, ("har", "trim"), "a <b>reason</b>")
        found = []
        for cell in cells(BOARDS["mnist-0.5"]):
            assert cell.run
            if (cell.row.name, cell.column.name) != ("krum", "krum"):
                error = random.Random(cell.run.key).uniform(0.03, 0.9)
                found += [made_up(cell.run, error=error + 0.01 * seed, success=error / 2, seed=seed) for seed in (0, 1)]
        yield whole_league(Results(found))


@pytest.fixture(scope="module")
def page(tables: list[Standings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "index.html"
    found = Results(one for table in tables for one in table.results)
    judged = {exhibit: judge(exhibit, found) for exhibit in EXHIBITS.values()}
    path.write_text(reproduction_page(judged, Found(found), tables), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def opened(browser: Browser, page: Path) -> Iterator[None]:
    with browser.visit(page):
        yield


def place(tables: list[Standings], name: str) -> int:
    """The column of an attack's error on the page, counted from 1: four columns come before the attacks."""
    return [column.name for column in tables[0].columns].index(name) + 5


def test_the_best_rule_comes_first_and_every_cell_is_there(browser: Browser, tables: list[Standings]) -> None:
    rows = browser.run(f"[...document.querySelectorAll('{ROW}')].map(row => row.cells[0].firstChild.textContent)")
    assert rows == [one.row.label for one in tables[0].rows]
    assert rows[-1] == "Krum"  # it lacks an attack
    backdoors = sum(column.targeted for column in tables[0].columns)
    widths = browser.run(f"[...document.querySelectorAll('{ROW}')].map(row => row.cells.length)")
    assert set(widths) == {4 + len(tables[0].columns) + backdoors}
    krum = browser.run(f"[...document.querySelectorAll('{ROW}')].at(-1).cells[{place(tables, 'krum') - 1}].className")
    assert krum.split()[-1] == "not-run"
    assert browser.run(f"[...document.querySelectorAll('{ROW}')].at(-1).cells[1].textContent").startswith("≥")
    baselines = browser.run("[...document.querySelectorAll('#league-0 .is-baseline')].map(row => row.dataset.names)")
    assert any("fedavg" in names for names in baselines)


def test_columns_sort(browser: Browser, tables: list[Standings]) -> None:
    for column in (2, 3, 4, place(tables, "trim")):
        values = f"[...document.querySelectorAll('{ROW}')].map(row => Number(row.cells[{column - 1}].dataset.sort))"
        head = f"#league-0 thead tr:last-child th:nth-child({column}) button"
        browser.click(head)
        before = browser.run(values)
        assert before == sorted(before)
        browser.click(head)
        assert browser.run(values) == sorted(before, reverse=True)
        assert before[0] < before[-1]
    browser.click("#league-0 thead tr:last-child th:first-child button")
    assert browser.run(f"document.querySelector('{ROW}').cells[0].firstChild.textContent") == tables[0].rows[0].row.label


def write(browser: Browser, field: int, words: str) -> None:
    browser.write("#league input", words, field)


def test_rules_and_attacks_are_filtered_by_text(browser: Browser, tables: list[Standings]) -> None:
    rows = f"[...document.querySelectorAll('{ROW}')].filter(row => !row.hidden).map(row => row.cells[0].firstChild.textContent)"
    heads = "[...document.querySelectorAll('#league-0 .upright')].filter(head => !head.hidden).map(head => head.textContent)"
    groups = "[...document.querySelectorAll('#league-0 .groups th')].filter(one => !one.hidden).map(one => [one.textContent, one.colSpan])"
    everything = browser.run(rows), browser.run(heads), browser.run(groups)
    write(browser, 0, "KRUM, fedavg")
    expected = [one.row.label for one in tables[0].rows if "krum" in one.row.name or "fedavg" in one.row.name]
    assert browser.run(rows) == expected
    write(browser, 1, "scal,trim")
    assert browser.run(heads) == ["Trim", "Scaling", "Scaling"]
    assert browser.run(groups)[3:] == [["tailored to a rule", 1], ["targeted: error", 1], ["targeted: success", 1]]
    assert browser.run(f"[...document.querySelector('{ROW}').cells].filter(cell => !cell.hidden).length") == 7
    write(browser, 0, "nobody")
    assert browser.run("document.querySelector('#league .nothing').hidden") is False
    write(browser, 0, "")
    write(browser, 1, "")
    assert (browser.run(rows), browser.run(heads), browser.run(groups)) == everything
    assert browser.run("document.querySelector('#league .nothing').hidden") is True


def test_a_click_on_a_cell_shows_its_runs(browser: Browser, tables: list[Standings]) -> None:
    browser.click(f"{ROW}:first-child td:nth-child({place(tables, 'scaling')}) button")
    best = tables[0].rows[0].row
    assert browser.run("document.querySelector('#panel h2').textContent") == f"MNIST-0.5 · {best.label} · Scaling"
    text = browser.run("document.querySelector('#panel').innerText")
    assert "over 2 seeds" in text
    assert "Success 0." in text
    assert f"fltrust league --dataset mnist-0.5 --rule {best.name} --attack scaling --seeds 2" in text
    assert browser.run("document.querySelectorAll('#panel .plot svg .curve').length") > 2
    browser.key("Escape")
    browser.click(f"{ROW}:last-child td:nth-child({place(tables, 'krum')}) button")
    text = browser.run("document.querySelector('#panel').innerText")
    assert "Not run." in text
    assert "fltrust league --dataset mnist-0.5 --rule krum --attack krum" in text


def test_the_worst_number_opens_the_cell_that_it_comes_from(browser: Browser, tables: list[Standings]) -> None:
    worst = tables[0].rows[0].worst_error
    assert worst
    assert worst.place.cell.column.label in browser.run(f"document.querySelector('{ROW} .worst').textContent")
    browser.click(f"{ROW}:first-child .worst button")
    title = browser.run("document.querySelector('#panel h2').textContent")
    assert title.endswith(f"· {worst.place.cell.column.label}")


def test_what_is_left_out_says_why(browser: Browser, tables: list[Standings]) -> None:
    browser.click("#league-tab-2")
    cell = f"#league-2 tbody tr:first-child td:nth-child({place(tables, 'trim')})"
    assert browser.run(f"document.querySelector('{cell}').className") == "cell left-out"
    browser.click(f"{cell} button")
    assert "Left out: a <b>reason</b>." in browser.run("document.querySelector('#panel').innerText")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_the_table_scrolls_inside_itself_and_its_numbers_can_be_read(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.dark(dark)
    browser.resize(width, 844)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth") == width
    scroll = "document.querySelector('#league-0 .scroll')"
    browser.run(f"{scroll}.scrollIntoView({{behavior: 'instant'}}); {scroll}.scrollTo(300, 120)")
    corner = browser.run(
        f"(() => {{ const edge = (one) => one.getBoundingClientRect(); const box = edge({scroll}); "
        "const head = edge(document.querySelector('#league-0 thead th')); "
        "const rule = edge(document.querySelectorAll('#league-0 tbody th')[6]); "
        "return [head.top - box.top, rule.left - box.left]; })()"
    )
    assert all(abs(offset) <= 2 for offset in corner)  # head and first column stay
    contrasts = browser.contrasts("#league-0 .cell b, #league-0 .cell small", "td")
    assert len(contrasts) >= 6
    assert min(contrasts) >= 4.5  # WCAG AA


def test_columns_have_the_names_of_the_attacks(browser: Browser, tables: list[Standings]) -> None:
    heads = browser.run("[...document.querySelectorAll('#league-0 .upright')].map(head => head.textContent)")
    columns: tuple[Column, ...] = tables[0].columns
    assert heads == [column.label for column in columns] + [column.label for column in columns if column.targeted]
