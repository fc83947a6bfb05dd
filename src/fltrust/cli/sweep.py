"""`fltrust sweep`: runs a grid of experiments, and says how many malicious clients each rule survives."""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fltrust.cli.changed import own_data, refuse_changed
from fltrust.cli.many import How, numbers, say, seconds, text_format, work_through
from fltrust.codec import canonical, plain, read_toml
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.registry import ATTACKS, RULES
from fltrust.report import build, readable
from fltrust.report.reading import SWEEP, Planned, read_plan
from fltrust.report.survival import Board, boards
from fltrust.report.survival_text import FORMATS, words
from fltrust.report.tables import mean_and_spread
from fltrust.report.words import name_of, plural
from fltrust.store.files import replace
from fltrust.store.results import UNFINISHED, Result
from fltrust.sweep import Grid, LeftOut, Plan, grid_of, plan

FEW = 6  # attacks whose columns fit on a screen
SHOWN = 3  # data sets and settings


def run_sweep(
    config: Path | None,
    given: Mapping[str, str],
    settings: Sequence[str],
    out: Path | None,
    *,
    threshold: float,
    format: str | None,
    how: How,
) -> None:
    written = read_toml(config) if config else {}
    if (precision := written.pop("precision", None)) is not None and how.precision is None:
        how = dataclasses.replace(how, precision=precision)
    how = dataclasses.replace(how, out=out or Path(), reported=False)
    how.prepare(1)
    if format is not None:
        write = text_format(format, FORMATS)
        if out is None:
            raise InputError("--format prints what a folder holds: name it with --out")
        print(write(boards(readable([how.out]).results, threshold), threshold), end="")
        return
    try:
        grid_of(written, {})
    except InputError as mistake:
        raise InputError(f"{config}: {mistake}") from mistake
    grid = grid_of(written, given, settings)
    if out is None:
        how = dataclasses.replace(how, out=Path("sweeps") / _key(grid))
    refuse_others(how.out)
    whole = plan(grid, how.arithmetic)
    screen = Console()
    say_left_out(screen, whole.left_out)
    done = how.done(screen)
    stored = done.all()
    refuse_changed(stored, own_data([run.dataset for run in whole.runs], stored, how.data_dir), how.out, whole.runs)
    failed = work_through(screen, whole.runs, how, done, parts=_parts(whole.runs), line=_line, begin=lambda: write_plan(whole, how.out))
    if not how.dry_run and done.all():
        made = build([how.out], how.out / "report", threshold)
        for board in made.boards[:SHOWN]:
            _show(screen, board, threshold)
        say(screen, f"{made.files[0]}: open it in a browser")
    if failed:
        raise typer.Exit(1)


def _key(grid: Grid) -> str:
    """Names the folder of a sweep that has no --out: the same grid goes on there."""
    return hashlib.sha256(canonical(plain([sorted(grid.values.items()), grid.seeds])).encode()).hexdigest()[:12]


def refuse_others(out: Path) -> None:
    """A folder of other results would get this sweep's report."""
    if out.is_dir() and not (out / SWEEP).exists() and any(entry.name != UNFINISHED for entry in out.iterdir()):
        raise InputError(f"{out} is not empty and holds no sweep: choose another --out")


def write_plan(whole: Plan, out: Path) -> None:
    """Beside what earlier sweeps planned in this folder."""
    earlier = read_plan(out / SWEEP) if (out / SWEEP).exists() else Planned({}, {}, {})
    replace(out / SWEEP, json.dumps(earlier.and_also(*whole)._asdict(), indent=1).encode())


def say_left_out(screen: Console, left_out: Sequence[LeftOut]) -> None:
    for why, times in Counter(one.why for one in left_out).items():
        first = next(one.what for one in left_out if one.why == why)
        others = "" if times == 1 else f", and {times - 1} more"
        say(screen, f"left out: {first}{others}: {why}", style="yellow")


def _parts(runs: Sequence[Experiment]) -> dict[tuple[str, str], list[Experiment]]:
    """The lines of the plan: one for each data set."""
    of_data: dict[str, list[Experiment]] = {}
    for run in runs:
        of_data.setdefault(run.dataset, []).append(run)

    def what(inside: list[Experiment]) -> str:
        rules, attacks = ({registry.name_of(getattr(run, registry.singular)) for run in inside} for registry in (RULES, ATTACKS))
        counts = {run.malicious for run in inside}
        return f"{plural(len(rules), 'rule')}, {plural(len(attacks), 'attack')}, {plural(len(counts), 'number')} of malicious clients"

    return {(dataset, what(inside)): inside for dataset, inside in of_data.items()}


def _line(result: Result) -> str:
    return f"{name_of(result.run)}: {numbers(result.error, result.final_success)}{seconds(result)}"


def _show(screen: Console, board: Board, threshold: float) -> None:
    """What each rule survives, as the first table of the page says it."""
    if not any(row.worst(threshold) for row in board.rows):
        return
    attacks = [attack for attack in board.attacks if any(line.attack == attack and not line.idle for line in board.lines)]
    attacks = attacks if len(attacks) <= FEW else []
    title = Text(f"{board.title}: malicious clients survived, of {board.num_clients}")
    shown = Table(title=title, title_justify="left", box=None, header_style="bold")
    for name in ("rule", "worst attack", "no attack", *attacks):
        shown.add_column(Text(name), justify="left" if name == "rule" else "right")
    for row in board.rows:
        lines, worst = {line.attack: line for line in row.lines}, row.worst(threshold)
        least = f"{words(*worst)} ({worst[1].attack})" if worst else ""
        clean = "" if row.clean is None else mean_and_spread(row.clean.error)
        cells = [words(line.survival(threshold), line) if (line := lines.get(attack)) else "not run" for attack in attacks]
        shown.add_row(*map(Text, (row.rule, least, clean, *cells)))
    screen.print(shown, highlight=False)
    say(screen, f"Harmed: test error or backdoor success more than {threshold:g} above that without attack.", style="dim")
