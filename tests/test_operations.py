"""What an operator can do with a running federation, and what it tells: with a grid in this process and time that stands still."""

import contextlib
import io
import json
import logging
import math
import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_federation import (
    MODEL,
    Clock,
    FakeGrid,
    arrays_of,
    as_record,
    honest,
    records,
    reply_with,
    round_of,
    run,
    same,
    strategy_of,
)

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flower_processes import free_ports
from flwr.app import Message, MetricRecord
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import given, settings
from hypothesis import strategies as st

from fltrust.errors import InputError
from fltrust.flower import Quarantine
from fltrust.flower.alarms import alarms_of
from fltrust.flower.logs import JSONFormatter, about
from fltrust.flower.membership import History, Lists, decide, fingerprint, read_names, read_subjects
from fltrust.rules import FedAvg, Krum

KEYS = {node: ec.generate_private_key(ec.SECP384R1()).public_key() for node in range(1, 7)}
PEM = {node: key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for node, key in KEYS.items()}
PRINTS = {node: fingerprint(pem) for node, pem in PEM.items()}


class KeyedGrid(FakeGrid):
    """A grid that knows its nodes' keys, as a SuperLink with node authentication does."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, public_key=PEM[node]) for node in self.nodes]


def bad(*nodes: int, rounds: Iterable[int] = range(1, 1000)) -> Callable[[int, Message], Message]:
    """A client that sends NaN as these nodes in these rounds."""

    def client(node: int, message: Message) -> Message:
        if node in nodes and round_of(message) in rounds:
            return reply_with(message, {name: np.full_like(array, np.nan) for name, array in arrays_of(message).items()})
        return honest(node, message)

    return client


def asked(grid: FakeGrid) -> dict[int, list[int]]:
    """round -> the nodes that got its message."""
    by_round: dict[int, list[int]] = {}
    for message in grid.sent.values():
        by_round.setdefault(round_of(message), []).append(message.metadata.dst_node_id)
    return by_round


def nodes_file(path: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((path / "nodes.json").read_text())
    return written


def kinds(record: dict[str, Any]) -> list[str]:
    return [alarm["kind"] for alarm in record["alarms"]]


# ---------------------------------------------------------------- names


def test_a_fingerprint_is_what_ssh_keygen_shows(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_bytes(KEYS[1].public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], capture_output=True, text=True, check=True).stdout
    assert PRINTS[1] == shown.split()[1]
    assert (
        fingerprint(b"") is fingerprint(b"\xff" * 8) is fingerprint(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n") is None
    )


def test_names_are_in_the_log_and_in_nodes_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "names.toml").write_text(f'"{PRINTS[1]}" = "hospital-a"\n2 = "Klinikum Süd"\n')
    strategy = strategy_of(directory=tmp_path / "run", names=tmp_path / "names.toml", registered=True)
    with caplog.at_level("INFO", "flwr"):
        strategy.start(KeyedGrid(bad(1, 2)), as_record(), num_rounds=1)
    nodes = nodes_file(tmp_path / "run")
    assert [nodes[str(node)]["name"] for node in (1, 2, 3)] == ["hospital-a", "Klinikum Süd", PRINTS[3]]
    assert nodes["1"] == {"name": "hospital-a", "fingerprint": PRINTS[1], "state": "active", "since": 1, "why": None}
    assert "hospital-a (node 1): not-finite" in caplog.text
    assert "Klinikum S\\xfcd (node 2): not-finite" in caplog.text
    assert "node 3" not in caplog.text


def test_without_registered_keys_nobody_believes_a_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text(f'"{PRINTS[1]}" = "hospital-a"\n')
    for options in ({"names": tmp_path / "names.toml"}, {"ban": [PRINTS[1]]}, {"allow": [PRINTS[1]]}):
        with pytest.raises(InputError, match="prove nothing without node authentication"):
            strategy_of(**options).start(KeyedGrid(honest), as_record(), num_rounds=1)
    strategy_of(directory=tmp_path / "run").start(KeyedGrid(honest), as_record(), num_rounds=1)
    assert nodes_file(tmp_path / "run")["1"] == {"name": "1", "fingerprint": None, "state": "active", "since": 1, "why": None}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('node = "a"', "'node' is neither the id nor the fingerprint"),
        ('1 = "2"', "looks like an id"),
        ("1 = 2", "must be 1 to 60 printable characters"),
        ('1 = ""', "must be 1 to 60 printable characters"),
        ('1 = " a"', "must be 1 to 60 printable characters"),
        ('1 = "a#b"', "must be 1 to 60 printable characters"),
        (r'1 = "a\u001b[2J"', "must be 1 to 60 printable characters"),
        (f'1 = "{"a" * 61}"', "must be 1 to 60 printable characters"),
        ('1 = "a"\n2 = "a"', "gives the name 'a' twice"),
        ('1 = "a"\n2 = "A"', "gives the name 'A' twice"),
        ('1 = "\\u00e9"\n2 = "e\\u0301"', "twice"),
        ('007 = "a"', "neither the id nor the fingerprint"),
        ("1 = ", "cannot be read"),
        ("[1]\na = 'b'", "must be 1 to 60 printable characters"),
        ("\0", "cannot be read"),
    ],
)
def test_a_bad_file_of_names_is_refused_in_one_line(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text(text)
    with pytest.raises(InputError, match=problem) as raised:
        run(names=tmp_path / "names.toml", rounds=1)
    assert str(raised.value).isprintable()


# ---------------------------------------------------------------- ban and allow lists


@pytest.mark.parametrize("ban", [[2, 5], ["2", "5"], [PRINTS[2], "five"], ("2", PRINTS[5])], ids=["ids", "texts", "name", "fingerprint"])
def test_banned_nodes_are_not_asked_and_the_model_is_the_others(ban: list[Any], tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text('5 = "five"')
    grid = KeyedGrid(honest)
    strategy = strategy_of(directory=tmp_path / "run", ban=ban, names=tmp_path / "names.toml", registered=True)
    result = strategy.start(grid, as_record(), num_rounds=3)
    assert asked(grid) == {t: [1, 3, 4, 6] for t in (1, 2, 3)}
    alone, _ = run(nodes=[1, 3, 4, 6], rounds=3)
    assert same({name: array.numpy() for name, array in result.arrays.items()}, alone)
    for record in records(tmp_path / "run"):
        assert record["clients"] == [1, 2, 3, 4, 5, 6]
        assert record["verdict"] == ["used", "banned", "used", "used", "banned", "used"]
        assert record["reason"] == [None, "banned", None, None, "banned", None]
        assert [record["shares"][i] for i in (1, 4)] == [0, 0]
        assert record["alarms"] == []
    assert dict(result.train_metrics_clientapp[1])["banned"] == 2
    assert {node for node, entry in nodes_file(tmp_path / "run").items() if entry["state"] == "banned"} == {"2", "5"}


def test_an_operator_bans_and_forgives_while_it_runs(tmp_path: Path) -> None:
    ban = tmp_path / "ban.txt"
    ban.write_text("# nobody yet\n")
    lines = {1: "2  # it sends nonsense\n\n", 2: "2\n3\n", 3: "# nobody\n"}

    def evaluate(t: int, arrays: object) -> None:
        ban.write_text(lines.get(t, ban.read_text()))

    _, grid = run(directory=tmp_path / "run", ban=str(ban), rounds=5, evaluate_fn=evaluate)
    everybody = [1, 2, 3, 4, 5, 6]
    assert asked(grid) == {1: everybody, 2: [1, 3, 4, 5, 6], 3: [1, 4, 5, 6], 4: everybody, 5: everybody}
    nodes = nodes_file(tmp_path / "run")
    assert [nodes[str(node)]["since"] for node in (1, 2, 3)] == [1, 4, 4]
    assert all(kinds(record) == [] for record in records(tmp_path / "run"))


@pytest.mark.parametrize("what", ["ban", "allow", "names"])
@pytest.mark.parametrize("damage", ["gone", "misspelt", "binary", "folder", "empty", "blank"])
def test_a_file_that_vanishes_or_is_damaged_leaves_what_it_said_in_force(
    what: str, damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "list"
    good = {"ban": "2\n", "allow": "1\n3\n4\n5\n6\n", "names": '2 = "two"\n'}[what]
    file.write_text(good)
    other = ["two"] if what == "names" else ()

    def evaluate(t: int, arrays: object) -> None:
        if t == 1:
            file.unlink()
            if damage == "folder":
                file.mkdir()
            elif damage != "gone":
                file.write_bytes({"misspelt": b"hospitl-a\n", "binary": b"\xff\xfe\0", "empty": b"", "blank": b" \n"}[damage])
        if t == 3:
            if damage == "folder":
                file.rmdir()
            file.write_text(good)

    options = {what: file} if what != "names" else {"names": file, "ban": other}
    _, grid = run(directory=tmp_path / "run", rounds=4, evaluate_fn=evaluate, **options)
    assert asked(grid) == {t: [1, 3, 4, 5, 6] for t in (1, 2, 3, 4)}
    written = records(tmp_path / "run")
    assert [kinds(record) for record in written] == [[], ["list-unreadable"], ["list-unreadable"], []]
    assert str(file) in written[1]["alarms"][0]["text"]
    assert "its last valid content stays in force" in caplog.text

    file.unlink()
    with pytest.raises(InputError, match=re.escape(str(file))):  # a server that starts has nothing to keep
        run(directory=tmp_path / "run", rounds=5, **options)


def test_an_allow_list_keeps_all_others_out_and_a_ban_stands_above_it(tmp_path: Path) -> None:
    _, grid = run(directory=tmp_path, allow=[1, 3, 5], ban=[5], rounds=2)
    assert asked(grid) == {1: [1, 3], 2: [1, 3]}
    for record in records(tmp_path):
        assert record["reason"] == [None, "not-allowed", None, "not-allowed", "banned", "not-allowed"]
        assert {record["verdict"][i] for i in (1, 3, 4, 5)} == {"banned"}


def test_a_crowd_of_strangers_does_not_fill_the_records() -> None:
    may, out = decide(dict.fromkeys(range(1, 5001)), 1, Lists(allow=frozenset({"4999", "5000"}), ban=frozenset({"4000"})), History())
    assert may == [4999, 5000]
    assert len(out) == 1001
    assert 4000 in out


@pytest.mark.parametrize(
    "entry", ["hospital-a", "-1", "1.5", "SHA256:short", "\x1b[2J", "1" * 21, "", "007", "\uff11", "\u0661", str(2**64)]
)
def test_an_entry_that_names_nobody_is_refused(entry: str) -> None:
    with pytest.raises(InputError, match="no node's id, fingerprint or name") as raised:
        run(ban=[entry], rounds=1)
    assert str(raised.value).isprintable()


def test_a_quarantine_stays_a_number_of_rounds_that_can_be_written() -> None:
    """Of a node that is asked all the same, because too few others are there, and whose every reply is rejected."""
    history = History(Quarantine(after=1, rounds=1))
    for t in range(1, 20_000):
        history.add({"round": t, "clients": [1], "verdict": ["rejected"], "reason": ["shape"]})
    assert len(history.standing[1].detail) < 60


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_list_are_a_list_or_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "list"
    file.write_bytes(content)
    for read in (lambda: read_subjects(file, {}, "ban"), lambda: read_names(file)):
        with contextlib.suppress(InputError):  # and nothing else
            assert all(isinstance(subject, str) for subject in read())


def test_a_banned_node_takes_nobodys_place(tmp_path: Path) -> None:
    """Of a sample, and of the nodes that must be there."""
    _, grid = run(nodes=range(1, 21), ban=range(1, 11), fraction_train=0.5, rounds=3)
    assert all(len(nodes) == 5 and min(nodes) > 10 for nodes in asked(grid).values())


def test_with_too_few_nodes_left_it_waits_and_says_why_in_one_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    class Joining(FakeGrid):
        def get_node_ids(self) -> Iterable[int]:
            return self.nodes if clock.now < 1100 else [*self.nodes, 7, 8]

    with caplog.at_level("INFO", "flwr"):
        strategy = strategy_of(ban=[1, 2, 3, 4], min_available_nodes=4, poll=1.0)
        strategy.start(Joining(honest), as_record(), num_rounds=1)
    assert clock.now == 1100
    (said,) = [record for record in caplog.records if "waiting for nodes" in record.message]
    assert said.message == "waiting for nodes: 2 may take part, 4 banned; 4 must"
    assert said.levelname == "WARNING"


def test_nobody_waits_for_members_that_were_banned_or_are_in_quarantine(tmp_path: Path, clock: Clock) -> None:
    """Otherwise each further round would begin a deadline late."""
    (tmp_path / "ban.txt").write_text("# nobody\n")

    def evaluate(t: int, arrays: object) -> None:
        if t == 1:
            (tmp_path / "ban.txt").write_text("1\n")

    options: dict[str, Any] = {
        "min_available_nodes": 6,
        "ban": tmp_path / "ban.txt",
        "quarantine": 1,
        "directory": tmp_path / "run",
        "poll": 1.0,
    }
    _, grid = run(bad(2), rounds=4, evaluate_fn=evaluate, **options)
    assert asked(grid) == {1: [1, 2, 3, 4, 5, 6], **{t: [3, 4, 5, 6] for t in (2, 3, 4)}}
    assert clock.now == 1000
    run(bad(2), rounds=5, **options)  # nor when it resumes
    assert clock.now == 1000


# ---------------------------------------------------------------- quarantine


def test_rejected_replies_bring_a_node_into_quarantine_each_time_for_twice_as_long(tmp_path: Path) -> None:
    _, grid = run(bad(3), rounds=20, quarantine=Quarantine(after=2, rounds=3), directory=tmp_path)
    # asked in rounds 1, 2; out for 3; asked in 6, 7; out for 6; asked in 14, 15; out for 12
    assert [t for t, nodes in asked(grid).items() if 3 in nodes] == [1, 2, 6, 7, 14, 15]
    written = records(tmp_path)
    verdicts = [record["verdict"][2] for record in written]
    assert (
        verdicts == ["rejected"] * 2 + ["quarantined"] * 3 + ["rejected"] * 2 + ["quarantined"] * 6 + ["rejected"] * 2 + ["quarantined"] * 5
    )
    assert written[2]["detail"][2] == "asked again in round 6"
    assert [t for t, record in enumerate(written, 1) if "quarantined" in kinds(record)] == [2, 7, 15]
    assert written[1]["alarms"] == [
        {"kind": "quarantined", "text": "too many replies of node 3 were rejected: it is asked again in round 6", "nodes": [3]}
    ]
    entry = nodes_file(tmp_path)["3"]
    assert (entry["state"], entry["since"], entry["why"]) == ("quarantined", 16, "asked again in round 28")
    assert all(record["verdict"][i] in ("used", "zero-trust") for record in written for i in (0, 1, 3, 4, 5))


def test_quarantine_counts_the_last_rounds_asked_not_a_whole_life() -> None:
    """Three of six: a node that alternates is caught, one that fails every third time is not."""
    _, grid = run(bad(3, rounds=range(1, 100, 2)), rounds=8, quarantine=3)
    assert [t for t, nodes in asked(grid).items() if 3 in nodes] == [1, 2, 3, 4, 5]
    _, grid = run(bad(3, rounds=range(1, 100, 3)), rounds=20, quarantine=3)
    assert all(3 in nodes for nodes in asked(grid).values())


def test_silence_is_no_reason_for_quarantine(clock: Clock) -> None:
    _, grid = run(lambda node, message: None if node == 3 else honest(node, message), rounds=6, timeout=10, quarantine=1, poll=1.0)
    assert all(3 in nodes for nodes in asked(grid).values())


def test_without_quarantine_nodes_are_asked_whatever_they_sent(tmp_path: Path) -> None:
    _, grid = run(bad(3), rounds=12, directory=tmp_path)
    assert all(3 in nodes for nodes in asked(grid).values())
    assert "quarantine" not in (tmp_path / "experiment.json").read_text()  # as in directories of earlier versions


def test_a_fault_that_all_nodes_share_does_not_stop_the_federation_for_good(tmp_path: Path) -> None:
    _, grid = run(bad(*range(1, 7), rounds=range(1, 3)), rounds=6, quarantine=Quarantine(after=1, rounds=100), ban=[6], directory=tmp_path)
    # As many as min_train_nodes, those first whose quarantine would end first.
    assert asked(grid) == {1: [1, 2, 3, 4, 5], 2: [1, 2], **{t: [3, 4] for t in range(3, 7)}}
    assert [record["verdict"][2:4] for record in records(tmp_path)][2:] == [["used", "used"]] * 4
    assert {record["verdict"][5] for record in records(tmp_path)} == {"banned"}


@pytest.mark.parametrize("kill", range(1, 12))
def test_a_kill_changes_neither_who_is_asked_nor_a_bit(kill: int, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def evaluate(t: int, arrays: object) -> MetricRecord:
        if t == kill and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            raise Killed
        return MetricRecord({"test_error": 0.5})

    def fresh(name: str) -> list[dict[str, Any]]:
        return [{key: value for key, value in r.items() if key not in ("time", "seconds")} for r in records(tmp_path / name)]

    options: dict[str, Any] = {
        "quarantine": Quarantine(2, 2),
        "ban": [6],
        "rounds": 12,
        "fraction_train": 0.8,
        "seed": 0,
        "evaluate_fn": evaluate,
    }
    client = bad(3, 4, rounds=(1, 2, 3, 6, 7, 9, 11))
    with pytest.raises(Killed):
        run(client, directory=tmp_path / "killed-run", **options)
    arrays, _ = run(client, directory=tmp_path / "killed-run", **options)
    expected, _ = run(client, directory=tmp_path / "run", **options)
    assert same(arrays, expected)
    assert fresh("killed-run") == fresh("run")
    assert nodes_file(tmp_path / "killed-run") == nodes_file(tmp_path / "run")
    assert {verdict for record in fresh("run") for verdict in record["verdict"]} == {"used", "rejected", "banned", "quarantined"}


def test_records_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    run(rounds=2, directory=tmp_path)
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    for damage in ({"verdict": ["used"]}, {"clients": "abc"}, {"clients": [[1]] * 6}, {"verdict": [1] * 6}, {"reason": None}):
        (tmp_path / "records.jsonl").write_text(json.dumps(json.loads(lines[0]) | damage) + "\n" + lines[1] + "\n")
        with pytest.raises(InputError, match="round 1 is damaged"):
            run(rounds=3, directory=tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"1": 5, "x": {"since": 1}, "2": {"since": 1, "fingerprint": [1]}}'])
def test_a_damaged_nodes_json_is_made_anew(content: str, tmp_path: Path) -> None:
    run(rounds=1, directory=tmp_path)
    (tmp_path / "nodes.json").write_text(content)
    run(rounds=2, directory=tmp_path)
    assert set(nodes_file(tmp_path)) == {"1", "2", "3", "4", "5", "6"}
    assert all(entry["fingerprint"] is None for entry in nodes_file(tmp_path).values())


def test_strangers_that_left_are_forgotten_and_members_are_not(tmp_path: Path) -> None:
    class Rotating(FakeGrid):
        def get_node_ids(self) -> Iterable[int]:
            t = max((round_of(message) for message in self.sent.values()), default=0) + 1
            return [1, 2, 3, 10 * t, 10 * t + 1] if t < 3 else [1, 2, 30]

    strategy_of(directory=tmp_path, allow=[1, 2, 3]).start(Rotating(honest), as_record(), num_rounds=3)
    assert set(nodes_file(tmp_path)) == {"1", "2", "3", "30"}


def test_directories_of_earlier_versions_resume(tmp_path: Path) -> None:
    """They have neither alarms nor nodes.json."""
    pytest.importorskip("prometheus_client")
    run(rounds=3, directory=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    for old in lines:
        del old["alarms"]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(old) + "\n" for old in lines))
    (tmp_path / "nodes.json").unlink()
    (port,) = free_ports(1)
    arrays, _ = run(rounds=5, directory=tmp_path, quarantine=2, metrics_port=port)
    assert same(arrays, run(rounds=5)[0])


def test_nodes_json_is_written_only_when_something_changes(tmp_path: Path) -> None:
    stamps = []

    def evaluate(t: int, arrays: object) -> None:
        if t:
            stamps.append((tmp_path / "nodes.json").stat().st_ino)

    run(rounds=4, directory=tmp_path, evaluate_fn=evaluate)
    assert len(set(stamps)) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"quarantine": 0}, "quarantine needs at least one"),
        ({"quarantine": -1}, "quarantine needs at least one"),
        ({"log": "xml"}, "log must be 'text' or 'json'"),
        ({"metrics_port": 0}, "metrics_port must be 1 to 65535"),
        ({"metrics_port": 65536}, "metrics_port must be 1 to 65535"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        strategy_of(**options)


# ---------------------------------------------------------------- alarms


def line(t: int, verdicts: Iterable[str] = ("used",) * 6, kept: str | None = None, shares: list[float] | None = None) -> dict[str, Any]:
    verdicts = list(verdicts)
    clients = list(range(1, len(verdicts) + 1))
    even = [1 / max(1, verdicts.count("used")) if verdict == "used" else 0.0 for verdict in verdicts]
    return {"round": t, "clients": clients, "verdict": verdicts, "kept": kept, "why": kept, "shares": None if kept else shares or even}


def raised(*lines: dict[str, Any]) -> list[str]:
    return [alarm["kind"] for alarm in alarms_of(lines, str)]


def test_a_healthy_federation_raises_no_alarm(tmp_path: Path) -> None:
    run(rounds=8, directory=tmp_path)
    assert all(record["alarms"] == [] for record in records(tmp_path))


def test_a_root_that_is_unusable_raises_an_alarm_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(rounds=3, directory=tmp_path, root=lambda arrays: {name: 0 * array for name, array in arrays.items()})
    assert [kinds(record) for record in records(tmp_path)] == [["root-unusable"], ["root-unusable"], ["root-unusable", "kept"]]
    (warning, *_) = [record for record in caplog.records if "alarm" in record.message]
    assert warning.levelname == "WARNING"
    assert warning.message.startswith("round 1: alarm, root-unusable: ")


def test_nobody_trusted_twice_raises_an_alarm_and_three_kept_rounds_another() -> None:
    lost, other = (line(t, ["zero-trust"] * 6, "nobody-trusted") for t in (2, 3))
    assert raised(line(1), lost) == []
    assert raised(line(1), lost, other) == ["nobody-trusted"]
    assert raised(lost, line(3), line(4, kept="nobody-trusted")) == []
    assert raised(lost, other, line(4, ["missing"] * 6, "too-few-replies")) == ["kept"]
    assert "the last 11 rounds or more kept" in alarms_of([line(t, kept="rule") for t in range(1, 12)], str)[0]["text"]


def test_a_node_with_more_than_half_of_the_shares_raises_an_alarm(tmp_path: Path) -> None:
    alarms = alarms_of([line(1, ["used"] * 4, shares=[0.1, 0.6, 0.2, 0.1])], lambda node: f"hospital-{node}")
    assert alarms == [{"kind": "one-node-dominates", "text": "hospital-2 has 60% of the shares", "nodes": [2]}]
    assert raised(line(1, ["used"] * 4, shares=[0.2, 0.5, 0.2, 0.1])) == []
    assert raised(line(1, ["used", "zero-trust", "zero-trust"], shares=[1.0, 0.0, 0.0])) == ["one-node-dominates"]
    assert raised(line(1, ["used"] * 3, shares=[0.3, 0.1, 0.1])) == ["one-node-dominates"]  # where the server has a share too
    assert raised(line(1, ["used", "used"], shares=[0.6, 0.4])) == []  # of two, one always has
    run(rule=Krum(1), rounds=2, directory=tmp_path)  # Krum chooses one on purpose
    assert all(record["alarms"] == [] for record in records(tmp_path))


def test_falling_replies_raise_an_alarm_and_bans_do_not() -> None:
    usual = [line(t) for t in range(1, 6)]
    few = ["used"] * 2
    assert raised(*usual, line(6, [*few, *["missing"] * 4])) == ["replies-falling"]
    assert raised(*usual, line(6, [*few, *["rejected"] * 4])) == ["replies-falling"]
    assert raised(*usual, line(6, few)) == ["replies-falling"]  # the others left
    assert raised(*usual, line(6, ["used"] * 3 + ["missing"] * 3)) == []
    assert raised(*usual, line(6, [*few, *["banned"] * 3, "quarantined"])) == []
    assert raised(*usual[:2], line(3, few)) == []  # nothing is usual yet


def test_alarms_do_not_depend_on_a_restart(tmp_path: Path) -> None:
    client = bad(1, 2, 3, 4, rounds=(6, 7))
    for path, stops in (("once", [8]), ("often", range(1, 9))):
        for rounds in stops:
            run(client, FedAvg(), rounds=rounds, directory=tmp_path / path)
    once, often = ([record["alarms"] for record in records(tmp_path / path)] for path in ("once", "often"))
    assert once == often
    assert [t for t, alarms in enumerate(once, 1) if alarms] == [6, 7]


# ---------------------------------------------------------------- metrics


def scrape(port: int) -> dict[tuple[str, str], float]:
    """(name, value of its only label) -> value, by prometheus_client's own parser."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=600) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {(sample.name, "".join(sample.labels.values())): sample.value for family in families for sample in family.samples}


