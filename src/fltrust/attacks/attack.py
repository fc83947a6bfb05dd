"""What an attack is and what it may know (`Knowledge`): what malicious clients do to their data before training and to their updates after.

n clients take part in a round, the m malicious ones first; d parameters.
own       (m, d)  the updates that the malicious clients computed as the protocol asks
others  (n-m, d)  the honest clients' updates
crafted   (m, d)  what the malicious clients send instead

An attack gets a `Knowledge` and nothing else: the threat model is a type. Crafting never waits for the device and never changes its
input; an update that holds NaN or infinity counts as an update of zeros, so what is crafted from honest updates is always finite.

Updates are what is added to the weights. Papers that write of gradients have the opposite sign.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from fltrust.attacks.rows import SeenRows
from fltrust.errors import InputError
from fltrust.registry import ATTACKS, Registry
from fltrust.registry import known as known_name
from fltrust.rules.rule import Rule
from fltrust.state import Memory, layout
from fltrust.triggers import Trigger

Found = TypeVar("Found")
Level = Literal["full", "partial"]
Altered = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]  # inputs and labels to others, and which of them count


class Server(NamedTuple):
    """What the attacker knows of the server. The rule is public; all the rest is None under partial knowledge.

    A rule's draws are never known: an attacker that tries the rule draws its own.
    """

    rule: Rule
    memory: Memory | None = None  # the rule's, before this round
    sizes: Tensor | None = None  # (n,): how many examples each client says it has
    root_loss: Callable[[Tensor], Tensor] | None = None  # of models (k, d), on the root set; None where the rule does not ask for it
    root_update_from: Callable[[Tensor], Tensor] | None = None  # of a model (d,): its root update; likewise


@dataclass(frozen=True)
class Knowledge:
    """All that the attacker knows in a round: what an attack may look at.

    n clients take part in the round. The first m of them are malicious.

    Parameters
    ----------
    own : Tensor
        (m, d), the updates that the malicious clients computed as the protocol asks.
    others : Tensor or None
        (n-m, d), the honest clients' updates. None under partial knowledge.
    root_update : Tensor or None
        (d,), the server's own update. None under partial knowledge.
    n : int
        How many clients take part in this round.
    tolerate : int
        How many malicious clients the server's rule expects.
    num_clients : int
        How many clients the whole federation has.
    generator : torch.Generator
        Randomness of this round, on the updates' device.
    client_ids : Tensor or None, default None
        (n,) int64 in 0..num_clients-1, the client that sent each row, malicious clients first.
    round : Tensor or None, default None
        () int64, 1 in the first round.
    weights : Tensor or None, default None
        (d,), the global model that every client was sent in this round. Known under partial knowledge too.
    global_lr : Tensor or None, default None
        (), the server's learning rate in this round: the model moves by so much of the aggregate. None counts as 1. The protocol makes it
        known to every client.
    server : Server or None, default None
        The server's rule and, under full knowledge, what the rule remembers. None where the attacker was not told.
    own_loss : callable or None, default None
        Takes models (k, d) and returns their losses (k,) on the malicious clients' own examples of this round, with their true labels. A
        second argument changes these examples first: it takes inputs (b, ...) and labels (b,) and returns both and which count (b,).

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge
    >>> own, others = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0], [3.0, 4.0]])
    >>> known = Knowledge(own, others, root_update=None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> known.updates
    tensor([[1., 0.],
            [0., 2.],
            [3., 4.]])
    """

    own: Tensor
    others: Tensor | None
    root_update: Tensor | None
    n: int
    tolerate: int
    num_clients: int
    generator: torch.Generator
    client_ids: Tensor | None = None
    round: Tensor | None = None
    weights: Tensor | None = None
    global_lr: Tensor | None = None
    server: Server | None = None
    own_loss: Callable[..., Tensor] | None = None
    _found: dict[Callable[..., Any], Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, find: "Callable[[Knowledge], Found]") -> "Found":
        """What a function finds in this knowledge, found once however many attacks ask: a search asks all of them.

        `find` is a function of a module, and the tensors must not change after the first call.
        """
        if find not in self._found:
            self._found[find] = find(self)
        found: Found = self._found[find]
        return found

    @property
    def model(self) -> Tensor:
        """The global model (d,), for an attack that needs it; an error where it was not shown."""
        if self.weights is None:
            raise InputError("this attack needs the global model and was not shown it")
        return self.weights

    @property
    def honest(self) -> Tensor:
        """The honest clients' updates (n-m, d), for an attack that needs them; an error under partial knowledge."""
        if self.others is None:
            raise InputError(f"this attack needs full knowledge: it was shown {len(self.own)} of {self.n} updates")
        return self.others

    @property
    def updates(self) -> Tensor:
        """All updates (n, d) as they are before the attack, the malicious clients' first."""
        return torch.cat((self.own, self.honest))

    @cached_property
    def seen_updates(self) -> SeenRows:
        return SeenRows(self.updates)

    @cached_property
    def seen_others(self) -> SeenRows:
        return SeenRows(self.honest)

    @cached_property
    def seen_own(self) -> SeenRows:
        return SeenRows(self.own)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=self.own.dtype, device=self.own.device)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=self.own.dtype, device=self.own.device)


