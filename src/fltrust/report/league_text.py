"""The league as text: CSV for a program, Markdown for a README, LaTeX for a paper."""

import csv
import io
from collections.abc import Callable, Sequence

from fltrust.report.agreement import Number
from fltrust.report.standings import Place, Standing, Standings, Worst
from fltrust.report.tables import Written, as_latex, as_markdown, mean_and_spread
from fltrust.report.words import arithmetic, by_hardware, seeds


def error_and_success(place: Place) -> str:
    if not place.results:
        return place.missing
    return mean_and_spread(place.error) + (f" / {mean_and_spread(place.success)}" if place.success else "")


def worst_of(worst: Worst | None) -> tuple[str, str]:
    """The number, and the attack."""
    return (mean_and_spread(worst.number), worst.place.cell.column.label) if worst else ("", "")


def bounded(worst: Worst | None, row: Standing) -> str:
    """The worst number; a lower bound of it while attacks are missing."""
    number, attack = worst_of(worst)
    return f"{'' if row.whole else '≥ '}{number} ({attack})" if number else ""


def _written(table: Standings) -> Written:
    head = ["rule", "worst error", "worst success", "ms per round", *(column.label for column in table.columns)]
    rows = [
        [
            one.row.label + (" (baseline)" if one.row.baseline else ""),
            bounded(one.worst_error, one),
            bounded(one.worst_success, one),
            "" if one.milliseconds is None else f"{one.milliseconds:.1f}",
            *map(error_and_success, one.places),
        ]
        for one in table.rows
    ]
    return Written(f"League table, {table.label}", caption(table), head, rows)


def caption(table: Standings) -> str:
    if not table.counts:
        return "Nothing was run."
    spread = ", mean ± standard deviation over seeds" if max(table.counts) > 1 else ""
    made = f"Hardware: {by_hardware(table.results)}. Arithmetic: {arithmetic(table.results)}."
    timed = f" Milliseconds per round: median of a rule's runs on {table.hardware}." if table.hardware else ""
    return f"Test error{spread}; after the slash the success of a targeted attack. {seeds(table.counts)}. {made}{timed}"


def markdown(tables: Sequence[Standings]) -> str:
    return as_markdown([_written(table) for table in tables])


def latex(tables: Sequence[Standings]) -> str:
    return as_latex([_written(table) for table in tables])


_COLUMNS = ["dataset", "rule", "baseline", "attack", "error", "error_spread", "success", "success_spread", "seeds", "note"]


def comma_separated(tables: Sequence[Standings]) -> str:
    """A line for every cell: what a program reads easily."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for table in tables:
        for one in table.rows:
            for place in one.places:
                cell, note = place.cell, place.cell.impossible or place.missing
                figures = (*_figures(place.error if place.results else None), *_figures(place.success))
                writer.writerow([cell.dataset, cell.row.name, int(cell.row.baseline), cell.column.name, *figures, len(place.results), note])
    return text.getvalue()


def _figures(number: Number | None) -> tuple[str, str]:
    if number is None:
        return "", ""
    return f"{number.mean:.5f}", f"{number.spread:.5f}" if len(number.ours) > 1 else ""


FORMATS: dict[str, Callable[[Sequence[Standings]], str]] = {"csv": comma_separated, "latex": latex, "markdown": markdown}
