"""A run directory becomes one table of rounds by nodes, whether the run goes on or not. Everything in the files is checked first.

T rounds, N nodes; NaN, -1 or NOT_ASKED where nothing is known.
"""

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fltrust.errors import InputError
from fltrust.flower.verdicts import REASONS, plain
from fltrust.store.files import open_regular, read_json, whole_lines
from fltrust.store.records import Run, read_declaration, record_of, shares_of

LETTERS = {
    "used": "U",
    "not-chosen": "N",
    "zero-trust": "Z",
    "rejected": "R",
    "not-counted": "K",
    "late": "L",
    "missing": "M",
    "banned": "B",
    "quarantined": "Q",
}
NOT_ASKED = 0
CODES = {verdict: code for code, verdict in enumerate(LETTERS, 1)}
REASON_CODES = {reason: code for code, reason in enumerate([*REASONS, "other"], 1)}
NUMBERS = ("trust", "shares", "cosine", "norm", "peers", "closest")
MOST_NODES = 100_000
MOST_CELLS = 1 << 24  # rounds times nodes: judging that many takes about two gigabytes
NAME = 60  # letters of a node's name


class RoundLine(NamedTuple):
    """One round, without its nodes."""

    round: int
    time: str | None  # UTC, as ISO 8601 writes it
    test_error: float | None
    kept: str | None  # why the model stayed as it was, in a word ...
    why: str | None  # ... and in a sentence
    alarms: list[dict[str, Any]]  # {"kind": ..., "text": ..., "nodes": [...]}
    counts: dict[str, int]  # nodes by verdict
    seconds: float | None
    root_norm: float | None
    malicious: int | None  # known in a simulation only


class Row(NamedTuple):
    """One round's nodes."""

    nodes: NDArray[np.int32]  # (n,) places in `Reader.nodes`
    verdict: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    closest_to: NDArray[np.int32]  # a place; -1: none
    numbers: dict[str, NDArray[np.float64]]  # (n,) by name, those that the round has


