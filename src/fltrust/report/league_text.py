"""The league as text: CSV for a program, Markdown for a README, LaTeX for a paper."""

from collections.abc import Iterator
from typing import Any

from fltrust.report.formats import formats, mean_spread
from fltrust.report.standings import Place, Standing, Standings, Worst
from fltrust.report.tables import Written, mean_and_spread
from fltrust.report.words import made, seeds


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
    timed = f" Milliseconds per round: median of a rule's runs on {table.hardware}." if table.hardware else ""
    return f"Test error{spread}; after the slash the success of a targeted attack. {seeds(table.counts)}. {made(table.results)}{timed}"


_COLUMNS = ["dataset", "rule", "baseline", "attack", "error", "error_spread", "success", "success_spread", "seeds", "note"]


def _lines(table: Standings) -> Iterator[list[Any]]:
    for place in table.places:
        cell, note = place.cell, place.cell.impossible or place.missing
        numbers = (*mean_spread(place.error if place.results else None), *mean_spread(place.success))
        yield [cell.dataset, cell.row.name, int(cell.row.baseline), cell.column.name, *numbers, len(place.results), note]


FORMATS = formats(_written, _COLUMNS, _lines)
