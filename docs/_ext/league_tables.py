"""The league's results as cells and tables of a page."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from fltrust.report.standings import Place, Standing, Standings, whole_league
from fltrust.store.results import Results, read

RESULTS = Path(__file__).parents[2] / "results"


@cache
def results() -> Results:
    return read(RESULTS)


@cache
def league() -> list[Standings]:
    """The league's boards on which something was run."""
    return [board for board in whole_league(results()) if board.counts]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def side_by_side(first: str, columns: Sequence[tuple[str, dict[str, str]]]) -> str:
    names = dict.fromkeys(name for _, cells in columns for name in cells)
    return table([first, *(label for label, _ in columns)], [[name, *(cells.get(name, "") for _, cells in columns)] for name in names])


def harm(place: Place) -> float:
    return max(place.error.mean, place.success.mean if place.success else 0.0)


def worst(row: Standing, what: str) -> str:
    found = row.worst_error if what == "error" else row.worst_success
    return f"{found.number.mean:.3f} ({found.place.cell.column.label})" if found else ""
