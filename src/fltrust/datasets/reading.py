"""Reading files that nobody has checked: every size is bounded before anything is unpacked, nothing is extracted to disk.

Whatever is wrong with a file raises `DamagedError`, which names it.
"""

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fltrust.datasets.dataset import Labels
from fltrust.errors import InputError

Number = TypeVar("Number", np.int64, np.float32)

XZ_MEMORY = 2**28  # an xz file says how much memory its unpacking takes; `xz -9` needs a quarter of this


class DamagedError(InputError):
    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}: {why}")


def first_complete(*layouts: list[Path]) -> list[Path]:
    """The first layout whose files are all there, else the one with most of them, else the first."""
    return max(layouts, key=lambda paths: (all(map(Path.is_file, paths)), sum(map(Path.is_file, paths))))


def unpack(file: str, data: bytes, max_bytes: int) -> bytes:
    """The content of a .gz or .xz file, at most `max_bytes` of it."""
    try:
        if file.endswith(".xz"):
            decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
            content = decompressor.decompress(data, max_bytes + 1)
            complete = decompressor.eof
        else:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                content = packed.read(max_bytes + 1)
            complete = True  # gzip raises EOFError itself
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DamagedError(file, f"cannot be unpacked ({_one_line(error)})") from error
    if len(content) > max_bytes:
        raise DamagedError(file, f"unpacks to more than the {max_bytes:,} bytes expected")
    if not complete:
        raise DamagedError(file, "is cut short")
    return content


def unzip(file: str, data: bytes, wanted: Callable[[str], bool], max_members: int, max_bytes: int) -> Iterator[tuple[str, bytes]]:
    """The wanted members of a zip archive, in order of their names: at most `max_members` of at most `max_bytes` each."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = sorted((member for member in archive.infolist() if wanted(member.filename)), key=lambda member: member.filename)
            if len(members) > max_members:
                raise DamagedError(file, f"holds {len(members):,} data files, expected {max_members:,}")
            for member in members:
                if member.file_size > max_bytes:
                    raise DamagedError(
                        file, f"{member.filename!r} in it unpacks to {member.file_size:,} bytes, expected at most {max_bytes:,}"
                    )
                yield member.filename, archive.read(member)  # zipfile never unpacks more than file_size, and checks the CRC
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise DamagedError(file, f"is not a readable zip archive ({_one_line(error)})") from error


def untar(file: str, data: bytes, wanted: list[str], max_bytes: int) -> dict[str, bytes]:
    """The wanted members of a .tar.gz archive that unpacks to at most `max_bytes`: regular files with exactly these names."""
    content = unpack(file, data, max_bytes)
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                if member.name in wanted:
                    # a sparse member's size is a claim: refuse it, as links and folders
                    source = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                    if source is None or member.name in found:
                        raise DamagedError(file, f"{member.name!r} in it is not one plain file")
                    found[member.name] = source.read()
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise DamagedError(file, f"is not a readable tar archive ({_one_line(error)})") from error
    if absent := [name for name in wanted if name not in found]:
        raise DamagedError(file, f"has no {absent[0]!r} in it")
    return {name: found[name] for name in wanted}


def table(file: str, data: bytes, columns: int, dtype: type[Number], delimiter: str | None = None) -> NDArray[Number]:
    """Numbers in text, a row per line."""
    if not data.strip():
        raise DamagedError(file, "is empty")
    try:
        rows = np.loadtxt(io.BytesIO(data), dtype=dtype, delimiter=delimiter, comments=None, ndmin=2)  # (rows, columns)
    except (ValueError, OverflowError) as error:
        raise DamagedError(file, f"is not a table of numbers ({_one_line(error)})") from error
    if rows.shape[1] != columns:
        raise DamagedError(file, f"has {rows.shape[1]} columns, expected {columns}")
    if not np.isfinite(rows).all():
        raise DamagedError(file, f"has a value that is not finite in row {int(np.argwhere(~np.isfinite(rows))[0, 0]) + 1}")
    return rows


def checked_labels(file: str, labels: NDArray[np.integer], num_classes: int, first: int = 0) -> Labels:
    """Labels as 0..num_classes-1, from a file in which they start at `first`."""
    if len(labels) and not (first <= labels.min() and labels.max() < first + num_classes):
        wrong = labels[(labels < first) | (labels >= first + num_classes)][0]
        raise DamagedError(file, f"has {wrong} where {first} to {first + num_classes - 1} are possible")
    return labels.astype(np.int64) - first


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
