"""The audit's judgement on histories made up here: who is accused, since when, and who must not be."""

import csv
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from fltrust.audit import Audit, Finding, shortened
from fltrust.cli.audit import audit, write_ban
from fltrust.errors import InputError
from fltrust.store.files import replace

N = 10
Change = Callable[[int, int, dict[str, Any]], object]  # (round, node, what it does) -> nothing


def line(t: int, change: Change = lambda t, i, said: None, *, n: int = N, seed: int = 0, **more: Any) -> dict[str, Any]:
    """A round of honest nodes under skew, in which `change` makes some misbehave. Trust falls while the model learns."""
    rng = np.random.default_rng((seed, t))
    level = 0.6 * 0.97**t
    nodes = []
    for i in range(n):
        own = 0.05 * np.sin(3.0 * i)  # what its data make of it, in every round
        said = {
            "verdict": "used",
            "reason": None,
            "cosine": level + own + 0.03 * rng.standard_normal(),
            "norm": 0.5 * np.exp(0.15 * rng.standard_normal()),
            "peers": level / 2 + own / 2 + 0.03 * rng.standard_normal(),
            "closest": 0.5 + 0.1 * rng.random(),
            "closest_to": (i + 1) % n,
        }
        change(t, i, said)
        if said["verdict"] in ("used", "zero-trust", "not-counted") and said["cosine"] is not None and said["cosine"] <= 0:
            said["verdict"] = "zero-trust" if said["verdict"] == "used" else said["verdict"]
        if said["verdict"] in ("rejected", "missing", "late"):
            said |= dict.fromkeys(("cosine", "norm", "peers", "closest", "closest_to"))
        nodes.append(said)
    columns = {name: [said[name] for said in nodes] for name in nodes[0]}
    trust = [None if cosine is None else max(0.0, cosine) for cosine in columns["cosine"]]
    whole = {"round": t, "time": f"2026-01-01T00:00:{t % 60:02}+00:00", "malicious": None, "clients": list(range(n)), "trust": trust}
    return {**whole, **columns, "shares": None, "root_norm": 0.5, "late": [], "extra": [], "kept": None, "test_error": 0.1, **more}


def written(path: Path, rounds: int, change: Change = lambda t, i, said: None, **more: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "experiment.json").write_text(json.dumps({"kind": "federation", "key": "k", "experiment": {"rule": {"name": "fltrust"}}}))
    (path / "records.jsonl").write_text("".join(json.dumps(line(t, change, **more)) + "\n" for t in range(1, rounds + 1)))
    return path


def found(path: Path) -> dict[int, Finding]:
    return {finding.node: finding for finding in Audit(path).findings()}


def flagged(path: Path) -> list[int]:
    return sorted(node for node, finding in found(path).items() if finding.verdict in ("hostile", "suspicious"))


# ---------------------------------------------------------------- honest nodes are not accused


def without_root(t: int, i: int, said: dict[str, Any]) -> None:
    said["cosine"] = None


def offline(t: int, i: int, said: dict[str, Any]) -> None:
    if i in (3, 4) and (t + i) % 4 == 0:
        said |= {"verdict": "missing", "reason": "unavailable"}


def diverged_once(t: int, i: int, said: dict[str, Any]) -> None:
    if t == 2 and i == 5:
        said |= {"verdict": "rejected", "reason": "not-finite"}


def kept(t: int, i: int, said: dict[str, Any]) -> None:
    said |= {"verdict": "not-counted", "cosine": None}


def odd_once(t: int, i: int, said: dict[str, Any]) -> None:
    if t == 3 and i == 2:
        said |= {"cosine": -0.9, "peers": -0.9, "norm": 40.0}


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 200])
@pytest.mark.parametrize("change", [lambda t, i, said: None, without_root, offline, diverged_once, kept, odd_once])
def test_honest_nodes_are_not_accused(tmp_path: Path, rounds: int, change: Change) -> None:
    for seed in range(5):
        assert flagged(written(tmp_path / str(seed), rounds, change, seed=seed)) == []
    assert Audit(tmp_path / "0").headline() == "No node looks suspicious."


