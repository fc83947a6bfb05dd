"""Stored runs whose data or plug-in changed since do not stand for the new ones: a run's key does not know what is in a file."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fltrust import datasets
from fltrust.datasets.own import code_of, is_own
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.report.words import plural
from fltrust.store.files import read_json
from fltrust.store.results import Result, file_of
from fltrust.tasks.build import data_files, plugins_of

Files = Mapping[str, str]  # and their sha256


def refuse_changed(stored: Iterable[Result], data: Mapping[str, Files | None], out: Path, asked: Iterable[Experiment] = ()) -> None:
    """Refuses results of the folder `out` that were made with other plug-ins than those loaded, or from other `data` than these.

    `asked` are the runs whose results will be written: none may take the place of one that was made with another plug-in.
    """
    stale: dict[str, dict[Path, None]] = {}
    for result in stored:
        for name in _changed(result, data.get(result.run.dataset)):
            stale.setdefault(name, {})[result.file or file_of(result.run, out)] = None
    for run in asked:
        for name in _replaced(run, file_of(run, out)):
            stale.setdefault(name, {})[file_of(run, out)] = None
    if stale:
        name, files = min(stale.items())
        after = f"{name} was changed, added or removed after {plural(len(files), 'run')} in {out}"
        raise InputError(f"{after}: choose another --out, or delete them, such as {next(iter(files))}")


def _replaced(run: Experiment, path: Path) -> set[str]:
    """The run's plug-ins that differ from those of the result in its file. A key leaves out defaults, so it may be another run's."""
    plugins = _plugins(run)
    if not plugins or not path.exists():
        return set()
    try:
        recorded = read_json(path).get("files")
    except InputError:  # it is damaged, and nothing of it can be lost
        return set()
    return {name for name in plugins if isinstance(recorded, Mapping) and recorded.get(name) != plugins[name]}


def _changed(result: Result, data: Files | None) -> set[str]:
    """The files that differ from those of the result, or that only one side has; `data` is None if they were not loaded."""
    run, plugins = result.run, _plugins(result.run)
    recorded = result.about["files"] if isinstance(result.about["files"], Mapping) else {}
    current = {**(data or {}), **(plugins or {})}
    every_plugin = plugins is not None and (data is not None or not is_own(run.dataset))  # one's own data may bring an objective
    gone = {name for name in recorded if (every_plugin if name.endswith(".py") else data is not None)}
    code = code_of(run.dataset)
    unused = {code.name} - (plugins or {}).keys() if code else set()  # of a task's code, what it returns counts
    return {name for name in (current.keys() | gone) - unused if current.get(name) != recorded.get(name)}


def own_data(asked: Collection[str], stored: Iterable[Result], data_dir: str | None) -> dict[str, Files | None]:
    """The files of users' own data, of those that are asked for alone: a stored run may name any file, and loading would run it."""
    used = {result.run.dataset for result in stored} & set(asked)
    return {name: _files(name, data_dir) for name in used if is_own(name)}


def _files(name: str, data_dir: str | None) -> Files | None:
    try:
        return data_files(datasets.examples_of(name, data_dir))
    except InputError:  # they are not here: the runs will say so, unless a cluster has them
        return None


def _plugins(run: Experiment) -> Files | None:
    try:
        return plugins_of(run)
    except InputError:  # the plug-in of a stored run is not loaded
        return None
