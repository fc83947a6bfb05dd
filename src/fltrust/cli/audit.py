"""`fltrust audit`: the findings on a screen, as JSON, as CSV, and as a list of nodes to ban."""

import csv
import json
import sys
import textwrap
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fltrust.audit import Audit, Finding, shortened
from fltrust.audit.read import LETTERS
from fltrust.errors import InputError
from fltrust.store.files import sync

STYLES = {"hostile": "bold red", "suspicious": "bold yellow", "unreliable": "yellow", "ok": ""}
STRIP = 40  # letters of a strip that are shown
FINE = 50  # nodes without findings that are shown
LOOK = 1.0  # seconds between two looks at a run that goes on
FLAGGED = ("hostile", "suspicious")


def audit(path: Path, *, as_json: bool = False, as_csv: bool = False, follow: bool = False, ban: Path | None = None) -> int:
    """Prints the audit, again and again if it is to follow the run; the exit code: 3 if somebody is suspicious."""
    if as_csv and (as_json or follow):
        raise InputError("--csv prints one table: leave out --json and --follow")
    if follow:
        _wait_for(path)
    run, banned = Audit(path), set[int]()
    try:
        while True:
            _show(run, as_json=as_json, as_csv=as_csv)
            if ban is not None:
                write_ban(run.findings(), ban, banned)
            if not follow:
                break
            while not run.refresh():
                time.sleep(LOOK)
            if not as_json:
                print()
    except KeyboardInterrupt:
        if not as_json:
            print(f"\nafter {len(run.rounds)} rounds: {run.headline()}")
    return 3 if any(finding.verdict in FLAGGED for finding in run.findings()) else 0


def _wait_for(path: Path) -> None:
    """Until the first round of a run that has begun is recorded."""
    records = path / "records.jsonl"
    while (path / "experiment.json").is_file() and not (records.is_file() and records.stat().st_size):
        time.sleep(LOOK)


def write_ban(findings: list[Finding], path: Path, banned: set[int]) -> None:
    """Adds a line "id  # name, why" for each hostile node; what stands in the file stays.

    `banned` are those that were added before: an operator who takes one off the list again is not overruled.
    """
    try:
        written = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, ValueError) as problem:
        raise InputError(f"{path} cannot be read: {problem}") from problem
    listed = {line.split("#")[0].strip() for line in written.splitlines()}
    new = [one for one in findings if one.verdict == "hostile" and one.node not in banned and str(one.node) not in listed]
    banned.update(one.node for one in new)
    if path.exists() and not new:
        return
    lines = "".join(f"{one.node}  # {one.name}, {one.evidence[0]}; since round {one.since}\n" for one in new)
    if written and not written.endswith("\n"):
        lines = "\n" + lines
    try:
        with path.open("ab") as file:  # what the operator writes at the same moment stays, and a link is still a link
            file.write(lines.encode())
            sync(file)
    except OSError as problem:
        raise InputError(f"{path} cannot be written: {problem.strerror or problem}") from problem


# ---------------------------------------------------------------- for programs


def _show(run: Audit, *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        print(json.dumps(_content(run), allow_nan=False), flush=True)
    elif as_csv:
        _table(run)
    else:
        _screen(run)


def _content(run: Audit) -> dict[str, Any]:
    return {
        "headline": run.headline(),
        "rule": run.rule_name(),
        "rounds": [line._asdict() for line in run.rounds],
        "nodes": [asdict(finding) for finding in run.findings()],
        "extra": [{"node": node, "reason": reason, "count": count} for node, reason, count in run.extra],
    }


def _table(run: Audit) -> None:
    sheet = csv.writer(sys.stdout, lineterminator="\n")
    columns = ("node", "name", "verdict", "since", "since_time", "mean_trust", "mean_share", "malicious", "score")
    sheet.writerow([*columns, *LETTERS, "evidence", "strip"])
    for finding in run.findings():
        cells = asdict(finding)
        counts = [finding.counts.get(verdict, 0) for verdict in LETTERS]
        sheet.writerow([_no_formula(cell) for cell in (*map(cells.get, columns), *counts, "; ".join(finding.evidence), finding.strip)])


def _no_formula(cell: Any) -> Any:
    """A spreadsheet computes text that begins like this."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell


# ---------------------------------------------------------------- for people


def _screen(run: Audit) -> None:
    screen = Console(highlight=False)
    width = screen.width if screen.is_terminal else 10_000  # a pipe has no width: nothing is wrapped
    if not screen.is_terminal:
        screen = Console(width=width, highlight=False)

    def say(text: str, style: str = "", indent: str = "") -> None:
        for line in _wrapped(text, width, indent):
            screen.print(Text(line, style), soft_wrap=True)

    findings = run.findings()
    bad = any(finding.verdict in FLAGGED for finding in findings)
    say(run.headline(), "bold red" if bad else "bold green")
    say(_about(run, len(findings)))
    fine = [finding for finding in findings if finding.verdict == "ok"]
    for finding in findings[: len(findings) - len(fine)]:
        say("")
        say(_title(finding), STYLES[finding.verdict])
        for sentence in finding.evidence:
            say("- " + sentence, indent="  ")
        say(_figures(finding), indent="  ")
    if fine:
        say("")
        say("Nothing against:" if len(fine) < len(findings) else "All nodes:", "bold")
        for finding in fine[:FINE]:
            is_ = "" if finding.malicious is None else f" (really {_side(finding)})"
            say(f"{finding.name}{is_}  {_figures(finding)}" + "".join(f"; {sentence}" for sentence in finding.evidence), indent="  ")
        if len(fine) > FINE:
            say(f"and {len(fine) - FINE} more: --csv lists them all", indent="  ")
    rest = run.remarks()
    for line in ["", *rest] if rest else []:
        say(line)
    shown = set("".join(finding.strip for finding in findings))
    say("")
    say(
        ", ".join(f"{letter} {verdict}" for verdict, letter in LETTERS.items() if letter in shown) + (", . not asked" * ("." in shown)),
        "dim",
    )


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Between words only: an id or a name is never cut."""
    hanging = indent + "  " * text.startswith("- ")
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]


def _about(run: Audit, count: int) -> str:
    errors = [line.test_error for line in run.rounds if line.test_error is not None]
    last = run.rounds[-1].round  # a simulation records the rounds that it evaluates
    rounds = f"{len(run.rounds)} rounds" if len(run.rounds) == last else f"{len(run.rounds)} of {last} rounds recorded"
    return f"{run.rule_name()}: {rounds}, {count} nodes" + (f", test error {errors[-1]:.3f}" if errors else "")


def _title(finding: Finding) -> str:
    node = f" (node {finding.node})"
    name = finding.name if finding.name == str(finding.node) else finding.name.removesuffix(node) + node
    when = f"since round {finding.since}{f', {finding.since_time}' if finding.since_time else ''}" if finding.since is not None else ""
    if finding.malicious is not None:  # a simulation knows who is
        return f"client {name} (really {_side(finding)}): {finding.verdict} {when}".rstrip()
    return f"{finding.verdict}: {name}" + (f", {when}" if when else "")


def _side(finding: Finding) -> str:
    return "malicious" if finding.malicious else "honest"


def _figures(finding: Finding) -> str:
    parts = [shortened(finding.strip, STRIP)]
    parts += [f"trust {finding.mean_trust:.3f}"] if finding.mean_trust is not None else []
    parts += [f"share {finding.mean_share:.4f}"] if finding.mean_share is not None else []
    return "  ".join(parts)
