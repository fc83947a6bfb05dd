"""The run directory of a federation: the simulator's format, with a verdict on each node and the model as safetensors.

    experiment.json     what decides the numbers, versions and hardware
    records.jsonl       one line a round
    model.safetensors   the global arrays and their round; written last, so what lies beyond it is redone

A server that is killed at any moment goes on from here: each file is there whole or not at all.
"""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import flwr
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fltrust.errors import InputError
from fltrust.flower.layout import Arrays, Layout
from fltrust.store.directory import lock, read_json, read_records, replace
from fltrust.version import __version__


class FederationDirectory:
    """The directory of one federation, locked while it is open."""

    def __init__(self, path: Path, experiment: Mapping[str, Any]) -> None:
        self.path = path
        self.experiment: dict[str, Any] = json.loads(json.dumps(experiment))  # as it will be read again: tuples are lists

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
            written = read_json(declared).get("experiment")
            if written != self.experiment:
                theirs = written if isinstance(written, dict) else {}
                other = [name for name in self.experiment if self.experiment[name] != theirs.get(name)] or ["more"]
                raise InputError(f"{self.path} holds another federation ({', '.join(other)}): choose another directory")
        elif any(entry.name not in (".lock", declared.name + ".part") for entry in self.path.iterdir()):
            raise InputError(f"{self.path} is not empty and holds no federation: choose another directory")
        else:
            declaration = {
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
                "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
            }
            replace(declared, json.dumps(declaration, indent=1).encode())

    def resume(self, layout: Layout, initial: Arrays) -> tuple[int, Arrays, list[dict[str, Any]]]:
        """The last round that is safely on disk, its arrays, and the records up to it; later records, whole or torn, are dropped.

        Before the first round the initial arrays are written down, so that also a run killed in it goes on with the same ones.
        """
        model = self.path / "model.safetensors"
        if not model.exists():
            self._save_model(0, initial)
        after, arrays = read_model(model)
        for name, shape in layout.shapes.items():
            if name not in arrays or arrays[name].shape != shape or arrays[name].dtype != layout.dtypes[name]:
                raise InputError(f"{model} is of another model: {name!r} differs")
        arrays = {name: arrays[name] for name in layout.shapes}
        file = self.path / "records.jsonl"
        records = [record for record in read_records(self.path) if record["round"] <= after]
        if [record["round"] for record in records] != list(range(1, after + 1)):
            raise InputError(f"{file} lacks rounds of the {after} that {model.name} says were recorded: move both away to begin again")
        if file.exists():
            replace(file, b"".join(_line(record) for record in records))
        return after, arrays, records

    def save(self, record: Mapping[str, Any], arrays: Arrays) -> None:
        """Appends a round's record, then makes it the round to resume after."""
        with (self.path / "records.jsonl").open("ab") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())
        self._save_model(int(record["round"]), arrays)

    def _save_model(self, t: int, arrays: Arrays) -> None:
        content = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {"round": str(t)})
        replace(self.path / "model.safetensors", content)


def read_model(path: Path) -> tuple[int, Arrays]:
    """The round and the global arrays that a federation's `model.safetensors` holds."""
    try:
        with safe_open(path, framework="np") as file:
            return int((file.metadata() or {})["round"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as problem:
        raise InputError(f"{path} is damaged ({problem}): move it away to begin again") from problem


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"
