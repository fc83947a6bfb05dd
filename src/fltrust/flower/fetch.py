"""Replies are taken from the SuperLink piece by piece, and only those that were asked for.

Flower's own `pull_messages` hands over along with a reply whatever else was addressed to the server, waits up to hours for a reply that was
announced and not uploaded, and puts together all of it before anyone can say how large it is. Any node can make use of that against the
others. Here a reply is first announced, with its sender by the SuperLink's word. Then its pieces are fetched, from the message down to what
each piece says that it consists of, as long as they are there, together not too large, and there is time. The names of its arrays are
checked before any of them is fetched. What is not there yet, or cannot be had just now, is looked for again later.
"""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fltrust.errors import InputError
from fltrust.flower.internals import (
    ArrayChunk,
    HttpGrid,
    InMemoryGrid,
    confirm_received,
    get_object_body,
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
    make_message,
    metadata_from_proto,
    pull_messages,
    pull_object,
)
from fltrust.flower.layout import Layout
from fltrust.flower.replies import Limits, ReplyError
from fltrust.flower.verdicts import plain


class Look(Protocol):
    """(message id, whether its content is wanted, until when) -> what came in answer to it: nothing, a reply, in a fake grid several."""

    unasked: int  # messages so far that answer nothing

    def __call__(self, message_id: str, wanted: bool, until: float) -> list[Message]: ...


def look_of(grid: Grid, layout: Layout, limits: Limits) -> Look:
    """How replies are looked for on a grid: over a network as above; where nodes are in the same process, as Flower does."""
    if isinstance(grid, HttpGrid):
        return _SuperLink(grid, layout, limits)
    if not in_process(grid):
        raise InputError(
            f"RobustStrategy cannot guard replies that come through a {type(grid).__name__}: give it the grid that Flower gives to the "
            "ServerApp; a grid of your own whose nodes are in this process says so with in_process = True"
        )
    return _InProcess(grid)


def in_process(grid: Grid) -> bool:
    """Whether the nodes of a grid are in this process, as in Flower's simulation: then there is no transport to guard."""
    return isinstance(grid, InMemoryGrid) or getattr(type(grid), "in_process", False) is True


@dataclass
class _InProcess:
    grid: Grid
    unasked: int = 0

    def __call__(self, message_id: str, wanted: bool, until: float) -> list[Message]:
        found = list(self.grid.pull_messages([message_id]))
        replies = [reply for reply in found if reply.metadata.reply_to_message_id]
        self.unasked += len(found) - len(replies)
        return replies


AGAIN = 3  # times that a reply may be fetched in all before the last piece of it is there
MOST_RECORDS = 16  # of a reply, its arrays among them
LEAST_PIECE = 1 << 16  # bytes that an array's pieces have on average at least; Flower's have 5 MiB
SECONDS_BETWEEN_CLEANINGS = 1.0
MOST_DROPPED = 20  # messages that answer nothing and are dropped for one that does: whoever sends thousands must not hold up the others


@dataclass
class _Announced:
    metadata: Any  # Flower's, as the SuperLink has it
    awaited: str  # the piece to look for first: the message itself, which nodes upload last, or one that was not there
    more: int = 0  # further replies to the same message
    pieces_fetched: int = 0
    bytes_fetched: int = 0


@dataclass
class _Pieces:
    contents: dict[str, bytes] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    inside: dict[str, list[str]] = field(default_factory=dict)  # what each consists of
    size: int = 0
    size_beside: int = 0  # of what is not an array's numbers

    def add(self, name: str, content: bytes) -> None:
        self.contents[name] = content
        self.kinds[name], self.inside[name], _ = get_object_head_values_from_object_content(content)
        self.size += len(content)
        self.size_beside += 0 if self.kinds[name] == ArrayChunk.__name__ else len(content)


class _TryLaterError(Exception):
    """A piece is not there yet, or the SuperLink could not answer: nothing is known about the reply."""


