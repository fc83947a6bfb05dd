"""Nodes that misbehave on purpose, to see what a federation withstands before someone else finds out.

    app = ClientApp(mods=[misbehave])

The run's configuration says who misbehaves and how: `malicious` is the number of hostile nodes, those with the lowest partition-id, and
`hostile` is one of KINDS, or several with spaces between them, which the hostile nodes take in turn, each round where the last one ended.
Before round `hostile-from` (1 if it is not there) they are as honest as the others.

The kinds that poison data do so where the app asks for it: `images, labels = poisoned(images, labels, num_classes)`.

m hostile nodes, d parameters. Hostile nodes share all they have: each can work out what the others would send as honest nodes, by running
the app in their place. That is the attacker's whole knowledge: no honest node's update, not the server's. Where an attack asks for those,
the hostile nodes' own honest updates stand in for the honest nodes', and their mean for the server's.
"""

import copy
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from fltrust.errors import InputError

if TYPE_CHECKING:  # torch is loaded by the attacks alone: an honest node should not wait for it
    from torch import Tensor

    from fltrust.attacks import Attack

Arrays = dict[str, NDArray[Any]]


def misbehave(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """The mod: an honest node's messages pass untouched, as do all that do not ask for training."""
    m, kinds = int(context.run_config.get("malicious", 0)), str(context.run_config.get("hostile", "")).split()
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise InputError(f"unknown kind of hostile node {unknown[0]!r}; known: {', '.join(KINDS)}")
    if m == 0 or not kinds or not message.metadata.message_type.startswith("train"):
        return call_next(message, context)
    if "partition-id" not in context.node_config:
        raise InputError(f"the {m} nodes with the lowest partition-id are hostile, but this node has no partition-id: see --node-config")
    node, t = int(context.node_config["partition-id"]), _round(message)
    if node >= m or t < int(context.run_config.get("hostile-from", 1)):
        return call_next(message, context)
    return KINDS[kinds[((t - 1) * m + node) % len(kinds)]].play(Turn(message, context, call_next, m, node, t))


def _round(message: Message) -> int:
    for record in message.content.config_records.values():
        if "server-round" in record:
            return int(str(record["server-round"]))
    raise InputError("hostile nodes take turns by rounds, but the message does not say which round it is: its config lacks server-round")


class Turn(NamedTuple):
    """A hostile node that is asked to train."""

    message: Message
    context: Context
    app: ClientAppCallable
    m: int  # how many are hostile
    node: int  # which of them this is
    t: int  # round

    def honest(self, node: int | None = None) -> Message:
        """What this node, or another of the hostile ones, would reply if it were honest."""
        context = self.context
        if node not in (None, self.node):
            context = copy.copy(context)
            context.state = copy.deepcopy(context.state)
            context.node_config = context.node_config | {"partition-id": node}
        return self.app(copy.deepcopy(self.message), context)

    @property
    def asked(self) -> Arrays:
        """The global arrays, as the server sent them."""
        return _arrays(self.message.content)

    def reply(self, change: Callable[[Arrays], Any]) -> Message:
        """The honest reply, its arrays changed in place."""
        reply = self.honest()
        arrays = _arrays(reply.content)
        change(arrays)
        _record(reply.content, arrays)
        return reply


def _arrays(content: RecordDict) -> Arrays:
    (record,) = content.array_records.values()
    return {name: array.numpy().copy() for name, array in record.items()}


def _record(content: RecordDict, arrays: Arrays | dict[str, Array]) -> None:
    """Puts other arrays in the place of those that are there."""
    (key,) = content.array_records
    content[key] = ArrayRecord({name: array if isinstance(array, Array) else Array(array) for name, array in arrays.items()})


# ---------------------------------------------------------------- the attacks of the library


class _Poisoning:
    def __init__(self, attack: "Attack", node: int) -> None:
        self.attack, self.node, self.asked = attack, node, False


_poisoning: ContextVar[_Poisoning | None] = ContextVar("poisoning", default=None)


Values = TypeVar("Values")  # NumPy arrays or PyTorch tensors


def poisoned(images: Values, labels: Values, num_classes: int) -> tuple[Values, Values]:
    """A node's own examples, arrays or tensors: as they are, unless the node is hostile in a way that poisons them."""
    if (now := _poisoning.get()) is None:
        return images, labels
    import torch

    from fltrust.attacks import MaliciousClient
    from fltrust.randomness import reseed

    now.asked = True
    client = MaliciousClient(num_classes, now.node, reseed(torch.Generator(), 0, "poison", now.node))
    changed: Any = now.attack.poison(torch.as_tensor(images), torch.as_tensor(labels), client)
    return changed if isinstance(images, torch.Tensor) else (changed[0].numpy(), changed[1].numpy())


@contextmanager
def _poisons(attack: "Attack", node: int) -> Iterator[None]:
    from fltrust.attacks import Attack

    now = _Poisoning(attack, node)
    token = _poisoning.set(now)
    try:
        yield
    finally:
        _poisoning.reset(token)
    if type(attack).poison is not Attack.poison and not now.asked:
        raise InputError("this kind of hostile node poisons its data: call fltrust.flower.hostile.poisoned(...) where the app loads them")


def _build(name: str) -> "Attack":
    from fltrust.registry import ATTACKS, DATASETS

    parameters: dict[str, dict[str, Any]] = {
        "scaling": {"trigger": DATASETS["mnist-0.5"].trigger},
        "krum": {"knowledge": "partial"},
        "trim": {"knowledge": "partial"},
    }
    attack: Attack = ATTACKS[name](**parameters.get(name, {}))
    return attack


def _attack(attack_name: str) -> Callable[[Turn], Message]:
    """A kind that sends what an attack of the library makes of the hostile nodes' honest updates."""

    def play(turn: Turn) -> Message:
        import torch

        from fltrust.attacks import Knowledge
        from fltrust.randomness import reseed

        attack, asked = _build(attack_name), turn.asked
        trained = [name for name, array in asked.items() if array.dtype.kind == "f"]

        def vector(arrays: Arrays) -> "Tensor":
            return torch.from_numpy(np.concatenate([arrays[name].ravel() for name in trained]))

        replies = []
        for node in [turn.node] if attack.independent else range(turn.m):
            with _poisons(attack, node):
                replies.append(turn.honest(node))
        own = torch.stack([vector(_arrays(reply.content)) for reply in replies]) - vector(asked)  # (m, d); (1, d) for an attack alone
        guess = attack.knowledge == "full"
        known = Knowledge(
            own=own,
            others=own if guess else None,
            root_update=own.mean(0) if guess else None,
            n=2 * len(own) if guess else len(own),
            tolerate=turn.m,
            num_clients=int(turn.context.node_config["num-partitions"]),
            generator=reseed(torch.Generator(), 0, "hostile", turn.t),  # all hostile nodes draw the same noise, and each takes its own row
            weights=vector(asked),
        )
        row = 0 if attack.independent else turn.node
        reply, sent = replies[row], (vector(asked) + attack.craft(known)[row]).numpy()
        arrays, start = _arrays(reply.content), 0
        for name in trained:
            size = arrays[name].size
            arrays[name] = sent[start : start + size].reshape(arrays[name].shape).astype(arrays[name].dtype)
            start += size
        _record(reply.content, arrays)
        return reply

    return play


# ---------------------------------------------------------------- arrays that it did not learn


def _boast(turn: Turn) -> Message:
    asked = turn.asked
    reply = turn.reply(lambda arrays: arrays.update({n: 2 * asked[n] - array for n, array in arrays.items() if array.dtype.kind == "f"}))
    for record in reply.content.metric_records.values():
        record["num-examples"] = 10**9
    return reply


def _alternating(turn: Turn) -> Message:
    return _boast(turn) if turn.t % 2 else turn.honest()


def _huge(turn: Turn) -> Message:
    return turn.reply(
        lambda arrays: arrays.update({n: np.full_like(array, 1e38) for n, array in arrays.items() if array.dtype.kind == "f"})
    )


def _one(value: float) -> Callable[[Turn], Message]:
    """One value of one array is enough."""
    return lambda turn: turn.reply(lambda arrays: arrays[_parameters(arrays)[0]].put(0, value))


def _parameters(arrays: Arrays) -> list[str]:
    """The arrays that the server looks at, the smallest of several values first."""
    from fltrust.flower.layout import is_statistic  # it loads torch

    names = [name for name, array in arrays.items() if array.dtype.kind == "f" and not is_statistic(name)]
    return sorted(names, key=lambda name: (arrays[name].size < 2, arrays[name].size))


def _swap(change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Turn], Message]:
    """A parameter in another form."""

    def swap(arrays: Arrays) -> None:
        name = _parameters(arrays)[0]
        arrays[name] = change(arrays[name])

    return lambda turn: turn.reply(swap)


