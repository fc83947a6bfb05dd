"""What an operator can do with a running federation, and what the federation tells the operator.

nodes.json   in the run directory: each node's name, fingerprint and state ("active", "banned", "quarantined"), since which round, and why
"""

import json
import logging
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fltrust.errors import InputError
from fltrust.flower.alarms import LAST, Alarm, alarm, alarms_of
from fltrust.flower.logs import about, json_lines
from fltrust.flower.membership import (
    Exclusion,
    History,
    Lists,
    Quarantine,
    Source,
    decide,
    excluded,
    need_keys,
    read_names,
    read_subjects,
)
from fltrust.flower.prometheus import Metrics
from fltrust.flower.verdicts import REASONS, plain
from fltrust.store import files

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Settings:
    """The operator's part of `RobustStrategy`, whose docstring explains it."""

    names: str | Path | None = None
    ban: Source = ()
    allow: Source | None = None
    quarantine: Quarantine | None = None
    registered: bool = False
    metrics_port: int | None = None
    metrics_address: str = "127.0.0.1"
    log: Literal["text", "json"] = "text"

    def __post_init__(self) -> None:
        if self.log not in ("text", "json"):
            raise InputError(f"log must be 'text' or 'json', not {self.log!r}")
        if self.metrics_port is not None and not 1 <= self.metrics_port <= 65535:
            raise InputError(f"metrics_port must be 1 to 65535, not {self.metrics_port}")
        for name in ("ban", "allow"):  # a list that can be read only once would be empty in the second round
            if not isinstance(source := getattr(self, name), str | Path | None):
                object.__setattr__(self, name, tuple(source))