def test_prometheus_can_ask_a_run(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    (port,) = free_ports(1)
    (tmp_path / "names.toml").write_text(r'3 = "a\"b\\c"')
    seen: list[dict[tuple[str, str], float]] = []

    def evaluate(t: int, arrays: object) -> MetricRecord:
        seen.append(scrape(port))  # after t - 1 rounds
        return MetricRecord({"test_error": t / 10})

    options: dict[str, Any] = {"metrics_port": port, "names": tmp_path / "names.toml", "ban": [6], "directory": tmp_path / "run"}
    options |= {"quarantine": Quarantine(2, 2), "evaluate_fn": evaluate}
    run(bad(3), rounds=4, **options)
    first, last = seen[0], seen[-1]
    assert first["fltrust_rounds_total", ""] == 0
    assert math.isnan(first["fltrust_test_error", ""])
    assert first["fltrust_alarms_total", "kept"] == 0
    assert last["fltrust_rounds_total", ""] == last["fltrust_round", ""] == last["fltrust_round_seconds_count", ""] == 3
    assert last["fltrust_test_error", ""] == 0.3
    assert last["fltrust_replies_total", "used"] == 12
    assert last["fltrust_replies_total", "rejected"] == last["fltrust_node_rejected_total", 'a"b\\\\c (node 3)'] == 2
    assert ("fltrust_replies_total", "banned") not in last
    assert last["fltrust_alarms_total", "quarantined"] == 1
    assert (last["fltrust_nodes", "asked"], last["fltrust_nodes", "banned"], last["fltrust_nodes", "quarantined"]) == (4, 1, 1)
    assert 0.25 <= last["fltrust_largest_share", ""] < 0.5
    with pytest.raises(OSError, match="refused"):
        scrape(port)  # the run is over

    seen.clear()
    run(bad(3), rounds=5, **options)  # it resumes after round 4, and goes on counting
    assert seen[0]["fltrust_rounds_total", ""] == 4
    assert seen[0]["fltrust_alarms_total", "quarantined"] == 1


def test_many_nodes_do_not_make_many_series() -> None:
    pytest.importorskip("prometheus_client")
    (port,) = free_ports(1)
    seen = []
    nodes = range(1, 301)
    run(bad(*range(1, 251)), nodes=nodes, rounds=2, metrics_port=port, evaluate_fn=lambda t, arrays: seen.append(scrape(port)))
    rejected = {label: value for (name, label), value in seen[-1].items() if name == "fltrust_node_rejected_total"}
    assert len(rejected) == 101
    assert rejected["others"] == 150
    assert len(seen[-1]) < 400


def test_a_port_that_is_taken_is_one_line() -> None:
    pytest.importorskip("prometheus_client")
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"metrics cannot be served at 127.0.0.1:{port}"):
            run(rounds=1, metrics_port=port)


