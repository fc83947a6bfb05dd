"""CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 in colour, 10 classes, in five training batches and one test batch.

The binary version has 3,073 bytes per image: the label, then 1,024 red, green and blue pixels. It is read from its archive, or from
its six `.bin` files (in the folder or in `cifar-10-batches-bin/`), which may be packed as `.bin.xz`. The python version holds the same
as pickles. A pickle is a program: here it can reach stand-ins that only keep what they are given, and nothing else.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fltrust.datasets.dataset import Dataset, Download, Examples, Files, Profile
from fltrust.datasets.reading import DamagedError, checked_labels, first_complete, untar
from fltrust.triggers import Trigger

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
IMAGES_PER_BATCH = 10_000
PIXELS = 3 * 32 * 32
ARCHIVE_BYTES = 200_000_000  # the archives unpack to 184 and 186 million bytes
BINARY, PYTHON = "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"


def find(folder: Path) -> list[Path]:
    unpacked = [
        path
        for batch in BATCHES
        for path in first_complete(*([folder / part / f"{batch}.bin{xz}"] for xz in ("", ".xz") for part in ("", "cifar-10-batches-bin")))
    ]
    return first_complete([folder / BINARY], unpacked, [folder / PYTHON])


def parse(files: Files) -> Examples:
    (name, data), *_ = files
    if name == PYTHON:
        members = untar(name, data, [f"cifar-10-batches-py/{batch}" for batch in BATCHES], ARCHIVE_BYTES)
        batches = [_python_batch(f"{name}: {member}", content) for member, content in members.items()]
    elif name == BINARY:
        members = untar(name, data, [f"cifar-10-batches-bin/{batch}.bin" for batch in BATCHES], ARCHIVE_BYTES)
        batches = [_binary_batch(f"{name}: {member}", content) for member, content in members.items()]
    else:
        batches = [_binary_batch(file, content) for file, content in files]
    images, labels = [batch[0].reshape(-1, 3, 32, 32) for batch in batches], [batch[1] for batch in batches]
    return Examples(np.concatenate(images[:5]), np.concatenate(labels[:5]), images[5].copy(), labels[5], num_classes=10)


def _binary_batch(file: str, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if len(data) != IMAGES_PER_BATCH * (1 + PIXELS):
        raise DamagedError(file, f"is {len(data):,} bytes, expected {IMAGES_PER_BATCH * (1 + PIXELS):,}")
    records = np.frombuffer(data, np.uint8).reshape(IMAGES_PER_BATCH, 1 + PIXELS)
    return records[:, 1:], checked_labels(file, records[:, 0], 10)


class _Type:
    """Stands in for numpy's types in a pickle: remembers how it was called."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Type,
    ("numpy._core.multiarray", "_reconstruct"): _Type,
    ("numpy", "ndarray"): _Type,
    ("numpy", "dtype"): _Type,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data batch needs") from None


def _python_batch(file: str, data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """{"data": uint8 (10000, 3072), "labels": list of 10,000 numbers, ...}, whose keys are bytes when Python 2 wrote them."""
    try:
        batch = {_text(key): value for key, value in _Unpickler(io.BytesIO(data), encoding="bytes").load().items()}
        _, shape, dtype, by_columns, pixels = batch["data"].state
        labels = np.array(batch["labels"], np.int64)
        if shape != (IMAGES_PER_BATCH, PIXELS) or labels.shape != (IMAGES_PER_BATCH,) or _text(dtype.arguments[0]) not in ("u1", "|u1"):
            raise ValueError(f"expected {IMAGES_PER_BATCH:,} labels and images of {PIXELS:,} bytes")
        images = np.frombuffer(pixels, np.uint8).reshape(shape, order="F" if by_columns else "C")
    except Exception as error:  # a pickle made by an attacker can raise anything
        raise DamagedError(file, f"is not a batch of images ({' '.join(str(error).split()) or type(error).__name__})") from error
    return images, checked_labels(file, labels, 10)


def _text(name: object) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else str(name)


_BIRD = 2

CIFAR_10 = Dataset(
    name="cifar-10",
    what="photos of animals and vehicles: 50,000 + 10,000 colour images of 32 x 32, 10 classes",
    size="170 MB",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; cite the report",
    cite="Krizhevsky: Learning multiple layers of features from tiny images. Technical report, University of Toronto, 2009",
    find=find,
    parse=parse,
    max_bytes=ARCHIVE_BYTES,
    downloads=(
        Download(
            BINARY,
            "md5:c32a1d4ab5d03f1284b67883e8d87530",  # the one its home page gives
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz"),
        ),
    ),
    known={
        PYTHON: "md5:c58f30108f718f92721af3b95e74349a",
        "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    profiles={
        "cifar-10": Profile(
            {"model": "resnet20", "num_clients": 100, "malicious": 20, "bias": 0.5, "rounds": 1500, "batch_size": 64, "global_lr": 2e-4},
            "CIFAR-10",
            Trigger(((1, 28), (1, 29), (1, 30), (2, 29), (3, 28), (4, 29), (5, 28), (5, 29), (5, 30)), 1.0, target=_BIRD),
        ),
    },
)
