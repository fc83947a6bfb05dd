"""Bulyan: Krum again and again, then coordinate by coordinate."""

from dataclasses import dataclass

import torch

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.krum import krum_picks
from fltrust.rules.pairs import inner_products, sq_distances_of
from fltrust.rules.rows import finite, measure, more_than, nearest_mean
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("bulyan", label="Bulyan", reference="El Mhamdi et al., ICML 2018")
@dataclass(frozen=True)
class Bulyan(Rule):
    """Picks n - 2f updates by repeated Krum, then averages per coordinate those nearest to the median (El Mhamdi et al. 2018).

    Stage 1, n - 2f times: Krum on the updates that are left, with new scores each time; the winner moves to S. Of m updates left, a score
    is the sum of the squared distances to the m - f - 2 nearest others. Stage 2, per coordinate: the mean of the |S| - 2f values of S
    that are nearest to the median of S; of two equally far away, the lower one counts.

    The paper leaves equal scores open, and with f <= 2 the last scores are always equal: there are no neighbours left, or two updates
    are the nearest to each other. Then the one with the smaller sum of squared distances to all that are left wins; if these are equal
    too, the first. n counts usable updates; if f or fewer are usable, the update is zero.

    Parameters
    ----------
    tolerate : int
        f, the number of malicious clients to expect. Bulyan needs at least 4f + 3 clients.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Bulyan
    >>> updates = torch.tensor([[1.0], [3.0], [4.0], [6.0], [10.0], [12.0], [90.0]])
    >>> Bulyan(tolerate=1)(updates)  # S = 4, 6, 10, 3, 12; the three values nearest to its median are 3, 4 and 6
    Aggregate(update=tensor([4.3333]), shares=None)
    """

    tolerate: int

    by_coordinate = True

    def __post_init__(self) -> None:
        if self.tolerate < 0:
            raise InputError(f"Bulyan cannot tolerate {self.tolerate} clients: give 0 or more")

    def aggregate(self, received: Received) -> Aggregate:
        updates, f = received.updates, self.tolerate
        n, least = len(updates), 4 * f + 3
        if n < least:
            raise InputError(f"Bulyan cannot tolerate {f} of {n}: it needs at least {least} clients")
        rows = measure(updates)
        chosen = krum_picks(sq_distances_of(inner_products(updates, rows)), f, rows.usable, leave=2 * f, most=n)
        mean = nearest_mean(updates, chosen, 2 * f, None)
        return Aggregate(finite(torch.where(more_than(f, rows.usable), mean, 0), updates), None)
