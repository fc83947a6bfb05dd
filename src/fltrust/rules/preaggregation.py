"""What happens to the rows before another rule sees them: each wrapper mixes rows linearly and hands them on.

k rows go on, of n that were received; y = A x, with A (k, n). A client's share is what its row contributes to the rows that go on.
"""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.rules.gram import GramRule
from fltrust.rules.rows import Rows, combined, inner_products, measure
from fltrust.rules.rule import Aggregate, Received, Rule, take_step
from fltrust.state import Memory

_TRAITS = ("needs_root", "needs_ids", "needs_weights", "needs_root_loss", "needs_generator", "by_coordinate", "scores_trust", "on_host")


class Measured:
    """What was received, measured once."""

    def __init__(self, received: Received) -> None:
        self.received = received

    @cached_property
    def rows(self) -> Rows:
        return measure(self.received.updates)

    @cached_property
    def products(self) -> Tensor:
        """The inner products (n, n) of the rows, the longest of length 1."""
        return inner_products(self.received.updates, self.rows)


class PreAggregation(Rule):
    """A mixing of the rows before another rule: a frozen dataclass with a field `rule` that defines `mixing`."""

    rule: Rule

    def __post_init__(self) -> None:
        for trait in _TRAITS:  # it needs what the rule within needs, and perhaps more
            object.__setattr__(self, trait, getattr(type(self), trait) or getattr(self.rule, trait))

    def mixing(self, sent: Measured) -> Tensor:
        """A (k, n), in float64: the rows that go on, as sums of those received; 0 in the columns of rows that are not usable."""
        raise InputError(f"{type(self).__name__} must define mixing(sent)")

    def handed_on(self, received: Received, mixing: Tensor) -> Received:
        """What else the rule within sees: for rows that are not the clients' any more, without ids."""
        return received

    @property
    def has_memory(self) -> bool:
        return self.rule.has_memory

    def init(self, num_clients: int, like: Tensor) -> Memory:
        return self.rule.init(num_clients, like)

    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        updates, sent = received.updates, Measured(received)
        mixing = self.mixing(sent)  # (k, n)
        if isinstance(self.rule, GramRule) and not self.rule.needs_rows:  # the rows themselves are not needed
            products = mixing @ sent.products @ mixing.T
            shares = self.rule.weigh(products, products.diagonal() > 0) @ mixing
            return Aggregate(combined(updates, sent.rows, shares), shares.to(updates.dtype)), memory
        clean = torch.where(sent.rows.usable[:, None], updates, 0)
        mixed = (mixing.to(updates.dtype) @ clean).nan_to_num_(0, 0, 0)  # (k, d)
        aggregate, memory = take_step(self.rule, self.handed_on(replace(received, updates=mixed), mixing), memory)
        if aggregate.shares is None:
            return aggregate, memory
        return aggregate._replace(shares=(aggregate.shares.double() @ mixing).to(updates.dtype)), memory
