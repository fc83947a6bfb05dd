"""What a rule is, what it sees (`Received`) and what it returns (`Aggregate`).

n clients take part in a round, of N in the federation; d parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES, Registry
from fltrust.rules.rows import Rows, check, check_like
from fltrust.state import Memory, layout, leaves


class Aggregate(NamedTuple):
    """What a rule returns.

    Parameters
    ----------
    update : Tensor
        (d,), the global update.
    shares : Tensor or None
        (n,), how much of the update comes from each client. None for rules that work coordinate by coordinate.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FedAvg
    >>> update, shares = FedAvg()(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    >>> update, shares
    (tensor([2., 0.]), tensor([0.5000, 0.5000]))
    """

    update: Tensor
    shares: Tensor | None


@dataclass(frozen=True)
class Received:
    """All that the server knows when it aggregates: what a rule may look at.

    Parameters
    ----------
    updates : Tensor
        (n, d), a row per client: its change of the weights.
    root_update : Tensor or None, default None
        (d,), the server's own update, from its root set.
    sizes : Tensor or None, default None
        (n,), how many training examples each client says it has.
    client_ids : Tensor or None, default None
        (n,) int64 in 0..N-1, the client that sent each row. None if clients are anonymous.
    round : Tensor or None, default None
        () int64, 1 in the first round. It is a tensor because one CUDA graph serves all rounds.
    generator : torch.Generator or None, default None
        Randomness of this round, on the updates' device.
    weights : Tensor or None, default None
        (d,), the global model that the clients started from.
    root_loss : callable or None, default None
        Takes models (k, d) and returns their losses (k,) on the root set; for a rule that `holds_out`, the mean of 1 - exp(-loss) on the
        examples held out.
    global_lr : Tensor or None, default None
        (), the learning rate: the model moves by this times the rule's update. None is 1.
    root_update_from : callable or None, default None
        Takes a model (d,) and returns the root update (d,) that starts from it; for a rule that `holds_out`.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLTrust, Received
    >>> received = Received(torch.tensor([[1.0, 0.0], [0.0, 5.0]]), root_update=torch.tensor([2.0, 0.0]))
    >>> FLTrust().aggregate(received)
    Aggregate(update=tensor([2., 0.]), shares=tensor([1., 0.]))
    """

    updates: Tensor
    root_update: Tensor | None = None
    sizes: Tensor | None = None
    client_ids: Tensor | None = None
    round: Tensor | None = None
    generator: torch.Generator | None = None
    weights: Tensor | None = None
    root_loss: Callable[[Tensor], Tensor] | None = None
    global_lr: Tensor | None = None
    root_update_from: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        check(self.updates, self.root_update, self.sizes)
        n, d = self.updates.shape
        if self.client_ids is not None:
            _check_ids(self.client_ids, n)
        if self.weights is not None:
            check_like(self.weights, (d,), self.updates, "the global weights")


def _check_ids(client_ids: Tensor, n: int) -> None:
    if client_ids.shape != (n,) or client_ids.dtype != torch.int64:
        raise InputError(f"client_ids must be {n} whole numbers (int64), not {client_ids.dtype} {tuple(client_ids.shape)}")
    if client_ids.device.type != "cpu" or type(client_ids) is not Tensor:
        return  # to look would wait for the GPU, where the simulator draws them; a tensor of another type may have no values
    ascending = client_ids.sort().values
    if ascending[0] < 0:
        raise InputError(f"client_ids must be 0 or more, not {int(ascending[0])}")
    twice = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(twice):
        raise InputError(f"client_ids must name each client once: {int(twice[0])} is there twice")


class Accumulator(Protocol):
    """A rule that takes updates as they arrive, some at a time: memory for one update however many clients there are."""

    @property
    def count(self) -> int: ...
    def add_many(self, updates: Tensor) -> Tensor: ...
    def add_measured(self, update: Tensor, row: Rows) -> float: ...
    def result(self) -> Aggregate: ...


@dataclass(frozen=True)
class Rule:
    """An aggregation rule: a frozen dataclass whose fields are its parameters.

    A rule without memory defines `aggregate`. A rule with memory defines `init`, which returns the memory before the first round, and
    `step`, which takes the memory and returns the next one. `step` never changes the memory it was given.

    Every rule must ignore unusable rows (`rows.measure(updates).usable`), and return the zero update if it trusts nobody. A rule whose path
    depends on values in a tensor must set `on_host`, because on a GPU the round runs as a CUDA graph. `fltrust.testing.check_rule` checks
    all of this.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Aggregate, Rule
    >>> from fltrust.rules.rows import measure
    >>> class Mean(Rule):
    ...     def aggregate(self, received):
    ...         usable = measure(received.updates).usable  # (n,)
    ...         shares = usable / usable.sum().clamp(min=1)
    ...         return Aggregate(shares @ torch.where(usable[:, None], received.updates, 0), shares)
    >>> Mean()(torch.tensor([[1.0, 2.0], [3.0, 6.0], [float("nan"), 0.0]]))
    Aggregate(update=tensor([2., 4.]), shares=tensor([0.5000, 0.5000, 0.0000]))
    """

    registry: ClassVar[Registry] = RULES
    needs_root: ClassVar[bool] = False  # the root update
    needs_ids: ClassVar[bool] = False  # to know which client sent a row, in every round
    needs_weights: ClassVar[bool] = False  # the global model
    needs_root_loss: ClassVar[bool] = False  # to try models on the root set
    needs_generator: ClassVar[bool] = False  # randomness
    holds_out: ClassVar[bool] = False  # part of the root set is for root_loss alone; the rest for root updates, from any model
    by_coordinate: ClassVar[bool] = False  # has no shares: each coordinate may take another client's value
    scores_trust: ClassVar[bool] = False  # a share of 0 means that the update does not align with the root update
    on_host: ClassVar[bool] = False  # computes on the CPU, so the round's CUDA graph ends before the rule
    counts_malicious: ClassVar[tuple[str, ...]] = ("tolerate", "trim")  # its parameters that count malicious clients ...
    counts_clients: ClassVar[tuple[str, ...]] = ("keep",)  # ... and those that count clients of any kind

    def init(self, num_clients: int, like: Tensor) -> Memory:
        """The memory before the first round, for a federation of N clients and a model like `like` (d,)."""
        return ()

    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        """One round: returns the aggregate of what the server received, and the memory for the next round."""
        return self.aggregate(received), memory

    def aggregate(self, received: Received) -> Aggregate:
        """The aggregate of what the server received, for a rule without memory."""
        raise InputError(f"{type(self).__name__} must define aggregate(received), or init and step if it has a memory")

    def accumulator(self, root_update: Tensor, exact_for: int | None = None) -> Accumulator | None:
        """The same rule for updates that arrive one at a time; None if it needs all of them at once.

        `exact_for`: for at most this many updates, their order must not change a single bit of the result.
        """
        return None

    def streamed(self, root_update: Tensor, exact_for: int | None = None) -> Accumulator | None:
        """The accumulator, if it is this very rule's: a subclass with another `aggregate` or `step` needs another one."""
        owner = _owner(type(self), "accumulator")
        theirs = all(issubclass(owner, _owner(type(self), name)) for name in ("step", "aggregate"))
        return self.accumulator(root_update, exact_for) if theirs else None

    @property
    def overridden(self) -> bool:
        """Whether a user's own class says how it aggregates, so that what is known of the package's rules need not hold."""
        own = (_owner(type(self), name) for name in _AGGREGATING if hasattr(type(self), name))
        return any(owner.__module__.partition(".")[0] != "fltrust" for owner in own)

    @property
    def has_memory(self) -> bool:
        return type(self).init is not Rule.init

    def __call__(self, updates: Tensor, root_update: Tensor | None = None, sizes: Tensor | None = None) -> Aggregate:
        """Applies the rule to a tensor of updates, without a federation: `update, shares = Krum(tolerate=2)(updates)`."""
        if self.has_memory:
            raise InputError(f"{type(self).__name__} remembers earlier rounds: call step(Received(updates, ...), memory)")
        return take_step(self, Received(updates, root_update, sizes), ())[0]


_AGGREGATING = ("init", "step", "aggregate", "means", "mixed", "handed_on", "within")  # of any rule, of Anchor, of what mixes rows first

_TRAITS = (
    "needs_root",
    "needs_ids",
    "needs_weights",
    "needs_root_loss",
    "needs_generator",
    "holds_out",
    "by_coordinate",
    "scores_trust",
    "on_host",
)


def take_traits(wrapper: Rule, within: Rule) -> None:
    """A rule that holds another needs what that one needs, and perhaps more."""
    if not isinstance(within, Rule):
        raise InputError(f"{type(wrapper).__name__} needs a rule within it, such as Median(), not {within!r}")
    for trait in _TRAITS:
        object.__setattr__(wrapper, trait, getattr(type(wrapper), trait) or getattr(within, trait))


def _owner(kind: type, name: str) -> type:
    return next(base for base in kind.__mro__ if name in vars(base))


def take_step(rule: Rule, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
    """rule.step, with what the rule needs and what it returns checked: a rule may be a user's own."""
    name = type(rule).__name__
    for needed, there, what in (
        (rule.needs_root, received.root_update, "a root update"),
        (rule.needs_ids, received.client_ids, "to know which client sent which update"),
        (rule.needs_weights, received.weights, "the global model"),
        (rule.needs_root_loss, received.root_loss, "a loss on the root set"),
        (rule.holds_out, received.root_update_from, "root updates from other models"),
        (rule.needs_generator, received.generator, "randomness"),
    ):
        if needed and there is None:
            raise InputError(f"{name} needs {what} and got none")
    if received.updates.requires_grad:
        received = replace(received, updates=received.updates.detach())
    try:
        with torch.no_grad():
            result = rule.step(received, memory)
    except (IndexError, RuntimeError) as problem:
        if refusal := _unknown_client(rule, received, memory):
            raise InputError(refusal) from problem
        raise
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Aggregate)):
        raise InputError(f"{name}.step must return (Aggregate, memory), not {type(result).__name__}")
    aggregate, later = result
    if layout(later) != layout(memory):
        raise InputError(f"{name}.step must return a memory with the names, shapes and dtypes of the one that it was given")
    n, d = received.updates.shape
    for what, part, shape in (("update", aggregate.update, (d,)), ("shares", aggregate.shares, (n,))):
        if part is None and what == "shares":
            continue
        like = received.updates
        if not isinstance(part, Tensor) or (part.shape, part.dtype, part.device) != (shape, like.dtype, like.device):
            got = f"{part.dtype} of shape {tuple(part.shape)} on {part.device}" if isinstance(part, Tensor) else f"a {type(part).__name__}"
            raise InputError(f"{name} returned {got} as {what}, expected {like.dtype} of shape {shape} on {like.device}")
    return aggregate, later


