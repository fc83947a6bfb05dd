"""A run directory: what is written survives a kill at any moment, and what is not ours is refused."""

import contextlib
import copy
import errno
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from conftest import small_task
from made_up import nested
from test_round import small_run

from fltrust.attacks import Mimic, TrimAttack
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.round import first_state
from fltrust.rules import NNM, CentredClipping, FLTrust, FoolsGold, Krum
from fltrust.running.loop import play
from fltrust.running.sinks import Checkpoints, Sink
from fltrust.simulation import simulate
from fltrust.store import files
from fltrust.store.differences import differences
from fltrust.store.directory import RunDirectory
from fltrust.store.files import replacing
from fltrust.store.records import read_records, read_run, shares_of
from fltrust.training.optimisers import Adam

RUN = small_run(rounds=6, malicious=2, attack=TrimAttack())
REMEMBERING: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rule's centre": {"rule": CentredClipping()},
    "rule's history": {"rule": FoolsGold()},
    "attack": {"attack": Mimic()},
    "clients": {"client_momentum": 0.9, "clients_per_round": 4},
    "server": {"server": Adam()},
    "all": {"rule": FoolsGold(), "attack": Mimic(), "client_momentum": 0.9, "server": Adam(), "clients_per_round": 4},
}
Content = tuple[bytes, dict[str, bytes]]  # of records.jsonl, and of every array of the checkpoint


class Stopped(Exception):  # noqa: N818
    pass


class Stop(Sink):
    def __init__(self, after: int) -> None:
        self._after = after

    def record(self, record: Record) -> None:
        if record.round == self._after:
            raise Stopped


def carry_on(path: Path, run: Experiment = RUN, stop_after: int = 10**9) -> None:
    """A run that is interrupted after some rounds, or not at all."""
    with contextlib.suppress(Stopped):
        play(run, small_task(malicious=2), [Stop(stop_after)], path=path)


def content(path: Path) -> Content:
    with np.load(path / "checkpoint.npz", allow_pickle=False) as saved:
        assert int(saved["round"]) == 6
        return (path / "records.jsonl").read_bytes(), {name: saved[name].tobytes() for name in saved.files}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Content:
    path = tmp_path_factory.mktemp("unbroken")
    carry_on(path)
    return content(path)


@pytest.mark.parametrize("memory", REMEMBERING)
def test_interrupted_after_any_round_it_ends_with_the_same_bits(tmp_path: Path, memory: str) -> None:
    run = small_run(**{"rounds": 6, "malicious": 2, "attack": TrimAttack(), **REMEMBERING[memory]})
    carry_on(tmp_path / "whole", run)
    whole = content(tmp_path / "whole")
    assert len(whole[1]) > 2 or memory == "nothing"
    for stop in range(1, 6):
        path = tmp_path / str(stop)
        carry_on(path, run, stop_after=stop)
        assert [record["round"] for record in read_records(path)] == list(range(1, stop + 1))
        carry_on(path, run)
        assert content(path) == whole


@pytest.mark.parametrize(
    "tail", [b'{"round": 4, "train_er', b'{"round": 4, "test_error": 0.5}\n', b'{"round": 4, "test_error": 0.5}\n{"rou', b"\x00\x00"]
)
def test_what_lies_beyond_the_checkpoint_is_redone(tmp_path: Path, unbroken: Content, tail: bytes) -> None:
    """As after a kill between a record and its checkpoint, or in the middle of a line."""
    carry_on(tmp_path / "run", stop_after=3)
    with (tmp_path / "run" / "records.jsonl").open("ab") as file:
        file.write(tail)
    (tmp_path / "run" / "checkpoint.npz.part").write_bytes(b"half a checkpoint")
    carry_on(tmp_path / "run")
    assert content(tmp_path / "run") == unbroken


def test_killed_before_the_first_checkpoint(tmp_path: Path, unbroken: Content) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / "experiment.json.part").write_bytes(b'{"key"')
    carry_on(tmp_path)
    assert content(tmp_path) == unbroken


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_store
from fltrust.store import directory, files

calls = 0
def or_die(function):
    def call(*arguments):
        global calls
        calls += 1
        if calls == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return call

