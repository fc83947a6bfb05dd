"""UCI HAR: 10,299 windows of a smartphone's motion sensors, 561 features each, 30 users, 6 activities.

Text files: features, activities (1 to 6) and users (1 to 30), a line per window, in a train and a test part that divide the users. The
paper wants every user as a client, so both parts are put together, and 75 % of each user's windows train and 25 % test; that split is
drawn once and for all, the same for every experiment. Read from UCI's archive (which holds another archive), from that inner archive, or
from the unpacked folder. UCI publishes no hash; the ones below are what several independent projects have recorded for its files.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fltrust.datasets.dataset import Dataset, Download, Examples, Files, Labels, Profile
from fltrust.datasets.reading import DamagedError, checked_labels, first_complete, table, unzip
from fltrust.randomness import stream
from fltrust.triggers import Trigger

OUTER, INNER = "human+activity+recognition+using+smartphones.zip", "UCI HAR Dataset.zip"
TABLES = tuple(f"UCI HAR Dataset/{part}/{kind}_{part}.txt" for part in ("train", "test") for kind in ("X", "y", "subject"))
MAX_BYTES = 100_000_000  # the largest table has 66 million bytes
FEATURES, ACTIVITIES, USERS = 561, 6, 30


def find(folder: Path) -> list[Path]:
    return first_complete([folder / OUTER], [folder / INNER], [folder / name for name in TABLES])


def parse(files: Files) -> Examples:
    features, labels, owners = [], [], []
    tables = _tables(files)
    for part in (0, 3):
        (x_file, x), (y_file, y), (user_file, user) = tables[part : part + 3]
        features.append(table(x_file, x, FEATURES, np.float32))
        labels.append(checked_labels(y_file, table(y_file, y, 1, np.int64)[:, 0], ACTIVITIES, first=1))
        owners.append(checked_labels(user_file, table(user_file, user, 1, np.int64)[:, 0], USERS, first=1))
        for file, column in ((y_file, labels[-1]), (user_file, owners[-1])):
            if len(column) != len(features[-1]):
                raise DamagedError(file, f"has {len(column):,} lines, {x_file} has {len(features[-1]):,}")
    return _split_by_user(np.concatenate(features), np.concatenate(labels), np.concatenate(owners))


def _tables(files: Files) -> Files:
    (name, data), *more = files
    if more:
        return files
    if name == OUTER:
        inner = list(unzip(name, data, lambda member: member == INNER, max_members=1, max_bytes=MAX_BYTES))
        if not inner:
            raise DamagedError(name, f"has no {INNER!r} in it")
        ((_, data),) = inner
    members = dict(unzip(name, data, lambda member: member in TABLES, max_members=len(TABLES), max_bytes=MAX_BYTES))
    if absent := [member for member in TABLES if member not in members]:
        raise DamagedError(name, f"has no {absent[0]!r} in it")
    return [(f"{name}: {member}", members[member]) for member in TABLES]


def _split_by_user(features: NDArray[np.float32], labels: Labels, owners: Labels) -> Examples:
    draw = stream(0, "dataset", "har", "split")
    training = np.zeros(len(owners), bool)
    for user in range(USERS):
        own = draw.permutation(np.flatnonzero(owners == user))
        training[own[: round(0.75 * len(own))]] = True
    return Examples(features[training], labels[training], features[~training], labels[~training], ACTIVITIES, owners=owners[training])


_WALKING_UPSTAIRS = 1

HAR = Dataset(
    name="har",
    what="what a phone's owner does: 10,299 windows of 561 motion features from 30 users, 6 activities",
    size="61 MB",
    home="https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    licence="CC BY 4.0 at UCI; the file's own README asks for no commercial use",
    cite="Anguita, Ghio, Oneto, Parra, Reyes-Ortiz: A public domain dataset for human activity recognition using smartphones. ESANN 2013",
    find=find,
    parse=parse,
    max_bytes=MAX_BYTES,
    downloads=(
        Download(
            OUTER,
            "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
            (f"https://archive.ics.uci.edu/static/public/240/{OUTER}",),
        ),
    ),
    known={INNER: "sha256:2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0"},
    profiles={
        "har": Profile(
            {
                "model": "logistic",
                "num_clients": 30,
                "malicious": 6,
                "bias": None,
                "rounds": 1000,
                "batch_size": 32,
                "global_lr": 3e-3,
                "standardise": True,  # the paper does not say so, but so its HAR numbers come out: docs/reproduction.md
            },
            "HAR",
            # "Every 20th feature" of 561: counted from one, so the 20th, the 40th, ... the 560th.
            Trigger(tuple((feature,) for feature in range(19, FEATURES, 20)), 0.0, target=_WALKING_UPSTAIRS),
        ),
    },
)
