"""What happens to the rows before another rule sees them: each wrapper mixes rows linearly and hands them on.

k rows go on, of n that were received: Y = A X, with A (k, n). A client's share is what its row contributes to the rows that go on.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.gram import GramRule
from fltrust.rules.mean import FedAvg
from fltrust.rules.pairs import inner_products, sq_distances_of
from fltrust.rules.rows import Rows, combined, finite, in_order, measure, median_of, room_for, usable_only
from fltrust.rules.rule import Aggregate, Received, Rule, take_step, take_traits
from fltrust.state import Memory


class Measured:
    """What was received, measured once."""

    def __init__(self, received: Received) -> None:
        self.received = received

    @cached_property
    def rows(self) -> Rows:
        return measure(self.received.updates)

    @cached_property
    def products(self) -> Tensor:
        """The inner products (n, n) of the rows, divided by the square of a unit in which none is longer than 1."""
        return inner_products(self.received.updates, self.rows)


class PreAggregation(Rule):
    """A mixing of the rows before another rule: a frozen dataclass with a field `rule` that defines `mixing`."""

    rule: Rule
    cancels: ClassVar[bool] = False  # long rows that cancel in a sum can leave a short one: products would say nothing of it

    def __post_init__(self) -> None:
        take_traits(self, self.rule)

    def mixing(self, sent: Measured) -> Tensor:
        """A (k, n), in float64: the rows that go on, as sums of those received; 0 in the columns of rows that are not usable."""
        raise InputError(f"{type(self).__name__} must define mixing(sent)")

    def mixed(self, sent: Measured, mixing: Tensor) -> Tensor:
        """The rows that go on (k, d), of the updates' dtype and finite."""
        updates = sent.received.updates
        clean = usable_only(updates, sent.rows.usable)
        return finite(torch.mm(mixing.to(updates.dtype), clean, out=room_for(len(mixing), updates)), updates)

    def handed_on(self, received: Received, rows: Tensor, mixing: Tensor) -> Received:
        """What the rule within sees: the rows that go on (k, d) and, as long as each is one client's, all that was known before."""
        return replace(received, updates=rows)

    @property
    def within(self) -> Rule:
        """The rule that sees the mixed rows."""
        return self.rule

    @property
    def has_memory(self) -> bool:
        return self.within.has_memory

    def init(self, num_clients: int, like: Tensor) -> Memory:
        return self.within.init(num_clients, like)

    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        updates, sent, rule = received.updates, Measured(received), self.within
        mixing = self.mixing(sent)  # (k, n)
        if isinstance(rule, GramRule) and not rule.needs_rows and not self.cancels:  # the rows themselves are not needed
            shares = rule.weigh(mixing @ sent.products @ mixing.T, (mixing != 0).any(1)) @ mixing
            return Aggregate(combined(updates, sent.rows, shares), shares.to(updates.dtype)), memory
        aggregate, memory = take_step(rule, self.handed_on(received, self.mixed(sent, mixing), mixing), memory)
        if aggregate.shares is None:
            return aggregate, memory
        return aggregate._replace(shares=(aggregate.shares.double() @ mixing).to(updates.dtype)), memory


@RULES.register("nnm", label="NNM", reference="Allouah et al., AISTATS 2023")
@dataclass(frozen=True)
class NNM(PreAggregation):
    """Nearest-neighbour mixing: replaces each update by the mean of the n - f nearest to it, then applies a rule (Allouah et al. 2023).

    y_i is the mean of the n - f updates g_j with the smallest ||g_i - g_j||, g_i itself among them. Where distances are equal, the first
    client's update counts as nearer. n is the number of usable updates.

    Parameters
    ----------
    rule : Rule
        The rule that is applied to y_1, ..., y_n.
    tolerate : int
        f, the number of malicious clients to expect.

    Examples
    --------
    >>> import torch
    >>> from fltrust import NNM, Median
    >>> NNM(Median(), tolerate=1)(torch.tensor([[1.0], [2.0], [6.0], [90.0]]))  # the means are 3, 3, 3 and 98 / 3
    Aggregate(update=tensor([3.]), shares=None)
    """

    rule: Rule
    tolerate: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tolerate("NNM", self.tolerate)
        object.__setattr__(self, "scores_trust", False)  # a row is no longer one client's: a share of 0 says nothing of its own update

    def mixing(self, sent: Measured) -> Tensor:
        """Any leading dimensions, as in `GramRule.weigh`."""
        usable = sent.rows.usable
        n, keep = usable.shape[-1], usable.sum(-1)[..., None, None] - self.tolerate  # (.., 1, 1)
        _check_fewer("NNM", self.tolerate, n)
        itself = torch.eye(n, dtype=torch.bool, device=usable.device)
        away = sq_distances_of(sent.products.detach())  # (.., n, n)
        distance = torch.where(usable[..., None, :], away, torch.inf).masked_fill(itself, -1)  # itself first, also among equals
        last = in_order(distance).gather(-1, (keep - 1).clamp(min=0).expand(*usable.shape, 1))  # (.., n, 1): the farthest that counts
        nearer, equal = distance < last, distance == last
        chosen = nearer | (equal & (equal.cumsum(-1) <= keep - nearer.sum(-1, keepdim=True)))
        return (chosen & usable[..., :, None] & usable[..., None, :]).double() / keep.clamp(min=1)