def test_a_root_that_is_zero_accuses_nobody(tmp_path: Path) -> None:
    assert flagged(written(tmp_path, 5, kept, kept="root-unusable", root_norm=0.0)) == []


@pytest.mark.parametrize("n", [1, 2, 3])
def test_too_few_nodes_cannot_be_compared(tmp_path: Path, n: int) -> None:
    assert flagged(written(tmp_path, 6, lambda t, i, said: said.update(norm=50.0 ** (i + 1), peers=0.5 - i), n=n)) == []


def test_a_node_that_is_often_away_is_unreliable_and_no_more(tmp_path: Path) -> None:
    def away(t: int, i: int, said: dict[str, Any]) -> None:
        if i == 3 and t % 2:
            said |= {"verdict": "missing", "reason": "silent"}
        if i == 4 and t % 2:
            said |= {"verdict": "rejected", "reason": "error"}

    path = written(tmp_path, 8, away)
    assert [found(path)[i].verdict for i in (3, 4)] == ["unreliable", "unreliable"]
    assert found(path)[3].evidence == ["it did not reply in 4 of 8 rounds"]
    assert found(path)[3].since == 1
    assert flagged(path) == []


# ---------------------------------------------------------------- hostile nodes are, since the round they began


def scaling(t: int, i: int, said: dict[str, Any]) -> None:
    said["norm"] *= 10


def opposite(t: int, i: int, said: dict[str, Any]) -> None:
    said |= {"cosine": -said["cosine"], "peers": -said["peers"]}


def peers_only(t: int, i: int, said: dict[str, Any]) -> None:
    said |= {"cosine": None, "peers": -0.4}


def copies(t: int, i: int, said: dict[str, Any]) -> None:
    said |= {"closest": 1.0, "closest_to": 1 if i == 2 else 2}


def forged(t: int, i: int, said: dict[str, Any]) -> None:
    said |= {"verdict": "rejected", "reason": "encoding" if t % 2 else "shape"}


SIGNS: dict[str, tuple[Change, str]] = {
    "scaling": (scaling, "its norm was "),
    "opposite": (opposite, "its cosine with the server's update was -0."),
    "peers": (peers_only, "its cosine with other nodes was -0.40"),
    "copies": (copies, "one of 3 look-alikes: 1, 2, 3 (cosine 1.000, in"),
    "forged": (forged, "its reply was rejected in"),
}


@pytest.mark.parametrize("rounds", [5, 12, 60])
@pytest.mark.parametrize("began", [1, 3])
@pytest.mark.parametrize("sign", SIGNS)
def test_hostile_nodes_are_named_with_the_round_they_began(tmp_path: Path, sign: str, began: int, rounds: int) -> None:
    misbehave, sentence = SIGNS[sign]

    def change(t: int, i: int, said: dict[str, Any]) -> None:
        if sign == "peers":
            said["cosine"] = None
        if i in (1, 2, 3) and t >= began:
            misbehave(t, i, said)

    path = written(tmp_path, rounds, change)
    assert flagged(path) == [1, 2, 3]
    for i in (1, 2, 3):
        finding = found(path)[i]
        assert (finding.verdict, finding.since, finding.since_time) == ("hostile", began, f"2026-01-01T00:00:0{began}+00:00")
        assert finding.evidence[0].startswith(sentence)
        if sign != "opposite" or rounds < 60:  # when all nodes' trust is nearly 0, nobody stands apart any more
            assert f"in {rounds - began + 1} of {rounds} rounds" in finding.evidence[0]
    assert Audit(path).headline().startswith("3 of 10 nodes look hostile: ")


def test_one_who_alternates_is_caught(tmp_path: Path) -> None:
    def alternates(t: int, i: int, said: dict[str, Any]) -> None:
        if i == 7 and t % 2 == 0:
            opposite(t, i, said)

    finding = found(written(tmp_path, 10, alternates))[7]
    assert (finding.verdict, finding.since) == ("hostile", 2)
    assert finding.strip == "UZUZUZUZUZ"
    assert "it alternates: bad in 5 of 10 rounds, changed 9 times" in finding.evidence
    assert flagged(tmp_path) == [7]


