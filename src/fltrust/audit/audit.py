"""The audit of one run, to be asked again as the run goes on."""

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from fltrust.audit.findings import Finding, judge
from fltrust.audit.read import MOST_NODES, Reader, RoundLine
from fltrust.flower.verdicts import KEPT, REASONS, plain
from fltrust.store.records import Run

NAMED = 12  # nodes that the headline names


class Audit:
    """`Audit(path).findings()`: every node of a run directory, the worst first.

    Parameters
    ----------
    path : Path or str
        The run directory of a federation, or of `fltrust run`.

    Raises
    ------
    InputError
        If there is no round yet, or a file is damaged.
    """

    def __init__(self, path: Path | str) -> None:
        self._reader = Reader(Path(path))
        self._findings: list[Finding] | None = None

    @property
    def run(self) -> Run:
        """What the run declares; its `records` stay empty."""
        return self._reader.run

    @property
    def rounds(self) -> list[RoundLine]:
        return self._reader.rounds

    @property
    def extra(self) -> list[tuple[str, str, int]]:
        """(node, reason, how often) of replies that nobody asked for, the most frequent first."""
        return [(*who, count) for who, count in self._reader.extra.most_common()]

    def refresh(self) -> bool:
        """Reads the rounds that were added since; whether anything changed."""
        judged, self._findings = self._findings, None  # damage may show after rounds were added
        changed = self._reader.refresh()
        if not changed:
            self._findings = judged
        return changed

    def numbers_of(self, node: int, name: str, after: int = 0) -> list[float]:
        """A node's trust, shares, cosine, norm, peers or closest in the recorded rounds after the first `after`; NaN where not known."""
        place, values = self._reader.nodes.get(node, -1), []
        for row in self._reader.rows[after:]:
            there = row.numbers[name][row.nodes == place].tolist() if name in row.numbers else []
            values.append(there[0] if there else math.nan)
        return values

    def findings(self) -> list[Finding]:
        """Every node, the worst first."""
        if self._findings is None:
            self._findings = judge(self._reader)
        return self._findings

    def headline(self) -> str:
        """What there is to know, in one line."""
        found = self.findings()
        hostile, suspicious = ([one.name for one in found if one.verdict == verdict] for verdict in ("hostile", "suspicious"))
        if not hostile and not suspicious:
            return "No node looks suspicious."
        first, verdict = (hostile, "hostile") if hostile else (suspicious, "suspicious")
        said = f"{len(first)} of {len(found)} nodes {'looks' if len(first) == 1 else 'look'} {verdict}: {_listed(first)}"
        return said + (f"; {len(suspicious)} suspicious: {_listed(suspicious)}" if hostile and suspicious else "")

    def rule_name(self) -> str:
        """As the experiment declares it, with the rule within it."""
        rule: Any = self.run.declared.get("rule")
        names: list[str] = []
        while isinstance(rule, dict) and len(names) < 5:
            names.append(plain(rule.get("name", "?"), 40))
            rule = rule.get("rule")
        return "+".join(names) or "?"

    def remarks(self) -> list[str]:
        """What is to be said of the run and not of one node: alarms, rounds that kept the model, who is left out, replies that nobody
        asked for."""
        alarms: dict[str, list[int]] = defaultdict(list)
        kept: dict[str, list[int]] = defaultdict(list)
        for line in self.rounds:
            for alarm in line.alarms:
                alarms[alarm["text"] or alarm["kind"]].append(line.round)
            if line.kept:
                kept[line.kept].append(line.round)
        said = [f"alarm, {_numbered(which)}: {text}" for text, which in list(alarms.items())[-10:]]
        said += [f"{len(which)} rounds kept the model, {KEPT.get(reason, reason)}: {_numbered(which)}" for reason, which in kept.items()]
        if strangers := len(self._reader.strangers):
            many = f"{strangers}{' or more' * (strangers == MOST_NODES)}"
            said.append(f"left out: {many} nodes that were there but never on the allow list")
        if self._reader.too_many:
            said.append(f"left out: all nodes after the first {MOST_NODES}")
        return said + [f"node {node}, {count} times: {REASONS.get(reason, reason)}" for node, reason, count in self.extra[:20]]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _numbered(rounds: list[int]) -> str:
    return "round " + ", ".join(map(str, rounds[:10])) + (", ..." if len(rounds) > 10 else "")