@dataclass
class History:
    """All rounds, (T, N)."""

    verdict: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    closest_to: NDArray[np.int32]
    numbers: dict[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class Named:
    """What `nodes.json` says of a node."""

    name: str
    state: str = "active"
    why: str = ""


class Reader:
    """Reads what is there, and later only what was added."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, path / "records.jsonl"
        if not path.exists():
            raise InputError(f"there is no folder {path}")
        if not path.is_dir():
            raise InputError(f"{path} is a file: name the run directory")
        if not (path / "experiment.json").is_file():
            raise InputError(f"{path} is no run directory: it has no experiment.json")
        if not self.file.is_file():
            raise InputError(f"{path} has no round to show yet: records.jsonl is missing")
        self.run: Run = read_declaration(path)
        self._changed = False
        self._forget()
        self._named_as: tuple[int, int, int] | None = None
        self.named: dict[int, Named] = {}
        self.refresh()

    def _forget(self) -> None:
        self._inode, self._offset, self._number = (-1, -1), 0, 0
        self._last_line = b""  # that was read: it ends at the offset
        self.nodes: dict[int, int] = {}  # id -> place
        self.strangers: set[int] = set()  # nodes that were never on the allow list: anybody can make up thousands
        self.too_many = False  # whether there are nodes beyond MOST_NODES
        self.rounds: list[RoundLine] = []
        self.rows: list[Row] = []
        self.extra: Counter[tuple[str, str]] = Counter()  # (node, reason) of replies that nobody asked for
        self._places: dict[int, int] = {}  # round -> where it is in `rows`

    def refresh(self) -> bool:
        """Reads the rounds that were added since; whether anything changed."""
        self._read_names()
        self._read_rounds()
        if not self.nodes:
            allowed = " on the allow list" if self.strangers else ""
            raise InputError(f"{self.file} names no client{allowed} in its {len(self.rounds)} rounds")
        if len(self.rows) * len(self.nodes) > MOST_CELLS:  # a round that names nobody takes a line of a few bytes
            raise InputError(f"{self.file} is too large to judge: {len(self.rows):,} rounds of {len(self.nodes):,} nodes")
        changed, self._changed = self._changed, False  # also what was read before a damaged line
        return changed

    def _read_rounds(self) -> None:
        with open_regular(self.file) as file:
            status = os.fstat(file.fileno())
            inode = status.st_dev, status.st_ino
            file.seek(self._offset - len(self._last_line))
            # A server that resumed may have set a round aside. A new file can have the inode of one that was deleted.
            if inode != self._inode or file.read(len(self._last_line)) != self._last_line:
                self._changed = self._changed or bool(self.rounds)
                self._forget()
                self._inode = inode
                file.seek(0)
            for line in whole_lines(file, self.file):
                self._add(record_of(line, self.file, self._number + 1))
                self._number += 1
                self._offset += len(line)
                self._last_line = line
                self._changed = True

    def history(self) -> History:
        shape = len(self.rows), len(self.nodes)
        table = History(np.zeros(shape, np.uint8), np.zeros(shape, np.uint8), np.full(shape, -1, np.int32))
        table.numbers = {name: np.full(shape, np.nan) for name in NUMBERS}
        for t, row in enumerate(self.rows):
            table.verdict[t, row.nodes] = row.verdict
            table.reason[t, row.nodes] = row.reason
            table.closest_to[t, row.nodes] = row.closest_to
            for name, values in row.numbers.items():
                table.numbers[name][t, row.nodes] = values
        return table

    # ---------------------------------------------------------------- nothing that stands in a file is taken for granted

    def _damaged(self, record: Mapping[str, Any], what: str) -> InputError:
        return InputError(f"{self.file}: round {record['round']} is damaged ({what})")

    def _add(self, record: dict[str, Any]) -> None:
        t = record["round"]
        if self.rounds and t <= self.rounds[-1].round:
            raise self._damaged(record, f"it follows round {self.rounds[-1].round}")
        clients = record.get("clients") or []
        if not isinstance(clients, list) or not all(map(_is_id, clients)):
            raise self._damaged(record, "a client is no node's id")
        if len(set(clients)) != len(clients):
            raise self._damaged(record, "a client is there twice")
        columns = {name: record.get(name) for name in (*NUMBERS, "closest_to", "verdict", "reason")} | {"shares": shares_of(record)}
        for name, column in columns.items():
            if column is not None and not (isinstance(column, list) and len(column) == len(clients)):
                raise self._damaged(record, f"{name} does not fit its {len(clients)} clients")
        numbers = {name: _numbers(column) for name in NUMBERS if (column := columns[name]) is not None}
        verdict = _verdicts(numbers, len(clients)) if columns["verdict"] is None else _coded(columns["verdict"], CODES)
        if verdict is None:
            raise self._damaged(record, "an unknown verdict")
        reason = np.zeros(len(clients), np.uint8)
        if columns["reason"] is not None and columns["reason"].count(None) < len(clients):
            other = REASON_CODES["other"]
            reason[:] = [0 if one is None else REASON_CODES.get(one, other) if isinstance(one, str) else other for one in columns["reason"]]
        closest = columns["closest_to"] or [None] * len(clients)
        if any(isinstance(one, list | dict | bool) for one in closest):
            raise self._damaged(record, "closest_to")
        late, extra, line = self._pairs(record, "late"), self._pairs(record, "extra"), self._line(record)

        # From here on nothing is refused: a round is added whole or not at all.
        places = self._admit(clients, (verdict == CODES["banned"]) & (reason == REASON_CODES["not-allowed"]))
        known = places >= 0
        closest_to = np.array([self.nodes.get(one, -1) for one in closest], np.int32)
        row = Row(
            places[known], verdict[known], reason[known], closest_to[known], {name: column[known] for name, column in numbers.items()}
        )
        malicious = None if line.malicious is None else int(known[: max(0, line.malicious)].sum())
        self._places[t] = len(self.rows)
        self.rows.append(row)
        self.rounds.append(line._replace(counts=_counts(row.verdict), malicious=malicious))
        for node, when in late:
            self._set_late(node, when)
        for node, why in extra:
            if len(self.extra) < MOST_NODES:
                self.extra[plain(node, 20), plain(why, 20)] += 1

    def _admit(self, clients: list[int], stranger: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Their places; -1: left out of the tables."""
        places = np.array([self.nodes.get(client, -1) for client in clients], np.int32)
        for i in np.nonzero(places < 0)[0].tolist():
            if stranger[i]:
                if len(self.strangers) < MOST_NODES:
                    self.strangers.add(clients[i])
            elif len(self.nodes) < MOST_NODES:
                self.strangers.discard(clients[i])
                places[i] = self.nodes[clients[i]] = len(self.nodes)
            else:
                self.too_many = True
        return places

    def _set_late(self, node: object, when: object) -> None:
        place = self._places.get(when) if isinstance(when, int) else None
        if place is None or not isinstance(node, int) or node not in self.nodes:
            return
        row = self.rows[place]
        late = (row.nodes == self.nodes[node]) & (row.verdict == CODES["missing"])
        if late.any():
            row.verdict[late], row.reason[late] = CODES["late"], 0
            self.rounds[place] = self.rounds[place]._replace(counts=_counts(row.verdict))

    def _pairs(self, record: dict[str, Any], name: str) -> list[tuple[Any, Any]]:
        pairs = record.get(name) or []
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 and all(type(part) in (int, str) for part in pair) for pair in pairs
        ):
            raise self._damaged(record, name)
        return [(pair[0], pair[1]) for pair in pairs]

    def _line(self, record: dict[str, Any]) -> RoundLine:
        """Without its counts."""

        def text(name: str, most: int) -> str | None:
            return None if record.get(name) is None else plain(record[name], most)

        malicious = record.get("malicious")
        return RoundLine(
            round=record["round"],
            time=text("time", 40),
            test_error=number(record.get("test_error")),
            kept=text("kept", 40),
            why=text("why", 200),
            alarms=self._alarms(record),
            counts={},
            seconds=number(record.get("seconds")),
            root_norm=number(record.get("root_norm")),
            malicious=malicious if type(malicious) is int else None,
        )

    def _alarms(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        alarms = record.get("alarms") or []
        if not isinstance(alarms, list) or not all(isinstance(alarm, dict) for alarm in alarms):
            raise self._damaged(record, "alarms")
        return [
            {
                "kind": plain(alarm.get("kind"), 40),
                "text": plain(alarm.get("text"), 200),
                "nodes": [node for node in nodes if _is_id(node)] if isinstance(nodes := alarm.get("nodes"), list) else [],
            }
            for alarm in alarms[:100]
        ]

    def _read_names(self) -> None:
        """`nodes.json`, if it changed. One that is damaged leaves the names that were known."""
        path = self.path / "nodes.json"
        try:
            status = path.stat()
        except OSError:
            return
        if (seen := (status.st_ino, status.st_size, status.st_mtime_ns)) == self._named_as:
            return
        self.named = dict(_named(node, entry, path) for node, entry in read_json(path).items())
        self._named_as, self._changed = seen, True


def _named(node: str, entry: object, path: Path) -> tuple[int, Named]:
    is_id = node.isascii() and node.isdigit() and len(node) <= 20 and node == str(int(node)) and _is_id(int(node))
    if not is_id or not isinstance(entry, dict):
        raise InputError(f"{path} is damaged ({plain(node, 20)})")
    name, why = (plain(entry[part], NAME) if isinstance(entry.get(part), str) else "" for part in ("name", "why"))
    if name.strip().isdigit() and name != node:  # it reads like another node's id
        name = f"{name} (node {node})"
    state = entry.get("state")
    return int(node), Named(name or node, state if state in ("banned", "quarantined") else "active", why)


def _is_id(value: object) -> bool:
    """As Flower has them: whole numbers of 64 bits. `True` is none."""
    return type(value) is int and 0 <= value < 2**64


def number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value) else None


