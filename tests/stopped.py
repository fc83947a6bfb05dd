"""A run that is stopped in the middle: after the same number of records on a slow machine and on a fast one."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = [sys.executable, "-c", "from fltrust.cli import main; main()"]


def stopped(arguments: list[str], *, cwd: Path, records: int, by: int) -> tuple[int, str]:
    """Runs the program and sends it a signal once it has saved so many records; returns its exit code and what it said.

    It cannot run far ahead: it writes each record that it has saved into a pipe of one page, which nobody else empties.
    """
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen([*PROGRAM, *arguments, "--log", "jsonl"], cwd=cwd, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as lines:
        for _ in range(records):
            assert lines.readline(), process.communicate()[1]
        process.send_signal(by)
        lines.readall()  # so that it can end
    said = process.communicate()[1]
    return process.returncode, said
