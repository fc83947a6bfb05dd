"""What the page shows of a run directory, and what changed since a visitor last heard of it.

Strips of a thousand nodes over a thousand rounds are a megabyte: a visitor gets them once, and from then on only what changed.
"""

import json
import math
import secrets
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from fltrust.audit import Audit, Finding, RoundLine
from fltrust.errors import InputError
from fltrust.watch.health import health, why_kept

REMEMBERED = 100  # changes that are kept for visitors who were away for a moment
WATCHED = ("experiment.json", "records.jsonl", "nodes.json")


@dataclass(frozen=True)
class Shown:
    """All that the page knows, as JSON has it. Ids of nodes are text: they are larger than the whole numbers of a browser."""

    top: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def since(self, before: "Shown") -> dict[str, Any]:
        """What must be sent to whom knows `before`; empty if there is nothing new."""
        change: dict[str, Any] = {}
        if top := _changed(self.top, before.top):
            change["top"] = top
        same = next((i for i, (one, other) in enumerate(zip(self.rounds, before.rounds, strict=False)) if one != other), None)
        same = min(len(self.rounds), len(before.rounds)) if same is None else same
        if same < max(len(self.rounds), len(before.rounds)):
            change |= {"from": same, "rounds": self.rounds[same:]}
        nodes = {name: new for name, node in self.nodes.items() if (new := _changed_node(node, before.nodes.get(name, {})))}
        if nodes:
            change["nodes"] = nodes
        if gone := [name for name in before.nodes if name not in self.nodes]:
            change["gone"] = gone
        return change


class Feed:
    """Follows one run directory, which need not be there yet. One thread looks, others ask."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._audit: Audit | None = None
        self._stamp: tuple[Any, ...] | None = None
        self._lock = Lock()  # of the audit, which changes while it reads
        self._born = secrets.token_hex(8)  # so that a visitor of an earlier server gets everything
        self._now = (0, Shown())
        self._changes: deque[tuple[int, dict[str, Any]]] = deque(maxlen=REMEMBERED)

    def look(self) -> None:
        """Reads what is new in the run directory, if anything is."""
        stamp = tuple(_stamp(self.path / name) for name in WATCHED)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        for shown in self._read(self._now[1]):
            version, before = self._now
            if change := shown.since(before):
                self._changes.append((version + 1, change))
                self._now = (version + 1, shown)

    def _read(self, before: Shown) -> Iterator[Shown]:
        """What the directory holds now. A new round comes by itself first: to judge a thousand nodes takes a moment."""
        try:
            with self._lock:
                if self._audit is None:
                    self._audit = Audit(self.path)
                else:
                    self._audit.refresh()
            rounds = [_round(line) for line in self._audit.rounds]
            top = _top(self._audit, self.path)
            if before.rounds and rounds[: len(before.rounds)] == before.rounds:
                yield replace(before, top={**before.top, **top}, rounds=rounds)
            with self._lock:
                nodes = {str(finding.node): _node(finding) for finding in self._audit.findings()}
                yield Shown({**top, "headline": self._audit.headline()}, rounds, nodes)
            return
        except InputError as problem:
            line = str(problem)
        except Exception as problem:  # whatever happened: a page that stands still must say so
            line = f"{self.path} cannot be read: {problem or type(problem).__name__}"
        self._audit = None  # it may have stopped half-way
        yield replace(before, top={**before.top, "path": str(self.path), "problem": " ".join(line.split())})

    def since(self, seen: str | None) -> tuple[str, str] | None:
        """The name of the newest version, and what changed since the version `seen`, everything if that is unknown; None: nothing."""
        version, shown = self._now
        born, _, number = (seen or "").partition("-")
        known = int(number) if born == self._born and number.isascii() and number.isdigit() and len(number) < 10 else None
        if version in (0, known):
            return None
        later = [change for number, change in list(self._changes) if known is not None and known < number <= version]
        if known is None or len(later) != version - known:
            later = [{"whole": True, **shown.since(Shown())}]
        age = self._age()
        return f"{self._born}-{version}", json.dumps([{**change, "age": age} for change in later], allow_nan=False)

    def _age(self) -> float | None:
        """Seconds since something was recorded."""
        try:
            return round(max(0.0, time.time() - (self.path / "records.jsonl").stat().st_mtime), 1)
        except OSError:
            return None

    def history(self, nodes: list[str], after: int) -> dict[str, Any]:
        """Trust and share of some nodes in the recorded rounds after the first `after` ones."""
        with self._lock:
            if self._audit is None:
                return {}
            ids = [int(node) for node in nodes if node.isascii() and node.isdigit() and len(node) <= 20]
            columns = {"trust": "trust", "share": "shares"}
            return {
                str(node): {
                    name: [_short(value) for value in self._audit.numbers_of(node, column, after)] for name, column in columns.items()
                }
                for node in ids
            }


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _top(audit: Audit, path: Path) -> dict[str, Any]:
    state, rounds = health(audit.rounds), audit.run.declared.get("rounds")
    return {
        "path": str(path),
        "kind": audit.run.kind,
        "rule": audit.rule_name(),
        "of": rounds if isinstance(rounds, int) else None,
        "level": state.level,
        "health": state.text,
        "problem": None,
    }


def _round(line: RoundLine) -> dict[str, Any]:
    alarms = [{**alarm, "nodes": [str(node) for node in alarm["nodes"]]} for alarm in line.alarms]
    known = {"round": line.round, "time": line.time, "error": _short(line.test_error), "seconds": _short(line.seconds)}
    return {**known, "kept": why_kept(line), "counts": line.counts, "alarms": alarms}


def _node(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "verdict": finding.verdict,
        "since": finding.since,
        "time": finding.since_time,
        "evidence": finding.evidence,
        "strip": finding.strip,
        "trust": _short(finding.mean_trust),
        "share": _short(finding.mean_share),
        "malicious": finding.malicious,
        "score": _short(finding.score),
    }


def _changed(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in now.items() if name not in before or before[name] != value}


def _changed_node(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """A strip that only grew is sent as what was added."""
    change = _changed(now, before)
    if "strip" in change and before.get("strip") and change["strip"].startswith(before["strip"]):
        change["add"] = change.pop("strip")[len(before["strip"]) :]
    return change


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