def _numbers(column: list[Any]) -> NDArray[np.float64]:
    try:
        values = np.array(column, np.float64)  # None is NaN
    except (ValueError, TypeError, OverflowError):
        values = np.empty(0)
    if values.shape != (len(column),):
        values = np.array([math.nan if (one := number(value)) is None else one for value in column], np.float64)
    values[np.abs(values) >= 1e300] = np.nan
    return values


def _coded(column: list[Any], codes: dict[str, int]) -> NDArray[np.uint8] | None:
    try:
        return np.array([codes[one] for one in column], np.uint8)
    except (KeyError, TypeError):
        return None


def _verdicts(numbers: dict[str, NDArray[np.float64]], n: int) -> NDArray[np.uint8]:
    """A simulation writes no verdicts: they follow from share and trust. A rule that scores trust gives no share exactly where it is 0."""
    verdict = np.full(n, CODES["used"], np.uint8)
    shares = numbers.get("shares")
    if shares is not None:
        verdict[shares == 0] = CODES["not-chosen"]
        trust = numbers.get("trust")
        if trust is not None and ((shares == 0) == (np.nan_to_num(trust) == 0)).all():
            verdict[shares == 0] = CODES["zero-trust"]
    return verdict


def _counts(verdict: NDArray[np.uint8]) -> dict[str, int]:
    counted = np.bincount(verdict, minlength=len(LETTERS) + 1)
    return {name: int(counted[code]) for name, code in CODES.items() if counted[code]}
