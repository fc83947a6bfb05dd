"""What watches a run: a sink is told of its start, of every record, and of its end. Sinks that users choose by name are in `loggers.py`."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fltrust.attacks import ATTACKS
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.rules import RULES
from fltrust.running.progress import Progress
from fltrust.store.directory import RunDirectory


class Sink:
    """Something that watches a run; this one does nothing. What a sink raises ends the run; what was recorded before stays."""

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        """Before the first round, or after round `after` of a run that resumes. `path`: the run directory, if there is one."""

    def note(self, line: str) -> None:
        """After the start: what a person should know about how the run resumes."""

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
    """Shows a person how far a run is, with the last errors: a bar on a terminal, a line every few seconds elsewhere."""

    def __init__(self, screen: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress, self._errors = Progress(screen, clock), ""
        self.round = 0  # that was played last

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        self.round, self._rounds, self._shows_trust = after, run.rounds, run.rule.needs_root
        if after == run.rounds:
            self._progress.say(f"{path}: was finished already (more rounds in this folder extend it)")
            return
        if after:
            self._progress.say(f"{path}: resumes after round {after:,}")
        self._progress.start(describe(run), after / run.rounds)

    def note(self, line: str) -> None:
        self._progress.say(line)

    def record(self, record: Record) -> None:
        self.round = record.round
        if record.test_error is not None:
            trust = trust_of(record) if self._shows_trust else {}
            said = ", ".join(f"{whose} {mean:.2f}" for whose, mean in trust.items())
            self._errors = errors(record.test_error, record.success) + (f", trust: {said}" if said else "")
        self._progress.update(record.round / self._rounds, f"round {record.round:,} of {self._rounds:,}", self._errors)

    def close(self) -> None:
        self._progress.close()


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
