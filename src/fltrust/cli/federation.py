"""`fltrust new-federation`: a Flower app of one's own, ready to run."""

import shutil
from importlib.resources import as_file, files
from pathlib import Path

from fltrust.errors import InputError
from fltrust.store.files import naming


def create(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists and is not an empty folder: choose another name")
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        with as_file(files("fltrust.flower") / "template") as template:
            _copy(template, path)
    except BaseException as problem:  # also Ctrl-C
        for made in new[-1:] or path.iterdir():
            shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise InputError(f"{problem.filename} cannot be written: {problem.strerror}; nothing is left of {path}") from problem
        raise
    print(f"{path}: a federation of ten nodes; {path / 'README.md'} has the commands that start it")


def _copy(template: Path, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for source in sorted(template.rglob("*")):
        if source.is_file() and source.parent.name != "__pycache__":
            # With a dot at the front of its name, the package would be built without it.
            target = path / ".gitignore" if source.name == "gitignore" else path / source.relative_to(template)
            target.parent.mkdir(exist_ok=True)
            with naming(target):
                target.write_bytes(source.read_bytes())