@dataclass(frozen=True)
class MaliciousClient:
    """The malicious client that poisons its data: what it knows besides its examples.

    Parameters
    ----------
    num_classes : int
        How many classes the task has; 0 if targets are not classes.
    index : int, default 0
        Which of the malicious clients this is, from 0 on.
    generator : torch.Generator, default a new one
        This client's own randomness, on the CPU. A run seeds it with its seed and the index.

    Examples
    --------
    >>> from fltrust import MaliciousClient
    >>> MaliciousClient(num_classes=10).index
    0
    """

    num_classes: int
    index: int = 0
    generator: torch.Generator = field(default_factory=torch.Generator, compare=False, repr=False)


class Backdoor(NamedTuple):
    """What shows whether a backdoor works."""

    inputs: Tensor  # (k, ...): examples that an attacked model should call the target
    target: int


class Attack:
    """What malicious clients do: a frozen dataclass whose fields are its parameters. The default is to follow the protocol.

    An attack without memory defines `poison`, `relabel`, `craft` or several of them. An attack with memory defines `init`, which returns
    the memory before the first round, and `step`, which takes the memory and returns the next one. `step` never changes the memory it was
    given. `fltrust.testing.check_attack` checks this.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import torch
    >>> from fltrust import Attack, Knowledge
    >>> @dataclass(frozen=True)
    ... class SignFlip(Attack):
    ...     def craft(self, known):
    ...         return -known.own
    >>> own = torch.tensor([[1.0, -2.0]])
    >>> known = Knowledge(own, others=None, root_update=None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> SignFlip().craft(known)
    tensor([[-1.,  2.]])
    """

    registry: ClassVar[Registry] = ATTACKS
    knowledge: Level = "partial"
    needs_root: bool = False
    idle: bool = False  # whether malicious clients do as they should
    on_host: bool = False  # looks at values, so the round cannot be a CUDA graph
    independent: bool = False  # whether each malicious client crafts its update from its own alone
    trigger: Trigger | None = None
    wanted_class: int | None = None  # which the data must have

    def on_host_under(self, rule: Rule) -> bool:
        """`on_host`, for an attack where it depends on the server's rule."""
        return self.on_host

    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        """How a malicious client changes its own examples, once, before training."""
        return images, labels

    def relabel(self, labels: Tensor, outputs: Tensor) -> Tensor:
        """The labels (k, ...) that malicious clients train on in a round, given what the model that they were sent outputs (k, ...)."""
        return labels

    def backdoor(self, inputs: Tensor, labels: Tensor) -> Backdoor | None:
        """What the backdoor's success is measured on, made from test examples; None without a backdoor."""
        if self.trigger is None:
            return None
        others = labels != self.trigger.target
        return Backdoor(self.trigger.stamp(inputs[others]), self.trigger.target)

    def init(self, num_clients: int, like: Tensor) -> Memory:
        """The memory before the first round, for a federation of N clients and a model like `like` (d,)."""
        return ()

    def step(self, known: Knowledge, memory: Memory) -> tuple[Tensor, Memory]:
        """One round: returns what the malicious clients send (m, d), and the memory for the next round. m may be 0."""
        return self.craft(known), memory

    def craft(self, known: Knowledge) -> Tensor:
        """What the malicious clients send (m, d) in place of their own updates, for an attack without memory."""
        return known.own

    @property
    def poisons(self) -> bool:
        return type(self).poison is not Attack.poison

    @property
    def relabels(self) -> bool:
        return type(self).relabel is not Attack.relabel

    @property
    def crafts(self) -> bool:
        """Whether malicious clients send anything but what the protocol asks for."""
        return type(self).craft is not Attack.craft or type(self).step is not Attack.step

    @property
    def has_memory(self) -> bool:
        return type(self).init is not Attack.init


