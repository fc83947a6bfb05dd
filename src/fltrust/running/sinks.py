"""What watches a run: a sink is told of its start, of every record, and of its end. Sinks that users choose by name are in `loggers.py`."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fltrust.attacks import ATTACKS
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.rules import RULES
from fltrust.store.directory import RunDirectory


class Sink:
    """Something that watches a run; this one does nothing. What a sink raises ends the run; what was recorded before stays."""

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        """Before the first round, or after round `after` of a run that resumes. `path`: the run directory, if there is one."""

    def record(self, record: Record) -> None:
        """After every round; most are not evaluated (`record.evaluated`)."""

    def close(self) -> None:
        """At the end, also of a run that failed."""


class Checkpoints(Sink):
    """Saves evaluated records in the run directory: the first and the last at once, the others at most every `seconds`."""

    def __init__(self, directory: RunDirectory, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory, self._seconds, self._clock = directory, seconds, clock
        self._unsaved: list[Record] = []
        self._saved = -float("inf")

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        self._last_round = run.rounds

    def record(self, record: Record) -> None:
        if not record.evaluated:
            return
        if self._unsaved:  # only the last state is saved, and a state with memory is large
            self._unsaved[-1] = dataclasses.replace(self._unsaved[-1], state=None)
        self._unsaved.append(record)
        if record.round == self._last_round or self._clock() - self._saved >= self._seconds:
            self._save()

    def close(self) -> None:
        if self._unsaved:
            self._save()

    def _save(self) -> None:
        records, self._unsaved = self._unsaved, []  # if the disk is full, `close` must not write them twice
        self._directory.save(*records)
        self._saved = self._clock()


class ProgressBar(Sink):
    """A bar with the last error on a terminal, nothing in a pipe."""

    def __init__(self, screen: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[news]}"),
        )
        self._progress = Progress(*columns, console=screen, disable=not screen.is_terminal)

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        self._shows_trust = run.rule.needs_root
        self._progress.start()
        self._bar = self._progress.add_task(describe(run), total=run.rounds, completed=after, news="")

    def record(self, record: Record) -> None:
        self._progress.update(self._bar, completed=record.round)
        if record.test_error is not None:
            trust = trust_of(record) if self._shows_trust else {}
            said = "".join(f", trust {whose} {mean:.2f}" for whose, mean in trust.items())
            self._progress.update(self._bar, news=errors(record.test_error, record.success) + said)

    def close(self) -> None:
        self._progress.stop()


def describe(run: Experiment) -> str:
    return f"{run.dataset}, {RULES.name_of(run.rule)}, attack {ATTACKS.name_of(run.attack)}, seed {run.seed}"


def errors(test_error: float | None, success: float | None) -> str:
    error = "test error is no number" if test_error is None else f"test error {test_error:.3f}"
    return error + ("" if success is None else f", backdoor success {success:.3f}")


def trust_of(record: Record) -> dict[str, float]:
    """Mean trust of the honest and of the malicious clients, of those that there are."""
    return {} if record.trust is None else {whose: sum(side) / len(side) for whose, side in by_side(record, record.trust).items()}


def by_side(record: Record, values: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    """The clients' values as those of the honest and those of the malicious; a side without clients is left out."""
    m = record.malicious or 0
    return {whose: side for whose, side in (("honest", values[m:]), ("malicious", values[:m])) if side}
