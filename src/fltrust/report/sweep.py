"""The page of a sweep, and of one's own runs: what the script draws, and what stands above and below it."""

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

from fltrust.registry import Look
from fltrust.report.embed import Embedded
from fltrust.report.looks import looks_of_rules
from fltrust.report.markup import tag
from fltrust.report.reading import Problem
from fltrust.report.survival import Board, Line, Point, Row
from fltrust.report.words import by_hardware, plural, sentence, signed

NAMED = 4  # rules in the headline


def definition(threshold: float) -> str:
    """What the page and the tables say about the word."""
    return (
        f"A rule survives a number of malicious clients if its test error is at most {threshold:g} above its own error without attack, and "
        f"a backdoor works on at most {threshold:g} more of its examples than without attack. Means over seeds count, and the rule must "
        "survive every smaller number that was tested too."
    )


def headline(board: Board, threshold: float) -> list[str]:
    """The answer, a sentence for each of the first rules."""
    said = []
    best = min((row.clean.error.mean for row in board.rows if row.clean), default=0.0)
    for row in board.rows[:NAMED]:
        if not (worst := row.worst(threshold)):
            continue
        survival, line = worst
        share = f"{survival.most} of {board.num_clients} malicious clients ({survival.most / board.num_clients:.0%})"
        if survival.breaks is None:
            said.append(f"{row.rule} survives all that was tested, {share}")
        elif survival.most:
            said.append(f"{row.rule} survives {share}; {survival.breaks} harm it (attack {line.attack})")
        else:
            said.append(
                f"{row.rule} survives none: {survival.breaks} of {board.num_clients} malicious clients harm it (attack {line.attack})"
            )
        if row.clean and row.clean.error.mean > best + threshold:  # it may survive because it learns little
            said[-1] += f". Its error without attack is {row.clean.error.mean:.3f}; the best rule has {best:.3f}"
    others = sum(row.worst(threshold) is not None for row in board.rows[NAMED:])
    return [*said, *([f"{plural(others, 'rule')} more in the table below"] if others else [])]


def facts(boards: Sequence[Board]) -> Element:
    results = [one for board in boards for one in board.results]
    rules, attacks = {row.rule for board in boards for row in board.rows}, {attack for board in boards for attack in board.attacks}
    tested = sorted({many for board in boards for many in board.tested})
    seeds = {len(point.results) for board in boards for line in board.lines for point in line.points}
    each = plural(max(seeds), "seed") if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)} seeds"
    shown = [
        (f"{len(results):,}", "run" if len(results) == 1 else "runs", f"{each} each"),
        (
            f"{len(rules)}",
            "rule" if len(rules) == 1 else "rules",
            "on 1 data set" if len(boards) == 1 else f"on {len(boards)} data sets or settings",
        ),
        (f"{len(attacks)}", "attack" if len(attacks) == 1 else "attacks", "“none” counts as one" if "none" in attacks else ""),
        (", ".join(map(str, tested[:8])) + (", …" if len(tested) > 8 else ""), "malicious clients", "the numbers that were tested"),
    ]
    numbers = (tag("div", tag("b", number), " ", tag("span", what), tag("small", more), class_="fact") for number, what, more in shown)
    return tag("div", tag("div", *numbers, class_="facts"), tag("p", f"Hardware: {by_hardware(results)}.", class_="note"))


def survival_section(embedded: Embedded, boards: Sequence[Board], threshold: float) -> Element:
    embedded.sweep = {"threshold": threshold, "boards": [_board(embedded, board, threshold) for board in boards]}
    return tag(
        "section",
        tag("h2", "What each rule survives"),
        tag(
            "p",
            definition(threshold),
            " Darker cells show more harm. Rules are sorted by what they survive of their worst attack. A rule that learns nothing "
            "cannot be harmed, so look at its error without attack too. Click a number to see its runs.",
            class_="claim",
        ),
        tag("div", data_sweep=""),
    )


def numbers_section() -> Element:
    return tag("section", tag("h2", "All numbers"), tag("div", id="numbers-host"))


