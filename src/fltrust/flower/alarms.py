"""What an operator must hear of: a function of the last records alone, so a run that resumes raises the same alarms.

"alarms": [{"kind": one of ALARMS, "text": a sentence, "nodes": [ids]}]      of a round, in records.jsonl
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from fltrust.flower.verdicts import ALARMS, KEPT, NOT_ASKED
from fltrust.store.records import shares_of

Alarm = dict[str, Any]
Naming = Callable[[int], str]

DOMINATES = 0.5  # a node's part of all shares
ROUNDING = 1e-5  # records have six digits
FEW = 3  # nodes asked: with fewer, the alarms about parts of the nodes say nothing
FALLING = 0.5  # valid replies, as a part of the usual number
USUAL = 10  # rounds whose median is the usual number, at least three of them
KEPT_IN_A_ROW = 3
LAST = USUAL + 1  # records that are looked at
MOST_NODES = 100  # that an alarm names

IN_ORDER = ("used", "not-chosen", "zero-trust", "not-counted")  # verdicts on replies that passed every check


def alarm(kind: str, text: str, nodes: Sequence[int] = ()) -> Alarm:
    assert kind in ALARMS
    return {"kind": kind, "text": text, "nodes": list(nodes[:MOST_NODES])}


def alarms_of(records: Sequence[Mapping[str, Any]], name: Naming) -> list[Alarm]:
    """The alarms of the last of these rounds; `name` says how a node is called."""
    this, kept = records[-1], [record.get("kept") for record in reversed(records)]
    alarms = []
    if kept[0] == "root-unusable":
        alarms.append(alarm("root-unusable", f"the round kept the model: {KEPT['root-unusable']}"))
    if kept[:2] == ["nobody-trusted"] * 2:
        alarms.append(alarm("nobody-trusted", f"nobody was trusted in round {this['round']} and the one before"))
    alarms += _dominates(this, name)
    alarms += _falling(records)
    if unasked := this.get("unasked"):
        alarms.append(alarm("unasked", f"messages that nobody asked for: {unasked}; a node sent them, and Flower does not say which"))
    if len(kept) >= KEPT_IN_A_ROW and all(kept[:KEPT_IN_A_ROW]):
        row = next((i for i, reason in enumerate(kept) if not reason), len(kept))
        alarms.append(
            alarm("kept", f"the last {row} rounds{' or more' if row == LAST else ''} kept the model, this one because {this['why']}")
        )
    return alarms


def _dominates(record: Mapping[str, Any], name: Naming) -> list[Alarm]:
    shares, verdicts = shares_of(record), record["verdict"]
    if not shares or sum(verdict not in NOT_ASKED for verdict in verdicts) < FEW:
        return []
    if "not-chosen" in verdicts:
        return []  # a rule such as Krum chooses few on purpose
    largest = max(range(len(shares)), key=lambda i: shares[i] or 0.0)
    part = (shares[largest] or 0.0) / (sum(share or 0.0 for share in shares) or 1.0)
    if part <= DOMINATES + ROUNDING:
        return []
    node = record["clients"][largest]
    return [alarm("one-node-dominates", f"{name(node)} has {part:.0%} of the shares", [node])]


def _falling(records: Sequence[Mapping[str, Any]]) -> list[Alarm]:
    """Nodes that are kept out now are not missed."""
    this, before = records[-1], records[-LAST:-1]
    out = {node for node, verdict in zip(this["clients"], this["verdict"], strict=True) if verdict in NOT_ASKED}

    def in_order(record: Mapping[str, Any]) -> int:
        return sum(verdict in IN_ORDER and node not in out for node, verdict in zip(record["clients"], record["verdict"], strict=True))

    usual = median(map(in_order, before)) if len(before) >= 3 else 0
    if usual < FEW or (now := in_order(this)) >= FALLING * usual:
        return []
    return [alarm("replies-falling", f"{now} replies were valid; usually {usual:g} are")]
