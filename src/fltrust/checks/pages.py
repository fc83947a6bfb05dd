"""The checks as Markdown, between markers in a page: `python -m fltrust.checks.pages results docs/checks.md docs/corrections.md`.

A page holds `<!-- checks: r1 -->`, or `<!-- rankings: corrections -->`, and later `<!-- end -->`. What stands between is written here.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fltrust.checks.check import Judged, judge, tally
from fltrust.checks.tables import TABLES, tables
from fltrust.errors import InputError
from fltrust.store import results
from fltrust.store.files import replace
from fltrust.store.results import Results

_BLOCK = re.compile(r"(<!-- (checks|rankings): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
MARKS = {"agrees": "agrees", "differs": "**differs**", "no number": "", "not run": "not run"}


def filled(page: str, found: Results) -> str:
    """The page with its blocks written anew."""

    def block(match: re.Match[str]) -> str:
        head, what, name, end = match.groups()
        if name not in TABLES:
            raise InputError(f"a page asks for the check {name!r}; there are {', '.join(TABLES)}")
        judged = judge(tables([name])[0], found)
        return head + "\n" + (written(judged) if what == "checks" else rankings(judged)) + "\n" + end

    return _BLOCK.sub(block, page)


def written(judged: Sequence[Judged]) -> str:
    """A table of cells, and how many agree."""
    head = ("check", "attack", "rule", "theirs", "ours", "final", "best", "seeds", "", "why")
    lines = [_line(head), "|--:|---|---|--:|--:|--:|--:|--:|---|---|\n", *(_line(_row(one)) for one in judged)]
    count = tally(judged)
    table = judged[0].table
    numbers = f"{count.agree} of {count.compared} agree; {count.ran} of {count.cells} ran."
    limits = f"within {table.limit:g} points or twice the larger spread" + (", and dead where theirs is dead" if table.dead else "")
    return f"{''.join(lines)}\nAccuracy in percent; compared: {table.metric}. {numbers} Agreement: {limits}. Source: {table.source}.\n"


def _row(one: Judged) -> list[str]:
    cell = one.cell
    theirs = "" if cell.theirs is None else with_spread(*cell.theirs)
    ours = [with_spread(one.mean, one.spread), f"{one.final:.1f}", f"{one.best:.1f}", str(len(one.results))] if one.results else [""] * 4
    kind = "" if cell.kind == "as published" else f" ({cell.kind})"
    return [str(cell.number or ""), cell.row, cell.column + kind, theirs, *ours, MARKS[one.verdict], one.explanation]


def with_spread(accuracy: float, spread: float | None) -> str:
    return f"{accuracy:.1f}" + ("" if spread is None else f" ± {spread:.1f}")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


_RELEASED = ("Min-Max", "LIE as released", "Trim attack as released")
_DEFINED = ("Min-Max", "LIE by the formula", "Trim attack, corrected")


def rankings(judged: Sequence[Judged]) -> str:
    """Which attack harms most, by rule: as published, as released but run here, and as defined."""
    head = ("rule", "published", "as released, run here", "as defined, run here")
    lines = [_line(head), "|---|---|---|---|\n"]
    for rule in dict.fromkeys(one.cell.column for one in judged):
        by_attack = {one.cell.row: one for one in judged if one.cell.column == rule}
        printed = {row: one.cell.theirs.accuracy for row, one in by_attack.items() if row in _RELEASED and one.cell.theirs is not None}
        ours = {row: one.mean for row, one in by_attack.items() if one.results}
        lines.append(_line([rule, _ranked(printed, _RELEASED) if printed else "", _ranked(ours, _RELEASED), _ranked(ours, _DEFINED)]))
    return "".join(lines) + "\nThe most harmful attack first; best accuracy over the rounds, in percent.\n"


def _ranked(numbers: dict[str, float], attacks: Sequence[str]) -> str:
    ran = sorted((numbers[attack], attack) for attack in attacks if attack in numbers)
    missing = [f"{attack} not run" for attack in attacks if attack not in numbers]
    return ", ".join([*(f"{attack} {accuracy:.1f}" for accuracy, attack in ran), *missing])


def main(folder: str, *pages: str) -> None:
    found = results.read(Path(folder))
    for page in map(Path, pages):
        replace(page, filled(page.read_text(encoding="utf-8"), found).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
