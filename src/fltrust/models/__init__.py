"""The networks, and any network seen as a function of one vector of weights (`Model`). One file per kind."""

from fltrust.models.cnn import CNN, PAPER_CNN
from fltrust.models.dense import MLP, LogisticRegression
from fltrust.models.dropout import Dropout, seed_dropout
from fltrust.models.first_weights import initialise
from fltrust.models.model import Model, flatten, trainable
from fltrust.models.recurrent import GRU
from fltrust.models.residual import ProjectedBlock, ResidualBlock, ResNet10, ResNet20, ResNet20Projection, norm_relu, shortcut
from fltrust.models.zoo import AlexNet, BladesCNN, BucketingCNN

__all__ = [
    "CNN",
    "GRU",
    "MLP",
    "PAPER_CNN",
    "AlexNet",
    "BladesCNN",
    "BucketingCNN",
    "Dropout",
    "LogisticRegression",
    "Model",
    "ProjectedBlock",
    "ResNet10",
    "ResNet20",
    "ResNet20Projection",
    "ResidualBlock",
    "flatten",
    "initialise",
    "norm_relu",
    "seed_dropout",
    "shortcut",
    "trainable",
]
