"""The run directory of a simulation: it survives a crash at any moment, and a run resumes there with the same bits.

    experiment.json   the experiment, the data files' hashes, versions and hardware
    records.jsonl     one line per evaluated round
    checkpoint.npz    the round and the whole state; written last, so what lies beyond it is redone

`records.py` reads what is written here.
"""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_declaration
from fltrust.state import State, leaves, restored
from fltrust.store.files import OwnedDirectory, hardware, rename, replace, sync
from fltrust.store.records import line_of, lines
from fltrust.version import __version__

if TYPE_CHECKING:  # who only reads does not load the simulator
    from fltrust.record import Record
    from fltrust.tasks.task import Task


class RunDirectory(OwnedDirectory):
    """The directory of one run, locked while it is open: `with RunDirectory(path, run, task) as directory: ...`."""

    remedy = "choose another --out"

    def __init__(self, path: Path, run: Experiment, task: "Task") -> None:
        super().__init__(path)
        self.run, self.task = run, task

    def _check(self, written: dict[str, Any]) -> None:
        if not self._same(written):
            raise InputError(f"{self.path} holds another experiment ({self._differences(written)}): {self.remedy}")
        files = written.get("files")
        if files != self.task.files:
            theirs = files if isinstance(files, dict) else {}
            changed = sorted(name for name in theirs.keys() | self.task.files if theirs.get(name) != self.task.files.get(name))
            raise InputError(f"{self.path} was begun with other data files or plug-ins ({', '.join(changed)}): {self.remedy}")

    def _differences(self, written: Mapping[str, Any]) -> str:
        """The fields in which what a directory declares differs from this experiment."""
        theirs, ours = written.get("experiment"), self.run.to_dict()
        names = [name for name in ours if theirs.get(name) != ours[name]] if isinstance(theirs, dict) else []
        return f"it differs in {', '.join(names)}" if names else "it differs"

    def _same(self, written: Mapping[str, Any]) -> bool:
        """Whether a directory declares this experiment, also one that an earlier version wrote with fewer fields."""
        declared, kind = written.get("experiment"), written.get("kind", "simulation")
        try:
            return kind == "simulation" and isinstance(declared, dict) and from_declaration(declared) == self.run
        except InputError:
            return False

    def _declaration(self) -> dict[str, Any]:
        return {
            "key": self.run.key,
            "kind": "simulation",
            "experiment": self.run.to_dict(),
            "files": self.task.files,
            "warnings": list(self.task.warnings),
            "versions": {"fltrust": __version__, "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()},
            "hardware": hardware(self.task.device.type),
        }

    def resume(self, like: State) -> tuple[int, State | None]:
        """The last round that is safely on disk and its state, which must be `like` the first one; later records are dropped."""
        after, state = self._checkpoint(like)
        records = self.path / "records.jsonl"
        kept = [(record, line) for record, line in lines(records) if record["round"] <= after]
        if after and (not kept or kept[-1][0]["round"] != after):
            raise InputError(f"{records} lacks round {after}, which checkpoint.npz says was recorded: move both away to begin again")
        if records.exists():
            replace(records, b"".join(line for _, line in kept))
        return after, state

    def _checkpoint(self, like: State) -> tuple[int, State | None]:
        checkpoint = self.path / "checkpoint.npz"
        if not checkpoint.exists():
            return 0, None
        try:
            with checkpoint.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                after = int(saved["round"])
                tensors = {name: torch.from_numpy(saved[name]) for name in saved.files if name != "round"}
        except Exception as problem:  # a damaged file makes numpy and zipfile raise nearly anything
            raise InputError(f"{checkpoint} is damaged ({problem}): move it away to begin again") from problem
        if not 1 <= after <= self.run.rounds:
            raise InputError(f"{checkpoint} says round {after} of {self.run.rounds}: move it away to begin again")
        return after, restored(like, tensors, checkpoint)

    def save(self, *records: "Record") -> None:
        """Appends evaluated records, then makes the last one's round the one to resume after."""
        last = records[-1]
        assert last.state is not None
        with (self.path / "records.jsonl").open("ab") as file:
            file.write(b"".join(map(line_of, records)))
            sync(file)
        beside = self.path / "checkpoint.npz.part"
        with beside.open("wb") as file:
            tensors = {name: leaf.cpu().numpy() for name, leaf in leaves(last.state)}
            np.savez(file, allow_pickle=False, round=np.int64(last.round), **tensors)
            sync(file)
        rename(beside, self.path / "checkpoint.npz")
