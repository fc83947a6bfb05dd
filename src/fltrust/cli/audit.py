"""`fltrust audit`: who was trusted how much, who was rejected and why, and who changed, from a run directory."""

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fltrust.codec import built_or_absent
from fltrust.errors import InputError
from fltrust.flower.verdicts import KEPT, REASONS, VERDICTS, plain
from fltrust.registry import RULES
from fltrust.store.records import Run, read_run, shares_of

# A node has changed if its share of rounds used in the later half differs so much from the earlier half's; or its trust does, and by so
# much more than the other nodes': all honest nodes' trust falls while the model learns.
CHANGED = 0.5
# A node alternates if it changed so often between good and bad, and was both in at least this part of its rounds.
SWITCHES, EACH = 3, 0.2


@dataclass
class Node:
    """What the records say of one node, round by round."""

    rounds: list[int] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    trust: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    malicious: bool | None = None  # known in a simulation only

    @property
    def history(self) -> list[tuple[int, bool]]:
        """(round, whether it was used) of the rounds that say something about the node: not those in which the rule took another."""
        rounds = zip(self.rounds, self.verdicts, strict=True)
        return [(t, verdict == "used") for t, verdict in rounds if verdict not in ("not-counted", "not-chosen")]

    @property
    def trust_by_half(self) -> tuple[float, float]:
        half = len(self.trust) // 2
        return (_mean(self.trust[:half]), _mean(self.trust[half:])) if half else (0.0, 0.0)

    @property
    def trust_gained(self) -> float:
        before, after = self.trust_by_half
        return after - before

    def change(self, usual: float) -> str:
        """What became of a node whose later half differs from its earlier half, else nothing. `usual`: what the others' trust gained."""
        used, half = [used for _, used in self.history], len(self.history) // 2
        if half < 2:  # too few rounds to tell a change from chance
            return ""
        gain = _mean(used[half:]) - _mean(used[:half])
        if gain <= -CHANGED and not used[-1]:
            return f"lost: last used in round {max(t for t, used in self.history if used)}"
        if gain >= CHANGED and used[-1]:
            return f"gained: first used in round {min(t for t, used in self.history if used)}"
        if said := self.alternates():
            return said
        if min(abs(self.trust_gained), abs(self.trust_gained - usual)) >= CHANGED:
            before, after = self.trust_by_half
            return f"trust {before:.2f} -> {after:.2f}"
        return ""

    def alternates(self) -> str:
        """Good in some rounds, bad in others, back and forth: halves do not show it."""
        good = [verdict == "used" for verdict in self.verdicts if verdict in ("used", "zero-trust", "rejected")]
        if _switches(good) >= SWITCHES and EACH <= _mean(good) <= 1 - EACH:
            return f"alternates: used in {sum(good)} of {len(good)}, changed {_switches(good)} times"
        low, high = min(self.trust, default=0.0), max(self.trust, default=0.0)
        above = [trust > (low + high) / 2 for trust in self.trust]
        if high - low >= CHANGED and _switches(above) >= SWITCHES and EACH <= _mean(above) <= 1 - EACH:
            return f"alternates: trust {low:.2f} to {high:.2f}, changed {_switches(above)} times"
        return ""


def show(path: Path) -> None:
    screen = Console()
    if not screen.is_terminal:
        screen = Console(width=200)  # a pipe has no width: nothing is cut
    try:
        run = _read(path)
        experiment, records = run.declared, run.records
        nodes = _nodes(path, records, by_trust=_by_trust(experiment))
    except RecursionError as problem:
        raise InputError(f"{path} holds nested data that no run writes: it is damaged") from problem
    screen.print(Text(_heading(experiment, records, len(nodes))))
    screen.print(_table(nodes))
    for line in [*_kept(path, records), *_extra(path, records)]:
        screen.print(Text(line))


# ---------------------------------------------------------------- reading: nothing that stands in a file is taken for granted


def _read(path: Path) -> Run:
    if not (path / "records.jsonl").is_file():
        raise InputError(f"{path} holds no records.jsonl: it is no run directory, or no round is finished yet")
    return read_run(path)


def _rule(experiment: dict[str, Any]) -> Any:
    """The rule that a run declares, `Absent` if its plug-in is not here; None if the declaration is damaged."""
    try:
        return built_or_absent(RULES, experiment.get("rule"))
    except InputError:
        return None


def _rule_name(experiment: dict[str, Any]) -> str:
    rule = _rule(experiment)
    return "?" if rule is None else plain(RULES.name_of(rule), 40)


def _by_trust(experiment: dict[str, Any]) -> bool:
    """Whether the rule gives shares by trust; of a rule whose plug-in is not here nobody knows."""
    return bool(getattr(_rule(experiment), "scores_trust", False))


def _nodes(path: Path, records: list[dict[str, Any]], *, by_trust: bool) -> dict[int, Node]:
    nodes: dict[int, Node] = defaultdict(Node)
    late = {(node, t) for record in records for node, t in _pairs(path, record, "late")}
    for record in records:
        t = record["round"]
        for place, (client, trust, share, verdict, reason) in enumerate(_entries(path, record, by_trust=by_trust)):
            node = nodes[client]
            node.rounds.append(t)
            if (client, t) in late and verdict == "missing":
                verdict, reason = "late", None
            node.verdicts.append(verdict)
            if verdict == "rejected":
                node.reasons[reason or "?"] += 1
            if trust is not None:
                node.trust.append(trust)
            if share is not None:
                node.shares.append(share)
            if isinstance(record.get("malicious"), int):
                node.malicious = place < record["malicious"]
    if not nodes:
        raise InputError(f"{path / 'records.jsonl'} names no client in its {len(records)} rounds")
    return nodes


