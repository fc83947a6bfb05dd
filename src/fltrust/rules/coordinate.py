"""Rules that work coordinate by coordinate."""

from dataclasses import dataclass

from fltrust.errors import InputError
from fltrust.registry import RULES, Look
from fltrust.rules.rows import finite, measure, ranked_mean
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("trim-mean", label="Trim-mean", look=Look("green", "^"), reference="Yin et al., ICML 2018")
@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Per coordinate, the mean of the values without the `trim` largest and the `trim` smallest (Yin et al. 2018)."""

    trim: int

    by_coordinate = True

    def __post_init__(self) -> None:
        if self.trim < 0:
            raise InputError(f"a trimmed mean cannot trim {self.trim} values: give 0 or more")

    def aggregate(self, received: Received) -> Aggregate:
        updates = received.updates
        n = len(updates)
        if n <= 2 * self.trim:
            raise InputError(f"a trimmed mean cannot trim {self.trim} from each side of {n}: it needs at least {2 * self.trim + 1} clients")
        return Aggregate(finite(ranked_mean(updates, measure(updates).usable, self.trim), updates), None)


@RULES.register("median", label="Median", look=Look("pink", "D"), reference="Yin et al., ICML 2018")
@dataclass(frozen=True)
class Median(Rule):
    """Per coordinate, the median; of an even number of values, the mean of the two in the middle (Yin et al. 2018)."""

    by_coordinate = True

    def aggregate(self, received: Received) -> Aggregate:
        updates = received.updates
        return Aggregate(finite(ranked_mean(updates, measure(updates).usable, None), updates), None)
