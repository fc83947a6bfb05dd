"""The HTML page as a whole. Tables are written here, pictures are drawn by `plot.js` and `page.js` from what is embedded.

Everything that comes from a file goes through an element tree, which escapes it, or through packed JSON, which the script writes as text.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from string import Template
from xml.etree.ElementTree import Element

from fltrust.paper import EXHIBITS, Exhibit
from fltrust.paper.exhibit import ATTACKS as ATTACK_NAMES
from fltrust.report.agreement import LOOSE, STRICT, Judged, Tally, of_the_paper, tally
from fltrust.report.checks import check_keys, checks_section
from fltrust.report.embed import Embedded
from fltrust.report.federation import audit_part, named
from fltrust.report.layout import grids, telling
from fltrust.report.league import league_section
from fltrust.report.looks import COLOURS
from fltrust.report.markup import tag, text_of
from fltrust.report.reading import Found
from fltrust.report.sections import arithmetic_section, exhibit_section, pairs_of, run_list, trust_section
from fltrust.report.standings import Standings
from fltrust.report.survival import Board
from fltrust.report.sweep import facts, headline, leftovers_section, numbers_section, survival_section
from fltrust.report.words import MARKS, duration, made, name_of, plural
from fltrust.report.worst_case import WorstCases
from fltrust.report.worst_case_page import worst_case_section
from fltrust.store.results import Curves, Result, Results, first_seed
from fltrust.version import __version__

EXACT = ATTACK_NAMES["optimal-adaptive"]
PRINTED = ("methods", "variants", "root-bias")  # the paper's own tables, whose numbers can be compared one by one


def reproduction_page(
    judged: dict[Exhibit, list[Judged]], found: Found, tables: Sequence[Standings] = (), worst: Sequence[WorstCases] = ()
) -> str:
    """The paper's tables and figures beside its numbers; first the worst case and then the league, if they are given."""
    embedded, results = Embedded(), found.results
    worst = [table for table in worst if table.counts]
    first = worst_case_section(embedded, worst) if worst else None
    sections: list[tuple[str, str, Element]] = []  # id, short name, content
    if tables:
        sections.append(("league", "League", league_section(embedded, tables)))
    if shown := telling(judged):
        sections.append(("trust", "Trust", trust_section(embedded, shown)))
    for exhibit, cells in judged.items():
        sections.append((exhibit.name, exhibit.title.split(":")[0], exhibit_section(embedded, exhibit, cells, results)))
    if (checks := checks_section(embedded, results)) is not None:
        sections.append(("checks", "Checks", checks))
    pairs = pairs_of(results)
    if pairs:
        sections.append(("arithmetic", "Arithmetic", arithmetic_section(embedded, pairs)))
    in_tables = {result.run.key for cells in judged.values() for one in cells for result in one.results}
    in_tables |= {result.run.key for table in tables for result in table.results}
    in_tables |= {result.run.key for table in worst for result in table.results}
    in_pairs = {one.run.key for pair in pairs for one in pair}
    shown_above = in_tables | in_pairs | check_keys(results)
    if others := [one for one in results.all() if one.run.key not in shown_above]:
        sections.append(("others", "Other runs", run_list(embedded, "Other runs", "They stand in no table or figure.", others)))
    if (left := _leftovers(embedded, found, None)) is not None:
        sections.append(("leftovers", "Not in the tables", left))
    title, lede = _masthead(bool(tables))
    header = tag("header", *title, first, lede, _facts(judged, results), _legend(), _overview(judged, tables, worst))
    return html_page("FLTrust, reproduced", header, sections, embedded)


def runs_page(found: Found, boards: Sequence[Board], threshold: float) -> str:
    """What a sweep, or a user's own runs, show: first what each rule survives, last what stands in no table."""
    embedded = Embedded()
    sections: list[tuple[str, str, Element]] = []
    single = _only_run(found)
    if boards and single is None:
        sections.append(("survival", "What each rule survives", survival_section(embedded, boards, threshold)))
        sections.append(("numbers", "All numbers", numbers_section()))
    if single is not None:
        number = embedded.open(name_of(single.run), [_state(single)], (single,))
        sections.append(("run", "The run", tag("section", tag("h2", name_of(single.run)), tag("div", data_shown=number))))
    for place, (one, audit) in enumerate(found.federations):
        federation = named(one, audit)
        shown = tag("div", data_shown=embedded.open(name_of(one.run), [_state(one)], (federation,)))
        section = tag("section", tag("h2", name_of(one.run)), *audit_part(audit), shown)
        sections.append((f"federation-{place}", name_of(one.run), section))
    if (left := _leftovers(embedded, found, single)) is not None:
        sections.append(("leftovers", "Not in the tables", left))
    answers = [(board, said) for board in boards if (said := headline(board, threshold))] if single is None else []
    where = f"On {answers[0][0].title} (what other data sets and settings show stands below):" if len(boards) > 1 and answers else ""
    many = len(found.results.all()) + len(found.federations) + (0 if boards else len(found.unfinished))
    happened = "What happened in " + ("this run" if many == 1 else f"these {many:,} runs")
    header = tag(
        "header",
        tag("p", "fltrust report", class_="kicker"),
        tag("h1", "How many malicious clients does each rule survive?" if answers else happened),
        tag("p", where, class_="claim") if where else None,
        tag("ul", *(tag("li", sentence) for sentence in answers[0][1]), class_="lede") if answers else None,
        facts(boards) if boards and single is None else None,
    )
    return html_page("FLTrust runs", header, sections, embedded)


