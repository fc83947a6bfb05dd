"""The table of docs/which-rule.md, from results/: the build fails if the page says something else.

python docs/_ext/measured.py    # writes it
"""

import re
from pathlib import Path

from league_tables import league, table, worst
from sphinx.application import Sphinx
from sphinx.util import logging

from fltrust.registry import RULES
from fltrust.report.standings import Standing

PAGE = Path(__file__).parents[1] / "which-rule.md"
_BETWEEN = re.compile(r"(?<=<!-- league -->\n).*?(?=<!-- end -->)", re.DOTALL)


def setup(application: Sphinx) -> dict[str, bool]:
    application.connect("builder-inited", check)
    return {"parallel_read_safe": True}


def check(_application: Sphinx) -> None:
    written = PAGE.read_text()
    if written != with_table(written):
        logging.getLogger(__name__).warning("%s is not what results/ says: run python docs/_ext/measured.py", PAGE.name)


def with_table(text: str) -> str:
    changed, count = _BETWEEN.subn(lambda _: f"\n{one_table()}\n\n", text)
    assert count == 1, f"{PAGE} must have one place for the table"
    return changed


def one_table() -> str:
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


def _harm(row: Standing) -> float:
    return row.harm if row.whole or row.worst_error is None else row.worst_error.number.mean


def _idle(row: Standing) -> str:
    return next((f"{place.error.mean:.3f}" for place in row.places if place.cell.column.idle and place.results), "")


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
