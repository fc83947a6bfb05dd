"""The first weights of a network."""

import math

import numpy as np
import torch
from torch import nn


def initialise(module: nn.Module, rng: np.random.Generator, scheme: str = "released") -> nn.Module:
    """Draws the first weights of a network.

    "released": Xavier uniform of magnitude 2.24 without bias (released code); He normal where batch norm follows.
    "torch": PyTorch's own, uniform in +-1 / sqrt(fan_in), the bias too.
    """
    residual = any(isinstance(layer, nn.BatchNorm2d) for layer in module.modules())
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fan_out, fan_in = (size * math.prod(layer.weight.shape[2:]) for size in layer.weight.shape[:2])
            if scheme == "torch":
                drawn = rng.uniform(-1, 1, layer.weight.shape) / math.sqrt(fan_in)
            elif residual and isinstance(layer, nn.Conv2d):
                drawn = rng.standard_normal(layer.weight.shape) * math.sqrt(2 / fan_out)
            else:
                bound = math.sqrt(2.24 / ((fan_in + fan_out) / 2))
                drawn = rng.uniform(-bound, bound, layer.weight.shape)
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(drawn))
                if layer.bias is not None and scheme == "torch":
                    layer.bias.copy_(torch.from_numpy(rng.uniform(-1, 1, layer.bias.shape) / math.sqrt(fan_in)))
                elif layer.bias is not None:
                    layer.bias.zero_()
    return module