def test_one_who_stops_stays_accused(tmp_path: Path) -> None:
    path = written(tmp_path, 40, lambda t, i, said: opposite(t, i, said) if i == 7 and t < 6 else None)
    assert found(path)[7].verdict == "hostile"
    assert "nothing was wrong after round 5" in found(path)[7].evidence
    assert found(path)[7].since == 1


def test_a_hostile_majority_does_not_make_the_honest_look_odd(tmp_path: Path) -> None:
    """The server's own update says who is odd."""

    def most(t: int, i: int, said: dict[str, Any]) -> None:
        if i < 6:
            said |= {"norm": 10 * said["norm"], "cosine": -0.3}

    assert flagged(written(tmp_path, 8, most)) == [0, 1, 2, 3, 4, 5]


def test_most_nodes_together_cannot_have_the_others_banned(tmp_path: Path) -> None:
    """They resemble each other, and less than the honest ones the server: what is usual among nodes is then theirs."""

    def most(t: int, i: int, said: dict[str, Any]) -> None:
        said |= {"cosine": 0.18 + 0.01 * i, "peers": 0.72} if i < 6 else {"cosine": 0.55 + 0.01 * i, "peers": 0.18}

    assert all(finding.verdict != "hostile" for finding in found(written(tmp_path, 8, most)).values())


def test_nodes_that_agree_with_each_other_cannot_have_an_honest_one_banned(tmp_path: Path) -> None:
    def agree(t: int, i: int, said: dict[str, Any]) -> None:
        said |= {"cosine": 0.45 if i == 9 else 0.6 + 0.001 * i, "peers": 0.4}

    assert found(written(tmp_path, 12, agree))[9].verdict == "suspicious"


def test_updates_of_length_zero_are_no_measure(tmp_path: Path) -> None:
    def lengths(t: int, i: int, said: dict[str, Any]) -> None:
        said["norm"] = 0.0 if i < 5 else 100.0 if i == 9 else 1.0

    assert any("100 times the others'" in said for said in found(written(tmp_path, 6, lengths))[9].evidence)


def test_what_may_have_another_cause_is_suspicious(tmp_path: Path) -> None:
    path = written(tmp_path, 6, lambda t, i, said: said.update(verdict="rejected", reason="zero-update") if i == 4 else None)
    assert (found(path)[4].verdict, found(path)[4].evidence) == ("suspicious", ["it learnt nothing in 6 of 6 rounds"])
    assert Audit(path).headline() == "1 of 10 nodes looks suspicious: 4"


def test_a_node_in_whose_name_others_may_have_spoken_is_not_accused(tmp_path: Path) -> None:
    def disputed(t: int, i: int, said: dict[str, Any]) -> None:
        if i == 4 and t >= 2:
            said |= {"verdict": "missing", "reason": "disputed"}

    finding = found(path := written(tmp_path, 6, disputed))[4]
    assert (finding.verdict, finding.since) == ("unreliable", 2)
    assert finding.evidence == ["nobody could tell who sent the reply to its message in 5 of 6 rounds"]
    assert Audit(path).headline() == "No node looks suspicious."


def test_one_forged_reply_is_suspicious_and_two_are_hostile(tmp_path: Path) -> None:
    def once(t: int, i: int, said: dict[str, Any]) -> None:
        if (i == 4 and t == 2) or (i == 5 and t in (2, 3)):
            forged(t, i, said)

    path = written(tmp_path, 6, once)
    assert (found(path)[4].verdict, found(path)[5].verdict) == ("suspicious", "hostile")
    assert Audit(path).headline() == "1 of 10 nodes looks hostile: 5; 1 suspicious: 4"
    assert found(path)[5].evidence == [
        "its reply was rejected in 2 of 6 rounds: shape 1, encoding 1",
        "nothing was wrong after round 3",
    ]


