"""The run directory of a simulation: it survives a crash at any moment, and a run resumes there with the same bits.

    experiment.json   the experiment, the data files' hashes, versions and hardware
    records.jsonl     one line per evaluated round
    checkpoint.npz    the round and the whole state; written last, so what lies beyond it is redone
    set-aside-*.jsonl the records of a run whose checkpoint was deleted, so that it had to begin again

An experiment with more rounds extends the run: nothing in a round depends on how many follow. `records.py` reads what is written here.
"""

import dataclasses
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_declaration
from fltrust.state import State, leaves, restored
from fltrust.store.differences import differences
from fltrust.store.files import OwnedDirectory, hardware, naming, replace, replacing, set_aside, sync
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
        self.notes: list[str] = []  # what a person should know about how the run resumes

    def _check(self, written: dict[str, Any]) -> None:
        if written.get("kind", "simulation") != "simulation":
            raise InputError(f"{self.path} holds a {written['kind']}, not a run of 'fltrust run': {self.remedy}")
        theirs = self._declared(written)
        extends = theirs.rounds < self.run.rounds
        if dataclasses.replace(theirs, rounds=self.run.rounds if extends else theirs.rounds) != self.run:
            raise InputError(f"{self.path} holds another experiment ({differences(theirs, self.run)}): {self.remedy}")
        files = written.get("files")
        if files != self.task.files:
            known = files if isinstance(files, dict) else {}
            changed = sorted(name for name in known.keys() | self.task.files if known.get(name) != self.task.files.get(name))
            raise InputError(f"{self.path} was begun with other data files or plug-ins ({', '.join(changed)}): {self.remedy}")
        if extends:
            longer = {**written, "key": self.run.key, "experiment": self.run.to_dict()}
            replace(self.path / "experiment.json", json.dumps(longer, indent=1).encode())
            self.notes.append(f"{self.path}: extended from {theirs.rounds:,} to {self.run.rounds:,} rounds")

    def _declared(self, written: Mapping[str, Any]) -> Experiment:
        """The experiment of a directory, also one that an earlier version wrote with fewer fields."""
        declared = written.get("experiment")
        if not isinstance(declared, dict):
            raise InputError(f"{self.path / 'experiment.json'} declares no experiment: {self.remedy}")
        try:
            return from_declaration(declared)
        except InputError as problem:
            raise InputError(f"{self.path / 'experiment.json'} cannot be read ({problem}): {self.remedy}") from problem

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
        records = self.path / "records.jsonl"
        if not (self.path / "checkpoint.npz").exists():
            self._begin_again(records)
            return 0, None
        after, state = self._checkpoint(like)
        last = after if after == self.run.rounds else after - after % self.run.evaluate_every
        # The last round of a run that is extended may be one that the longer run does not evaluate.
        kept = [(record["round"], line) for record, line in lines(records) if record["round"] <= last]
        if last and (not kept or kept[-1][0] != last):
            raise InputError(f"{records} lacks round {last}, which checkpoint.npz says was recorded: move both away to begin again")
        replace(records, b"".join(line for _, line in kept))
        return after, state

    def _begin_again(self, records: Path) -> None:
        """Without a checkpoint: it was deleted, or the run was killed before its first one."""
        many = sum(1 for _ in lines(records))
        if many:
            aside = set_aside(records)
            kept = "the record of 1 round is" if many == 1 else f"the records of {many:,} rounds are"
            self.notes.append(f"{self.path}: checkpoint.npz is missing, so the run starts again; {kept} now in {aside.name}")
        else:
            records.unlink(missing_ok=True)  # half a line

    def _checkpoint(self, like: State) -> tuple[int, State | None]:
        checkpoint = self.path / "checkpoint.npz"
        try:
            with checkpoint.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                if sum(entry.file_size for entry in saved.zip.infolist()) > os.fstat(file.fileno()).st_size:
                    raise ValueError("it is compressed, which no run writes")  # a few bytes could fill the memory
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
        path = self.path / "records.jsonl"
        with naming(path), path.open("ab") as file:
            file.write(b"".join(map(line_of, records)))
            sync(file)
        tensors = {name: leaf.cpu().numpy() for name, leaf in leaves(last.state)}
        with replacing(self.path / "checkpoint.npz") as file:
            np.savez(file, allow_pickle=False, round=np.int64(last.round), **tensors)
