"""Reading a run directory, of a simulation or of a federation, finished or not; and the line that a record becomes.

    experiment.json   "kind" (simulation or federation), the experiment, the data files' hashes, versions and hardware
    records.jsonl     one line per recorded round

A simulation keeps its state in checkpoint.npz beside them, a federation its model in model.safetensors.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fltrust.errors import InputError
from fltrust.store.files import open_regular, read_json, whole_lines

if TYPE_CHECKING:  # reading needs no torch
    from fltrust.record import Record

Kind = Literal["simulation", "federation"]
ABOUT = ("files", "warnings", "versions", "hardware")
MOST_ROUNDS = 2**53  # a browser, which shows them, counts no further


@dataclass(frozen=True)
class Run:
    """What a run directory holds, as it stands there."""

    path: Path
    kind: Kind
    key: str
    declared: dict[str, Any]  # the experiment
    about: Mapping[str, Any]
    records: list[dict[str, Any]]


def read_run(path: Path) -> Run:
    """A run directory, also of a run that is under way or was cut off."""
    return replace(read_declaration(path), records=read_records(path))


def read_declaration(path: Path) -> Run:
    """What a run directory declares, without its records."""
    written = read_json(path / "experiment.json")
    kind = written.get("kind", "simulation")  # the first version had no other
    if kind not in ("simulation", "federation"):
        raise InputError(f"{path / 'experiment.json'} declares a {kind!r}, expected a simulation or a federation")
    if not isinstance(declared := written.get("experiment"), dict):
        raise InputError(f"{path / 'experiment.json'} declares no experiment")
    about = {name: written.get(name) for name in ABOUT}
    return Run(path, kind, str(written.get("key")), declared, about, [])


def read_records(path: Path) -> list[dict[str, Any]]:
    """The recorded rounds of a run directory."""
    return [record for record, _ in lines(path / "records.jsonl")]


def lines(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The records and their lines, but for a last one without its end."""
    if path.exists():
        with open_regular(path) as file:
            for number, line in enumerate(whole_lines(file, path), 1):
                yield record_of(line, path, number), line


def record_of(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """The record that a line of a file holds."""
    try:
        record: dict[str, Any] = json.loads(line)
        whole = type(record["round"]) is int and 0 <= record["round"] <= MOST_ROUNDS
    except (ValueError, TypeError, KeyError, RecursionError):
        whole = False
    if not whole:
        raise InputError(f"{path}, line {number}, is no record: the file is damaged")
    return record


def shares_of(record: Mapping[str, Any]) -> Any:
    """Each client's share of the global update; older directories call it "weight"."""
    return record["shares"] if "shares" in record else record.get("weight")


def line_of(record: "Record") -> bytes:
    """A record as a line of JSON. Metrics stand beside the rest, each under its own name."""
    written: dict[str, Any] = {"round": record.round, "train_error": None, "test_error": None, "success": None}
    written |= {name: _finite(value) for name, value in record.metrics.items()}
    written |= {"malicious": record.malicious, "clients": record.clients}
    for name in ("shares", "trust", "cosine", "norm", "peers", "closest"):
        values = getattr(record, name)
        written[name] = None if values is None else [_short(value) for value in values]
    written |= {"closest_to": record.closest_to, "root_norm": None if record.root_norm is None else _short(record.root_norm)}
    return json.dumps(written).encode() + b"\n"


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity."""
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
