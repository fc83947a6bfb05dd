"""Loggers, each with its real package in its own process: what a run that was interrupted and resumed has sent."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import small_task
from test_round import small_run

from fltrust.errors import InputError
from fltrust.registry import LOGGERS
from fltrust.running.loggers import logger, parameters, scalars
from fltrust.running.loop import play
from fltrust.simulation import simulate
from fltrust.store.records import read_records

INTERRUPTED = """
import contextlib, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_store import RUN, Stop, Stopped, small_task
from fltrust.running.loggers import logger
from fltrust.running.loop import play
for stop in (3, 99):
    with contextlib.suppress(Stopped):
        play(RUN, small_task(malicious=2), [logger(sys.argv[2]), Stop(stop)], path=Path("run"))
"""

# Prints the test error that the logger has for each round.
TENSORBOARD = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("run/tensorboard")
events.Reload()
print({event.step: event.value for event in events.Scalars("test_error")})
"""
MLFLOW = """
from mlflow import MlflowClient
client = MlflowClient("sqlite:///mlflow.db")
(run,) = client.search_runs([client.get_experiment_by_name("fltrust").experiment_id])
assert run.info.status == "FINISHED", run.info.status
assert run.data.params["attack.name"] == "trim", run.data.params
print({point.step: point.value for point in client.get_metric_history(run.info.run_id, "test_error")})
"""
WANDB = """
import json, struct
from pathlib import Path
from wandb.proto import wandb_internal_pb2

def parts(content, place=7, block=32768):  # a LevelDB log after a header of 7 bytes
    whole = b""
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # full, last
            yield whole
            whole = b""

found, ids = {}, set()
for file in sorted(Path("run/wandb").glob("offline-run-*/*.wandb")):
    for part in parts(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(part)
        if record.HasField("run"):
            ids.add(record.run.run_id)
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if "test_error" in items:
            found[record.history.step.num] = items["test_error"]
assert len(ids) == 1, ids
print(found)
"""


def python(script: str, *arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "reader"),
    [("tensorboard", TENSORBOARD), ("mlflow:sqlite:///mlflow.db", MLFLOW), ("wandb", WANDB)],
    ids=["tensorboard", "mlflow", "wandb"],
)
def test_a_resumed_run_is_logged_once_and_whole(tmp_path: Path, choice: str, reader: str) -> None:
    package = choice.partition(":")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    python(INTERRUPTED, str(Path(__file__).parent), choice, cwd=tmp_path)
    sent: dict[int, float] = ast.literal_eval(python(reader, cwd=tmp_path).splitlines()[-1])
    assert sent == pytest.approx({record["round"]: record["test_error"] for record in read_records(tmp_path / "run")})
    assert len(sent) == 6


@pytest.mark.slow
def test_json_lines_are_the_records(tmp_path: Path) -> None:
    python(INTERRUPTED, str(Path(__file__).parent), "jsonl:lines.jsonl", cwd=tmp_path)
    assert (tmp_path / "lines.jsonl").read_bytes() == (tmp_path / "run" / "records.jsonl").read_bytes()
    said = python(INTERRUPTED, str(Path(__file__).parent), "jsonl", cwd=tmp_path / "run")  # another folder, the same run
    assert [json.loads(line)["round"] for line in said.splitlines()] == [1, 2, 3, 4, 5, 6]


def test_a_missing_package_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=rf"needs the package {name}: pip install 'fltrust\[{name}\]'"):
            logger(name)
    with pytest.raises(InputError, match="unknown logger 'tensorbord': did you mean 'tensorboard'"):
        logger("tensorbord")


def test_what_is_logged() -> None:
    run = small_run(malicious=2, metrics=("class_error", "confusion"))
    numbers = scalars(next(simulate(run, small_task(malicious=2))))
    assert {"train_error", "test_error", "class_error/0", "trust/honest", "shares/malicious"} <= numbers.keys()
    assert numbers["shares/honest"] + numbers["shares/malicious"] == pytest.approx(1)
    assert not any(name.startswith("confusion") for name in numbers)  # a matrix is no curve
    assert parameters(run)["rule.name"] == "fltrust"


def test_a_logger_of_ones_own_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    from fltrust.running.sinks import Sink

    monkeypatch.setattr(LOGGERS, "_entries", dict(LOGGERS._entries))
    seen: list[Any] = []

    @LOGGERS.register("mine")
    class Mine(Sink):
        def __init__(self, target: str | None) -> None:
            self.target = target

        def record(self, record: Any) -> None:
            seen.append((self.target, record.round))

    play(small_run(rounds=2), small_task(), [logger("mine:a:b")])
    assert seen == [("a:b", 1), ("a:b", 2)]
