"""Dropout that can be repeated."""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Dropout whose masks follow from a seed for each example, so that a run can be repeated; without seeds it drops nothing.

    p: share of units that become 0; the others are divided by 1 - p. place: another number for each such layer of a network.
    Of images it drops whole channels.
    """

    def __init__(self, p: float, place: int) -> None:
        super().__init__()
        self.p, self.place = p, place
        self.seeds: Tensor | None = None  # (k,) int64, while clients train

    def forward(self, hidden: Tensor) -> Tensor:
        if self.seeds is None:
            return hidden
        units = torch.arange(hidden.shape[1], device=hidden.device) + (self.place << 32)
        chance = _scrambled(self.seeds[:, None] + _scrambled(units)) & 0xFFFFFF  # (k, units)
        kept = (chance >= self.p * 0x1000000).to(hidden.dtype) / (1 - self.p)
        return hidden * kept.view(*kept.shape, *[1] * (hidden.dim() - 2))


def _scrambled(numbers: Tensor) -> Tensor:
    """Each int64 as another that looks random: the finaliser of splitmix64. Products may wrap round."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ ((numbers >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return numbers ^ ((numbers >> 31) & 0x1FFFFFFFF)


def seed_dropout(module: nn.Module, seeds: Tensor | None) -> None:
    """Gives each dropout layer the seeds (k,) of the examples that come next; None: nothing is dropped."""
    for layer in module.modules():
        if isinstance(layer, Dropout):
            layer.seeds = seeds
