"""The run loop, for everything that runs: it resumes, plays the rounds and hands every record to the sinks that watch."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fltrust.experiment import Experiment
from fltrust.round import first_state
from fltrust.running.sinks import Checkpoints, Sink
from fltrust.simulation import simulate
from fltrust.store.directory import RunDirectory
from fltrust.tasks.task import Task


def play(run: Experiment, task: Task, sinks: Sequence[Sink] = (), *, path: Path | None = None, checkpoint_seconds: float = 0.0) -> int:
    """Plays an experiment and returns the round after which it resumed, 0 for a run from its beginning.

    With a `path` it resumes from the run directory there and records into it: at every evaluated round, or at most every
    `checkpoint_seconds`. Every sink is closed, and every record saved, however the run ends.
    """
    after, state, notes = 0, None, []
    with ExitStack() as stack:
        if path is not None:
            directory = stack.enter_context(RunDirectory(path, run, task))
            after, state = directory.resume(first_state(run, task))
            notes = directory.notes
            sinks = (Checkpoints(directory, checkpoint_seconds), *sinks)
        for sink in sinks:
            sink.start(run, after, path)
            stack.callback(sink.close)
            for line in notes:
                sink.note(line)
        for record in simulate(run, task, after=after, state=state):
            for sink in sinks:
                sink.record(record)
    return after
