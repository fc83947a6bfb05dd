"""`fltrust watch`: a live page of a run directory."""

from pathlib import Path

from fltrust.errors import InputError


def watch(path: Path, *, host: str, port: int | None, open_browser: bool) -> None:
    try:
        from fltrust.watch.serve import serve
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise InputError("fltrust watch needs the packages starlette and uvicorn: pip install 'fltrust[watch]'") from problem
    serve(path, host=host, port=port, open_browser=open_browser)
