"""The tables of README.md and docs/which-rule.md, from results/: the build fails if a page says something else.

python docs/_ext/measured.py    # writes them
"""

import re
from pathlib import Path

from league_tables import league, results, table, worst
from sphinx.application import Sphinx
from sphinx.util import logging

from fltrust.attacks import Searched
from fltrust.league.table import ROWS
from fltrust.league.worst_case import DECIDES, asked
from fltrust.registry import RULES
from fltrust.report.standings import Standing
from fltrust.report.worst_case import Attacked, Place, worst_cases

ROOT = Path(__file__).parents[2]
SEARCHED_ON = ("mnist-0.5", "har")
IN_README = ("fedavg", "krum", "median", "geometric-median", "nnm+geometric-median", "dnc", "fltrust", "anchor")


def setup(application: Sphinx) -> dict[str, bool]:
    application.connect("builder-inited", check)
    return {"parallel_read_safe": True}


def check(_application: Sphinx) -> None:
    for page in PAGES:
        written = (ROOT / page).read_text()
        if written != with_tables(page, written):
            logging.getLogger(__name__).warning("%s is not what results/ says: run python docs/_ext/measured.py", page)


def with_tables(page: str, text: str) -> str:
    for name, made in PAGES[page].items():
        text, count = re.subn(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", lambda _, made=made: f"\n{made()}\n\n", text, flags=re.DOTALL)
        assert count == 1, f"{page} must have one place for the table of {name}"
    return text


def readme_table() -> str:
    """Some rules without attack and under the worst attack known, the best on the last data set first."""
    boards = worst_cases(asked(SEARCHED_ON, IN_README, [0, DECIDES]), results())
    rows = {found.row.label: [one.places for board in boards for one in board.rows if one.row == found.row] for found in boards[-1].rows}
    head = ["rule", *(f"{board.label}: {what}" for board in boards for what in ("no attack", f"{DECIDES} % malicious"))]
    lines = [[name, *(_worst(place) for places in of_board for place in places)] for name, of_board in rows.items()]
    return table(head, lines)


def _worst(place: Place) -> str:
    worst = place.worst
    if worst is None:
        return place.missing
    return ("" if place.searched else "≥ ") + _number(worst, by_aim=False) + (f", {worst.label}" if place.cell.share else "")


def league_table() -> str:
    """Rules that were run on each of these data sets, by their worst number; where not all attacks were run there are errors only."""
    boards = [board for board in league() if len(board.counts) > board.possible / 2]
    rows: dict[str, list[Standing]] = {}
    for board in boards:
        for row in board.rows:
            if row.ran > len(row.attacked) / 2 and _idle(row):
                rows.setdefault(row.row.name, []).append(row)
    rows = {name: found for name, found in rows.items() if len(found) == len(boards)}
    head = ["rule", "needs a root set"]
    complete = [all(row.whole for row in of_board) for of_board in zip(*rows.values(), strict=True)]
    for board, whole in zip(boards, complete, strict=True):
        head += [f"{board.label}: {what}" for what in ("no attack", "worst error", *(["worst success"] if whole else []))]
    lines = [
        [
            found[0].row.label,
            "yes" if any(RULES[part].needs_root or RULES[part].needs_root_loss for part in name.split("+")) else "",
            *(
                cell
                for row, whole in zip(found, complete, strict=True)
                for cell in (_idle(row), worst(row, "error"), *([worst(row, "success")] if whole else []))
            ),
        ]
        for name, found in sorted(rows.items(), key=lambda item: max(_harm(row) for row in item[1]))
    ]
    return table(head, lines)


def searched_table() -> str:
    """Rules on which the search was run: its worst aim beside the worst of all other attacks, the rule with the lowest numbers first."""
    boards = worst_cases(asked(SEARCHED_ON, [row.name for row in ROWS], [DECIDES]), results())
    rows: dict[str, list[Place]] = {}
    for row in ROWS:
        places = [found.places[0] for board in boards for found in board.rows if found.row == row]
        if any(isinstance(one.attack, Searched) for place in places for one in place.attacked):
            rows[row.label] = places
    head = ["rule", *(f"{board.label}: {what}" for board in boards for what in ("other attacks", "search"))]
    return table(head, [[name, *(cell for place in found for cell in _two(place))] for name, found in sorted(rows.items(), key=_highest)])


def _highest(item: tuple[str, list[Place]]) -> float:
    return max(one.error.mean for place in item[1] for one in place.attacked)


def _two(place: Place) -> list[str]:
    others, searches = ([one for one in place.attacked if isinstance(one.attack, Searched) == searched] for searched in (False, True))
    bound = "" if place.searched else "≥ "
    return [_number(others[0]) if others else "not run", bound + _number(searches[0]) if searches else "not run"]  # the worst comes first


def _number(one: Attacked, by_aim: bool = True) -> str:
    seeds = len(one.results)
    spread = f" ± {one.error.spread:.3f} ({seeds})" if seeds > 1 else ""
    aim = f", `{one.attack.aim}`" if by_aim and isinstance(one.attack, Searched) else ""
    return f"{one.error.mean:.3f}{spread}{aim}"


def _harm(row: Standing) -> float:
    return row.harm if row.whole or row.worst_error is None else row.worst_error.number.mean


def _idle(row: Standing) -> str:
    return next((f"{place.error.mean:.3f}" for place in row.places if place.cell.column.idle and place.results), "")


PAGES = {"README.md": {"worst": readme_table}, "docs/which-rule.md": {"league": league_table, "searched": searched_table}}

if __name__ == "__main__":
    for path in map(ROOT.joinpath, PAGES):
        path.write_text(with_tables(str(path.relative_to(ROOT)), path.read_text()))
