"""Results as something to look at: one self-contained HTML page, figures and tables for papers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fltrust.errors import InputError
from fltrust.paper import EXHIBITS, Exhibit
from fltrust.report.agreement import Judged, judge
from fltrust.report.folder import write
from fltrust.report.reading import Found, kind_of, read
from fltrust.report.standings import Standings, whole_league
from fltrust.report.survival import THRESHOLD, Board, boards
from fltrust.report.worst_case import WorstCases, every_worst_case
from fltrust.store.results import Results


@dataclass(frozen=True)
class Report:
    """What was written, and what it says."""

    files: list[Path]
    judged: dict[Exhibit, list[Judged]]  # empty for a page of a sweep, or of a user's own runs
    boards: list[Board]  # empty for a page of the paper's tables
    found: Found


def build(sources: Sequence[Path], out: Path, threshold: float = THRESHOLD) -> Report:
    """Writes the report of a folder of results, of a sweep, or of run directories into the folder `out`.

    Everything is made before the first file is written, and each file is replaced at once: an old report stays whole until the new one is.
    """
    from fltrust.report import page

    kinds = [kind_of(source) for source in sources]
    found = readable(sources)
    if kinds == ["results"]:
        _need_results(found, sources[0])
        judged = {exhibit: judge(exhibit, found.results) for exhibit in EXHIBITS.values()}
        tables = whole_league(found.results)
        worst = every_worst_case(found.results)
        index = page.reproduction_page(judged, found, tables, worst)
        content = _files(index, judged, found.results) | _league_files(tables, worst)
        return Report(write(content, out), judged, [], found)
    shown = boards(found.results, threshold)
    return Report(write(_own_files(page.runs_page(found, shown, threshold), shown, threshold), out), {}, shown, found)


def readable(sources: Sequence[Path]) -> Found:
    """What the folders hold, if any of it can be read."""
    found = read(sources)
    if found.empty:
        first = found.problems[0] if found.problems else None
        more = f" (and {len(found.problems) - 1} more problems)" if len(found.problems) > 1 else ""
        raise InputError(f"{first.what}: {first.why}{more}" if first else f"{sources[0]} holds no run and no result")
    return found


def _need_results(found: Found, folder: Path) -> None:
    if not found.results.all():
        path, one = found.unfinished[0]
        raise InputError(f"{folder} holds no finished run: {path} ends at round {one.rounds[-1]} of {one.run.rounds}")


def _files(index: str, judged: dict[Exhibit, list[Judged]], found: Results) -> dict[str, bytes]:
    from fltrust.report import tables

    texts = {"index.html": index}
    for exhibit, cells in judged.items():
        texts[f"tables/{exhibit.name}.md"] = tables.markdown(exhibit, cells)
        texts[f"tables/{exhibit.name}.tex"] = tables.latex(exhibit, cells)
    try:
        from fltrust.report import figures  # a plotting library is heavy, and a page of one's own runs needs none
    except ImportError as problem:
        raise InputError("the figures of a report need matplotlib: pip install 'fltrust[report]'") from problem
    return _encoded(texts) | figures.draw(judged, found)


def _own_files(index: str, shown: Sequence[Board], threshold: float) -> dict[str, bytes]:
    from fltrust.report import survival_text

    texts = {"index.html": index}
    if not any(len(board.results) > 1 for board in shown):
        return _encoded(texts)
    texts |= {
        "tables/survives.md": survival_text.markdown(shown, threshold),
        "tables/survives.tex": survival_text.latex(shown, threshold),
        "tables/survives.csv": survival_text.comma_separated(shown, threshold),
        "tables/numbers.csv": survival_text.numbers(shown),
    }
    try:
        from fltrust.report import figures
    except ImportError:  # the page has the same pictures
        return _encoded(texts)
    return _encoded(texts) | figures.draw_boards(shown)


def _encoded(texts: dict[str, str]) -> dict[str, bytes]:
    return {name: text.encode(errors="replace") for name, text in texts.items()}


def _league_files(tables: Sequence[Standings], worst: Sequence[WorstCases]) -> dict[str, bytes]:
    from fltrust.report import league_text, worst_case_text

    ending = {"csv": "csv", "latex": "tex", "markdown": "md"}
    written = {f"league.{ending[name]}": text(tables) for name, text in league_text.FORMATS.items()}
    written |= {f"worst-case.{ending[name]}": text(worst) for name, text in worst_case_text.FORMATS.items()}
    return _encoded({f"tables/{name}": text for name, text in written.items()})
