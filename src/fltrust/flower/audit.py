"""The run directory of a federation: the simulator's format, with a verdict on each node and the model as safetensors.

    experiment.json     what decides the numbers, versions and hardware
    records.jsonl       one line a round, with the time and the hash of the model after it
    model.safetensors   the global arrays, their round and a checksum; written last, so the one round that may lie beyond it is redone
    memory-T.safetensors  what a rule with memory remembers after round T, and a checksum; the last two are kept
    set-aside-*.jsonl   what was in records.jsonl beyond the model: nothing that was recorded is ever deleted

A server that is killed at any moment goes on from here: each file is there whole or not at all. Files that do not fit together are refused.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import flwr
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from fltrust.errors import InputError
from fltrust.flower import memory
from fltrust.flower.layout import Arrays, Layout, hash_of
from fltrust.flower.memory import Remembered
from fltrust.rules import Rule
from fltrust.state import leaves
from fltrust.store.files import OwnedDirectory, hardware, replace
from fltrust.store.records import read_records
from fltrust.training.optimisers import ServerOptimiser
from fltrust.version import __version__


class FederationDirectory(OwnedDirectory):
    """The directory of one federation, locked while it is open."""

    holds = "federation"

    def __init__(self, path: Path, experiment: Mapping[str, Any]) -> None:
        super().__init__(path)
        self.experiment: dict[str, Any] = json.loads(json.dumps(experiment))  # as it will be read again: tuples are lists

    def _claim(self) -> None:
        with _writing(self.path / "experiment.json"):
            super()._claim()

    def _check(self, written: dict[str, Any]) -> None:
        theirs = written.get("experiment")
        if theirs != self.experiment:
            other = _differences(self.experiment, theirs if isinstance(theirs, dict) else {}) or ["more"]
            raise InputError(f"{self.path} holds another federation ({', '.join(other)}): {self.remedy}")

    def _declaration(self) -> dict[str, Any]:
        return {
            "key": hashlib.sha256(json.dumps(self.experiment, sort_keys=True).encode()).hexdigest()[:16],
            "kind": "federation",
            "experiment": self.experiment,
            "versions": {
                "fltrust": __version__,
                "flwr": flwr.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "hardware": hardware("cpu"),
        }

    def resume(self, layout: Layout, initial: Arrays) -> tuple[int, Arrays, list[dict[str, Any]]]:
        """The last round that is safely on disk, its arrays, and the records up to it.

        A server that was killed leaves at most one round beyond its model, whole or torn: it is set aside and redone. Before the first
        round the initial arrays are written down, so that also a run killed in it goes on with the same ones.
        """
        model, file = self.path / "model.safetensors", self.path / "records.jsonl"
        lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
        if not model.exists():
            if lines:
                raise InputError(f"{model} is missing, but {file.name} is there: put it back, or choose another directory")
            self._save_model(0, initial)
        after, arrays = read_model(model)
        for name, shape in layout.shapes.items():
            if name not in arrays or arrays[name].shape != shape or arrays[name].dtype != layout.dtypes[name]:
                raise InputError(f"{model} is of another model: {name!r} differs")
        arrays = {name: arrays[name] for name in layout.shapes}
        recorded = read_records(self.path)
        records = recorded[:after]
        if [record["round"] for record in records] != list(range(1, after + 1)):
            raise InputError(f"{file} lacks rounds of the {after} that {model.name} says were recorded: put the right one back")
        if len(recorded) > after + 1:
            raise InputError(
                f"{model} is of round {after}, but {file.name} goes on to round {recorded[-1]['round']}: put the newer one back"
            )
        if after and records[-1].get("model") != hash_of(arrays):
            raise InputError(f"{model} is not the model that {file.name} has for round {after}: put the right one back")
        if beyond := b"".join(lines[after:]):
            self._set_aside(beyond)
            with _writing(file):
                replace(file, b"".join(lines[:after]))
        return after, arrays, records

    def _set_aside(self, beyond: bytes) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        with _writing(path := self.path / f"set-aside-{stamp}.jsonl"), path.open("xb") as file:
            file.write(beyond)
            file.flush()
            os.fsync(file.fileno())

    def remembered(self, after: int, rule: Rule, server: ServerOptimiser, like: Tensor) -> Remembered:
        """What the server remembered after that round."""
        first = Remembered.first(rule, server, like)
        remembers = any(leaves((first.rule, first.server)))
        return memory.read(self._memory_of(after), rule, server, like) if after and remembers else first

    def _memory_of(self, t: int) -> Path:
        return self.path / f"memory-{t}.safetensors"

    def save(self, record: Mapping[str, Any], arrays: Arrays, remembered: Remembered | None = None) -> None:
        """Appends a round's record, with the time and the model's hash, then makes it the round to resume after.

        What is remembered is written before the model, under its round, so that each model has the memory that belongs to it.
        """
        t = int(record["round"])
        keeps = remembered is not None and any(leaves((remembered.rule, remembered.server)))
        if remembered is not None and keeps:
            with _writing(path := self._memory_of(t)):
                replace(path, memory.write(remembered))
        written = {**record, "time": datetime.now(UTC).isoformat(timespec="seconds"), "model": hash_of(arrays)}
        with _writing(path := self.path / "records.jsonl"), path.open("ab") as file:
            file.write(_line(written))
            file.flush()
            os.fsync(file.fileno())
        self._save_model(t, arrays)
        if keeps:
            for older in self.path.glob("memory-*.safetensors"):
                if older not in (self._memory_of(t), self._memory_of(t - 1)):
                    older.unlink(missing_ok=True)

    def _save_model(self, t: int, arrays: Arrays) -> None:
        content = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {"round": f"{t} {_checksum(t, arrays)}"})
        with _writing(path := self.path / "model.safetensors"):
            replace(path, content)


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The names of what differs; inside `root`, which of its settings."""
    names = []
    for name in ours:
        mine, other = ours[name], theirs.get(name)
        if name == "root" and isinstance(mine, dict) and isinstance(other, dict):
            names += [f"root {setting}" for setting in sorted({*mine, *other}) if mine.get(setting) != other.get(setting)]
        elif mine != other:
            names.append(name)
    return names


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A disk that is full does not say which file it was."""
    try:
        yield
    except OSError as problem:
        raise InputError(f"{path} cannot be written: {problem.strerror or problem}") from problem


def read_model(path: Path) -> tuple[int, Arrays]:
    """The round and the global arrays that a federation's `model.safetensors` holds."""
    try:
        with safe_open(path, framework="np") as file:
            number, checksum = (file.metadata() or {})["round"].split()  # one entry: safetensors writes several in any order
            t, arrays = int(number), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as problem:
        raise InputError(f"{path} is damaged ({problem}): put a good copy back, or choose another directory") from problem
    if checksum != _checksum(t, arrays):
        raise InputError(f"{path} is damaged (its checksum is wrong): put a good copy back, or choose another directory")
    return t, arrays


def _checksum(t: int, arrays: Arrays) -> str:
    return hashlib.sha256(f"{t} {hash_of(arrays)}".encode()).hexdigest()


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"
