"""The worst-case table on the page's first screen: rules and shares of malicious clients, a tab for each data set."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from fltrust.report.embed import Embedded
from fltrust.report.markup import tag
from fltrust.report.repeat import worst_case_command
from fltrust.report.sections import sorter, tabs
from fltrust.report.survival import THRESHOLD
from fltrust.report.words import plural, sentence, signed
from fltrust.report.worst_case import MEANING, Place, Standing, WorstCases
from fltrust.report.worst_case_text import caption, number, source

STEPS = tuple(THRESHOLD * times for times in (0.5, 1, 2, 4, 8))  # where the colour changes, as on the page of a sweep
LISTED = 6  # attacks that a cell's panel names
BROKEN_HERE = "The rule is broken, so nobody needs to search for worse."
FEWER = "Another attack has more runs. In the seeds that both have, this one does more harm."


def worst_case_section(embedded: Embedded, tables: Sequence[WorstCases]) -> Element:
    ran = sorted((table for table in tables if table.counts), key=lambda table: -table.settled)  # the first tab is open
    shown = [(table.label, f" {table.settled} of {table.possible}", _table(embedded, table)) for table in ran]
    keys = [f"to {step:g}" for step in STEPS] + ["more"]
    return tag(
        "section",
        tag("h2", "How bad can it get?"),
        tag(
            "p",
            MEANING,
            " Each tab says at how many of its numbers the search has run, or the rule is broken. Click a number to see its runs.",
            class_="claim",
        ),
        tag(
            "p",
            tag("span", "Error above the rule's own without attack (in the first column: above the best rule's): "),
            *(tag("span", words, class_=f"heat-key harm-{step}") for step, words in enumerate(keys)),
            tag("span", "not run", class_="heat-key not-run"),
            class_="heat-keys",
        ),
        tabs("worst-case", shown),
        id="worst-case",
    )


def _table(embedded: Embedded, table: WorstCases) -> Element:
    shares = (f"{share} % malicious" if share else "no attack" for share in table.shares)
    head = [sorter("rule", left=True), *map(sorter, shares)]
    bodies = []
    for group, rows in table.groups.items():
        at = f" at {rows[0].decisive.cell.share} %"
        heading = tag("th", tag("span", group.capitalize() + at), scope="rowgroup", colspan=len(head))
        body = tag("tbody", tag("tr", heading, class_="group") if len(table.groups) > 1 else None)
        body.extend(_row(embedded, table, row) for row in rows)
        bodies.append(body)
    grid = tag("table", tag("thead", tag("tr", *head)), *bodies, class_="heat harm")
    label = f"Worst case, {table.label}"
    scroll = tag("div", grid, class_="scroll first-screen", tabindex=0, role="region", aria_label=label)
    return tag("div", scroll, tag("p", caption(table).removeprefix(MEANING).strip(), class_="note"))


def _row(embedded: Embedded, table: WorstCases, row: Standing) -> Element:
    name = tag("th", row.row.label, scope="row", data_sort=table.rows.index(row))
    return tag("tr", name, *(_cell(embedded, table, row, one) for one in row.places))


def _cell(embedded: Embedded, table: WorstCases, row: Standing, place: Place) -> Element:
    harm = row.harm(place, table.best_clean)
    level = "unknown" if harm is None else sum(harm > step + 1e-9 for step in STEPS)
    kind = f"harm-{level}" if place.worst else place.missing.replace("cannot run", "left-out").replace(" ", "-")
    opens = embedded.open(
        f"{table.label} · {place.cell.row.label} · {place.cell.share} % malicious",
        _says(place, harm),
        place.worst.results if place.worst else (),
        "" if place.cell.impossible else worst_case_command(place.cell, place.worst.results if place.worst else ()),
    )
    button = tag(
        "button",
        *((tag("b", number(place)), tag("small", source(place))) if place.worst else (place.missing,)),
        type="button",
        data_cell=opens,
        title=place.cell.impossible or None,
    )
    return tag("td", button, class_=f"cell {kind}", data_sort=round(place.worst.error.mean, 6) if place.worst else None)


def _says(place: Place, harm: float | None) -> list[str]:
    if place.cell.impossible:
        return [f"Cannot run: {place.cell.impossible}."]
    if not place.worst:
        return ["Not run."]
    if not place.cell.share:
        return [sentence("Error without attack", place.worst.error), "The rule expects malicious clients, and there are none."]
    said = [sentence(f"{place.worst.label}: error", place.worst.error)]
    said += [f"Against the same rule without attack: {signed(harm)}."] if harm is not None else []
    said += (
        [] if place.searched else [BROKEN_HERE if place.broken else "The search has not run with every aim here: this is the worst so far."]
    )
    others = [f"{one.label} {one.error.mean:.3f} ({plural(len(one.results), 'run')})" for one in place.attacked[1 : LISTED + 1]]
    said += [FEWER] if any(map(place.worst.has_fewer_seeds, place.attacked)) else []
    return said + ([f"Of {len(place.attacked)} attacks, the next are: {', '.join(others)}."] if others else [])
