"""Who may be asked: the operator's names, ban list and allow list, and the quarantine of nodes whose replies are rejected.

All of it is a function of the operator's files and of the records, so a server that was killed decides as if it had not been.

    names.toml   "SHA256:Uyq..." = "hospital-a"      the fingerprint of a node's public key, as `ssh-keygen -lf node.pub` shows it ...
                 "1234567890" = "hospital-b"         ... or Flower's id of the node
    ban.txt      hospital-a     # since the audit    an id, a fingerprint or a name a line
"""

import base64
import hashlib
import re
import tomllib
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from fltrust.errors import InputError
from fltrust.flower.verdicts import NOT_ASKED, plain

Source = str | Path | Iterable[int | str]
"""A file, or the ids, fingerprints and names themselves."""

MOST_STRANGERS = 1000  # nodes that are not on the allow list and are written down in a round
LONGEST = 20  # doublings of a quarantine
_ID, _FINGERPRINT = re.compile(r"0|[1-9][0-9]{0,19}"), re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@dataclass(frozen=True)
class Quarantine:
    """After `after` rejected replies in its last 2 x `after` rounds a node is not asked for `rounds` rounds, then for twice as many.

    Parameters
    ----------
    after : int, default 3
        Rejected replies.
    rounds : int, default 5
        How long the first quarantine lasts. Each later one is twice as long as the one before.
    """

    after: int = 3
    rounds: int = 5

    def __post_init__(self) -> None:
        if self.after < 1 or self.rounds < 1:
            raise InputError(f"quarantine needs at least one rejected reply and one round, not {self.after} and {self.rounds}")


@dataclass(frozen=True)
class Lists:
    """What the operator decided. Nodes stand here by their subject: the id in digits, or the fingerprint."""

    names: Mapping[str, str] = field(default_factory=dict)  # subject -> name
    ban: frozenset[str] = frozenset()
    allow: frozenset[str] | None = None  # None: all


class Exclusion(NamedTuple):
    """Why a node that is there is not asked."""

    verdict: str
    reason: str
    detail: str | None = None


@dataclass(frozen=True)
class Standing:
    """A node's past as far as quarantine needs it."""

    recent: tuple[bool, ...] = ()  # of the rounds asked since the last quarantine, whether its reply was rejected
    times: int = 0  # quarantines so far
    until: int = 0  # the last round in which it is not asked

    @property
    def detail(self) -> str:
        return f"asked again in round {self.until + 1}"


@dataclass
class History:
    """What the records say, round by round: who took part, and who is in quarantine."""

    quarantine: Quarantine | None = None
    asked: set[int] = field(default_factory=set)
    standing: dict[int, Standing] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> list[int]:
        """Takes in a round; returns the nodes whose quarantine begins after it."""
        t, begun = record["round"], []
        for node, verdict, reason in _entries(record):
            if verdict in NOT_ASKED or reason == "not-sent":
                continue
            self.asked.add(node)
            if self.quarantine is not None:
                self.standing[node] = _after(self.standing.get(node, Standing()), t, verdict == "rejected", self.quarantine)
                if self.standing[node].until > t and not self.standing[node].recent:
                    begun.append(node)
        return begun


def _entries(record: Mapping[str, Any]) -> list[tuple[int, str, str | None]]:
    """(node, verdict, reason) of a record, which may come from a file."""
    columns = [record.get(name) for name in ("clients", "verdict", "reason")]
    if all(isinstance(column, list) for column in columns) and len({len(column or ()) for column in columns}) == 1:
        entries = list(zip(*cast("list[list[Any]]", columns), strict=True))
        if all(isinstance(node, int) and isinstance(verdict, str) for node, verdict, _ in entries):
            return entries
    raise InputError(f"records.jsonl: round {record['round']} is damaged (its verdicts do not fit its clients)")


def _after(was: Standing, t: int, rejected: bool, quarantine: Quarantine) -> Standing:
    recent = (*was.recent, rejected)[-2 * quarantine.after :]
    if sum(recent) < quarantine.after:
        return Standing(recent, was.times, was.until)
    return Standing((), was.times + 1, t + quarantine.rounds * 2 ** min(was.times, LONGEST))


