"""Tests wait for what they need, however long a busy machine takes; the limit is for a program that hangs."""

import subprocess
import time
from collections.abc import Callable
from typing import Any

MOST_SECONDS = 600


def until(condition: Callable[[], object], process: subprocess.Popen[Any] | None = None) -> None:
    """Returns once the condition holds; fails if the process that should bring it about has ended before."""
    end = time.monotonic() + MOST_SECONDS
    while not condition():
        assert process is None or process.poll() is None or condition(), "the program has ended"
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)
