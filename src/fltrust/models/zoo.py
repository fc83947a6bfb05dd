"""Networks of other authors, for the checks against their numbers (docs/checks.md). Pixels come in as 0..1."""

from torch import Tensor, nn
from torch.nn import functional

from fltrust.errors import InputError
from fltrust.models.dropout import Dropout
from fltrust.models.images import CIFAR_10, normalised, of_images
from fltrust.registry import MODELS


@MODELS.register("cnn-bucketing", label="CNN of the bucketing paper", reference="Karimireddy, He, Jaggi, ICLR 2022")
class BucketingCNN(nn.Module):
    """Two 3 x 3 convolutions (32, 64 channels; ReLU after the first alone), one pooling, a hidden layer of 128; 1,199,882 parameters."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = of_images(shape)
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
        channels, height, width = of_images(shape)
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
        channels, height, width = of_images(shape)
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
        hidden = functional.max_pool2d(self.conv1(normalised(images, *CIFAR_10)), 2).relu()
        hidden = functional.max_pool2d(self.conv2(hidden), 2).relu()
        hidden = self.conv4(self.conv3(hidden).relu()).relu()
        logits: Tensor = self.output(functional.max_pool2d(self.conv5(hidden), 2).relu().flatten(1))
        return logits
