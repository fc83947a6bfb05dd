"""`fltrust worst-case`: every rule under an attack that is searched on it, run where it has not been, and the table of what came out."""

import dataclasses
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fltrust.cli.changed import own_data, refuse_changed
from fltrust.cli.many import How, numbers, seconds, table_writer, work_through
from fltrust.league.worst_case import DATA, asked, plan
from fltrust.registry import DATASETS
from fltrust.report.words import plural
from fltrust.report.words import seeds as seeds_of
from fltrust.report.worst_case import MEANING, Place, WorstCases, attack_label, before_search, cells_by_run, needless, worst_cases
from fltrust.report.worst_case_text import FORMATS, number
from fltrust.store.results import Result, first_seed


def worst_case(
    *,
    only_datasets: Sequence[str],
    only_rules: Sequence[str],
    only_shares: Sequence[int],
    seeds: int,
    rounds: int | None,
    format: str | None,
    how: How,
) -> None:
    how.prepare(seeds)
    write = table_writer(how, rounds, format, FORMATS)
    questions = asked(only_datasets, only_rules, only_shares, rounds)
    screen = Console(stderr=write is not None)  # beside the table that --format prints
    done = how.done(screen)
    tables = worst_cases(questions, done)
    before = before_search(questions, done)
    runs = plan(questions, seeds=seeds, precision=how.arithmetic, before=before)
    stored = [result for table in tables for result in table.results]
    refuse_changed(stored, own_data([question.dataset for question in questions], stored, how.data_dir), how.out, runs)
    if write:
        print(write(tables), end="")
        return
    parts = {
        (question.dataset, f"{plural(len(question.rows), 'rule')} x {plural(len(question.shares), 'share')}"): [
            run for run in runs if run.dataset == question.dataset
        ]
        for question in questions
    }
    how = dataclasses.replace(how, reported=rounds is None and all(question.dataset in DATA for question in questions))
    spared = needless(questions, before, done, lambda run: how.answered(run, done))
    cells = cells_by_run(questions, before)

    def line(result: Result) -> str:
        return _line(result, cells[first_seed(result.run).key].row.name)  # forms of Anchor have names here

    failed = work_through(screen, runs, how, done, parts=parts, line=line, needless=spared)
    if how.dry_run:
        return
    for table in worst_cases(questions, done):
        _show(screen, table)
    if failed:
        raise typer.Exit(1)


def _line(result: Result, rule: str) -> str:
    run = result.run
    share = "no attack" if run.attack.idle else f"{run.malicious} of {run.num_clients} malicious, {attack_label(run.attack)}"
    said = f"{DATASETS.entry(run.dataset).label}, {rule}, {share}, seed {run.seed}"
    return f"worst-case: {said}: {numbers(result.error, result.final_success)}{seconds(result)}"


def _show(screen: Console, table: WorstCases) -> None:
    shown = Table(title=f"{table.label}: worst-case error", title_justify="left", box=None, header_style="bold")
    shown.add_column("rule")
    for share in table.shares:
        shown.add_column(f"{share} %" if share else "no attack", justify="right")
    for row in table.rows:
        shown.add_row(Text(row.row.label), *(_words(place) for place in row.places))
    screen.print()
    screen.print(shown, highlight=False)
    refusals = {place.cell.row.label: place.cell.impossible for place in table.places if place.cell.impossible}
    said = [MEANING, *([f"{seeds_of(table.counts)}."] if table.counts else [])]
    said += table.remarks
    said += [f"Cannot run: {rule}: {why}." for rule, why in refusals.items()]
    for sentence in said:
        screen.print(sentence, style="dim", highlight=False, markup=False)


def _words(place: Place) -> Text:
    """The number, and below it the attack."""
    return Text(number(place) + (f"\n{place.worst.label}" if place.worst and place.cell.share else ""))