def _oversized(turn: Turn) -> Message:
    return turn.reply(lambda arrays: arrays.update({name: np.repeat(array[None], 100, 0) for name, array in arrays.items()}))


def _zero(turn: Turn) -> Message:
    return turn.reply(lambda arrays: arrays.update(turn.asked))


def _other_round(turn: Turn) -> Message:
    reply = turn.honest()
    reply.metadata.group_id = str(turn.t - 1)
    for record in reply.content.metric_records.values():
        if "server-round" in record:
            record["server-round"] = turn.t - 1
    return reply


# ---------------------------------------------------------------- content that is no reply


class _Bomb:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (86,)


def _bytes(data: Callable[[Array], bytes]) -> Callable[[Turn], Message]:
    """Arrays that say they are as they should be, with other bytes inside."""

    def play(turn: Turn) -> Message:
        reply = turn.honest()
        (record,) = reply.content.array_records.values()
        _record(reply.content, {name: Array(array.dtype, array.shape, array.stype, data(array)) for name, array in record.items()})
        return reply

    return play


def _noise(array: Array) -> bytes:
    return np.random.default_rng(0).bytes(len(array.data))


def _pickled(array: Array) -> bytes:
    file = BytesIO()
    np.save(file, np.array([_Bomb()], dtype=object), allow_pickle=True)
    return file.getvalue()


