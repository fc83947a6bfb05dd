"""Many runs, as `fltrust reproduce` and `fltrust league` do them: what is missing is planned, run, written and printed."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast, get_args

from rich.console import Console
from rich.table import Table

from fltrust import datasets
from fltrust.cli.run import chosen_device
from fltrust.cli.stopping import resumable
from fltrust.datasets.own import is_own
from fltrust.errors import InputError, printable
from fltrust.experiment import Experiment, Precision
from fltrust.paper.plan import estimate
from fltrust.registry import known, load_plugin
from fltrust.report.reading import results_in
from fltrust.report.words import duration, plural
from fltrust.running.pool import Event, Finished, Reached, Spared, execute, forget
from fltrust.running.progress import Progress
from fltrust.running.sinks import describe
from fltrust.store import results
from fltrust.store.files import hardware, lock, read_json
from fltrust.store.results import UNFINISHED, Result, Results

Text = TypeVar("Text")


@dataclass(frozen=True)
class How:
    """Where and how runs are done: the options of `fltrust.cli.shared`."""

    device: str
    precision: str | None
    jobs: int | None
    ray: str | None
    data_dir: str | None
    plugins: Sequence[Path]
    out: Path = Path("results")
    dry_run: bool = False
    reported: bool = True  # whether `fltrust report` shows such runs

    def prepare(self, seeds: int) -> None:
        """Loads the plug-ins and refuses what makes no sense."""
        for plugin in self.plugins:
            load_plugin(plugin)
        if self.precision is not None:
            known("precision", self.precision, get_args(Precision))
        known("device", self.device, ("auto", "cpu", "cuda"))
        if self.out.exists() and not self.out.is_dir():
            raise InputError(f"--out {self.out} is a file, not a folder")
        for what, number in (("--seeds", seeds), ("--jobs", self.at_once)):
            if number < 1:
                raise InputError(f"{what} must be at least 1, not {number}")

    @property
    def at_once(self) -> int:
        """How many runs go at the same time."""
        return 1 if self.jobs is None else self.jobs

    @property
    def arithmetic(self) -> Precision:
        return cast(Precision, self.precision) if self.precision else "float32"

    def done(self, screen: Console) -> Results:
        """The finished runs in the folder; a damaged result is named on the screen, and is none of them."""
        found = results_in(self.out)
        for problem in found.problems:
            say(screen, f"damaged, so it counts as not run: {problem.what}: {problem.why}", style="yellow")
        return found.results

    def answered(self, run: Experiment, done: Results) -> bool:
        """Whoever names no arithmetic is content with any that was used."""
        return done.done(run) if self.precision else done.of(run) is not None


def work_through(
    screen: Console,
    runs: Sequence[Experiment],
    how: How,
    done: Results,
    *,
    parts: Mapping[tuple[str, str], Sequence[Experiment]],
    line: Callable[[Result], str],
    begin: Callable[[], None] = lambda: None,
    keep: Callable[[Path], None] = lambda directory: None,
    needless: Callable[[Experiment], bool] = lambda run: False,
) -> dict[Experiment, str]:
    """Does the runs that are missing, in their order, and adds them to `done`. Returns those that failed, and why.

    `parts` are the lines of the plan: name and title, and its runs. `line` says what a result shows. `begin` is called once no other
    program writes in the folder. `keep` looks at the directory of each finished run before it is removed. `needless` says of a run whether
    `done` makes it needless by now; a Ray cluster asks at the start only. Called with `--dry-run`, it only says what it would do.
    """
    missing, left = _missing_and_left(runs, how, done, needless)
    here = "" if how.ray else hardware(chosen_device(how.device, how.arithmetic))  # of a cluster nothing is known beforehand
    if how.dry_run:
        _show_plan(screen, parts, how, done, here, needless)
    took = f"; {_time(left, done, here, how.at_once)}" if left else ""
    spared = f", {len(missing) - len(left):,} not needed" if len(left) < len(missing) else ""
    screen.print(f"{plural(len(runs), 'run')}, {len(runs) - len(missing):,} done{spared}, {len(left):,} to do{took}", highlight=False)
    counts = Counter(run.dataset for run in left)
    lacking = {} if how.ray else {name: why for name in counts if (why := _missing(name, how.data_dir))}  # a cluster has its own disks
    if lacking and len(lacking) == len(counts) and not how.dry_run:
        raise InputError("; ".join(lacking.values()))
    for name, why in lacking.items():
        say(screen, f"no data for {counts[name]} of them: {why}", style="yellow")
    if how.dry_run:
        return {}
    work = how.out / UNFINISHED
    with closing(lock(work)):  # two programs in one folder would do the same runs twice
        begin()
        for run in runs:
            if how.answered(run, done) or needless(run):  # the program was killed before it could tidy up, or in a run that is spared now
                forget(run, work)
        return _do(screen, left, lacking, how, done, line, keep, needless) if left else {}


def _missing_and_left(
    runs: Sequence[Experiment], how: How, done: Results, needless: Callable[[Experiment], bool]
) -> tuple[list[Experiment], list[Experiment]]:
    """The runs without a result, and those of them that are needed."""
    missing = [run for run in runs if not how.answered(run, done)]
    return missing, [run for run in missing if not needless(run)]


def _missing(name: str, data_dir: str | None) -> str | None:
    """A user's own data are found, or not, when they are loaded."""
    return None if is_own(name) else datasets.missing(name, data_dir)