def test_a_verdict_does_not_change_what_was_said_of_earlier_rounds(tmp_path: Path) -> None:
    misbehave: Change = lambda t, i, said: scaling(t, i, said) if i == 1 and t >= 4 else None  # noqa: E731
    since = [found(written(tmp_path, rounds, misbehave))[1].since for rounds in (5, 6, 20, 100)]
    assert since == [4, 4, 4, 4]


def test_records_of_older_versions_are_judged_by_what_they_have(tmp_path: Path) -> None:
    written(tmp_path, 6, lambda t, i, said: opposite(t, i, said) if i == 1 else None)
    records = [json.loads(text) for text in (tmp_path / "records.jsonl").read_text().splitlines()]
    for record in records:
        for name in ("peers", "closest", "closest_to", "root_norm", "shares", "time"):
            del record[name]
        record["weight"] = [0.1] * N
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    finding = found(tmp_path)[1]
    assert (finding.verdict, finding.since, finding.since_time) == ("hostile", 1, None)
    assert finding.mean_share == pytest.approx(0.1)


# ---------------------------------------------------------------- a run that goes on


def append(path: Path, *records: dict[str, Any]) -> None:
    with (path / "records.jsonl").open("a") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))


def test_only_what_was_added_is_read_again(tmp_path: Path) -> None:
    run = Audit(written(tmp_path, 3))
    assert not run.refresh()
    append(tmp_path, line(4))
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"round": 5, "clie')  # being written
    assert run.refresh()
    assert [round.round for round in run.rounds] == [1, 2, 3, 4]
    assert not run.refresh()
    replace(tmp_path / "records.jsonl", "".join(json.dumps(line(t)) + "\n" for t in (1, 2, 3)).encode())  # a server that resumed
    assert run.refresh()
    assert [round.round for round in run.rounds] == [1, 2, 3]
    assert len(run.findings()[0].strip) == 3


def test_reading_on_says_the_same_as_reading_all(tmp_path: Path) -> None:
    misbehave: Change = lambda t, i, said: opposite(t, i, said) if i == 3 and t > 4 else None  # noqa: E731
    run = Audit(written(tmp_path, 1, misbehave))
    for t in range(2, 12):
        append(tmp_path, line(t, misbehave, late=[[0, t - 1]]))
        run.refresh()
        assert run.findings() == Audit(tmp_path).findings()
    assert found(tmp_path)[3].since == 5


def test_a_late_reply_changes_the_round_it_belongs_to(tmp_path: Path) -> None:
    run = Audit(written(tmp_path, 2, lambda t, i, said: said.update(verdict="missing", reason="silent") if i == 0 else None))
    assert run.rounds[1].counts == {"used": 9, "missing": 1}
    append(tmp_path, line(3, late=[[0, 2], [0, 77], [5, 2], ["x", 1], [0, "1"]]))
    run.refresh()
    assert run.rounds[1].counts == {"used": 9, "late": 1}
    assert {finding.node: finding.strip for finding in run.findings()}[0] == "MLU"


def test_names_come_from_nodes_json(tmp_path: Path) -> None:
    run = Audit(written(tmp_path, 4, lambda t, i, said: scaling(t, i, said) if i == 2 else None))
    names = {
        "2": {"name": "hospital \x1b[31mb\u202e\n" + "x" * 99, "state": "banned", "why": "\x07"},
        "3": {"name": 7},
        "77": {"name": "new"},
    }
    (tmp_path / "nodes.json").write_text(json.dumps(names))
    assert run.refresh()
    worst = run.findings()[0]
    assert worst.name.startswith("hospital \\x1b[31mb\\u202e\\nxxx")
    assert len(worst.name) == 60
    assert "the server has banned it: \\x07" in worst.evidence
    assert found(tmp_path)[3].name == "3"
    assert not run.refresh()


def test_alarms_and_what_a_round_took_are_handed_on(tmp_path: Path) -> None:
    path = written(tmp_path, 1, alarms=[{"kind": "kept", "text": "\x1b", "nodes": [1, "x", 2]}], seconds=1.5, kept="rule", why="no")
    (only,) = Audit(path).rounds
    assert only.alarms == [{"kind": "kept", "text": "\\x1b", "nodes": [1, 2]}]
    assert (only.seconds, only.kept, only.why, only.test_error) == (1.5, "rule", "no", 0.1)


