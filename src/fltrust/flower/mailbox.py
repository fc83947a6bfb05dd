"""Messages out, replies in, one at a time, as they arrive."""

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fltrust.flower.fetch import Look
from fltrust.flower.internals import SUPERLINK_NODE_ID
from fltrust.flower.replies import ReplyError, one_of

GRACE = 5.0  # seconds after the deadline in which replies that are there by then are still fetched


class Asked(NamedTuple):
    """A message that was sent and not answered yet."""

    node: int
    t: int  # the round
    until: float  # when Flower forgets it, on this machine's clock


class Arrival(NamedTuple):
    """Something that came back: a reply, or the problem that kept it from being read."""

    asked: Asked
    reply: Message | Exception


class Mailbox:
    """The server's side of the grid."""

    def __init__(self, grid: Grid, look: Look, poll: float) -> None:
        self._grid, self._look, self._poll = grid, look, poll
        self._open: dict[str, Asked] = {}  # by message id, of this round and of earlier ones

    @property
    def unasked(self) -> int:
        """Messages so far that answer nothing. Flower does not say which node sent them."""
        return self._look.unasked

    def send(self, messages: Iterable[Message], t: int) -> set[int]:
        """Returns the nodes whose message was sent."""
        messages = list(messages)
        pushed = set(self._grid.push_messages(messages)) if messages else set()
        sent = [message.metadata for message in messages if message.metadata.message_id in pushed]  # what fails the grid leaves out
        now = time.monotonic()
        self._open.update({metadata.message_id: Asked(metadata.dst_node_id, t, now + metadata.ttl) for metadata in sent})
        return {metadata.dst_node_id for metadata in sent}

    def arrivals(self, t: int, deadline: float, grace: float = GRACE) -> Iterator[Arrival]:
        """What arrives until all who were asked in round t have answered or the deadline is there, late replies of earlier rounds too.

        Everybody is looked at once more at the deadline, and once if it is over already: what the SuperLink holds by then counts, if it can
        be fetched within `grace` seconds.
        """
        until = max(deadline, time.monotonic()) + grace
        while True:
            started = time.monotonic()
            self._open = {message_id: asked for message_id, asked in self._open.items() if asked.t == t or asked.until > started}
            some = False
            for message_id in sorted(self._open, key=lambda message_id: -self._open[message_id].t):  # earlier rounds come last
                if time.monotonic() > until:
                    return
                for arrival in self._arrived(message_id, t, until):
                    some = True
                    yield arrival
            if started >= deadline or not any(asked.t == t for asked in self._open.values()):
                return
            if not some:
                pause = max(self._poll, time.monotonic() - started)  # a large federation is not asked all the time
                time.sleep(max(0.0, min(pause, deadline - time.monotonic())))

    def _arrived(self, message_id: str, t: int, until: float) -> Iterator[Arrival]:
        """Only the node that a message was sent to knows its id, so a reply to it is that node's; the node's own name must fit."""
        asked = self._open[message_id]
        answer: Message | Exception
        try:
            answers = self._look(message_id, asked.t == t, until)  # of a late reply nothing is wanted but that it came
            if not answers:
                return
            answer = one_of(answers)
            if isinstance(answer, Message) and answer.metadata.src_node_id not in (asked.node, SUPERLINK_NODE_ID):
                answer = ReplyError("disputed", f"says that it comes from node {answer.metadata.src_node_id}")
        except Exception as problem:  # a grid that can do nothing any more says so when the next round asks it for its nodes
            answer = problem
        del self._open[message_id]
        yield Arrival(asked, answer)
