"""What there is to report on: finished runs, unfinished ones, federations, and whatever could not be read, which stops nothing else."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from fltrust.audit import Audit
from fltrust.codec import canonical
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.report.words import name_of
from fltrust.store import results
from fltrust.store.files import read_json
from fltrust.store.results import UNFINISHED, Curves, Federation, Result, Results

SWEEP = "sweep.json"  # in the folder of a sweep: what it planned and what it left out
MOST_SECONDS = 1e10  # of a run: three hundred years

Kind = Literal["run", "runs", "sweep", "results"]
Read = TypeVar("Read")


class Problem(NamedTuple):
    """Something that stands in no table, and why."""

    what: str
    why: str


@dataclass
class Found:
    """What some folders hold."""

    results: Results = field(default_factory=Results)  # of finished runs
    unfinished: list[tuple[Path, Curves]] = field(default_factory=list)
    federations: list[tuple[Curves, Audit]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.results.all() or self.unfinished or self.federations)


def kind_of(source: Path) -> Kind:
    if not source.exists():
        raise InputError(f"there is no folder {source}")
    if not source.is_dir():
        raise InputError(f"{source} is a file, not a folder of results or of runs")
    if (source / "experiment.json").exists():
        return "run"
    if (source / SWEEP).exists():
        return "sweep"
    if any(_result_files(source)):
        return "results"
    if _run_directories(source):
        return "runs"
    raise InputError(f"{source} holds no run and no result: make some with 'fltrust run', 'fltrust sweep' or 'fltrust reproduce'")


def read(sources: Sequence[Path]) -> Found:
    """All that the folders hold; each run once, however often it is named."""
    found = Found()
    directories: dict[Path, Path] = {}
    for source in sources:
        kind = kind_of(source)
        inside = [source] if kind == "run" else _run_directories(source) if kind == "runs" else _run_directories(source / UNFINISHED)
        directories |= {run.resolve(): run for run in inside}
        if kind in ("sweep", "results"):
            there = results_in(source)
            found.results = Results((*found.results.all(), *there.results.all()))
            found.unfinished += there.unfinished
            found.problems += there.problems
    _collect(found, directories.values(), results.distil)
    for source in sources:
        if (source / SWEEP).exists():
            _add_plan(found, source / SWEEP)
    return found


def results_in(folder: Path) -> Found:
    """The results of a folder, without what is under way there; none if it is not there yet."""
    found = Found()
    _collect(found, _result_files(folder), lambda path: results.from_json(read_json(path), path))
    return found


def _result_files(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.glob("*/*-????????????????.json")))


def _run_directories(folder: Path) -> list[Path]:
    found = {file.parent for name in ("experiment.json", "records.jsonl") for file in folder.glob(f"*/{name}")}
    return sorted(path for path in found if path.suffix != ".done")  # a finished run's, half removed


def _collect(found: Found, paths: Iterable[Path], reads: Callable[[Path], Curves]) -> None:
    for path in paths:
        try:
            one = sound(reads(path), path)
            audit = Audit(path) if isinstance(one.run, Federation) else None
        # A hostile file may declare a billion clients, or nest what it holds without end.
        except (InputError, OSError, MemoryError, OverflowError, RecursionError) as problem:
            found.problems.append(
                Problem(str(path), str(problem).removeprefix(f"{path}: ").removeprefix(f"{path} ") or type(problem).__name__)
            )
            continue
        if audit is not None:
            found.federations.append((one, audit))
        elif isinstance(one, Result) and one.rounds[-1] == one.run.rounds:
            found.results.add(one)
        else:
            found.unfinished.append((path, one))


def sound(result: Curves, source: Path) -> Curves:
    """The result, if its numbers are numbers: a picture of anything else would be wrong."""
    shares = [*result.train_error, *result.test_error, *(result.success or ())]
    if not all(isinstance(value, int | float) and 0 <= value <= 1 for value in shares):
        raise InputError(f"{source} is no result of a run: an error is no number from 0 to 1")
    if not all(isinstance(t, int) for t in (*result.rounds, *result.trust_rounds)):
        raise InputError(f"{source} is no result of a run: a round is no whole number")
    if any(len(row) != result.run.num_clients for row in result.trust):
        raise InputError(f"{source} is no result of a run: it does not have the trust of {result.run.num_clients} clients")
    if result.seconds is not None and not (isinstance(result.seconds, int | float) and 0 <= result.seconds < MOST_SECONDS):
        raise InputError(f"{source} is no result of a run: it took {result.seconds!r:.20} seconds")
    return result


# ---------------------------------------------------------------- what a sweep planned


def same_question(run: Experiment) -> str:
    """Names a run, whatever its arithmetic. Unlike its key, it needs no plug-in."""
    return hashlib.sha256(canonical(replace(run, precision="float32").to_dict()).encode()).hexdigest()[:16]


class Planned(NamedTuple):
    """What sweeps planned in a folder."""

    planned: dict[str, str]  # the name of each run, by its question
    left_out: dict[str, str]  # and why
    files: dict[str, str]  # of results, and the question that each answers; older plans have none

    def and_also(self, runs: Iterable[Experiment], left_out: Iterable[tuple[str, str]]) -> "Planned":
        named = {same_question(run): run for run in runs}
        return Planned(
            self.planned | {question: name_of(run) for question, run in named.items()},
            self.left_out | dict(left_out),
            self.files | {results.file_of(run, Path()).as_posix(): question for question, run in named.items()},
        )


def read_plan(path: Path) -> Planned:
    content = read_json(path)
    parts: list[Any] = [content.get("planned"), content.get("left_out"), content.get("files", {})]
    for part in parts:
        if not isinstance(part, dict) or not all(isinstance(value, str) for value in part.values()):
            raise InputError(f"{path} declares no sweep")
    return Planned(*parts)


def _add_plan(found: Found, path: Path) -> None:
    try:
        plan = read_plan(path)
    except InputError as problem:
        found.problems.append(Problem(str(path), str(problem)))
        return
    begun = [*found.results.all(), *(one for _, one in found.unfinished)]
    here = {same_question(one.run) for one in begun if isinstance(one.run, Experiment)}
    damaged = {problem.what for problem in found.problems}
    here |= {question for file, question in plan.files.items() if str(path.parent / file) in damaged}
    again = "not run, or failed: the same sweep command tries it again"
    found.problems += [Problem(what, again) for question, what in plan.planned.items() if question not in here]
    found.problems += [Problem(what, f"left out: {why}") for what, why in plan.left_out.items()]