def take_step(attack: Attack, known: Knowledge, memory: Memory) -> tuple[Tensor, Memory]:
    """attack.step, with what it returns checked: an attack may be a user's own."""
    result = attack.step(known, memory)
    name = type(attack).__name__
    if not (isinstance(result, tuple) and len(result) == 2):
        raise InputError(f"{name}.step must return (rows, memory), not {type(result).__name__}")
    crafted, later = result
    if layout(later) != layout(memory):
        raise InputError(f"{name}.step must return a memory with the names, shapes and dtypes of the one that it was given")
    if not isinstance(crafted, Tensor) or (crafted.shape, crafted.dtype) != (known.own.shape, known.own.dtype):
        said = f"{crafted.dtype} of shape {tuple(crafted.shape)}" if isinstance(crafted, Tensor) else f"a {type(crafted).__name__}"
        raise InputError(f"{name} crafted {said}, expected {known.own.dtype} of shape {tuple(known.own.shape)}")
    return crafted, later


def relabelled(attack: Attack, labels: Tensor, outputs: Tensor) -> Tensor:
    """attack.relabel, with what it returns checked."""
    changed = attack.relabel(labels, outputs)
    if not isinstance(changed, Tensor) or (changed.shape, changed.dtype) != (labels.shape, labels.dtype):
        said = f"{changed.dtype} of shape {tuple(changed.shape)}" if isinstance(changed, Tensor) else f"a {type(changed).__name__}"
        raise InputError(f"{type(attack).__name__}.relabel returned {said}, expected {labels.dtype} of shape {tuple(labels.shape)}")
    return changed


# ---------------------------------------------------------------- how the global model moved


class Seen(NamedTuple):
    """The global model as the attacker last saw it: in the last round in which a malicious client took part."""

    rounds: Tensor  # () int64: how many rounds it has seen
    weights: Tensor  # (d,)

    @staticmethod
    def nothing(like: Tensor) -> "Seen":
        return Seen(torch.zeros((), dtype=torch.int64, device=like.device), torch.zeros_like(like))

    def update(self, known: Knowledge) -> Tensor:
        """How the model moved since then (d,), as an update: divided by the server's learning rate. Zeros before the second round."""
        moved = (known.model - self.weights) / (1.0 if known.global_lr is None else known.global_lr)
        return (moved.nan_to_num(0, 0, 0) * (self.rounds > 0)).to(self.weights.dtype)

    def now(self, known: Knowledge) -> "Seen":
        return Seen(self.rounds + 1, known.model.clone())


# ---------------------------------------------------------------- the rows that an attack learns from, and what its parameters may be


def seen_rows(known: Knowledge, knowledge: Level) -> Tensor:
    """The honest clients' updates (n-m, d), or the attacker's own (m, d) if it knows or there are no others; broken ones are zeros."""
    return measured_rows(known, knowledge).rows


def measured_rows(known: Knowledge, knowledge: Level) -> SeenRows:
    """The same, with all that is measured of them once a round."""
    return known.seen_others if knowledge == "full" and known.n > len(known.own) else known.seen_own


def check_level(knowledge: str) -> None:
    if knowledge not in get_args(Level):
        raise InputError(f"an attacker's knowledge is full or partial, not {knowledge!r}")


def check_choice(what: str, choice: str, choices: Any) -> None:
    """Refuses what is none of a Literal's values."""
    known_name(what, choice, get_args(choices))
