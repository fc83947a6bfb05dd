"""Nodes that send the same: the audit counts and names them in a simulation, in a federation and on the page, and spares honest ones."""

from pathlib import Path
from typing import Any

import pytest
from test_audit import Change, found, written

pytest.importorskip("flwr")

from fake_federation import FakeGrid, as_record, honest, strategy_of
from flwr.app import Message, MetricRecord

from fltrust.audit import Audit
from fltrust.experiment import Experiment
from fltrust.report import build
from fltrust.running.loop import play
from fltrust.tasks.build import build_task


def copies(many: int) -> Change:
    def change(t: int, i: int, said: dict[str, Any]) -> None:
        if i < many:
            said |= {"closest": 1.0, "closest_to": (i + 1) % many}

    return change


def look_alikes(path: Path) -> dict[int, str]:
    """Who is said to be one, and of how many."""
    return {one.node: said.partition(":")[0] for one in Audit(path).findings() for said in one.evidence if "look-alike" in said}


@pytest.mark.parametrize(("many", "verdict"), [(2, "hostile"), (4, "hostile"), (5, "suspicious"), (6, "suspicious"), (9, "suspicious")])
def test_copies_are_found_however_many_there_are_but_most_nodes_may_hold_the_same_data(tmp_path: Path, many: int, verdict: str) -> None:
    path = written(tmp_path, 5, copies(many))
    assert look_alikes(path) == dict.fromkeys(range(many), f"one of {many} look-alikes")
    assert {node: one.verdict for node, one in found(path).items()} == {i: verdict if i < many else "ok" for i in range(10)}


def test_nodes_that_all_send_the_same_are_not_accused(tmp_path: Path) -> None:
    assert look_alikes(written(tmp_path, 5, copies(10))) == {}


def test_three_nodes_are_too_few(tmp_path: Path) -> None:
    assert look_alikes(written(tmp_path, 5, copies(2), n=3)) == {}


def simulated(path: Path, **changes: Any) -> Path:
    usual = {"model": "logistic", "rounds": 6, "evaluate_every": 1}
    run = Experiment.on("mnist-5k", changes.pop("rule", "fltrust"), changes.pop("attack", "none"), **{**usual, **changes})
    play(run, build_task(run), [], path=path)
    return path


def test_fourteen_malicious_clients_that_send_the_same_are_named(tmp_path: Path) -> None:
    path = simulated(tmp_path / "run", attack="ipm", malicious=14)
    malicious = [one.node for one in Audit(path).findings() if one.malicious]
    assert look_alikes(path) == dict.fromkeys(malicious, "one of 14 look-alikes")
    assert len(malicious) == 14


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("batch_size", [8, 200])  # 200: all that a client has, so that updates are nearly the same
def test_honest_clients_whose_data_are_alike_are_no_look_alikes(tmp_path: Path, batch_size: int, seed: int) -> None:
    path = simulated(tmp_path / "run", rule="fedavg", malicious=0, bias=0.1, batch_size=batch_size, seed=seed)
    assert look_alikes(path) == {}
    assert {one.verdict for one in Audit(path).findings()} == {"ok"}


def test_a_federation_and_its_page_name_them(tmp_path: Path) -> None:
    def client(node: int, message: Message) -> Message:
        return honest(max(node, 4), message)

    strategy_of(directory=tmp_path / "run", seed=0).start(
        FakeGrid(client), as_record(), num_rounds=4, evaluate_fn=lambda t, arrays: MetricRecord({"test_error": 0.1})
    )
    assert look_alikes(tmp_path / "run") == dict.fromkeys((1, 2, 3, 4), "one of 4 look-alikes")
    build([tmp_path / "run"], tmp_path / "report")
    assert (tmp_path / "report" / "index.html").read_text().count("one of 4 look-alikes: 1, 2, 3, 4 (cosine 1.000, in 4 of 4 rounds)") == 4
