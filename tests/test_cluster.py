"""Runs on a real Ray cluster of two worker processes on this machine, one of them killed in mid-run."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_plugins import MINE
from waiting import until

from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.registry import RULES, load_plugin
from fltrust.running.pool import Event, Failed, Finished, execute

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:ray.*", "ignore::ResourceWarning")

RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
SHORT = {"rounds": 12, "evaluate_every": 4, "batch_size": 4}


@pytest.fixture(scope="module")
def unfinished() -> Iterator[Path]:
    """Where the cluster's workers keep what they have not finished. A short name: Ray's sockets lie there too."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def address(unfinished: Path) -> Iterator[str]:
    start = [*RAY, "start", "--head", "--block", "--port=0", "--num-cpus=2", "--num-gpus=0", "--include-dashboard=false"]
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1", "TMPDIR": str(unfinished)}
    ray = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=quiet, start_new_session=True)
    assert ray.stdout is not None
    try:
        said = next(line for line in ray.stdout if "--address=" in line)
        yield said.split("--address='")[1].split("'")[0]
    finally:
        ray.terminate()  # it stops the processes that it started
        ray.communicate(timeout=600)


HOLD = """
import os, pathlib, tempfile, time
from fltrust.running import cluster
from fltrust.running.sinks import Sink

HERE = pathlib.Path(tempfile.gettempdir())

class Hold(Sink):
    def record(self, record):
        if record.evaluated and not (HERE / "killed").exists():
            (HERE / f"held-{os.getpid()}").touch()
            while not (HERE / "killed").exists():
                time.sleep(0.05)

begin = cluster.run_to_result
cluster.run_to_result = lambda run, work, tasks: begin(run, work, tasks, [Hold()])
"""


def runs(count: int, **changes: int) -> list[Experiment]:
    return [Experiment.on("mnist-5k", "fltrust", "trim", seed=seed, **{**SHORT, **changes}) for seed in range(count)]


def test_a_cluster_gives_what_one_machine_gives_although_a_worker_is_killed(address: str, unfinished: Path, tmp_path: Path) -> None:
    from fltrust.running import cluster

    (plugin := tmp_path / "hold.py").write_text(HOLD)

    def kill_a_worker() -> None:
        until(lambda: list(unfinished.glob("held-*")))
        held = next(unfinished.glob("held-*"))  # it is in the middle of a run
        os.kill(int(held.name.removeprefix("held-")), signal.SIGKILL)
        (unfinished / "killed").touch()

    killer = threading.Thread(target=kill_a_worker, daemon=True)
    killer.start()
    seen = list(cluster.execute(runs(3), address, device="auto", jobs=1, plugins=[plugin]))
    killer.join()
    assert (unfinished / "killed").exists()
    assert all(isinstance(event, Finished) for event in seen)
    here = list(execute(runs(3), tmp_path, jobs=1, device="cpu"))

    def errors(events: list[Event]) -> dict[str, list[float]]:
        done = [event for event in events if isinstance(event, Finished)]
        return {event.run.key: [round(error, 5) for error in event.result.test_error] for event in done}

    assert len(errors(here)) == 3
    assert errors(seen) == errors(here)


def test_a_run_that_fails_is_named_and_the_others_go_on(address: str) -> None:
    from fltrust.running import cluster

    missing = Experiment.on("ch-mnist", "fedavg", "none")
    events = {
        event.run.dataset: event for event in cluster.execute([missing, *runs(1)], address, device="cpu", jobs=1, data_dir="/nowhere")
    }
    failed, finished = events["ch-mnist"], events["mnist-5k"]
    assert isinstance(failed, Failed)
    assert "ch-mnist" in failed.reason
    assert isinstance(finished, Finished)


def test_a_plug_in_goes_with_the_runs(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fltrust.running import cluster

    monkeypatch.setattr(RULES, "_entries", dict(RULES._entries))
    plugin = tmp_path / "mine.py"
    plugin.write_text(MINE)
    load_plugin(plugin)
    run = Experiment.on("mnist-5k", "slow-mean", "none", **SHORT)
    (there,) = cluster.execute([run], address, device="cpu", jobs=1, plugins=[plugin])
    assert isinstance(there, Finished), there
    *_, here = execute([run], tmp_path / "work", jobs=1, device="cpu", plugins=[plugin])
    assert isinstance(here, Finished), here
    assert there.result.test_error == tuple(round(error, 5) for error in here.result.test_error)


def test_no_cluster_is_one_line() -> None:
    from fltrust.running import cluster

    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        list(cluster.execute(runs(1), "127.0.0.1:1", device="cpu", jobs=1))
