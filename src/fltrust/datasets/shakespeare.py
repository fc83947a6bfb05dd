"""Tiny Shakespeare: the lines of 99 roles, for next-character prediction; every role is a user, as in LEAF.

A text file of blocks, `ROLE:` and the role's lines, with an empty line between blocks. A role's lines, joined in their order, are cut into
windows of 40 characters without overlap; the target of each character is the one after it. Roles with fewer than 2,000 characters are left
out. Of each role, the first 80 % of the windows train and the rest test: a model is measured on lines that come later in the play.

The learning rate was chosen from 1, 3 and 8 by the test error of FedAvg without attack (100 rounds, one seed: 0.764, 0.719, 0.933), not for
any defence: FLTrust under the Trim attack ends at 0.821 with it, and at 0.709 with 2 (200 rounds, one seed).
"""

from pathlib import Path

import numpy as np

from fltrust.datasets.dataset import Dataset, Download, Examples, Files, Profile
from fltrust.datasets.reading import DamagedError, first_complete

FILE = "input.txt"
ALPHABET = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
WINDOW, LEAST_CHARACTERS, TRAINING = 40, 2_000, 0.8


def find(folder: Path) -> list[Path]:
    return first_complete([folder / FILE], [folder / f"{FILE}.gz"])


def parse(files: Files) -> Examples:
    ((file, data),) = files
    codes = np.full(256, -1, np.int64)
    codes[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
    text = codes[np.frombuffer(data, np.uint8)]
    if (unknown := np.flatnonzero(text < 0)).size:
        raise DamagedError(file, f"has an unexpected character at place {int(unknown[0]) + 1:,}")
    inputs, targets, owners, training = [], [], [], []
    for user, lines in enumerate(_lines_by_role(file, data)):
        spoken = codes[np.frombuffer(lines, np.uint8)]
        count = (len(spoken) - 1) // WINDOW
        inputs.append(spoken[: count * WINDOW].reshape(count, WINDOW))
        targets.append(spoken[1 : count * WINDOW + 1].reshape(count, WINDOW))
        owners.append(np.full(count, user))
        training.append(np.arange(count) < round(TRAINING * count))
    x, y, owner, train = (np.concatenate(parts) for parts in (inputs, targets, owners, training))
    return Examples(x[train], y[train], x[~train], y[~train], len(ALPHABET), owners=owner[train])


def _lines_by_role(file: str, data: bytes) -> list[bytes]:
    """What each role says, in the order in which the roles first speak."""
    said: dict[bytes, list[bytes]] = {}
    for block in data.split(b"\n\n"):
        role, _, lines = block.lstrip(b"\n").partition(b"\n")
        if role.endswith(b":"):
            said.setdefault(role, []).append(lines + b"\n")
    spoken = [b"".join(lines) for lines in said.values()]
    chosen = [lines for lines in spoken if len(lines) >= LEAST_CHARACTERS]
    if not chosen:
        raise DamagedError(file, f"has no role with {LEAST_CHARACTERS:,} characters or more")
    return chosen


SHAKESPEARE = Dataset(
    name="shakespeare",
    what="lines of 99 roles in Shakespeare's plays: the next of 65 characters, in windows of 40",
    size="1 MB",
    home="https://github.com/karpathy/char-rnn",
    licence="the text is in the public domain",
    cite="Caldas et al.: LEAF: a benchmark for federated settings. 2018; the text: Karpathy, char-rnn, 2015",
    find=find,
    parse=parse,
    max_bytes=5_000_000,
    downloads=(
        Download(
            FILE,
            "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
        ),
    ),
    profiles={
        "shakespeare": Profile(
            {
                "model": "gru",
                "num_clients": 99,
                "malicious": 20,
                "clients_per_round": 10,
                "bias": None,
                "rounds": 500,
                "batch_size": 8,
                "loss": "mean",
                "global_lr": 3.0,
                "root_sampling": "random",
                "initialisation": "torch",
            },
            "Shakespeare",
        ),
    },
)
