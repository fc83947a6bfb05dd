"""How near our numbers are to the paper's: mean and spread over the seeds, the difference, and whether that is agreement."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fltrust.paper import EXHIBITS, Cell, Exhibit
from fltrust.store.results import Result, Results

STRICT, LOOSE = 0.03, 0.05
NO_DATA = ("ch-mnist",)  # its images cannot be had everywhere, so a missing result has a reason

Verdict = Literal["agrees", "differs", "no number", "not run"]  # no number: the paper has none there


@dataclass(frozen=True)
class Number:
    """One number of a cell, the error or the backdoor's success: ours by seed, and the paper's."""

    ours: tuple[float, ...]
    paper: float | None
    limit: float

    @property
    def mean(self) -> float:
        return statistics.fmean(self.ours)

    @property
    def spread(self) -> float:
        """Sample standard deviation over the seeds; one seed has none."""
        return statistics.stdev(self.ours) if len(self.ours) > 1 else 0.0

    @property
    def difference(self) -> float | None:
        return None if self.paper is None or not self.ours else self.mean - self.paper

    @property
    def allowed(self) -> float:
        return max(self.limit, 2 * self.spread)

    @property
    def verdict(self) -> Verdict:
        if not self.ours:
            return "not run"
        if self.difference is None:
            return "no number"
        return "agrees" if abs(self.difference) <= self.allowed + 1e-9 else "differs"  # 0.08 - 0.05 is a little more than 0.03

    @property
    def only_by_spread(self) -> bool:
        """Farther from the paper than the limit, but its seeds are so far apart that this says little."""
        return self.verdict == "agrees" and self.difference is not None and abs(self.difference) > self.limit + 1e-9


@dataclass(frozen=True)
class Judged:
    """A cell with what was run of it."""

    cell: Cell
    results: tuple[Result, ...]  # by seed
    error: Number
    success: Number | None  # of a backdoor

    @property
    def missing(self) -> str:
        """What to say where nothing was run."""
        return "not run: no data here" if self.cell.run.dataset in NO_DATA else "not run"

    @property
    def strict(self) -> bool:
        return self.error.limit == STRICT


def judge(exhibit: Exhibit, results: Results) -> list[Judged]:
    return [_judged(cell, tuple(results.seeds(cell.run))) for cell in exhibit.cells]


def _judged(cell: Cell, results: tuple[Result, ...]) -> Judged:
    limit = STRICT if cell.strict else LOOSE
    error = Number(tuple(result.error for result in results), None if cell.paper is None else cell.paper.error, limit)
    ours = tuple(result.final_success for result in results if result.final_success is not None)
    paper = None if cell.paper is None else cell.paper.success
    return Judged(cell, results, error, Number(ours, paper, limit) if ours or paper is not None else None)


class Tally(NamedTuple):
    """Cells counted. Agreement is counted among the cells that ran and have a number in the paper; a backdoor's success for itself."""

    cells: int
    ran: int
    compared: int
    agree: int
    only_by_spread: int  # of those that agree
    success_compared: int
    success_agree: int


def tally(judged: Iterable[Judged]) -> Tally:
    judged = list(judged)
    errors = [one.error.verdict for one in judged]
    successes = [one.success.verdict for one in judged if one.success]
    return Tally(
        cells=len(judged),
        ran=sum(verdict != "not run" for verdict in errors),
        compared=sum(verdict in ("agrees", "differs") for verdict in errors),
        agree=errors.count("agrees"),
        only_by_spread=sum(one.error.only_by_spread for one in judged),
        success_compared=sum(verdict in ("agrees", "differs") for verdict in successes),
        success_agree=successes.count("agrees"),
    )


def of_the_paper(judged: Mapping[Exhibit, Iterable[Judged]]) -> tuple[int, int]:
    """How many experiments of the paper's own tables and figures have run, of how many whose data can be had; each counts once."""
    cells = (one for exhibit, cells in judged.items() if exhibit.of_paper for one in cells if one.cell.run.dataset not in NO_DATA)
    ran = {one.cell.run.key: bool(one.results) for one in cells}
    return sum(ran.values()), len(ran)


def plain_error(cell: Cell, results: Results) -> float | None:
    """FedAvg's error without an attack on the same data, which the paper measures everything against."""
    cells = (one for one in EXHIBITS["methods"].cells if one.run.dataset == cell.run.dataset)
    plain = next(one for one in cells if one.plain)
    errors = [result.error for result in results.seeds(plain.run)]
    return statistics.fmean(errors) if errors else None
