"""CH-MNIST: 5,000 tiles of colorectal histology, 625 of each of 8 tissues; 150 x 150 in colour, made 64 x 64 in grey as in the paper.

Read from the archive of tif files or from its unpacked folder, a folder per tissue. Each tile is turned into grey (ITU-R 601 luma) and
then resized with Pillow's bicubic filter; the paper names neither. 4,000 tiles train and 1,000 test, drawn once and for all, the same for
every experiment. Only this data set needs Pillow.
"""

import io
import warnings
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fltrust.datasets.dataset import Dataset, Download, Examples, Files, Profile
from fltrust.datasets.reading import DamagedError, unzip
from fltrust.errors import InputError
from fltrust.randomness import stream
from fltrust.triggers import four_pixels

TISSUES = ("01_TUMOR", "02_STROMA", "03_COMPLEX", "04_LYMPHO", "05_DEBRIS", "06_MUCOSA", "07_ADIPOSE", "08_EMPTY")
TILES_PER_TISSUE = 625
FOLDER = "Kather_texture_2016_image_tiles_5000"
ARCHIVE = f"{FOLDER}.zip"
TILE, SIDE = (150, 150), 64
MAX_TILE_BYTES = 1_000_000


def find(folder: Path) -> list[Path]:
    tiles = sorted(path for tissue in TISSUES for path in (folder / FOLDER / tissue).glob("[!.]*.tif"))
    return tiles if tiles and not (folder / ARCHIVE).is_file() else [folder / ARCHIVE]


def parse(files: Files) -> Examples:
    if files[0][0] == ARCHIVE:
        expected = TILES_PER_TISSUE * len(TISSUES)
        found = ((f"{ARCHIVE}: {name}", data) for name, data in unzip(*files[0], _is_tile, max_members=expected, max_bytes=MAX_TILE_BYTES))
    else:
        found = (file for file in files)
    tiles: dict[str, list[tuple[str, NDArray[np.uint8]]]] = {tissue: [] for tissue in TISSUES}
    for name, data in found:
        path = PurePosixPath(name)
        tiles[path.parent.name].append((path.name, _grey(name, data)))
    for tissue, own in tiles.items():
        if len(own) != TILES_PER_TISSUE:
            where = ARCHIVE if files[0][0] == ARCHIVE else FOLDER
            raise DamagedError(where, f"has {len(own)} tiles of {tissue}, expected {TILES_PER_TISSUE}")
    images = np.stack([image for own in tiles.values() for _, image in sorted(own, key=lambda tile: tile[0])])[:, None]
    labels = np.repeat(np.arange(len(TISSUES)), TILES_PER_TISSUE)
    order = stream(0, "dataset", "ch-mnist", "split").permutation(len(images))
    cut = len(images) * 4 // 5
    train, test = np.sort(order[:cut]), np.sort(order[cut:])
    return Examples(images[train], labels[train], images[test], labels[test], num_classes=len(TISSUES))


def _is_tile(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return folder in {f"{FOLDER}/{tissue}" for tissue in TISSUES} and file.endswith(".tif") and not file.startswith(".")


def _grey(file: str, data: bytes) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("CH-MNIST's tif files are read with Pillow: pip install pillow") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about odd metadata, which does not matter here
            with Image.open(io.BytesIO(data), formats=("TIFF",)) as tile:  # reads the header only
                if tile.size != TILE:
                    raise DamagedError(file, f"is {tile.size[0]} x {tile.size[1]} pixels, expected {TILE[0]} x {TILE[1]}")
                return np.asarray(tile.convert("L").resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    except InputError:
        raise
    except Exception as error:  # a damaged tif makes Pillow raise almost anything
        raise DamagedError(file, f"is not a readable tif image ({' '.join(str(error).split())})") from error


CH_MNIST = Dataset(
    name="ch-mnist",
    what="tissue of colorectal cancer: 4,000 + 1,000 tiles, made 64 x 64 in grey, 8 classes",
    size="246 MB",
    home="https://zenodo.org/records/53169",
    licence="CC BY 4.0",
    cite="Kather et al.: Multi-class texture analysis in colorectal cancer histology. Scientific Reports 6, 2016",
    find=find,
    parse=parse,
    max_bytes=400_000_000,
    downloads=(Download(ARCHIVE, "md5:0ddbebfc56344752028fda72602aaade", (f"https://zenodo.org/records/53169/files/{ARCHIVE}",)),),
    profiles={
        "ch-mnist": Profile(
            {
                "model": "resnet20",
                "num_clients": 40,
                "malicious": 8,
                "bias": 0.5,
                "rounds": 2000,
                "batch_size": 32,
                "global_lr": 3e-4,
                "lr_decay": ((1500, 0.9), (1750, 0.9)),
            },
            "CH-MNIST",
            four_pixels(64),
        ),
    },
)
