"""What each rule survives, as text: CSV for a program, Markdown for a README, LaTeX for a paper."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fltrust.report import formats
from fltrust.report.survival import Board, Line, Survival
from fltrust.report.sweep import definition
from fltrust.report.tables import Written, as_latex, as_markdown, mean_and_spread
from fltrust.report.words import made, seeds


def words(survival: Survival | None, line: Line | None) -> str:
    """`3`, `≥ 4` if nothing that was tested harms the rule, and why there is no number."""
    if line is None:
        return "not run"
    if survival is None:
        return "no run without attack" if line.clean is None else ""
    return f"≥ {survival.most}" if survival.breaks is None else str(survival.most)


def _written(board: Board, threshold: float) -> Written:
    attacks = [attack for attack in board.attacks if not all(line.idle for line in board.lines if line.attack == attack)]
    rows = []
    for row in board.rows:
        lines = {line.attack: line for line in row.lines}
        worst = row.worst(threshold)
        rows.append(
            [
                row.rule,
                f"{words(*worst)} ({worst[1].attack})" if worst else "",
                "" if row.clean is None else mean_and_spread(row.clean.error),
                *(words(line.survival(threshold), line) if (line := lines.get(attack)) else words(None, None) for attack in attacks),
            ]
        )
    head = ["rule", "worst attack", "error without attack", *attacks]
    title = f"Malicious clients survived, of {board.num_clients}: {board.title}"
    return Written(title, _caption(board, threshold), head, rows)


def _caption(board: Board, threshold: float) -> str:
    counts = [len(point.results) for line in board.lines for point in line.points]
    tested = ", ".join(map(str, board.tested))
    return f"{definition(threshold)} ≥: no number that was tested harms the rule. Tested: {tested}. {seeds(counts)}. {made(board.results)}"


def markdown(boards: Sequence[Board], threshold: float) -> str:
    return as_markdown([_written(board, threshold) for board in boards])


def latex(boards: Sequence[Board], threshold: float) -> str:
    return as_latex([_written(board, threshold) for board in boards])


def comma_separated(boards: Sequence[Board], threshold: float) -> str:
    """A line for each rule under each attack."""

    def rows(board: Board, line: Line) -> Iterable[list[Any]]:
        if (survival := line.survival(threshold)) and line.clean:
            share, clean = f"{survival.most / board.num_clients:.4f}", f"{line.clean.error.mean:.5f}"
            yield [clean, survival.most, share, survival.breaks, line.points[-1].malicious]

    return _lines(boards, ["error_without_attack", "survives_up_to", "share", "harmed_by", "most_tested"], rows)


def numbers(boards: Sequence[Board]) -> str:
    """All numbers as CSV: a line for each rule, attack and number of malicious clients."""

    def rows(board: Board, line: Line) -> Iterable[list[Any]]:
        for point in line.points:
            if not point.borrowed:
                figures = [number for one in (point.error, point.success) for number in ((one.mean, one.spread) if one else (None, None))]
                written = ["" if value is None else f"{value:.5f}" for value in (*figures, line.harm(point))]
                yield [point.malicious, len(point.results), *written]

    return _lines(boards, ["malicious", "seeds", "error", "error_spread", "success", "success_spread", "harm"], rows)


def _lines(boards: Sequence[Board], head: Sequence[str], rows: Callable[[Board, Line], Iterable[Sequence[Any]]]) -> str:
    """Each line of the CSV file says first whose numbers follow."""

    def lines() -> Iterable[list[Any]]:
        for board in boards:
            for line in board.lines:
                place = [board.dataset, board.settings, line.rule, line.attack, board.num_clients]
                yield from ([*place, *row] for row in rows(board, line))

    return formats.comma_separated(["dataset", "settings", "rule", "attack", "clients", *head], lines())


FORMATS: dict[str, Callable[[Sequence[Board], float], str]] = {"csv": comma_separated, "latex": latex, "markdown": markdown}