directory.sync, files.sync, files.rename = or_die(directory.sync), or_die(files.sync), or_die(files.rename)
test_store.carry_on(Path(sys.argv[2]), test_store.small_run(**{
    "rounds": 6, "malicious": 2, "attack": test_store.TrimAttack(), **test_store.REMEMBERING[sys.argv[3]]}))
"""


@pytest.mark.slow
def test_kill_minus_nine_at_every_step_of_a_checkpoint(tmp_path: Path) -> None:
    """Killed before the declaration, a record, its checkpoint, or the records of a run that resumes are on the disk or take their place."""
    carry_on(tmp_path / "whole", small_run(**{"rounds": 6, "malicious": 2, "attack": TrimAttack(), **REMEMBERING["all"]}))
    path = tmp_path / "run"
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(path), "all"]
    for moment in (1, 2, 3, 4, 5, 6, 1, 2):
        assert subprocess.run([*command, str(moment)]).returncode == -signal.SIGKILL
    subprocess.run([*command, "0"], check=True)
    assert content(path) == content(tmp_path / "whole")


class Nth:
    """A clock that is a list of times."""

    def __init__(self, *times: float) -> None:
        self._times = iter(times)

    def __call__(self) -> float:
        return next(self._times)


def test_checkpoints_come_in_batches_and_none_is_lost(tmp_path: Path) -> None:
    task = small_task(malicious=2)
    with RunDirectory(tmp_path, RUN, task) as directory:
        sink = Checkpoints(directory, 10.0, Nth(0.0, 0.0, 5.0, 10.0, 10.0, 12.0, 12.0))  # read before each record, and after each save
        sink.start(RUN, 0, tmp_path)
        seen = []
        for record in simulate(RUN, task):
            if record.round == 5:
                break
            sink.record(record)
            seen.append(len(read_records(tmp_path)))
        assert seen == [1, 1, 3, 3]
        sink.close()
        sink.close()
    assert [record["round"] for record in read_records(tmp_path)] == [1, 2, 3, 4]
    carry_on(tmp_path)
    carry_on(tmp_path / "whole")
    assert content(tmp_path) == content(tmp_path / "whole")


def test_every_sink_is_closed_whatever_happens() -> None:
    closed = []

    class Fragile(Sink):
        def __init__(self, name: str, fails: str = "") -> None:
            self.name, self.fails = name, fails

        def start(self, run: Experiment, after: int, path: Path | None) -> None:
            if self.fails == "start":
                raise Stopped

        def record(self, record: Record) -> None:
            if self.fails == "record":
                raise Stopped

        def close(self) -> None:
            closed.append(self.name)
            if self.fails == "close":
                raise Stopped

    for fails in ("start", "record", "close"):
        closed.clear()
        with pytest.raises(Stopped):
            play(RUN, small_task(malicious=2), [Fragile("first"), Fragile("second", fails), Fragile("third")])
        assert set(closed) == {"start": {"first"}, "record": {"first", "second", "third"}, "close": {"first", "second", "third"}}[fails]


def test_a_checkpoint_of_the_first_version_resumes(tmp_path: Path, unbroken: Content) -> None:
    """It held the round and the weights alone, its records said "weight", and its declaration no kind."""
    carry_on(tmp_path, stop_after=3)
    declared = json.loads((tmp_path / "experiment.json").read_text())
    del declared["kind"]
    (tmp_path / "experiment.json").write_text(json.dumps(declared))
    with np.load(tmp_path / "checkpoint.npz") as saved:
        old = {name: saved[name] for name in ("round", "weights")}
    np.savez(tmp_path / "checkpoint.npz", **old)
    carry_on(tmp_path)
    assert content(tmp_path) == unbroken
    assert read_run(tmp_path).kind == "simulation"
    assert shares_of({"weight": [1.0]}) == shares_of({"shares": [1.0]}) == [1.0]


@pytest.mark.parametrize(
    ("begun", "resumed", "said"),
    [
        ({"rule": CentredClipping()}, {"rule": FLTrust()}, "holds something else: 'rule"),
        ({"rule": FLTrust()}, {"rule": CentredClipping()}, "lacks 'rule"),
        ({"rule": FoolsGold()}, {"rule": FoolsGold(), "num_clients": 7}, r"shape \(6, .*expected .* of shape \(7, "),
        ({"server": Adam()}, {}, "holds something else: 'server"),
    ],
)
def test_a_checkpoint_of_another_experiment_is_one_line(tmp_path: Path, begun: dict[str, Any], resumed: dict[str, Any], said: str) -> None:
    """Its directory would be refused before, so the file is put into another one."""
    carry_on(tmp_path / "begun", small_run(**{"rounds": 6, "malicious": 2, **begun}), stop_after=2)
    run = small_run(**{"rounds": 6, "malicious": 2, **resumed})
    task = small_task(malicious=2, num_clients=run.num_clients)
    with RunDirectory(tmp_path / "resumed", run, task) as directory:
        (tmp_path / "begun" / "checkpoint.npz").rename(directory.path / "checkpoint.npz")
        with pytest.raises(InputError, match="checkpoint.npz is of another experiment: .*" + said):
            directory.resume(first_state(run, task))


def test_a_metric_that_is_no_number_is_still_json(tmp_path: Path) -> None:
    task = small_task(malicious=2)
    with RunDirectory(tmp_path, RUN, task) as directory:
        record = next(simulate(RUN, task))
        object.__setattr__(record, "metrics", {**record.metrics, "test_loss": float("nan"), "class_error": [0.5, float("inf")]})
        directory.save(record)
    (line,) = read_records(tmp_path)
    assert (line["test_loss"], line["class_error"]) == (None, [0.5, None])


READING = """
import sys
from pathlib import Path
from fltrust.store import records, results
results.read(Path(sys.argv[1]))
results.distil(Path(sys.argv[2]))
simulator = ("fltrust.round", "fltrust.simulation", "fltrust.training", "fltrust.tasks.task", "fltrust.tasks.b")
print(sorted(name for name in sys.modules if name.startswith(simulator)))
"""


@pytest.mark.slow
def test_reading_results_does_not_load_the_simulator(tmp_path: Path) -> None:
    carry_on(tmp_path)
    folder = Path(__file__).parents[1] / "results"
    done = subprocess.run([sys.executable, "-c", READING, str(folder), str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_another_experiment_is_refused(tmp_path: Path) -> None:
    carry_on(tmp_path, stop_after=1)
    with pytest.raises(InputError, match=r"holds another experiment \(seed: 0 there, 1 here\): choose another --out"):
        carry_on(tmp_path, small_run(rounds=6, malicious=2, attack=TrimAttack(), seed=1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rule": Krum(tolerate=2)}, "rule: fltrust there, krum here"),
        ({"rule": NNM(Krum(tolerate=2), tolerate=2)}, "rule: fltrust there, nnm+krum here"),
        ({"attack": TrimAttack(reach=3.0)}, "attack.reach: 2.0 there, 3.0 here"),
        ({"server": Adam(), "loss": "mean"}, "loss: sum there, mean here; server: none there, adam here"),
        ({"rounds": 4}, "rounds: 6 there, 4 here"),
        ({"lr_decay": ((3, 0.5),)}, "lr_decay: [] there, [[3, 0.5]] here"),
    ],
)
def test_experiments_are_told_apart_by_the_fields_that_differ(changes: dict[str, Any], said: str) -> None:
    assert differences(RUN, small_run(**{"rounds": 6, "malicious": 2, "attack": TrimAttack(), **changes})) == said


def test_many_differences_are_counted() -> None:
    other = small_run(rounds=7, malicious=1, seed=1, warmup=3, loss="mean", root_size=13, local_steps=2)
    assert differences(RUN, other).endswith("; and 3 more")


@pytest.mark.parametrize(("levels", "said"), [(15, "more than 10 rules"), (300, "nested data that no run writes")])
def test_a_declaration_that_is_nested_without_end_is_refused(tmp_path: Path, levels: int, said: str) -> None:
    carry_on(tmp_path, stop_after=1)
    declared = json.loads((tmp_path / "experiment.json").read_text())
    declared["experiment"]["rule"] = nested(levels)
    (tmp_path / "experiment.json").write_text(json.dumps(declared))
    with pytest.raises(InputError, match=said):
        carry_on(tmp_path)


def test_a_federation_in_the_directory_is_named(tmp_path: Path) -> None:
    carry_on(tmp_path, stop_after=1)
    declared = json.loads((tmp_path / "experiment.json").read_text())
    (tmp_path / "experiment.json").write_text(json.dumps({**declared, "kind": "federation"}))
    with pytest.raises(InputError, match="holds a federation, not a run"):
        carry_on(tmp_path)


SCHEDULED: dict[str, Any] = {"malicious": 2, "attack": TrimAttack(), "lr_decay": ((3, 0.5), (6, 0.1)), "warmup": 5}


@pytest.mark.parametrize("memory", ["nothing", "all"])
@pytest.mark.parametrize("every", [1, 4, 9])
def test_more_rounds_extend_a_run_to_the_bits_of_a_long_one(tmp_path: Path, memory: str, every: int) -> None:
    """Finished or not, in one step or two; decay and warm-up count rounds from the first one, also beyond the shorter run's end."""
    settings = {**SCHEDULED, "evaluate_every": every, **REMEMBERING[memory]}
    long = small_run(rounds=6, **settings)
    carry_on(tmp_path / "whole", long)
    for name, lengths, stop in (("finished", (3, 6), 99), ("twice", (2, 5, 6), 99), ("cut off", (5, 6), 4)):
        path = tmp_path / name
        for rounds in lengths:
            carry_on(path, small_run(rounds=rounds, **settings), stop_after=stop if rounds < 6 else 99)
        assert content(path) == content(tmp_path / "whole"), name
        declared, expected = (json.loads((folder / "experiment.json").read_text()) for folder in (path, tmp_path / "whole"))
        assert declared == expected
        assert declared["key"] == long.key != small_run(rounds=3, **settings).key