class _SuperLink:
    def __init__(self, grid: HttpGrid, layout: Layout, limits: Limits) -> None:
        self._grid, self.unasked = grid, 0
        arrays, most = len(layout.shapes), limits.bytes_for(layout)
        self._most_bytes = most + 1024 * arrays  # on the way each array is two pieces or more, with a head
        # The message, what is in it, its records, and for each array itself, one piece and what more its size allows.
        self._most_pieces = 2 + MOST_RECORDS + 2 * arrays + most // LEAST_PIECE
        self._names = frozenset(layout.shapes)
        self._most_beside = (1 << 20) + 1024 * arrays  # of what is not an array's numbers
        self._announced: dict[str, _Announced] = {}  # by the id of the message that is answered; the SuperLink announces each only once
        self._cleaned = float("-inf")

    def __call__(self, message_id: str, wanted: bool, until: float) -> list[Message]:
        try:
            if message_id not in self._announced:
                self._ask(message_id)
            announced = self._announced.get(message_id)
            if announced is None:
                return []
            if announced.more:
                raise ReplyError("disputed", f"{1 + announced.more} replies to one message")
            reply = self._read(announced, until) if wanted else make_message(metadata=announced.metadata, content=RecordDict())
        except _TryLaterError:
            return []
        except Exception:
            self._forget(self._announced.pop(message_id).metadata)
            raise
        self._forget(self._announced.pop(message_id).metadata)
        return [reply]

    def _call(self, request: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return request(self._grid, *arguments)
        except Exception as problem:  # such as a busy database: not the sender's fault
            raise _TryLaterError from problem

    def _ask(self, message_id: str) -> None:
        if time.monotonic() - self._cleaned > SECONDS_BETWEEN_CLEANINGS:
            self._cleaned = time.monotonic()
            self._pull([])  # messages that answer nothing come with any request: better with one that has no reply to lose
        self._pull([message_id])

    def _pull(self, message_ids: list[str]) -> None:
        answer, before = self._call(pull_messages, message_ids), self.unasked
        for proto in answer.messages_list:
            metadata = metadata_from_proto(proto.metadata)
            if metadata.reply_to_message_id not in message_ids:
                self.unasked += 1
                if self.unasked - before <= MOST_DROPPED:
                    self._forget(metadata)
            elif (first := self._announced.get(metadata.reply_to_message_id)) is not None:
                first.more += 1
                self._forget(metadata)
            else:
                self._announced[metadata.reply_to_message_id] = _Announced(metadata, metadata.message_id)

    def _read(self, announced: _Announced, until: float) -> Message:
        pieces = _Pieces()
        todo = [announced.metadata.message_id]
        if announced.awaited not in todo:
            self._piece(announced, announced.awaited)  # before all the others are fetched in vain
        while todo:
            name = todo.pop()
            if name not in pieces.contents:
                if time.monotonic() > until:
                    raise _TryLaterError
                pieces.add(name, self._piece(announced, name))
                self._check_names(name, pieces)
                todo.extend(pieces.inside[name])
                self._check(pieces, len(todo))
        self._check_put_together(pieces)
        message = inflate_object_from_contents(announced.metadata.message_id, pieces.contents)
        if not isinstance(message, Message):
            raise ReplyError("unreadable", f"a {type(message).__name__} instead of a message")
        # The SuperLink's word, not the message's own, says who sent it and what it answers.
        if message.has_error():
            return make_message(metadata=announced.metadata, error=message.error)
        return make_message(metadata=announced.metadata, content=message.content)

    def _piece(self, announced: _Announced, name: str) -> bytes:
        metadata = announced.metadata
        response = self._call(pull_object, metadata.run_id, name)
        if not response.object_found:
            raise ReplyError("incomplete", "the SuperLink does not have a piece of it")
        if not response.object_available:
            announced.awaited = name
            raise _TryLaterError
        announced.pieces_fetched += 1
        announced.bytes_fetched += len(response.object_content)
        if announced.pieces_fetched > AGAIN * self._most_pieces or announced.bytes_fetched > AGAIN * self._most_bytes:
            raise ReplyError("too-large", f"not complete after {announced.bytes_fetched} bytes in {announced.pieces_fetched} pieces")
        content: bytes = response.object_content
        return content

    def _check_names(self, name: str, pieces: _Pieces) -> None:
        """Of the arrays, as soon as they are known and before any is fetched."""
        if pieces.kinds[name] == ArrayRecord.__name__:
            names = json.loads(get_object_body(pieces.contents[name], ArrayRecord)).keys()
            if extra := names - self._names:
                raise ReplyError("names", f"has {len(extra)} arrays too many, '{plain(min(extra), 60)}' first")

    def _check(self, pieces: _Pieces, named: int) -> None:
        """`named`: pieces that are not fetched yet."""
        if len(pieces.contents) + named > self._most_pieces:
            raise ReplyError("too-large", f"more than {self._most_pieces} pieces")
        if pieces.size > self._most_bytes or pieces.size_beside > self._most_beside:
            raise ReplyError("too-large", f"more than {self._most_bytes} bytes, or {self._most_beside} that are no numbers")

    def _check_put_together(self, pieces: _Pieces) -> None:
        """An array lists the pieces of its numbers, and may list one of them any number of times."""
        total = 0
        for name, inside in pieces.inside.items():
            if pieces.kinds[name] == Array.__name__:
                if any(pieces.kinds[part] != ArrayChunk.__name__ for part in inside):
                    raise ReplyError("unreadable", "an array of something else than numbers")
                listed = json.loads(get_object_body(pieces.contents[name], Array))["arraychunk_ids"]
                total += sum(len(pieces.contents[inside[place]]) for place in listed)
        if total > self._most_bytes:
            raise ReplyError("too-large", f"more than {self._most_bytes} bytes once put together")

    def _forget(self, metadata: Any) -> None:
        """Lets the SuperLink drop a message and its pieces; if it cannot just now, they stay until the end of the run."""
        with contextlib.suppress(_TryLaterError):
            self._call(confirm_received, metadata.run_id, metadata.message_id)
