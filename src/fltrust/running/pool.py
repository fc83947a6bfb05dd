"""Many runs: worker processes that do them. A run that fails or is killed costs nothing but itself.

`execute` yields what happens, as it happens; `cluster.execute` does the same on many machines.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fltrust import datasets
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.registry import RULES, load_plugin, plugin_fault, plugin_files
from fltrust.rules import FedAvg
from fltrust.rules.rule import try_rule
from fltrust.running.loop import play
from fltrust.running.sinks import Sink
from fltrust.store.results import Result, distil
from fltrust.tasks.build import build_task
from fltrust.tasks.task import Task
from fltrust.threads import cores

SECONDS_BETWEEN_CHECKPOINTS = 10.0


@dataclasses.dataclass(frozen=True)
class Reached:
    run: Experiment
    round: int


@dataclasses.dataclass(frozen=True)
class Finished:
    run: Experiment
    result: Result


@dataclasses.dataclass(frozen=True)
class Failed:
    run: Experiment
    reason: str


@dataclasses.dataclass(frozen=True)
class Spared:
    """It was not begun: what other runs found made it needless."""

    run: Experiment


Event = Reached | Finished | Failed | Spared


class Tasks:
    """Builds the tasks of runs and keeps the last one: a run that differs from the one before in nothing but its rule takes it over."""

    def __init__(self, device: str, data_dir: str | None = None) -> None:
        load = functools.lru_cache(maxsize=1)(datasets.examples_of)
        self._build = functools.partial(build_task, device=device, data_dir=data_dir, load=load)
        self._last: tuple[tuple[Experiment, dict[str, str]], Task] | None = None

    def of(self, run: Experiment) -> Task:
        plugins = plugin_files(*map(type, RULES.layers(run.rule)))  # a task names their files
        asks = dataclasses.replace(run, rule=FedAvg()), plugins
        if self._last is None or self._last[0] != asks:
            self._last = None  # so that two tasks are never in memory at once
            self._last = asks, self._build(run)
        elif refusal := try_rule(run.rule, run.clients_per_round, run.num_clients):
            raise InputError(refusal)
        return self._last[1]


def run_to_result(run: Experiment, work: Path, tasks: Tasks, sinks: Collection[Sink] = ()) -> Result:
    """Does a run in `work`/KEY, or resumes it there."""
    began = time.monotonic()
    after = play(run, tasks.of(run), tuple(sinks), path=work / run.key, checkpoint_seconds=SECONDS_BETWEEN_CHECKPOINTS)
    result = distil(work / run.key, None if after else time.monotonic() - began)
    assert isinstance(result, Result)
    return result


def execute(
    runs: Collection[Experiment],
    work: Path,
    *,
    jobs: int,
    device: str,
    data_dir: str | None = None,
    plugins: Sequence[Path] = (),
    needless: Callable[[Experiment], bool] = lambda run: False,
) -> Iterator[Event]:
    """Does the runs in `jobs` processes that share the cores (and the GPU). Whoever takes a result should write it before going on.

    `needless` is asked about each run right before it would begin.
    """
    waiting = deque(runs)
    crew = [_Worker(place, jobs, work, device, data_dir, plugins) for place in range(min(jobs, len(runs)))]
    try:
        while True:
            for worker in crew:
                while worker.run is None and waiting:
                    if needless(run := waiting.popleft()):
                        yield Spared(run)
                    else:
                        worker.begin(run)
            busy = {worker.pipe: worker for worker in crew if worker.run is not None}
            if not busy:
                return
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                yield worker.news()
    finally:
        for worker in crew:
            worker.stop()


class _Worker:
    """A process that does one run after the other; one that dies, or whose run failed, is replaced."""

    def __init__(self, place: int, jobs: int, work: Path, device: str, data_dir: str | None, plugins: Sequence[Path]) -> None:
        self._arguments = (place, jobs, work, device, data_dir, plugins)
        self.run: Experiment | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends when the process does

    def begin(self, run: Experiment) -> None:
        self.run = run
        if not self._process.is_alive():  # it died between two runs, which is not this one's fault
            self.pipe.close()
            self._start()
        with contextlib.suppress(OSError):  # it died this moment: `news` will say so
            self.pipe.send(run)

    def news(self) -> Event:
        assert self.run is not None
        try:
            event: Event = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            event = Failed(self.run, f"its process ended with exit code {self._process.exitcode}")
        if isinstance(event, Failed):  # what a failure leaves behind (a GPU in an error state) must not meet the next run
            self.stop()
        if not isinstance(event, Reached):
            self.run = None
        return event

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Connection, place: int, jobs: int, work: Path, device: str, data_dir: str | None, plugins: Sequence[Path]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever pressed Ctrl-C meant the program, and it ends us
    if hasattr(os, "sched_setaffinity"):
        own = sorted(os.sched_getaffinity(0))[place::jobs]
        if own:
            os.sched_setaffinity(0, own)
            cores.cache_clear()
    for plugin in plugins:  # before an experiment arrives that is made of what they define
        load_plugin(plugin)
    tasks = Tasks(device, data_dir)
    while True:
        try:
            run = pipe.recv()
        except EOFError:
            return
        pipe.send(_done(run, work, tasks, pipe))


class _News(Sink):
    """Says through the pipe how far a run is: at every evaluated round, and every second."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        self._run, self._said = run, time.monotonic()

    def record(self, record: Record) -> None:
        if record.evaluated or time.monotonic() - self._said >= 1.0:
            self._said = time.monotonic()
            self._pipe.send(Reached(self._run, record.round))


def _done(run: Experiment, work: Path, tasks: Tasks, pipe: Connection) -> Event:
    try:
        result = run_to_result(run, work, tasks, [_News(pipe)])
    except InputError as problem:
        return Failed(run, str(problem))
    except Exception as problem:  # whatever it is, it is this run's alone
        return Failed(run, plugin_fault(problem) or f"{type(problem).__name__}: {problem}")
    return Finished(run, result)


def forget(run: Experiment, work: Path) -> None:
    """Removes a run's working directory, once its result is safe; never leaves half of it where a run would look for it."""
    gone = work / f"{run.key}.done"
    shutil.rmtree(gone, ignore_errors=True)  # where an earlier removal was cut off
    if (work / run.key).exists():
        (work / run.key).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