def test_ten_thousand_nodes(tmp_path: Path) -> None:
    n = 10_000
    path = written(tmp_path, 3, lambda t, i, said: scaling(t, i, said) if i >= n - 5 else None, n=n)
    run = Audit(path)
    assert flagged(path) == list(range(n - 5, n))
    assert run.headline().startswith("5 of 10000 nodes look hostile: 999")
    assert sum(run.rounds[0].counts.values()) == n


# ---------------------------------------------------------------- files that are not what they should be


def rewrite(path: Path, *records: dict[str, Any]) -> None:
    """In place: the file stays the same, and so does its inode."""
    (path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def strangers(record: dict[str, Any], ids: range) -> dict[str, Any]:
    """The same round with nodes that are not on the allow list."""
    more: dict[str, list[Any]] = {"clients": list(ids), "verdict": ["banned"] * len(ids), "reason": ["not-allowed"] * len(ids)}
    columns = {name: value for name, value in record.items() if isinstance(value, list) and len(value) == N}
    return record | {name: value + more.get(name, [None] * len(ids)) for name, value in columns.items()}


def test_strangers_do_not_switch_the_audit_off(tmp_path: Path) -> None:
    misbehave: Change = lambda t, i, said: scaling(t, i, said) if i == 2 else None  # noqa: E731
    alone = Audit(written(tmp_path, 101, misbehave))
    assert alone.remarks() == []
    rewrite(tmp_path, *(strangers(line(t, misbehave), range(1000 * t, 1000 * t + 1000)) for t in range(1, 102)))
    run = Audit(tmp_path)
    assert run.findings() == alone.findings()
    assert run.rounds == alone.rounds
    assert run.remarks() == ["left out: 100000 or more nodes that were there but never on the allow list"]


def test_a_stranger_that_is_allowed_later_is_judged_from_then_on(tmp_path: Path) -> None:
    written(tmp_path, 1)
    rewrite(tmp_path, strangers(line(1), range(10, 13)), line(2, n=11), strangers(line(3), range(10, 13)))
    run = Audit(tmp_path)
    assert {finding.node: finding.strip for finding in run.findings()}[10] == ".UB"
    assert len(run.findings()) == 11
    assert run.remarks() == ["left out: 2 nodes that were there but never on the allow list"]
    rewrite(tmp_path, *({**line(t), "verdict": ["banned"] * N, "reason": ["not-allowed"] * N} for t in (1, 2)))
    with pytest.raises(InputError, match="names no client on the allow list in its 2 rounds"):
        Audit(tmp_path)


def test_nodes_beyond_the_limit_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fltrust.audit.read.MOST_NODES", 8)
    monkeypatch.setattr("fltrust.audit.audit.MOST_NODES", 8, raising=False)
    run = Audit(written(tmp_path, 3, malicious=9))
    assert sorted(finding.node for finding in run.findings()) == list(range(8))
    assert all(finding.malicious for finding in run.findings())
    assert run.remarks() == ["left out: all nodes after the first 8"]


FILES = ("experiment.json", "nodes.json", "records.jsonl")


def test_a_small_file_of_many_rounds_of_many_nodes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, 1)
    rewrite(tmp_path, {"round": 1, "clients": list(range(20_000))}, *({"round": t} for t in range(2, 1001)))
    with pytest.raises(InputError, match="too large to judge: 1,000 rounds of 20,000 nodes"):
        Audit(tmp_path)
    monkeypatch.setattr("fltrust.audit.read.MOST_CELLS", 10 * N)
    assert Audit(written(tmp_path, 10)).findings()
    run = Audit(tmp_path)
    append(tmp_path, line(11))
    with pytest.raises(InputError, match=f"11 rounds of {N} nodes"):
        run.refresh()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    written(tmp_path, 1)
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    elif kind == "device":
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        (tmp_path / name).mkdir()
    one_line(fltrust(tmp_path, timeout=600, preexec_fn=limit_memory))


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


