"""What the history of a run says of each node: a verdict, since when, and the evidence in plain sentences."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fltrust.audit.read import CODES, LETTERS, REASON_CODES, History, Reader

Verdict = Literal["hostile", "suspicious", "unreliable", "ok"]


@dataclass(frozen=True)
class Finding:
    """What the audit says of one node."""

    node: int
    name: str
    verdict: Verdict
    since: int | None  # round
    since_time: str | None
    evidence: list[str]  # plain sentences
    strip: str  # one letter a round, see read.LETTERS; "." where it was not asked
    counts: dict[str, int]  # rounds by verdict
    mean_trust: float | None
    mean_share: float | None
    malicious: bool | None  # known in a simulation only
    score: float  # sorts: the worst is the largest


FORGED = ("unreadable", "content", "too-large", "names", "dtype", "shape", "encoding", "not-finite", "value", "examples", "other-round")


def judge(reader: Reader) -> list[Finding]:
    """Every node, the worst first."""
    table = reader.history()
    rounds = reader.rounds
    strips = _strips(table)
    counts = np.stack([(table.verdict == code).sum(0) for code in CODES.values()])  # (verdicts, N)
    forged = (table.verdict == CODES["rejected"]) & np.isin(table.reason, [REASON_CODES[reason] for reason in FORGED])
    away = table.verdict == CODES["zero-trust"]
    asked = (table.verdict != 0).sum(0)
    trust, share = (_mean(table.numbers[name]) for name in ("trust", "shares"))
    findings = []
    for node, place in reader.nodes.items():
        bad = forged[:, place] | away[:, place]
        known = reader.named.get(node)
        hostile = bad.sum() >= max(2, 0.5 * asked[place])
        absent = counts[[CODES[v] - 1 for v in ("missing", "late", "rejected")], place].sum()
        verdict: Verdict = "hostile" if hostile else "unreliable" if absent >= max(2, 0.3 * asked[place]) else "ok"
        first = int(bad.argmax()) if hostile else None
        evidence = []
        if hostile and forged[:, place].any():
            evidence.append(f"its reply could not be used in {forged[:, place].sum()} of {asked[place]} rounds")
        if hostile and away[:, place].any():
            evidence.append(f"it points away from the server's update in {away[:, place].sum()} of {asked[place]} rounds")
        findings.append(
            Finding(
                node=node,
                name=known.name if known else str(node),
                verdict=verdict,
                since=None if first is None else rounds[first].round,
                since_time=None if first is None else rounds[first].time,
                evidence=evidence,
                strip=strips[place],
                counts={name: int(many) for name, many in zip(LETTERS, counts[:, place], strict=True) if many},
                mean_trust=_known(trust[place]),
                mean_share=_known(share[place]),
                malicious=_malicious(reader, place),
                score={"hostile": 3.0, "suspicious": 2.0, "unreliable": 1.0, "ok": 0.0}[verdict] + float(bad.mean()),
            )
        )
    return sorted(findings, key=lambda one: (-one.score, one.node))


def _malicious(reader: Reader, place: int) -> bool | None:
    for line, row in zip(reader.rounds, reader.rows, strict=True):
        if line.malicious is not None and place in row.nodes:
            return bool((row.nodes == place).argmax() < line.malicious)
    return None


def _strips(table: History) -> list[str]:
    letters = np.frombuffer(("." + "".join(LETTERS.values())).encode(), np.uint8)[table.verdict]
    return [row.tobytes().decode() for row in np.ascontiguousarray(letters.T)]


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) over the rounds in which it is known."""
    there = np.isfinite(values)
    mean: NDArray[np.float64] = np.where(there, values, 0).sum(0) / np.where(there.any(0), there.sum(0), np.nan)
    return mean


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
