"""The run directory of a federation: what is written survives a kill at any moment, and `fltrust audit` shows it."""

import json
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_task
from test_round import small_run

pytest.importorskip("flwr")
pytest.importorskip("safetensors")

from fake_federation import (
    MODEL,
    Client,
    FakeGrid,
    arrays_of,
    as_record,
    gone,
    honest,
    records,
    reply_with,
    round_of,
    same,
    step,
    strategy_of,
)
from flwr.app import Error, Message, MetricRecord
from flwr.supercore.task_identity import TaskIdentity
from safetensors.numpy import load_file, save_file
from test_flower_strategy import against
from test_store import full_disk

from fltrust.audit import Audit
from fltrust.cli.audit import _title, audit
from fltrust.errors import InputError
from fltrust.flower import root_of
from fltrust.flower.audit import read_model
from fltrust.flower.layout import hash_of
from fltrust.rules import FedAvg, FLTrust, Krum, Median, Rule
from fltrust.simulation import simulate
from fltrust.store.directory import RunDirectory

ROUNDS = 6


def error_of(t: int, arrays: object) -> MetricRecord:
    return MetricRecord({"test_error": 1 / (t + 1)})


def carry_on(path: Path, client: Client = honest, *, rounds: int = ROUNDS, rule: Rule | None = None, **options: object) -> None:
    TaskIdentity.run_id = 7  # what Flower sets in the process of a ServerApp
    chance = np.random.default_rng()  # another order of arrival each time

    def looks(node: int, t: int) -> int:
        return int(chance.integers(0, 4))

    strategy_of(rule, **{"directory": path, "fraction_train": 0.7, "seed": 0, **options}).start(
        FakeGrid(client, looks=looks),
        as_record(),
        num_rounds=rounds,
        timeout=30,
        evaluate_fn=error_of,
    )


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unbroken")
    carry_on(path)
    return path


def equal(one: Path, other: Path) -> bool:
    """The same rounds, the same nodes, the same verdicts and the same model, bit for bit (but not the same times and run)."""

    def without_time(path: Path) -> list[dict[str, Any]]:
        return [{name: value for name, value in record.items() if name not in ("seconds", "time", "run_id")} for record in records(path)]

    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes() and without_time(one) == without_time(
        other
    )


def test_what_is_written(unbroken: Path) -> None:
    declared = json.loads((unbroken / "experiment.json").read_text())
    assert declared["kind"] == "federation"
    assert declared["experiment"]["rule"] == {"name": "fltrust"}
    assert declared["experiment"]["arrays"] == {"weight": ["float32", [3, 4]], "bias": ["float32", [3]]}
    assert set(declared["versions"]) == {"fltrust", "flwr", "torch", "numpy", "python"}
    written = records(unbroken)
    assert [record["round"] for record in written] == list(range(1, ROUNDS + 1))
    assert [record["test_error"] for record in written] == [1 / (t + 1) for t in range(1, ROUNDS + 1)]
    for record in written:
        assert len(record["clients"]) == 4
        for column in ("shares", "trust", "cosine", "norm", "verdict", "reason", "detail"):
            assert len(record[column]) == 4
        assert datetime.fromisoformat(record["time"]).utcoffset() == timedelta(0)
        assert record["run_id"] == 7
        assert len(record["model"]) == 64
    assert len({record["model"] for record in written}) == ROUNDS
    t, arrays = read_model(unbroken / "model.safetensors")
    assert t == ROUNDS
    assert hash_of(arrays) == written[-1]["model"]
    assert declared["experiment"]["root"] == {"function": "fake_federation.root"}
    assert {name: array.shape for name, array in arrays.items()} == {name: array.shape for name, array in MODEL.items()}
    assert not list(unbroken.glob("*.part"))


def test_interrupted_after_any_round_it_ends_with_the_same_bits(tmp_path: Path, unbroken: Path) -> None:
    for stop in range(ROUNDS):
        path = tmp_path / str(stop)
        if stop:
            carry_on(path, rounds=stop)
            assert [record["round"] for record in records(path)] == list(range(1, stop + 1))
        carry_on(path)
        assert equal(path, unbroken)


def test_a_finished_run_returns_its_model_and_asks_nobody(tmp_path: Path) -> None:
    carry_on(tmp_path, rounds=2)
    grid = FakeGrid(honest)
    other = {name: array + 1 for name, array in MODEL.items()}  # the initial arrays of a run that goes on do not matter
    strategy = strategy_of(directory=tmp_path, fraction_train=0.7, seed=0)
    result = strategy.start(grid, as_record(other), num_rounds=2)
    assert not grid.sent
    assert same(
        {name: array.numpy() for name, array in result.arrays.items()}, {n: load_file(tmp_path / "model.safetensors")[n] for n in MODEL}
    )
    assert result.evaluate_metrics_serverapp[2]["test_error"] == 1 / 3