def _pickle(array: Array) -> bytes:
    return pickle.dumps(_Bomb())


def _no_arrays(turn: Turn) -> Message:
    reply = turn.honest()
    for key in list(reply.content.array_records):
        del reply.content[key]
    return reply


# ---------------------------------------------------------------- no reply at all


def _silent(turn: Turn) -> Message:
    metadata = turn.message.metadata
    time.sleep(max(0.0, metadata.created_at + metadata.ttl - time.time()))  # until nobody waits for the reply any more
    return turn.honest()


def _crash(turn: Turn) -> Message:
    os._exit(1)


def _raise(turn: Turn) -> Message:
    raise RuntimeError("a hostile node raises an error")


# ---------------------------------------------------------------- all of them


class Kind(NamedTuple):
    play: Callable[[Turn], Message]
    reason: str | None  # why RobustStrategy's audit says that the reply was not used; None: it is an update, which the rule has to judge
    what: str


KINDS: dict[str, Kind] = {
    "label-flip": Kind(_attack("label-flip"), None, "trains on labels l turned into M - 1 - l"),
    "scaling": Kind(_attack("scaling"), None, "trains a backdoor into the model and sends n times the update"),
    "krum": Kind(_attack("krum"), None, "the attack on Krum, from what the hostile nodes know"),
    "trim": Kind(_attack("trim"), None, "the attack on trimmed mean and median, from what the hostile nodes know"),
    "adaptive": Kind(_attack("adaptive"), None, "the paper's attack on FLTrust, with guesses for what the hostile nodes do not know"),
    "optimal-adaptive": Kind(_attack("optimal-adaptive"), None, "the same, solved exactly"),
    "boast": Kind(_boast, None, "sends the opposite of what it learnt, and says that it has a billion examples"),
    "alternating": Kind(_alternating, None, "does the same in every other round, those with odd numbers, and is honest in between"),
    "nan": Kind(_one(np.nan), "not-finite", "one value is NaN"),
    "infinity": Kind(_one(np.inf), "not-finite", "one value is infinite"),
    "huge": Kind(_huge, "value", "all values are 1e38"),
    "zero": Kind(_zero, "zero-update", "sends the model back as it came"),
    "wrong-shape": Kind(_swap(lambda array: array[:-1]), "shape", "an array is one row short"),
    "wrong-dtype": Kind(_swap(lambda array: array.astype("S8")), "dtype", "an array holds text"),
    "missing-array": Kind(lambda turn: turn.reply(lambda arrays: arrays.pop(_parameters(arrays)[0])), "names", "an array is missing"),
    "extra-array": Kind(lambda turn: turn.reply(lambda arrays: arrays.update(extra=np.zeros(3))), "names", "an array too many"),
    "oversized": Kind(_oversized, "too-large", "a reply of a hundred times the size"),
    "other-round": Kind(_other_round, "other-round", "says that it is the reply to the round before"),
    "garbage": Kind(_bytes(_noise), "encoding", "random bytes in place of the arrays'"),
    "pickled": Kind(_bytes(_pickled), "encoding", "a NumPy file of Python objects that end the process which unpickles them"),
    "pickle": Kind(_bytes(_pickle), "encoding", "the same without NumPy around it"),
    "no-arrays": Kind(_no_arrays, "content", "a reply without arrays"),
    "error": Kind(_raise, "error", "raises an error"),
    "silent": Kind(_silent, "silent", "sleeps until nobody waits for it any more"),
    "crash": Kind(_crash, "silent", "its process ends in the middle of the round"),
}