@RULES.register("bucketing", label="Bucketing", reference="Karimireddy, He, Jaggi, ICLR 2022")
@dataclass(frozen=True)
class Bucketing(PreAggregation):
    """Averages the updates in small random groups, then applies a rule to the averages (Karimireddy et al. 2022).

    Each round draws a new permutation of the usable updates and cuts it into groups of `size`; the last may be smaller. The rule sees the
    mean of each group, with the f that it was given: one malicious client spoils one group.

    A group's number of examples is the sum of its clients'. A rule that remembers each client cannot stand within.

    Parameters
    ----------
    rule : Rule
        The rule that is applied to the ceil(n / size) averages.
    size : int, default 2
        s, the number of updates in a group.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Bucketing, Median, Received
    >>> updates = torch.tensor([[1.0], [1.0], [1.0], [1.0], [90.0]])  # wherever the last one falls, it spoils one group of three
    >>> Bucketing(Median()).step(Received(updates, generator=torch.Generator()), ())[0]
    Aggregate(update=tensor([1.]), shares=None)
    """

    rule: Rule
    size: int = 2

    needs_generator = True
    cancels = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise InputError(f"bucketing needs groups of at least 1, not {self.size}")
        if self.rule.needs_ids:
            raise InputError(f"{type(self.rule).__name__} must know which client sent a row, and a row of bucketing is of several clients")
        object.__setattr__(self, "scores_trust", False)

    def mixing(self, sent: Measured) -> Tensor:
        usable = sent.rows.usable
        n, count, device = len(usable), usable.sum(), usable.device
        drawn = torch.rand(n, generator=sent.received.generator, device=device, dtype=torch.float64)
        place = torch.where(usable, drawn, 2).argsort().argsort()  # (n,): usable rows come first, in random order
        groups = torch.arange(-(-n // self.size), device=device)
        held = (groups * -self.size + count).clamp(0, self.size)  # (k,): how many rows each group has
        return ((place // self.size == groups[:, None]) & usable).double() / held.clamp(min=1)[:, None]

    def handed_on(self, received: Received, rows: Tensor, mixing: Tensor) -> Received:
        sizes = received.sizes
        if sizes is not None:
            sizes = (mixing > 0).double() @ sizes.double().nan_to_num(0, 0, 0).clamp(min=0)
        return replace(received, updates=rows, sizes=sizes, client_ids=None)

    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        try:
            return super().step(received, memory)
        except InputError as problem:
            n = len(received.updates)
            raise InputError(f"{n} clients in buckets of {self.size} are {-(-n // self.size)} rows: {problem}") from problem


class Clipping(PreAggregation):
    """Cuts each row that is longer than a bound to that length. It defines `bound_on`."""

    def bound_on(self, norm: Tensor, usable: Tensor) -> Tensor | float:
        """The largest length () that a row may have; `norm` (n,) is 0 for rows that are not usable (n,)."""
        raise InputError(f"{type(self).__name__} must define bound_on(norm, usable)")

    def mixing(self, sent: Measured) -> Tensor:
        norm, usable = sent.rows.norm, sent.rows.usable
        bound = self.bound_on(norm, usable)
        return torch.where(usable, torch.where(norm > bound, bound / norm, 1), 0).diag()

    def mixed(self, sent: Measured, mixing: Tensor) -> Tensor:
        clean = usable_only(sent.received.updates, sent.rows.usable)
        return torch.mul(clean, mixing.diagonal().to(clean.dtype)[:, None], out=room_for(len(clean), clean))


@RULES.register("arc", label="ARC", reference="Allouah et al., ICLR 2025")
@dataclass(frozen=True)
class ARC(Clipping):
    """Adaptive clipping: shortens the longest updates to the length of the next one, then applies a rule (Allouah et al. 2025).

    The floor(2 (f / n) (n - f)) longest updates are cut to the length of the longest of the others. n is the number of usable updates.

    Parameters
    ----------
    rule : Rule
        The rule that is applied to the clipped updates. The authors clip before NNM: ARC(NNM(Median(), 2), 2).
    tolerate : int
        f, the number of malicious clients to expect.

    Examples
    --------
    >>> import torch
    >>> from fltrust import ARC, FedAvg
    >>> ARC(FedAvg(), tolerate=1)(torch.tensor([[1.0], [2.0], [3.0], [90.0]]))  # floor(2 * 1 / 4 * 3) = 1 update is cut to 3
    Aggregate(update=tensor([2.2500]), shares=tensor([0.2500, 0.2500, 0.2500, 0.0083]))
    """

    rule: Rule
    tolerate: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tolerate("ARC", self.tolerate)

    def bound_on(self, norm: Tensor, usable: Tensor) -> Tensor:
        _check_fewer("ARC", self.tolerate, len(norm))
        count = usable.sum()
        cut = 2 * self.tolerate * (count - self.tolerate).clamp(min=0) // count.clamp(min=1)
        longest = norm.sort(descending=True).values.gather(0, cut.clamp(max=len(norm) - 1)[None])[0]
        return torch.where(count > self.tolerate, longest, 0)  # nobody is trusted if all that is left may be malicious


@RULES.register("norm-clipping", label="Norm clipping", reference="Sun et al., 2019")
@dataclass(frozen=True)
class NormClipping(Clipping):
    """The mean of the updates, each cut to a bound on its length, plus noise (Sun et al. 2019).

    g = mean_i g_i min(1, C / ||g_i||) + N(0, sigma^2) per coordinate. The noise is on the aggregate ("weak differential privacy").
    If no update is usable, the result is zero, without noise.

    Parameters
    ----------
    rule : Rule, default FedAvg(by_size=False)
        The rule that is applied to the clipped updates. FedAvg() weighs them by the clients' numbers of examples.
    bound : float or None, default None
        C, the largest length. None takes the median length of each round's updates.
    noise : float, default 0.0
        sigma, the standard deviation of the noise.

    Examples
    --------
    >>> import torch
    >>> from fltrust import NormClipping
    >>> NormClipping(bound=2.0)(torch.tensor([[1.0, 0.0], [0.0, 2.0], [6.0, 8.0]]))  # the last becomes (1.2, 1.6)
    Aggregate(update=tensor([0.7333, 1.2000]), shares=tensor([0.3333, 0.3333, 0.0667]))
    """

    rule: Rule = field(default_factory=lambda: FedAvg(by_size=False))
    bound: float | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bound is not None and not 0 < self.bound < math.inf:
            raise InputError(f"norm clipping needs a positive bound, not {self.bound}")
        if not 0 <= self.noise < math.inf:
            raise InputError(f"norm clipping cannot add noise of deviation {self.noise}: give 0 or more")
        if self.noise and self.rule.holds_out:
            raise InputError("noise would move the model away from where Fallback puts it: clip inside, 'fallback+norm-clipping'")
        object.__setattr__(self, "needs_generator", self.noise > 0 or self.rule.needs_generator)

    def bound_on(self, norm: Tensor, usable: Tensor) -> Tensor | float:
        return median_of(norm, usable) if self.bound is None else self.bound

    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        aggregate, memory = super().step(received, memory)
        if not self.noise:
            return aggregate, memory
        update = aggregate.update
        noise = torch.randn(len(update), generator=received.generator, device=update.device, dtype=torch.float64) * self.noise
        return aggregate._replace(update=torch.where(update.any(), finite(update + noise, update), 0)), memory


def _check_tolerate(name: str, tolerate: int) -> None:
    if tolerate < 0:
        raise InputError(f"{name} cannot tolerate {tolerate} clients: give 0 or more")


def _check_fewer(name: str, tolerate: int, n: int) -> None:
    if n <= tolerate:
        raise InputError(f"{name} cannot tolerate {tolerate} of {n}: it needs more clients than it tolerates")
