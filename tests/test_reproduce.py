"""`fltrust reproduce`: planned, interrupted, resumed, failing, as a user runs it, on a generated HAR of 30 users."""

import dataclasses
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import made_up
from waiting import MOST_SECONDS, until

from fltrust import datasets
from fltrust.experiment import Experiment
from fltrust.paper import EXHIBITS
from fltrust.paper.plan import estimate, plan
from fltrust.running.pool import Failed, Finished, Reached, execute
from fltrust.store import results
from fltrust.store.files import hardware, lock

PROGRAM = [sys.executable, "-c", "from fltrust.cli import main; main()", "reproduce"]
SMALL = ["methods", "--dataset", "har", "--attack", "none", "--attack", "trim", "--rule", "fedavg", "--rule", "fltrust", "--device", "cpu"]
SHORT = {"rounds": 4, "evaluate_every": 2, "batch_size": 4}


def reproduce(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=MOST_SECONDS, env={**os.environ, "COLUMNS": "200"}
    )


def test_a_dry_run_counts_and_runs_nothing(tmp_path: Path) -> None:
    done = reproduce("methods", "convergence", "--dataset", "mnist-0.5", "--seeds", "2", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"methods .* 70 +0 +70 +time unknown", done.stdout)
    assert "70 runs, 0 done, 70 to do" in done.stdout  # convergence has no run of its own
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["method"], "unknown table or figure 'method': did you mean 'methods'?"),
        (["--rule", "kum"], "did you mean 'krum'"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--precision", "float8"], "unknown precision"),
        (["variants", "--dataset", "har"], "no run"),
        (["methods", "--dataset", "har", "--device", "cpu", "--precision", "float16"], "for a GPU"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = reproduce(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


@pytest.mark.slow
def test_runs_are_killed_resumed_and_printed_beside_the_paper(tmp_path: Path, har: Path) -> None:
    command = [*PROGRAM, *SMALL, "--jobs", "2", "--data-dir", str(har), "--out", "out"]
    hold = ["--plugin", str(Path(__file__).with_name("hold_trim.py"))]
    begun = subprocess.Popen([*command, *hold], cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: [len(list(tmp_path.glob(f"out/{what}"))) for what in ("har/*.json", ".unfinished/*/records.jsonl")] == [2, 2], begun)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("out/har/*.json")}
    assert len(before) == 2
    done = reproduce(*command[len(PROGRAM) :], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"4 runs, {len(before)} done, {4 - len(before)} to do" in done.stdout
    after = {path.name: path.read_bytes() for path in tmp_path.glob("out/har/*.json")}
    assert len(after) == 4
    assert before.items() <= after.items()
    assert [path.name for path in tmp_path.glob("out/.unfinished/*")] == [".lock"]
    assert re.search(r"methods: HAR, Trim attack, FLTrust, seed 0: 0\.\d{3}  \(paper 0\.05\)", done.stdout)
    again = reproduce(*command[len(PROGRAM) :], cwd=tmp_path)
    assert "4 runs, 4 done, 0 to do" in again.stdout
    known = results.read(tmp_path / "out")
    seconds, unknown = estimate(plan([EXHIBITS["methods"]], seeds=5, only_datasets=["har"]), known, hardware("cpu"))
    assert seconds > 0
    assert unknown == 0
    assert estimate(plan([EXHIBITS["methods"]], seeds=1), known, "another machine") == (0.0, 210)


@pytest.mark.slow
def test_a_run_that_fails_loses_nothing_but_itself(tmp_path: Path, har: Path) -> None:
    (tmp_path / "har").symlink_to(har / "har")
    for file in datasets.locate("fashion-mnist", tmp_path):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"no images")
    chosen = ["--dataset", "har", "--dataset", "ch-mnist", "--dataset", "fashion-mnist", "--attack", "none", "--rule", "fedavg"]
    done = reproduce("methods", *chosen, "--data-dir", str(tmp_path), "--out", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert [path.parent.name for path in tmp_path.glob("out/*/*.json")] == ["har"]
    assert done.stdout.index("no data for 1 of them: ch-mnist") < done.stdout.index("methods: HAR")
    assert "failed: ch-mnist, fedavg, attack none, seed 0: " in done.stdout
    assert "failed: fashion-mnist, fedavg, attack none, seed 0: " in done.stdout
    assert "1 run finished, 2 failed" in done.stdout


@pytest.mark.slow
def test_a_failure_does_not_reach_the_next_run(tmp_path: Path) -> None:
    bad = Experiment.on("ch-mnist", "fltrust", "none")
    events = execute([bad, *short(1), bad, *short(2)[1:]], tmp_path / "work", jobs=1, device="cpu", data_dir=str(tmp_path))
    ended = [event for event in events if not isinstance(event, Reached)]
    assert [type(event) for event in ended] == [Failed, Finished, Failed, Finished]
    assert all("ch-mnist: not found" in event.reason for event in ended if isinstance(event, Failed))


@pytest.mark.slow
def test_missing_data_is_said_before_anything_runs(tmp_path: Path, har: Path) -> None:
    chosen = ["methods", "--dataset", "har", "--dataset", "ch-mnist", "--attack", "none", "--rule", "fedavg", "--data-dir", str(har)]
    planned = reproduce(*chosen, "--dry-run", cwd=tmp_path)
    assert planned.returncode == 0
    assert "no data for 1 of them: ch-mnist: not found" in planned.stdout
    assert "fltrust data fetch ch-mnist" in planned.stdout
    nothing = reproduce("methods", "--dataset", "ch-mnist", "--data-dir", str(har), cwd=tmp_path)
    assert nothing.returncode == 2
    assert nothing.stderr.count("\n") == 1
    assert not list(tmp_path.glob("results/*/*"))


@pytest.mark.slow
def test_two_programs_do_not_work_in_one_folder(tmp_path: Path, har: Path) -> None:
    with lock(tmp_path / "out" / ".unfinished"):
        done = reproduce(*SMALL, "--data-dir", str(har), "--out", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "in use by another process" in done.stderr


@pytest.mark.slow
def test_results_in_another_arithmetic_count_unless_one_is_asked_for(tmp_path: Path) -> None:
    run = next(cell.run for cell in EXHIBITS["methods"].cells if cell.run.dataset == "mnist-0.5")
    half = dataclasses.replace(run, precision="float16")
    results.write(made_up(half), tmp_path / "out")
    (tmp_path / "out" / "mine").mkdir()
    (tmp_path / "out" / "mine" / "experiment.json").write_text("{}")  # a run directory in between is no result
    one = ["methods", "--dataset", "mnist-0.5", "--attack", "none", "--rule", "fedavg", "--dry-run", "--out", "out"]
    assert "1 run, 1 done" in reproduce(*one, cwd=tmp_path).stdout
    assert "1 run, 0 done" in reproduce(*one, "--precision", "float32", "--device", "cpu", cwd=tmp_path).stdout


def short(count: int) -> list[Experiment]:
    return [Experiment.on("mnist-5k", "fltrust", "none", seed=seed, **SHORT) for seed in range(count)]


@pytest.mark.slow
def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    events = []
    killed = None
    long = Experiment.on("mnist-5k", "fltrust", "none", rounds=10_000, evaluate_every=1, batch_size=4)
    for event in execute([long, *short(3)], tmp_path, jobs=1, device="cpu"):
        events.append(event)
        if isinstance(event, Reached) and killed is None:
            (worker,) = multiprocessing.active_children()
            worker.kill()
            killed = worker.pid
    ended = [event for event in events if not isinstance(event, Reached)]
    assert [type(event) for event in ended] == [Failed, Finished, Finished, Finished]
    assert isinstance(ended[0], Failed)
    assert "exit code -9" in ended[0].reason


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    def errors(jobs: int) -> dict[str, tuple[float, ...]]:
        events = execute(short(3), tmp_path / str(jobs), jobs=jobs, device="cpu")
        return {event.run.key: event.result.test_error for event in events if isinstance(event, Finished)}

    one, two = errors(1), errors(2)
    assert len(one) == 3
    assert one == two


@pytest.mark.slow
def test_needs_nothing_but_torch_numpy_typer_and_rich(tmp_path: Path, har: Path) -> None:
    script = (
        "import sys\n"
        "class Gone:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'pooch', 'plotly', 'matplotlib', 'flwr', 'ray', 'safetensors', 'mlxtend', 'PIL', 'pandas'}:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Gone())\n"
        "from fltrust.cli import main; main()"
    )
    command = [
        sys.executable,
        "-c",
        script,
        "reproduce",
        *SMALL[:5],
        "--rule",
        "fedavg",
        "--data-dir",
        str(har),
        "--out",
        "out",
        "--device",
        "cpu",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_result_names_what_made_it(tmp_path: Path, har: Path) -> None:
    reproduce(*SMALL[:3], "--attack", "none", "--rule", "fedavg", "--device", "cpu", "--data-dir", str(har), "--out", "out", cwd=tmp_path)
    (path,) = tmp_path.glob("out/har/*.json")
    content = json.loads(path.read_text())
    assert content["key"] == next(cell.run for cell in EXHIBITS["methods"].cells if cell.run.dataset == "har").key
    assert len(next(iter(content["files"].values()))) == 64
    assert content["hardware"]
    assert content["versions"]["torch"]
    assert len(content["rounds"]) == 25
