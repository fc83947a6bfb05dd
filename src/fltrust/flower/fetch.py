"""Replies are taken from the SuperLink piece by piece, and only those that were asked for.

Flower's own `pull_messages` hands over along with a reply whatever else was addressed to the server, waits up to hours for a reply that was
announced and not uploaded, and puts together all of it before anyone can say how large it is. Any node can make use of that against the
others. Here a reply is first announced, with its sender by the SuperLink's word; then its pieces are fetched, as long as they are there and
together not too large. What is not there yet is looked for again later, and holds up nobody.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from fltrust.flower.replies import ReplyError

Look = Callable[[str, bool], list[Message]]
"""(message id, whether its content is wanted) -> what has come in answer to it: nothing, a reply, or in a fake grid several."""


def look_of(grid: Grid, most_bytes: int, most_pieces: int) -> Look:
    """How replies are looked for on a grid: over a network as above; where nodes are in the same process, as Flower does."""
    if isinstance(grid, HttpGrid):
        return _SuperLink(grid, most_bytes, most_pieces).look
    return lambda message_id, wanted: [reply for reply in grid.pull_messages([message_id]) if reply.metadata.reply_to_message_id]


@dataclass
class _Announced:
    metadata: Any  # Flower's, as the SuperLink has it
    pieces: list[str]  # the ids of its objects, the message itself last


class _SuperLink:
    def __init__(self, grid: HttpGrid, most_bytes: int, most_pieces: int) -> None:
        self._grid, self._most_bytes, self._most_pieces = grid, most_bytes, most_pieces
        self._announced: dict[str, _Announced] = {}  # by the id of the message that is answered; the SuperLink announces each only once

    def look(self, message_id: str, wanted: bool) -> list[Message]:
        if message_id not in self._announced:
            self._ask(message_id)
        announced = self._announced.get(message_id)
        if announced is None:
            return []
        try:
            reply = self._read(announced) if wanted else make_message(metadata=announced.metadata, content=RecordDict())
        except Exception:
            self._forget(self._announced.pop(message_id).metadata)
            raise
        if reply is None:
            return []
        self._forget(self._announced.pop(message_id).metadata)
        return [reply]

    def _ask(self, message_id: str) -> None:
        answer = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=[message_id]))
        for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            if proto.metadata.reply_to_message_id == message_id and message_id not in self._announced:
                pieces = list(dict.fromkeys(self._ids(tree)))
                self._announced[message_id] = _Announced(metadata_from_proto(proto.metadata), pieces)
            else:  # a node's message to the server that answers nothing
                self._forget(proto.metadata)

    def _ids(self, tree: Any) -> Iterator[str]:
        """The objects of a tree, each after those that it consists of; of one that is too large, one more than are allowed."""
        todo, found = [tree], list[Any]()
        while todo and len(found) <= self._most_pieces:
            found.append(todo.pop())
            todo.extend(found[-1].children)
        return (part.object_id for part in reversed(found))

    def _read(self, announced: _Announced) -> Message | None:
        """The reply; None if a piece of it is not there yet, which is then the first to be looked for."""
        if len(announced.pieces) > self._most_pieces:
            raise ReplyError("too-large", f"more than {self._most_pieces} pieces")
        pull = make_pull_object_fn_protobuf(self._grid._runtime_client.PullObject, self._grid.node, announced.metadata.run_id)
        contents: dict[str, bytes] = {}
        total = 0
        for piece in announced.pieces:
            try:
                contents[piece] = pull(piece)
            except ObjectUnavailableError:
                announced.pieces.remove(piece)
                announced.pieces.insert(0, piece)
                return None
            total += len(contents[piece])
            if total > self._most_bytes:
                raise ReplyError("too-large", f"more than {self._most_bytes} bytes")
        if _size_put_together(contents) > self._most_bytes:
            raise ReplyError("too-large", f"more than {self._most_bytes} bytes once put together")
        message = inflate_object_from_contents(announced.metadata.message_id, contents)
        if not isinstance(message, Message):
            raise ReplyError("unreadable", f"a {type(message).__name__} instead of a message")
        # The SuperLink's word, not the message's own, says who sent it and what it answers.
        if message.has_error():
            return make_message(metadata=announced.metadata, error=message.error)
        return make_message(metadata=announced.metadata, content=message.content)

    def _forget(self, metadata: Any) -> None:
        """Lets the SuperLink drop a message and its pieces."""
        self._grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self._grid.node, run_id=metadata.run_id, message_object_id=metadata.message_id)
        )


def _size_put_together(contents: dict[str, bytes]) -> int:
    """An array lists the pieces that it consists of, and may list one of them any number of times."""
    total = 0
    for content in contents.values():
        kind, pieces, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__name__:
            total += sum(len(contents[pieces[place]]) for place in json.loads(get_object_body(content, Array))["arraychunk_ids"])
    return total
