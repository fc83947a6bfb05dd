"""A run directory: what is written survives a kill at any moment, and what is not ours is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_task
from test_round import small_run

from fltrust.attacks import TrimAttack
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.simulation import simulate
from fltrust.store.directory import RunDirectory, read_records

RUN = small_run(rounds=6, malicious=2, attack=TrimAttack())


def carry_on(path: Path, run: Experiment = RUN, stop_after: int = 10**9) -> None:
    """A run that is interrupted after some rounds, or not at all."""
    task = small_task(malicious=2)
    with RunDirectory(path, run, task) as directory:
        after, weights = directory.resume()
        for record in simulate(run, task, after=after, weights=weights):
            directory.save(record)
            if record.round == stop_after:
                return


def content(path: Path) -> tuple[bytes, np.ndarray]:
    with np.load(path / "checkpoint.npz", allow_pickle=False) as saved:
        assert int(saved["round"]) == 6
        return (path / "records.jsonl").read_bytes(), saved["weights"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, np.ndarray]:
    path = tmp_path_factory.mktemp("unbroken")
    carry_on(path)
    return content(path)


def same(one: tuple[bytes, np.ndarray], other: tuple[bytes, np.ndarray]) -> bool:
    return one[0] == other[0] and one[1].tobytes() == other[1].tobytes()


def test_interrupted_after_any_round_it_ends_with_the_same_bits(tmp_path: Path, unbroken: tuple[bytes, np.ndarray]) -> None:
    for stop in range(1, 6):
        path = tmp_path / str(stop)
        carry_on(path, stop_after=stop)
        assert [record["round"] for record in read_records(path)] == list(range(1, stop + 1))
        carry_on(path)
        assert same(content(path), unbroken)


@pytest.mark.parametrize(
    "tail", [b'{"round": 4, "train_er', b'{"round": 4, "test_error": 0.5}\n', b'{"round": 4, "test_error": 0.5}\n{"rou', b"\x00\x00"]
)
def test_what_lies_beyond_the_checkpoint_is_redone(tmp_path: Path, unbroken: tuple[bytes, np.ndarray], tail: bytes) -> None:
    """As after a kill between a record and its checkpoint, or in the middle of a line."""
    carry_on(tmp_path / "run", stop_after=3)
    with (tmp_path / "run" / "records.jsonl").open("ab") as file:
        file.write(tail)
    (tmp_path / "run" / "checkpoint.npz.part").write_bytes(b"half a checkpoint")
    carry_on(tmp_path / "run")
    assert same(content(tmp_path / "run"), unbroken)


def test_killed_before_the_first_checkpoint(tmp_path: Path, unbroken: tuple[bytes, np.ndarray]) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / "experiment.json.part").write_bytes(b'{"key"')
    carry_on(tmp_path)
    assert same(content(tmp_path), unbroken)


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_store import carry_on
carry_on(Path(sys.argv[2]))
"""


def test_kill_minus_nine_at_random_moments(tmp_path: Path, unbroken: tuple[bytes, np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path / "run")]
    started = time.monotonic()
    subprocess.run([*command[:-1], str(tmp_path / "timed")], check=True)
    whole = time.monotonic() - started
    for _ in range(6):
        process = subprocess.Popen(command)
        time.sleep(whole * rng.uniform(0.4, 1.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True)
    assert same(content(tmp_path / "run"), unbroken)


def test_another_experiment_is_refused(tmp_path: Path) -> None:
    carry_on(tmp_path, stop_after=1)
    with pytest.raises(InputError, match="holds another experiment"):
        carry_on(tmp_path, small_run(rounds=6, malicious=2, attack=TrimAttack(), seed=1))


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="not empty"):
        carry_on(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != ".lock"] == ["thesis.tex"]


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    task = small_task(malicious=2)
    with RunDirectory(tmp_path, RUN, task), pytest.raises(InputError, match="in use"), RunDirectory(tmp_path, RUN, task):
        pass


@pytest.mark.parametrize("damage", ["cut", "pickled", "other model", "other round", "text"])
def test_a_damaged_checkpoint_is_named_and_nothing_is_unpickled(tmp_path: Path, damage: str) -> None:
    carry_on(tmp_path, stop_after=2)
    checkpoint = tmp_path / "checkpoint.npz"
    if damage == "cut":
        checkpoint.write_bytes(checkpoint.read_bytes()[:200])
    elif damage == "text":
        checkpoint.write_text("hello")
    elif damage == "pickled":
        np.savez(checkpoint, round=np.int64(2), weights=np.array([Bomb()], dtype=object))
    elif damage == "other model":
        np.savez(checkpoint, round=np.int64(2), weights=np.zeros(3, np.float32))
    else:
        np.savez(checkpoint, round=np.int64(7), weights=np.zeros(small_task().model.d, np.float32))
    with pytest.raises(InputError, match=r"checkpoint\.npz"):
        carry_on(tmp_path)
    assert not Bomb.went_off


class Bomb:
    went_off = False

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return Bomb.explode, ()

    @staticmethod
    def explode() -> None:
        Bomb.went_off = True


def test_the_declaration_says_what_was_run(tmp_path: Path) -> None:
    carry_on(tmp_path, stop_after=1)
    declared = json.loads((tmp_path / "experiment.json").read_text())
    assert declared["key"] == RUN.key
    assert declared["experiment"]["attack"] == {"name": "trim", "knowledge": "full", "reach": 2.0, "honest_only": False}
    assert declared["versions"]["torch"] == torch.__version__


def test_records_are_valid_json_also_for_broken_clients(tmp_path: Path) -> None:
    task = small_task(malicious=2)
    with RunDirectory(tmp_path, RUN, task) as directory:
        record = next(simulate(RUN, task))
        object.__setattr__(record, "norm", (float("nan"), float("inf"), 1.0))
        directory.save(record)
    line = (tmp_path / "records.jsonl").read_text()
    assert json.loads(line, parse_constant=lambda constant: pytest.fail(constant))["norm"] == [None, None, 1.0]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_disk_leaves_what_was_written_readable(tmp_path: Path) -> None:
    carry_on(tmp_path, stop_after=2)
    (tmp_path / "checkpoint.npz.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        carry_on(tmp_path, stop_after=3)
    assert [record["round"] for record in read_records(tmp_path)] == [1, 2, 3]
    (tmp_path / "checkpoint.npz.part").unlink()
    carry_on(tmp_path)
    assert [record["round"] for record in read_records(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_flipped_bytes_in_a_checkpoint_never_give_a_traceback(tmp_path: Path) -> None:
    carry_on(tmp_path, stop_after=2)
    checkpoint, task = tmp_path / "checkpoint.npz", small_task(malicious=2)
    whole = checkpoint.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    with RunDirectory(tmp_path, RUN, task) as directory:
        for _ in range(300):
            damaged = bytearray(whole)
            damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
            checkpoint.write_bytes(damaged)
            try:
                directory.resume()
            except InputError:
                refused += 1
    assert refused > 200  # some bytes, such as a time stamp, decide nothing


@pytest.mark.parametrize(
    ("damaged", "message"),
    [(b"nonsense\n", "line 1, is no record"), (b'{"x": 1}\n', "line 1, is no record"), (b"", "lacks round 2"), (None, "lacks round 2")],
)
def test_damaged_or_missing_records_are_named(tmp_path: Path, damaged: bytes | None, message: str) -> None:
    carry_on(tmp_path, stop_after=2)
    records = tmp_path / "records.jsonl"
    if damaged is None:
        records.unlink()
    else:
        records.write_bytes(damaged)
    with pytest.raises(InputError, match=message):
        carry_on(tmp_path)