def _board(embedded: Embedded, board: Board, threshold: float) -> dict[str, Any]:
    rules, attacks = [row.rule for row in board.rows], list(board.attacks)
    cells = _Cells(embedded, board)
    looks = looks_of_rules({row.rule: row.name for row in board.rows})
    lines = board.lines
    return {
        "title": board.title,
        "clients": board.num_clients,
        "attacks": attacks,
        "idle": sorted({attacks.index(line.attack) for line in lines if line.idle}),
        "rules": [_rule(cells, row, lines, looks[row.rule], threshold) for row in board.rows],
        "lines": [
            {
                "rule": rules.index(line.rule),
                "attack": attacks.index(line.attack),
                "survives": line.survival(threshold),
                "clean": None if line.clean is None else round(line.clean.error.mean, 5),
                "cleanSuccess": round(line.clean.success.mean, 5) if line.clean and line.clean.success else 0,
                "borrowed": line.points[0].borrowed,
                "points": [_point(cells, line, point) for point in line.points],
            }
            for line in lines
        ],
    }


def _rule(cells: "_Cells", row: Row, lines: Sequence[Line], look: Look, threshold: float) -> dict[str, Any]:
    worst, clean = row.worst(threshold), row.clean
    home = next((line for line in row.lines if clean in line.points), row.lines[0])
    return {
        "name": row.rule,
        "known": row.known,
        "look": look._asdict(),
        "worst": lines.index(worst[1]) if worst else None,
        "clean": None if clean is None else [*_figures(clean)[:2], len(clean.results), cells.number(home, clean)],
    }


def _figures(point: Point) -> list[float | None]:
    numbers = [point.error, point.success]
    return [
        None if number is None else round(value, 5) for number in numbers for value in ((number.mean, number.spread) if number else (0, 0))
    ]


def _point(cells: "_Cells", line: Line, point: Point) -> list[Any]:
    harm = line.harm(point)
    return [
        point.malicious,
        *_figures(point),
        len(point.results),
        None if harm is None else round(harm, 5),
        cells.number(line, point),
    ]


class _Cells:
    """What can be clicked on, each once: a point without malicious clients stands on many lines."""

    def __init__(self, embedded: Embedded, board: Board) -> None:
        self._embedded, self._board = embedded, board
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, line: Line, point: Point) -> int:
        place = tuple(map(id, point.results))
        if place not in self._numbers:
            attack = "no attack" if point.borrowed else line.attack
            who = f"{point.malicious} of {self._board.num_clients} malicious"
            title = " · ".join((self._board.title, line.rule, attack, who))
            self._numbers[place] = self._embedded.open(title, says(line, point), point.results)
        return self._numbers[place]


def says(line: Line, point: Point) -> list[str]:
    said = [sentence("Test error", point.error)]
    if point.success:
        said.append(sentence("Backdoor success", point.success))
    if line.clean is not None and point.malicious and not line.idle:
        harm = line.harm(point) or 0.0
        said.append(f"Without attack the same rule has error {line.clean.error.mean:.3f}. Harm {signed(harm)}.")
    return said


def leftovers_section(embedded: Embedded, problems: Sequence[Problem], unfinished: Sequence[tuple[str, str, Any]]) -> Element:
    """Runs that stand in no table: unfinished ones can be looked at, the others say why not."""
    rows = []
    for name, state, one in unfinished:
        button = tag("button", name, type="button", data_cell=embedded.open(name, [state], (one,)), class_="link")
        rows.append(tag("tr", tag("th", button, scope="row"), tag("td", state, class_="words")))
    rows += [tag("tr", tag("th", problem.what, scope="row"), tag("td", problem.why, class_="words")) for problem in problems]
    head = tag("tr", *(tag("th", words, scope="col", class_="left") for words in ("run", "why it stands in no table")))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="leftovers")
    return tag(
        "section",
        tag("h2", "Not in the tables"),
        tag("p", f"{plural(len(rows), 'run')} that did not finish, could not be read or were left out.", class_="claim"),
        tag("div", table, class_="scroll tall", tabindex=0, role="region", aria_label="Not in the tables"),
    )