def _only_run(found: Found) -> Result | None:
    """A run that is alone is shown in full, finished or not."""
    every = [*found.results.all(), *(one for _, one in found.unfinished)]
    return every[0] if len(every) == 1 and not found.federations and isinstance(every[0], Result) else None


def _leftovers(embedded: Embedded, found: Found, shown: Curves | None) -> Element | None:
    unfinished = [(f"{name_of(one.run)} ({path})", _state(one), one) for path, one in found.unfinished if one is not shown]
    return leftovers_section(embedded, found.problems, unfinished) if unfinished or found.problems else None


def _state(result: Curves) -> str:
    last, whole = result.rounds[-1], result.run.rounds
    success = "" if result.final_success is None else f", backdoor success {result.final_success:.3f}"
    unfinished = "" if last == whole else f" This run is not finished: it will have {plural(whole, 'round')}."
    return f"Test error {result.error:.3f}{success} after {plural(last, 'round')}.{unfinished}"


def html_page(title: str, header: Element, sections: Sequence[tuple[str, str, Element]], embedded: Embedded) -> str:
    """One file: a header, sections by id and short name, and what the script draws."""
    for place, _, section in sections:
        section.set("id", place)
    body = tag(
        "body",
        header,
        tag("nav", tag("div", *(tag("a", short, href=f"#{place}") for place, short, _ in sections)), aria_label="On this page"),
        tag("main", *(section for _, _, section in sections)),
        tag("footer", tag("p", f"Made by fltrust, version {__version__}. This file needs no network.")),
        tag(
            "dialog",
            tag("button", "\N{MULTIPLICATION SIGN}", class_="close", aria_label="Close", type="button"),
            tag("div", class_="content"),
            id="panel",
            aria_label="Runs",
        ),
    )
    script = "\n" + _asset("plot.js") + _asset("sweep.js") + _asset("page.js")
    return Template(_asset("page.html")).substitute(
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),  # no other script may run
        title=title,
        style=_colours() + _asset("page.css"),
        body=text_of(body),
        data=embedded.text(),
        script=script,
    )


def _asset(name: str) -> str:
    return files("fltrust.report").joinpath(name).read_text(encoding="utf-8")


def _colours() -> str:
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in COLOURS.items()) for side in (0, 1))
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


# ---------------------------------------------------------------- the first screen


def _masthead(league: bool) -> tuple[list[Element], Element]:
    """The title, and what the page is. The worst case stands between them."""
    return (
        [tag("p", "A reproduction", class_="kicker"), tag("h1", "FLTrust, reproduced")],
        tag(
            "p",
            "Every table and figure of ",
            tag("em", "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping"),
            " (Cao, Fang, Liu and Gong, NDSS 2021), run again and set beside the numbers that the paper prints. "
            "Click on any number to see its runs: every seed, the error over the rounds, and whom the server trusted. ",
            tag("a", "The league table", href="#league") if league else None,
            " sets every rule against every attack." if league else None,
            class_="lede",
        ),
    )


def _facts(judged: dict[Exhibit, list[Judged]], results: Results) -> Element:
    everything = results.all()
    declared = {one.cell.run.key: bool(one.results) for cells in judged.values() for one in cells}
    tables = (one for exhibit, cells in judged.items() if exhibit.name in PRINTED for one in cells)
    printed = {one.cell.run.key: one for one in tables}.values()  # a run that stands in several tables counts once
    strict, others = tally(one for one in printed if one.strict), tally(one for one in printed if not one.strict)
    ran, there = of_the_paper(judged)
    facts = [
        (
            f"{len(everything):,}",
            "run" if len(everything) == 1 else "runs",
            f"{duration(sum(one.seconds or 0 for one in everything))} of computing",
        ),
        (
            f"{ran:,} of {there:,}",
            "experiments",
            f"of the paper's tables and figures whose data can be had, {_seeds(everything)} each; with our own questions and CH-MNIST "
            f"{sum(declared.values()):,} of {len(declared):,}",
        ),
        (_agreeing(strict), "agree", f"FLTrust everywhere, and FedAvg without attack: within {STRICT} of the paper{_by_spread(strict)}"),
        (_agreeing(others), "agree", f"the other cells of the paper's tables: within {LOOSE}{_by_spread(others)}"),
    ]
    return tag(
        "div",
        tag(
            "div",
            *(tag("div", tag("b", number), " ", tag("span", what), tag("small", more), class_="fact") for number, what, more in facts),
            class_="facts",
        ),
        _finding(judged),
        tag("p", made(everything), class_="note"),
    )


