"""`fltrust league`: every rule against every attack, run where they have not been, and the table of what came out."""

import dataclasses
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fltrust.cli.changed import own_data, refuse_changed
from fltrust.cli.many import How, numbers, seconds, table_writer, work_through
from fltrust.league import ROWS, cells, chosen, plan
from fltrust.league.table import BOARDS, Board
from fltrust.registry import DATASETS
from fltrust.report.league_text import FORMATS, error_and_success, worst_of
from fltrust.report.standings import Standing, Standings, standings
from fltrust.report.words import plural
from fltrust.report.words import seeds as seeds_of
from fltrust.store.results import Result, Results, first_seed

FEW = 4  # rules whose numbers under every attack fit on a screen


def league(
    *,
    only_datasets: Sequence[str],
    only_rules: Sequence[str],
    only_attacks: Sequence[str],
    seeds: int,
    rounds: int | None,
    format: str | None,
    how: How,
) -> None:
    how.prepare(seeds)
    write = table_writer(how, rounds, format, FORMATS)
    boards = chosen(only_datasets, only_rules, only_attacks)
    runs = plan(boards, seeds=seeds, precision=how.arithmetic, rounds=rounds)
    screen = Console(stderr=write is not None)  # beside the table that --format prints
    done = how.done(screen)
    tables = [standings(board, done, rounds) for board in boards]
    stored = [result for table in tables for result in table.results]
    refuse_changed(stored, own_data([board.dataset for board in boards], stored, how.data_dir), how.out, runs)
    if write:
        print(write(tables), end="")
        return
    places = {cell.run.key: cell for board in boards for cell in cells(board, rounds) if cell.run}

    def line(result: Result) -> str:
        cell = places[first_seed(result.run).key]
        said = f"{DATASETS.entry(cell.dataset).label}, {cell.row.label}, {cell.column.label}, seed {result.run.seed}"
        return f"league: {said}: {numbers(result.error, result.final_success)}{seconds(result)}"

    parts = {
        (board.dataset, f"{plural(len(board.rows), 'rule')} x {_attacks(board)}"): [run for run in runs if run.dataset == board.dataset]
        for board in boards
    }
    how = dataclasses.replace(how, reported=rounds is None and all(board.dataset in BOARDS for board in boards))
    failed = work_through(screen, runs, how, done, parts=parts, line=line)
    if how.dry_run:
        return
    for board in boards:
        _show(screen, standings(board, done, rounds), done, rounds)
    if failed:
        raise typer.Exit(1)


def _attacks(board: Board) -> str:
    """No attack is a column too."""
    idle = any(column.idle for column in board.columns)
    counted = plural(len(board.columns) - idle, "attack")
    return f"{counted} and none" if idle else counted


def _show(screen: Console, table: Standings, done: Results, rounds: int | None) -> None:
    screen.print()
    if len(table.rows) <= FEW:
        _show_attacks(screen, table, _beside(table, done, rounds))
    else:
        _show_rules(screen, table)
    counts = f"{seeds_of(table.counts)}. " if table.counts else ""
    screen.print(f"Test error, and after a slash the success of a targeted attack. {counts}", style="dim", highlight=False)


def _beside(table: Standings, done: Results, rounds: int | None) -> list[Standing]:
    """The baselines and FLTrust as far as they were run, for whoever asks about a rule of their own."""
    board = BOARDS.get(table.board.dataset, table.board)
    asked = {one.row.name for one in table.rows}
    rows = tuple(row for row in ROWS if (row.baseline or row.name == "fltrust") and row.name not in asked)
    if not rows:
        return []
    others = type(board)(board.dataset, rows, table.columns)
    return [one for one in standings(others, done, rounds).rows if one.ran]


def _show_rules(screen: Console, table: Standings) -> None:
    shown = Table(title=f"{table.label}: the worst attack of the set", title_justify="left", box=None, header_style="bold")
    for title in ("rule", "worst error", "under", "worst success", "under", "no attack", "attacks run", "ms per round"):
        shown.add_column(title, justify="left" if title in ("rule", "under") else "right")
    for one in table.rows:
        clean = next((error_and_success(place) for place in one.places if place.cell.column.idle), "")
        shown.add_row(
            Text(one.row.label + (" (baseline)" if one.row.baseline else "")),
            *map(Text, worst_of(one.worst_error)),
            *map(Text, worst_of(one.worst_success)),
            clean,
            f"{one.ran} of {len(one.attacked)}",
            "" if one.milliseconds is None else f"{one.milliseconds:.1f}",
        )
    screen.print(shown, highlight=False)


def _show_attacks(screen: Console, table: Standings, beside: Sequence[Standing]) -> None:
    rows = [*table.rows, *beside]
    shown = Table("attack", title=table.label, title_justify="left", box=None, header_style="bold")
    for one in rows:
        shown.add_column(Text(one.row.label), justify="right")
    for place, column in enumerate(table.columns):
        shown.add_row(Text(column.label), *(error_and_success(one.places[place]) for one in rows))
    shown.add_section()
    shown.add_row("worst error", *(_named(worst_of(one.worst_error), one) for one in rows), style="bold")
    if any(column.targeted for column in table.columns):
        shown.add_row("worst success", *(_named(worst_of(one.worst_success), one) for one in rows), style="bold")
    screen.print(shown, highlight=False)


def _named(worst: tuple[str, str], one: Standing) -> Text:
    number, attack = worst
    return Text(f"{number} ({attack})" if attack else "" if one.ran else "not run")
