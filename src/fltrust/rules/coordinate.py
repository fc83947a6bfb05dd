"""Rules that work coordinate by coordinate."""

from dataclasses import dataclass

from fltrust.errors import InputError
from fltrust.registry import RULES, Look
from fltrust.rules.rows import finite, measure, ranked_mean
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("trim-mean", label="Trim-mean", look=Look("green", "^"), reference="Yin et al., ICML 2018")
@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Per coordinate, the mean of the values without the `trim` largest and the `trim` smallest (Yin et al. 2018).

    Parameters
    ----------
    trim : int
        How many values to leave out at each end. The rule needs at least 2 trim + 1 clients.

    Examples
    --------
    >>> import torch
    >>> from fltrust import TrimmedMean
    >>> TrimmedMean(trim=1)(torch.tensor([[1.0, 5.0], [2.0, -90.0], [30.0, 7.0]]))
    Aggregate(update=tensor([2., 5.]), shares=None)
    """

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
    """Per coordinate, the median of the values (Yin et al. 2018).

    The median of an even number of values is the mean of the two in the middle.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Median
    >>> Median()(torch.tensor([[1.0, 5.0], [2.0, -90.0], [30.0, 7.0]]))
    Aggregate(update=tensor([2., 5.]), shares=None)
    """

    by_coordinate = True

    def aggregate(self, received: Received) -> Aggregate:
        updates = received.updates
        return Aggregate(finite(ranked_mean(updates, measure(updates).usable, None), updates), None)
