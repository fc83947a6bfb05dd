"""The live page in a real browser: it goes on by itself, announces alarms, and runs nothing that a node smuggles in."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import MOST_SECONDS

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from browser import CHROMIUM, Browser
from watched import PROGRAM, append, declare, ids, name_nodes, record, watching, write_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

HOSTILE = "<img src=x onerror=window.hacked=1>"
TEXT = "document.body.innerText"


@pytest.fixture(autouse=True)
def as_on_a_desk(browser: Browser) -> Iterator[None]:
    browser.resize(1280, 900)
    browser.dark(False)
    yield
    browser.open("data:text/html,<html class=drawn>")  # lets go of the stream


def text(browser: Browser, selector: str) -> str:
    return str(browser.run(f"document.querySelector({json.dumps(selector)}).innerText"))


def rows(browser: Browser) -> list[str]:
    found: list[str] = browser.run("[...document.querySelectorAll('#rows tr[data-node] th button')].map((one) => one.innerText)")
    return found


def test_a_finished_federation(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    name_nodes(run, [f"hospital-{letter}" for letter in "abcdefghij"])
    with watching(run) as url:
        browser.open(url)
        assert "healthy" in text(browser, "#health")
        assert "look hostile" in text(browser, "#headline")
        assert "Round 12" in text(browser, "#facts")
        assert "6 of 10 used" in text(browser, "#facts")
        assert "hospital-a since round 4, 2026-03-02 08:32:40 UTC" in text(browser, "#suspects")
        assert len(rows(browser)) == 10
        assert rows(browser)[0] in {f"hospital-{letter}" for letter in "abcd"}  # the worst first
        assert browser.run("document.querySelectorAll('#plot-error .curve').length") == 1
        browser.wait("document.querySelectorAll('#plot-nodes .curve').length == 4")
        browser.wait("[...document.querySelectorAll('#plot-nodes .curve')].every((one) => one.getAttribute('d'))")
        assert browser.run("[...document.querySelectorAll('#plot-replies .area')].map((one) => one.classList[1])") == [
            "used",
            "zero-trust",
            "rejected",
        ]
        assert browser.errors == []
        assert {"http:"} == {request.split("/")[0] for request in browser.requests}
        assert all(request.startswith(url) for request in browser.requests)


def test_a_simulation_says_who_is_malicious(browser: Browser, tmp_path: Path) -> None:
    settings = ["--dataset", "mnist-5k", "--rounds", "2", "--evaluate-every", "1", "--batch-size", "4", "--device", "cpu"]
    command = [*PROGRAM, "run", *settings, "--attack", "label-flip", "--out", str(tmp_path / "run")]
    subprocess.run(command, check=True, capture_output=True, timeout=MOST_SECONDS, env={**os.environ})
    with watching(tmp_path / "run") as url:
        browser.open(url)
        assert "Round 2" in text(browser, "#facts")
        assert "the run is finished" in text(browser, "#facts")
        assert browser.run("document.querySelectorAll('.truth').length") == len(rows(browser)) > 0
        assert browser.errors == []


def test_a_round_appears_and_an_alarm_is_announced(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=3, hostile=0)
    with watching(run) as url:
        browser.open(url)
        browser.run("window.same = true")
        assert text(browser, "#suspects") == "Nobody so far."
        assert browser.run("document.querySelector('#announce').textContent") == ""
        alarm = {"kind": "one-node-dominates", "text": "one node has 0.61 of the shares", "nodes": ids(1)}
        append(run, record(4, 10, 0, alarms=[alarm]))
        browser.wait("document.querySelector('#announce').textContent.includes('Round 4: one node has 0.61 of the shares')")
        assert "in trouble" in text(browser, "#health")
        assert "One node has 0.61 of the shares" in text(browser, "#health")
        assert "one-node-dominates" in text(browser, "#alarms")
        append(run, *(record(t, 10, 2, since=5) for t in range(5, 13)))  # two nodes turn hostile
        browser.wait("document.querySelectorAll('#suspects .badge.hostile').length == 2")
        assert f"{ids(1)[0]} looks hostile" in browser.run("document.querySelector('#announce').textContent")
        assert "since round 5" in text(browser, "#suspects")
        assert browser.run("window.same")  # it was never loaded again
        assert browser.run("document.querySelector('#announce').getAttribute('aria-live')") == "assertive"
        assert browser.errors == []


def test_text_from_nodes_is_only_text(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=5, since=1)
    name_nodes(run, [HOSTILE, "</td></tr></table><script>window.hacked=1</script>", "&lt;b&gt;", "javascript:window.hacked=1"])
    append(run, {**record(6, 10, 4, kept=HOSTILE), "alarms": [{"kind": HOSTILE, "text": HOSTILE, "nodes": ids(4)}]})
    with watching(run) as url:
        browser.open(url)
        shown = str(browser.run(TEXT))
        assert shown.count(HOSTILE) >= 4  # suspects, alarms, curves, nodes
        assert "&lt;b&gt;" in shown
        browser.run("document.querySelectorAll('#rows th button').forEach((one) => one.click())")
        browser.run("document.querySelector('#plot-nodes svg').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))")
        browser.wait("document.querySelector('#plot-nodes .tip').innerText.includes('<img')")
        assert browser.run("document.querySelectorAll('main img, main script, main b b').length") == 0
        assert browser.run("window.hacked") is None
        assert browser.errors == []
        assert all(request.startswith(url) for request in browser.requests)


def test_large_rounds_have_few_ticks(browser: Browser, tmp_path: Path) -> None:
    run = tmp_path / "run"
    declare(run)
    append(run, record(10**9, 5, 0), record(10**9 + 2, 5, 0))
    ticks = "[...document.querySelectorAll('#plot-error .tick[text-anchor=middle]')].map((one) => one.textContent)"
    with watching(run) as url:
        browser.open(url)
        assert browser.run(ticks) == ["1,000,000,000", "1,000,000,001", "1,000,000,002"]
        append(run, record(3, 5, 0) | {"round": 2**53 - 2})
        browser.wait(f"!({ticks}).includes('1,000,000,001')")
        assert 1 < len(browser.run(ticks)) < 10
        assert browser.errors == []


def test_a_run_that_is_not_there_yet_and_one_that_is_removed(browser: Browser, tmp_path: Path) -> None:
    run = tmp_path / "later"
    with watching(run) as url:
        browser.open(url)
        assert "waiting" in text(browser, "#health")
        assert str(run) in text(browser, "#problem")
        assert browser.run("document.querySelector('main').hidden")
        declare(run)
        append(run, record(1, 5, 0))
        browser.wait("!document.querySelector('main').hidden && document.querySelector('#problem').hidden")
        assert len(rows(browser)) == 5
        (run / "records.jsonl").unlink()
        browser.wait("!document.querySelector('#problem').hidden")
        assert "What follows was read before." in text(browser, "#problem")
        assert len(rows(browser)) == 5
        append(run, record(1, 5, 0), record(2, 5, 0))
        browser.wait("document.querySelector('#problem').hidden && document.querySelector('#round').innerText == 'Round 2'")
        assert browser.errors == []


def test_many_nodes_are_found_filtered_and_turned_over(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", nodes=120, rounds=6, hostile=8, since=1)
    name_nodes(run, [f"node-{i:03}" for i in range(120)])
    with watching(run) as url:
        browser.open(url)
        assert len(rows(browser)) == 25
        assert text(browser, "#which") == "1 to 25 of 120"
        browser.click("#after")
        assert text(browser, "#which") == "26 to 50 of 120"
        browser.run("document.querySelector('#find').focus()")
        browser.call("Input.insertText", text="node-11")
        assert rows(browser) == [f"node-11{i}" for i in range(10)]
        browser.run("document.querySelector('#find').select()")
        browser.call("Input.insertText", text="nobody")
        assert text(browser, "#which") == "No such node"
        browser.run("document.querySelector('#find').select()")
        browser.call("Input.insertText", text=" ")
        browser.click("#filters button:nth-child(2)")
        hostile = rows(browser)
        assert 0 < len(hostile) <= 8
        browser.click("#suspects li button")  # opens its row
        browser.wait("document.activeElement.getAttribute('aria-expanded') == 'true'")
        assert "Since round 1, 2026-03-02 08:30:40 UTC." in text(browser, "#rows .detail")
        opened = browser.run("document.activeElement.innerText")
        append(run, record(7, 120, 8, since=1))
        browser.wait("document.querySelector('#round').innerText == 'Round 7'")
        assert browser.run("document.activeElement.innerText") == opened  # the focus stays where it was
        browser.click("#rows tr[data-node]:not(:has(input:checked)) input")
        browser.wait("document.querySelectorAll('#plot-nodes .curve').length == 5")
        browser.click("[data-curve=share]")
        assert "Share of the chosen nodes" in text(browser, "#plot-nodes")
        assert browser.errors == []


def test_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=6, since=1)
    with watching(run) as url:
        browser.open(url)
        passed = []
        for _ in range(40):
            browser.key("Tab")
            passed.append(
                browser.run("(document.activeElement.id || document.activeElement.innerText || document.activeElement.className)")
            )
            outline = browser.run("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", passed[-1]
            if browser.run("document.activeElement.dataset.control == 'name'"):
                break
        assert passed[0] == "Skip to the nodes"
        assert "find" in passed
        browser.key("Enter")
        browser.wait("document.querySelector('#rows .detail')")
        assert browser.run("document.activeElement.getAttribute('aria-expanded')") == "true"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_fits_and_can_be_read(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    run = write_run(tmp_path / "run", rounds=60, since=20)
    name_nodes(run, ["a-name-without-any-place-to-break-it-which-is-fifty-long", "W" * 60])
    with watching(run) as url:
        browser.resize(width, 800)
        browser.dark(dark)
        browser.open(url)
        browser.run("document.querySelector('#rows th button').click()")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(CONTRAST) >= 4.5
        assert browser.errors == []


# The least contrast of a text with what it stands on, among the parts that matter.
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (ground, colour) => {
    canvas.globalCompositeOperation = "source-over";
    canvas.fillStyle = `rgb(${ground.join(",")})`;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((one) => one / 255).map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (element) => {
    const above = [];
    for (let one = element; one; one = one.parentElement) above.unshift(getComputedStyle(one).backgroundColor);
    const ground = above.reduce(over, [255, 255, 255]);
    const [low, high] = [light(ground), light(over(ground, getComputedStyle(element).color))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const parts = "h1, .level, .lede, .badge, .why, .fact small, .strip span, .evidence, #rows button, .keys span, .choice button";
  return Math.min(...[...document.querySelectorAll(parts)].map(ratio));
})()"""


