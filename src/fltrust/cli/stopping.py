"""Ctrl-C, `kill` and a full disk: one line that says how to go on, and no traceback. The exit codes are a shell's: 130 and 143."""

import errno
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from fltrust.errors import InputError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Stopped(Exception):  # noqa: N818
    """Somebody stopped the program. Its text is the line for them."""

    def __init__(self, line: str, cause: BaseException) -> None:
        super().__init__(line)
        self.cause = cause

    @property
    def code(self) -> int:
        return 128 + (signal.SIGTERM if isinstance(self.cause, Terminated) else signal.SIGINT)


class Terminated(KeyboardInterrupt):
    """A `kill`, which is handled as Ctrl-C is."""


@contextmanager
def resumable(stopped: Callable[[], str]) -> Iterator[None]:
    """Says how to resume what is stopped here. `stopped` is called once everything is closed."""

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Stopped(stopped(), stop) from None
    except OSError as problem:
        if problem.errno not in FULL:
            raise
        raise InputError(f"{problem.filename or 'writing'}: {problem.strerror}; make room, and the same command resumes") from problem
    finally:
        signal.signal(signal.SIGTERM, before)
