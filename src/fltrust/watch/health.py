"""Is training healthy? One word and one sentence, from the last rounds."""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from fltrust.audit import RoundLine
from fltrust.flower.verdicts import KEPT

WORSE = 0.1  # the test error may rise so far above its best before the page says so


class Health(NamedTuple):
    level: str  # "waiting", "good", "warn" or "bad"
    text: str


def why_kept(line: RoundLine) -> str | None:
    return line.why or KEPT.get(line.kept, line.kept) if line.kept else None


def health(rounds: Sequence[RoundLine]) -> Health:
    """What went wrong in the last round comes first, then what went wrong slowly."""
    if not rounds:
        return Health("waiting", "No round is finished yet")
    last = rounds[-1]
    if kept := sum(1 for _ in takewhile(lambda line: line.kept, reversed(rounds))):
        many = "The last round" if kept == 1 else f"Each of the last {kept} rounds"
        return Health("bad", f"{many} kept the old model: {why_kept(last)}")
    if last.alarms:
        text = last.alarms[0]["text"]
        return Health("bad", text[:1].upper() + text[1:])
    errors = [(line.test_error, line.round) for line in rounds if line.test_error is not None]
    if not errors:
        return Health("good", "Training continues; no test error is recorded")
    best, when = min(errors)
    if errors[-1][0] > best + WORSE:
        return Health("warn", f"The test error rose to {errors[-1][0]:.3f}; it was {best:.3f} in round {when}")
    return Health("good", "Training is healthy")
