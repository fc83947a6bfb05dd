"""Nodes that misuse the SuperLink itself: with Flower's own state, handlers and grid in this process; only the network is left out."""

import functools
import hashlib
import json
import os
import re
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

from fake_federation import Clock, records, same
from flwr.app import Array, ArrayRecord, Error, Message, Metadata, MetricRecord, RecordDict
from flwr.app.message import array as flwr_array
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, HEAD_BODY_DIVIDER, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.runtime.runtime_http_client import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from waiting import until

from fltrust.audit import Audit
from fltrust.errors import InputError
from fltrust.flower import RobustStrategy, fetch, mailbox
from fltrust.flower import strategy as strategy_module
from fltrust.flower.internals import public_keys
from fltrust.rules import FedAvg

pytestmark = [
    pytest.mark.usefixtures("quiet_flower"),
    pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning"),  # Flower's, about its own database
]

MODEL = {"weight": np.zeros((40, 50), np.float32), "bias": np.zeros(50, np.float32)}
Behaviour = Callable[["Link", int, Message], None]  # what a node does with a message: it may push anything


class Link:
    """A SuperLink with some nodes, each of which gets its messages when the server looks for replies."""

    database = FLWR_IN_MEMORY_DB_NAME

    def __init__(self, nodes: dict[int, Behaviour], honest: int) -> None:
        """nodes: what the hostile ones do, by their place among all when sorted by id."""
        manager = NoOpFederationManager()
        self.state = LinkStateFactory(self.database, manager, ObjectStoreFactory(self.database)).state()
        manager.linkstate = self.state
        self.run = self.state.create_run("a/b", "1", "h" * 8, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        task = self.state.get_run_info(run_ids=[self.run])[0].primary_task_id
        assert task is not None
        self.state.claim_task(task)
        self.state.activate_task(task)
        self.ids = sorted(self.state.create_node(NOOP_FLWR_AID, "x", os.urandom(8), 1000) for _ in range(honest + len(nodes)))
        for node in self.ids:
            self.state.activate_node(node, 1000)
        self.behaviour = {node: nodes.get(place, honest_node) for place, node in enumerate(self.ids)}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run, SUPERLINK_NODE_ID, task
        self._task = Task(run_id=self.run, task_id=task)
        self.pulled = 0  # bytes that the server fetched
        self.asked = 0  # requests for a piece
        self.grid = HttpGrid(token="any")
        self.grid._client = cast(RuntimeHttpClient, self)
        self.grid._run = cast(Run, SimpleNamespace(run_id=self.run))

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        """The server's requests, such as PullMessages."""
        handler = getattr(runtime_handlers, re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower())
        return lambda request: handler(request, self.state, self._task)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        for node, behave in self.behaviour.items():
            for message in self.state.get_message_ins(node, 1):
                behave(self, node, message)
        return runtime_handlers.pull_messages(request, self.state, self._task)

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        response = runtime_handlers.pull_object(request, self.state, self._task)
        self.pulled, self.asked = self.pulled + len(response.object_content), self.asked + 1
        return response

    def announce(self, node: int, message: Message, tree: ObjectTree | None = None) -> str:
        """A node's message, of which nothing is uploaded yet."""
        if message.metadata.message_id == "":
            message.metadata.__dict__["_message_id"] = message.object_id
        proto = message_to_proto(remove_content_from_message(message))
        request = PushMessagesRequest(
            node=Node(node_id=node), messages_list=[proto], message_object_trees=[tree or get_object_tree(message)]
        )
        return fleet_handlers.push_messages(request, self.state).session_id

    def upload(self, node: int, session: str, pieces: dict[str, bytes]) -> None:
        for name, content in pieces.items():
            request = PushObjectRequest(
                node=Node(node_id=node), run_id=self.run, object_id=name, object_content=content, session_id=session
            )
            fleet_handlers.push_object(request, self.state)

    def reply(self, node: int, message: Message) -> None:
        self.upload(node, self.announce(node, message), pieces_of(message))


def pieces_of(message: Message) -> dict[str, bytes]:
    return {name: part.deflate() for name, part in get_all_nested_objects(message).items()}


def answer(message: Message, arrays: dict[str, np.ndarray]) -> Message:
    reply = Message(RecordDict({"arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()})}), reply_to=message)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply


def learnt(message: Message) -> dict[str, np.ndarray]:
    return {name: array + float(message.metadata.group_id) for name, array in MODEL.items()}


def honest_node(link: Link, node: int, message: Message) -> None:
    link.reply(node, answer(message, learnt(message)))


@pytest.fixture(params=["in memory", "in a file"])
def _database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in a file":
        monkeypatch.setattr(Link, "database", str(tmp_path / "link.db"))


def played(link: Link, folder: Path, *, rounds: int = 2, **options: Any) -> list[dict[str, Any]]:
    """The server's time passes only where it sleeps; Flower's is real."""
    strategy = RobustStrategy(FedAvg(), directory=folder, poll=1.0, **options)
    arrays = ArrayRecord({name: Array(array) for name, array in MODEL.items()})
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        for module in (mailbox, strategy_module, fetch):
            patch.setattr(module, "time", clock)
        result = strategy.start(link.grid, arrays, num_rounds=rounds, timeout=60)
    last = {name: array + float(rounds) for name, array in MODEL.items()}
    assert same({name: array.numpy() for name, array in result.arrays.items()}, last)  # what the honest nodes said counted
    return records(folder)


@pytest.mark.usefixtures("_database")
def test_an_honest_federation(tmp_path: Path) -> None:
    link = Link({}, honest=4)
    for record in played(link, tmp_path / "run"):
        assert record["verdict"] == ["used"] * 4
    assert link.asked == 2 * 4 * 7  # message, record, record of arrays, and for each of two arrays itself and its one piece


def injected(link: Link, node: int, content: bytes, uploaded: bool) -> None:
    """A message to the server that answers nothing: Flower hands it over with whatever reply is fetched next."""
    name = get_object_id(content)
    metadata = Metadata(
        run_id=link.run,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=1000.0,
        message_type="query",
    )
    metadata.__dict__["_message_id"], metadata.delivered_at = name, ""
    session = link.announce(node, make_message(metadata=metadata, content=RecordDict()), ObjectTree(object_id=name))
    if uploaded:
        link.upload(node, session, {name: content})


@pytest.mark.slow
@pytest.mark.usefixtures("_database")
@pytest.mark.parametrize("uploaded", [True, False])
def test_messages_that_nobody_asked_for_take_no_reply_with_them(uploaded: bool, tmp_path: Path) -> None:
    sent = []

    def hostile(link: Link, node: int, message: Message) -> None:
        for i in range(5):
            injected(link, node, MetricRecord({"x": [float(i), float(message.metadata.group_id)]}).deflate(), uploaded)
            sent.append(i)

    for record in played(Link({0: hostile}, honest=3), tmp_path / "run"):
        assert record["verdict"] == ["missing", "used", "used", "used"]
        assert record["unasked"] == 5
        (alarm,) = record["alarms"]
        assert (alarm["kind"], alarm["nodes"]) == ("unasked", [])  # nobody knows who it was
    assert len(sent) == 10


def test_thousands_of_messages_that_nobody_asked_for_hold_up_nobody(tmp_path: Path) -> None:
    dropped: list[str] = []

    class Counting(Link):
        def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
            dropped.append(request.message_object_id)
            return runtime_handlers.confirm_message_received(request, self.state, self._task)

    def hostile(link: Link, node: int, message: Message) -> None:
        for i in range(1000):
            injected(link, node, MetricRecord({"x": float(i)}).deflate(), uploaded=False)

    (record,) = played(Counting({0: hostile}, honest=3), tmp_path / "run", rounds=1)
    assert record["verdict"] == ["missing", "used", "used", "used"]
    assert record["unasked"] == 1000
    assert len(dropped) <= 3 + 2 * fetch.MOST_DROPPED  # the three replies, and some


def test_replies_that_are_announced_and_not_uploaded_hold_up_nobody(tmp_path: Path) -> None:
    """Twelve of them, looked at before the others in every round."""

    def hostile(link: Link, node: int, message: Message) -> None:
        link.announce(node, answer(message, learnt(message)))

    for record in played(Link(dict.fromkeys(range(12), hostile), honest=3), tmp_path / "run", rounds=10, min_replies=1):
        assert record["verdict"] == ["missing"] * 12 + ["used"] * 3
        assert record["reason"][0] == "silent"


@pytest.mark.usefixtures("_database")
def test_a_reply_whose_last_piece_comes_later_is_used(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []

    def slow(link: Link, node: int, message: Message) -> None:
        reply = answer(message, learnt(message))
        session, (first, *rest) = link.announce(node, reply), pieces_of(reply).items()
        link.upload(node, session, dict(rest))
        waiting.append(lambda: link.upload(node, session, dict([first])))

    class Patient(Link):
        looks = 0

        def PullObject(self, request: Any) -> Any:  # noqa: N802
            self.looks += 1
            if waiting and self.looks % 20 == 0:
                waiting.pop()()
            return super().PullObject(request)

    for record in played(Patient({0: slow}, honest=2), tmp_path / "run"):
        assert record["verdict"] == ["used"] * 3


def test_a_late_reply_is_named_and_not_fetched(tmp_path: Path) -> None:
    held: list[Message] = []

    def late(link: Link, node: int, message: Message) -> None:
        if held:
            link.reply(node, answer(held.pop(), {name: np.repeat(array, 100, 0) for name, array in MODEL.items()}))
        else:
            held.append(message)

    link = Link({0: late}, honest=2)
    first, second, *_ = played(link, tmp_path / "run", rounds=2)
    assert (first["late"], second["late"]) == ([], [[link.ids[0], 1]])
    assert link.pulled < 100_000


class Wrapper:
    """A grid around Flower's, to count messages, say."""

    def __init__(self, grid: HttpGrid) -> None:
        self.grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)


def test_a_grid_that_cannot_be_guarded_is_refused(tmp_path: Path) -> None:
    link = Link({}, honest=2)
    arrays = ArrayRecord({name: Array(array) for name, array in MODEL.items()})
    with pytest.raises(InputError, match="cannot guard replies that come through a Wrapper: give it the grid that Flower gives"):
        RobustStrategy(FedAvg()).start(cast(Grid, Wrapper(link.grid)), arrays)
    assert link.state.num_message_ins() == 0


def test_another_loop_over_the_network_is_refused() -> None:
    link = Link({}, honest=2)
    arrays = ArrayRecord({name: Array(array) for name, array in MODEL.items()})
    with pytest.raises(InputError, match=r"call its start\(\.\.\.\), not another loop"):
        Strategy.start(RobustStrategy(FedAvg()), link.grid, arrays, num_rounds=1, timeout=1)
    assert link.state.num_message_ins() == 0


def test_flowers_grid_of_a_simulation_is_taken(tmp_path: Path) -> None:
    link = Link({}, honest=2)
    grid = InMemoryGrid(SimpleNamespace(state=lambda: link.state))  # type: ignore[arg-type]
    grid._run = SimpleNamespace(run_id=link.run)  # type: ignore[assignment]

    def pull(message_ids: Any) -> Any:
        for node in link.ids:
            for message in link.state.get_message_ins(node, 1):
                link.state.store_message_res(answer(message, learnt(message)))
        return InMemoryGrid.pull_messages(grid, message_ids)

    grid.pull_messages = pull  # type: ignore[method-assign]
    arrays = ArrayRecord({name: Array(array) for name, array in MODEL.items()})
    RobustStrategy(FedAvg(), directory=tmp_path / "run").start(grid, arrays, num_rounds=1, timeout=600)
    assert records(tmp_path / "run")[0]["verdict"] == ["used"] * 2


def guessed(link: Link, node: int, message: Message, victim: int) -> str | None:
    """The id of the message to another node, worked out from one's own: the same but for the receiver and a time close by.

    A node can ask the SuperLink for any piece by its id, and so learns which guess is right.
    """
    own = link.state.get_object(link.run, message.metadata.message_id)
    assert own is not None
    head, body = own.split(HEAD_BODY_DIVIDER, 1)
    kind, inside, _ = head.decode().split(" ")
    proto = ProtoMessage.FromString(body)
    created = round(proto.metadata.created_at * 1e6)
    proto.metadata.dst_node_id = victim
    for i in range(20_000):
        proto.metadata.created_at = (created + (i // 2 if i % 2 else -i // 2)) / 1e6  # back and forth, further each time
        changed = proto.SerializeToString(deterministic=True)
        name = hashlib.sha256(f"{kind} {inside} {len(changed)}".encode() + HEAD_BODY_DIVIDER + changed).hexdigest()
        request = PullObjectRequest(node=Node(node_id=node), run_id=link.run, object_id=name)
        if fleet_handlers.pull_object(request, link.state).object_found:
            return name
    return None


def in_the_name_of(victim: int, message: Message, message_id: str) -> Message:
    """What a node can send as soon as it knows the id of another's message."""
    reply = answer(message, {name: np.full_like(array, np.nan) for name, array in MODEL.items()})
    reply.metadata.__dict__.update(_src_node_id=victim, _reply_to_message_id=message_id)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply


@pytest.mark.parametrize("harm", ["answer", "delete"])
def test_a_node_cannot_answer_for_the_others_or_silence_them(harm: str, tmp_path: Path) -> None:
    found = []

    def hostile(link: Link, node: int, message: Message) -> None:
        for victim in link.ids[1:]:
            message_id = guessed(link, node, message, victim)
            found.append(message_id)
            if message_id is not None and harm == "answer":
                link.reply(node, in_the_name_of(victim, message, message_id))
            elif message_id is not None:
                request = ConfirmMessageReceivedRequest(node=Node(node_id=node), run_id=link.run, message_object_id=message_id)
                fleet_handlers.confirm_message_received(request, link.state, link.state.object_store)

    (record,) = played(Link({0: hostile}, honest=2), tmp_path / "run", rounds=1)
    assert found == [None, None]
    assert record["verdict"] == ["missing", "used", "used"]


def test_a_node_that_knows_the_id_of_anothers_message_can_still_answer_it(tmp_path: Path) -> None:
    """So that the test above means something: the id is all that Flower's own checks leave to guess."""
    link = Link({}, honest=2)

    def hostile(link: Link, node: int, message: Message) -> None:
        (victim,) = (other for other in link.ids if other != node)
        theirs = next(m for m in link.state.get_message_ins(victim, 1))
        link.reply(node, in_the_name_of(victim, message, theirs.metadata.message_id))
        link.reply(node, answer(message, learnt(message)))

    link.behaviour[link.ids[0]] = hostile
    (record,) = played(link, tmp_path / "run", rounds=1, min_replies=1)
    assert record["reason"] == [None, "not-finite"]


def test_a_node_cannot_spoil_an_array_that_stays_as_it_was(tmp_path: Path) -> None:
    """Flower believes whoever names a piece first about what is inside; nodes that read it then look for what nobody uploads."""

    def confirm(link: Link, node: int, message: Message) -> None:
        request = ConfirmMessageReceivedRequest(node=Node(node_id=node), run_id=link.run, message_object_id=message.metadata.message_id)
        fleet_handlers.confirm_message_received(request, link.state, link.state.object_store)

    def reading(link: Link, node: int, message: Message) -> None:
        """As a SuperNode does: it fetches all that the SuperLink says is inside. The bias stays as it is."""
        tree = link.state.object_store.get_object_tree(message.metadata.message_id)
        names = [part.object_id for part in iterate_object_tree(tree)]
        contents = {name: content for name in names if (content := link.state.get_object(link.run, name))}
        if contents.keys() == set(names):
            whole = inflate_object_from_contents(message.metadata.message_id, contents)
            assert isinstance(whole, Message)
            arrays = whole.content.array_records["arrays"]
            confirm(link, node, message)
            link.reply(node, answer(message, {"weight": arrays["weight"].numpy() + 1, "bias": arrays["bias"].numpy()}))

    class Watched(Link):
        """Once the server has all other replies, the SuperLink forgets the pieces, and the hostile node names them again."""

        asked_of_it: Message
        names: list[str]

        def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
            response = runtime_handlers.confirm_message_received(request, self.state, self._task)
            if not any(name in self.state.object_store for name in self.names):
                spoilt = [ObjectTree(object_id=name, children=[ObjectTree(object_id="0" * 64)]) for name in self.names]
                self.announce(self.ids[3], answer(self.asked_of_it, MODEL), ObjectTree(object_id="1" * 64, children=spoilt))
                spoiling.append(self.asked_of_it.metadata.group_id)
            return response

    spoiling: list[str] = []

    def hostile(link: Link, node: int, message: Message) -> None:
        assert isinstance(link, Watched)
        tree = link.state.object_store.get_object_tree(message.metadata.message_id)
        link.asked_of_it, link.names = message, [part.object_id for part in iterate_object_tree(tree)]
        confirm(link, node, message)

    link = Watched({3: hostile}, honest=3)
    link.behaviour.update(dict.fromkeys(link.ids[:3], reading))
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        for module in (mailbox, strategy_module, fetch):
            patch.setattr(module, "time", clock)
        strategy = RobustStrategy(FedAvg(), directory=tmp_path / "run", poll=1.0)
        strategy.start(link.grid, ArrayRecord({name: Array(array) for name, array in MODEL.items()}), num_rounds=2, timeout=60)
    assert spoiling[0] == "1"
    assert [record["verdict"][:3] for record in records(tmp_path / "run")] == [["used"] * 3] * 2


def test_several_replies_to_one_message_are_charged_to_nobody(tmp_path: Path) -> None:
    """Flower's SuperLink takes the first alone; another might not."""

    class Twice(Link):
        def PullMessages(self, request: Any) -> Any:  # noqa: N802
            response = super().PullMessages(request)
            for message in list(response.messages_list):
                if message.metadata.src_node_id == self.ids[0]:
                    response.messages_list.append(message)
            return response

    (record,) = played(Twice({}, honest=3), tmp_path / "run", rounds=1)
    assert record["verdict"] == ["missing", "used", "used"]
    assert record["reason"] == ["disputed", None, None]


def bomb(message: Message, times: int, levels: int) -> tuple[Message, dict[str, bytes]]:
    """A reply whose array names its one piece many times, which may be such an array itself: small on the wire, large once put together."""
    piece = ArrayChunk(memoryview(b"\0" * (100_000 if levels == 1 else 1000)))
    pieces, name = {piece.object_id: piece.deflate()}, piece.object_id
    for _ in range(levels):
        body = json.dumps({"dtype": "float32", "shape": [3], "stype": "numpy.ndarray", "arraychunk_ids": [0] * times}).encode()
        array = f"Array {name} {len(body)}".encode() + HEAD_BODY_DIVIDER + body
        name = hashlib.sha256(array).hexdigest()
        pieces[name] = array
    reply = answer(message, {"weight": MODEL["weight"]})
    innocent = next(part for part in get_all_nested_objects(reply).values() if isinstance(part, Array))
    renamed = {innocent.object_id: name}
    for kind in (ArrayRecord, RecordDict, Message):  # from the inside out, each with the new names of what it consists of
        part = next(part for part in get_all_nested_objects(reply).values() if isinstance(part, kind))
        content = part.deflate()
        for before, after in renamed.items():
            content = content.replace(before.encode(), after.encode())
        renamed[part.object_id] = hashlib.sha256(content).hexdigest()
        pieces[renamed[part.object_id]] = content
    reply.metadata.__dict__["_message_id"] = renamed[reply.object_id]
    return reply, pieces


@pytest.mark.parametrize(
    ("levels", "times", "reason", "detail"), [(1, 2000, "too-large", "put together"), (3, 60, "unreadable", "numbers")]
)
def test_a_reply_that_grows_when_it_is_put_together(levels: int, times: int, reason: str, detail: str, tmp_path: Path) -> None:
    def hostile(link: Link, node: int, message: Message) -> None:
        reply, pieces = bomb(message, times, levels)
        tree = None
        for name in pieces:  # a chain: each consists of the one before
            tree = ObjectTree(object_id=name, children=[] if tree is None else [tree])
        link.upload(node, link.announce(node, reply, tree), pieces)

    link = Link({0: hostile}, honest=2)
    tracemalloc.start()
    found = played(link, tmp_path / "run")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [record["reason"][0] for record in found] == [reason] * 2
    assert detail in found[0]["detail"][0]
    assert peak < 50e6  # 200 MB put together


def in_chunks_of(size: int, message: Message, arrays: dict[str, np.ndarray]) -> Message:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flwr_array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", size)
        reply = answer(message, arrays)
        pieces_of(reply)  # Flower remembers them
        return reply


def test_a_reply_that_is_too_large_is_not_fetched_to_its_end(tmp_path: Path) -> None:
    def hostile(link: Link, node: int, message: Message) -> None:
        large = {**learnt(message), "weight": np.arange(2_000_000, dtype=np.float32)}  # 8 MB in 20 pieces
        link.reply(node, in_chunks_of(400_000, message, large))

    link = Link({0: hostile}, honest=2)
    found = played(link, tmp_path / "run", rounds=1, most_bytes=1_000_000)
    assert found[0]["reason"][0] == "too-large"
    assert link.pulled < 2_000_000


def test_a_reply_that_comes_in_drips_is_given_up(tmp_path: Path) -> None:
    """Each piece only when the one before was asked for: then all that are there are fetched again, and again."""
    left: list[Callable[[], None]] = []

    def hostile(link: Link, node: int, message: Message) -> None:
        reply = in_chunks_of(80_000, message, {**learnt(message), "weight": np.arange(240_000, dtype=np.float32)})
        session, pieces = link.announce(node, reply), dict(reversed(pieces_of(reply).items()))
        left.extend(functools.partial(link.upload, node, session, {name: content}) for name, content in pieces.items())

    class Dripping(Link):
        def PullObject(self, request: Any) -> Any:  # noqa: N802
            response = super().PullObject(request)
            if not response.object_available and left:
                left.pop(0)()
            return response

    link = Dripping({0: hostile}, honest=2)
    (record,) = played(link, tmp_path / "run", rounds=1, most_bytes=1_000_000)
    assert record["reason"][0] == "too-large"
    assert "not complete" in record["detail"][0]
    assert link.pulled < 4_000_000


@pytest.mark.parametrize("name", ["PullMessages", "PullObject", "ConfirmMessageReceived"])
def test_a_superlink_that_cannot_answer_now_and_then_is_nobodys_fault(name: str, tmp_path: Path) -> None:
    """As when its database is busy."""

    class Busy(Link):
        calls = 0

        def flaky(self, handler: Callable[[Any], Any], request: Any) -> Any:
            self.calls += 1
            if self.calls % 20 == 1:
                raise OSError("database is locked")
            return handler(request)

    def wrapped(self: Busy, request: Any) -> Any:
        own = getattr(Link, name, None)
        return self.flaky((lambda r: own(self, r)) if own else Link.__getattr__(self, name), request)

    setattr(Busy, name, wrapped)
    link = Busy({}, honest=4)
    for record in played(link, tmp_path / "run"):
        assert record["verdict"] == ["used"] * 4
    assert link.calls > 1


def many_arrays(message: Message) -> dict[str, np.ndarray]:
    return {str(i): np.array([i]) for i in range(1500)}


def many_chunks(message: Message) -> dict[str, np.ndarray]:
    return {**learnt(message), "weight": np.arange(2000, dtype=np.float32).reshape(40, 50)}


@pytest.mark.slow
@pytest.mark.parametrize(("arrays", "reason"), [(many_arrays, "names"), (many_chunks, "too-large")])
def test_a_reply_of_very_many_pieces_is_refused_unseen(
    arrays: Callable[[Message], dict[str, np.ndarray]], reason: str, tmp_path: Path
) -> None:
    """Three nodes send a thousand tiny pieces each: they are not fetched, so they hold up nobody."""

    def hostile(link: Link, node: int, message: Message) -> None:
        reply = in_chunks_of(8, message, arrays(message))
        assert len(pieces_of(reply)) > 1000
        link.reply(node, reply)

    link = Link(dict.fromkeys(range(3), hostile), honest=2)
    found = played(link, tmp_path / "run", rounds=1, min_replies=1)
    assert found[0]["reason"] == [reason] * 3 + [None] * 2
    assert link.asked < 150  # of more than 3,000


def test_a_round_ends_at_its_deadline_however_slow_the_superlink_is(tmp_path: Path) -> None:
    """Every request takes three seconds, and replies come in just before the deadline of a minute."""

    class Slow(Link):
        clock: Clock

        def PullMessages(self, request: Any) -> Any:  # noqa: N802
            self.clock.now += 3
            return (
                super().PullMessages(request) if self.clock.now > 1055 else runtime_handlers.pull_messages(request, self.state, self._task)
            )

        def PullObject(self, request: Any) -> Any:  # noqa: N802
            self.clock.now += 3
            return super().PullObject(request)

    link = Slow({}, honest=5)
    link.clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (mailbox, strategy_module, fetch):
            patch.setattr(module, "time", link.clock)
        strategy = RobustStrategy(FedAvg(), directory=tmp_path / "run", poll=1.0)
        strategy.start(link.grid, ArrayRecord({name: Array(array) for name, array in MODEL.items()}), num_rounds=1, timeout=60)
    (record,) = records(tmp_path / "run")
    assert 60 <= record["seconds"] <= 60 + mailbox.GRACE + 3  # a request that has begun is waited for
    assert set(record["reason"]) <= {None, "silent"}


KINDS_OF_PIECES = ["Message", "RecordDict", "ArrayRecord", "Array", "ArrayChunk", "MetricRecord", "ConfigRecord"]
BODIES = [part.deflate().split(HEAD_BODY_DIVIDER, 1)[1] for part in get_all_nested_objects(RecordDict(
    {"arrays": ArrayRecord({name: Array(array) for name, array in MODEL.items()}), "metrics": MetricRecord({"num-examples": 1})}
)).values()]  # fmt: skip


array_bodies = st.builds(
    lambda places: json.dumps({"dtype": "float32", "shape": [3], "stype": "numpy.ndarray", "arraychunk_ids": places}).encode(),
    st.lists(st.integers(-3, 2**70), max_size=5),
)


@st.composite
def wholes(draw: st.DrawFn) -> tuple[str, ObjectTree, dict[str, bytes]]:
    """Something that a SuperLink takes: pieces whose heads and names are in order, and otherwise make any sense or none."""
    pieces: dict[str, bytes] = {}
    trees: list[ObjectTree] = []
    for _ in range(draw(st.integers(1, 6))):
        inside = draw(st.lists(st.sampled_from(trees), max_size=3)) if trees else []
        body = draw(st.one_of(st.binary(max_size=50), st.sampled_from(BODIES), array_bodies))
        head = f"{draw(st.sampled_from(KINDS_OF_PIECES))} {','.join(tree.object_id for tree in inside)} {len(body)}".encode()
        content = head + HEAD_BODY_DIVIDER + body
        pieces[get_object_id(content)] = content
        trees.append(ObjectTree(object_id=get_object_id(content), children=inside))
    left_out = draw(st.sets(st.sampled_from(sorted(pieces)), max_size=1))
    return trees[-1].object_id, trees[-1], {name: content for name, content in pieces.items() if name not in left_out}


@pytest.mark.slow
@settings(max_examples=300, database=None, suppress_health_check=list(HealthCheck))
@given(whole=wholes())
def test_whatever_a_reply_consists_of_it_costs_its_sender_alone(whole: tuple[str, ObjectTree, dict[str, bytes]]) -> None:
    name, tree, pieces = whole

    def hostile(link: Link, node: int, message: Message) -> None:
        reply = answer(message, MODEL)
        reply.metadata.__dict__["_message_id"] = name
        link.upload(node, link.announce(node, reply, tree), pieces)

    link = Link({0: hostile}, honest=2)
    with tempfile.TemporaryDirectory() as folder:
        (record,) = played(link, Path(folder) / "run", rounds=1)
    assert record["verdict"][1:] == ["used", "used"]
    assert record["verdict"][0] in ("missing", "rejected")


def test_a_reply_that_lacks_a_piece_is_missing_and_blames_nobody(tmp_path: Path) -> None:
    """As when the SuperLink's database was locked, and a SuperNode gave up."""

    def given_up(link: Link, node: int, message: Message) -> None:
        reply = answer(message, {name: 2 * array for name, array in learnt(message).items()})  # the others upload other pieces
        link.upload(node, link.announce(node, reply, ObjectTree(object_id=reply.object_id)), pieces_of(reply))

    for record in played(Link({0: given_up}, honest=3), tmp_path / "run", rounds=2):
        assert (record["verdict"][0], record["reason"][0]) == ("missing", "incomplete")
    assert [finding.verdict for finding in Audit(tmp_path / "run").findings()] == ["unreliable", "ok", "ok", "ok"]


def test_a_node_cannot_pass_for_one_that_is_offline(tmp_path: Path) -> None:
    def hostile(link: Link, node: int, message: Message) -> None:
        link.reply(node, Message(Error(5, "offline"), reply_to=message))

    def posing(link: Link, node: int, message: Message) -> None:
        reply = answer(message, learnt(message))
        reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        reply.metadata.__dict__["_message_id"] = reply.object_id
        link.reply(node, reply)

    (record,) = played(Link({0: hostile, 1: posing}, honest=2), tmp_path / "run", rounds=1)
    assert (record["verdict"][0], record["reason"][0]) == ("rejected", "error")
    assert (record["verdict"][1], record["reason"][1]) == ("missing", "silent")  # the SuperLink takes nothing from a false sender


def test_a_node_that_is_offline_is_missing(tmp_path: Path) -> None:
    def away(link: Link, node: int, message: Message) -> None:
        link.state.acknowledge_node_heartbeat(node, 1e-3)  # its last one
        until(lambda: node not in link.state.get_nodes(link.run))  # the SuperLink misses the next

    (record,) = played(Link({0: away}, honest=2), tmp_path / "run", rounds=1)
    assert (record["verdict"][0], record["reason"][0]) == ("missing", "unavailable")


def test_the_superlink_tells_the_public_key_of_each_node() -> None:
    link = Link({}, honest=3)
    keys = public_keys(link.grid)
    assert sorted(keys) == link.ids
    assert {node: link.state.get_node_id_by_public_key(key) for node, key in keys.items()} == {node: node for node in link.ids}
