"""Tables as text: Markdown for a README, LaTeX (booktabs) for a paper. A cell is ours, and the paper's in brackets."""

from collections.abc import Sequence
from dataclasses import dataclass

from fltrust.paper import Exhibit
from fltrust.report.agreement import Judged, Number
from fltrust.report.layout import Grid, better_listed, grids
from fltrust.report.words import made, printed, seeds, with_unit
from fltrust.store.results import Result


@dataclass(frozen=True)
class Written:
    """A page of a table, in words."""

    title: str
    caption: str
    head: list[str]
    rows: list[list[str]]
    words: int = 1  # columns at the left that hold no numbers


def written(exhibit: Exhibit, judged: Sequence[Judged]) -> list[Written]:
    pages = grids(exhibit, judged)
    if exhibit.kind == "curves":
        return [_curves(exhibit, page) for page in pages]
    listed = better_listed(exhibit, pages)
    return [_written(exhibit, page, listed) for page in pages]


def _curves(exhibit: Exhibit, page: Grid) -> Written:
    """About five points of the curves, the last among them: rows are rounds."""
    ran = {one.cell.column: one.results for one in page.cells if one.results}
    counts = [len(results) for results in ran.values()]
    if not ran:
        return Written(_title(exhibit, page), _caption(page, counts), ["round"], [])

    def cell(results: Sequence[Result], t: int) -> str:
        at = [dict(zip(one.rounds, one.train_error, strict=True)) for one in results]
        return mean_and_spread(Number(tuple(curve[t] for curve in at), None, 0.0)) if all(t in curve for curve in at) else ""

    evaluated = sorted({t for results in ran.values() for one in results for t in one.rounds})
    rows = [[f"{t:,}", *(cell(results, t) for results in ran.values())] for t in evaluated[:: -max(1, len(evaluated) // 5)][::-1]]
    return Written(_title(exhibit, page), _caption(page, counts, "Training"), ["round", *ran], rows)


def _written(exhibit: Exhibit, page: Grid, listed: bool) -> Written:
    counts = [len(one.results) for one in page.cells if one.results]
    alike = len(set(counts)) == 1

    def cell(row: str, column: str) -> str:
        one = page.at.get((row, column))
        return _cell(one, alike) if one else ""

    title, caption = _title(exhibit, page), _caption(page, counts)
    if listed:  # each cell beside the one of the first row, which is what the others change
        first = page.rows[0]
        places = [(one.cell.row, one.cell.column) for one in page.cells if one.cell.row != first]
        rows = [[row, column, cell(row, column), cell(first, column)] for row, column in places]
        return Written(title, caption, [exhibit.row, exhibit.column, "with this choice", first], rows, words=2)
    head = [exhibit.row, *(with_unit(exhibit.column, column) for column in page.columns)]
    return Written(title, caption, head, [[row, *(cell(row, column) for column in page.columns)] for row in page.rows])


def _title(exhibit: Exhibit, page: Grid) -> str:
    return exhibit.title if page.page in exhibit.title else f"{exhibit.title}, {page.page}"


def _caption(page: Grid, counts: Sequence[int], of: str = "Test") -> str:
    if not counts:
        return f"{page.cells[0].missing.capitalize()}."
    results = [result for one in page.cells for result in one.results]
    spread = ", mean ± standard deviation over seeds" if max(counts) > 1 else ""
    backdoor = "; after the slash the success of the backdoor" if of == "Test" and any(one.success for one in page.cells) else ""
    paper = "; in brackets the paper's number" if any(one.cell.paper for one in page.cells) else ""
    return f"{of} error{spread}{backdoor}{paper}. {seeds(counts)}. {made(results)}"


def _cell(one: Judged, alike: bool) -> str:
    paper = f" ({printed(one.cell)})" if one.cell.paper else ""
    if not one.results:
        return one.missing + paper
    ours = mean_and_spread(one.error) + (f" / {mean_and_spread(one.success)}" if one.success and one.success.ours else "")
    return ours + paper + ("" if alike else f", n = {len(one.results)}")


def mean_and_spread(number: Number) -> str:
    return f"{number.mean:.3f}" + (f" ± {number.spread:.3f}" if len(number.ours) > 1 else "")


def markdown(exhibit: Exhibit, judged: Sequence[Judged]) -> str:
    return as_markdown(written(exhibit, judged))


def as_markdown(tables: Sequence[Written]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_plain_markdown(cell) for cell in cells) + " |\n"

    text = ""
    for table in tables:
        text += (
            f"## {_plain_markdown(table.title)}\n\n"
            + line(table.head)
            + "|"
            + "---|" * table.words
            + "--:|" * (len(table.head) - table.words)
            + "\n"
        )
        text += "".join(line(row) for row in table.rows) + f"\n{_plain_markdown(table.caption)}\n\n"
    return text.rstrip("\n") + "\n"


def _plain_markdown(text: str) -> str:
    """Text that Markdown and HTML leave as it is."""
    escaped = (f"&#{ord(letter)};" if letter in "<>&" else "\\" + letter if letter in "\\|*_`[]#" else letter for letter in text)
    return " ".join("".join(escaped).split())


def latex(exhibit: Exhibit, judged: Sequence[Judged]) -> str:
    return as_latex(written(exhibit, judged))


def as_latex(tables: Sequence[Written]) -> str:
    r"""Needs \usepackage{booktabs} and \usepackage{graphicx}; a table that is too wide for the page shrinks to it."""

    def line(cells: Sequence[str]) -> str:
        return "  " + " & ".join(_plain_latex(cell) for cell in cells) + r" \\" + "\n"

    text = "% \\usepackage{booktabs,graphicx}\n"
    for table in tables:
        columns = "l" * table.words + "r" * (len(table.head) - table.words)
        text += "\n\\begin{table*}\n\\centering\\small\n\\caption{" + _plain_latex(f"{table.title}. {table.caption}") + "}\n"
        text += "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%\n"
        text += f"\\begin{{tabular}}{{{columns}}}\n  \\toprule\n" + line(table.head) + "  \\midrule\n"
        text += "".join(line(row) for row in table.rows) + "  \\bottomrule\n\\end{tabular}}\n\\end{table*}\n"
    return text


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "\N{MINUS SIGN}": "$-$",
    **{special: "\\" + special for special in "&%$#_"},
}


def _plain_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
