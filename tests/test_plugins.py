"""A rule of one's own, in a file outside of the package: run, killed, resumed and reported as ours are."""

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from stopped import PROGRAM, stopped

from fltrust.experiment import Experiment
from fltrust.registry import RULES, load_plugin
from fltrust.running.pool import Finished, execute

MINE = '''
from dataclasses import dataclass

import torch

from fltrust import RULES, Aggregate, Rule


@RULES.register("slow-mean", label="Slow mean")
@dataclass(frozen=True)
class SlowMean(Rule):
    """The mean of the updates, averaged over the rounds."""

    keep: float = 0.5

    def init(self, num_clients, like):
        return torch.zeros_like(like)

    def step(self, received, memory):
        mean = self.keep * memory + (1 - self.keep) * received.updates.mean(0)
        return Aggregate(mean, None), mean
'''
RUN = ["run", "--plugin", "mine.py", "--rule", "slow-mean", "--dataset", "mnist-5k", "--rounds", "8", "--evaluate-every", "1"]
RUN += ["--batch-size", "4", "--attack", "trim", "--device", "cpu", "--set", "rule.keep=0.75"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def fltrust(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})


def arrays(path: Path) -> dict[str, bytes]:
    with np.load(path / "checkpoint.npz", allow_pickle=False) as saved:
        return {name: saved[name].tobytes() for name in saved.files}


@pytest.mark.slow
def test_it_survives_kill_minus_nine_with_the_same_bits_and_is_reported_without_its_file(folder: Path) -> None:
    assert fltrust(*RUN, "--out", "runs/whole", cwd=folder).returncode == 0
    assert stopped([*RUN, "--out", "runs/broken"], cwd=folder, records=3, by=signal.SIGKILL)[0] == -signal.SIGKILL
    records = folder / "runs" / "broken" / "records.jsonl"
    done = fltrust(*RUN, "--out", "runs/broken", cwd=folder)
    assert "resumes after round" in done.stderr
    whole, broken = arrays(folder / "runs" / "whole"), arrays(folder / "runs" / "broken")
    assert whole == broken
    assert "rule" in whole  # its memory
    assert records.read_bytes() == (folder / "runs" / "whole" / "records.jsonl").read_bytes()
    fltrust(*RUN, "--seed", "1", "--out", "runs/other", cwd=folder)  # so that there is something to compare
    (folder / "mine.py").unlink()
    assert fltrust("audit", "runs/whole", cwd=folder).returncode == 3  # it can be read, and names the malicious clients
    made = fltrust("report", "runs", "--out", "page", cwd=folder)
    assert made.returncode == 0, made.stderr
    assert 'mnist-5k,,"slow-mean, keep 0.75",trim,20,4,2,' in (folder / "page" / "tables" / "numbers.csv").read_text()  # both seeds


@pytest.mark.slow
def test_it_is_listed_and_its_parameters_are_checked(folder: Path) -> None:
    assert "slow-mean" in fltrust("list", "rules", "--plugin", "mine.py", cwd=folder).stdout
    done = fltrust(*RUN, "--set", "rule.kep=1", cwd=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "unknown parameter of slow-mean 'kep': did you mean 'keep'?" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("Aggregate(received.updates.sum(0)[1:], None)", "SlowMean returned torch.float32 of shape"),
        ("Aggregate(received.updates.mean(0) / (received.round != 3), None)", "SlowMean returned NaN or infinity"),
        ("Aggregate(received.updates.mean(0) * (1 // (3 - int(received.round))), None)", "line 21: ZeroDivisionError"),
        ("None", "must return (Aggregate, memory)"),
    ],
    ids=["shape", "nan", "raises", "nothing"],
)
def test_a_rule_that_fails_is_one_line_and_earlier_records_stay(folder: Path, body: str, said: str) -> None:
    source = MINE.replace("return Aggregate(mean, None), mean", f"return {body}" if body == "None" else f"return {body}, mean")
    (folder / "mine.py").write_text(source)
    done = fltrust(*RUN, "--out", "mine", cwd=folder)
    assert done.returncode == 2, done.stderr
    *before, last = done.stderr.splitlines()
    assert said in last
    assert all(": round " in line for line in before)  # a slow machine says how far it is
    if "round" in body:  # those that fail in the third round only
        assert [json.loads(line)["round"] for line in (folder / "mine" / "records.jsonl").read_text().splitlines()] == [1, 2]


@pytest.mark.slow
def test_worker_processes_load_it_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RULES, "_entries", dict(RULES._entries))
    load_plugin(folder / "mine.py")
    run = Experiment.on("mnist-5k", "slow-mean", "none", rounds=2, evaluate_every=1, batch_size=4)
    *_, last = execute([run], folder / "work", jobs=1, device="cpu", plugins=[folder / "mine.py"])
    assert isinstance(last, Finished), last
    assert last.run == run
