"""A plug-in that holds every run under the Trim attack once its first record is saved, so that a test can kill the program right there."""

import threading
from collections.abc import Collection
from pathlib import Path

from fltrust.attacks import TrimAttack
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.running import pool
from fltrust.running.sinks import Sink
from fltrust.store.results import Result


class Hold(Sink):
    def record(self, record: Record) -> None:
        if record.evaluated:
            threading.Event().wait()  # for ever


_run_to_result = pool.run_to_result


def run_to_result(run: Experiment, work: Path, tasks: pool.Tasks, sinks: Collection[Sink] = ()) -> Result:
    held = [Hold()] if isinstance(run.attack, TrimAttack) else []
    return _run_to_result(run, work, tasks, [*sinks, *held])


pool.run_to_result = run_to_result