def one_line(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("fltrust: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_far_too_large_is_refused(tmp_path: Path, name: str) -> None:
    with (written(tmp_path, 1) / name).open("ab") as file:
        file.truncate(8 << 30)  # it takes no space
    one_line(fltrust(tmp_path, timeout=600, preexec_fn=limit_memory))


def test_another_file_of_equal_length_is_read_anew(tmp_path: Path) -> None:
    run = Audit(written(tmp_path, 3))
    others = [line(t) for t in (1, 2, 3, 4)]
    for record in others:
        record |= {"test_error": 0.7}  # as long as 0.1
    rewrite(tmp_path, *others[:3])
    assert run.refresh()
    assert [round.test_error for round in run.rounds] == [0.7, 0.7, 0.7]
    rewrite(tmp_path, *(record | {"test_error": 0.3} for record in others))  # and one round more
    assert run.refresh()
    assert [round.test_error for round in run.rounds] == [0.3, 0.3, 0.3, 0.3]
    assert run.findings() == Audit(tmp_path).findings()
    assert not run.refresh()


def test_a_file_that_is_replaced_while_it_is_opened_is_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Audit(written(tmp_path / "run", 3))
    append(tmp_path / "run", line(4))
    waiting = [written(tmp_path / "new", 5, test_error=0.7) / "records.jsonl"]
    path_stat, fstat = Path.stat, os.fstat

    def of_path(path: Path, **options: Any) -> os.stat_result:
        if waiting and path.name == "records.jsonl":
            waiting.pop().replace(path)
        return path_stat(path, **options)

    def of_open(file: int) -> os.stat_result:
        if waiting:
            waiting.pop().replace(tmp_path / "run" / "records.jsonl")
        return fstat(file)

    monkeypatch.setattr(Path, "stat", of_path)
    monkeypatch.setattr(os, "fstat", of_open)
    run.refresh()
    assert not waiting
    assert [round.test_error for round in run.rounds] == [0.1] * 4  # of the old file, which was open
    run.refresh()
    assert [round.test_error for round in run.rounds] == [0.7] * 5


@pytest.mark.parametrize(
    "damage",
    [
        {"round": 2**53 + 2},
        {"round": int("9" * 4300)},
        {"round": -1},
        {"round": True},
        {"clients": [-1, *range(1, N)]},
        {"clients": [2**64, *range(1, N)]},
        {"clients": [False, *range(1, N)]},
        {"clients": 5},
        {"closest_to": [True] * N},
        {"closest_to": [[]] * N},
        {"late": [[True, 1]]},
        {"late": 5},
        {"extra": [[1]]},
        {"alarms": [5]},
    ],
)
def test_a_damaged_round_is_refused_whole(tmp_path: Path, damage: dict[str, Any]) -> None:
    run = Audit(written(tmp_path, 2))
    judged = run.findings()
    append(tmp_path, line(3) | {"clients": list(range(1, N + 1))} | damage)  # with a new node
    for _ in range(2):
        with pytest.raises(InputError, match="damaged"):
            run.refresh()
        assert [round.round for round in run.rounds] == [1, 2]
        assert run.findings() == judged
    rewrite(tmp_path, line(1), line(2), line(3))
    assert run.refresh()
    assert run.findings() == Audit(tmp_path).findings()


def test_rounds_before_a_damaged_line_count_once_it_is_gone(tmp_path: Path) -> None:
    run = Audit(written(tmp_path, 2))
    run.findings()
    append(tmp_path, line(3), {"round": 4, "clients": 5})
    with pytest.raises(InputError, match="round 4 is damaged"):
        run.refresh()
    assert len(run.findings()[0].strip) == len(run.rounds) == 3
    records = (tmp_path / "records.jsonl").read_bytes().splitlines(keepends=True)
    os.truncate(tmp_path / "records.jsonl", sum(map(len, records[:3])))
    assert run.refresh()
    assert not run.refresh()


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"2": 5}', '{"2": {"name": "x"}, "02": {}}', '{"18446744073709551616": {}}', '{"-1": {}}', '{"x": {}}']
)
def test_damaged_names_are_refused_and_the_last_good_ones_stay(tmp_path: Path, content: str) -> None:
    written(tmp_path, 3)
    (tmp_path / "nodes.json").write_text('{"2": {"name": "hospital"}}')
    run = Audit(tmp_path)
    (tmp_path / "nodes.json").write_text(content)
    for _ in range(2):
        with pytest.raises(InputError, match=r"nodes\.json"):
            run.refresh()
        assert {finding.node: finding.name for finding in run.findings()}[2] == "hospital"
    (tmp_path / "nodes.json").write_text('{"2": {"name": "clinic"}}')
    assert run.refresh()
    assert {finding.node: finding.name for finding in run.findings()}[2] == "clinic"