# ---------------------------------------------------------------- logs


@given(st.text(), st.text())
def test_a_line_of_json_stays_one_line_whatever_is_in_it(text: str, kind: str) -> None:
    record = logging.LogRecord("flwr", logging.WARNING, "", 0, "%s", (text,), None)
    record.__dict__.update(about("alarm", round=3, node=2**64 - 1, kind=kind))
    said = JSONFormatter().format(record)
    assert said.isascii()
    assert said.isprintable()
    read = json.loads(said)
    assert read["text"] == text.strip()
    assert (read["level"], read["event"], read["round"], read["node"], read["kind"]) == ("WARNING", "alarm", 3, 2**64 - 1, kind)
    assert read["time"].endswith("+00:00")


def test_with_json_every_line_of_a_run_is_an_object(tmp_path: Path) -> None:
    hostile = '\n\x1b[2J{"level": "INFO"}\r\u2028'
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("flwr")
    before = [h.format for h in logger.handlers]
    logger.addHandler(handler)

    def client(node: int, message: Message) -> Message:
        if node == 3:
            return reply_with(message, {hostile: np.zeros(1)})
        return honest(node, message)

    try:
        run(client, rounds=3, log="json", ban=[1], quarantine=2, evaluate_fn=lambda t, arrays: logger.info("between\nrounds"))
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        stream.truncate(0)
        logger.info("after it")
        assert stream.getvalue().strip("\0\n") == "after it"
    finally:
        logger.removeHandler(handler)
    assert [h.format for h in logger.handlers] == before
    events = [line["event"] for line in lines]
    assert [line["round"] for line in lines if line["event"] == "round"] == [1, 2, 3]
    assert {(line["round"], line["node"]) for line in lines if line["event"] == "rejected"} == {(1, 3), (2, 3)}
    assert [(line["round"], line["node"]) for line in lines if line["event"] == "banned"] == [(1, 1)]
    assert [(line["round"], line["node"], line["kind"]) for line in lines if line["event"] == "alarm"] == [(2, 3, "quarantined")]
    assert events.count("log") >= 3
    assert stream.getvalue().isprintable() or "\x1b" not in stream.getvalue()


def test_the_model_is_the_same_with_and_without_an_operator(tmp_path: Path) -> None:
    plain_run, _ = run(bad(3), rounds=3)
    assert same(plain_run, run(bad(3), rounds=3, log="json", allow=range(1, 7), quarantine=9, directory=tmp_path)[0])
    assert not same(plain_run, MODEL)
