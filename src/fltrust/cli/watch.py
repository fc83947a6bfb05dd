"""`fltrust watch`: a live page of a run directory."""

import sys
from pathlib import Path

from fltrust.errors import InputError


def watch(path: Path, *, host: str, port: int | None, open_browser: bool) -> None:
    try:
        from fltrust.watch.serve import serve
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise InputError("fltrust watch needs the packages starlette and uvicorn: pip install 'fltrust[watch]'") from problem
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: name the run directory")
    if not (path / "experiment.json").exists() and (inside := sorted(path.glob("*/experiment.json"))):
        raise InputError(f"{path} is a folder of runs: name one of them, such as {inside[0].parent}")
    if not path.exists():
        print(f"there is no folder {path} yet: the page waits for it", file=sys.stderr)
    serve(path, host=host, port=port, open_browser=open_browser)
