"""The folder of a report: it holds one report, never the remains of another, and nothing else is touched."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from fltrust.errors import InputError
from fltrust.store.files import read_json, replace

LIST = "report.json"  # the files of the report in this folder
_OURS = re.compile(r"index\.html|(figures|tables)/[\w+-][\w.+-]*")


def write(content: Mapping[str, bytes], out: Path) -> list[Path]:
    """Replaces the report in the folder, file by file, and removes files of the one before. A list of both stands there meanwhile."""
    before = _listed(out)
    strange = [name for name in content if name not in before and (out / name).exists()]
    strange += [name for name in ("figures", "tables") if (out / name).is_symlink() or (not before and (out / name).exists())]
    if strange:
        raise InputError(f"{out / strange[0]} is not of a report with a {LIST}: choose another --out, or empty the folder")
    out.mkdir(parents=True, exist_ok=True)
    _list(out, {*before, *content})
    written = []
    for name, data in content.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data)
        written.append(path)
    for name in before:
        if name not in content:
            (out / name).unlink(missing_ok=True)
    for folder in ("figures", "tables"):
        if (out / folder).is_dir() and not any((out / folder).iterdir()):
            (out / folder).rmdir()
    _list(out, set(content))
    return written


def _list(out: Path, names: set[str]) -> None:
    replace(out / LIST, json.dumps({"files": sorted(names)}, indent=1).encode())


def _listed(out: Path) -> set[str]:
    """What an earlier report wrote here. A list with any other name is not ours: a user's own file may be called the same."""
    if not (out / LIST).exists():
        return set()
    files = read_json(out / LIST).get("files")
    if not isinstance(files, list) or not all(isinstance(name, str) and _OURS.fullmatch(name) for name in files):
        raise InputError(f"{out / LIST} is not of a report: choose another --out, or empty the folder")
    return set(files)
