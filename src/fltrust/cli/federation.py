"""`fltrust new-federation`: a Flower app of one's own, ready to run."""

import shutil
from importlib.resources import as_file, files
from pathlib import Path

from fltrust.errors import InputError


def create(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} is there already and not an empty folder: choose another")
    with as_file(files("fltrust.flower") / "template") as template:
        shutil.copytree(template, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (path / "gitignore").rename(path / ".gitignore")  # a dot at the front, and the package would be built without it
    print(f"{path}: a federation of ten nodes; {path / 'README.md'} has the commands that start it")