def test_a_name_that_reads_like_another_node_is_shown_with_the_id(tmp_path: Path) -> None:
    written(tmp_path, 4, lambda t, i, said: scaling(t, i, said) if i == 7 else None)
    (tmp_path / "nodes.json").write_text('{"7": {"name": "1"}, "3": {"name": "3"}}')
    assert Audit(tmp_path).headline() == "1 of 10 nodes looks hostile: 1 (node 7)"
    assert found(tmp_path)[3].name == "3"


# ---------------------------------------------------------------- the command


def fltrust(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fltrust", "audit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_exit_codes(tmp_path: Path) -> None:
    assert fltrust(written(tmp_path / "fine", 3)).returncode == 0
    bad = fltrust(written(tmp_path / "bad", 3, lambda t, i, said: scaling(t, i, said) if i == 2 else None))
    assert (bad.returncode, bad.stderr) == (3, "")
    none = fltrust(tmp_path / "none")
    assert none.returncode == 2
    assert none.stderr.startswith("fltrust: ")
    assert len(none.stderr.splitlines()) == 1
    assert fltrust(tmp_path / "fine", "--csv", "--json").returncode == 2


def test_json_and_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, 3, lambda t, i, said: scaling(t, i, said) if i == 2 else None, time="=1+1")
    (tmp_path / "nodes.json").write_text(json.dumps({"2": {"name": '=HYPERLINK("http://x")'}, "3": {"name": "a,b\n"}}))
    assert audit(tmp_path, as_json=True) == 3
    content = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert content["headline"] == '1 of 10 nodes looks hostile: =HYPERLINK("http://x")'
    assert (content["nodes"][0]["node"], content["nodes"][0]["verdict"], len(content["rounds"])) == (2, "hostile", 3)
    audit(tmp_path, as_csv=True)
    first, *rest = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["node"], first["name"], first["since"], first["since_time"], first["used"], first["strip"]) == (
        "2",
        '\'=HYPERLINK("http://x")',
        "1",
        "'=1+1",
        "3",
        "UUU",
    )
    assert len(rest) == 9


def test_the_list_of_nodes_to_ban(tmp_path: Path) -> None:
    path = written(tmp_path / "run", 4, lambda t, i, said: forged(t, i, said) if i in (2, 5) else None)
    (path / "nodes.json").write_text(json.dumps({"2": {"name": "b # evil\n99"}}))
    banned = tmp_path / "banned.txt"
    banned.write_text("# by hand\n77\n5  # known\n")
    audit(path, ban=banned)
    why = "its reply was rejected in 4 of 4 rounds: shape 2, encoding 2; since round 1"
    assert banned.read_text() == f"# by hand\n77\n5  # known\n2  # b # evil\\n99, {why}\n"
    audit(path, ban=banned)
    assert len(banned.read_text().splitlines()) == 4
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["banned.txt", "run"]
    with pytest.raises(InputError, match="cannot be written"):
        write_ban([], tmp_path / "none" / "banned.txt", set())