def test_a_real_federation_with_hostile_nodes_while_it_runs(browser: Browser, tmp_path: Path) -> None:
    """Ten seconds a round; most of it is Flower's: each node starts a process in each round."""
    pytest.importorskip("flwr")
    from flower_processes import Federation, new_app

    app = new_app(tmp_path / "app")
    with Federation(tmp_path / "here", 5) as federation, watching(federation.folder / "watched") as url:
        browser.open(url)
        assert "waiting" in text(browser, "#health")
        with federation.start_run(app, nodes=5, rounds=4, malicious=2, hostile="nan trim", directory="watched") as running:
            try:
                for t in range(1, 5):
                    shown = f"document.querySelector('#round').innerText == 'Round {t}'"
                    federation.wait(lambda shown=shown: browser.run(shown), f"round {t} is not shown", "link")
            finally:
                running.kill()
        suspects = "[...document.querySelectorAll('#suspects li')].map((one) => one.innerText)"
        found = browser.run(suspects)
        blamed = {node for node in federation.ids if any(str(node) in one for one in found)}
        assert federation.ids[0] in blamed
        assert blamed <= set(federation.ids[:2])  # no honest node
        assert all("since round" in one for one in found)
        assert "look" in browser.run("document.querySelector('#announce').textContent")
        assert browser.errors == []
