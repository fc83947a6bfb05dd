"""The report's page in a real browser: it loads, sorts, draws, opens its panel, fits a phone, and runs nothing that a file smuggles in."""

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from made_up import made_up

from fltrust.paper import EXHIBITS
from fltrust.report.agreement import judge
from fltrust.report.page import reproduction_page, runs_page
from fltrust.report.reading import Found
from fltrust.store.results import Result, Results

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

HOSTILE = "</script></title><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'&lt;b&gt;\ud800"
TRIM = "[aria-label='Table III: error of five rules under every attack, MNIST-0.5'] tbody tr:nth-child(4) td:nth-child(6) button"


def write(page: str, path: Path) -> Path:
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def reproduction(results: list[Result]) -> str:
    found = Results(results)
    return reproduction_page({exhibit: judge(exhibit, found) for exhibit in EXHIBITS.values()}, Found(found))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of MNIST-0.5, two seeds in the methods table, one run in two arithmetics, one run that is in no table; a hostile machine."""
    results: dict[str, Result] = {}
    for exhibit in EXHIBITS.values():
        for cell in exhibit.cells:
            if cell.run.dataset != "mnist-0.5":
                continue
            error = (cell.paper.error if cell.paper else 0.2) + random.Random(cell.run.key).choice((0.0, 0.01, 0.2)) * 0.4
            for seed in (0, 1) if exhibit.name == "methods" else (0,):
                result = made_up(cell.run, error=error + 0.002 * seed, seed=seed, hardware=f"seen {HOSTILE}")
                results.setdefault(result.run.key, result)
    first = next(iter(results.values())).run
    results["half"] = made_up(dataclasses.replace(first, precision="float16"), error=0.3, versions={HOSTILE: HOSTILE}, warnings=[HOSTILE])
    results["other"] = made_up(dataclasses.replace(first, rounds=400), error=0.4, files={HOSTILE: 1})
    return write(reproduction(list(results.values())), tmp_path_factory.mktemp("page") / "index.html")


@pytest.fixture(autouse=True)
def opened(browser: Browser, page: Path) -> Iterator[None]:
    with browser.visit(page):
        yield


def test_the_page_is_one_file_and_every_section_is_there(browser: Browser, page: Path) -> None:
    assert browser.requests[0] == page.as_uri()
    assert [url for url in browser.requests[1:] if not url.startswith("data:")] == []
    sections = browser.run("[...document.querySelectorAll('main > section')].map(one => one.id)")
    assert sections == ["trust", *EXHIBITS, "arithmetic", "others"]
    links = browser.run("[...document.querySelectorAll('nav a')].map(one => one.hash.slice(1))")
    assert links == sections
    for exhibit in EXHIBITS.values():
        assert exhibit.claim in browser.run(f"document.getElementById('{exhibit.name}').querySelector('.claim').textContent")


def test_cells_show_ours_the_papers_the_difference_and_the_seeds(browser: Browser) -> None:
    text = browser.run(f"document.querySelector({TRIM!r}).innerText")
    verdict = browser.run(f"document.querySelector({TRIM!r}).parentElement.className")
    mark = {"cell agrees": "✓", "cell differs": "≠"}[verdict]
    assert mark in text
    assert "± 0.001" in text
    assert "n = 2" in text
    assert "paper 0.06, " in text
    missing = browser.run("document.querySelector('#methods-5 td.cell').textContent")
    assert missing.startswith("not run: no data here")


def test_tabs_show_one_data_set_at_a_time(browser: Browser) -> None:
    shown = "[...document.querySelectorAll('#methods [role=tabpanel]')].filter(one => !one.hidden).map(one => one.id)"
    assert browser.run(shown) == ["methods-1"]  # the first with a result
    browser.click("#methods-tab-4")
    assert browser.run(shown) == ["methods-4"]
    assert browser.run("document.querySelector('#methods [aria-selected=true]').textContent") == "HAR"


def test_tables_sort(browser: Browser) -> None:
    values = "[...document.querySelectorAll('#methods-1 tbody tr')].map(row => Number(row.cells[3].dataset.sort))"
    before = browser.run(values)
    head = "#methods-1 thead th:nth-child(4) button"
    browser.click(head)
    assert before != sorted(before)
    assert browser.run(values) == sorted(before)
    browser.click(head)
    assert browser.run(values) == sorted(before, reverse=True)
    browser.click("#methods-1 thead th:first-child button")
    assert browser.run(values) == before


@pytest.mark.parametrize("figure", [name for name, exhibit in EXHIBITS.items() if exhibit.kind != "table"])
def test_figures_draw_their_points(browser: Browser, figure: str) -> None:
    browser.wait(f"document.querySelectorAll('#{figure} .plot svg .curve').length")
    paths = browser.run(f"[...document.querySelectorAll('#{figure} .plot .curve, #{figure} .plot .dot')].map(one => one.getAttribute('d'))")
    assert all(path and "NaN" not in path and "Infinity" not in path for path in paths)
    dots = browser.run(f"document.querySelectorAll('#{figure} .plot .dot').length")
    cells = [cell for cell in EXHIBITS[figure].cells if cell.run.dataset == "mnist-0.5"]
    backdoors = [cell for cell in cells if type(cell.run.attack).__name__ == "Scaling"]
    assert dots == (0 if EXHIBITS[figure].kind == "curves" else len(cells) + len(backdoors))


def test_the_first_pictures_are_of_trust(browser: Browser) -> None:
    titles = browser.run("[...document.querySelectorAll('#trust h4')].map(one => one.textContent.split(':')[0])")
    assert titles == ["Trim attack", "Scaling attack", "Exact adaptive"]
    browser.wait("document.querySelectorAll('#trust .pixels').length === 6")


def test_a_link_leads_to_its_section(browser: Browser) -> None:
    browser.click("nav a[href='#adaptive']")
    browser.wait("Math.abs(document.getElementById('adaptive').getBoundingClientRect().top - 64) < 2")
    browser.wait("document.querySelector('nav a.here').hash === '#adaptive'")


def test_a_curve_can_be_hidden_and_a_point_opened(browser: Browser) -> None:
    browser.wait("document.querySelectorAll('#adaptive .dot').length")
    dots = browser.run("document.querySelectorAll('#adaptive .dot').length")
    browser.click("#adaptive .toggles button")
    browser.wait(f"document.querySelectorAll('#adaptive .dot').length === {dots // 2}")
    browser.click("#adaptive .dot.opens")
    assert browser.run("document.querySelector('#panel h2').textContent") == "MNIST-0.5 · malicious clients, % 0 · Exact adaptive"


def test_a_click_on_a_cell_opens_its_runs(browser: Browser) -> None:
    browser.click(TRIM)
    browser.wait("document.querySelectorAll('#panel .curve').length")
    panel = browser.run("document.querySelector('#panel').innerText")
    assert "MNIST-0.5 · Trim attack · FLTrust" in panel
    assert "over 2 seeds; the paper prints 0.06." in panel
    assert "fltrust run --dataset mnist-0.5 --rule fltrust --attack trim --evaluate-every 80" in panel
    assert "fltrust reproduce methods --dataset mnist-0.5 --rule fltrust --attack trim --seeds 2" in panel
    assert "torch 2.13.0" in panel
    assert browser.run("document.querySelectorAll('#panel .plain tbody tr').length") == 2
    titles = browser.run("[...document.querySelectorAll('#panel h4')].map(one => one.textContent)")
    assert titles == ["Error over the rounds", "Trust in each client", "Mean trust"]
    browser.key("Escape")
    assert browser.run("document.querySelector('#panel').open") is False


def test_the_trust_picture_shows_the_malicious_above_and_rejected(browser: Browser) -> None:
    browser.click(TRIM)
    browser.wait("document.querySelectorAll('#panel .pixels').length === 2")
    labels = browser.run("[...document.querySelectorAll('#panel .trust .axis')].map(one => one.textContent)")
    assert labels == ["20 malicious", "80 honest", "round"]
    heights = browser.run("[...document.querySelectorAll('#panel .pixels')].map(one => one.getBoundingClientRect().top)")
    divider = browser.run("document.querySelector('#panel .divider').getBoundingClientRect().top")
    assert heights[0] < divider < heights[1]
    rejected = """Promise.all([...document.querySelectorAll('#panel .pixels')].map(async (picture) => {
      const image = new Image();
      image.src = picture.getAttribute('href');
      await image.decode();
      const canvas = document.createElement('canvas');
      [canvas.width, canvas.height] = [image.width, image.height];
      canvas.getContext('2d').drawImage(image, 0, 0);
      const data = canvas.getContext('2d').getImageData(0, 0, image.width, image.height).data;
      let orange = 0;
      for (let i = 0; i < data.length; i += 4) orange += data[i] > data[i + 2];
      return [image.height, orange / (data.length / 4)];
    }))"""
    (many, malicious), (others, honest) = browser.run(rejected)
    assert (many, others) == (20, 80)
    assert malicious > 0.8
    assert honest < 0.05


def test_the_mouse_asks_a_picture(browser: Browser) -> None:
    browser.click(TRIM)
    browser.wait("document.querySelectorAll('#panel .pixels').length === 2")
    browser.hover("#panel .pixels")
    assert "malicious client" in browser.run("document.querySelector('#panel .trust .tip').innerText")
    browser.hover("#panel .plot svg")
    assert "seed 1" in browser.run("document.querySelector('#panel .plot .tip').innerText")


def test_the_mouse_asks_a_figure(browser: Browser) -> None:
    browser.hover("#adaptive .plot:has(.curve) svg")
    assert "n = " in browser.run("document.querySelector('#adaptive .plot:has(.curve) .tip').innerText")
    assert "n = 2 (4 cells), 1 (12 cells) seeds" in browser.run("document.querySelector('#adaptive .note').textContent")


def test_a_backdoor_has_a_curve_of_its_own(browser: Browser) -> None:
    browser.click(TRIM.replace("nth-child(4)", "nth-child(5)"))
    browser.wait("[...document.querySelectorAll('#panel h4')].some(one => one.textContent === 'Success of the backdoor')")


def test_what_was_not_run_says_how_to_run_it(browser: Browser) -> None:
    browser.click("#methods-tab-4")
    browser.click("#methods-4 tbody tr:nth-child(4) td:nth-child(6) button")
    panel = browser.run("document.querySelector('#panel').innerText")
    assert "Not run. The paper prints 0.05." in panel
    assert "fltrust reproduce methods --dataset har --rule fltrust --attack trim" in panel


def test_arithmetics_are_compared(browser: Browser) -> None:
    rows = browser.run("[...document.querySelectorAll('#arithmetic tbody tr')].map(row => row.innerText)")
    assert len(rows) == 1
    assert "float32" in rows[0]
    assert "float16" in rows[0]


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_has_no_sideways_scroll(browser: Browser, page: Path, dark: bool) -> None:
    browser.dark(dark)
    browser.resize(390, 844)
    browser.open(page)
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.wait("document.querySelectorAll('#adaptive .curve').length")
    browser.wait("document.documentElement.scrollWidth === 390")
    browser.click(TRIM)
    browser.wait("document.querySelectorAll('#panel .pixels').length")
    panel = browser.run("[document.querySelector('#panel').scrollWidth, document.querySelector('#panel').getBoundingClientRect().width]")
    assert panel[0] <= panel[1] <= 390
    small = browser.run(
        "Math.min(...[...document.querySelectorAll('td, th, p, a, .tick')].map(one => parseFloat(getComputedStyle(one).fontSize)))"
    )
    assert small >= 11
    browser.dark(False)


def test_hostile_text_is_shown_and_not_run(browser: Browser) -> None:
    for selector in (TRIM, "#arithmetic [data-cell]", "#others [data-cell]"):
        browser.click(selector)
        browser.wait("document.querySelectorAll('#panel .curve').length")
        assert "<script>window.hacked = 1</script>" in browser.run("document.querySelector('#panel').textContent")
        browser.key("Escape")
    assert "<script>window.hacked = 1</script>" in browser.run("document.querySelector('header').textContent")
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("typeof window.hacked") == "undefined"


def test_a_script_that_is_not_the_pages_own_is_refused(browser: Browser) -> None:
    browser.run("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))")
    assert browser.run("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in error for error in browser.errors)
    browser.errors.clear()


def test_a_run_that_is_alone_is_shown_in_full_also_if_unfinished(browser: Browser, tmp_path: Path) -> None:
    run = next(cell.run for cell in EXHIBITS["methods"].cells if cell.row == "Scaling attack" and cell.column == "FLTrust")
    whole = made_up(run, hardware=HOSTILE)
    cut = 10
    unfinished = dataclasses.replace(
        whole,
        rounds=whole.rounds[:cut],
        train_error=whole.train_error[:cut],
        test_error=whole.test_error[:cut],
        success=(whole.success or ())[:cut],
        seconds=None,
    )
    browser.open(write(runs_page(Found(unfinished=[(Path("one"), unfinished)]), [], 0.05), tmp_path / "runs.html"))
    browser.wait("document.querySelectorAll('#run .pixels').length === 2")
    assert browser.run("document.querySelectorAll('#run .curve').length") == 5  # test, training, backdoor, trust of two
    assert "This run is not finished: it will have 2,000 rounds." in browser.run("document.querySelector('#run').innerText")
    assert browser.run("document.querySelectorAll('main > section').length") == 1
    browser.resize(390, 844)
    browser.wait("document.documentElement.scrollWidth === 390")
    assert browser.run("typeof window.hacked") == "undefined"


def test_wide_tables_say_that_they_scroll_and_table_four_does_not_need_to(browser: Browser, page: Path) -> None:
    browser.resize(1400, 900)
    browser.open(page)
    box = "document.querySelector('#variants .scroll')"
    browser.wait(f"{box}.scrollWidth <= {box}.clientWidth")
    assert browser.run(f"{box}.previousElementSibling.hidden") is True
    browser.resize(390, 844)
    browser.wait(f"!{box}.previousElementSibling.hidden && {box}.classList.contains('goes-on')")
    assert "Scroll the table sideways" in browser.run(f"{box}.previousElementSibling.textContent")
    browser.run(f"{box}.scrollTo(10000, 0)")
    browser.wait(f"!{box}.classList.contains('goes-on')")


def test_the_whole_paper_with_two_seeds_opens(browser: Browser, tmp_path: Path) -> None:
    runs = {cell.run.key: cell.run for exhibit in EXHIBITS.values() for cell in exhibit.cells if cell.run.dataset != "ch-mnist"}
    results = [made_up(run, seed=seed) for run in runs.values() for seed in (0, 1)]
    assert len(results) > 1500
    path = write(reproduction(results), tmp_path / "whole.html")
    assert path.stat().st_size < 4_000_000
    browser.open(path)
    browser.wait("document.querySelectorAll('#malicious .dot').length > 200")
    browser.click("#methods-tab-1")
    browser.click(TRIM)
    browser.wait("document.querySelectorAll('#panel .pixels').length === 2")
