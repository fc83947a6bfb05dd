"""Results as something to look at: one self-contained HTML page, figures and tables for papers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fltrust.audit import Audit
from fltrust.errors import InputError
from fltrust.paper import EXHIBITS, Exhibit
from fltrust.report.agreement import Judged, judge
from fltrust.report.layout import side_by_side
from fltrust.report.standings import Standings, whole_league
from fltrust.store import results
from fltrust.store.files import replace
from fltrust.store.results import Curves, Federation, Result, Results

Shown = TypeVar("Shown", bound=Curves)


@dataclass(frozen=True)
class Report:
    """What was written, and what it says."""

    files: list[Path]
    judged: dict[Exhibit, list[Judged]]  # empty for a page of single runs


def build(sources: Sequence[Path], out: Path) -> Report:
    """Writes the report of a folder of results, or of run directories of `fltrust run`, into the folder `out`.

    Everything is made before the first file is written, and each file is replaced at once: an old report stays whole until the new one is.
    """
    from fltrust.report import page

    runs = {source: _run_directories(source) for source in sources}
    if not any(runs.values()) and len(sources) == 1:
        found = _read(sources[0])
        judged = {exhibit: judge(exhibit, found) for exhibit in EXHIBITS.values()}
        tables = whole_league(found)
        written = _files(page.reproduction_page(judged, found, tables), judged, found) | _league_files(tables)
        return Report(_write(written, out), judged)
    for source, inside in runs.items():
        if not inside:
            raise InputError(f"{source} is no run directory and holds none: name run directories only, or one folder of results")
    directories = {run.resolve(): run for inside in runs.values() for run in inside}.values()
    single = [_sound(results.distil(run), run) for run in directories]
    audits = [Audit(run) if isinstance(one.run, Federation) else None for run, one in zip(directories, single, strict=True)]
    finished = Results(one for one in single if isinstance(one, Result) and one.rounds[-1] == one.run.rounds)
    compared = {exhibit: judge(exhibit, finished) for exhibit in side_by_side(finished)} if len(finished.all()) > 1 else {}
    return Report(_write(_files(page.runs_page(single, compared, audits), compared, finished), out), {})


def _run_directories(source: Path) -> list[Path]:
    """The source itself, or what lies in it and has come to a first record; a folder of results has none, even if a run lies in it."""
    if (source / "experiment.json").exists():
        return [source]
    inside = sorted(records.parent for records in source.glob("*/records.jsonl") if records.stat().st_size)
    return inside if inside and not results.read(source).all() else []


def _files(index: str, judged: dict[Exhibit, list[Judged]], found: Results) -> dict[str, bytes]:
    texts, pictures = {"index.html": index}, {}
    if judged:
        from fltrust.report import tables

        for exhibit, cells in judged.items():
            texts[f"tables/{exhibit.name}.md"] = tables.markdown(exhibit, cells)
            texts[f"tables/{exhibit.name}.tex"] = tables.latex(exhibit, cells)
        try:
            from fltrust.report import figures  # a plotting library is heavy, and a page of one run needs none
        except ImportError as problem:
            raise InputError("the figures of a report need matplotlib: pip install 'fltrust[report]'") from problem
        pictures = figures.draw(judged, found)
    return {name: text.encode(errors="replace") for name, text in texts.items()} | pictures


def _league_files(tables: Sequence[Standings]) -> dict[str, bytes]:
    from fltrust.report import league_text

    ending = {"latex": "tex"}
    return {f"tables/league.{ending.get(name, name)}": text(tables).encode() for name, text in league_text.FORMATS.items()}


def _read(folder: Path) -> Results:
    found = results.read(folder) if folder.is_dir() else Results()
    if not found.all():
        raise InputError(f"{folder} holds no result: make some with 'fltrust reproduce', or name run directories of 'fltrust run'")
    for one in found.all():
        path = results.file_of(one.run, folder)
        _sound(one, path)
        if one.rounds[-1] != one.run.rounds:
            raise InputError(f"{path} ends at round {one.rounds[-1]} of {one.run.rounds}: it is no finished run")
    return found


def _sound(result: Shown, source: Path) -> Shown:
    """The result, if its numbers are numbers: a picture of anything else would be wrong."""
    shares = [*result.train_error, *result.test_error, *(result.success or ())]
    if not all(isinstance(value, int | float) and 0 <= value <= 1 for value in shares):
        raise InputError(f"{source} is no result of a run: an error is no number from 0 to 1")
    if not all(isinstance(t, int) for t in (*result.rounds, *result.trust_rounds)):
        raise InputError(f"{source} is no result of a run: a round is no whole number")
    if any(len(row) != result.run.num_clients for row in result.trust):
        raise InputError(f"{source} is no result of a run: it does not have the trust of {result.run.num_clients} clients")
    if result.seconds is not None and not (isinstance(result.seconds, int | float) and 0 <= result.seconds < math.inf):
        raise InputError(f"{source} is no result of a run: it took {result.seconds!r} seconds")
    return result


def _write(content: dict[str, bytes], out: Path) -> list[Path]:
    written = []
    for name, data in content.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data)
        written.append(path)
    return written
