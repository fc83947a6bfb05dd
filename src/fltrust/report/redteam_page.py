"""The page of a red team: the breaking point first, then whether anybody would have noticed, what helped, and how far to trust it."""

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

from fltrust.attacks import Searched
from fltrust.report.embed import Embedded
from fltrust.report.looks import COLOURS
from fltrust.report.markup import tag
from fltrust.report.page import html_page
from fltrust.report.redteam import UNHIDDEN, Answer, Looked, Worst
from fltrust.report.redteam_checklist import Check, doubts
from fltrust.report.redteam_text import cheaper, helped, points, seeds_of, setting, summary, title, warnings
from fltrust.report.survival import Line, Point
from fltrust.report.sweep import leftovers_section, numbers_section, says, survival_section
from fltrust.report.tables import mean_and_spread
from fltrust.report.words import by_hardware, plural

LEVELS = (0.5, 1, 2, 4, 8)  # times the threshold: where the colour of a cell changes, as in a sweep's table
MARKERS = "osD^vXP*"


def redteam_page(answer: Answer, checks: Sequence[Check]) -> str:
    embedded = _Embedded(answer)
    sections: list[tuple[str, str, Element]] = []
    if answer.row:
        sections.append(("breaking-point", "Breaking point", _breaking_section(embedded, answer)))
    if answer.board and len(answer.board.rows) > 1:
        sections.append(("survival", "Rivals", survival_section(embedded, [answer.board], answer.question.threshold)))
        sections.append(("numbers", "All numbers", numbers_section()))
    if answer.row:
        sections.append(("noticed", "Would you notice?", _noticed_section(answer)))
        sections.append(("changes", "What helps", _changes_section(embedded, answer)))
    sections.append(("checklist", "Checklist", _checklist_section(checks)))
    sections.append(("repeat", "Repeat it", _repeat_section(answer)))
    if answer.problems:
        sections.append(("leftovers", "Not in the tables", leftovers_section(embedded, answer.problems, [])))
    header = tag(
        "header",
        tag("p", "fltrust redteam", class_="kicker"),
        tag("h1", title(answer).replace(" %", "\N{NO-BREAK SPACE}%")),
        tag("p", setting(answer), class_="claim"),
        *(tag("p", tag("b", "Warning: "), warning, class_="finding") for warning in warnings(answer)),
        tag("ul", *(tag("li", sentence) for sentence in summary(answer)), _doubts(checks) if answer.row else None, class_="lede"),
        _facts(answer),
    )
    return html_page("fltrust redteam", header, sections, embedded)


