"""`fltrust reproduce checks`: the experiments of other authors, each number beside theirs."""

import dataclasses
from collections.abc import Iterable, Sequence

import typer
from rich.console import Console

from fltrust.checks.check import Cell, Table, accuracy
from fltrust.checks.tables import TABLES, tables
from fltrust.cli.many import How, seconds, work_through
from fltrust.experiment import Experiment
from fltrust.registry import known
from fltrust.store.results import Result, first_seed

EVERY_CHECK = "checks"


def run_checks(names: Sequence[str], *, seeds: int, how: How) -> None:
    for name in names:
        known("check", name, [*TABLES, EVERY_CHECK])
    chosen = tables([] if EVERY_CHECK in names else names)

    def planned(some: Iterable[Table]) -> list[Experiment]:
        first = {cell.run.key: cell.run for table in some for cell in table.cells}
        return [dataclasses.replace(run, seed=seed, precision=how.arithmetic) for seed in range(seeds) for run in first.values()]

    cells = {cell.run.key: (table, cell) for table in reversed(chosen) for cell in table.cells}
    screen = Console()
    failed = work_through(
        screen,
        planned(chosen),
        how,
        how.done(screen),
        parts={(table.name, table.title): planned([table]) for table in chosen},
        line=lambda result: _line(*cells[first_seed(result.run).key], result),
    )
    if failed:
        raise typer.Exit(1)


def _line(table: Table, cell: Cell, result: Result) -> str:
    theirs = "" if cell.theirs is None else f"  (theirs {cell.theirs.accuracy:.1f})"
    ours = f"{accuracy(result, table.metric):.1f} %"
    return f"{table.name}: {cell.row}, {cell.column}, seed {result.run.seed}: {ours}{theirs}{seconds(result)}"
