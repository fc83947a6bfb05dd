"""`fltrust reproduce`: the paper's tables and figures, run where they have not been, each number beside the paper's."""

from collections.abc import Iterable

import typer
from rich.console import Console

from fltrust.attacks import ATTACKS
from fltrust.checks.tables import TABLES
from fltrust.cli.checks import EVERY_CHECK, run_checks
from fltrust.cli.many import How, numbers, seconds, work_through
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.paper import EXHIBITS, Cell, Exhibit
from fltrust.paper.exhibit import DATASETS
from fltrust.paper.plan import plan
from fltrust.registry import known
from fltrust.rules import RULES
from fltrust.store.results import Result, first_seed


def reproduce(
    names: list[str],
    *,
    only_datasets: list[str],
    only_attacks: list[str],
    only_rules: list[str],
    seeds: int,
    how: How,
) -> None:
    how.prepare(seeds)
    if set(names) & {*TABLES, EVERY_CHECK}:
        if only_datasets or only_attacks or only_rules:
            raise InputError("other authors' numbers are run table by table: leave out --dataset, --attack and --rule")
        run_checks(names, seeds=seeds, how=how)
        return
    only_datasets, only_attacks, only_rules = ([name.lower() for name in given] for given in (only_datasets, only_attacks, only_rules))
    for what, given, registry in (
        ("table or figure", names, {**EXHIBITS, **TABLES, EVERY_CHECK: None}),
        ("dataset", only_datasets, DATASETS),
        ("attack", only_attacks, ATTACKS),
        ("rule", only_rules, RULES),
    ):
        for name in given:
            known(what, name, registry)
    exhibits = [EXHIBITS[name] for name in names] or list(EXHIBITS.values())

    def planned(some: Iterable[Exhibit]) -> list[Experiment]:
        return plan(
            some, seeds=seeds, precision=how.arithmetic, only_datasets=only_datasets, only_attacks=only_attacks, only_rules=only_rules
        )

    runs = planned(exhibits)
    if not runs:
        raise InputError("no run of these tables and figures has that data set, attack and rule")
    cells = {cell.run.key: (exhibit, cell) for exhibit in reversed(exhibits) for cell in exhibit.cells}
    screen = Console()
    failed = work_through(
        screen,
        runs,
        how,
        how.done(screen),
        parts={(exhibit.name, exhibit.title): planned([exhibit]) for exhibit in exhibits},
        line=lambda result: _line(*cells[first_seed(result.run).key], result),
    )
    if failed:
        raise typer.Exit(1)


def _line(exhibit: Exhibit, cell: Cell, result: Result) -> str:
    place = ", ".join(part for part in (cell.page, cell.row, cell.column) if part)
    paper = "" if cell.paper is None else f"  (paper {numbers(cell.paper.error, cell.paper.success, 2)})"
    ours = numbers(result.error, result.final_success)
    return f"{exhibit.name}: {place}, seed {result.run.seed}: {ours}{paper}{seconds(result)}"
