"""Files that survive a crash at any moment: each is there whole or not at all. Nothing is ever unpickled."""

import fcntl
import json
import os
import platform
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from fltrust.errors import InputError

MOST_BYTES = 64 * 2**20  # of a JSON file, and of a line of records; 100,000 nodes fill about a third
MOST_NESTED = 50  # lists and objects within each other in a JSON file; what reads them goes down by itself


def lock(path: Path) -> IO[bytes]:
    """Makes the directory and keeps other processes from writing there until the file is closed, also by the end of this process."""
    path.mkdir(parents=True, exist_ok=True)
    own = path / ".lock"
    try:  # it may be somebody else's file, or a link to one: nothing is written into it, not even emptied
        file = os.fdopen(os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o666), "rb")
    except OSError as problem:
        raise InputError(f"{own} cannot be opened: {'it is a link' if own.is_symlink() else problem.strerror}") from problem
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        file.close()
        raise InputError(f"{path} is in use by another process") from problem
    return file


_UNFINISHED = re.compile(r".+\.[0-9a-f]{16}\.part")  # what `replacing` leaves behind if the process is killed
_BEFORE_IT = re.compile(r"\.lock|experiment\.json(\.[0-9a-f]{16})?\.part")  # without the digits: by earlier versions


class OwnedDirectory:
    """The directory of one run, locked while it is open. `experiment.json` declares which run that is; any other is refused."""

    holds = "run"  # what a stranger would look for here in vain
    remedy = "choose another directory"

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self._lock = lock(self.path)
        try:
            self._claim()
            for left in self.path.glob("*.part"):  # by a process that was killed: nobody else writes here
                if _UNFINISHED.fullmatch(left.name):
                    left.unlink()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.close()

    def _claim(self) -> None:
        declared = self.path / "experiment.json"
        if declared.exists():
            self._check(read_json(declared))
        elif (self.path / "records.jsonl").exists():
            raise InputError(f"{declared} is missing, but records.jsonl is there: put it back, or {self.remedy}")
        elif any(not _BEFORE_IT.fullmatch(entry.name) for entry in self.path.iterdir()):
            raise InputError(f"{self.path} is not empty and holds no {self.holds}: {self.remedy}")
        else:
            replace(declared, json.dumps(self._declaration(), indent=1).encode())

    def _check(self, written: dict[str, Any]) -> None:
        """Refuses a directory that declares another run."""
        raise NotImplementedError

    def _declaration(self) -> dict[str, Any]:
        raise NotImplementedError


def replace(path: Path, content: bytes) -> None:
    """Writes a file so that it is there whole or not at all, whatever happens meanwhile."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which takes its place once it is whole. If it cannot be written, nothing of it stays."""
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    with naming(path), beside.open("xb") as file:  # a new file: nobody else's, and no link to one
        try:
            yield file
            sync(file)
            rename(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A full disk does not say where it was full: names the file that was being written."""
    try:
        yield
    except OSError as problem:
        problem.filename = str(path)
        raise


def set_aside(path: Path) -> Path:
    """Renames a file to the next free set-aside-N in its folder, and returns the new path: what was recorded is never deleted."""
    number = 1
    while (aside := path.with_name(f"set-aside-{number}{path.suffix}")).exists():
        number += 1
    rename(path, aside)
    return aside


def sync(file: IO[bytes]) -> None:
    """Waits until what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def rename(source: Path, target: Path) -> None:
    """Puts the new file in place at once, and makes sure that a power failure does not undo it."""
    source.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def open_regular(path: Path) -> IO[bytes]:
    """Opens a file to read it. A pipe or a device in its place could block, or never end: it is refused."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}") from problem
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise InputError(f"{path} cannot be read: it is no regular file")
    return os.fdopen(opened, "rb")


def whole_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The lines from where the file stands. A last one without its end, which is being written or was cut off, is left out."""
    while line := file.readline(MOST_BYTES + 1):
        if len(line) > MOST_BYTES:
            raise InputError(f"{path} holds a line of more than {MOST_BYTES >> 20} MB: the file is damaged")
        if line.endswith(b"\n"):
            yield line


def read_json(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            written = file.read(MOST_BYTES + 1)
        if len(written) > MOST_BYTES:
            raise InputError(f"{path} cannot be read: it holds more than {MOST_BYTES >> 20} MB")
        content = json.loads(written)
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{path} cannot be read: {problem}") from problem
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object")
    if _too_deep(content):
        raise InputError(f"{path} holds nested data that no run writes: it is damaged")
    return content


def _too_deep(content: object) -> bool:
    level: list[Any] = [content]
    for _ in range(MOST_NESTED):
        level = [part for one in level if isinstance(one, dict | list) for part in (one.values() if isinstance(one, dict) else one)]
    return bool(level)


CPU_INFO = Path("/proc/cpuinfo")


def hardware(device: str) -> str:
    """What computes, in words: processors round differently, so theirs is named. Older results lack its model."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    model = next(models, platform.processor())
    return ", ".join((platform.machine(), f"{os.cpu_count()} cores", *([model] if model else [])))
