"""Files that a user's file imports from its own folder: found as `python FILE` finds them. A run's numbers depend on them too."""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fltrust.errors import InputError

_FOLDERS: dict[Path, Path] = {}  # of each file that one of a user's files imports from its folder: that folder


@contextmanager
def importing_beside(path: Path) -> Iterator[None]:
    """Meanwhile imports look into the file's folder first. Equally named files of two folders would be one module: they are refused."""
    folder = path.parent
    for file in sorted(set(whole_code(path).values()) - {path}):
        loaded = Path(str(getattr(sys.modules.get(file.relative_to(folder).with_suffix("").parts[0]), "__file__", "")))
        if _FOLDERS.get(loaded, folder) != folder:
            raise InputError(f"it imports {file}, but {loaded} is loaded under this name: rename one of them")
        _FOLDERS[file] = folder
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def is_beside(path: Path) -> bool:
    """Whether one of a user's files imports this one from its folder."""
    return path in _FOLDERS


def whole_code(path: Path) -> dict[str, Path]:
    """The file, the files of its folder that it imports, and those that they import, by their names there.

    They are read, not run, so that the answer does not depend on what else was imported before.
    """
    folder = _FOLDERS.get(path, path.parent)
    found: dict[str, Path] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        name = file.relative_to(folder).as_posix()
        if name not in found and file.is_file():
            found[name] = file
            for module in _imported(file, folder):
                for end in range(1, len(module) + 1):  # importing a.b runs a too
                    place = folder.joinpath(*module[:end])
                    waiting += [place.with_suffix(".py"), place / "__init__.py"]
    return found


def _imported(file: Path, folder: Path) -> Iterator[tuple[str, ...]]:
    """What may be a module: of `from a import b`, also a.b."""
    try:
        code = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # whoever loads it will hear of it
        return
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = file.relative_to(folder).parts[: -node.level] if node.level else ()
            within = node.module.split(".") if node.module else []
            yield from ((*package, *within, alias.name) for alias in node.names)
