"""The sections of the page: trust in a few telling runs, a table, a figure, the comparison of arithmetics, a list of runs."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, get_args
from xml.etree.ElementTree import Element

from fltrust.experiment import Precision
from fltrust.paper import Exhibit
from fltrust.paper.exhibit import DATASETS
from fltrust.report.agreement import Judged, Number, plain_error, tally
from fltrust.report.embed import Embedded
from fltrust.report.layout import Grid, better_listed, grids
from fltrust.report.looks import look_of
from fltrust.report.markup import tag
from fltrust.report.words import mark, name_of, plural, printed, seeds, signed, with_unit
from fltrust.store.results import Curves, Federation, Result, Results


def trust_section(embedded: Embedded, shown: dict[str, list[tuple[str, Result]]]) -> Element:
    """One data set, three attacks: one sees whom FLTrust rejects, and what the exact adaptive attack gets away with."""
    dataset = "mnist-0.5" if "mnist-0.5" in shown else next(iter(shown))
    pictures = [
        tag("div", data_trust=embedded.place_of(result), data_title=f"{attack}: error {result.error:.3f}")
        for attack, result in shown[dataset]
    ]
    return tag(
        "section",
        tag("h2", "Whom the server trusts"),
        tag(
            "p",
            "FLTrust trusts a client as far as its update points the same way as the server's own. Each line is a client, the malicious "
            f"ones on top; each column is a round ({DATASETS[dataset]}, FLTrust, the first seed). A client with trust 0 has no say. "
            "The exact adaptive attack sends what harms most among all that the server trusts.",
            class_="claim",
        ),
        tag("div", *pictures, class_="pictures"),
    )


# ---------------------------------------------------------------- a table or figure


def exhibit_section(embedded: Embedded, exhibit: Exhibit, cells: list[Judged], results: Results) -> Element:
    pages = grids(exhibit, cells)
    write = _list if better_listed(exhibit, pages) else _grid
    numbers = _pages(exhibit.name, pages, [write(embedded, exhibit, page) for page in pages])
    paper = tag("span", "What the paper says", class_="says-paper") if exhibit.of_paper else None
    section = tag("section", tag("h2", exhibit.title), tag("p", paper, exhibit.claim, class_="claim"))
    if exhibit.kind == "table":
        section.append(numbers)
    else:
        section.append(tag("div", data_figure=len(embedded.figures)))
        embedded.figures.append(_figure(embedded, exhibit, pages, results))
        counts = [len(one.results) for one in cells if one.results]
        if counts:
            what = "a band" if exhibit.kind == "curves" else "bars"
            section.append(
                tag("p", f"Mean over seeds; {what} where there are several: standard deviation. {seeds(counts)}.", class_="note")
            )
        section.append(tag("details", tag("summary", "The numbers" if exhibit.kind == "figure" else "The test errors at the end"), numbers))
    return section


def _pages(place: str, pages: Sequence[Grid], contents: Sequence[Element]) -> Element:
    shown = []
    for page, content in zip(pages, contents, strict=True):
        count = tally(page.cells)
        shown.append((page.page, f" {count.agree} of {count.compared} agree" if count.compared else "", content))
    return tabs(place, shown)


def tabs(place: str, pages: Sequence[tuple[str, str, Element]]) -> Element:
    """One page at a time, each with its name and how much of it there is, in small letters."""
    if len(pages) == 1:
        return pages[0][-1]
    buttons, parts = [], []
    for i, (page, small, content) in enumerate(pages):
        count = tag("small", small) if small else None
        buttons.append(tag("button", page, count, type="button", role="tab", id=f"{place}-tab-{i}", aria_controls=f"{place}-{i}"))
        parts.append(tag("div", tag("h3", page), content, role="tabpanel", id=f"{place}-{i}", aria_labelledby=f"{place}-tab-{i}"))
    return tag("div", tag("div", *buttons, role="tablist", class_="tabs"), *parts, class_="tabbed")


def _grid(embedded: Embedded, exhibit: Exhibit, page: Grid) -> Element:
    head = [sorter(exhibit.row or exhibit.page, left=True), *(sorter(with_unit(exhibit.column, column)) for column in page.columns)]
    rows = []
    for place, row in enumerate(page.rows):
        here = [page.at.get((row, column)) for column in page.columns]
        rows.append(
            [
                tag("th", row or page.page, scope="row", data_sort=place),
                *(_cell(embedded, exhibit, one) if one else _void() for one in here),
            ]
        )
    return _table(f"{exhibit.title}, {page.page}", head, rows)


def _list(embedded: Embedded, exhibit: Exhibit, page: Grid) -> Element:
    """A table with many empty places as a list of its cells, each beside the one of the first row, which is what the others change."""
    first = page.rows[0]
    head = [
        sorter(exhibit.row, left=True),
        sorter(exhibit.column, left=True),
        sorter("with this choice"),
        sorter(first),
        sorter("change"),
    ]
    rows = []
    for place, one in enumerate(one for one in page.cells if one.cell.row != first):
        before = page.at.get((first, one.cell.column))
        rows.append(
            [
                tag("th", one.cell.row, scope="row", data_sort=place),
                tag("td", one.cell.column, class_="words", data_sort=page.columns.index(one.cell.column)),
                _cell(embedded, exhibit, one),
                _cell(embedded, exhibit, before) if before else _void(),
                _change(one, before) if before and before.results and one.results else _void(),
            ]
        )
    return _table(f"{exhibit.title}, {page.page}", head, rows)


def _change(one: Judged, before: Judged) -> Element:
    change = one.error.mean - before.error.mean
    said = [tag("b", signed(change))]
    if one.success and one.success.ours and before.success and before.success.ours:
        said.append(tag("small", f"backdoor {signed(one.success.mean - before.success.mean)}"))
    return tag("td", *said, class_="change", data_sort=round(change, 6))


def _table(label: str, head: Iterable[Element], rows: Iterable[Iterable[Element]], *, tall: bool = False) -> Element:
    """A `tall` table scrolls inside itself, so that the page ends somewhere."""
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *(tag("tr", *row) for row in rows)))
    return tag("div", table, class_="scroll tall" if tall else "scroll", tabindex=0, role="region", aria_label=label)


def sorter(words: str, left: bool = False) -> Element:
    return tag("th", tag("button", words, type="button", title="Sort"), scope="col", class_="left" if left else None)


def _void() -> Element:
    return tag("td", class_="void")


def _cell(embedded: Embedded, exhibit: Exhibit, one: Judged) -> Element:
    number = embedded.open_cell(exhibit, one)
    if not one.results:
        paper = tag("span", tag("span", f"paper {printed(one.cell)}"), class_="theirs") if one.cell.paper else None
        button = tag("button", tag("span", one.missing, class_="missing"), paper, type="button", data_cell=number)
        return tag("td", button, class_="cell not-run")
    verdicts = [one.error.verdict, *([one.success.verdict] if one.success and one.success.ours else [])]
    kind = "differs" if "differs" in verdicts else "only by spread" if one.error.only_by_spread else one.error.verdict
    button = tag(
        "button",
        *_number(one.error, f"n = {len(one.results)}"),
        *(_number(one.success, "backdoor") if one.success and one.success.ours else ()),
        type="button",
        data_cell=number,
    )
    return tag("td", button, class_=f"cell {kind.replace(' ', '-')}", data_sort=round(one.error.mean, 6))


def _number(number: Number, beside: str) -> list[Element]:
    spread = tag("small", f" ± {number.spread:.3f}") if len(number.ours) > 1 else None
    symbol = tag("i", mark(number), class_=f"mark {number.verdict.replace(' ', '-')}", title=number.verdict)
    paper = "" if number.difference is None else f"paper {number.paper:.2f}, {signed(number.difference)}"
    return [
        tag("span", tag("b", f"{number.mean:.3f}"), spread, " ", symbol, class_="ours"),
        tag("span", tag("span", beside, class_="count"), tag("span", paper), class_="theirs"),
    ]


def _figure(embedded: Embedded, exhibit: Exhibit, pages: Sequence[Grid], results: Results) -> dict[str, Any]:
    """What the script needs to draw a figure: its curves, and for each panel their points."""
    looks = {one.cell.column: look_of(exhibit, one.cell) for page in pages for one in page.cells}
    curves = list(looks)
    return {
        "kind": exhibit.kind,
        "x": exhibit.row,
        "curves": [{"name": curve, **look._asdict()} for curve, look in looks.items()],
        "panels": [
            {
                "title": page.page,
                "missing": page.cells[0].missing,
                "reference": plain_error(page.cells[0].cell, results) if exhibit.kind == "figure" else None,
                "points": [
                    {
                        "curve": curves.index(one.cell.column),
                        "at": one.cell.row,
                        "error": _mean_and_spread(one.error),
                        "success": _mean_and_spread(one.success),
                        "cell": embedded.open_cell(exhibit, one),
                    }
                    for one in page.cells
                    if one.results
                ],
            }
            for page in pages
        ],
    }


def _mean_and_spread(number: Number | None) -> tuple[float, float] | None:
    return (round(number.mean, 4), round(number.spread, 4)) if number and number.ours else None


# ---------------------------------------------------------------- arithmetic, and runs outside of tables


def pairs_of(results: Results) -> list[tuple[Result, Result]]:
    """Runs that differ in nothing but their arithmetic, the more exact one first."""
    alike: dict[str, list[Result]] = {}
    for one in results.all():
        alike.setdefault(dataclasses.replace(one.run, precision="float32").key, []).append(one)
    exact_first = get_args(Precision)
    pairs = []
    for group in alike.values():
        exact, *others = sorted(group, key=lambda one: exact_first.index(one.run.precision))
        pairs += [(exact, other) for other in others]
    return pairs


def arithmetic_section(embedded: Embedded, pairs: Sequence[tuple[Result, Result]]) -> Element:
    differences = [fast.error - exact.error for exact, fast in pairs]
    mean, most = sum(differences) / len(differences), max(differences, key=abs)
    said = (
        f"{plural(len(pairs), 'pair')} of runs that differ in nothing but the arithmetic of matrix products; the seed is the same. "
        f"The error differs by {signed(mean, 4)} on average and by {signed(most, 4)} at most."
    )
    head = [sorter("run", left=True), *map(sorter, ("more exact", "faster", "difference", "seconds"))]
    rows = []
    for place, (exact, fast) in enumerate(pairs):
        number = embedded.open(
            name_of(exact.run), [f"The same experiment in {exact.run.precision} and in {fast.run.precision}."], (exact, fast)
        )
        seconds = [f"{one.seconds:.0f}" if one.seconds is not None else "?" for one in (exact, fast)]
        rows.append(
            [
                tag("th", tag("button", name_of(exact.run), type="button", data_cell=number, class_="link"), scope="row", data_sort=place),
                *map(_figures, (exact, fast)),
                tag("td", signed(fast.error - exact.error, 4), class_="change", data_sort=round(fast.error - exact.error, 6)),
                tag("td", " → ".join(seconds), class_="change", data_sort=fast.seconds),
            ]
        )
    return tag("section", tag("h2", "Arithmetic"), tag("p", said, class_="claim"), _table("Arithmetic", head, rows))


def _figures(result: Curves) -> Element:
    success = "" if result.final_success is None else f"backdoor {result.final_success:.3f}, "
    arithmetic = "" if isinstance(result.run, Federation) else result.run.precision
    return tag("td", tag("b", f"{result.error:.3f}"), tag("small", success + arithmetic), class_="change", data_sort=result.error)


def run_list(embedded: Embedded, heading: str, said: str, results: Sequence[Curves]) -> Element:
    head = [sorter("run", left=True), sorter("error"), sorter("seconds"), tag("th", "hardware", scope="col", class_="left")]
    rows = []
    for place, one in enumerate(results):
        number = embedded.open(name_of(one.run), [], (one,))
        rows.append(
            [
                tag("th", tag("button", name_of(one.run), type="button", data_cell=number, class_="link"), scope="row", data_sort=place),
                _figures(one),
                tag("td", "" if one.seconds is None else f"{one.seconds:.1f}", class_="change", data_sort=one.seconds),
                tag("td", str(one.about["hardware"]), class_="words"),
            ]
        )
    return tag("section", tag("h2", heading), tag("p", said, class_="claim"), _table(heading, head, rows, tall=True))
