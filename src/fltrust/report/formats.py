"""How a kind of table is written as text: CSV for a program, LaTeX for a paper, Markdown for a README."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from fltrust.report.agreement import Number
from fltrust.report.tables import Written, as_latex, as_markdown

Table = TypeVar("Table")


def formats(
    written: Callable[[Table], Written], head: Sequence[str], lines: Callable[[Table], Iterable[Sequence[Any]]]
) -> dict[str, Callable[[Sequence[Table]], str]]:
    """By name. `head` and `lines`: of the CSV file, which has a line for every cell."""
    return {
        "csv": lambda tables: comma_separated(head, (line for table in tables for line in lines(table))),
        "latex": lambda tables: as_latex([written(table) for table in tables]),
        "markdown": lambda tables: as_markdown([written(table) for table in tables]),
    }


def comma_separated(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_safe(value) for value in line] for line in lines)
    return text.getvalue()


def mean_spread(number: Number | None) -> tuple[str, str]:
    """The two columns of a number."""
    if number is None:
        return "", ""
    return f"{number.mean:.5f}", f"{number.spread:.5f}" if len(number.ours) > 1 else ""


def _safe(value: Any) -> Any:
    """Text in one line: a carriage return would begin another row. A spreadsheet takes text that begins like this for a formula."""
    if not isinstance(value, str):
        return value
    text = " ".join(value.split())
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