def _entries(path: Path, record: dict[str, Any], *, by_trust: bool) -> Iterator[tuple[int, float | None, float | None, str, str | None]]:
    """Each client's number, trust, share, verdict and reason; a simulation has no verdicts, so they follow from trust and share."""
    clients = record.get("clients") or []
    columns = {name: record.get(name) for name in ("clients", "trust", "verdict", "reason")} | {"shares": shares_of(record)}
    for name, column in columns.items():
        if column is not None and not (isinstance(column, list) and len(column) == len(clients)):
            raise InputError(
                f"{path / 'records.jsonl'}: round {record['round']} is damaged ({name} does not fit its {len(clients)} clients)"
            )
    for i, client in enumerate(clients):
        if not isinstance(client, int):
            raise InputError(f"{path / 'records.jsonl'}: round {record['round']} is damaged (a client is no number)")
        trust, share = (_number(columns[name][i]) if columns[name] else None for name in ("trust", "shares"))  # type: ignore[index]
        verdict = columns["verdict"][i] if columns["verdict"] else _verdict(trust, share, by_trust=by_trust)
        if not isinstance(verdict, str) or verdict not in VERDICTS:
            raise InputError(f"{path / 'records.jsonl'}: round {record['round']} is damaged (an unknown verdict)")
        reason = columns["reason"][i] if columns["reason"] else None
        yield client, trust, share, verdict, None if reason is None else plain(reason, 20)


def _verdict(trust: float | None, share: float | None, *, by_trust: bool) -> str:
    if share != 0 and not (by_trust and trust == 0):
        return "used"
    return "zero-trust" if by_trust and not trust else "not-chosen"


def _pairs(path: Path, record: dict[str, Any], name: str) -> list[tuple[Any, Any]]:
    pairs = record.get(name) or []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, int | str) for part in pair) for pair in pairs
    ):
        raise InputError(f"{path / 'records.jsonl'}: round {record['round']} is damaged ({name})")
    return [(pair[0], pair[1]) for pair in pairs]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value) else None


# ---------------------------------------------------------------- writing


def _heading(experiment: dict[str, Any], records: list[dict[str, Any]], count: int) -> str:
    errors = [error for record in records if (error := _number(record.get("test_error"))) is not None]
    last = records[-1]["round"]  # a simulation records the rounds that it evaluates
    said = f"{_rule_name(experiment)}: {len(records)} {'rounds' if len(records) == last else f'of {last} rounds recorded'}, {count} nodes"
    return said + (f", test error {errors[-1]:.3f}" if errors else "")


def _table(nodes: dict[int, Node]) -> Table:
    """Who changed comes first, then who was used least."""
    simulated = any(node.malicious is not None for node in nodes.values())
    columns = ["node", *(["is"] if simulated else []), "asked", *VERDICTS, "mean trust", "mean share", "why rejected", "changed"]
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for name in columns:
        table.add_column(name, justify="left" if name in ("is", "why rejected", "changed") else "right")
    gained = sorted(node.trust_gained for node in nodes.values() if any(node.trust))
    changes = {client: node.change(_median_without(gained, node.trust_gained)) for client, node in nodes.items()}
    for client, node in sorted(nodes.items(), key=lambda item: (not changes[item[0]], _mean([u for _, u in item[1].history]), item[0])):
        counts = Counter(node.verdicts)
        row = [
            str(client),
            *([{True: "malicious", False: "honest", None: ""}[node.malicious]] if simulated else []),
            str(len(node.rounds)),
            *(str(counts[verdict]) if counts[verdict] else "" for verdict in VERDICTS),
            f"{_mean(node.trust):.3f}" if node.trust else "",
            f"{_mean(node.shares):.4f}" if node.shares else "",
            ", ".join(f"{reason} {count}" for reason, count in node.reasons.most_common()),
            changes[client],
        ]
        table.add_row(*(Text(cell) for cell in row))
    return table


def _median_without(ranked: list[float], one: float) -> float:
    """Of a sorted list without one of its members; a federation may have too many nodes to sort the others for each."""
    place, rest = bisect.bisect_left(ranked, one), len(ranked) - 1
    return _mean([ranked[k + (k >= place)] for k in ((rest - 1) // 2, rest // 2)]) if rest > 0 else 0.0


def _kept(path: Path, records: list[dict[str, Any]]) -> Iterator[str]:
    rounds: dict[str, list[int]] = defaultdict(list)
    for record in records:
        if kept := record.get("kept"):
            rounds[plain(kept, 40)].append(record["round"])
    for reason, which in rounds.items():
        shown = ", ".join(map(str, which[:10])) + (", ..." if len(which) > 10 else "")
        yield f"{len(which)} rounds kept the model, {KEPT.get(reason, reason)}: {shown}"


def _extra(path: Path, records: list[dict[str, Any]]) -> Iterator[str]:
    extra = Counter((plain(node, 20), plain(reason, 20)) for record in records for node, reason in _pairs(path, record, "extra"))
    for (node, reason), count in extra.most_common(20):
        yield f"node {node}, {count} times: {REASONS.get(reason, reason)}"


def _switches(values: list[bool]) -> int:
    return sum(one != other for one, other in itertools.pairwise(values))


def _mean(values: list[Any]) -> float:
    return sum(values) / len(values) if values else 0.0
