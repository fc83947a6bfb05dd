"""Rules that work coordinate by coordinate."""

from dataclasses import dataclass

import torch

from fltrust.errors import InputError
from fltrust.registry import RULES, Look
from fltrust.rules.rows import finite, measure, more_than, nearest_mean, ranked_mean_of_usable
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("trim-mean", label="Trim-mean", look=Look("green", "^"), reference="Yin et al., ICML 2018")
@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Per coordinate, the mean of the values without the `trim` largest and the `trim` smallest (Yin et al. 2018).

    If only a few updates are usable, one or two values in the middle always stay; if `trim` or fewer are usable, the update is zero.

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
        mean, usable = ranked_mean_of_usable(updates, self.trim)
        return Aggregate(finite(torch.where(more_than(self.trim, usable), mean, 0), updates), None)


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
        return Aggregate(finite(ranked_mean_of_usable(updates, None)[0], updates), None)


class _Nearest(Rule):
    """Per coordinate, the mean of the n - f values nearest to a centre, f = `tolerate`."""

    tolerate: int

    by_coordinate = True

    def __post_init__(self) -> None:
        if self.tolerate < 0:
            raise InputError(f"{type(self).__name__} cannot tolerate {self.tolerate} clients: give 0 or more")

    @property
    def trim(self) -> int | None:
        """How many values the centre leaves out at each end; None for the median."""
        raise NotImplementedError

    def aggregate(self, received: Received) -> Aggregate:
        updates, least = received.updates, 2 * self.tolerate + 1
        n = len(updates)
        if n < least:
            raise InputError(f"{type(self).__name__} cannot tolerate {self.tolerate} of {n}: it needs at least {least} clients")
        usable = measure(updates).usable
        mean = nearest_mean(updates, usable, self.tolerate, self.trim)
        return Aggregate(finite(torch.where(more_than(self.tolerate, usable), mean, 0), updates), None)


@RULES.register("meamed", label="MeaMed", reference="Xie et al., arXiv:1802.10116, 2018")
@dataclass(frozen=True)
class MeaMed(_Nearest):
    """Per coordinate, the mean of the n - f values nearest to the median (Xie, Koyejo and Gupta 2018).

    g = mean of the n - f values x_i with the smallest |x_i - median|, in each coordinate. Of two values equally far away, the lower one
    counts; the paper leaves this open. n counts usable updates; if f or fewer are usable, the update is zero.

    Parameters
    ----------
    tolerate : int
        f, the number of malicious clients to expect. The rule needs at least 2f + 1 clients.

    Examples
    --------
    >>> import torch
    >>> from fltrust import MeaMed
    >>> MeaMed(tolerate=1)(torch.tensor([[1.0, 5.0], [2.0, -90.0], [30.0, 7.0]]))  # medians 2 and 5; 30 and -90 are farthest
    Aggregate(update=tensor([1.5000, 6.0000]), shares=None)
    """

    tolerate: int

    @property
    def trim(self) -> None:
        return None


@RULES.register("phocas", label="Phocas", reference="Xie et al., arXiv:1805.09682, 2018")
@dataclass(frozen=True)
class Phocas(_Nearest):
    """Per coordinate, the mean of the n - f values nearest to the trimmed mean (Xie, Koyejo and Gupta 2018).

    g = mean of the n - f values x_i with the smallest |x_i - c|, in each coordinate, where c is the mean without the f smallest and the
    f largest values. Of two values equally far away, the lower one counts; the paper leaves this open. n counts usable updates; if f
    or fewer are usable, the update is zero.

    Parameters
    ----------
    tolerate : int
        f, the number of malicious clients to expect. The rule needs at least 2f + 1 clients.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Phocas
    >>> Phocas(tolerate=1)(torch.tensor([[1.0], [2.0], [3.0], [10.0]]))  # c = 2.5, and 10 is farthest
    Aggregate(update=tensor([2.]), shares=None)
    """

    tolerate: int

    @property
    def trim(self) -> int:
        return self.tolerate
