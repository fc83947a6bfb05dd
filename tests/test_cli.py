"""The program as a user runs it: in its own process."""

import dataclasses
import gzip
import importlib
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from rich.console import Console
from waiting import MOST_SECONDS

from fltrust import cli
from fltrust.cli.many import say
from fltrust.cli.run import run_one
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.running.progress import Progress
from fltrust.version import __version__

PROGRAM = [sys.executable, "-c", "from fltrust.cli import main; main()"]
SHORT = ["run", "--dataset", "mnist-5k", "--rounds", "2", "--evaluate-every", "1", "--batch-size", "4", "--device", "cpu"]


def fltrust(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def test_version(tmp_path: Path) -> None:
    assert fltrust("--version", cwd=tmp_path).stdout == f"fltrust {__version__}\n"


COMMANDS = (
    "",
    "demo",
    "run",
    "list",
    "redteam",
    "reproduce",
    "report",
    "audit",
    "watch",
    "new-federation",
    "data",
    "data fetch",
    "data check",
    "data list",
)


@pytest.mark.parametrize("command", [command.split() for command in COMMANDS], ids=COMMANDS)
def test_help_has_examples_and_imports_nothing_heavy(tmp_path: Path, command: list[str]) -> None:
    script = "import sys; from fltrust.cli import app\ntry: app()\nfinally: print('heavy:', {'torch', 'numpy', 'numba'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script, *command, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "heavy: set()" in done.stdout
    if command not in ([], ["data"]):
        assert "Example" in done.stdout


LISTED = {
    "rules": "fedavg krum multi-krum geometric-median dnc caf trim-mean median meamed phocas bulyan rlr fltrust fltrust-server"
    " fltrust-withserver fltrust-norelu fltrust-nonorm fltrust-parnorm fltrust-two-level anchor centred-clipping foolsgold zeno"
    " zeno-plus-plus nnm bucketing arc norm-clipping by-size fallback flame sign-guard fldetector",
    "attacks": "none label-flip scaling label-flip-targeted label-flip-random label-flip-dynamic trim krum adaptive optimal-adaptive"
    " mimic gaussian free-rider sign-flip alie ipm min-max min-sum mpaf poisonedfl dba neurotoxin edge-case searched",
    "datasets": "mnist-5k mnist-0.1 mnist-0.5 fashion-mnist cifar-10 har ch-mnist letter shakespeare",
    "models": "cnn logistic mlp gru resnet20 resnet20-projection resnet10 cnn-bucketing cnn-blades alexnet",
    "optimisers": "sgd momentum adam",
    "loggers": "jsonl tensorboard mlflow wandb",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LISTED)
def test_list(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # a line each
    rows = [line.split(maxsplit=1) for line in fltrust("list", what, cwd=tmp_path).stdout.splitlines()[1:]]
    assert [name for name, _ in rows] == LISTED[what].split()


def test_every_registry_can_be_listed() -> None:
    from fltrust.cli import list_
    from fltrust.cli.names import REGISTRIES

    assert list(get_args(get_type_hints(list_)["what"])) == list(REGISTRIES)


def test_run_writes_a_directory_and_one_line(tmp_path: Path) -> None:
    done = fltrust(*SHORT, "--rule", "median", "--attack", "scaling", cwd=tmp_path)
    assert done.returncode == 0
    assert re.fullmatch(
        r"mnist-5k, median, attack scaling, seed 0: test error 0\.\d{3}, backdoor success \d\.\d{3} after 2 rounds; runs/\w{16}\n",
        done.stdout,
    )
    (path,) = (tmp_path / "runs").iterdir()
    declared = json.loads((path / "experiment.json").read_text())
    assert declared["key"] == path.name
    assert all(sha256.isalnum() for sha256 in declared["files"].values())
    assert [json.loads(line)["round"] for line in (path / "records.jsonl").read_text().splitlines()] == [1, 2]


@pytest.mark.slow
def test_a_record_holds_each_clients_trust_cosine_and_norm(tmp_path: Path) -> None:
    fltrust(*SHORT, "--attack", "trim", "--out", "mine", cwd=tmp_path)
    record = json.loads((tmp_path / "mine" / "records.jsonl").read_text().splitlines()[-1])
    assert record["trust"] == [max(0.0, cosine) for cosine in record["cosine"]]
    assert len(record["trust"]) == len(record["norm"]) == len(record["clients"]) == 20
    assert sum(record["shares"]) == pytest.approx(1, abs=1e-4)
    assert record["malicious"] == 4


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = fltrust(*SHORT, "--out", "mine", cwd=tmp_path)
    written = (tmp_path / "mine" / "records.jsonl").read_bytes()
    again = fltrust(*SHORT, "--out", "mine", cwd=tmp_path)
    assert again.stdout == first.stdout
    assert (tmp_path / "mine" / "records.jsonl").read_bytes() == written


@pytest.mark.slow
def test_toml_and_options_over_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'dataset = "mnist-5k"\nrule = "krum"\nrounds = 9\nbatch_size = 4\nattack = {name = "trim", knowledge = "partial"}\n'
    )
    done = fltrust("run", "run.toml", "--rounds", "1", "--device", "cpu", "--out", "mine", cwd=tmp_path)
    assert "mnist-5k, krum, attack trim, seed 0" in done.stdout
    assert "after 1 rounds" in done.stdout
    experiment = json.loads((tmp_path / "mine" / "experiment.json").read_text())["experiment"]
    assert experiment["attack"] == {"name": "trim", "knowledge": "partial", "reach": 2.0, "honest_only": False}
    assert experiment["rule"] == {"name": "krum", "tolerate": 4}
    again = fltrust("run", "run.toml", "--rounds", "1", "--device", "cpu", "--out", "mine", cwd=tmp_path)
    assert "mine: was finished already" in again.stderr


def test_every_field_of_an_experiment_is_an_option(tmp_path: Path) -> None:
    said = fltrust("run", "--help", cwd=tmp_path).stdout
    for field in dataclasses.fields(Experiment):
        assert f"--{field.name.replace('_', '-')} " in said.replace(",", " ")
    assert "Pairs [round, factor]" in said  # brackets are words here, not markup


@pytest.mark.parametrize("command", ["run", "sweep", "redteam"])
def test_the_help_says_what_a_value_looks_like(tmp_path: Path, command: str) -> None:
    said = " ".join(fltrust(command, "--help", cwd=tmp_path).stdout.split())
    for option in ("--rounds INTEGER", "--bias FLOAT", "--rule NAME", "--loss WORD", "--lr-decay LIST"):
        assert option in said
    assert ("--augment true|false" in said) == (command != "run")  # there it is a switch


@pytest.mark.slow
def test_options_of_every_type(tmp_path: Path) -> None:
    options = ["--clients", "12", "--standardise", "--lr-decay", "[[2, 0.5]]", "--server", "momentum", "--set", "server.beta=0.5"]
    options += [
        "--metrics",
        "test_loss",
        "--metrics",
        "class_error",
        "--rule",
        "krum",
        "--set",
        "rule.tolerate=3",
        "--client-momentum",
        "0.9",
    ]
    done = fltrust(*SHORT, *options, "--out", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    experiment = json.loads((tmp_path / "mine" / "experiment.json").read_text())["experiment"]
    assert (experiment["num_clients"], experiment["standardise"], experiment["lr_decay"]) == (12, True, [[2, 0.5]])
    assert (experiment["rule"], experiment["server"]) == ({"name": "krum", "tolerate": 3}, {"name": "momentum", "beta": 0.5})
    assert experiment["metrics"] == ["test_loss", "class_error"]
    last = json.loads((tmp_path / "mine" / "records.jsonl").read_text().splitlines()[-1])
    assert len(last["class_error"]) == 10


MY_TASK = """
import numpy as np
from fltrust.datasets import Examples

def build():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    inputs = (np.eye(3)[labels] + rng.normal(0, 0.1, (200, 3))).astype(np.float32)
    settings = {"model": "logistic", "num_clients": 6, "malicious": 2, "rounds": 3, "batch_size": 4, "global_lr": 0.1, "root_size": 20}
    return Examples(inputs[:150], labels[:150], inputs[150:], labels[150:], settings=settings)
"""


@pytest.mark.slow
def test_a_task_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(MY_TASK)
    done = fltrust("run", "--task", "my_task.py:build", "--attack", "trim", "--device", "cpu", "--out", "runs/mine", cwd=tmp_path)
    assert done.stdout.startswith("my_task.py:build, fltrust, attack trim, seed 0: test error 0."), done.stderr
    (tmp_path / "my_task.py").unlink()
    shown = fltrust("report", "runs/mine", "--out", "page", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "my_task.py:build, fltrust, attack trim, 2 of 6 malicious, seed 0" in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.slow
def test_a_stream_of_json_lines_has_nothing_else_in_it(tmp_path: Path) -> None:
    done = fltrust(*SHORT, "--log", "jsonl", "--log", "jsonl:lines.jsonl", "--out", "mine", cwd=tmp_path)
    assert done.stdout == (tmp_path / "mine" / "records.jsonl").read_text() == (tmp_path / "lines.jsonl").read_text()
    assert "after 2 rounds; mine" in done.stderr


@pytest.mark.slow
def test_an_option_for_knowledge_keeps_the_files_attack(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('dataset = "mnist-5k"\nrounds = 1\nbatch_size = 4\nattack = { name = "trim", reach = 3.0 }')
    assert fltrust("run", "run.toml", "--knowledge", "partial", "--device", "cpu", "--out", "mine", cwd=tmp_path).returncode == 0
    attack = json.loads((tmp_path / "mine" / "experiment.json").read_text())["experiment"]["attack"]
    assert attack == {"name": "trim", "knowledge": "partial", "reach": 3.0, "honest_only": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "--rule", "medain"], "unknown rule 'medain': did you mean 'median'?"),
        (["run", "--attack", "trin"], "unknown attack 'trin': did you mean 'trim'?"),
        (["run", "--dataset", "minst-0.5"], "unknown dataset 'minst-0.5': did you mean 'mnist-0.5'?"),
        (["run", "--dataset", "mnist"], "unknown dataset 'mnist': did you mean 'mnist-5k' or 'mnist-0.1' or 'mnist-0.5'?"),
        (["run", "trim.toml", "--attack", "none", "--knowledge", "partial"], "attack 'none' has no parameters"),
        (["run", "trim.toml", "--knowledge", "much"], "unknown knowledge 'much'; known: full, partial"),
        (["run", "--dataset", "mnist-5k", "--clients", "100000"], "100,000 clients for 4,000 examples"),
        (["run", "--malicious", "101"], "malicious must be 0 to 100 (num_clients), not 101"),
        (["run", "--bias", "0"], "bias (the paper's q) must be above 0 and at most 1, not 0"),
        (["run", "--dataset", "mnist-5k", "--root-size", "5000"], "a root set of 5,000 examples out of 4,000"),
        (
            ["run", "--dataset", "mnist-5k", "--rule", "trim-mean", "--malicious", "10"],
            "a trimmed mean cannot trim 10 from each side of 20",
        ),
        (["run", "--dataset", "mnist-5k", "--rule", "krum", "--malicious", "18"], "Krum cannot tolerate 18 of 20"),
        (["run", "--dataset", "mnist-5k", "--clients", "5"], "5 clients for 10 classes"),
        (["run", "--dataset", "mnist-0.5", "--data-dir", "nowhere"], "fltrust data fetch mnist --data-dir nowhere"),
        (["run", "none.toml"], "none.toml: No such file or directory"),
        (["run", "wrong.toml"], "unknown field 'rouds': did you mean 'rounds'?"),
        (["run", "--device", "tpu"], "unknown device 'tpu'"),
        (["run", "--dataset", "mnist-5k", "--device", "cpu", "--precision", "float16"], "precision float16 is for a GPU"),
        (["run", "--dataset", "mnist-5k", "--root-size", "4000"], "0 examples of clients"),
        (["run", "--dataset", "mnist-5k", "--attack", "scaling", "--knowledge", "partial"], "unknown parameter of scaling 'knowledge'"),
        (["run", "--dataset", "mnist-5k", "--out", "x" * 300], "File name too long"),
        (["run", "--dataset", "mnist-5k", "--out", "full"], "full is not empty and holds no run"),
        (["run", "--dataset", "mnist-5k", "--out", "wrong.toml"], "wrong.toml"),
        (["data", "fetch", "minst"], "did you mean mnist?"),
        (["run", "--set", "rule.tolerate"], "expected PART.PARAMETER=VALUE"),
        (["run", "--set", "rul.tolerate=3"], "unknown field 'rul': did you mean 'rule'?"),
        (["run", "--set", "rounds.many=3"], "rounds has no parameters"),
        (["run", "--rule", "krum", "--set", "rule.tolerates=3"], "did you mean 'tolerate'?"),
        (["run", "--rule", "krum", "--set", "rule.tolerate=many"], "tolerate cannot be 'many'"),
        (["run", "--set", "server.beta=0.5"], "say first what it is a parameter of"),
        (["run", "--server", "adma"], "unknown optimiser 'adma': did you mean 'adam'?"),
        (["run", "--lr-decay", "half"], "lr_decay cannot be 'half'"),
        (["run", "--metrics", "los"], "unknown metric 'los'"),
        (["run", "--log", "tensorbord"], "unknown logger 'tensorbord': did you mean 'tensorboard'?"),
        (["run", "--plugin", "none.py"], "there is no plug-in"),
        (["run", "--task", "none.py:build"], "there is no task"),
        (["run", "--task", "raises.py:build"], "line 1: ZeroDivisionError"),
        (["run", "--task", "full", "--dataset", "mnist-5k"], "--task and --dataset both name the data"),
        (["list", "rules", "--plugin", "raises.py"], "line 1: ZeroDivisionError"),
        (["run", "--out", "damaged", "--dataset", "mnist-5k"], "damaged/experiment.json cannot be read"),
        (["run", "--out", "other", "--dataset", "mnist-5k"], "other/experiment.json declares no experiment"),
        (["audit", "none"], "there is no folder none"),
        (["audit", "none", "--follow"], "there is no folder none"),
        (["audit", "trim.toml"], "trim.toml is a file"),
        (["audit", "full"], "full is no run directory: it has no experiment.json"),
        (["audit", "other"], "other has no round to show yet"),
        (["watch", "trim.toml"], "trim.toml is a file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], line: str) -> None:
    (tmp_path / "wrong.toml").write_text("rouds = 3")
    (tmp_path / "trim.toml").write_text('dataset = "mnist-5k"\nattack = "trim"')
    (tmp_path / "raises.py").write_text("1 / 0")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for name, declared in (("damaged", "{"), ("other", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.json").write_text(declared)
    done = fltrust(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.startswith("fltrust: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


EVIL = "\x1b]0;pwned\x07\x1b[31mEVIL\u202e"
ESCAPED = r"\x1b]0;pwned\x07\x1b[31mEVIL\u202e"


def test_what_files_hold_is_escaped_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Console(force_terminal=True, color_system=None, width=200)
    say(screen, f"damaged: {EVIL}: für ± [x]")
    Progress(screen).say(f"failed: {EVIL}")
    assert capsys.readouterr().out == f"damaged: {ESCAPED}: für ± [x]\nfailed: {ESCAPED}\n"


def test_a_refusal_is_one_line_without_escape_sequences(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise InputError(f"runs/x holds\na {EVIL}, not a run: für")

    monkeypatch.setattr(cli, "app", refuse)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"fltrust: runs/x holds a {ESCAPED}, not a run: für\n"


@pytest.mark.parametrize("damage", [{"test_error": "x"}, {"test_error": 10**400}, {"success": []}, None])
def test_a_finished_run_whose_last_record_is_damaged_is_one_line(tmp_path: Path, damage: dict[str, object] | None) -> None:
    given = {"dataset": "mnist-5k", "rounds": 1, "batch_size": 4}
    run_one(None, given, device="cpu", out=tmp_path)
    records = tmp_path / "records.jsonl"
    records.write_text(json.dumps({"round": 1} if damage is None else json.loads(records.read_text()) | damage) + "\n")
    with pytest.raises(InputError, match=r"records\.jsonl is damaged: round 1 lacks a test error or backdoor success"):
        run_one(None, given, device="cpu", out=tmp_path)


@pytest.mark.parametrize("arguments", [["rum"], ["list", "rule"], ["run", "--rounds", "many"], ["run", "--roundz", "3"]])
def test_a_misspelt_command_or_option(tmp_path: Path, arguments: list[str]) -> None:
    done = fltrust(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_another_experiment_in_the_directory(tmp_path: Path) -> None:
    fltrust(*SHORT, "--out", "mine", cwd=tmp_path)
    done = fltrust(*SHORT, "--seed", "1", "--out", "mine", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "fltrust: mine holds another experiment (seed: 0 there, 1 here): choose another --out\n"


@pytest.mark.slow
def test_more_rounds_extend_a_finished_run(tmp_path: Path) -> None:
    longer = [*SHORT, "--rounds", "3"]
    fltrust(*SHORT, "--out", "mine", cwd=tmp_path)
    done = fltrust(*longer, "--out", "mine", cwd=tmp_path)
    assert "mine: extended from 2 to 3 rounds" in done.stderr
    assert "mine: resumes after round 2" in done.stderr
    whole = fltrust(*longer, "--out", "whole", cwd=tmp_path)
    assert done.stdout.replace("mine", "whole") == whole.stdout
    for name in ("records.jsonl", "experiment.json"):
        assert (tmp_path / "mine" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    shorter = fltrust(*SHORT, "--out", "mine", cwd=tmp_path)
    assert shorter.stderr == "fltrust: mine holds another experiment (rounds: 3 there, 2 here): choose another --out\n"


BLOCKED = """
import importlib.metadata, importlib.util, re, sys

def closure(names):
    found = set()
    while names:
        name = re.split(r"[^A-Za-z0-9._-]", names.pop())[0].lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        names += [line for line in required if "extra ==" not in line]
    return found

allowed = closure(["torch", "numpy", "typer", "rich"])
packages = importlib.metadata.packages_distributions()
blocked = {top for top, owners in packages.items() if not {owner.lower().replace("_", "-") for owner in owners} & (allowed | {"fltrust"})}

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

assert {"numba", "pooch", "mlxtend", "scipy", "PIL"} <= blocked
sys.meta_path.insert(0, Wall())
from fltrust.cli import main
main()
"""


def make_mnist(folder: Path, train: int = 600, test: int = 100) -> None:
    """Files in MNIST's layout, of random images."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes()))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(struct.pack(">II", 2049, count) + labels.tobytes()))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["fltrust", "krum", "median"])
def test_run_needs_only_torch_numpy_typer_and_rich(tmp_path: Path, rule: str) -> None:
    make_mnist(tmp_path / "data" / "mnist")
    run = [
        "run",
        "--dataset",
        "mnist-0.5",
        "--rule",
        rule,
        "--attack",
        "adaptive",
        "--rounds",
        "1",
        "--batch-size",
        "2",
        "--root-size",
        "20",
    ]
    command = [sys.executable, "-c", BLOCKED, *run, "--device", "cpu", "--data-dir", "data"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "not a known original" in done.stderr  # these are not MNIST's files, and the user is told
    assert "after 1 rounds" in done.stdout


@pytest.mark.slow
def test_the_demo_says_what_it_shows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    demo = importlib.import_module("fltrust.cli.demo")  # the name in the package is the command

    monkeypatch.setattr(demo, "SETTINGS", {**demo.SETTINGS, "rounds": 2, "evaluate_every": 1, "batch_size": 2})
    monkeypatch.setenv("COLUMNS", "160")
    demo.show(device="cpu", seed=0)
    shown = capsys.readouterr().out
    assert shown.count("done") == 6
    assert shown.count("%") == 8 + 4  # six errors and two backdoors in the table, four in the words below it
    assert "Trim attack: FLTrust trusts honest clients 0." in shown
    assert " run --dataset mnist-5k --rule krum --attack krum" in shown


@pytest.mark.slow
def test_partial_knowledge_from_the_command_line(tmp_path: Path) -> None:
    fltrust(*SHORT, "--attack", "trim", "--knowledge", "partial", "--out", "mine", cwd=tmp_path)
    experiment = json.loads((tmp_path / "mine" / "experiment.json").read_text())["experiment"]
    assert experiment["attack"] == {"name": "trim", "knowledge": "partial", "reach": 2.0, "honest_only": False}
