"""The live page in Chromium: what an update costs the browser, how soon a round appears, and the picture in docs/.

PYTHONPATH=tests .venv/bin/python bench/watch.py              # 1,000 nodes x 1,000 rounds, and ten nodes
PYTHONPATH=tests .venv/bin/python bench/watch.py --federation # also a real federation of five nodes; about a minute
PYTHONPATH=tests .venv/bin/python bench/watch.py --picture docs/watch.png
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from browser import Browser
from PIL import Image
from watched import append, name_nodes, record, watching, write_run

UPDATES = 20
# When the page showed a round, and when the nodes with what is said of them. Whoever waits is told: asking again and again is work, too.
SPY = """{
  let [round, nodes, done] = [0, 0, () => {}];
  const look = (id, change) => new MutationObserver(() => { change(); if (round && nodes) done([round, nodes]); })
    .observe(document.getElementById(id), { childList: true, characterData: true, subtree: true });
  look("round", () => (round ||= Date.now()));
  look("rows", () => (nodes = round && Date.now()));
  window.next = () => new Promise((then) => {
    done = (both) => { [round, nodes] = [0, 0]; then(both); };
    if (round && nodes) done([round, nodes]);
  });
}"""
TASKS = "performance.getEntriesByName('update').map((one) => one.duration)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--federation", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder) / "profile") as browser:
        if asked.picture:
            picture(browser, Path(folder), asked.picture)
            return
        for nodes, rounds in ((10, 12), (1000, 1000)):
            measure(browser, Path(folder), nodes, rounds)
        if asked.federation:
            federation(browser, Path(folder))


def measure(browser: Browser, folder: Path, nodes: int, rounds: int) -> None:
    hostile, since = nodes * 2 // 5, rounds // 3
    run = write_run(folder / f"run-{nodes}", nodes=nodes, rounds=rounds, hostile=hostile, since=since)
    with watching(run) as url:
        browser.open(url)
        (first,) = browser.run(TASKS)
        browser.run(SPY)
        before = metrics(browser)
        later = []
        for t in range(rounds + 1, rounds + UPDATES + 1):
            append(run, record(t, nodes, hostile, since=since))
            later.append(appeared(browser, run))
        after = metrics(browser)
        drawings = browser.run(TASKS)[1:]
    script, all_work = (1000 * (after[name] - before[name]) / UPDATES for name in ("ScriptDuration", "TaskDuration"))
    print(f"{nodes} nodes x {rounds} rounds: {first:.0f} ms to draw it first; {sum(drawings) / UPDATES:.0f} ms to draw one more round")
    print(f"  all script of a round {script:.0f} ms, with layout and painting {all_work:.0f} ms")
    say(later)


def metrics(browser: Browser) -> dict[str, float]:
    browser.call("Performance.enable")
    return {one["name"]: one["value"] for one in browser.call("Performance.getMetrics")["metrics"]}


def appeared(browser: Browser, run: Path) -> tuple[float, float]:
    """Seconds from the line in records.jsonl to the round on the page, and to the nodes."""
    first, last = browser.run("window.next()")
    recorded = (run / "records.jsonl").stat().st_mtime
    return first / 1000 - recorded, last / 1000 - recorded


def say(later: list[tuple[float, float]]) -> None:
    for what, seconds in zip(("the round", "the nodes"), zip(*later, strict=True), strict=True):
        print(f"  {what} on the page after it was recorded: median {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s")


def federation(browser: Browser, folder: Path) -> None:
    from flower_processes import Federation, new_app

    rounds = 5
    with Federation(folder / "here", 5) as made, watching(made.folder / "watched") as url:
        browser.open(url)
        browser.run(SPY)
        with made.start_run(
            new_app(folder / "app"), nodes=5, rounds=rounds, malicious=2, hostile="nan trim", directory="watched"
        ) as running:
            later = [appeared(browser, made.folder / "watched") for _ in range(rounds)]
            running.kill()
        suspects = browser.run("document.querySelectorAll('#suspects .badge').length")
    print(f"a federation of 5 nodes, 2 hostile, {rounds} rounds: {suspects} suspects")
    say(later)


def picture(browser: Browser, folder: Path, path: Path) -> None:
    run = write_run(folder / "runs", nodes=10, rounds=30, hostile=4, since=9)
    name_nodes(run, [f"hospital-{letter}" for letter in "abcdefghij"])
    with watching(run) as url:
        browser.resize(1120, 1520)
        browser.open(url)
        browser.run(
            f"document.querySelector('#run').textContent = document.querySelector('#run').textContent.replace({str(run)!r}, 'runs/first')"
        )
        browser.wait("[...document.querySelectorAll('#plot-nodes .curve')].every((one) => one.getAttribute('d'))")
        browser.picture(path)
    Image.open(path).convert("RGB").quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
