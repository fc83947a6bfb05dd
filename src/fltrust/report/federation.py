"""A federation's audit on the page: who looks hostile, since when and why, and what became of each node in each round."""

import itertools
from dataclasses import replace
from xml.etree.ElementTree import Element

from fltrust.audit import Audit, Finding, shortened
from fltrust.audit.read import LETTERS
from fltrust.flower.verdicts import VERDICTS
from fltrust.report.markup import tag
from fltrust.report.words import duration, plural
from fltrust.store.results import Curves, Federation

STRIP = 90  # rounds that a strip shows
FINE = 200  # nodes without findings that are shown


def named(result: Curves, audit: Audit) -> Curves:
    """The curves with the nodes' names."""
    assert isinstance(result.run, Federation)
    names = [finding.name for finding in sorted(audit.findings(), key=lambda finding: finding.node)]
    return replace(result, run=replace(result.run, names=tuple(names)))


def audit_part(audit: Audit | None) -> list[Element]:
    if audit is None:
        return []
    findings = audit.findings()
    fine = [finding for finding in findings if finding.verdict == "ok"]
    shown = findings[: len(findings) - len(fine)] + fine[:FINE]
    head = tag("tr", *(tag("th", title, class_="left") for title in ("node", "verdict", "since", "evidence", "rounds")))
    more = (
        f"and {plural(len(fine) - FINE, 'node')} more with nothing against them: fltrust audit RUN --csv lists all"
        if len(fine) > FINE
        else ""
    )
    return [
        tag("p", tag("b", audit.headline()), class_="finding" if _accuses(findings) else "claim"),
        tag("p", _took(audit), class_="claim"),
        tag("div", tag("table", tag("thead", head), tag("tbody", *map(_row, shown)), class_="audit"), class_="scroll tall"),
        *([tag("p", more, class_="small")] if more else []),
        _key(findings),
        *(tag("p", remark, class_="small") for remark in audit.remarks()),
    ]


def _accuses(findings: list[Finding]) -> bool:
    return any(finding.verdict in ("hostile", "suspicious") for finding in findings)


def _took(audit: Audit) -> str:
    seconds = [line.seconds for line in audit.rounds if line.seconds is not None]
    if not seconds:
        return f"{plural(len(audit.rounds), 'round')}."
    first, last = audit.rounds[0].time, audit.rounds[-1].time
    when = f", {first} to {last}" if first and last else ""
    return f"{plural(len(audit.rounds), 'round')} in {duration(sum(seconds))}, the longest {duration(max(seconds))}{when}."


def _row(finding: Finding) -> Element:
    known = finding.name if finding.name == str(finding.node) else None
    number = None if known else tag("small", f"node {finding.node}")
    since = "" if finding.since is None else f"round {finding.since}"
    figures = [] if finding.mean_trust is None else [f"mean trust {finding.mean_trust:.2f}"]
    figures += [] if finding.mean_share is None else [f"mean share {finding.mean_share:.3f}"]
    return tag(
        "tr",
        tag("th", finding.name, number),
        tag("td", finding.verdict, class_=f"words {finding.verdict}"),
        tag("td", since, tag("small", finding.since_time) if finding.since_time else None, class_="words when"),
        tag("td", *(tag("div", sentence) for sentence in finding.evidence), tag("small", ", ".join(figures)), class_="words"),
        tag("td", _strip(finding.strip), class_="words"),
    )


def _strip(strip: str) -> Element:
    """Letters with their colours, the same ones together."""
    groups = ["".join(group) for _, group in itertools.groupby(shortened(strip, STRIP))]
    colours = set(LETTERS.values())
    return tag("code", *(tag("i", group, class_=f"v-{group[0]}" if group[0] in colours else None) for group in groups), class_="strip")


def _key(findings: list[Finding]) -> Element:
    """What the letters mean, those that are there."""
    there = set("".join(finding.strip for finding in findings))
    words = [
        (letter, verdict, VERDICTS.get(verdict, "the server did not ask it")) for verdict, letter in LETTERS.items() if letter in there
    ]
    said = [
        tag("span", tag("code", tag("i", letter, class_=f"v-{letter}"), class_="strip"), f" {verdict}: {what}")
        for letter, verdict, what in words
    ]
    return tag("p", *said, class_="keys")