def _unknown_client(rule: Rule, received: Received, memory: Memory) -> str:
    """Which client has no row in the rule's memory; nothing if all have one."""
    if received.client_ids is None or not rule.needs_ids:
        return ""
    pairs = zip(leaves(memory), leaves(rule.init(1, received.updates[0])), strict=False)
    rows = [len(leaf) for (_, leaf), (_, of_one) in pairs if leaf.ndim and len(of_one) == 1]  # one per client
    largest, num_clients = int(received.client_ids.max()), max(rows, default=0)
    return f"client_ids has client {largest}, and the memory is of clients 0 to {num_clients - 1}" if largest >= num_clients > 0 else ""


def try_rule(rule: Rule, n: int, num_clients: int | None = None) -> str:
    """Why a rule cannot work with n of N clients, tried on rows of ones; nothing if it can."""
    one = torch.ones(1)
    received = Received(
        torch.ones(n, 1),
        root_update=one,
        sizes=torch.ones(n),
        client_ids=torch.arange(n),
        round=torch.ones((), dtype=torch.int64),
        generator=torch.Generator(),
        weights=one,
        root_loss=lambda models: models.sum(1),
        root_update_from=lambda weights: weights,
    )
    try:
        take_step(rule, received, rule.init(num_clients or n, one))
    except InputError as problem:
        return str(problem)
    return ""