def _finding(judged: dict[Exhibit, list[Judged]]) -> Element | None:
    """What the exact adaptive attack does at the smallest share of malicious clients that was run; the paper does not have it."""
    exact = {
        page.page: {int(one.cell.row): one.error.mean for one in page.cells if one.cell.column == EXACT and one.results}
        for page in grids(EXHIBITS["adaptive"], judged[EXHIBITS["adaptive"]])
    }
    share = min((share for errors in exact.values() for share in errors if share), default=0)
    times = [f"{errors[share] / errors[0]:.1f} on {page}" for page, errors in exact.items() if share in errors and errors.get(0)]
    if not share or not times:
        return None
    return tag(
        "p",
        tag("b", "Not in the paper: "),
        f"solved exactly, the adaptive attack multiplies FLTrust's error by {', '.join(times)}, with {share} % malicious clients. ",
        tag("a", "Figure 7", href="#adaptive"),
        class_="finding",
    )


def _agreeing(count: Tally) -> str:
    return f"{count.agree} of {count.compared}"


def _by_spread(count: Tally) -> str:
    return f"; {count.only_by_spread} of them only within twice the spread" if count.only_by_spread else ", or twice the spread"


def _seeds(results: Iterable[Result]) -> str:
    seeds: dict[str, set[int]] = {}
    for one in results:
        seeds.setdefault(first_seed(one.run).key, set()).add(one.run.seed)
    few, many = min(map(len, seeds.values())), max(map(len, seeds.values()))
    return plural(many, "seed") if few == many else f"{few} to {many} seeds"


def _legend() -> Element:
    def sample(kind: str, words: str) -> Element:
        return tag("li", tag("span", MARKS[kind], class_=f"swatch {kind.replace(' ', '-')}"), tag("span", words))

    return tag(
        "div",
        tag(
            "div",
            tag("span", tag("b", "0.052"), tag("small", " ± 0.003 "), tag("i", MARKS["agrees"], class_="mark agrees"), class_="ours"),
            tag("span", tag("span", "n = 3", class_="count"), tag("span", "paper 0.05, +0.002"), class_="theirs"),
            class_="specimen",
        ),
        tag(
            "p",
            "Our test error: mean and standard deviation over n seeds. Below it the paper's, and the difference. One seed has no spread. "
            "HAR's test examples are the same for all seeds, so its spread leaves out the chance of that draw. "
            "Under the Scaling attack a second pair is the share of triggered examples on which the backdoor works.",
        ),
        tag(
            "ul",
            sample("agrees", f"agrees: within {STRICT} (FLTrust; FedAvg without attack) or {LOOSE} (others)"),
            sample("only by spread", "agrees only within twice the spread: its seeds lie far apart"),
            sample("differs", "differs by more"),
            sample("no number", "the paper has no number here"),
            sample("not run", "not run"),
        ),
        class_="legend",
    )


def _overview(judged: dict[Exhibit, list[Judged]], tables: Sequence[Standings], worst: Sequence[WorstCases]) -> Element:
    """How much of each table and figure ran and agrees, as a bar to click on."""
    rows = []
    if worst:
        possible, settled = sum(table.possible for table in worst), sum(table.settled for table in worst)
        parts = {"no-number": settled, "not-run": possible - settled}
        rows.append(
            _line("worst-case", "Worst case: every rule under its own worst attack", parts, [f"{settled} of {possible} searched or broken"])
        )
    if tables:
        possible, ran = sum(table.possible for table in tables), sum(len(table.counts) for table in tables)
        parts = {"no-number": ran, "not-run": possible - ran}
        rows.append(_line("league", "League table: every rule against every attack", parts, [f"{ran} of {possible} ran"]))
    for exhibit, cells in judged.items():
        count = tally(cells)
        parts = {
            "agrees": count.agree,
            "differs": count.compared - count.agree,
            "no-number": count.ran - count.compared,
            "not-run": count.cells - count.ran,
        }
        said = [f"{count.ran} of {count.cells} ran"]
        said += [f"{count.agree} of {count.compared} agree"] if count.compared else []
        said += [f"backdoor {count.success_agree} of {count.success_compared}"] if count.success_compared else []
        rows.append(_line(exhibit.name, exhibit.title, parts, said))
    return tag("ol", *rows, class_="overview")


def _line(place: str, title: str, parts: dict[str, int], said: Sequence[str]) -> Element:
    link = tag(
        "a",
        tag("span", title, class_="what"),
        tag("span", *(tag("i", class_=kind, style=f"flex:{many}") for kind, many in parts.items() if many), class_="bar"),
        tag("span", ", ".join(said), class_="how-many"),
        href=f"#{place}",
    )
    return tag("li", link)
