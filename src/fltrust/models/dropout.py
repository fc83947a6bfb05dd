"""Dropout that can be repeated."""

import math

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Dropout whose masks follow from a seed for each example, so that a run can be repeated; without seeds it drops nothing.

    p: share of units that become 0; the others are divided by 1 - p. place: another number for each such layer of a network.
    channels: of images and sequences, drop whole channels (dimension 1), not single units.
    """

    def __init__(self, p: float, place: int, channels: bool = True) -> None:
        super().__init__()
        self.p, self.place, self.channels = p, place, channels
        self.seeds: Tensor | None = None  # (k,) int64, while clients train
        self.calls = 0  # since the seeds came: a layer may be used several times, with other masks each time

    def forward(self, hidden: Tensor) -> Tensor:
        if self.seeds is None:
            return hidden
        inner = hidden.dim() - 1
        shape = (hidden.shape[1], *[1] * (inner - 1)) if self.channels else hidden.shape[1:]
        units = torch.arange(math.prod(shape), device=hidden.device).view(shape) + (self.place << 32) + (self.calls << 48)
        self.calls += 1
        chance = _scrambled(self.seeds.view(-1, *[1] * inner) + _scrambled(units)) & 0xFFFFFF  # (k, units)
        return hidden * ((chance >= self.p * 0x1000000).to(hidden.dtype) / (1 - self.p or 1))


def _scrambled(numbers: Tensor) -> Tensor:
    """Each int64 as another that looks random: the finaliser of splitmix64. Products may wrap round."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ ((numbers >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return numbers ^ ((numbers >> 31) & 0x1FFFFFFFF)


def seed_dropout(module: nn.Module, seeds: Tensor | None) -> None:
    """Gives each dropout layer the seeds (k,) of the examples that come next; None: nothing is dropped."""
    for layer in module.modules():
        if isinstance(layer, Dropout):
            layer.seeds, layer.calls = seeds, 0


def with_seeded_dropout(module: nn.Module) -> nn.Module:
    """The module with each of PyTorch's dropout layers replaced, in place, by one that follows from seeds."""
    ours: dict[nn.Module, nn.Module] = {}
    for parent in list(module.modules()):
        for name, layer in parent._modules.items():
            if isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                if layer not in ours:  # a layer may stand in several places
                    ours[layer] = Dropout(layer.p, 1001 + len(ours), channels=not isinstance(layer, nn.Dropout))
                setattr(parent, name, ours[layer])
    return module
