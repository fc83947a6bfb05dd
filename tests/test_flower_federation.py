"""Federations of real processes on this machine. With FLTRUST_SLOW=1 also the long ones: each hostile kind by itself, ten kills.

About four minutes on two cores; most of it is Flower's: each node starts a process in each round, and looks for work every three seconds.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import MOST_SECONDS

pytest.importorskip("flwr")

from flower_processes import BIN, TEMPLATE, Federation, new_app, play_alone
from safetensors.numpy import load_file

from fltrust.audit import Audit
from fltrust.cli.federation import create
from fltrust.errors import InputError
from fltrust.flower.hostile import KINDS

SLOW = bool(os.environ.get("FLTRUST_SLOW"))
NODES, MALICIOUS = 10, 4
LIKE_ANOTHER = {"infinity", "pickle", "missing-array", "zero", "boast", "trim", "adaptive", "optimal-adaptive"}  # to the transport
IN_TURN = [kind for kind in KINDS if kind != "alternating" and (SLOW or kind not in LIKE_ANOTHER)]  # it takes turns with itself
ROUNDS = len(IN_TURN) // MALICIOUS
SECURE = 4
assert IN_TURN[-2:] == ["silent", "crash"]  # they make a node miss what follows, so they come last
assert len(IN_TURN) == ROUNDS * MALICIOUS


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_app(tmp_path_factory.mktemp("app") / "app")


# ---------------------------------------------------------------- the app, and the documentation's first example


def test_a_new_federation_needs_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty")
    assert (tmp_path / "empty" / "federation" / "server_app.py").is_file()
    with pytest.raises(InputError, match="not an empty folder"):
        create(tmp_path / "empty")
    with pytest.raises(InputError, match="not an empty folder"):
        create(tmp_path / "empty" / "README.md")


def test_keys_and_results_do_not_travel_to_the_nodes(tmp_path: Path) -> None:
    """Flower sends every node a bundle of the app's folder."""
    create(tmp_path / "app")
    for name in ("keys/server.key", "keys/notes.md", "runs/first/records.jsonl", "runs/first/experiment.json", "names.toml"):
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / name).write_text("secret")
    quiet = {**os.environ, "FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    subprocess.run([BIN / "flwr", "build", "--app", "app"], cwd=tmp_path, env=quiet, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.fab"))) as bundle:
        assert {name.split("/")[0] for name in bundle.namelist()} == {"federation", "make_keys.py", "README.md", "pyproject.toml", ".info"}


@pytest.mark.parametrize("name", ["../outside", "{folder}/outside", "a/b", "..", ".", ".hidden", "", "a\nb"])
def test_keys_are_written_inside_their_folder_only(name: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    command = [sys.executable, str(TEMPLATE / "make_keys.py"), "node", name.format(folder=tmp_path)]
    done = subprocess.run(command, cwd=tmp_path / "here", capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot be a file in keys" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_keys_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here" / "keys").symlink_to(tmp_path / "elsewhere")
    done = subprocess.run([sys.executable, TEMPLATE / "make_keys.py", "node", "a"], cwd=tmp_path / "here", capture_output=True, text=True)
    assert "keys is a link to another place" in done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_new_federation_has_no_hostile_nodes(tmp_path: Path) -> None:
    create(tmp_path / "app")
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["malicious"] == 0
    assert all(kind in KINDS for kind in config["hostile"].split())  # and a flag switches them on


def test_from_fedavg_to_fltrust_takes_at_most_ten_lines(app: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "federation.md").read_text()
    lines = text.split("```diff\n")[1].split("```")[0].splitlines()
    assert sum(line[:1] in ("+", "-") for line in lines) <= 10
    before, after = ("\n".join(line[1:] for line in lines if line[:1] != sign) for sign in "+-")
    assert "FedAvg(" in before
    assert "FedAvg" not in after
    for name, source in {"before": before, "after": after}.items():
        shutil.copytree(app, tmp_path / name)
        (tmp_path / name / "federation" / "server_app.py").write_text(source.replace("num_rounds=5", "num_rounds=1"))
    play_alone(tmp_path / "before", tmp_path, NODES)
    play_alone(tmp_path / "after", tmp_path, NODES, folder=tmp_path)
    (record,) = (tmp_path / "runs" / "first" / "records.jsonl").read_text().splitlines()
    assert json.loads(record)["verdict"] == ["used"] * NODES


# ---------------------------------------------------------------- ten nodes


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("federation") / "here", NODES) as federation:
        yield federation
    assert not federation.processes()


