"""Stored runs whose data or plug-in changed since: every command that would take them for new ones says so in one line."""

import dataclasses
import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from made_up import made_up
from typer.testing import CliRunner

from fltrust import datasets
from fltrust.cli import app
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.league.worst_case import asked
from fltrust.paper.exhibit import declared
from fltrust.registry import ATTACKS, DATASETS, OBJECTIVES, RULES, load_plugin
from fltrust.store import results
from fltrust.tasks.build import build_task, plugins_of

PLUGIN = """
from dataclasses import dataclass
from fltrust import ATTACKS, RULES, FedAvg, SignFlip
from fltrust.datasets import Profile
from fltrust.registry import DATASETS

@RULES.register("my-rule")
@dataclass(frozen=True)
class Mine(FedAvg):
    "The mean."

@ATTACKS.register("my-attack")
@dataclass(frozen=True)
class Flip(SignFlip):
    "The opposite."

def load(data_dir):
    raise AssertionError("nobody needs these data")

DATASETS.register("my-data")(Profile({}, "mine", load=load))
"""
OBJECTIVE = """
from dataclasses import dataclass
from fltrust.objectives import CrossEntropy
from fltrust.registry import OBJECTIVES

@OBJECTIVES.register("my-objective")
@dataclass(frozen=True)
class Mine(CrossEntropy):
    "The same."
"""
SETTINGS = 'model = "logistic"\nnum_clients = 6\nmalicious = 1\nrounds = 4\nbatch_size = 4\nglobal_lr = 0.05\nroot_size = 6\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plug-in, loaded, and arrays of one's own, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for registry in (RULES, ATTACKS, DATASETS, OBJECTIVES):
        list(registry)
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    Path("mine.py").write_text(PLUGIN)
    load_plugin(Path("mine.py"))
    Path("points").mkdir()
    Path("points/task.toml").write_text(SETTINGS)
    for part, count in (("train", 60), ("test", 12)):
        np.save(f"points/{part}_targets.npy", np.arange(count) % 3)
        np.save(f"points/{part}_inputs.npy", np.ones((count, 2), np.float32))
    return tmp_path


def store(run: Experiment, files: Mapping[str, str]) -> str:
    """A finished run in the folder out, as a sweep would leave it; returns its file."""
    path = results.write(made_up(run, files=dict(files)), Path("out"))
    Path("out/sweep.json").write_text('{"planned": {}, "left_out": {}}')
    return str(path)


