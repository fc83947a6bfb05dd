"""Every kind of hostile node against RobustStrategy and against Flower's own FedAvg: the real apps, in one process."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower_processes import new_app, play
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.exception import AppExitException
from flwr.supercore.task_identity import TaskIdentity

from fltrust.errors import InputError
from fltrust.flower.hostile import KINDS, misbehave, poisoned

NODES, MALICIOUS, ROUNDS = 10, 4, 3
IN_PROCESS = [kind for kind in KINDS if kind not in ("silent", "crash")]  # these two need a process of their own

# What becomes of Flower's own FedAvg. The unharmed: an attack that is aimed at FLTrust, honest arrays, and a node that is left out.
UNHARMED = {"optimal-adaptive", "other-round", "error"}
RUINED = {"label-flip", "scaling", "krum", "trim", "adaptive", "boast", "alternating", "nan", "infinity", "huge", "zero"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_app(tmp_path_factory.mktemp("robust") / "app")


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_app(tmp_path_factory.mktemp("fedavg") / "app", fedavg=True)


@pytest.fixture(scope="module")
def honest_error(app: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    records = played(app, tmp_path_factory.mktemp("honest") / "run")
    assert all(verdict == "used" for record in records for verdict in record["verdict"])
    assert records[-1]["test_error"] < 0.2  # chance is 0.9
    return float(records[-1]["test_error"])


def played(app: Path, directory: Path, **config: str | int) -> list[dict[str, Any]]:
    play(app, directory, NODES, rounds=ROUNDS, **config)
    return [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", IN_PROCESS)
def test_fltrust_learns_as_well_as_among_honest_nodes(kind: str, app: Path, honest_error: float, tmp_path: Path) -> None:
    records = played(app, tmp_path / "run", malicious=MALICIOUS, hostile=kind)
    assert records[-1]["test_error"] <= honest_error + 0.02
    for record in records:
        assert record["verdict"][MALICIOUS:] == ["used"] * (NODES - MALICIOUS)  # no honest node is blamed
        if KINDS[kind].reason:
            assert record["verdict"][:MALICIOUS] == ["rejected"] * MALICIOUS
            assert record["reason"][:MALICIOUS] == [KINDS[kind].reason] * MALICIOUS
    if kind in ("label-flip", "krum", "boast"):
        assert all(verdict == "zero-trust" for record in records for verdict in record["verdict"][:MALICIOUS])
    if kind == "scaling":  # it is trusted as far as its direction goes, but its length gives it away and gains it nothing
        assert all(min(record["norm"][:MALICIOUS]) > 5 * max(record["norm"][MALICIOUS:]) for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("kind", IN_PROCESS)
def test_flowers_own_fedavg_is_ruined_or_dies(kind: str, fedavg: Path, honest_error: float, tmp_path: Path) -> None:
    def run() -> float:
        play(fedavg, tmp_path / "run", NODES, rounds=ROUNDS, malicious=MALICIOUS, hostile=kind)
        return float(json.loads((tmp_path / "run" / "errors.jsonl").read_text().splitlines()[-1])["test_error"])

    if kind in RUINED:
        assert run() > honest_error + 0.03
    elif kind in UNHARMED:
        assert run() < honest_error + 0.02
    else:
        with pytest.raises((ValueError, TypeError, RuntimeError, AppExitException)):
            run()


# ---------------------------------------------------------------- the mod itself


def asked(t: int = 1, message_type: str = "train") -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    arrays = ArrayRecord({"weight": Array(np.arange(6, dtype=np.float32).reshape(2, 3)), "steps": Array(np.array([7]))})
    return Message(RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": t})}), 1, message_type)


def node(i: int, **run_config: bool | float | int | str) -> Context:
    return Context(1, 1, {"partition-id": i, "num-partitions": 10}, RecordDict(), run_config)


def echo(message: Message, context: Context) -> Message:
    """An app that learns nothing: the arrays plus the node's number."""
    content = RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"num-examples": 5})})
    for name, array in message.content.array_records["arrays"].items():
        content.array_records["arrays"][name] = Array(array.numpy() + array.numpy().dtype.type(context.node_config["partition-id"]))
    return Message(content, reply_to=message)


def arrays_of(message: Message) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}


@pytest.mark.parametrize(
    ("context", "message_type"),
    [
        (node(4, malicious=4, hostile="nan"), "train"),
        (node(0, malicious=0, hostile="nan"), "train"),
        (node(0, malicious=4, hostile=""), "train"),
        (node(0), "train"),
        (node(0, malicious=4, hostile="nan"), "evaluate"),
    ],
)
def test_honest_nodes_and_other_messages_pass_untouched(context: Context, message_type: str) -> None:
    message = asked(message_type=message_type)
    reply = echo(message, context)
    assert misbehave(message, context, lambda *given: reply if given == (message, context) else pytest.fail("changed")) is reply