def test_an_extended_run_that_stops_at_once_resumes(tmp_path: Path, unbroken: Content) -> None:
    """Its last round is then one that the longer run does not evaluate, and not among its records any more."""
    short, long = (small_run(rounds=rounds, **{**SCHEDULED, "evaluate_every": 4}) for rounds in (3, 6))
    carry_on(tmp_path / "run", short)
    with RunDirectory(tmp_path / "run", long, task := small_task(malicious=2)) as directory:
        assert directory.resume(first_state(long, task))[0] == 3
    assert read_records(tmp_path / "run") == []
    carry_on(tmp_path / "run", long)
    carry_on(tmp_path / "whole", long)
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_more_rounds_of_another_experiment_extend_nothing(tmp_path: Path) -> None:
    carry_on(tmp_path, stop_after=2)
    before = (tmp_path / "experiment.json").read_bytes()
    with pytest.raises(InputError, match="seed: 0 there, 1 here; rounds: 6 there, 7 here"):
        carry_on(tmp_path, small_run(rounds=7, malicious=2, attack=TrimAttack(), seed=1))
    assert (tmp_path / "experiment.json").read_bytes() == before


class Notes(Sink):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def test_a_deleted_checkpoint_is_said_and_the_records_are_kept(tmp_path: Path, unbroken: Content) -> None:
    carry_on(tmp_path)
    for number in (1, 2):
        (tmp_path / "checkpoint.npz").unlink()
        notes = Notes()
        play(RUN, small_task(malicious=2), [notes], path=tmp_path)
        aside = f"set-aside-{number}.jsonl"
        assert notes.lines == [
            f"{tmp_path}: checkpoint.npz is missing, so the run starts again; the records of 6 rounds are now in {aside}"
        ]
        assert (tmp_path / aside).read_bytes() == unbroken[0]
        assert content(tmp_path) == unbroken