def excluded(node: int, fingerprint: str | None, t: int, lists: Lists, history: History) -> Exclusion | None:
    """Why a node is not asked in round t; None: it may be."""
    subjects = {str(node), fingerprint}
    if not lists.ban.isdisjoint(subjects):
        return Exclusion("banned", "banned")
    if lists.allow is not None and lists.allow.isdisjoint(subjects):
        return Exclusion("banned", "not-allowed")
    standing = history.standing.get(node, Standing())
    return Exclusion("quarantined", "quarantined", standing.detail) if t <= standing.until else None


def decide(
    nodes: Mapping[int, str | None], t: int, lists: Lists, history: History, least: int = 0
) -> tuple[list[int], dict[int, Exclusion]]:
    """Of the nodes that are there (id -> fingerprint): those that may be asked in round t, and why the others are not.

    Quarantine saves time, it is no defence: a reply that is rejected harms nobody. So where fewer than `least` nodes are left, those come
    back whose quarantine ends first; otherwise a fault that all nodes share would stop the federation for good. Banned nodes never do.
    """
    out = {node: why for node, fingerprint in sorted(nodes.items()) if (why := excluded(node, fingerprint, t, lists, history)) is not None}
    may = [node for node in sorted(nodes) if node not in out]
    resting = sorted((history.standing[node].until, node) for node, why in out.items() if why.verdict == "quarantined")
    for _, node in resting[: max(0, least - len(may))]:
        del out[node]
        may.append(node)
    strangers = [node for node, why in out.items() if why.reason == "not-allowed"]
    for node in strangers[MOST_STRANGERS:]:
        del out[node]
    return sorted(may), out


# ---------------------------------------------------------------- the operator's files


def _text(path: Path, blank: bool) -> str:
    """`blank`: whether nothing at all may be in the file; one that said something before is then just being written."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise InputError(f"{path} cannot be read: {plain(problem)}") from problem
    if not text.strip() and not blank:
        raise InputError(f"{path} is empty now, as if it were being written. To list nobody, leave a line with a #")
    return text


def read_names(path: Path, blank: bool = True) -> dict[str, str]:
    """subject -> name."""
    text = _text(path, blank)
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path} cannot be read: {plain(problem)}") from problem
    names: dict[str, str] = {}
    taken: set[str] = set()  # as people read them: neither case nor the way an accent is written tells two apart
    for subject, name in content.items():
        if not is_subject(subject):
            raise InputError(f"{path}: {plain(subject, 60)!r} is neither the id nor the fingerprint of a node")
        if not isinstance(name, str) or not 1 <= len(name) <= 60 or name != name.strip() or not name.isprintable() or "#" in name:
            raise InputError(f"{path}: the name of {subject} must be 1 to 60 printable characters without '#'")
        if name.isdigit() or is_subject(name):
            raise InputError(f"{path}: the name of {subject} looks like an id or a fingerprint")
        if (read_as := unicodedata.normalize("NFC", name).casefold()) in taken:
            raise InputError(f"{path} gives the name {plain(name, 60)!r} twice")
        taken.add(read_as)
        names[subject] = name
    return names


def read_subjects(source: Source, names: Mapping[str, str], what: str, blank: bool = True) -> frozenset[str]:
    """The nodes of a list. An entry that names nobody is refused: with a misspelt name the list would do nothing."""
    if isinstance(source, str | Path):
        what, lines = str(source), _text(Path(source), blank).splitlines()
        entries = [entry for line in lines if (entry := line.partition("#")[0].strip())]
    else:
        entries = [str(entry) for entry in source]
    by_name = {name: subject for subject, name in names.items()}
    subjects = []
    for entry in entries:
        if not is_subject(subject := by_name.get(entry, entry)):
            raise InputError(f"{what}: {plain(entry, 60)!r} is no node's id, fingerprint or name")
        subjects.append(subject)
    return frozenset(subjects)


def is_subject(text: str) -> bool:
    return bool((_ID.fullmatch(text) and int(text) < 2**64) or _FINGERPRINT.fullmatch(text))


def need_keys(subjects: Collection[str], what: str) -> None:
    """Without node authentication a node may show any public key, another node's too."""
    if any(_FINGERPRINT.fullmatch(subject) for subject in subjects):
        raise InputError(f"{what} holds fingerprints, which prove nothing without node authentication: turn it on and set registered=True")


@lru_cache(maxsize=100_000)
def fingerprint(public_key: bytes) -> str | None:
    """Of a public key in PEM, as `ssh-keygen -l` shows it; None for what is no such key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    try:
        line = load_pem_public_key(public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return None
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
