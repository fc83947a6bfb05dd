"""Stored runs whose data or plug-in changed since do not stand for the new ones: a run's key does not know what is in a file."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from fltrust import datasets
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.redteam.facts import data_files
from fltrust.registry import DATASETS
from fltrust.report.words import plural
from fltrust.store.results import Result, file_of
from fltrust.tasks.build import plugins_of

Files = Mapping[str, str]  # and their sha256


def refuse_changed(stored: Iterable[Result], data: Mapping[str, Files], out: Path) -> None:
    """Refuses results of the folder `out` that were made with other plug-ins than those loaded, or from other `data` than these."""
    stale: dict[str, list[Result]] = {}
    for one in stored:
        now, then = {**data.get(one.run.dataset, {}), **_plugins(one.run)}, one.about["files"]
        for name in now.keys() & then.keys() if isinstance(then, Mapping) else ():
            if now[name] != then[name]:
                stale.setdefault(name, []).append(one)
    if stale:
        name, runs = min(stale.items())
        used = f"{name} changed after {plural(len(runs), 'run')} in {out} had used it"
        raise InputError(f"{used}: choose another --out, or delete them, such as {file_of(runs[0].run, out)}")


def own_data(asked: Collection[str], stored: Iterable[Result], data_dir: str | None) -> dict[str, Files]:
    """The files of users' own data, of those that are asked for alone: a stored run may name any file, and loading would run it."""
    used = {one.run.dataset for one in stored} & set(asked)
    return {name: _files(name, data_dir) for name in used if name not in DATASETS or DATASETS[name].load is not None}


def _files(name: str, data_dir: str | None) -> dict[str, str]:
    try:
        return data_files(datasets.examples_of(name, data_dir))
    except InputError:  # they are not here: the runs will say so, unless a cluster has them
        return {}


def _plugins(run: Experiment) -> dict[str, str]:
    try:
        return plugins_of(run)
    except InputError:  # the plug-in of a stored run is not loaded
        return {}
