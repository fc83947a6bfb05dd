"""The league's cells, and its runs in an order in which a part of them is worth having."""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from fltrust.codec import built
from fltrust.errors import InputError
from fltrust.experiment import Experiment, Precision
from fltrust.league.table import BOARDS, COLUMNS, IMPOSSIBLE, OWN, ROWS, Board, Column, Row
from fltrust.paper.exhibit import POINTS, declared
from fltrust.registry import ATTACKS, DATASETS, RULES, known


@dataclasses.dataclass(frozen=True)
class Cell:
    """A rule under an attack on a data set: an experiment, or the reason why there is none."""

    dataset: str
    row: Row
    column: Column
    run: Experiment | None  # of seed 0
    impossible: str = ""


def cells(board: Board, rounds: int | None = None) -> list[Cell]:
    """A board's cells, attack by attack. `rounds`: not the data set's usual number."""
    changes = {} if rounds is None else {"rounds": rounds, "evaluate_every": max(1, rounds // POINTS)}

    def cell(row: Row, column: Column) -> Cell:
        if why := _impossible(board.dataset, column):
            return Cell(board.dataset, row, column, None, why)
        return Cell(board.dataset, row, column, declared(board.dataset, row.rule, column.attack, **changes))

    return [cell(row, column) for column in board.columns for row in board.rows]


def _impossible(dataset: str, column: Column) -> str:
    without_trigger = DATASETS[dataset].trigger is None and _needs_trigger(column.attack)
    return "this data set has no trigger for a backdoor" if without_trigger else IMPOSSIBLE.get((dataset, column.registered), "")


def _needs_trigger(attack: Any) -> bool:
    """Whether it refuses to do without one; of a search, only its aim at a backdoor does."""
    try:
        built(ATTACKS, attack, {})
    except InputError as problem:
        return "trigger" in str(problem)
    return False


def chosen(datasets: Collection[str] = (), rules: Collection[str] = (), attacks: Collection[str] = ()) -> list[Board]:
    """The boards, or what is asked for by name: of the league, or any other data set, rule ("nnm+krum") and attack, such as one's own."""
    datasets, rules, attacks = ([name.lower() for name in names] for names in (datasets, rules, attacks))
    for name in datasets:
        known("dataset", name, DATASETS)
    rows = rows_of(rules)
    columns = _columns(attacks)
    boards = [BOARDS.get(name) or Board(name) for name in dict.fromkeys(datasets)] or list(BOARDS.values())
    return [dataclasses.replace(board, rows=rows or board.rows, columns=columns or board.columns) for board in boards]


def rows_of(names: Collection[str]) -> tuple[Row, ...]:
    """The rules of these names, such as "nnm+krum"; they need not be in the league."""
    listed = {row.name: row for row in ROWS}
    for name in names:
        for part in name.split("+"):
            known("rule", part, RULES)
    return tuple(listed.get(name) or Row(name) for name in dict.fromkeys(names))


def _columns(names: Collection[str]) -> tuple[Column, ...]:
    found: dict[str, Column] = {}
    for name in names:
        listed = [column for column in COLUMNS if name in (column.name, column.registered)]
        if not listed:
            known("attack", name, ATTACKS)
            listed = [Column(name, OWN, targeted=_needs_trigger(name))]
        found |= {column.name: column for column in listed}
    return tuple(found.values())


def plan(boards: Iterable[Board], *, seeds: int, precision: Precision = "float32", rounds: int | None = None) -> list[Experiment]:
    """The runs of the boards: all with the first seed before any with the second, a data set and then an attack after the other.

    So what was run so far compares all rules. Within an attack those come first that wait for the host in every round: they take longest.
    """
    runs: dict[str, Experiment] = {}
    for board in boards:
        possible = [(cell.column, cell.run) for cell in cells(board, rounds) if cell.run is not None]
        slow_first = sorted(possible, key=lambda one: (board.columns.index(one[0]), not one[1].rule.on_host))
        runs |= {run.key: run for _, run in slow_first}
    if not runs:
        raise InputError("the league has no run with that data set, attack and rule")
    return [dataclasses.replace(run, seed=seed, precision=precision) for seed in range(seeds) for run in runs.values()]