def fltrust(*words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--device", "cpu", "--out", "out"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def change(path: str) -> None:
    with Path(path).open("a") as file:
        file.write("# another one\n")


def sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def said(name: str, path: str) -> str:
    changed = f"{re.escape(name)} was changed, added or removed after 1 run in out"
    return f"^{changed}: choose another --out, or delete them, such as {re.escape(path)}$"


@pytest.mark.parametrize(
    "command",
    [
        ["league", "--attack", "trim", "--format", "csv"],
        ["worst-case", "--share", "20", "--format", "csv"],
        ["league", "--attack", "trim", "--dry-run"],
        ["worst-case", "--share", "20", "--dry-run"],
        ["sweep", "--attack", "trim", "--dry-run"],
    ],
    ids=" ".join,
)
def test_a_plug_in_that_changed_is_named(folder: Path, command: list[str]) -> None:
    words = [*command, "--dataset", "har", "--plugin", "mine.py", "--rule"]
    path = store(declared("har", "my-rule", "trim"), {"mine.py": sha256("mine.py")})
    fltrust(*words, "my-rule")
    change("mine.py")
    with pytest.raises(InputError, match=said("mine.py", path)):
        fltrust(*words, "my-rule")
    if command[0] != "sweep":  # a sweep's report shows all that its folder holds
        fltrust(*words, "median")


PARAMETER = PLUGIN.replace('"The mean."', '"The mean."\n    beta: float = 0.5', 1)


@pytest.mark.parametrize("default", ["0.6", None], ids=["another default", "no such parameter"])
@pytest.mark.parametrize("command", ["league", "worst-case", "sweep"])
def test_a_run_made_with_another_default_is_neither_damaged_nor_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, default: str | None
) -> None:
    """A run's key leaves out defaults: the old run's file has the name that the new one's will have."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it knows two files of one second and one size as the same
    Path("mine.py").write_text(PARAMETER)
    _load_again()
    words = [command, "--dataset", "har", "--plugin", "mine.py", "--dry-run", "--rule"]
    words[1:1] = ["--share", "20"] if command == "worst-case" else ["--attack", "trim"]
    run = {
        "league": lambda: declared("har", "my-rule", "trim"),
        "worst-case": lambda: asked(["har"], ["my-rule"], [20])[0].cells[0].runs[0],
        "sweep": lambda: Experiment.on("har", "my-rule", "trim"),
    }[command]()
    path = store(run, {"mine.py": sha256("mine.py")})
    fltrust(*words, "my-rule")
    Path("mine.py").write_text(PLUGIN + "# another one" if default is None else PARAMETER.replace("0.5", default))
    _load_again()
    with pytest.raises(InputError, match=said("mine.py", path)):
        fltrust(*words, "my-rule")
    if default is not None:
        assert "damaged" not in capsys.readouterr().out
        if command != "sweep":
            assert "damaged" not in fltrust(*words, "median")


def _load_again() -> None:
    """As the next program would."""
    for name in [name for name in sys.modules if name.startswith("fltrust_plugin_mine_")]:
        del sys.modules[name]
    DATASETS._entries.pop("my-data")
    load_plugin(Path("mine.py"))


def test_an_attack_that_changed_is_no_longer_the_worst_case(folder: Path) -> None:
    """The search is what is run; every stored attack counts."""
    (question,) = asked(["har"], ["median"], [20])
    path = store(declared("har", "median", "my-attack", malicious=question.cells[0].runs[0].malicious), {"mine.py": "0" * 64})
    with pytest.raises(InputError, match=said("mine.py", path)):
        fltrust("worst-case", "--dataset", "har", "--rule", "median", "--share", "20", "--format", "csv")


def test_data_that_changed_are_named(folder: Path) -> None:
    words = ["sweep", "--task", "points", "--rule", "median", "--attack", "trim", "--dry-run"]
    path = store(Experiment.on("points", "median", "trim"), datasets.examples_of("points").files)
    fltrust(*words)
    np.save("points/test_targets.npy", np.zeros(12, np.int64))
    with pytest.raises(InputError, match=said("test_targets.npy", path)):
        fltrust(*words)


def test_data_that_came_or_went_are_named(folder: Path) -> None:
    words = ["sweep", "--task", "points", "--rule", "median", "--attack", "trim", "--dry-run"]
    path = store(Experiment.on("points", "median", "trim"), datasets.examples_of("points").files)
    np.save("points/root.npy", np.arange(6))
    with pytest.raises(InputError, match=said("root.npy", path)):
        fltrust(*words)
    store(Experiment.on("points", "median", "trim"), datasets.examples_of("points").files)
    fltrust(*words)
    Path("points/root.npy").unlink()
    with pytest.raises(InputError, match=said("root.npy", path)):
        fltrust(*words)


def test_a_plug_in_of_another_name_is_another_one(folder: Path) -> None:
    words = ["league", "--dataset", "har", "--rule", "my-rule", "--attack", "trim", "--plugin", "mine.py", "--dry-run"]
    path = store(declared("har", "my-rule", "trim"), {"UCI HAR Dataset.zip": "0" * 64, "earlier.py": sha256("mine.py")})
    with pytest.raises(InputError, match=said("earlier.py", path)):
        fltrust(*words)


def test_the_plug_in_of_an_objective_that_changed_is_named(folder: Path) -> None:
    words = ["sweep", "--task", "points", "--rule", "median", "--attack", "trim", "--plugin", "objective.py", "--dry-run"]
    Path("objective.py").write_text(OBJECTIVE)
    load_plugin(Path("objective.py"))
    Path("points/task.toml").write_text(f'{SETTINGS}objective = "my-objective"\n')
    run = Experiment.on("points", "median", "trim")
    path = store(run, build_task(run).files)
    fltrust(*words)
    change("objective.py")
    with pytest.raises(InputError, match=said("objective.py", path)):
        fltrust(*words)


def test_a_stored_run_never_makes_a_sweep_load_what_it_names_as_its_data(folder: Path) -> None:
    Path("evil.py").write_text("open('loaded', 'w')\n")
    run = dataclasses.replace(Experiment.on("points", "median", "trim"), dataset="evil.py:build")
    store(run, {"evil.py": "0" * 64, "evil.py:build()": "0" * 64, "objective.py": "0" * 64})
    fltrust("sweep", "--dataset", "mnist-5k", "--rule", "median", "--attack", "trim", "--dry-run")
    assert not Path("loaded").exists()


def test_a_run_on_a_plug_ins_data_depends_on_its_file(folder: Path) -> None:
    usual = Experiment.on("har", "median", "trim")
    assert plugins_of(usual) == {}
    assert plugins_of(dataclasses.replace(usual, dataset="my-data")) == {"mine.py": sha256("mine.py")}