def test_an_unknown_kind_is_refused_by_every_node() -> None:
    with pytest.raises(InputError, match="unknown kind of hostile node 'nann'; known: label-flip"):
        misbehave(asked(), node(9, malicious=4, hostile="zero nann"), echo)


def test_a_node_that_cannot_know_whether_it_is_hostile_says_so() -> None:
    context = Context(1, 1, {}, RecordDict(), {"malicious": 4, "hostile": "nan"})
    with pytest.raises(InputError, match="this node has no partition-id: see --node-config"):
        misbehave(asked(), context, echo)


def test_what_the_app_remembers_is_kept_unless_it_ran_in_place_of_another() -> None:
    def counting(message: Message, context: Context) -> Message:
        context.state["count"] = MetricRecord({"of": int(context.node_config["partition-id"])})
        return echo(message, context)

    context = node(1, malicious=3, hostile="krum")
    misbehave(asked(), context, counting)
    assert context.state["count"] == MetricRecord({"of": 1})


def test_hostile_nodes_can_begin_later_and_alternate() -> None:
    context = node(1, malicious=2, hostile="alternating", **{"hostile-from": 3})
    honest = arrays_of(echo(asked(), context))["weight"]
    sent = [arrays_of(misbehave(asked(t), context, echo))["weight"] for t in range(1, 7)]
    assert [bool((weight == honest).all()) for weight in sent] == [True, True, False, True, False, True]


def test_hostile_nodes_take_several_kinds_in_turn() -> None:
    """Three kinds, two hostile nodes: zero nan | huge zero | nan huge."""
    kinds = []
    for t in (1, 2, 3):
        for i in (0, 1):
            sent = arrays_of(misbehave(asked(t), node(i, malicious=2, hostile="zero nan huge"), echo))["weight"]
            kinds.append("nan" if np.isnan(sent).any() else "huge" if sent.max() > 1e37 else "zero")
    assert kinds == ["zero", "nan", "huge", "zero", "nan", "huge"]


def test_arrays_that_are_not_trained_stay_whole() -> None:
    for kind in ("nan", "huge", "boast", "trim"):
        assert arrays_of(misbehave(asked(), node(1, malicious=3, hostile=kind), echo))["steps"].dtype.kind == "i"


def test_the_trim_attack_is_worked_out_from_all_hostile_nodes() -> None:
    """Updates 0, 1, 2: mean 1, deviation sqrt(2/3); the attack sends mean - r deviation, r in [3, 4], from every one of them."""
    for i in range(3):
        sent = arrays_of(misbehave(asked(), node(i, malicious=3, hostile="trim"), echo))["weight"] - arrays_of(asked())["weight"]
        assert (sent <= 1 - 3 * math.sqrt(2 / 3) + 1e-5).all()
        assert (sent >= 1 - 4 * math.sqrt(2 / 3) - 1e-5).all()


def test_data_are_poisoned_only_by_nodes_that_do_so() -> None:
    images, labels = np.zeros((3, 1, 28, 28), np.float32), np.array([0, 4, 9])
    seen = []

    def app(message: Message, context: Context) -> Message:
        seen.append(poisoned(images, labels, 10))
        return echo(message, context)

    for kind in ("label-flip", "scaling", "nan"):
        misbehave(asked(), node(0, malicious=1, hostile=kind), app)
    assert seen[0][1].tolist() == [9, 5, 0]
    assert seen[1][1].tolist() == [0, 4, 9, 0, 0, 0]
    assert seen[1][0][3:].sum() == 12  # four pixels in each of the three copies
    assert seen[2] == (images, labels)
    assert poisoned(images, labels, 10) == (images, labels)


def test_an_app_that_does_not_let_its_data_be_poisoned_is_told_so() -> None:
    with pytest.raises(InputError, match=r"call fltrust.flower.hostile.poisoned"):
        misbehave(asked(), node(0, malicious=1, hostile="label-flip"), echo)


def test_a_pickled_reply_would_end_the_process_that_unpickles_it() -> None:
    """So that the test above, in which it does not, means something."""
    reply = misbehave(asked(), node(0, malicious=1, hostile="pickle"), echo)
    data = reply.content.array_records["arrays"]["weight"].data
    done = subprocess.run([sys.executable, "-c", "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"], input=data)
    assert done.returncode == 86


def test_an_honest_node_does_not_wait_for_torch() -> None:
    code = "import sys, fltrust.flower.hostile; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