@pytest.fixture(scope="module")
def in_one_process(app: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an honest run of all rounds without any transport."""
    directory = tmp_path_factory.mktemp("play") / "run"
    play_alone(app, directory, NODES, rounds=ROUNDS)
    return directory


@pytest.fixture(scope="module")
def honest(federation: Federation, app: Path) -> Path:
    """The directory of an honest run of the federation, of two rounds."""
    log = federation.run(app, rounds=2, malicious=0, directory="honest")
    assert "round 2/2: 10 used" in log, log
    return federation.folder / "honest"


def same_model(one: Path, other: Path) -> bool:
    left, right = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return left.keys() == right.keys() and all(left[name].tobytes() == right[name].tobytes() for name in left)


def rightly_said_of(kind: str) -> set[tuple[str, str | None]]:
    """The verdicts and reasons that the audit may give."""
    reason = KINDS[kind].reason
    if kind == "crash":
        return {("missing", "silent"), ("rejected", "error")}  # Flower notices after a minute, if the deadline is not over before
    if reason is not None:
        return {("missing" if reason == "silent" else "rejected", reason)}
    certain = kind in ("label-flip", "krum", "boast")  # the others are made to look honest
    return {("zero-trust", None)} if certain else {("zero-trust", None), ("used", None)}


def test_an_honest_federation_learns_exactly_what_one_process_does(federation: Federation, app: Path, honest: Path, tmp_path: Path) -> None:
    records = federation.records("honest")
    assert [record["round"] for record in records] == [1, 2]
    assert all(record["verdict"] == ["used"] * NODES for record in records)
    assert records[-1]["test_error"] < 0.2  # chance is 0.9
    play_alone(app, tmp_path / "run", NODES, rounds=2)
    assert same_model(honest, tmp_path / "run")


def test_flowers_own_fedavg_is_ruined_by_hostile_nodes(federation: Federation, tmp_path: Path) -> None:
    app = new_app(tmp_path / "app", fedavg=True)
    federation.run(app, rounds=1, malicious=MALICIOUS, hostile=" ".join(IN_TURN), directory="fedavg")
    error = json.loads((federation.folder / "fedavg" / "errors.jsonl").read_text().splitlines()[-1])["test_error"]
    assert error > 0.5


def test_hostile_nodes_of_every_kind(federation: Federation, app: Path, honest: Path, in_one_process: Path) -> None:
    slowest = max(record["seconds"] for record in federation.records("honest"))
    deadline = max(60, 5 * slowest)  # only the last round waits for it: its silent node never answers
    hostile: dict[str, str | int | float] = {"malicious": MALICIOUS, "hostile": " ".join(IN_TURN), "directory": "hostile"}
    federation.run(app, seconds=deadline + MOST_SECONDS, rounds=ROUNDS, deadline=deadline, **hostile)
    records = federation.records("hostile")
    assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
    expected = json.loads((in_one_process / "records.jsonl").read_text().splitlines()[-1])["test_error"]
    assert records[-1]["test_error"] <= expected + 0.02
    for record in records:
        for node in range(MALICIOUS):
            kind = IN_TURN[(record["round"] - 1) * MALICIOUS + node]
            assert (record["verdict"][node], record["reason"][node]) in rightly_said_of(kind), kind
        assert record["verdict"][MALICIOUS:] == ["used"] * (NODES - MALICIOUS)  # no honest node is blamed


@pytest.mark.skipif(not SLOW, reason="half a minute for each kind; FLTRUST_SLOW=1 runs it")
@pytest.mark.parametrize("kind", KINDS)
def test_four_of_ten_nodes_of_one_kind(kind: str, federation: Federation, app: Path, in_one_process: Path) -> None:
    still_away = {("missing", "silent")} if kind in ("label-flip", "crash") else set()  # silent or crashed in the run before
    federation.run(app, rounds=2, malicious=MALICIOUS, hostile=kind, directory=kind, deadline=120)
    records = federation.records(kind)
    expected = json.loads((in_one_process / "records.jsonl").read_text().splitlines()[1])["test_error"]
    assert len(records) == 2
    assert records[-1]["test_error"] <= expected + 0.02
    for record in records:
        assert record["verdict"][MALICIOUS:] == ["used"] * (NODES - MALICIOUS)
        found = set(zip(record["verdict"][:MALICIOUS], record["reason"][:MALICIOUS], strict=True))
        assert found <= rightly_said_of(kind) | still_away


# ---------------------------------------------------------------- TLS, node authentication, a server that is killed


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("secure") / "here", SECURE, secure=True) as secure:
        yield secure
    assert not secure.processes()


def test_nobody_gets_in_without_a_registered_key_and_the_right_certificate(secure: Federation, tmp_path: Path) -> None:
    secure.make_keys("node", "stranger")
    secure.make_keys("server", "localhost", folder=tmp_path)  # another server's certificate
    ours, theirs = "keys/server.crt", f"{tmp_path}/keys/server.crt"
    intruders = {
        "without a key": ("All SuperNodes must be registered", ["--root-certificates", ours]),
        "not registered": (
            "Failed to initialize the connection",
            ["--root-certificates", ours, "--auth-supernode-private-key", "keys/stranger"],
        ),
        "wrong certificate": ("CERTIFICATE_VERIFY_FAILED", ["--root-certificates", theirs, "--auth-supernode-private-key", "keys/node-0"]),
        "without TLS": ("Failed to initialize the connection", ["--insecure"]),
    }
    for name, (_, options) in intruders.items():
        secure.start(name, "flower-supernode", *options, "--max-retries", "0", *secure.node_options(SECURE))
    for (name, (reason, _)), process in zip(intruders.items(), secure.started[-len(intruders) :], strict=True):
        assert process.wait(timeout=MOST_SECONDS) != 0, name
        assert reason in secure.log(name), secure.log(name)
        assert "SuperNode ID" not in secure.log(name), name
    listed = json.loads(secure.command("flwr", "supernode", "list", "here", "--format", "json"))
    assert sorted(int(node["node-id"]) for node in listed["nodes"]) == sorted(secure.ids)


def test_the_app_as_a_user_gets_it(secure: Federation, tmp_path: Path) -> None:
    log = secure.run(new_app(tmp_path / "app", light=False), nodes=SECURE, rounds=1, malicious=1, hostile="nan", directory="first")
    assert "round 1/1: 3 used, 1 rejected" in log, log


def test_a_superlink_that_was_killed_and_came_back_changes_no_bit(secure: Federation, app: Path, tmp_path: Path) -> None:
    with secure.start_run(app, nodes=SECURE, rounds=3, malicious=0, directory="returned") as running:
        secure.wait(lambda: secure.records("returned"), "no round is recorded", "link")
        secure.kill_link()
        secure.start_link()
        secure.wait(lambda: len(secure.records("returned")) == 3, "the run does not go on", "link")
        running.kill()
    assert [record["verdict"] for record in secure.records("returned")] == [["used"] * SECURE] * 3
    play_alone(app, tmp_path / "unbroken", SECURE, rounds=3)
    assert same_model(secure.folder / "returned", tmp_path / "unbroken")


def recorded(records: Path) -> int:
    return records.read_bytes().count(b"\n") if records.exists() else 0


def test_a_server_that_is_killed_goes_on_as_if_nothing_had_happened(secure: Federation, app: Path, tmp_path: Path) -> None:
    """kill -9 before the first round and after later ones, of the ServerApp alone and of the SuperLink too; then the same command again.

    One node is banned by its name, and one is hostile: in quarantine from its second rejection on, asked again, and in quarantine again.
    """
    rounds, kills = (10, 10) if SLOW else (3, 2)
    names = [f"clinic-{node}" for node in range(SECURE)]
    (secure.folder / "names.toml").write_text("".join(f'"{node}" = "{name}"\n' for node, name in zip(secure.ids, names, strict=True)))
    (secure.folder / "ban.txt").write_text(f"{names[-1]}  # from the start\n")
    hostile: dict[str, Any] = {"rounds": rounds, "malicious": 1, "hostile": "nan", "quarantine": 2, "registered": True}
    settings: dict[str, Any] = {**hostile, "nodes": SECURE - 1, "names": "names.toml", "ban": "ban.txt", "directory": "killed"}
    records = secure.folder / "killed" / "records.jsonl"
    for kill in range(kills):
        with secure.start_run(app, **settings) as running:
            assert running.stdout is not None
            assert any("as the rule" in line for line in running.stdout)  # Flower starts a run again by itself that had not begun
            secure.wait(lambda: recorded(records) >= rounds * kill // kills, "the run does not go on", "link")  # noqa: B023
            secure.kill_server(link=kill % 2 == 1)
            running.kill()
        if kill % 2 == 1:
            secure.start_link()
    log = secure.run(app, **settings)
    assert f"round {rounds}/{rounds}: 2 used" in log, log
    play_alone(app, tmp_path / "unbroken", SECURE - 1, **hostile)
    assert same_model(secure.folder / "killed", tmp_path / "unbroken")
    expected = Audit(tmp_path / "unbroken")  # without the banned node; node i has the id i + 2 there
    strips = {finding.node - 2: finding.strip for finding in expected.findings()}
    assert strips[0] == "RRQQQQQRRQ"[:rounds]
    audit = Audit(secure.folder / "killed")
    assert [line.round for line in audit.rounds] == list(range(1, rounds + 1))
    found = {finding.name: finding for finding in audit.findings()}
    for node, strip in strips.items():
        assert found[names[node]].strip.replace(".", "Q") == strip  # a dot: it had not connected again, and nobody waited for it
    assert set(found[names[-1]].strip) <= {"B", "."}
    states = {entry["name"]: entry["state"] for entry in json.loads((secure.folder / "killed" / "nodes.json").read_text()).values()}
    assert states == {names[0]: "quarantined", names[1]: "active", names[2]: "active", names[3]: "banned"}
