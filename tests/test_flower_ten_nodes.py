"""Ten real nodes with TLS and registered keys, four of them hostile from round 3 on: the model is unharmed, and the audit names the four.

Two of the hostile nodes are SuperNodes that send bad updates. The other two misuse Flower's fleet API (`flower_raw_node.py`).
"""

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import MOST_SECONDS

pytest.importorskip("flwr")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from browser import CHROMIUM, Browser
from flower_processes import CONFIG, Federation, new_app, play_alone
from watched import PROGRAM, watching

SCALING, ALTERNATING, *HONEST, FLOODING, IMPERSONATING = range(10)  # by partition-id
SUPERNODES = [SCALING, ALTERNATING, *HONEST]
SINCE, ROUNDS = 3, 5
SLOWLY: dict[str, Any] = {
    "learning-rate": 0.03
}  # so honest updates still agree in round 5, and no chance in the sketches decides on the alternating node
NAMES = [f"clinic-{letter}" for letter in "abcdefghij"]


class TenNodes(Federation):
    """Eight SuperNodes, and two nodes that speak the fleet API themselves."""

    def __init__(self, folder: Path, app: Path) -> None:
        super().__init__(folder, len(SUPERNODES), secure=True, database=False)  # a flood locks SQLite, and SuperNodes give up
        self.app, self.raw = app, dict[int, subprocess.Popen[bytes]]()

    def start_raw(self, node: int, kind: str) -> None:
        self.make_keys("node", f"node-{node}")
        self.command("flwr", "supernode", "register", f"keys/node-{node}.pub", "here")
        given = {
            "kind": kind,
            "since": SINCE,
            "partition": node,
            "others": self.ids,
            "address": f"127.0.0.1:{self.port}",
            "certificate": f"{self.folder}/keys/server.crt",
            "key": f"{self.folder}/keys/node-{node}",
            "app": str(self.app),
            "config": {**CONFIG, "nodes": 10, **SLOWLY},
        }
        self.raw[node] = self.start(f"node-{node}", sys.executable, str(Path(__file__).parent / "flower_raw_node.py"), json.dumps(given))
        self.ids.append(self.id_of(f"node-{node}"))

    def ended(self, directory: str) -> bool:
        for node in (FLOODING, IMPERSONATING):
            assert self.raw[node].poll() is None, self.log(f"node-{node}")
        return len(self.records(directory)) == ROUNDS

    def name_nodes(self) -> None:
        """By the fingerprints of their keys, as `ssh-keygen -l` shows them."""
        lines = []
        for node, name in enumerate(NAMES):
            key = base64.b64decode((self.folder / "keys" / f"node-{node}.pub").read_text().split()[1])
            lines.append(f'"SHA256:{base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")}" = "{name}"\n')
        (self.folder / "names.toml").write_text("".join(lines))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_app(tmp_path_factory.mktemp("app") / "app")


@pytest.fixture(scope="module")
def federation(app: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenNodes]:
    with TenNodes(tmp_path_factory.mktemp("ten") / "here", app) as federation:
        federation.start_raw(FLOODING, "flooding")
        federation.start_raw(IMPERSONATING, "impersonating")
        federation.name_nodes()
        yield federation
    assert not federation.processes()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser | None]:
    if CHROMIUM is None:
        yield None
        return
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def audited(path: Path) -> tuple[int, dict[str, Any]]:
    """The exit code and the content of `fltrust audit RUN --json`."""
    done = subprocess.run([*PROGRAM, "audit", str(path), "--json"], capture_output=True, text=True, timeout=MOST_SECONDS)
    assert not done.stderr
    return done.returncode, json.loads(done.stdout)


def test_four_hostile_nodes_of_ten(federation: TenNodes, app: Path, browser: Browser | None, tmp_path: Path) -> None:
    run = federation.folder / "runs" / "ten"
    settings: dict[str, Any] = {
        "malicious": 2,
        "hostile": "scaling alternating",
        "hostile-from": SINCE,
        "deadline": 3600,
        "nodes": 10,
        "rounds": ROUNDS,
    }
    settings |= {"registered": True, "names": "names.toml", "quarantine": 2, "directory": "runs/ten"} | SLOWLY
    with watching(run) as url:
        if browser is not None:
            browser.open(url)
        with federation.start_run(app, **settings) as running:
            try:
                federation.wait(lambda: federation.ended("runs/ten"), "the run does not end", "link", seconds=1800)
                if browser is not None:
                    federation.wait(lambda: browser.run(f"document.querySelector('#round').innerText == 'Round {ROUNDS}'"), url, "link")
            finally:
                running.kill()
        if browser is not None:
            shown(browser)

    records = federation.records("runs/ten")
    for record in records:
        assert [record["verdict"][node] for node in HONEST] == ["used"] * len(HONEST)

    # The error.
    play_alone(app, tmp_path / "honest", 10, rounds=ROUNDS, **SLOWLY)
    honest = [json.loads(line)["test_error"] for line in (tmp_path / "honest" / "records.jsonl").read_text().splitlines()]
    assert [record["test_error"] for record in records[: SINCE - 1]] == honest[: SINCE - 1]  # all ten were honest until then
    assert abs(records[-1]["test_error"] - honest[-1]) <= 0.02

    # The audit names the four, since the round in which they began, and nobody else.
    code, said = audited(run)
    assert code == 3
    named = {finding["name"]: (finding["verdict"], finding["since"]) for finding in said["nodes"] if finding["verdict"] != "ok"}
    assert named == {
        NAMES[SCALING]: ("hostile", SINCE),
        NAMES[ALTERNATING]: ("hostile", SINCE),
        NAMES[FLOODING]: ("hostile", SINCE),
        NAMES[IMPERSONATING]: ("unreliable", SINCE),  # all that Flower lets the server know of it, see docs/federation.md
    }
    by_name = {finding["name"]: finding for finding in said["nodes"]}
    assert [finding["node"] for finding in map(by_name.get, NAMES) if finding] == federation.ids
    assert by_name[NAMES[FLOODING]]["strip"] == by_name[NAMES[IMPERSONATING]]["strip"] == "UURRQ"
    assert by_name[NAMES[ALTERNATING]]["strip"] == "UUZUZ"

    # Of the impersonation there is a trace, which blames nobody.
    assert "0 ids found" in federation.log(f"node-{IMPERSONATING}")
    assert [record["unasked"] > 0 for record in records] == [False] * (SINCE - 1) + [True] * 2 + [False]
    alarms = [(line["round"], alarm["kind"], alarm["nodes"]) for line in said["rounds"] for alarm in line["alarms"]]
    assert [one for one in alarms if one[1] != "quarantined"] == [(t, "unasked", []) for t in (3, 4)]
    assert sorted(node for _, kind, nodes in alarms if kind == "quarantined" for node in nodes) == sorted(federation.ids[-2:])


def shown(browser: Browser) -> None:
    """The page says the same."""
    suspects = "[...document.querySelectorAll('#suspects li')].map((one) => one.innerText)"
    browser.wait(f"{suspects}.length == 3")
    found = browser.run(suspects)
    assert all(any(f"{NAMES[node]} since round {SINCE}" in one for one in found) for node in (SCALING, ALTERNATING, FLOODING))
    rows = browser.run("[...document.querySelectorAll('#rows tr[data-node]')].map((one) => one.innerText)")
    unreliable = [one for one in rows if "unreliable" in one]
    assert [NAMES[IMPERSONATING] in one for one in unreliable] == [True]
    assert "nobody asked for" in browser.run("document.querySelector('#alarms').innerText")
    assert browser.errors == []
