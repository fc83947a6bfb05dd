"""MNIST and Fashion-MNIST: 60,000 training and 10,000 test images of 28 x 28 grey pixels in the idx format, 10 classes.

An idx file is two zero bytes, the type of its values (8: one unsigned byte), the number of dimensions, each dimension as a
big-endian 32-bit number, and then the values. The original files are packed with gzip; unpacked ones serve as well.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fltrust.datasets.dataset import Dataset, Download, Examples, Files, Profile
from fltrust.datasets.reading import DamagedError, checked_labels, first_complete
from fltrust.triggers import four_pixels

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def find(folder: Path) -> list[Path]:
    return [path for name in NAMES for path in first_complete([folder / f"{name}.gz"], [folder / name])]


def parse(files: Files) -> Examples:
    train, train_labels = _images_and_labels(files[0], files[1], at_most=60_000)
    test, test_labels = _images_and_labels(files[2], files[3], at_most=10_000)
    return Examples(train, train_labels, test, test_labels, num_classes=10)


def _images_and_labels(
    image_file: tuple[str, bytes], label_file: tuple[str, bytes], at_most: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images = _idx(*image_file, item=(28, 28), at_most=at_most)
    labels = _idx(*label_file, item=(), at_most=at_most)
    if len(images) != len(labels):
        raise DamagedError(label_file[0], f"has {len(labels):,} labels for {len(images):,} images")
    return images[:, None], checked_labels(label_file[0], labels, 10)


def _idx(file: str, data: bytes, item: tuple[int, ...], at_most: int) -> NDArray[np.uint8]:
    dimensions = 1 + len(item)
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise DamagedError(file, f"is cut short: {len(data)} bytes, its header alone has {start}")
    magic = bytes((0, 0, 8, dimensions))
    if data[:4] != magic:
        raise DamagedError(file, f"starts with the bytes {data[:4].hex()}, expected {magic.hex()}")
    count, *shape = (int(size) for size in np.frombuffer(data[4:start], ">u4"))
    if tuple(shape) != item:
        raise DamagedError(file, f"says that its images are {' x '.join(map(str, shape))}, expected {' x '.join(map(str, item))}")
    if not 1 <= count <= at_most:
        raise DamagedError(file, f"says that it holds {count:,} items, expected 1 to {at_most:,}")
    expected = start + count * int(np.prod(item))
    if len(data) != expected:
        raise DamagedError(file, f"is {len(data):,} bytes, its header says {expected:,}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(count, *item).copy()  # a copy may be written to, the file's bytes not


def _downloads(hashes: tuple[str, ...], homes: tuple[str, ...]) -> tuple[Download, ...]:
    return tuple(
        Download(f"{name}.gz", f"sha256:{value}", tuple(f"{home}{name}.gz" for home in homes))
        for name, value in zip(NAMES, hashes, strict=True)
    )


_IMAGES = {"model": "cnn", "num_clients": 100, "malicious": 20, "batch_size": 32}

MNIST = Dataset(
    name="mnist",
    what="handwritten digits: 60,000 + 10,000 grey images of 28 x 28, 10 classes",
    size="12 MB",
    home="http://yann.lecun.com/exdb/mnist/",
    licence="CC BY-SA 3.0 as usually stated (Y. LeCun and C. Cortes)",
    cite="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition. Proc. IEEE, 1998",
    find=find,
    parse=parse,
    max_bytes=50_000_000,
    downloads=_downloads(
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ),
    known={
        "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    profiles={
        "mnist-0.1": Profile({**_IMAGES, "bias": 0.1, "rounds": 2000, "global_lr": 3e-4}, "MNIST-0.1", four_pixels(28)),
        "mnist-0.5": Profile({**_IMAGES, "bias": 0.5, "rounds": 2000, "global_lr": 3e-4}, "MNIST-0.5", four_pixels(28)),
    },
)

FASHION_MNIST = Dataset(
    name="fashion-mnist",
    what="clothes: 60,000 + 10,000 grey images of 28 x 28, 10 classes",
    size="31 MB",
    home="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT (Zalando SE)",
    cite="Xiao, Rasul, Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms. 2017",
    find=find,
    parse=parse,
    max_bytes=50_000_000,
    downloads=_downloads(
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
    ),
    known={
        "train-images-idx3-ubyte": "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    profiles={
        "fashion-mnist": Profile({**_IMAGES, "bias": 0.5, "rounds": 2500, "global_lr": 6e-3}, "Fashion-MNIST", four_pixels(28)),
    },
)
