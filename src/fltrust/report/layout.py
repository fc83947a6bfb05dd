"""Which result stands where: a table or a figure cut into pages with rows and columns in the paper's order, and the telling runs.

Runs of one's own become a table and a figure too: who compares rules under attacks wants what the paper has.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fltrust.experiment import Experiment
from fltrust.paper import EXHIBITS, Cell, Exhibit
from fltrust.registry import ATTACKS, RULES, Registry
from fltrust.report.agreement import Judged
from fltrust.report.repeat import changes, named
from fltrust.store.results import Result, Results, first_seed


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
    return not exhibit.own and any(2 * len(grid.cells) < len(grid.rows) * len(grid.columns) for grid in grids)


def telling(judged: dict[Exhibit, list[Judged]]) -> dict[str, list[tuple[str, Result]]]:
    """By data set the first seed of FLTrust under the attacks whose rejection, or success, one should see."""
    found: dict[str, list[tuple[str, Result]]] = {}
    for one in judged.get(EXHIBITS["methods"], ()):
        if one.cell.telling and one.results and one.results[0].trust:
            found.setdefault(one.cell.run.dataset, []).append((one.cell.row, one.results[0]))
    return found


_SAID = (
    "Test error after the last round, of runs that reached it: mean and standard deviation over seeds. A click on a number shows its runs."
)


def side_by_side(found: Results) -> tuple[Exhibit, Exhibit]:
    """A table (data set, attack, rule) and the curves of the same runs. Seeds of one experiment share a cell."""
    runs = list({run.key: run for run in (first_seed(one.run) for one in found.all())}.values())
    runs.sort(key=lambda run: (_place(ATTACKS, run.attack), _place(RULES, run.rule)))
    cells = [(run, _with_parameters(run, "attack") + _particular(run, runs), _with_parameters(run, "rule")) for run in runs]
    table = tuple(Cell(run.dataset, attack, rule, run) for run, attack, rule in cells)
    curves = tuple(Cell(f"{run.dataset}, {attack}", "", rule, run) for run, attack, rule in cells)
    return (
        Exhibit("runs", "table", "Side by side", _SAID, "data set", "attack", "rule", table, of_paper=False, own=True),
        Exhibit(
            "curves",
            "curves",
            "Training error against rounds",
            "A picture for each attack.",
            "attack",
            "",
            "rule",
            curves,
            of_paper=False,
            own=True,
        ),
    )


def _place(registry: Registry, value: Any) -> int:
    """Where tables list it; what is in no list comes last."""
    names = list(registry)
    return names.index(name) if (name := registry.name_of(value)) in names else len(names)


def _with_parameters(run: Experiment, part: str) -> str:
    """The name of a run's attack or rule, with the parameters that the name alone would not give it."""
    counts = {field: getattr(run, field) for field in ("num_clients", "malicious", "clients_per_round")}
    usual, ours = named(run, counts), run.to_dict()[part]
    name = str(ours.pop("name"))
    return name + "".join(f", {field} {value}" for field, value in ours.items() if usual is None or usual.to_dict()[part][field] != value)


def _particular(run: Experiment, runs: Iterable[Experiment]) -> str:
    """In what else a run differs from the paper's, where not all runs on its data set do."""
    others = [other.to_dict() for other in runs if other.dataset == run.dataset]
    return "".join(f", {field} {value}" for field, value in changes(run).items() if any(other.get(field) != value for other in others))
