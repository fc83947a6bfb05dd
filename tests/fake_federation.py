"""A federation without a network: nodes that answer at once or late, a strategy to meet them, and time that passes when it is told to."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fltrust.flower import RobustStrategy
from fltrust.rules import FLTrust, Rule

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # what Flower sets in the process of a ServerApp

Client = Callable[[int, Message], object]  # what a node answers: a reply, several, an exception that fetching it raises, None for nothing

Arrays = dict[str, np.ndarray]
MODEL: Arrays = {"weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(3, np.float32)}
GOAL = {"weight": np.full((3, 4), 0.5, np.float32), "bias": np.ones(3, np.float32)}


class FakeGrid(Grid):
    """A grid whose nodes answer when they are looked at for the `looks(node, t)` times and once more."""

    in_process = True

    def __init__(self, client: Client, nodes: Iterable[int] = range(1, 7), looks: Callable[[int, int], int] = lambda node, t: 0) -> None:
        self.client, self.nodes, self.looks = client, list(nodes), looks
        self.sent: dict[str, Message] = {}
        self.looked: dict[str, int] = {}
        self.delivered: set[str] = set()
        self.ids = itertools.count()

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *arguments: object, **named: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.ids)}"
            self.sent[message.metadata.message_id] = message
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies: list[Message] = []
        for message_id in message_ids:
            message = self.sent[message_id]
            self.looked[message_id] = self.looked.get(message_id, 0) + 1
            if self.looked[message_id] <= self.looks(message.metadata.dst_node_id, round_of(message)):
                continue
            if message_id in self.delivered:  # as a SuperLink does, which forgets what it has handed over
                replies.append(gone(message))
                continue
            answer = self.client(message.metadata.dst_node_id, message)
            if answer is not None:
                self.delivered.add(message_id)
            if isinstance(answer, Exception):
                raise answer
            replies += answer if isinstance(answer, list) else [answer] if isinstance(answer, Message) else []
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(list(messages)))


def gone(message: Message) -> Message:
    """What a SuperLink answers for a node that is offline, in its own name."""
    answer = Message(Error(5, "offline"), reply_to=message)
    answer.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
    return answer


def round_of(message: Message) -> int:
    t = message.content.config_records["config"]["server-round"]
    assert isinstance(t, int)
    return t


def arrays_of(message: Message) -> Arrays:
    return {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}


def reply_with(message: Message, arrays: Arrays, examples: float = 10) -> Message:
    record = ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": examples})}), reply_to=message)


def step(node: int, t: int, arrays: Arrays) -> Arrays:
    """A deterministic client: a quarter of the way to the goal, and noise of its own."""
    noise = np.random.default_rng((node, t))
    return {
        name: (array + 0.25 * (GOAL.get(name, array) - array) + 0.02 * noise.standard_normal(array.shape)).astype(array.dtype)
        for name, array in arrays.items()
    }


def honest(node: int, message: Message) -> Message:
    return reply_with(message, step(node, round_of(message), arrays_of(message)))


def root(arrays: Arrays) -> Arrays:
    after = step(0, 0, arrays)
    return {name: after[name] - arrays[name] for name in arrays}


def as_record(arrays: Arrays = MODEL) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def strategy_of(rule: Rule | None = None, **options: Any) -> RobustStrategy:
    rule = rule or FLTrust()
    fixed: dict[str, Any] = {"poll": 1e-4, "root": root if rule.needs_root else None, "min_replies": 1, "registered": rule.needs_ids}
    return RobustStrategy(rule, **{**fixed, **options})


def run(
    client: Client = honest, rule: Rule | None = None, *, rounds: int = 4, timeout: float = 30, start: Arrays = MODEL, **options: Any
) -> tuple[Arrays, FakeGrid]:
    """The final arrays and the grid."""
    grid_options = {name: options.pop(name) for name in ("nodes", "looks") if name in options}
    grid = FakeGrid(client, **grid_options)
    evaluate_fn = options.pop("evaluate_fn", None)
    result = strategy_of(rule, **options).start(grid, as_record(start), num_rounds=rounds, timeout=timeout, evaluate_fn=evaluate_fn)
    return {name: array.numpy() for name, array in result.arrays.items()}, grid


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in (path / "records.jsonl").read_text().splitlines()]


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return list(one) == list(other) and all(one[name].tobytes() == other[name].tobytes() for name in one)


def distance(arrays: Arrays) -> float:
    return float(sum(np.square(arrays[name] - GOAL[name]).sum() for name in GOAL))


class Clock:
    """Time that passes only where the server sleeps, so that no test depends on how busy the machine is."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
