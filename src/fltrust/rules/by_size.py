"""Unequal clients: a client with more examples counts as more clients, for any rule."""

from dataclasses import dataclass, fields, replace
from functools import cache, cached_property

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.preaggregation import Measured, PreAggregation
from fltrust.rules.rows import divisor, room_for
from fltrust.rules.rule import Aggregate, Received, Rule, try_rule
from fltrust.state import Memory

GRAIN = 4  # copies of a client of average size: sizes count in steps of a quarter of it


@RULES.register("by-size", label="By size")
@dataclass(frozen=True)
class BySize(PreAggregation):
    """Counts a client with twice the examples as two clients, up to a bound, then applies a rule.

    Client i has the weight w_i = min(most, c |D_i|), where c makes the average weight of the usable updates 1. The rule sees round(4 w_i)
    copies of the update, at least one. So around FedAvg this is the mean weighted by size, and around Median the weighted median, both in
    steps of a quarter of the average client.

    Sizes are what clients claim. Whatever a client claims, it counts at most as `most` average clients. So that f clients at that bound are
    still tolerated, the rule's `tolerate` and `trim` become f * round(4 most); those that count all clients become 4 times as many.
    Sizes that are negative, NaN or infinite count as 0. Without sizes, all weights are 1. A rule that remembers each client cannot stand
    within: it would take copies for clients that collude.

    Parameters
    ----------
    rule : Rule
        The rule that is applied to the copies, with `tolerate` and `trim` in clients.
    most : float, default 2.0
        The largest weight of one client, at least 1. With n clients, one has at most most / n of the total.

    Examples
    --------
    >>> import torch
    >>> from fltrust import BySize, FedAvg, Median
    >>> updates, sizes = torch.tensor([[1.0], [2.0], [30.0]]), torch.tensor([10, 10, 40])
    >>> BySize(Median(), most=3.0)(updates, sizes=sizes)  # weights 0.5, 0.5 and 2
    Aggregate(update=tensor([30.]), shares=None)
    >>> BySize(FedAvg(), most=3.0)(updates, sizes=sizes)
    Aggregate(update=tensor([20.5000]), shares=tensor([0.1667, 0.1667, 0.6667]))
    """

    rule: Rule
    most: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.most <= 1000:
            raise InputError(f"by-size needs a largest weight (most) of 1 to 1000, not {self.most}")
        if self.rule.needs_ids:
            raise InputError(f"{type(self.rule).__name__} remembers each client: it would take copies of a row for clients that collude")

    @cached_property
    def within(self) -> Rule:
        return _scaled(self.rule, _copies_of(self.most))

    def mixing(self, sent: Measured) -> Tensor:
        usable, sizes = sent.rows.usable, sent.received.sizes
        n, device = len(usable), usable.device
        weights = torch.ones(n, dtype=torch.float64, device=device) if sizes is None else client_weights(sizes, usable, self.most)
        copies = torch.where(usable, (GRAIN * weights + 0.5).floor().clamp(min=1), 0)  # (n,)
        # At most 1 more than GRAIN * weight each, so there is room for all; the rest are rows of zeros, which every rule ignores.
        place = torch.arange((GRAIN + 1) * n, dtype=torch.float64, device=device)
        last = copies.cumsum(0)
        return ((place[:, None] >= last - copies) & (place[:, None] < last)).double()

    def mixed(self, sent: Measured, mixing: Tensor) -> Tensor:
        updates, n = sent.received.updates, len(sent.received.updates)
        source = room_for(n + 1, updates)  # the rows and one of zeros
        source[:n], source[n] = updates, 0
        which = torch.where((mixing != 0).any(1), mixing.argmax(1), n)
        return torch.index_select(source, 0, which, out=room_for(len(which), updates))

    def handed_on(self, received: Received, rows: Tensor, mixing: Tensor) -> Received:
        return replace(received, updates=rows, sizes=None, client_ids=None)  # sizes count once

    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        if refusal := _refusal(self.rule, self.most, len(received.updates)):
            raise InputError(refusal)
        return super().step(received, memory)


def client_weights(sizes: Tensor, usable: Tensor, most: float) -> Tensor:
    """min(most, c size) for each client (n,), in float64, with the c that makes their mean 1; 1 for all if nobody has a size.

    If too few clients have a size at all, the mean stays below 1: the bound comes first.
    """
    size = torch.where(usable, sizes.double().nan_to_num(0, 0, 0).clamp(min=0), 0)
    size = size / divisor(size.amax())
    ordered = size.sort(descending=True).values
    rest = ordered.flip(0).cumsum(0).flip(0)  # (n,): the sum of this size and all smaller ones
    capped = torch.arange(len(size), dtype=torch.float64, device=size.device)  # if the j largest are at the bound ...
    factor = (usable.sum() - most * capped) / rest  # ... c would be this; infinite where only sizes of 0 are left
    fits = (factor * ordered).nan_to_num(0, torch.inf) <= most * (1 + 1e-9)  # rounding must not miss it
    factor = factor.take(fits.byte().argmax())  # the first that fits
    weights = (factor * size).nan_to_num(0, most).clamp(max=most)
    return torch.where(size.amax() > 0, weights, 1.0)


def _copies_of(most: float) -> int:
    return int(GRAIN * most + 0.5)


def _scaled(rule: Rule, copies: int) -> Rule:
    """The rule for copies of clients: what it counts in clients is counted in rows, malicious clients at the largest number of copies."""
    changes: dict[str, float | Rule] = {}
    for part in fields(rule):
        value = getattr(rule, part.name)
        if isinstance(value, Rule):
            changes[part.name] = _scaled(value, copies)
        elif isinstance(value, int | float) and part.name in rule.counts_malicious:
            changes[part.name] = value * copies
        elif isinstance(value, int | float) and part.name in rule.counts_clients:
            changes[part.name] = value * GRAIN
    return replace(rule, **changes)


def _most_malicious(rule: Rule) -> int:
    """How many malicious rows a rule expects, or a rule within it."""
    parts = [(part.name, getattr(rule, part.name)) for part in fields(rule)]
    counts = [int(value) for name, value in parts if name in rule.counts_malicious and value is not None]
    return max([*counts, *(_most_malicious(value) for _, value in parts if isinstance(value, Rule))], default=0)


@cache
def _refusal(rule: Rule, most: float, n: int) -> str:
    """Why the rule cannot work with copies of n clients, and what would; nothing if it can."""
    fewest = max(1, int((GRAIN - 0.5) * n))  # rows: each client's copies are rounded down by a half at most

    def fault(copies: int) -> str:
        scaled = _scaled(rule, copies)
        worst = _most_malicious(scaled)
        if 2 * worst + 2 >= fewest and worst:  # not every rule refuses a malicious majority by itself
            return f"{worst} of them may be malicious, which leaves the others no majority"
        return try_rule(scaled, fewest)

    why = fault(_copies_of(most))
    if not why:
        return ""
    smaller = range(_copies_of(most) - 1, GRAIN - 1, -1)
    fits = next((copies for copies in smaller if not fault(copies)), None)
    works = "no smaller bound works" if fits is None else f"most = {fits / GRAIN:g} works"
    return f"by-size makes {fewest} or more rows of {n} clients, and with most = {most:g}: {why}; {works}"
