"""The paper's CNN."""

from torch import Tensor, nn
from torch.nn import functional

from fltrust.models.images import of_images
from fltrust.registry import MODELS

PAPER_CNN = 139_960  # parameters of the CNN for MNIST


@MODELS.register("cnn", label="CNN", reference="Cao, Fang, Liu, Gong, NDSS 2021, Table II")
class CNN(nn.Module):
    """Table II of the paper: two 3 x 3 convolutions (30, 50 channels) with pooling, a hidden layer of 100; 139,960 parameters."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = of_images(shape)
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
