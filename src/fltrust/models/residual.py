"""Residual networks."""

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from fltrust.models.images import CIFAR_10, normalised, of_images
from fltrust.registry import MODELS

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
        channels, _, _ = of_images(shape)
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


class _Coloured(ResNet20):
    """A residual network that normalises CIFAR-10's pixels itself, so that the border of a crop is black and not the mean."""

    block = ProjectedBlock

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(normalised(images, *CIFAR_10))


@MODELS.register("resnet20-projection", label="ResNet-20 with projections", reference="Karimireddy, He, Jaggi, ICML 2021")
class ResNet20Projection(_Coloured):
    """ResNet-20 whose shortcuts are 1 x 1 convolutions where channels are added; 272,474 parameters."""


@MODELS.register("resnet10", label="ResNet-10", reference="Li et al., Blades, IoTDI 2024")
class ResNet10(_Coloured):
    """Four stages of one block with 64, 128, 256 and 512 channels, and projections; 4,903,242 parameters."""

    widths = (64, 128, 256, 512)
    depth = 1