def test_records_without_their_declaration_are_not_another_run(tmp_path: Path) -> None:
    carry_on(tmp_path, stop_after=2)
    (tmp_path / "experiment.json").unlink()
    with pytest.raises(InputError, match=r"experiment\.json is missing, but records\.jsonl is there"):
        carry_on(tmp_path)
    assert len(read_records(tmp_path)) == 2


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="not empty"):
        carry_on(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != ".lock"] == ["thesis.tex"]


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    task = small_task(malicious=2)
    with RunDirectory(tmp_path, RUN, task), pytest.raises(InputError, match="in use"), RunDirectory(tmp_path, RUN, task):
        pass


def test_a_file_is_replaced_through_no_link_and_over_nobody_elses(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "file.part").symlink_to("victim")
    with replacing(tmp_path / "file") as first, replacing(tmp_path / "file") as second:  # as two processes do
        first.write(b"1" * 9)
        second.write(b"2")
    assert (tmp_path / "file").read_bytes() == b"1" * 9
    assert (tmp_path / "victim").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "file.part", "victim"]
    (tmp_path / "usual").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path, unbroken: Content) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / f"experiment.json.{'0' * 16}.part").write_bytes(b'{"key"')
    carry_on(tmp_path, stop_after=3)
    (tmp_path / f"checkpoint.npz.{'0123456789abcdef'}.part").write_bytes(b"half a checkpoint")
    (tmp_path / "mine.part").touch()
    carry_on(tmp_path)
    assert content(tmp_path) == unbroken
    assert [path.name for path in tmp_path.glob("*.part")] == ["mine.part"]


