"""How much the updates of a round resemble each other, from a sketch of each: rules that take updates as they come keep no rows.

n updates of d parameters, sketched with WIDTH numbers each.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# A prime: a pattern that repeats along an array, such as one column of a layer, does not gather in one number.
WIDTH = 509
_BLOCK = 1 << 22  # values of (n, d) that are copied at a time
MOST_PEERS = 1000  # the others that the median cosine is taken over


class Sketcher:
    """Coordinate i, with a random sign, is added to number i mod WIDTH.

    The cosine c of two sketches is that of the updates, with a standard error of about (1 - c^2) / sqrt(WIDTH): at most 0.045, and next
    to nothing for updates that are nearly the same. Whoever does not know the signs cannot aim at it.
    """

    def __init__(self, d: int, generator: torch.Generator) -> None:
        self.signs = torch.randint(0, 2, (d,), generator=generator, dtype=torch.int8).mul_(2).sub_(1)

    def __call__(self, updates: Tensor) -> Tensor:
        """(n, WIDTH) in float64, of updates (n, d)."""
        n, d = updates.shape
        sketch = updates.new_zeros(n, WIDTH, dtype=torch.float64)
        step = max(1, _BLOCK // (n * WIDTH)) * WIDTH
        for start in range(0, d, step):
            part = updates[:, start : start + step] * self.signs[start : start + step].to(updates.device)
            whole = part.shape[1] - part.shape[1] % WIDTH
            sketch += part[:, :whole].view(n, -1, WIDTH).sum(1, dtype=torch.float64)
            sketch[:, : part.shape[1] - whole] += part[:, whole:]
        return sketch


class Likeness(NamedTuple):
    """Of each update (n,); NaN and -1 where there is no other to compare it with."""

    peers: Tensor  # the median of its cosines with the others
    closest: Tensor  # the largest of them
    closest_to: Tensor  # and whose that is


def likeness(sketches: Tensor) -> Likeness:
    """How much each of (n, WIDTH) resembles the others. A row that is zero or not finite resembles nobody."""
    n = len(sketches)
    norm = torch.linalg.vector_norm(sketches, dim=1)
    usable = torch.isfinite(norm) & (norm > 0)
    nobody = sketches.new_full((n,), torch.nan)
    result = Likeness(nobody, nobody.clone(), torch.full((n,), -1, device=sketches.device))
    of = usable.nonzero()[:, 0]  # (k,)
    if len(of) < 2:
        return result
    unit = sketches[of] / norm[of, None]
    some = torch.arange(0, len(of), -(-len(of) // MOST_PEERS), device=of.device)
    for first in range(0, len(of), 512):
        rows = torch.arange(first, min(first + 512, len(of)), device=of.device)
        cosines = (unit[rows] @ unit.T).clamp_(-1, 1)  # (512, k)
        cosines[rows - first, rows] = torch.nan
        result.peers[of[rows]] = torch.nanmedian(cosines[:, some], 1).values
        largest = cosines.nan_to_num_(nan=-2.0).max(1)
        result.closest[of[rows]], result.closest_to[of[rows]] = largest.values, of[largest.indices]
    return result
