"""The worst-case table as text: CSV for a program, Markdown for a README, LaTeX for a paper."""

import csv
import io
from collections.abc import Callable, Sequence

from fltrust.report.tables import Written, as_latex, as_markdown, mean_and_spread
from fltrust.report.words import arithmetic, by_hardware, plural, seeds
from fltrust.report.worst_case import MEANING, Place, WorstCases

UNSEARCHED = "≥: the search has not run with every aim here."


def number(place: Place) -> str:
    """The worst error with its spread, or why there is none; ≥ where the search is missing."""
    if not place.worst:
        return place.missing
    return ("" if place.searched else "≥ ") + mean_and_spread(place.worst.error)


def source(place: Place) -> str:
    """The attack that the number comes from, and of how many runs it is the mean."""
    if not place.worst:
        return ""
    attack = place.worst.label if place.cell.share else ""
    return " · ".join(part for part in (attack, plural(len(place.worst.results), "run")) if part)


def caption(table: WorstCases) -> str:
    if not table.counts:
        return "Nothing was run."
    spread = ", mean ± standard deviation over seeds" if max(table.counts) > 1 else ""
    unsearched = f" {UNSEARCHED}" if any(place.worst and not place.searched for place in table.places) else ""
    made = f"Hardware: {by_hardware(table.results)}. Arithmetic: {arithmetic(table.results)}."
    return f"{MEANING} Test error{spread}. 0 %: nobody attacks.{unsearched} {seeds(table.counts)}. {made}"


def _written(table: WorstCases) -> Written:
    def words(place: Place) -> str:
        return number(place) + (f" ({source(place)})" if place.worst else "")

    head = ["rule", *(f"{share} % malicious" for share in table.shares)]
    rows = [[row.row.label, *map(words, row.places)] for row in table.rows]
    return Written(f"Worst case, {table.label}", caption(table), head, rows)


def markdown(tables: Sequence[WorstCases]) -> str:
    return as_markdown([_written(table) for table in tables])


def latex(tables: Sequence[WorstCases]) -> str:
    return as_latex([_written(table) for table in tables])


_COLUMNS = ["dataset", "rule", "malicious_percent", "worst_error", "spread", "seeds", "attack", "searched", "attacks_run", "note"]


def comma_separated(tables: Sequence[WorstCases]) -> str:
    """A line for every cell: what a program reads easily."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for table in tables:
        for place in table.places:
            cell, worst = place.cell, place.worst
            spread = f"{worst.error.spread:.5f}" if worst and len(worst.results) > 1 else ""
            figures = [f"{worst.error.mean:.5f}", spread, len(worst.results), worst.label] if worst else ["", "", 0, ""]
            note = cell.impossible or place.missing
            writer.writerow([cell.dataset, cell.row.name, cell.share, *figures, int(place.searched), len(place.attacked), note])
    return text.getvalue()


FORMATS: dict[str, Callable[[Sequence[WorstCases]], str]] = {"csv": comma_separated, "latex": latex, "markdown": markdown}