@dataclass
class Operations:
    """One run as its operator sees it."""

    settings: Settings
    folder: Path | None = None
    lists: Lists | None = None  # None: not read yet
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.history = History(self.settings.quarantine)
        self._last: deque[Mapping[str, Any]] = deque(maxlen=LAST)
        self._alarms: list[Alarm] = []  # of the round under way
        self._metrics: Metrics | None = None
        self._nodes = {} if self.folder is None else _read_nodes(self.folder / "nodes.json")
        self._fingerprints: dict[int, str | None] = {node: entry["fingerprint"] for node, entry in self._nodes.items()}

    @contextmanager
    def running(self, records: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """While this holds, logs and metrics are as the operator wants them; `records` are those of a run that resumes."""
        with ExitStack() as stack:
            if self.settings.log == "json":
                stack.enter_context(json_lines(log))
            self._read_lists()
            if not self.settings.registered and (self.settings.ban or self.settings.quarantine):
                log.warning("without registered keys a node that is banned or in quarantine can start again and come back as another")
            if self.settings.metrics_port is not None:
                self._metrics = stack.enter_context(Metrics(self.settings.metrics_port, self.settings.metrics_address))
            for record in records:
                self._remember(record)
                self._measure(record)
            yield

    # ---------------------------------------------------------------- before a round

    def admit(self, nodes: Mapping[int, str | None], t: int, least: int) -> tuple[list[int], dict[int, Exclusion]]:
        """Of the nodes that are there (id -> fingerprint), those that may be asked in round t; and why the others are not."""
        self._alarms = self._read_lists()
        assert self.lists is not None
        self._fingerprints.update(nodes)
        return decide(nodes, t, self.lists, self.history, least)

    def not_awaited(self, t: int) -> int:
        """How many nodes took part and are kept out now: nobody waits for those. Strangers do not count here."""
        return sum(self._excluded(node, t) is not None for node in self.history.asked)

    def _excluded(self, node: int, t: int) -> Exclusion | None:
        return excluded(node, self._fingerprints.get(node), t, self.lists or Lists(), self.history)

    def announce(self, t: int, may: Sequence[int], out: Mapping[int, Exclusion]) -> None:
        """Writes down who is who, and who is out, if something changed."""
        before, here = self._nodes, {*may, *out}
        admitted, remembered = set(may), here | self.history.asked  # not strangers that left
        self._nodes = {node: entry for node, entry in before.items() if node in remembered}
        for node in sorted({*self._nodes, *here}):
            why = None if node in admitted else out.get(node) or self._excluded(node, t)
            state = "active" if why is None else why.verdict
            was = self._nodes.get(node, {})
            self._nodes[node] = {
                "name": self._alias(node) or self._fingerprints.get(node) or str(node),
                "fingerprint": self._fingerprints.get(node),
                "state": state,
                "since": was["since"] if was.get("state") == state else t,
                "why": None if why is None else why.detail or REASONS[why.reason],
            }
            if was.get("state", "active") != state:
                log.warning("round %d: %s is %s", t, self.called(node), state, extra=about(state, round=t, node=node))
        if self.folder is not None and self._nodes != before:
            text = json.dumps({str(node): self._nodes[node] for node in sorted(self._nodes)}, indent=1)
            try:
                files.replace(self.folder / "nodes.json", text.encode() + b"\n")
            except OSError as problem:
                raise InputError(f"{self.folder / 'nodes.json'} cannot be written: {problem.strerror or problem}") from problem

    def _read_lists(self) -> list[Alarm]:
        """Reads the files again. At the start one that cannot be read is refused; later its last valid content stays in force."""
        settings, first = self.settings, self.lists is None
        lists, alarms = self.lists or Lists(), []
        for what in ("names", "ban", "allow"):
            source = getattr(settings, what)
            if source is None:
                continue
            try:
                blank = not getattr(lists, what)
                read: Any = read_names(Path(source), blank) if what == "names" else read_subjects(source, lists.names, what, blank)
                if not settings.registered:
                    need_keys(read, what if isinstance(source, tuple) else str(source))
            except InputError as problem:
                if first:
                    raise
                alarms.append(alarm("list-unreadable", f"{plain(problem)}; its last valid content stays in force"))
            else:
                lists = replace(lists, **{what: read})
        self.lists = lists
        return alarms

    # ---------------------------------------------------------------- after a round

    def conclude(self, record: dict[str, Any]) -> None:
        """Adds the alarms to a round's record, and tells the log and the metrics."""
        begun = self._remember(record)
        record["alarms"] = alarms = self._alarms + alarms_of(list(self._last), self.called)
        for node in begun:
            text = f"too many replies of {self.called(node)} were rejected: it is {self.history.standing[node].detail}"
            alarms.append(alarm("quarantined", text, [node]))
        self._measure(record)
        for each in alarms:
            whose = each["nodes"][0] if len(each["nodes"]) == 1 else None
            extra = about("alarm", round=record["round"], node=whose, kind=each["kind"])
            log.warning("round %d: alarm, %s: %s", record["round"], each["kind"], each["text"], extra=extra)

    def _remember(self, record: Mapping[str, Any]) -> list[int]:
        begun = self.history.add(record)
        self._last.append(record)
        return begun

    def _measure(self, record: Mapping[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.add(record, self.called)

    def called(self, node: int) -> str:
        """A node in a line for people."""
        name = self._alias(node)
        return f"node {node}" if name is None else f"{plain(name, 60)} (node {node})"

    def _alias(self, node: int) -> str | None:
        names = {} if self.lists is None else self.lists.names
        return names.get(str(node)) or names.get(self._fingerprints.get(node) or "")


def _read_nodes(path: Path) -> dict[int, dict[str, Any]]:
    """Who was who when the run was interrupted. It is for people: nothing is decided by it, so a damaged file is simply made anew."""
    nodes: dict[int, dict[str, Any]] = {}
    if path.exists():
        with suppress(InputError):
            for node, entry in files.read_json(path).items():
                if re.fullmatch("[0-9]{1,20}", node) and isinstance(entry, dict) and isinstance(entry.get("since"), int):
                    nodes[int(node)] = {**entry, "fingerprint": known if isinstance(known := entry.get("fingerprint"), str) else None}
    return nodes
