"""`fltrust reproduce`: the paper's tables and figures, run where they have not been, each number beside the paper's."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fltrust import datasets
from fltrust.attacks import ATTACKS
from fltrust.cli.run import chosen_device
from fltrust.errors import InputError
from fltrust.experiment import Experiment, Precision
from fltrust.paper import EXHIBITS, Cell, Exhibit
from fltrust.paper.exhibit import DATASETS
from fltrust.paper.plan import estimate, plan
from fltrust.registry import known, load_plugin
from fltrust.report.words import duration
from fltrust.rules import RULES
from fltrust.running.pool import Event, Finished, Reached, execute, forget
from fltrust.running.sinks import describe
from fltrust.store import results
from fltrust.store.files import hardware, lock
from fltrust.store.results import Result, Results

WORK = ".unfinished"  # in the folder of the results: what an interrupted run goes on from


def reproduce(
    names: list[str],
    *,
    only_datasets: list[str],
    only_attacks: list[str],
    only_rules: list[str],
    seeds: int,
    device: str,
    precision: str | None,
    jobs: int,
    ray: str | None,
    data_dir: str | None,
    plugins: Sequence[Path] = (),
    out: Path,
    dry_run: bool,
) -> None:
    for plugin in plugins:
        load_plugin(plugin)
    for what, given, registry in (
        ("table or figure", names, EXHIBITS),
        ("dataset", only_datasets, DATASETS),
        ("attack", only_attacks, ATTACKS),
        ("rule", only_rules, RULES),
        ("precision", [] if precision is None else [precision], get_args(Precision)),
        ("device", [device], ("auto", "cpu", "cuda")),
    ):
        for name in given:
            known(what, name, registry)
    for what, number in (("--seeds", seeds), ("--jobs", jobs)):
        if number < 1:
            raise InputError(f"{what} must be at least 1, not {number}")
    exhibits = [EXHIBITS[name] for name in names] or list(EXHIBITS.values())
    done = results.read(out) if out.is_dir() else Results()

    asked: Precision = cast(Precision, precision) if precision else "float32"

    def planned(some: Iterable[Exhibit]) -> list[Experiment]:
        return plan(some, seeds=seeds, precision=asked, only_datasets=only_datasets, only_attacks=only_attacks, only_rules=only_rules)

    def answered(run: Experiment) -> bool:
        """Whoever names no arithmetic is content with any that was used."""
        return done.done(run) if precision else done.of(run) is not None

    runs = planned(exhibits)
    if not runs:
        raise InputError("no run of these tables and figures has that data set, attack and rule")
    left = [run for run in runs if not answered(run)]
    here = "" if ray else hardware(chosen_device(device, asked))  # of a cluster nothing is known beforehand
    screen = Console()
    if dry_run:
        _show_plan(screen, {exhibit: planned([exhibit]) for exhibit in exhibits}, answered, done, here)
    took = f"; {_time(left, done, here, jobs)}" if left else ""
    screen.print(f"{len(runs)} runs, {len(runs) - len(left)} done, {len(left)} to do{took}", highlight=False)
    counts = Counter(run.dataset for run in left)
    lacking = {} if ray else {name: why for name in counts if (why := datasets.missing(name, data_dir))}  # a cluster has its own disks
    if lacking and len(lacking) == len(counts) and not dry_run:
        raise InputError("; ".join(lacking.values()))
    for name, why in lacking.items():
        screen.print(f"no data for {counts[name]} of them: {why}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if dry_run:
        return
    work = out / WORK
    with closing(lock(work)):  # two programs in one folder would do the same runs twice
        for run in runs:
            if answered(run):  # its result was written, but the program killed before it could tidy up
                forget(run, work)
        if left:
            _do(screen, left, lacking, exhibits, out, device=device, jobs=jobs, ray=ray, data_dir=data_dir, plugins=plugins)


def _do(
    screen: Console,
    left: list[Experiment],
    lacking: dict[str, str],
    exhibits: list[Exhibit],
    out: Path,
    *,
    device: str,
    jobs: int,
    ray: str | None,
    data_dir: str | None,
    plugins: Sequence[Path],
) -> None:
    work = out / WORK
    possible = [run for run in left if run.dataset not in lacking]
    if ray is None:
        events = execute(possible, work, jobs=jobs, device=chosen_device(device, left[0].precision), data_dir=data_dir, plugins=plugins)
    else:
        from fltrust.running import cluster

        events = cluster.execute(possible, ray, device=device, jobs=jobs, data_dir=data_dir, plugins=plugins)
    failed = {run: lacking[run.dataset] for run in left if run.dataset in lacking}
    failed |= _follow(screen, events, possible, exhibits, out, work)
    if failed:
        for reason, times in Counter(failed.values()).items():
            first = next(run for run, why in failed.items() if why == reason)
            others = "" if times == 1 else f", and {times - 1} more"
            screen.print(f"failed: {describe(first)}{others}: {reason}", style="red", highlight=False, markup=False, soft_wrap=True)
        screen.print(f"{len(left) - len(failed)} runs finished, {len(failed)} failed; the same command tries them again", highlight=False)
        raise typer.Exit(1)
    screen.print(f"all {len(left)} runs finished; see them with: fltrust report {out}", highlight=False, markup=False, soft_wrap=True)


def _follow(
    screen: Console, events: Iterator[Event], left: list[Experiment], exhibits: list[Exhibit], out: Path, work: Path
) -> dict[Experiment, str]:
    """Writes every result the moment it comes, and says so. Returns the runs that failed, and why."""
    cells = {cell.run.key: (exhibit, cell) for exhibit in reversed(exhibits) for cell in exhibit.cells}
    failed: dict[Experiment, str] = {}
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[news]}"))
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress, closing(events):  # type: ignore[type-var]
        bar = progress.add_task("", total=len(left), news="")
        for event in events:
            if isinstance(event, Reached):
                progress.update(bar, news=f"{describe(event.run)}: round {event.round} of {event.run.rounds}")
                continue
            if isinstance(event, Finished):
                results.write(event.result, out)
                forget(event.run, work)
                screen.print(_line(*cells[results.first_seed(event.run).key], event.result), highlight=False, markup=False, soft_wrap=True)
            else:
                failed[event.run] = event.reason
                screen.print(f"failed: {describe(event.run)}: {event.reason}", highlight=False, markup=False, soft_wrap=True)
            progress.advance(bar)
    return failed


def _line(exhibit: Exhibit, cell: Cell, result: Result) -> str:
    def numbers(error: float, success: float | None, digits: int) -> str:
        return f"{error:.{digits}f}" + ("" if success is None else f" / {success:.{digits}f}")

    place = ", ".join(part for part in (cell.page, cell.row, cell.column) if part)
    paper = "" if cell.paper is None else f"  (paper {numbers(cell.paper.error, cell.paper.success, 2)})"
    took = "" if result.seconds is None else f"  {result.seconds:.1f} s"
    return f"{exhibit.name}: {place}, seed {result.run.seed}: {numbers(result.error, result.final_success, 3)}{paper}{took}"


def _show_plan(
    screen: Console, planned: dict[Exhibit, list[Experiment]], answered: Callable[[Experiment], bool], done: Results, here: str
) -> None:
    table = Table("name", "what", box=None, header_style="bold")
    for title in ("runs", "done", "to do", "one after the other"):
        table.add_column(title, justify="right")
    for exhibit, runs in planned.items():
        left = [run for run in runs if not answered(run)]
        time = _time(left, done, here, 1) if left else ""
        table.add_row(exhibit.name, exhibit.title, str(len(runs)), str(len(runs) - len(left)), str(len(left)), time)
    screen.print(table)
    screen.print("A run that stands in several of them is done once.", style="dim")


def _time(left: list[Experiment], done: Results, here: str, jobs: int) -> str:
    seconds, unknown = estimate(left, done, here)
    if unknown == len(left):
        return "time unknown"  # no such run was made on this hardware yet
    return f"about {duration(seconds / jobs)}" + (f", {unknown} unknown" if unknown else "")
