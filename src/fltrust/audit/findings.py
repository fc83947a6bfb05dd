"""What the history of a run says of each node: a verdict, since when, and the evidence in plain sentences."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fltrust.audit.read import CODES, LETTERS, REASON_CODES, History, Reader
from fltrust.audit.signals import HOSTILE, SUSPICIOUS, Signal, groups, signals

Verdict = Literal["hostile", "suspicious", "unreliable", "ok"]
Flags = NDArray[np.bool_]
RANK = {"ok": 0, "unreliable": 1, "suspicious": 2, "hostile": 3}

# Rejections that a node must work for. Numbers that are not finite, or too large, also come from training that diverges: once is chance.
FORGED = ("unreadable", "content", "too-large", "names", "dtype", "shape", "encoding", "examples", "other-round")
DIVERGED = ("not-finite", "value")
LEARNT_NOTHING = ("zero-update", "tiny-update")
REPEATED, PART = 2, 0.1  # so often, and in at least this part of its rounds, a rejection is no accident
ABSENT = 1 / 3  # a node that is missing, late or fails in this part of its rounds, and twice at least, is unreliable
SWITCHES, EACH = 3, 0.2  # a node alternates if it changed so often between good and bad, and was both in this part of its rounds
SHOWN = 10  # nodes that a sentence names


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


def shortened(strip: str, most: int) -> str:
    """The first and the last rounds of a long strip, and how many are left out."""
    if len(strip) <= most:
        return strip
    return f"{strip[: most // 3]}..({len(strip) - most} rounds)..{strip[-(most - most // 3) :]}"


def judge(reader: Reader) -> list[Finding]:
    """Every node, the worst first."""
    found = _Judge(reader)
    return sorted((found.finding(node, place) for node, place in reader.nodes.items()), key=lambda one: (-one.score, one.node))


class _Judge:
    def __init__(self, reader: Reader) -> None:
        self.reader, self.table = reader, reader.history()
        self.rounds = reader.rounds
        self.signals = signals(self.table, np.array([np.nan if line.root_norm is None else line.root_norm for line in self.rounds]))
        self.names = [reader.named[node].name if node in reader.named else str(node) for node in reader.nodes]
        self.alike = {place: group for group in groups(self.signals["alike"], self.table) for place in group}
        self.asked = np.isin(self.table.verdict, [0, CODES["banned"], CODES["quarantined"]], invert=True)  # (T, N)
        self.strips = _strips(self.table)
        self.counts = np.stack([(self.table.verdict == code).sum(0) for code in CODES.values()])  # (verdicts, N)
        self.trust, self.share = (_mean(self.table.numbers[name]) for name in ("trust", "shares"))
        self.malicious = _malicious(reader)
        self.forged, self.diverged, self.nothing = (self._rejected(reasons) for reasons in (FORGED, DIVERGED, LEARNT_NOTHING))
        self.disputed = (self.table.verdict == CODES["missing"]) & (self.table.reason == REASON_CODES["disputed"])
        self.failed = self._rejected(("error", "other"))
        self.absent = (self.table.verdict == CODES["missing"]) & ~self.disputed
        self.late = self.table.verdict == CODES["late"]
        numbers = self.table.numbers | {"norm": np.where(self.table.numbers["norm"] > 0, self.table.numbers["norm"], np.nan)}
        self.medians = {name: _median_by_round(numbers[name]) for name in ("cosine", "peers", "norm")}

    def _rejected(self, reasons: tuple[str, ...]) -> Flags:
        codes = [REASON_CODES[reason] for reason in reasons]
        rejected: Flags = (self.table.verdict == CODES["rejected"]) & np.isin(self.table.reason, codes)
        return rejected

    def finding(self, node: int, place: int) -> Finding:
        verdict, first, evidence, score = self._judged(node, place)
        return Finding(
            node=node,
            name=self.names[place],
            verdict=verdict,
            since=None if first is None else self.rounds[first].round,
            since_time=None if first is None else self.rounds[first].time,
            evidence=evidence,
            strip=self.strips[place],
            counts={name: int(many) for name, many in zip(LETTERS, self.counts[:, place], strict=True) if many},
            mean_trust=_known(self.trust[place]),
            mean_share=_known(self.share[place]),
            malicious=None if self.malicious[place] < 0 else bool(self.malicious[place]),
            score=100 * RANK[verdict] + min(score, 99.0),
        )

    def _judged(self, node: int, place: int) -> tuple[Verdict, int | None, list[str], float]:
        """The verdict, the first round that counts, the evidence, and how much of it there is."""
        asked = int(self.asked[:, place].sum())
        found: list[tuple[Verdict, int, str]] = []
        score = 0.0

        forged, diverged, nothing, disputed, failed, absent, late = (
            np.nonzero(flags[:, place])[0]
            for flags in (self.forged, self.diverged, self.nothing, self.disputed, self.failed, self.absent, self.late)
        )
        bad_content = np.sort(np.concatenate([forged, diverged]))
        if len(bad_content):
            said = f"its reply was rejected in {len(bad_content)} of {asked} rounds: {self._reasons(bad_content, place)}"
            repeated = len(bad_content) >= max(REPEATED, PART * asked)
            found.append(("hostile" if repeated else "suspicious" if len(forged) else "ok", int(bad_content[0]), said))
            score += len(bad_content)
        if len(nothing):
            said = f"it learnt nothing in {len(nothing)} of {asked} rounds"
            found.append(("suspicious" if len(nothing) >= max(REPEATED, PART * asked) else "ok", int(nothing[0]), said))
            score += len(nothing)
        for name, signal in self.signals.items():
            if signal.total[place] >= SUSPICIOUS and not (name == "away" and self.signals["root"].total[place] >= SUSPICIOUS):
                grave = signal.total[place] >= HOSTILE and self._beyond_doubt(name, signal, place)
                verdict: Verdict = "hostile" if grave else "suspicious"
                found.append((verdict, int(signal.since[place]), self._sentence(name, signal, place)))
                score += float(signal.total[place])
        if any(verdict in ("hostile", "suspicious") for verdict, _, _ in found) and (change := self._change(place)):
            found.append(("ok", len(self.rounds), change))

        parts = (
            (failed, "it sent an error"),
            (absent, "it did not reply"),
            (late, "its reply was late"),
            (disputed, "nobody could tell who sent the reply to its message"),
        )
        rare: Verdict = "unreliable" if sum(len(rounds) for rounds, _ in parts) >= max(REPEATED, ABSENT * asked) else "ok"
        for rounds, said in parts:
            if len(rounds):
                found.append((rare, int(rounds[0]), f"{said} in {len(rounds)} of {asked} rounds"))
        known = self.reader.named.get(node)
        if known and known.state != "active":
            found.append(("ok", len(self.rounds), f"the server has {known.state} it" + (f": {known.why}" if known.why else "")))

        worst: Verdict = max((verdict for verdict, _, _ in found), key=RANK.__getitem__, default="ok")
        counts = [first for verdict, first, _ in found if verdict != "ok" and (verdict != "unreliable" or worst == "unreliable")]
        evidence = [said for _, _, said in sorted(found, key=lambda one: -RANK[one[0]])]
        return worst, min(counts, default=None), evidence, score

    def _reasons(self, rounds: NDArray[np.int64], place: int) -> str:
        names = {code: reason for reason, code in REASON_CODES.items()}
        codes, counts = np.unique(self.table.reason[rounds, place], return_counts=True)
        return ", ".join(f"{names.get(int(codes[i]), 'other')} {counts[i]}" for i in np.argsort(-counts, kind="stable"))

    def _usual(self, column: str, signal: Signal, place: int) -> tuple[float, float]:
        """This node's number, and the nodes' median, in the rounds that count; NaN where it is not known."""
        bad = signal.bad[:, place] & np.isfinite(self.table.numbers[column][:, place])
        if not bad.any():
            return np.nan, np.nan
        return float(np.median(self.table.numbers[column][bad, place])), float(np.median(self.medians[column][bad]))

    def _beyond_doubt(self, name: str, signal: Signal, place: int) -> bool:
        """Whether others cannot have made the node look so.

        Nodes that agree with each other narrow the spread, and most of the nodes together set what is usual. So a direction is hostile only
        if its cosine is less than half of the usual one and, where the server has an update of its own, worse than usual there too. And
        half of the nodes may send the same because they hold the same data.
        """
        if name == "alike":
            return 2 * len(self.alike.get(place, [])) < len(self.names)
        if name not in ("root", "peers"):
            return True
        own, others = self._usual("cosine" if name == "root" else "peers", signal, place)
        cosine, usual = self._usual("cosine", signal, place)
        return own <= max(others, 0) / 2 and not cosine >= usual

    def _sentence(self, name: str, signal: Signal, place: int) -> str:
        apart = signal.apart[:, place]
        bad = np.nonzero(signal.bad[:, place])[0]
        often = f"in {len(bad)} of {int(np.isfinite(apart).sum())} rounds"
        if name == "long":
            own, others = self._usual("norm", signal, place)
            root = [norm for t in bad if (norm := self.rounds[t].root_norm)]
            against = f", {own / float(np.median(root)):.3g} times the server's" if root else ""
            return f"its norm was {own / others:.3g} times the others'{against}, {often}"
        if name == "peers":
            own, others = self._usual("peers", signal, place)
            return f"its cosine with other nodes was {own:.2f}, usual is {others:.2f}, {often}"
        if name == "alike":
            group = self.alike.get(place, [place])
            shown = ", ".join(self.names[member] for member in group[:SHOWN])
            more = f" and {len(group) - SHOWN} more" if len(group) > SHOWN else ""
            cosine = float(np.nanmedian(self.table.numbers["closest"][bad, place]))
            who = f"one of {len(group)} look-alikes: {shown}{more}" if len(group) > 1 else "its update resembles another node's"
            return f"{who} (cosine {cosine:.3f}, {often})"
        own, others = self._usual("cosine", signal, place)
        return f"its cosine with the server's update was {own:.2f}, usual is {others:.2f}, {often}"

    def _change(self, place: int) -> str:
        """Whether it went back and forth between good and bad, or became good again."""
        bad = self.forged[:, place] | self.diverged[:, place]
        for signal in self.signals.values():
            if signal.total[place] >= SUSPICIOUS:
                bad = bad | signal.bad[:, place]
        told = np.isin(self.table.verdict[:, place], [CODES[verdict] for verdict in ("used", "not-chosen", "zero-trust", "rejected")])
        rounds = np.nonzero(told)[0]
        bad = bad[rounds]
        switches = int((bad[1:] != bad[:-1]).sum())
        if switches >= SWITCHES and EACH <= bad.mean() <= 1 - EACH:
            return f"it alternates: bad in {bad.sum()} of {len(bad)} rounds, changed {switches} times"
        if bad.any() and len(bad) - 1 - (last := int(np.nonzero(bad)[0][-1])) >= REPEATED:
            return f"nothing was wrong after round {self.rounds[rounds[last]].round}"
        return ""


def _malicious(reader: Reader) -> NDArray[np.int8]:
    """(N,) 1 malicious, 0 honest, -1 nobody knows. A simulation's records name the malicious first."""
    known = np.full(len(reader.nodes), -1, np.int8)
    for line, row in zip(reader.rounds, reader.rows, strict=True):
        if line.malicious is not None:
            known[row.nodes] = np.arange(len(row.nodes)) < line.malicious
    return known


def _strips(table: History) -> list[str]:
    letters = np.frombuffer(("." + "".join(LETTERS.values())).encode(), np.uint8)[table.verdict]
    return [row.tobytes().decode() for row in np.ascontiguousarray(letters.T)]


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) over the rounds in which it is known."""
    there = np.isfinite(values)
    mean: NDArray[np.float64] = np.where(there, values, 0).sum(0) / np.where(there.any(0), there.sum(0), np.nan)
    return mean


def _median_by_round(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([np.median(known) if len(known := row[np.isfinite(row)]) else np.nan for row in values])


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
