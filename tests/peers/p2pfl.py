"""P2PFL's Krum."""

import numpy as np
from p2pfl.learning.aggregators.krum import Krum

from .comparison import Comparison


class Model:
    """The part of P2PFL's model that its Krum looks at."""

    def __init__(self, row: np.ndarray) -> None:
        self.row = row

    def get_parameters(self) -> list[np.ndarray]:
        return [self.row]

    def get_contributors(self) -> list[str]:
        return []

    def get_num_samples(self) -> int:
        return 1

    def build_copy(self, params: list[np.ndarray], **_: object) -> "Model":
        return Model(params[0])


def chosen(rows: np.ndarray) -> np.ndarray:
    rule = Krum()
    rule.set_addr("server")
    return np.asarray(rule.aggregate([Model(row) for row in rows]).row)


COMPARISONS: list[Comparison] = [
    Comparison(
        "Krum()",
        lambda rows, f: chosen(rows),
        "krum",
        "distances, not squared, to all others; it is not told f; a layer's distances are added, not squared",
    ),
]
ATTACKS: list[Comparison] = []
