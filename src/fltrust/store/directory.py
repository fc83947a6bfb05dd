"""Records on disk: a run directory that survives a crash at any moment.

    experiment.json   the experiment, the data files' hashes, versions and hardware
    records.jsonl     one line per evaluated round
    checkpoint.npz    the round and the global weights; written last, so what lies beyond it is redone

Nothing is pickled, and everything that is replaced is replaced at once by a rename.
"""

import fcntl
import json
import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import torch

from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.round import first_state
from fltrust.state import State, leaves, restored
from fltrust.tasks.task import Task
from fltrust.version import __version__


class RunDirectory:
    """The directory of one run, locked while it is open: `with RunDirectory(path, run, task) as directory: ...`."""

    def __init__(self, path: Path, run: Experiment, task: Task) -> None:
        self.path, self.run, self.task = path, run, task

    def __enter__(self) -> Self:
        self._lock = lock(self.path)
        try:
            self._claim()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.close()

    def _claim(self) -> None:
        declared = self.path / "experiment.json"
        if declared.exists():
            written = read_json(declared)
            if written.get("experiment") != self.run.to_dict():
                raise InputError(
                    f"{self.path} holds another experiment ({written.get('key')}, this one is {self.run.key}): choose another --out"
                )
            if written.get("files") != self.task.files:
                raise InputError(f"{self.path} was begun with other data files: choose another --out")
        elif any(entry.name not in (".lock", declared.name + ".part") for entry in self.path.iterdir()):
            raise InputError(f"{self.path} is not empty and holds no run: choose another --out")
        else:
            replace(declared, json.dumps(self._declaration(), indent=1).encode())

    def _declaration(self) -> dict[str, Any]:
        device = self.task.device
        return {
            "key": self.run.key,
            "experiment": self.run.to_dict(),
            "files": self.task.files,
            "warnings": list(self.task.warnings),
            "versions": {"fltrust": __version__, "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()},
            "hardware": hardware(device.type),
        }

    def resume(self) -> tuple[int, State | None]:
        """The last round that is safely on disk and its state; records beyond it, whole or torn, are dropped."""
        checkpoint = self.path / "checkpoint.npz"
        if not checkpoint.exists():
            after, state = 0, None
        else:
            try:
                with checkpoint.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                    after = int(saved["round"])
                    tensors = {name: torch.from_numpy(saved[name]) for name in saved.files if name != "round"}
            except Exception as problem:  # a damaged file makes numpy and zipfile raise nearly anything
                raise InputError(f"{checkpoint} is damaged ({problem}): move it away to begin again") from problem
            state = restored(first_state(self.run, self.task), tensors, checkpoint)
            if not 1 <= after <= self.run.rounds:
                raise InputError(f"{checkpoint} says round {after} of {self.run.rounds}: move it away to begin again")
        records = self.path / "records.jsonl"
        kept = [(record, line) for record, line in _lines(records) if record["round"] <= after]
        if after and (not kept or kept[-1][0]["round"] != after):
            raise InputError(f"{records} lacks round {after}, which {checkpoint.name} says was recorded: move both away to begin again")
        if records.exists():
            replace(records, b"".join(line for _, line in kept))
        return after, state

    def save(self, *records: Record) -> None:
        """Appends evaluated records, then makes the last one's round the one to resume after."""
        last = records[-1]
        assert last.state is not None
        with (self.path / "records.jsonl").open("ab") as file:
            file.write(b"".join(_line(record) for record in records))
            file.flush()
            os.fsync(file.fileno())
        beside = self.path / "checkpoint.npz.part"
        with beside.open("wb") as file:
            tensors = {name: leaf.cpu().numpy() for name, leaf in leaves(last.state)}
            np.savez(file, allow_pickle=False, round=np.int64(last.round), **tensors)
            file.flush()
            os.fsync(file.fileno())
        _rename(beside, self.path / "checkpoint.npz")


def lock(path: Path) -> IO[str]:
    """Makes the directory and keeps other processes from writing there until the file is closed, also by the end of this process."""
    path.mkdir(parents=True, exist_ok=True)
    file = (path / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        file.close()
        raise InputError(f"{path} is in use by another process") from problem
    return file


def hardware(device: str) -> str:
    """What computes, in words."""
    return torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"


def read_records(path: Path) -> list[dict[str, Any]]:
    """The evaluated rounds of a run directory, also of one that is still running or was cut off."""
    return [record for record, _ in _lines(path / "records.jsonl")]


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise InputError(f"{path} cannot be read: {problem}") from problem
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object")
    return content


def _line(record: Record) -> bytes:
    """Metrics stand beside the rest, each under its own name."""
    written: dict[str, Any] = {"round": record.round, "train_error": None, "test_error": None, "success": None, **record.metrics}
    written |= {"malicious": record.malicious, "clients": record.clients}
    for name in ("shares", "trust", "cosine", "norm"):
        values = getattr(record, name)
        written[name] = None if values is None else [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
    return json.dumps(written).encode() + b"\n"


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The records and their lines; a last line without its end was being written when the run was cut off, and is left out."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\n"):
            try:
                record = json.loads(line)
                whole = isinstance(record["round"], int)
            except (ValueError, TypeError, KeyError):
                whole = False
            if not whole:
                raise InputError(f"{path}, line {number}, is no record: the file is damaged")
            yield record, line


def replace(path: Path, content: bytes) -> None:
    """Writes a file so that it is there whole or not at all, whatever happens meanwhile."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _rename(beside, path)


def _rename(source: Path, target: Path) -> None:
    """Puts the new file in place at once, and makes sure that a power failure does not undo it."""
    source.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
