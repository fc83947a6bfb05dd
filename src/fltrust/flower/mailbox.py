"""Messages out, replies in, one at a time, as they arrive.

A reply is fetched alone: fetching several at once would hold them all in memory, and one that cannot be decoded would take the others with
it. A fetch can also hang, since Flower announces a reply before its arrays have been uploaded and then waits for them. So each is made by a
thread; one that takes longer than PATIENCE goes on by itself while the next is tried, and at most AT_ONCE replies are on their way.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import NamedTuple, Self

from flwr.app import Message
from flwr.serverapp import Grid

PATIENCE = 5.0  # seconds
AT_ONCE = 8


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
    """The server's side of the grid: `with Mailbox(grid, poll) as mailbox: ...`."""

    def __init__(self, grid: Grid, poll: float) -> None:
        self._grid, self._poll = grid, poll
        self._open: dict[str, Asked] = {}  # by message id, of this round and of earlier ones
        self._on_the_way: dict[Future[list[Message]], str] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fltrust-reply")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def send(self, messages: Iterable[Message], t: int, until: float) -> None:
        messages = list(messages)
        pushed = set(self._grid.push_messages(messages)) if messages else set()
        for message in messages:  # the grid gives each message its id; one that it could not send it leaves out
            if message.metadata.message_id in pushed:
                self._open[message.metadata.message_id] = Asked(message.metadata.dst_node_id, t, until)

    def arrivals(self, t: int, deadline: float) -> Iterator[Arrival]:
        """What arrives until all who were asked in round t have answered or the deadline is there, late replies of earlier rounds too."""
        while any(asked.t == t for asked in self._open.values()) and (started := time.monotonic()) < deadline:
            self._open = {message_id: asked for message_id, asked in self._open.items() if asked.t == t or asked.until > started}
            some = False
            for message_id in sorted(self._open, key=lambda message_id: -self._open[message_id].t):  # earlier rounds come last
                for arrival in self._look(message_id, deadline):
                    some = True
                    yield arrival
                if time.monotonic() >= deadline:
                    break
            if not some:
                pause = max(self._poll, time.monotonic() - started)  # a large federation is not asked all the time
                time.sleep(max(0.0, min(pause, deadline - time.monotonic())))

    def _look(self, message_id: str, deadline: float) -> Iterator[Arrival]:
        """Looks whether this message was answered, and hands over all that has come meanwhile."""
        if message_id not in self._on_the_way.values():
            while len(self._on_the_way) >= AT_ONCE and time.monotonic() < deadline:
                wait(self._on_the_way, deadline - time.monotonic(), return_when="FIRST_COMPLETED")
                yield from self._handed_over()
            if len(self._on_the_way) < AT_ONCE and message_id in self._open:
                fetch = self._threads.submit(lambda: list(self._grid.pull_messages([message_id])))
                self._on_the_way[fetch] = message_id
                wait([fetch], max(0.0, min(PATIENCE, deadline - time.monotonic())))
        yield from self._handed_over()

    def _handed_over(self) -> Iterator[Arrival]:
        """Who sent a reply is known from the message that it was fetched for; what it says about itself is its sender's invention."""
        for fetch in [fetch for fetch in self._on_the_way if fetch.done()]:
            message_id = self._on_the_way.pop(fetch)
            asked = self._open.get(message_id)
            problem = fetch.exception()
            if isinstance(problem, Exception):
                self._grid.get_node_ids()  # if the SuperLink is gone this raises too, and the run ends; else it is this one reply
            answers = [problem] if isinstance(problem, Exception) else [reply for reply in fetch.result() if _is_reply(reply)]
            if asked is not None and answers:
                del self._open[message_id]
                for answer in answers:
                    yield Arrival(asked, answer)


def _is_reply(message: Message) -> bool:
    """Not one of the messages that Flower hands to whoever fetches next, whomever they are for."""
    return bool(message.metadata.reply_to_message_id)