class _Embedded(Embedded):
    """Runs with the command that repeats them, plug-ins included; every number names the red team that it belongs to."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def place_of(self, result: Any) -> int:
        place = super().place_of(result)
        self.runs[place]["command"] = self._answer.repeat(result)
        return place

    def open(self, heading: str, says: Sequence[str], results: Any, command: str = "") -> int:
        return super().open(heading, says, results, command or self._answer.command)


# ---------------------------------------------------------------- the first screen


def _doubts(checks: Sequence[Check]) -> Element | None:
    many, said = doubts(checks)
    return tag("li", tag("a", many, href="#checklist"), said) if many else None


def _facts(answer: Answer) -> Element:
    question, survival = answer.question, answer.survival
    results = answer.results.all()
    shown = [
        (
            f"{len(results):,}",
            "run" if len(results) == 1 else "runs",
            f"{plural(len(question.seeds), 'seed')}, {plural(question.num_clients, 'client')}",
        )
    ]
    if answer.clean:
        spread = f"± {answer.clean.error.spread:.3f}, " if len(answer.clean.results) > 1 else ""
        shown.insert(0, (f"{answer.clean.error.mean:.3f}", "error without attack", f"{spread}{seeds_of(answer.clean)}"))
    if survival:
        least = "≥ " if answer.breaks is None else ""
        shown.insert(
            0,
            (
                least + answer.share(survival[0].most),
                "malicious survived",
                f"the largest tested share that costs at most {question.points:g} points",
            ),
        )
    if curve := answer.curve():
        worst = max(curve, key=lambda one: one.point.error.mean)
        shown.append((f"{worst.point.error.mean:.3f}", "worst error", f"{worst.attack}, {answer.share(worst.point.malicious)} malicious"))
    numbers = (tag("div", tag("b", one), " ", tag("span", what), tag("small", more), class_="fact") for one, what, more in shown)
    hardware = tag("p", f"Hardware: {by_hardware(results)}.", class_="note") if results else None
    return tag("div", tag("div", *numbers, class_="facts"), hardware)


# ---------------------------------------------------------------- where it breaks


def _breaking_section(embedded: Embedded, answer: Answer) -> Element:
    assert answer.row is not None
    question = answer.question
    lines = [line for line in answer.row.lines if not line.idle]
    cells = {(line.attack, point.malicious): _open(embedded, answer, line, point) for line in lines for point in line.points}
    host = tag("div", data_figure=len(embedded.figures))
    embedded.figures.append(_figure(answer, lines, cells))
    counts = [0, *question.counts]
    head = [tag("th", "attack", scope="col", class_="left")]
    head += [
        tag(
            "th",
            answer.share(many) if many else "no attack",
            tag("small", f" {many} of {question.num_clients}") if many else None,
            scope="col",
        )
        for many in counts
    ]
    rows = []
    for line in lines:
        at = {point.malicious: point for point in line.points}
        rows.append(tag("tr", tag("th", line.attack, scope="row"), *(_cell(answer, line, at.get(many), cells) for many in counts)))
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="heat harm")
    return tag(
        "section",
        tag("h2", f"Where {answer.label} breaks"),
        tag(
            "p",
            f"A share breaks the rule if some attack costs more than {question.points:g} points there: of test error, or of backdoor "
            "success, above the same rule without attack. Means over seeds count. Bars are the standard deviation over seeds. Darker cells "
            "show more harm, and ▲ marks a share that breaks the rule. Click a number to see its runs and the command that repeats each.",
            class_="claim",
        ),
        host,
        tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="Attacks and shares"),
    )


def _figure(answer: Answer, lines: Sequence[Line], cells: dict[tuple[str, int], int]) -> dict[str, Any]:
    """Error, and backdoor success if there is any, against the share of malicious clients; a curve for each attack."""

    def pair(one: Any) -> list[float] | None:
        return None if one is None else [round(one.mean, 5), round(one.spread, 5)]

    colours = [name for name in COLOURS if name != "grey"]
    looks = [
        {
            "colour": colours[i % len(colours)],
            "marker": MARKERS[i % len(MARKERS)],
            "dashed": isinstance(line.points[-1].results[0].run.attack, Searched),
        }
        for i, line in enumerate(lines)
    ]
    points = [
        {
            "curve": i,
            "at": round(100 * point.malicious / answer.question.num_clients, 2),
            "error": pair(point.error),
            "success": pair(point.success),
            "cell": cells[line.attack, point.malicious],
        }
        for i, line in enumerate(lines)
        for point in line.points
    ]
    limit = None if answer.clean is None else round(answer.clean.error.mean + answer.question.threshold, 5)
    return {
        "kind": "figure",
        "x": f"malicious clients, % of {answer.question.num_clients}",
        "curves": [{"name": line.attack, **look} for line, look in zip(lines, looks, strict=True)],
        "reference": f"{answer.question.points:g} points above no attack",
        "backdoor": f"{answer.rule}: backdoor success",
        "panels": [{"title": f"{answer.rule}: test error", "points": points, "reference": limit, "missing": "not run"}],
    }


def _open(embedded: Embedded, answer: Answer, line: Line, point: Point) -> int:
    attack = line.attack if point.malicious else "no attack"
    who = f"{point.malicious} of {answer.question.num_clients} malicious"
    return embedded.open(" · ".join((answer.rule, attack, who)), [*says(line, point), f"{seeds_of(point).capitalize()}."], point.results)


def _cell(answer: Answer, line: Line, point: Point | None, cells: dict[tuple[str, int], int]) -> Element:
    if point is None:
        return tag("td", tag("span", "not run"), class_="cell not-run")
    harm = line.harm(point) or 0.0
    level = sum(harm > step * answer.question.threshold + 1e-9 for step in LEVELS)
    mark = " ▲" if harm > answer.question.threshold + 1e-9 and point.malicious else ""
    small = f"± {point.error.spread:.3f}" if len(point.results) > 1 else ""
    success = None if point.success is None else tag("small", f"backdoor {point.success.mean:.3f}")
    button = tag(
        "button",
        tag("b", f"{point.error.mean:.3f}{mark}"),
        tag("small", small),
        success,
        type="button",
        data_cell=cells[line.attack, point.malicious],
    )
    return tag("td", button, class_=f"cell harm-{level}")


# ---------------------------------------------------------------- would you have noticed?


def _noticed_section(answer: Answer) -> Element:
    looked = [one for one in answer.looked() if one.malicious == answer.shown]
    before = [one for one in answer.looked() if one.malicious == 0][:1]
    head = ("attack", "noticed?", "since", "what the audit shows", "both sides")
    rows = [_noticed_row(one) for one in [*before, *looked]]
    where = f"{answer.shown} of {answer.question.num_clients} clients malicious" if answer.shown else "no attack"
    rounds = min((seen["rounds"] for one in [*before, *looked] for seen in one.seen), default=0)
    section = tag(
        "section",
        tag("h2", "Would you have noticed?"),
        tag(
            "p",
            f"What “fltrust audit” says of the same runs, {where}, all seeds together. “Yes” means that it accuses at least half of the "
            f"malicious clients, and fewer honest ones than malicious ones. It saw {plural(rounds, 'round')} of each run: those that were "
            f"evaluated. {UNHIDDEN}",
            class_="claim",
        ),
    )
    if not rows:
        section.append(tag("p", "Not measured: no audit was kept of these runs.", class_="missing"))
        return section
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", words, scope="col", class_="left") for words in head))),
        tag("tbody", *rows),
        class_="audit",
    )
    section.append(tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="What the audit shows"))
    return section


def _noticed_row(one: Looked) -> Element:
    kind = {"yes": "ok", "in part": "suspicious", "no": "hostile"}[one.noticed] if one.malicious else "ok"
    accused = [f"accuses {one.total('found')} of {one.total('malicious')} malicious clients"] if one.malicious else []
    accused.append(f"accuses {one.total('accused')} of {one.total('honest')} honest clients")
    evidence = next((seen["evidence"] for seen in one.seen if seen["evidence"]), "")
    sides = []
    for name, words in (("trust", "mean trust"), ("share", "mean share of the update")):
        bad, good = one.mean(name, "malicious"), one.mean(name, "honest")
        if bad is not None and good is not None:
            sides.append(f"{words}: malicious {bad:.3f}, honest {good:.3f}")
    return tag(
        "tr",
        tag("th", one.attack if one.malicious else "no attack", scope="row"),
        tag("td", one.noticed if one.malicious else "", class_=f"words {kind}"),
        tag("td", "" if one.since is None else f"round {one.since}", class_="words when"),
        tag("td", *(tag("div", words) for words in accused), tag("small", f"such as: {evidence}" if evidence else ""), class_="words"),
        tag("td", *(tag("div", words) for words in sides), class_="words"),
    )


# ---------------------------------------------------------------- what helps


def _changes_section(embedded: Embedded, answer: Answer) -> Element:
    section = tag("section", tag("h2", "What would help most?"))
    compared = answer.compared()
    if answer.breaks is None:
        said = "No share that was tested breaks the rule, so no change was tried." if answer.survival else "Not measured yet."
        section.append(tag("p", said, class_="claim"))
        return section
    where = f"{answer.breaks} of {answer.question.num_clients} malicious"
    section.append(
        tag(
            "p",
            f"Measured, with {where}. Each change meets the attack that broke the rule, and the search on the changed rule itself; rivals "
            "meet all attacks. The worst of them counts. Costs are above the error (or backdoor success) of your rule without attack, so a "
            "change that learns worse does not look better. A cost below 0 is better than your rule without attack. Red-team a change "
            "before you adopt it: other attacks may do it more harm.",
            class_="claim",
        )
    )
    best, own = answer.best, answer.as_it_is
    if best and own:
        section.append(
            tag(
                "p",
                tag("b", f"Most useful: {best.what}. "),
                helped(answer, best, own),
                class_="finding",
            )
        )
    elif len(compared) > 1:
        section.append(
            tag(
                "p",
                tag("b", "None helped clearly: "),
                "no change gained more than a point and more than the spread over seeds.",
                class_="finding",
            )
        )
    section.extend(tag("p", sentence, class_="claim") for sentence in cheaper(answer))
    head = [
        tag("th", "change", scope="col", class_="left"),
        *(tag("th", words, scope="col") for words in ("costs", "error under attack", "backdoor", "without attack")),
    ]
    head += [tag("th", words, scope="col", class_="left") for words in ("worst attack", "attacks tried")]
    rows = [_change_row(embedded, answer, one, one is best) for one in compared]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="numbers")
    section.append(tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="What helps"))
    return section


def _change_row(embedded: Embedded, answer: Answer, one: Worst, best: bool) -> Element:
    who = f"{one.point.malicious} of {answer.question.num_clients} malicious"
    under = embedded.open(
        " · ".join((one.what, one.attack, who)),
        [f"Test error {mean_and_spread(one.point.error)}. {seeds_of(one.point).capitalize()}."],
        one.point.results,
    )
    before = embedded.open(
        " · ".join((one.what, "no attack")),
        [f"Test error {mean_and_spread(one.clean.error)}. {seeds_of(one.clean).capitalize()}."],
        one.clean.results,
    )

    def opens(words: str, number: int) -> Element:
        return tag("td", tag("button", words, type="button", data_cell=number, class_="link"), class_="change")

    return tag(
        "tr",
        tag("th", tag("b", one.what) if best else one.what, scope="row"),
        tag("td", points(one.cost), class_="change"),
        opens(mean_and_spread(one.point.error), under),
        tag(
            "td",
            mean_and_spread(one.point.success) if one.point.success else "" if answer.backdoor_tested else "not tested",
            class_="change",
        ),
        opens(mean_and_spread(one.clean.error), before),
        tag("td", one.attack, class_="words"),
        tag("td", f"{one.attacks}{'' if one.complete else ', fewer than your rule'}", class_="words"),
    )


# ---------------------------------------------------------------- how far to trust it


def _checklist_section(checks: Sequence[Check]) -> Element:
    kinds = {"yes": "ok", "no": "hostile"}
    rows = [
        tag(
            "tr",
            tag("th", check.question, scope="row"),
            tag("td", check.answer, class_=f"words {kinds.get(check.answer, 'unreliable')}"),
            tag("td", check.why, class_="words"),
        )
        for check in checks
    ]
    head = tag("tr", *(tag("th", words, scope="col", class_="left") for words in ("question", "answer", "why")))
    return tag(
        "section",
        tag("h2", "How far can you trust these numbers?"),
        tag(
            "p",
            "Known mistakes of security evaluations, answered from the facts of this red team; “yes” is the good answer. After Khan, "
            "Shejwalkar, Houmansadr and Anwar, ",
            tag("em", "On the Pitfalls of Security Evaluation of Robust Federated Learning"),
            " (DLSP 2023), and their later survey of 50 defences.",
            class_="claim",
        ),
        tag(
            "div",
            tag("table", tag("thead", head), tag("tbody", *rows), class_="audit"),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_label="Checklist",
        ),
    )


def _repeat_section(answer: Answer) -> Element:
    return tag(
        "section",
        tag("h2", "To repeat it"),
        tag(
            "p",
            "The whole red team; runs that are done are not run again. Click a number above for the command of a single run.",
            class_="claim",
        ),
        tag("pre", tag("code", answer.command), tabindex=0),
    )