def _do(
    screen: Console,
    left: list[Experiment],
    lacking: dict[str, str],
    how: How,
    done: Results,
    line: Callable[[Result], str],
    keep: Callable[[Path], None],
    needless: Callable[[Experiment], bool],
) -> dict[Experiment, str]:
    possible = [run for run in left if run.dataset not in lacking]
    if how.ray is None:
        device = chosen_device(how.device, how.arithmetic)
        work = how.out / UNFINISHED
        events = execute(possible, work, jobs=how.at_once, device=device, data_dir=how.data_dir, plugins=how.plugins, needless=needless)
    else:
        from fltrust.running import cluster

        events = cluster.execute(possible, how.ray, device=how.device, jobs=how.at_once, data_dir=how.data_dir, plugins=how.plugins)
    failed = {run: lacking[run.dataset] for run in left if run.dataset in lacking}
    broke, spared = _follow(screen, events, possible, how, done, line, keep)
    failed |= broke
    if failed:
        for reason, times in Counter(failed.values()).items():
            first = next(run for run, why in failed.items() if why == reason)
            others = "" if times == 1 else f", and {times - 1} more"
            say(screen, f"failed: {describe(first)}{others}: {reason}", style="red")
    finished = len(left) - len(failed) - spared
    needed_no_more = f", {spared:,} no longer needed" if spared else ""
    if failed:
        said = f"{plural(finished, 'run')} finished{needed_no_more}, {len(failed)} failed; the same command tries them again"
        screen.print(said, highlight=False)
        return failed
    see = f"; see them with: fltrust report {how.out}" if how.reported else ""
    say(screen, f"{'the run' if finished == 1 else f'all {finished:,} runs'} finished{needed_no_more}{see}")
    return {}


