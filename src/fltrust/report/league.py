"""The league as a section of the page: a heat map of rules and attacks for each data set, the worst attack first."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple
from xml.etree.ElementTree import Element

from fltrust.league import Column
from fltrust.report.agreement import Number
from fltrust.report.embed import Embedded
from fltrust.report.league_text import caption
from fltrust.report.markup import tag
from fltrust.report.repeat import league_command
from fltrust.report.sections import sorter, tabs
from fltrust.report.standings import Place, Standing, Standings, Worst
from fltrust.report.words import plural, sentence

STEPS = (0.01, 0.03, 0.1, 0.2, 0.4)  # where the colour changes: harm above that of FedAvg without attack


def league_section(embedded: Embedded, tables: Sequence[Standings]) -> Element:
    opened = _Opened(embedded)
    shown = [(table.label, f" {len(table.counts)} of {table.possible} run", _board(opened, table)) for table in tables]
    return tag(
        "section",
        tag("h2", "League table: every rule against every attack"),
        tag(
            "p",
            "One in five clients is malicious. The columns that count come first: the highest test error under any attack of the set, and "
            "the highest success of any targeted attack (backdoors, targeted label flipping). Rules are placed by the larger of the two, "
            "so a backdoor that works is a failure. Plain FedAvg and norm clipping are the baselines. An attack written for one rule runs "
            "against all of them. Click a number to see its runs.",
            class_="claim",
        ),
        _controls(),
        tabs("league", shown),
        tag("p", "No rule or no attack has that name.", class_="missing nothing", hidden=""),
        data_league="",
    )


def _controls() -> Element:
    def field(words: str, example: str) -> Element:
        return tag("label", words, tag("input", type="search", placeholder=example, autocomplete="off", spellcheck="false"))

    bounds = [f"up to {STEPS[0]}", *(f"to {step}" for step in STEPS[1:]), "more"]
    return tag(
        "div",
        tag("div", field("Rules ", "krum, nnm"), field("Attacks ", "flip, alie"), class_="filters"),
        tag(
            "p",
            tag("span", "Error above FedAvg's without attack, or success: "),
            *(tag("span", words, class_=f"heat-key heat-{step}") for step, words in enumerate(bounds)),
            tag("span", "not run", class_="heat-key not-run"),
            tag("span", "\N{EN DASH} cannot be run", class_="heat-key left-out"),
            class_="heat-keys",
        ),
        class_="league-controls",
    )


class _Opened:
    """Cells to click on, each once: a worst number opens the cell that it comes from."""

    def __init__(self, embedded: Embedded) -> None:
        self._embedded, self._numbers = embedded, dict[int, int]()

    def number(self, label: str, place: Place) -> int:
        if id(place) not in self._numbers:
            cell = place.cell
            if cell.impossible:
                says = [f"Left out: {cell.impossible}."]
            elif not place.results:
                says = ["Not run."]
            else:
                says = [sentence("Error", place.error)] + ([sentence("Success", place.success)] if place.success else [])
            command = "" if cell.impossible else league_command(cell, place.results)
            title = f"{label} · {cell.row.label} · {cell.column.label}"
            self._numbers[id(place)] = self._embedded.open(title, says, place.results, command)
        return self._numbers[id(place)]


class _Shown(NamedTuple):
    """A column of the page: of a backdoor there are two, its error and its success."""

    group: str
    place: int
    column: Column
    success: bool
    first: bool  # of its group


def _shown(columns: Sequence[Column]) -> list[_Shown]:
    errors = [(f"{column.group}: error" if column.targeted else column.group, place, False) for place, column in enumerate(columns)]
    successes = [("targeted: success", place, True) for place, column in enumerate(columns) if column.targeted]
    shown: list[_Shown] = []
    for group, place, success in errors + successes:
        shown.append(_Shown(group, place, columns[place], success, first=not shown or shown[-1].group != group))
    return shown


def _board(opened: _Opened, table: Standings) -> Element:
    shown = _shown(table.columns)
    groups = [tag("th", colspan=1, data_span=1), tag("th", "worst of the set", colspan=2, data_span=2), tag("th", colspan=1, data_span=1)]
    for group, members in groupby(shown, key=lambda one: one.group):
        many = len(list(members))
        groups.append(tag("th", group, colspan=many, data_span=many, scope="colgroup"))
    cost = sorter("ms per round")
    cost.set("class", "narrow")
    head = [
        sorter("rule", left=True),
        sorter("error"),
        sorter("success"),
        cost,
        *(_attack_head(one) for one in shown),
    ]
    body = tag("tbody", *(_row(opened, table, place, row, shown) for place, row in enumerate(table.rows)))
    grid = tag("table", tag("thead", tag("tr", *groups, class_="groups"), tag("tr", *head)), body, class_="heat")
    scroll = tag("div", grid, class_="scroll tall", tabindex=0, role="region", aria_label=f"League table, {table.label}")
    notes = [table.board.reduced, caption(table), _cost(table), _incomplete(table)]
    return tag("div", scroll, *(tag("p", note, class_="note") for note in notes if note))


def _cost(table: Standings) -> str:
    if not table.hardware:
        return ""
    return (
        "A round's milliseconds are those of whole runs, with loading and evaluation, and several runs may have shared the hardware: "
        "compare rules, not single numbers."
    )


def _incomplete(table: Standings) -> str:
    rows = sum(not row.whole for row in table.rows)
    return f"{plural(rows, 'rule')} {'lacks' if rows == 1 else 'lack'} some attacks: ≥ marks the worst number so far." if rows else ""


def _attack_head(one: _Shown) -> Element:
    head = sorter(one.column.label)
    head.set("class", "upright")
    head.set("data-names", _names(one.column.name, one.column.label))
    return head


def _row(opened: _Opened, table: Standings, place: int, row: Standing, shown: Iterable[_Shown]) -> Element:
    baseline = tag("small", "baseline", class_="baseline") if row.row.baseline else None
    cost = "" if row.milliseconds is None else f"{row.milliseconds:.1f}"
    return tag(
        "tr",
        tag("th", row.row.label, baseline, scope="row", data_sort=place),
        _worst(opened, table, row, row.worst_error, table.reference),
        _worst(opened, table, row, row.worst_success, 0.0),
        tag("td", cost, class_="change", data_sort=None if row.milliseconds is None else round(row.milliseconds, 3)),
        *(_cell(opened, table, row.places[one.place], one) for one in shown),
        data_names=_names(row.row.name, row.row.label),
        class_="is-baseline" if row.row.baseline else None,
    )


def _names(*names: str) -> str:
    return " ".join(names).lower()


def _worst(opened: _Opened, table: Standings, row: Standing, worst: Worst | None, reference: float | None) -> Element:
    if worst is None:
        return tag("td", class_="void")
    button = tag(
        "button",
        tag("b", ("" if row.whole else "≥\N{NO-BREAK SPACE}") + f"{worst.number.mean:.3f}"),
        tag("small", worst.place.cell.column.label),
        type="button",
        data_cell=opened.number(table.label, worst.place),
    )
    return tag("td", button, class_=f"cell worst {_heat(worst.number, reference)}", data_sort=round(worst.number.mean, 6))


def _cell(opened: _Opened, table: Standings, place: Place, shown: _Shown) -> Element:
    number = place.success if shown.success else place.error if place.results else None
    opens, start = opened.number(table.label, place), "cell first" if shown.first else "cell"
    if number is None:
        words = "\N{EN DASH}" if place.cell.impossible else place.missing
        button = tag("button", words, type="button", data_cell=opens, title=place.cell.impossible or place.missing)
        return tag("td", button, class_=f"{start} {place.missing.replace(' ', '-')}")
    seeds = plural(len(number.ours), "seed")
    spread = tag("small", f"±{number.spread:.3f}") if len(number.ours) > 1 else None
    what = f"{place.cell.row.label}, {place.cell.column.label}: {'success' if shown.success else 'error'}, {seeds}"
    button = tag("button", tag("b", f"{number.mean:.3f}"), spread, type="button", data_cell=opens, title=what)
    heat = _heat(number, 0.0 if shown.success else table.reference)
    return tag("td", button, class_=f"{start} {heat}", data_sort=round(number.mean, 6))


def _heat(number: Number, reference: float | None) -> str:
    above = round(number.mean - (reference or 0.0), 6)
    return f"heat-{sum(above > step for step in STEPS)}"