@pytest.mark.parametrize("tail", [b'{"round": 4, "clie', b'{"round": 4}\n', b'{"round": 4}\n{"rou', b"\x00\x00"])
def test_what_lies_beyond_the_model_is_redone(tmp_path: Path, unbroken: Path, tail: bytes) -> None:
    carry_on(tmp_path / "run", rounds=3)
    with (tmp_path / "run" / "records.jsonl").open("ab") as file:
        file.write(tail)
    (tmp_path / "run" / "model.safetensors.part").write_bytes(b"half a model")
    carry_on(tmp_path / "run")
    assert equal(tmp_path / "run", unbroken)
    (kept,) = (tmp_path / "run").glob("set-aside-*.jsonl")
    assert kept.read_bytes() == tail  # and nothing is lost


def test_a_missing_model_destroys_no_records(tmp_path: Path, unbroken: Path) -> None:
    carry_on(tmp_path, rounds=3)
    written, model = (tmp_path / "records.jsonl").read_bytes(), (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing, but records\.jsonl is there"):
        carry_on(tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == written
    (tmp_path / "model.safetensors").write_bytes(model)
    carry_on(tmp_path)
    assert equal(tmp_path, unbroken)


def test_an_older_model_destroys_no_records(tmp_path: Path, unbroken: Path) -> None:
    carry_on(tmp_path, rounds=2)
    older = (tmp_path / "model.safetensors").read_bytes()
    carry_on(tmp_path, rounds=4)
    written, newer = (tmp_path / "records.jsonl").read_bytes(), (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(older)
    with pytest.raises(InputError, match=r"is of round 2, but records\.jsonl goes on to round 4: put the newer one back"):
        carry_on(tmp_path)
    assert (tmp_path / "records.jsonl").read_bytes() == written
    (tmp_path / "model.safetensors").write_bytes(newer)
    carry_on(tmp_path)
    assert equal(tmp_path, unbroken)


def test_a_model_of_another_run_is_refused(tmp_path: Path) -> None:
    carry_on(tmp_path / "one", rounds=2)
    carry_on(tmp_path / "other", against, rounds=2, rule=FedAvg())
    (tmp_path / "one" / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"is not the model that records\.jsonl has for round 2"):
        carry_on(tmp_path / "one")


def test_another_root_is_refused_and_said_which(tmp_path: Path) -> None:
    examples, labels = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    linear = torch.nn.Linear(4, 3)

    def start(data: tuple[torch.Tensor, torch.Tensor], **settings: float) -> None:
        chosen: dict[str, Any] = {"lr": 0.1, "steps": 2, **settings}
        root = root_of(linear, data, **chosen)
        strategy_of(root=root, directory=tmp_path).start(FakeGrid(honest), as_record(), num_rounds=1)

    start((examples, labels))
    declared = json.loads((tmp_path / "experiment.json").read_text())["experiment"]["root"]
    assert (declared["lr"], declared["steps"], declared["batch_size"], declared["momentum"], declared["examples"]) == (
        0.1,
        2,
        None,
        0.0,
        20,
    )
    start((examples, labels))
    with pytest.raises(InputError, match=r"holds another federation \(root lr, root steps\): choose another directory$"):
        start((examples, labels), lr=0.2, steps=3)
    with pytest.raises(InputError, match=r"holds another federation \(root data\)"):
        start((examples, labels.flip(0)))
    with pytest.raises(InputError, match=r"holds another federation \(root .*function"):
        carry_on(tmp_path)


def in_another_process(path: Path) -> None:
    carry_on(path, rounds=40)


def started(path: Path) -> BaseProcess:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["fltrust.flower.strategy", "fltrust.fast.cpu", "fltrust.simulation", "hypothesis", "pytest"])
    process = processes.Process(target=in_another_process, args=(path,))
    process.start()
    return process


def recorded(path: Path) -> int:
    return (path / "records.jsonl").read_bytes().count(b"\n") if (path / "records.jsonl").exists() else 0


@pytest.mark.slow
def test_kill_minus_nine_ten_times(tmp_path: Path) -> None:
    """Each time as soon as some more rounds are recorded, wherever in the next round the server is by then."""
    carry_on(tmp_path / "unbroken", rounds=40)
    rng, reached = np.random.default_rng(0), 0
    for _ in range(10):
        process, wanted = started(tmp_path / "run"), reached + int(rng.integers(1, 4))
        while recorded(tmp_path / "run") < wanted and process.is_alive():
            time.sleep(1e-4)
        process.kill()  # SIGKILL
        process.join()
        after = read_model(tmp_path / "run" / "model.safetensors")[0]
        assert after >= reached
        reached = after
    last = started(tmp_path / "run")
    last.join()
    assert last.exitcode == 0
    assert [record["round"] for record in records(tmp_path / "run")] == list(range(1, 41))
    assert equal(tmp_path / "run", tmp_path / "unbroken")


def test_killed_before_anything_was_written(tmp_path: Path, unbroken: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / "experiment.json.part").write_bytes(b'{"key"')
    carry_on(tmp_path)
    assert equal(tmp_path, unbroken)


def test_the_initial_model_is_kept_too(tmp_path: Path, unbroken: Path) -> None:
    """A run killed in its first round goes on from the same initial model, whatever the next start brings."""
    carry_on(tmp_path, rounds=0)
    assert read_model(tmp_path / "model.safetensors")[0] == 0
    strategy = strategy_of(directory=tmp_path, fraction_train=0.7, seed=0)
    strategy.start(FakeGrid(honest), as_record({name: array + 1 for name, array in MODEL.items()}), num_rounds=ROUNDS)
    assert (tmp_path / "model.safetensors").read_bytes() == (unbroken / "model.safetensors").read_bytes()


# ---------------------------------------------------------------- what is not ours is refused


@pytest.mark.parametrize("options", [{"seed": 1}, {"rule": FedAvg()}, {"global_lr": 0.5}, {"most_value": 10.0}, {"buffers": ["bias"]}])
def test_another_federation_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    carry_on(tmp_path, rounds=1)
    before = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(InputError, match="holds another federation"):
        carry_on(tmp_path, **options)
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="not empty"):
        carry_on(tmp_path)


def test_two_servers_cannot_write_one_directory(tmp_path: Path) -> None:
    def clients(node: int, message: Message) -> Message:
        with pytest.raises(InputError, match="in use"):
            carry_on(tmp_path)
        return honest(node, message)

    carry_on(tmp_path, clients, rounds=1)


@pytest.mark.parametrize("damage", ["cut", "text", "no round", "other model", "later round"])
def test_a_damaged_model_is_named(tmp_path: Path, damage: str) -> None:
    carry_on(tmp_path, rounds=2)
    model = tmp_path / "model.safetensors"
    if damage == "cut":
        model.write_bytes(model.read_bytes()[:-5])
    elif damage == "text":
        model.write_text("hello")
    elif damage == "no round":
        save_file(MODEL, model)
    elif damage == "other model":
        save_file({**MODEL, "bias": np.zeros(4, np.float32)}, model, {"round": "2"})
    else:
        save_file(MODEL, model, {"round": "5"})
    with pytest.raises(InputError, match=r"model\.safetensors"):
        carry_on(tmp_path)


def test_every_flipped_bit_in_a_model_is_refused(tmp_path: Path) -> None:
    carry_on(tmp_path, rounds=1)
    model = tmp_path / "model.safetensors"
    whole, rng, refused = model.read_bytes(), np.random.default_rng(0), 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        model.write_bytes(damaged)
        try:
            carry_on(tmp_path, rounds=1)
        except InputError:
            refused += 1
    assert refused == 150


def test_a_full_disk_is_named_and_leaves_what_was_written_readable(tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry_on(tmp_path, rounds=2)
    full_disk(monkeypatch, "model.safetensors")
    with pytest.raises(InputError, match=rf"^{re.escape(str(tmp_path))}/model\.safetensors cannot be written: No space left on device$"):
        carry_on(tmp_path, rounds=3)
    assert not list(tmp_path.glob("*.part"))  # nothing is left behind
    monkeypatch.undo()
    carry_on(tmp_path)
    assert equal(tmp_path, unbroken)


# ---------------------------------------------------------------- `fltrust audit`


def mixed(node: int, message: Message) -> object:
    """Node 1 is honest until round 3, node 2 sends NaN, node 3 crashes now and then, node 4 is off in round 2."""
    t, before = round_of(message), arrays_of(message)
    after = step(node, t, before)
    if node == 1 and t > 3:
        after = {name: 2 * before[name] - after[name] for name in after}
    if node == 2:
        after["bias"][0] = np.nan
    if node == 3 and t % 2:
        return Message(Error(2, "RuntimeError: \x1b[31mgone\x07"), reply_to=message)
    if node == 4 and t == 2:
        return gone(message)
    return reply_with(message, after)


def audited(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    audit(path)
    said = capsys.readouterr().out
    assert said.isascii()
    assert all(line.isprintable() for line in said.splitlines())
    return said


def test_the_audit_names_everyone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy_of(directory=tmp_path, min_train_nodes=6).start(FakeGrid(mixed), as_record(), num_rounds=6)
    said = audited(tmp_path, capsys)
    assert said.startswith("2 of 6 nodes look hostile: 1, 2\nfltrust: 6 rounds, 6 nodes\n")
    found = {finding.node: finding for finding in Audit(tmp_path).findings()}
    assert {node: found[node].strip for node in (1, 2, 3, 4)} == {1: "UUUZZZ", 2: "RRRRRR", 3: "RURURU", 4: "UMUUUU"}
    assert [found[node].verdict for node in range(1, 7)] == ["hostile", "hostile", "unreliable", "ok", "ok", "ok"]
    assert (found[1].since, found[2].since) == (4, 1)
    assert datetime.fromisoformat(str(found[1].since_time)).utcoffset() == timedelta(0)
    assert found[2].evidence == ["its reply was rejected in 6 of 6 rounds: not-finite 6"]
    assert said.index("hostile: 1") < said.index("unreliable: 3") < said.index("  5  UUUUUU")


@pytest.mark.parametrize("rule", [FLTrust(), Median(), FedAvg(), Krum(tolerate=1)])
def test_every_rule_records_how_much_updates_resemble_each_other(tmp_path: Path, rule: Rule) -> None:
    """Nodes 1 and 2 send the same, and node 3 the opposite; FLTrust keeps no updates, the others do."""

    def client(node: int, message: Message) -> Message:
        return against(node, message) if node == 3 else honest(max(node, 2), message)

    strategy_of(rule, directory=tmp_path, seed=0).start(FakeGrid(client), as_record(), num_rounds=3)
    for record in records(tmp_path):
        assert record["closest"][:2] == [1.0, 1.0]
        assert record["closest_to"][:2] == [2, 1]
        assert record["peers"][2] < 0 < min(record["peers"][i] for i in (0, 1, 3, 4, 5))
        assert (record["root_norm"] is None) == (not rule.needs_root)
    found = {finding.node: finding.verdict for finding in Audit(tmp_path).findings()}
    assert found[3] == "hostile"
    assert {found[node] for node in (4, 5, 6)} == {"ok"}


def test_under_krum_the_audit_says_who_was_chosen(tmp_path: Path) -> None:
    strategy_of(Krum(tolerate=1), directory=tmp_path).start(FakeGrid(honest), as_record(), num_rounds=5)
    counts = [finding.counts for finding in Audit(tmp_path).findings()]
    assert sum(count.get("used", 0) for count in counts) == 5  # one in each round
    assert sum(count["not-chosen"] for count in counts) == 25


def test_late_replies_and_kept_rounds_are_in_the_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    carry_on(tmp_path, rule=Krum(tolerate=4), rounds=2)
    file = tmp_path / "records.jsonl"
    first, second = records(tmp_path)
    asked = first["clients"][0]
    first["verdict"][0], first["reason"][0] = "missing", "silent"
    second["late"], second["extra"] = [[asked, 1]], [[77, "stranger"], [asked, "duplicate"]]
    file.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    said = audited(tmp_path, capsys)
    assert next(finding for finding in Audit(tmp_path).findings() if finding.node == asked).strip[0] == "L"
    assert "2 rounds kept the model, the rule could not work" in said
    assert "node 77, 1 times: a reply from a node that was not asked" in said


def test_a_simulation_can_be_audited_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, task = small_run(rounds=4, malicious=2), small_task(malicious=2)
    with RunDirectory(tmp_path, run, task) as directory:
        for record in simulate(run, task):
            directory.save(record)
    assert "(really honest)" in audited(tmp_path, capsys)
    found = {finding.node: finding for finding in Audit(tmp_path).findings()}
    known = replace(found[0], verdict="hostile", since=10)
    assert _title(known) == "client 0 (really malicious): hostile since round 10"
    assert _title(replace(known, malicious=None)) == "hostile: 0, since round 10"
    assert [found[client].malicious for client in range(6)] == [True] * 2 + [False] * 4
    assert len(found[2].strip.replace(".", "")) == sum(2 in record["clients"] for record in records(tmp_path))
    assert all(len(record["peers"]) == len(record["closest_to"]) == len(record["clients"]) for record in records(tmp_path))


def _line(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        first, *rest = records(path)
        change(first)
        (path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (first, *rest)))

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no records": lambda path: (path / "records.jsonl").unlink(),
    "no experiment": lambda path: (path / "experiment.json").unlink(),
    "empty": lambda path: (path / "records.jsonl").write_bytes(b""),
    "garbage": lambda path: (path / "records.jsonl").write_bytes(b"\x1b[2J\xff\xfe\n"),
    "a list": lambda path: (path / "records.jsonl").write_text("[1, 2]\n"),
    "nested": lambda path: (path / "records.jsonl").write_text("[" * 200_000 + "\n"),
    "nested experiment": lambda path: (path / "experiment.json").write_text('{"experiment":' + "[" * 200_000),
    "experiment is text": lambda path: (path / "experiment.json").write_text('{"experiment": "\x1b[31m"}'),
    "short column": _line(lambda record: record.update(verdict=["used"])),
    "no column": _line(lambda record: record.update(trust=7)),
    "clients": _line(lambda record: record.update(clients="abcd")),
    "a client": _line(lambda record: record["clients"].__setitem__(0, "\x1b[31mnode")),
    "a list of clients": _line(lambda record: record["clients"].__setitem__(0, [1])),
    "verdict": _line(lambda record: record["verdict"].__setitem__(0, "\x1b[31mtrusted")),
    "verdict of a list": _line(lambda record: record["verdict"].__setitem__(0, ["used"])),
    "late": _line(lambda record: record.update(late=[[1, 2, 3]])),
    "late text": _line(lambda record: record.update(late="\x1b")),
    "extra": _line(lambda record: record.update(extra=[[{}, []]])),
    "alarms": _line(lambda record: record.update(alarms=["\x1b"])),
    "a client twice": _line(lambda record: record["clients"].__setitem__(0, record["clients"][1])),
    "a round twice": _line(lambda record: record.update(round=2)),
    "closest": _line(lambda record: record.update(closest_to=[[]] * 4)),
    "peers": _line(lambda record: record.update(peers=[0.5])),
    "names are text": lambda path: (path / "nodes.json").write_text("\x1b"),
    "names are a list": lambda path: (path / "nodes.json").write_text("[]"),
    "names of no node": lambda path: (path / "nodes.json").write_text('{"\\u001b[31m": {"name": "x"}}'),
    "nested names": lambda path: (path / "nodes.json").write_text('{"1":' * 100_000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_gives_one_plain_line(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    carry_on(tmp_path, rounds=2)
    DAMAGES[damage](tmp_path)
    capsys.readouterr()
    with pytest.raises(InputError) as problem:
        audit(tmp_path)
    assert str(problem.value).isprintable()
    assert str(tmp_path) in str(problem.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["reason"].__setitem__(0, "\x1b]0;owned\x07"),
        lambda record: record.update(kept="\x1b[2J[bold red]x[/]"),
        lambda record: record.update(extra=[["\x1b[2J", "\x9b31m"]]),
        lambda record: record.update(trust=[float("nan"), 10**400, True, "x"]),
        lambda record: record.update(test_error="\x1b", weight=[None] * 4),
        lambda record: record.update(peers=["1", [], {}, None], closest=[1e308, 10**400, -1e999, True], root_norm="\x1b"),
        lambda record: record.update(closest_to=["\x1b", 10**400, 1.5, None]),
        lambda record: record.update(time="\x1b[2J" * 1000, why="\u202e", seconds="\x07"),
        lambda record: record.update(alarms=[{"kind": "\x1b", "text": "\x1b[2J" * 9999, "nodes": "\x1b"}, {}]),
    ],
)
def test_what_strangers_wrote_is_never_printed_raw(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    carry_on(tmp_path, rounds=2)
    first, *rest = records(tmp_path)
    first["verdict"][0] = "rejected"
    change(first)
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (first, *rest)))
    declared = json.loads((tmp_path / "experiment.json").read_text())
    declared["experiment"]["rule"]["name"] = "\x1b[31m\u202efltrust"
    (tmp_path / "experiment.json").write_text(json.dumps(declared))
    capsys.readouterr()
    audited(tmp_path, capsys)


def test_reading_an_audit_needs_neither_flower_nor_torch() -> None:
    code = "import sys; sys.modules.update(dict.fromkeys(('flwr', 'safetensors', 'torch'))); import fltrust.cli.audit, fltrust.flower"
    subprocess.run([sys.executable, "-c", code], check=True)
