"""What a check is: tables of cells, each an experiment with the number that other authors printed, logged or drew for it.

Numbers are accuracies in percent, as in the sources.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from fltrust.experiment import Experiment
from fltrust.store.results import Result, Results

Metric = Literal["last five", "last five, long tail", "best", "final"]
Kind = Literal["as published", "plain mean", "corrected"]
Verdict = Literal["agrees", "differs", "no number", "not run"]

DEAD = 15.0  # a model is dead at or below this accuracy; with ten classes, chance is 10


class Theirs(NamedTuple):
    accuracy: float
    spread: float | None  # over seeds; None where there was one run, or it is not known


@dataclass(frozen=True)
class Cell:
    number: int  # of the check, 1 to 12; 0 in a table that belongs to none
    row: str  # attack and setting
    column: str  # rule
    run: Experiment  # of seed 0
    theirs: Theirs | None = None
    kind: Kind = "as published"


@dataclass(frozen=True)
class Table:
    name: str  # on the command line
    title: str
    source: str
    metric: Metric
    limit: float  # points that agreement allows
    dead: bool  # whether a dead model of theirs must be a dead one here, however near the numbers are
    cells: tuple[Cell, ...]


@cache
def _read(file: str) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(files("fltrust.checks").joinpath(file).read_text(encoding="utf-8"))
    return written


def published() -> dict[str, Any]:
    """By table: title, source, metric, limits and the numbers by row and column."""
    return _read("published.json")


def theirs(table: str, row: str, column: str) -> Theirs | None:
    number = published()[table]["numbers"].get(row, {}).get(column)
    return None if number is None else Theirs(*number)


# ---------------------------------------------------------------- a result as one number

# Examples of each class in MNIST's test set, of which class i keeps 0.5^i: the long-tailed test set of the bucketing paper.
_MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
_LONG_TAIL = [int(count * 0.5**label) for label, count in enumerate(_MNIST_TEST)]


def accuracy(result: Result, metric: Metric) -> float:
    """The accuracy of a run in percent, measured as the authors did."""
    curve = accuracies(result, metric)
    if metric == "best":
        return max(curve)
    return curve[-1] if metric == "final" else fmean(curve[-5:])


def accuracies(result: Result, metric: Metric) -> list[float]:
    """The accuracy at each evaluation."""
    if metric != "last five, long tail":
        return [100 * (1 - error) for error in result.test_error]
    return [
        100 * (1 - sum(count * error for count, error in zip(_LONG_TAIL, of_class, strict=True)) / sum(_LONG_TAIL))
        for of_class in result.metrics["class_error"]
    ]


# ---------------------------------------------------------------- agreement


@dataclass(frozen=True)
class Judged:
    """A cell with what was run of it."""

    table: Table
    cell: Cell
    results: tuple[Result, ...]  # by seed

    @property
    def ours(self) -> list[float]:
        return [accuracy(result, self.table.metric) for result in self.results]

    @property
    def mean(self) -> float:
        return fmean(self.ours)

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over the seeds; one seed has none."""
        return stdev(self.ours) if len(self.results) > 1 else None

    @property
    def final(self) -> float:
        """The mean accuracy after the last round, whatever is compared."""
        return fmean(accuracies(result, self.table.metric)[-1] for result in self.results)

    @property
    def best(self) -> float:
        return fmean(max(accuracies(result, self.table.metric)) for result in self.results)

    @property
    def allowed(self) -> float:
        """The limit, or twice the larger spread, ours or theirs."""
        spreads = (self.spread, self.cell.theirs.spread if self.cell.theirs else None)
        return max([self.table.limit, *(2 * spread for spread in spreads if spread is not None)])

    @property
    def verdict(self) -> Verdict:
        if not self.results:
            return "not run"
        if self.cell.theirs is None:
            return "no number"
        if self.table.dead and self.cell.theirs.accuracy <= DEAD:
            return "agrees" if self.mean <= DEAD + 1e-9 else "differs"
        return "agrees" if abs(self.mean - self.cell.theirs.accuracy) <= self.allowed + 1e-9 else "differs"

    @property
    def explanation(self) -> str:
        """Why the numbers differ, from explained.json; "unexplained" where nobody knows. Empty where they do not differ."""
        if self.verdict != "differs":
            return ""
        reason: str = _read("explained.json").get(self.table.name, {}).get(self.cell.row, {}).get(self.cell.column, "unexplained")
        return reason


def judge(table: Table, results: Results) -> list[Judged]:
    return [Judged(table, cell, tuple(results.seeds(cell.run))) for cell in table.cells]


class Tally(NamedTuple):
    cells: int
    ran: int
    compared: int
    agree: int


def tally(judged: Sequence[Judged]) -> Tally:
    verdicts = [one.verdict for one in judged]
    compared = sum(verdict in ("agrees", "differs") for verdict in verdicts)
    return Tally(len(verdicts), sum(verdict != "not run" for verdict in verdicts), compared, verdicts.count("agrees"))