def _follow(
    screen: Console,
    events: Iterator[Event],
    left: Collection[Experiment],
    how: How,
    done: Results,
    line: Callable[[Result], str],
    keep: Callable[[Path], None],
) -> tuple[dict[Experiment, str], int]:
    """Writes every result the moment it comes, and says so. Returns the runs that failed, and why; and how many were needed no more."""
    failed: dict[Experiment, str] = {}
    spared = 0
    reached: dict[Experiment, float] = {}  # the share of each run that has begun, 1 of those that ended
    progress = Progress(screen)

    def ended() -> int:
        return sum(share == 1 for share in reached.values())

    def stopped() -> str:
        finished = ended() - len(failed) - spared
        return f"stopped: {finished:,} of {plural(len(left), 'run')} finished and saved in {how.out}; the same command resumes"

    with resumable(stopped), closing(progress), closing(events):  # type: ignore[type-var]
        progress.start("")
        for event in events:
            news = ""
            if isinstance(event, Reached):
                reached[event.run] = min(event.round / event.run.rounds, 0.999)  # its result is still to be written
                news = f"{describe(event.run)}: round {event.round:,} of {event.run.rounds:,}"
            elif isinstance(event, Finished):
                keep(how.out / UNFINISHED / event.run.key)
                path = results.write(event.result, how.out)
                stored = results.from_json(read_json(path), path)  # rounded: later commands show the same numbers
                done.add(stored)
                forget(event.run, how.out / UNFINISHED)
                reached[event.run] = 1
                progress.say(line(stored))
            elif isinstance(event, Spared):
                spared += 1
                forget(event.run, how.out / UNFINISHED)
                reached[event.run] = 1
            else:
                failed[event.run] = event.reason
                reached[event.run] = 1
                progress.say(f"failed: {describe(event.run)}: {event.reason}")
            progress.update(sum(reached.values()) / len(left), f"{ended():,} of {plural(len(left), 'run')}", news)
    return failed, spared


def _show_plan(
    screen: Console,
    parts: Mapping[tuple[str, str], Sequence[Experiment]],
    how: How,
    done: Results,
    here: str,
    needless: Callable[[Experiment], bool],
) -> None:
    rows = []
    for part, runs in parts.items():
        missing, left = _missing_and_left(runs, how, done, needless)
        counts = {"runs": len(runs), "done": len(runs) - len(missing), "not needed": len(missing) - len(left), "to do": len(left)}
        rows.append((*part, counts, _time(left, done, here, 1) if left else ""))
    titles = [title for title in ("runs", "done", "not needed", "to do") if title != "not needed" or any(row[2][title] for row in rows)]
    table = Table("name", "what", box=None, header_style="bold")
    for title in (*titles, "one after the other"):
        table.add_column(title, justify="right")
    for name, what, counts, time in rows:
        table.add_row(name, what, *(str(counts[title]) for title in titles), time)
    screen.print(table)
    if len(parts) > 1:
        screen.print("Runs that appear in more than one row are counted once.", style="dim")


def _time(left: Sequence[Experiment], done: Results, here: str, jobs: int) -> str:
    seconds, unknown = estimate(left, done, here)
    if unknown == len(left):
        return "time unknown"  # no such run was made on this hardware yet
    return f"about {duration(seconds / jobs)}" + (f", {unknown} unknown" if unknown else "")


def say(screen: Console, words: str, style: str | None = None) -> None:
    screen.print(printable(words), style=style, highlight=False, markup=False, soft_wrap=True)


def numbers(error: float, success: float | None, digits: int = 3) -> str:
    return f"{error:.{digits}f}" + ("" if success is None else f" / {success:.{digits}f}")


def seconds(result: Result) -> str:
    return "" if result.seconds is None else f"  {result.seconds:.1f} s"


def table_writer(how: How, rounds: int | None, format: str | None, formats: Mapping[str, Text]) -> Text | None:
    """How `--format` writes the table, or None for runs; refuses what no command of the league's rules takes."""
    if rounds is not None and rounds < 1:
        raise InputError(f"--rounds must be at least 1, not {rounds}")
    write = None if format is None else text_format(format, formats)
    if write and not how.out.is_dir():
        raise InputError(f"there is no folder {how.out} with results")
    return write


def text_format(name: str, formats: Mapping[str, Text]) -> Text:
    """How `--format` NAME writes a table; 'md' is short for markdown."""
    return formats[known("format", "markdown" if name == "md" else name, formats)]