def test_a_lock_empties_no_file(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("hi")
    (tmp_path / ".lock").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        carry_on(tmp_path)
    assert (tmp_path / ".lock").read_text() == "precious"


def test_a_lock_that_is_a_link_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    for name in ("link", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "link" / ".lock").symlink_to("../victim")
    (tmp_path / "folder" / ".lock").mkdir()
    with pytest.raises(InputError, match=r"\.lock cannot be opened: it is a link"):
        carry_on(tmp_path / "link")
    with pytest.raises(InputError, match=r"\.lock cannot be opened: "):
        carry_on(tmp_path / "folder")
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("damage", ["cut", "pickled", "compressed", "overlapping", "other model", "other round", "text"])
def test_a_damaged_checkpoint_is_named_and_nothing_is_unpickled(tmp_path: Path, damage: str) -> None:
    carry_on(tmp_path, stop_after=2)
    checkpoint = tmp_path / "checkpoint.npz"
    if damage == "cut":
        checkpoint.write_bytes(checkpoint.read_bytes()[:200])
    elif damage == "text":
        checkpoint.write_text("hello")
    elif damage == "pickled":
        np.savez(checkpoint, round=np.int64(2), weights=np.array([Bomb()], dtype=object))
    elif damage == "compressed":  # 40 million zeros in 40 kB
        np.savez_compressed(checkpoint, round=np.int64(2), weights=np.zeros(40_000_000, np.uint8))
    elif damage == "overlapping":  # a hundred names for one array
        np.savez(checkpoint, round=np.int64(2), weights=np.zeros(small_task().model.d, np.float32))
        with zipfile.ZipFile(checkpoint, "a") as file:
            (weights,) = (entry for entry in file.infolist() if entry.filename == "weights.npy")
            for number in range(100):
                again = copy.copy(weights)
                again.filename = f"more-{number}.npy"
                file.filelist.append(again)
            file.writestr("last.npy", b"")  # so that the list is written anew
    elif damage == "other model":
        np.savez(checkpoint, round=np.int64(2), weights=np.zeros(3, np.float32))
    else:
        np.savez(checkpoint, round=np.int64(7), weights=np.zeros(small_task().model.d, np.float32))
    with pytest.raises(InputError, match=r"checkpoint\.npz.*" + ("compressed" if damage in ("compressed", "overlapping") else "")):
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


def full_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """No file of this name is written to its end."""
    sync = files.sync

    def full(file: IO[bytes]) -> None:
        if Path(file.name).name.startswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(files, "sync", full)


def test_a_full_disk_is_named_and_leaves_what_was_written_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry_on(tmp_path, stop_after=2)
    with monkeypatch.context() as patched:
        full_disk(patched, "checkpoint.npz")
        with pytest.raises(OSError, match="No space left") as full:
            carry_on(tmp_path, stop_after=3)
    assert full.value.filename == str(tmp_path / "checkpoint.npz")
    assert [record["round"] for record in read_records(tmp_path)] == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "checkpoint.npz", "experiment.json", "records.jsonl"]
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
                directory.resume(first_state(RUN, task))
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
