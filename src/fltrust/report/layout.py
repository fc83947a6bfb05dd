"""Which result stands where: a table or a figure cut into pages with rows and columns in the paper's order, and the telling runs."""

from collections.abc import Iterable
from dataclasses import dataclass

from fltrust.paper import EXHIBITS, Exhibit
from fltrust.report.agreement import Judged
from fltrust.store.results import Result


@dataclass(frozen=True)
class Grid:
    page: str
    cells: tuple[Judged, ...]

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(one.cell.row for one in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(one.cell.column for one in self.cells))

    @property
    def at(self) -> dict[tuple[str, str], Judged]:
        return {(one.cell.row, one.cell.column): one for one in self.cells}


def grids(exhibit: Exhibit, judged: Iterable[Judged]) -> list[Grid]:
    judged = list(judged)
    pages = dict.fromkeys(cell.page for cell in exhibit.cells)
    return [Grid(page, tuple(one for one in judged if one.cell.page == page)) for page in pages]


def better_listed(exhibit: Exhibit, grids: Iterable[Grid]) -> bool:
    """Whether some page of what we declare has more empty places than cells: then a list is easier to read than rows and columns."""
    return any(2 * len(grid.cells) < len(grid.rows) * len(grid.columns) for grid in grids)


def telling(judged: dict[Exhibit, list[Judged]]) -> dict[str, list[tuple[str, Result]]]:
    """By data set the first seed of FLTrust under the attacks whose rejection, or success, one should see."""
    found: dict[str, list[tuple[str, Result]]] = {}
    for one in judged.get(EXHIBITS["methods"], ()):
        if one.cell.telling and one.results and one.results[0].trust:
            found.setdefault(one.cell.run.dataset, []).append((one.cell.row, one.results[0]))
    return found
