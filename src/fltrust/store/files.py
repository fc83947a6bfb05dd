"""Files that survive a crash at any moment: each is there whole or not at all. Nothing is ever unpickled."""

import fcntl
import json
import os
import platform
from pathlib import Path
from typing import IO, Any

from fltrust.errors import InputError


def lock(path: Path) -> IO[str]:
    """Makes the directory and keeps other processes from writing there until the file is closed, also by the end of this process."""
    path.mkdir(parents=True, exist_ok=True)
    file = (path / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        file.close()
        raise InputError(f"{path} is in use by another process") from problem
    return file


def replace(path: Path, content: bytes) -> None:
    """Writes a file so that it is there whole or not at all, whatever happens meanwhile."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(content)
        sync(file)
    rename(beside, path)


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


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as problem:
        raise InputError(f"{path} cannot be read: {problem}") from problem
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object")
    return content


def hardware(device: str) -> str:
    """What computes, in words."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {os.cpu_count()} cores"
