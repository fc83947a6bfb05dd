"""The paper's networks, and any network seen as a function of one vector of weights.

d: number of trainable parameters; weights (d,): all of them, in the order of `module.named_parameters()`.
Buffers (batch norm's running statistics) are no weights: they are never sent, never aggregated, never part of a cosine.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from fltrust.errors import InputError
from fltrust.registry import MODELS

PAPER_CNN = 139_960  # parameters of the CNN for MNIST


def _of_images(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise InputError(f"a network for images cannot take examples of shape {tuple(shape)}: models 'logistic' and 'mlp' can")
    channels, height, width = shape
    return channels, height, width


@MODELS.register("cnn", label="CNN", reference="Cao, Fang, Liu, Gong, NDSS 2021, Table II")
class CNN(nn.Module):
    """Table II of the paper: two 3 x 3 convolutions (30, 50 channels) with pooling, a hidden layer of 100; 139,960 parameters."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = _of_images(shape)
        self.conv1 = nn.Conv2d(channels, 30, 3)
        self.conv2 = nn.Conv2d(30, 50, 3)
        pooled = [((side - 2) // 2 - 2) // 2 for side in (height, width)]
        self.seen = [4 * side + 6 for side in pooled]  # what lies beyond, at the right and lower edge, the poolings drop
        self.hidden = nn.Linear(50 * pooled[0] * pooled[1], 100)
        self.output = nn.Linear(100, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        # ReLU and max-pooling commute; pooling first leaves a quarter of the values to ReLU.
        seen = images[..., : self.seen[0], : self.seen[1]]
        hidden = functional.max_pool2d(self.conv1(seen), 2).relu()
        hidden = functional.max_pool2d(self.conv2(hidden), 2).relu()
        logits: Tensor = self.output(self.hidden(hidden.flatten(1)).relu())
        return logits


@MODELS.register("logistic", label="logistic regression")
class LogisticRegression(nn.Module):
    """One linear layer on the features: the paper's model for HAR."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(math.prod(shape), num_classes)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(features.flatten(1))
        return logits


@MODELS.register("mlp", label="MLP")
class MLP(nn.Module):
    """One hidden layer of 128 on the features, with ReLU."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), 128)
        self.output = nn.Linear(128, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(self.hidden(features.flatten(1)).relu())
        return logits


@MODELS.register("gru", label="GRU", reference="Cho et al., EMNLP 2014")
class GRU(nn.Module):
    """A recurrent network for tokens (k, T): after each token, logits (k, T, M) of the next; 8 numbers per token, 128 hidden ones.

    M is the size of the vocabulary. It is written with plain products, which torch.func.vmap can batch over clients; nn.GRU cannot.
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        if len(shape) != 1:
            raise InputError(f"a network for token sequences cannot take examples of shape {tuple(shape)}")
        self.embedding = nn.Linear(num_classes, 8, bias=False)
        self.into = nn.Linear(8, 3 * 128)  # reset gate, update gate, candidate
        self.again = nn.Linear(128, 3 * 128)
        self.output = nn.Linear(128, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.into(self.embedding.weight.T[tokens])  # (k, T, 3H)
        width = self.again.in_features
        hidden = seen.new_zeros(len(tokens), width)
        after = []
        for step in seen.unbind(1):
            before = self.again(hidden)  # (k, 3H)
            reset, update = (step + before)[:, : 2 * width].sigmoid().chunk(2, 1)
            candidate = (step[:, 2 * width :] + reset * before[:, 2 * width :]).tanh()
            hidden = torch.lerp(candidate, hidden, update)
            after.append(hidden)
        logits: Tensor = self.output(torch.stack(after, 1))
        return logits


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


# Functions with a name of their own, which `fast/shared_gradients.py` replaces by one pass over the images on a GPU.


def norm_relu(images: Tensor, norm: nn.BatchNorm2d, beside: Tensor | None = None) -> Tensor:
    """relu(norm(images) + beside)."""
    if has_torch_function_unary(images):
        return handle_torch_function(norm_relu, (images,), images, norm, beside)
    normed = norm(images)
    result: Tensor = (normed if beside is None else normed + beside).relu()
    return result


def shortcut(images: Tensor, stride: int, new_channels: int) -> Tensor:
    """He et al.'s option A, a shortcut without parameters: every `stride`-th pixel, and zeros for the new channels."""
    if has_torch_function_unary(images):
        return handle_torch_function(shortcut, (images,), images, stride, new_channels)
    return functional.pad(images[:, :, ::stride, ::stride], (0, 0, 0, 0, 0, new_channels))


class ResidualBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride, self.new_channels = stride, channels - channels_in

    def beside(self, images: Tensor) -> Tensor:
        return shortcut(images, self.stride, self.new_channels) if self.new_channels else images

    def forward(self, images: Tensor) -> Tensor:
        hidden = norm_relu(self.conv1(images), self.norm1)
        return norm_relu(self.conv2(hidden), self.norm2, self.beside(images))


class ProjectedBlock(ResidualBlock):
    """He et al.'s option B: where channels are added, the shortcut is a 1 x 1 convolution with batch norm."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__(channels_in, channels, stride)
        if self.new_channels:
            self.conv3 = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.norm3 = nn.BatchNorm2d(channels)

    def beside(self, images: Tensor) -> Tensor:
        projected: Tensor = self.norm3(self.conv3(images)) if self.new_channels else images
        return projected


@MODELS.register("resnet20", label="ResNet-20", reference="He et al., CVPR 2016")
class ResNet20(nn.Module):
    """He et al. 2016, section 4.2: three stages of three blocks with 16, 32 and 64 channels."""

    block: type[ResidualBlock] = ResidualBlock
    widths: tuple[int, ...] = (16, 32, 64)  # channels of the stages; every stage but the first halves the image
    depth = 3  # blocks of a stage

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, _, _ = _of_images(shape)
        self.conv = nn.Conv2d(channels, self.widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(self.widths[0])
        before = (self.widths[0], *self.widths)
        self.blocks = nn.Sequential(
            *(
                self.block(before[stage] if block == 0 else width, width, 2 if stage and block == 0 else 1)
                for stage, width in enumerate(self.widths)
                for block in range(self.depth)
            )
        )
        self.output = nn.Linear(self.widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.blocks(norm_relu(self.conv(images), self.norm))
        logits: Tensor = self.output(hidden.mean((2, 3)))
        return logits


# Networks of the checks against other authors' numbers: see docs/checks.md. Pixels come in as 0..1.


def _normalised(images: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Each channel less its mean, divided by its deviation. Plain numbers: a tensor would have to be on the right device."""
    parts = [(images[:, i : i + 1] - mean[i]) / deviation[i] for i in range(len(mean))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


_CIFAR_10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class _Coloured(ResNet20):
    """A residual network that normalises CIFAR-10's pixels itself, so that the border of a crop is black and not the mean."""

    block = ProjectedBlock

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(_normalised(images, *_CIFAR_10))


@MODELS.register("resnet20-projection", label="ResNet-20 with projections", reference="Karimireddy, He, Jaggi, ICML 2021")
class ResNet20Projection(_Coloured):
    """ResNet-20 whose shortcuts are 1 x 1 convolutions where channels are added; 272,474 parameters."""


@MODELS.register("resnet10", label="ResNet-10", reference="Li et al., Blades, IoTDI 2024")
class ResNet10(_Coloured):
    """Four stages of one block with 64, 128, 256 and 512 channels, and projections; 4,903,242 parameters."""

    widths = (64, 128, 256, 512)
    depth = 1


@MODELS.register("cnn-bucketing", label="CNN of the bucketing paper", reference="Karimireddy, He, Jaggi, ICLR 2022")
class BucketingCNN(nn.Module):
    """Two 3 x 3 convolutions (32, 64 channels; ReLU after the first alone), one pooling, a hidden layer of 128; 1,199,882 parameters."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = _of_images(shape)
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = Dropout(0.25, 1), Dropout(0.5, 2)
        self.hidden = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.output = nn.Linear(128, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.conv2(self.conv1((images - 0.1307) / 0.3081).relu())
        hidden = self.dropout1(functional.max_pool2d(hidden, 2)).flatten(1)
        logits: Tensor = self.output(self.dropout2(self.hidden(hidden).relu()))
        return logits


@MODELS.register("cnn-blades", label="Blades' CNN", reference="Li et al., Blades, IoTDI 2024")
class BladesCNN(nn.Module):
    """Two 3 x 3 convolutions (32, 64 channels) with pooling, then three linear layers without ReLU between; 1,475,146 parameters."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = _of_images(shape)
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.hidden1 = nn.Linear(64 * ((height // 2 - 2) // 2) * ((width // 2 - 2) // 2), 600)
        self.dropout = Dropout(0.25, 1)
        self.hidden2 = nn.Linear(600, 120)
        self.output = nn.Linear(120, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.max_pool2d(self.conv1((images - 0.5) / 0.5), 2).relu()
        hidden = functional.max_pool2d(self.conv2(hidden), 2).relu()
        logits: Tensor = self.output(self.hidden2(self.dropout(self.hidden1(hidden.flatten(1)))))
        return logits


@MODELS.register("alexnet", label="AlexNet for CIFAR-10", reference="Shejwalkar, Houmansadr, NDSS 2021")
class AlexNet(nn.Module):
    """Five convolutions (64, 192, 384, 256, 256 channels), three poolings and one linear layer; 2,472,266 parameters."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = _of_images(shape)
        if channels != 3 or min(height, width) < 32:
            raise InputError(f"AlexNet takes images of 3 channels and at least 32 x 32 pixels, not {tuple(shape)}")
        self.conv1 = nn.Conv2d(channels, 64, 11, 4, padding=5)
        self.conv2 = nn.Conv2d(64, 192, 5, padding=2)
        self.conv3 = nn.Conv2d(192, 384, 3, padding=1)
        self.conv4 = nn.Conv2d(384, 256, 3, padding=1)
        self.conv5 = nn.Conv2d(256, 256, 3, padding=1)
        pooled = [((side - 1) // 4 + 1) // 8 for side in (height, width)]
        self.output = nn.Linear(256 * pooled[0] * pooled[1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.max_pool2d(self.conv1(_normalised(images, *_CIFAR_10)), 2).relu()
        hidden = functional.max_pool2d(self.conv2(hidden), 2).relu()
        hidden = self.conv4(self.conv3(hidden).relu()).relu()
        logits: Tensor = self.output(functional.max_pool2d(self.conv5(hidden), 2).relu().flatten(1))
        return logits


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


class Model:
    """A module as a function of (weights, images); the module itself is only its shape and its first weights."""

    def __init__(self, module: nn.Module) -> None:
        self.module = copy.deepcopy(module)
        self.names = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        self.shapes = [parameter.shape for parameter in trainable(self.module)]
        if not self.names:
            raise InputError("the model has no parameters to train")
        if any(isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0 for layer in self.module.modules()):
            raise InputError(
                "dropout draws from outside of a run's own streams, so no run could be repeated: use fltrust.models.Dropout, or set p to 0"
            )
        self.initial_weights = flatten([parameter.detach() for parameter in trainable(self.module)]).float()  # (d,)
        self.d = self.initial_weights.numel()
        self.shares_pass: bool | None = None  # on a GPU; see training/local.py
        self.has_dropout = any(isinstance(layer, Dropout) for layer in self.module.modules())
        self.seeds: Tensor | None = None  # (n, R, b) of dropout, while clients train
        self.has_batch_norm = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in self.module.modules())
        self._tracking = _with_batch_norm(copy.deepcopy(self.module), tracking=True)  # for measuring
        self.module = _with_batch_norm(self.module, tracking=False)  # for training: each batch's own statistics

    @contextmanager
    def dropping(self, seeds: Tensor | None) -> Iterator[None]:
        """While clients train: the seeds of dropout (n, R, b) for their examples."""
        self.seeds = seeds
        try:
            yield
        finally:
            self.seeds = None

    def split(self, weights: Tensor) -> list[Tensor]:
        """The parameters as views of the vector."""
        sizes = [shape.numel() for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(torch.split(weights, sizes), self.shapes, strict=True)]

    def outputs(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """(k, ...) with the statistics of these inputs in batch norm, as in training."""
        outputs: Tensor = functional_call(self.module, dict(zip(self.names, self.split(weights), strict=True)), (inputs,))
        return outputs

    @torch.no_grad()
    def frozen(self, weights: Tensor, root_images: Tensor) -> Callable[[Tensor], Tensor]:
        """images -> logits as the server uses them, batch norm's statistics estimated on the root set, the only data that it trusts."""
        module = self._tracking.to(weights.device)
        for parameter, part in zip(trainable(module), self.split(weights), strict=True):
            parameter.copy_(part)
        if list(module.buffers()):
            module.train()(root_images)
        module.eval()
        if weights.is_cuda or root_images.dim() != 4:
            return module
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return lambda images: module(images.contiguous(memory_format=torch.channels_last))


def seed_dropout(module: nn.Module, seeds: Tensor | None) -> None:
    """Gives each dropout layer the seeds (k,) of the examples that come next; None: nothing is dropped."""
    for layer in module.modules():
        if isinstance(layer, Dropout):
            layer.seeds = seeds


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def flatten(parts: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _with_batch_norm(module: nn.Module, *, tracking: bool) -> nn.Module:
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = 1.0  # the last batch seen is the statistics
            if not tracking:
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return module
