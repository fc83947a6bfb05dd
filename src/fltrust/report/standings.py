"""How the league stands on one data set: each rule's numbers under each attack, the worst of them, and what a round costs.

An error is the share of wrong answers on the test examples. The success of a targeted attack (a backdoor, a targeted label flip) is the
share of the examples that it aims at which get the attacker's answer. Both are shares of harm, so a rule is placed by the larger of its two
worst numbers: a backdoor that works is a failure.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fltrust.league import BOARDS, Board, Cell, Column, Row, cells
from fltrust.league.table import ROWS, RULES_LEFT_OUT
from fltrust.registry import DATASETS, RULES
from fltrust.report.agreement import Number
from fltrust.store.results import Result, Results, first_seed


@dataclass(frozen=True)
class Place:
    """A cell with what was run of it."""

    cell: Cell
    results: tuple[Result, ...]  # by seed

    @property
    def error(self) -> Number:
        return Number(tuple(one.error for one in self.results), None, 0.0)

    @property
    def success(self) -> Number | None:
        """Of a targeted attack; None for others, or if nothing was run."""
        ours = tuple(one.final_success for one in self.results if one.final_success is not None)
        return Number(ours, None, 0.0) if ours and self.cell.column.targeted else None

    @property
    def missing(self) -> str:
        """What to say where there is no number."""
        return "" if self.results else "left out" if self.cell.impossible else "not run"


@dataclass(frozen=True)
class Worst:
    """The largest number of a row, and under which attack."""

    place: Place
    number: Number


@dataclass(frozen=True)
class Standing:
    """A row: one rule under all attacks."""

    row: Row
    places: tuple[Place, ...]  # as the columns
    milliseconds: float | None  # of a round, on the hardware that the table names

    @property
    def attacked(self) -> list[Place]:
        """The cells that could be run, without the one where nobody attacks."""
        return [place for place in self.places if not place.cell.column.idle and not place.cell.impossible]

    @property
    def ran(self) -> int:
        return sum(bool(place.results) for place in self.attacked)

    @property
    def whole(self) -> bool:
        """Whether all attacks of the set were run; else its worst number is only the worst so far."""
        return self.ran == len(self.attacked)

    @property
    def worst_error(self) -> Worst | None:
        return _worst((place, place.error) for place in self.attacked if place.results)

    @property
    def worst_success(self) -> Worst | None:
        return _worst((place, success) for place in self.attacked if (success := place.success))

    @property
    def harm(self) -> float:
        """The larger of the two worst numbers."""
        return max((worst.number.mean for worst in (self.worst_error, self.worst_success) if worst), default=1.0)


@dataclass(frozen=True)
class Standings:
    """A board with its results, the best rule first; rules whose runs are not complete come last."""

    board: Board
    rows: tuple[Standing, ...]
    reference: float | None  # FedAvg's error without attack, what the colours measure from
    hardware: str  # on which rounds were timed; empty where none were

    @property
    def label(self) -> str:
        return DATASETS.entry(self.board.dataset).label

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.board.columns

    @property
    def counts(self) -> list[int]:
        """The seeds of each cell that ran."""
        return [len(place.results) for row in self.rows for place in row.places if place.results]

    @property
    def possible(self) -> int:
        """Cells that can be run."""
        return sum(not place.cell.impossible for row in self.rows for place in row.places)

    @property
    def places(self) -> list[Place]:
        return [place for row in self.rows for place in row.places]

    @property
    def results(self) -> list[Result]:
        return [result for place in self.places for result in place.results]


def standings(board: Board, found: Results, rounds: int | None = None) -> Standings:
    of_row: dict[Row, list[Place]] = {row: [] for row in board.rows}
    for cell in cells(board, rounds):
        of_row[cell.row].append(Place(cell, tuple(found.seeds(cell.run)) if cell.run else ()))
    results = [one for places in of_row.values() for place in places for one in place.results]
    timed = Counter(_machine(one) for one in results if one.seconds is not None)
    machine = timed.most_common(1)[0][0] if timed else None
    rows = [Standing(row, tuple(places), _milliseconds(places, machine)) for row, places in of_row.items()]
    rows.sort(key=lambda one: (not one.whole, one.harm if one.ran else 2.0))
    plain = next((place for one in rows if one.row.name == "fedavg" for place in one.places if place.cell.column.idle), None)
    reference = plain.error.mean if plain and plain.results else None
    return Standings(board, tuple(rows), reference, ", ".join(machine) if machine else "")


def whole_league(found: Results) -> list[Standings]:
    """The whole league, with a row for every other rule whose runs fit into it, such as a plug-in's."""
    return [standings(replace(board, rows=(*board.rows, *_others(board, found))), found) for board in BOARDS.values()]


def _others(board: Board, found: Results) -> list[Row]:
    listed = {part for row in ROWS for part in row.name.split("+")} | RULES_LEFT_OUT.keys()
    runs = [cell.run for cell in cells(replace(board, rows=board.rows[:1])) if cell.run]
    rows = {}
    for one in found.all():
        name = RULES.name_of(one.run.rule)
        strange = one.run.dataset == board.dataset and name not in rows and listed.isdisjoint(name.split("+"))
        if strange and any(replace(run, rule=one.run.rule) == first_seed(one.run) for run in runs):
            rows[name] = Row(name, value=one.run.rule)
    return list(rows.values())


def _worst(numbers: Iterable[tuple[Place, Number]]) -> Worst | None:
    return max((Worst(place, number) for place, number in numbers), key=lambda worst: worst.number.mean, default=None)


def _machine(result: Result) -> tuple[str, str]:
    return str(result.about["hardware"]), result.run.precision


def _milliseconds(places: Sequence[Place], machine: tuple[str, str] | None) -> float | None:
    """The median over its runs there, loading and evaluation included."""
    took = [
        1000 * one.seconds / one.run.rounds
        for place in places
        for one in place.results
        if one.seconds is not None and _machine(one) == machine
    ]
    return statistics.median(took) if took else None
