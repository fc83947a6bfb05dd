"""The worst-case table as text: CSV for a program, Markdown for a README, LaTeX for a paper."""

from collections.abc import Iterator
from typing import Any

from fltrust.report.formats import formats, mean_spread
from fltrust.report.tables import Written, mean_and_spread
from fltrust.report.words import made, plural, seeds
from fltrust.report.worst_case import MEANING, Place, WorstCases


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
    return " ".join([MEANING, f"Test error{spread}. 0 %: nobody attacks.", *table.remarks, f"{seeds(table.counts)}.", made(table.results)])


def _written(table: WorstCases) -> Written:
    def words(place: Place) -> str:
        return number(place) + (f" ({source(place)})" if place.worst else "")

    head = ["rule", *(f"{share} % malicious" for share in table.shares)]
    rows = [[row.row.label, *map(words, row.places)] for row in table.rows]
    return Written(f"Worst case, {table.label}", caption(table), head, rows)


_COLUMNS = ["dataset", "rule", "malicious_percent", "worst_error", "spread", "seeds", "attack", "searched", "broken", "attacks_run", "note"]


def _lines(table: WorstCases) -> Iterator[list[Any]]:
    for place in table.places:
        cell, worst, note = place.cell, place.worst, place.cell.impossible or place.missing
        numbers = [*mean_spread(worst.error if worst else None), *((len(worst.results), worst.label) if worst else (0, ""))]
        yield [cell.dataset, cell.row.name, cell.share, *numbers, int(place.searched), int(place.broken), len(place.attacked), note]


FORMATS = formats(_written, _COLUMNS, _lines)
