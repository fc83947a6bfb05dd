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
    if before is None and (strange := next((name for name in ("index.html", "figures", "tables") if (out / name).exists()), None)):
        raise InputError(f"{out} has a {strange} that is not of a report with a {LIST}: choose another --out, or empty the folder")
    out.mkdir(parents=True, exist_ok=True)
    _list(out, {*(before or ()), *content})
    written = []
    for name, data in content.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, data)
        written.append(path)
    for name in before or ():
        if name not in content:
            (out / name).unlink(missing_ok=True)
    for folder in ("figures", "tables"):
        if (out / folder).is_dir() and not any((out / folder).iterdir()):
            (out / folder).rmdir()
    _list(out, set(content))
    return written


def _list(out: Path, names: set[str]) -> None:
    replace(out / LIST, json.dumps({"files": sorted(names)}, indent=1).encode())


def _listed(out: Path) -> set[str] | None:
    """What an earlier report wrote here. Only names that a report has count: nobody's list makes us remove another file."""
    if not (out / LIST).exists():
        return None
    files = read_json(out / LIST).get("files")
    return {name for name in files if isinstance(name, str) and _OURS.fullmatch(name)} if isinstance(files, list) else set()
