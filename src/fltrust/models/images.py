"""What networks for images share: their shape, and colours brought to mean 0 and deviation 1."""

import torch
from torch import Tensor

from fltrust.errors import InputError


def of_images(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The channels, height and width of examples that must be images."""
    if len(shape) != 3:
        raise InputError(f"a network for images cannot take examples of shape {tuple(shape)}: models 'logistic' and 'mlp' can")
    channels, height, width = shape
    return channels, height, width


def normalised(images: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Each channel less its mean, divided by its deviation. Plain numbers: a tensor would have to be on the right device."""
    parts = [(images[:, i : i + 1] - mean[i]) / deviation[i] for i in range(len(mean))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


CIFAR_10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
