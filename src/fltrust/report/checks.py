"""The section of the page about other authors' numbers: the twelve checks, ours beside theirs."""

from xml.etree.ElementTree import Element

from fltrust.checks.check import Judged, Table, judge, tally
from fltrust.checks.pages import with_spread
from fltrust.checks.tables import tables
from fltrust.report.embed import Embedded
from fltrust.report.markup import tag
from fltrust.report.words import MARKS, plural
from fltrust.store.results import Results

_COLUMNS = ("check", "attack", "rule", "theirs", "ours", "final", "best", "verdict")
_WORDS = ("attack", "rule", "verdict")


def check_keys(results: Results) -> set[str]:
    """The runs that stand in this section."""
    return {result.run.key for table in tables() for cell in table.cells for result in results.seeds(cell.run)}


def checks_section(embedded: Embedded, results: Results) -> Element | None:
    """None where none of the checks was run."""
    judged = {table: judge(table, results) for table in tables()}
    if not any(one.results for cells in judged.values() for one in cells):
        return None
    once = {one.cell.run.key: one for cells in judged.values() for one in cells}  # one run may stand in two tables
    count = tally(list(once.values()))
    said = (
        f"Twelve checks against numbers that other authors logged, printed or drew, with their settings. {count.agree} of {count.compared} "
        f"numbers agree; {count.ran} of {count.cells} experiments ran. The plain mean stands beside them: a defence that ties with it has "
        "shown nothing. Accuracy in percent, mean and standard deviation over seeds."
    )
    parts = [part for table, cells in judged.items() for part in _part(embedded, table, cells)]
    return tag("section", tag("h2", "Other authors' numbers"), tag("p", said, class_="claim"), *parts)


def _part(embedded: Embedded, table: Table, cells: list[Judged]) -> list[Element]:
    limits = f"Agreement: within {table.limit:g} points or twice the larger spread" + (", dead runs dead." if table.dead else ".")
    head = [tag("th", column, scope="col", class_="left" if column in _WORDS else None) for column in _COLUMNS]
    content = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *(_row(embedded, one) for one in cells)))
    return [
        tag("h3", table.title),
        tag("p", f"Compared is the accuracy “{table.metric}”. {limits} Source: {table.source}.", class_="note"),
        tag("div", content, class_="scroll", tabindex=0, role="region", aria_label=table.title),
    ]


def _row(embedded: Embedded, one: Judged) -> Element:
    cell = one.cell
    theirs = "" if cell.theirs is None else with_spread(*cell.theirs)
    title = f"{one.table.title} · {cell.row} · {cell.column}"
    again = f"fltrust reproduce {one.table.name} --seeds {max(1, len(one.results))}"
    ours: Element | str = "not run"
    if one.results:
        says = [f"Ours {with_spread(one.mean, one.spread)} over {plural(len(one.results), 'seed')}; theirs {theirs or 'not known'}."]
        number = embedded.open(title, says, one.results, again)
        ours = tag("button", with_spread(one.mean, one.spread), type="button", data_cell=number, class_="link")
    kind = "" if cell.kind == "as published" else f" ({cell.kind})"
    verdict = " ".join(part for part in (MARKS[one.verdict], one.verdict if one.verdict == "differs" else "", one.explanation) if part)
    numbers = [f"{one.final:.1f}", f"{one.best:.1f}"] if one.results else ["", ""]
    return tag(
        "tr",
        tag("th", str(cell.number or ""), scope="row"),
        tag("td", cell.row, class_="words"),
        tag("td", cell.column + kind, class_="words"),
        tag("td", theirs, class_="change"),
        tag("td", ours, class_="change"),
        *(tag("td", number, class_="change") for number in numbers),
        tag("td", verdict, class_="words"),
    )