def test_a_ban_list_loses_nothing_that_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = Audit(written(tmp_path / "run", 4, lambda t, i, said: forged(t, i, said) if i == 2 else None)).findings()
    shared, link, mine = tmp_path / "shared.txt", tmp_path / "link.txt", tmp_path / "link.txt.part"
    shared.write_text("77  # no end of the line")
    mine.write_text("precious")
    link.symlink_to(shared.name)
    read = Path.read_text

    def meanwhile(path: Path, encoding: str) -> str:
        content = read(path, encoding=encoding)
        with path.open("a") as file:
            file.write("\n88  # the operator, after the list was read\n")
        return content

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", meanwhile)
        write_ban(findings, link, set())
    assert link.is_symlink()
    assert mine.read_text() == "precious"
    entries = [line.split("#")[0].strip() for line in shared.read_text().splitlines()]
    assert [entry for entry in entries if entry] == ["77", "88", "2"]
    shared.write_text("77")
    write_ban(findings, link, set())
    assert [line.split()[0] for line in shared.read_text().splitlines()] == ["77", "2"]


def test_an_operator_who_lifts_a_ban_is_not_overruled(tmp_path: Path) -> None:
    path = written(tmp_path / "run", 4, lambda t, i, said: forged(t, i, said) if i == 2 else None)
    file, banned = tmp_path / "banned.txt", set[int]()
    write_ban(Audit(path).findings(), file, banned)
    assert file.read_text().startswith("2  #")
    file.write_text("# node 2 was repaired\n")
    write_ban(Audit(path).findings(), file, banned)
    assert file.read_text() == "# node 2 was repaired\n"


def test_no_id_is_cut_on_a_narrow_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    path = written(tmp_path, 90, lambda t, i, said: copies(t, i, said) if i in (1, 2, 3) else None)
    ids = [2**63 + 12345678901 * i for i in range(N)]
    records = [json.loads(text) for text in (path / "records.jsonl").read_text().splitlines()]
    for record in records:
        record |= {"clients": ids, "closest_to": [ids[i] for i in record["closest_to"]]}
    (path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    audit(path)
    said = capsys.readouterr().out
    plain = "".join(part.split("m", 1)[-1] if place else part for place, part in enumerate(said.split("\x1b[")))
    assert all(len(row) <= 80 for row in plain.splitlines())
    assert all(plain.split().count(f"{node}") + plain.split().count(f"{node},") >= 1 for node in ids)
    assert "..(50 rounds).." in plain
    assert "one of 3 look-alikes: " in plain


def test_long_strips_say_how_much_is_left_out() -> None:
    assert shortened("UZ" * 20, 40) == "UZ" * 20
    assert shortened("U" * 50 + "R" * 30, 40) == "U" * 13 + "..(40 rounds).." + "R" * 27


@pytest.mark.slow
def test_following_a_run_until_it_is_interrupted(tmp_path: Path) -> None:
    misbehave: Change = lambda t, i, said: scaling(t, i, said) if i == 2 else None  # noqa: E731
    path = written(tmp_path / "run", 1, misbehave)
    out = tmp_path / "out"
    with out.open("w") as file:
        command = [sys.executable, "-m", "fltrust", "audit", str(path), "--follow"]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        try:
            until(lambda: "No node looks suspicious." in out.read_text(), process)
            append(path, line(2, misbehave), line(3, misbehave))
            until(lambda: "1 of 10 nodes looks hostile: 2" in out.read_text(), process)
            process.send_signal(signal.SIGINT)
            assert process.wait() == 3
        finally:
            process.kill()
            process.wait()
    assert out.read_text().splitlines()[-1] == "after 3 rounds: 1 of 10 nodes looks hostile: 2"
    assert "Traceback" not in out.read_text()


def test_a_run_without_rounds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, 2)
    (tmp_path / "records.jsonl").rename(tmp_path / "later")
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            (tmp_path / "later").rename(tmp_path / "records.jsonl")
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr("fltrust.cli.audit.time.sleep", sleep)
    assert audit(tmp_path, follow=True) == 0
    assert looks == [1.0, 1.0]
    assert capsys.readouterr().out.splitlines()[-1] == "after 2 rounds: No node looks suspicious."
