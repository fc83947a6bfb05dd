"""What is learnt: who holds which of the 5,000 digits, the network, and how it is trained. Put your own data and model here."""

from typing import NamedTuple

import torch
from flwr.app import UserConfig
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fltrust import datasets
from fltrust.models import CNN, initialise
from fltrust.randomness import stream
from fltrust.tasks.splits import partition

CLASSES = 10

Examples = tuple[Tensor, Tensor]  # images (k, 1, 28, 28), labels (k,)


class Split(NamedTuple):
    nodes: list[Examples]
    root: Examples  # the server's own: small, clean, and in nobody else's hands
    test: Examples


def split(config: UserConfig) -> Split:
    digits = datasets.load("mnist-5k")
    images, labels = torch.from_numpy(digits.train).float() / 255, torch.from_numpy(digits.train_labels)
    held = partition(
        digits.train_labels,
        None,
        num_clients=max(int(config["nodes"]), CLASSES),  # fewer nodes hold their parts of ten
        num_classes=CLASSES,
        bias=float(config["bias"]),
        root_size=100,
        rng=stream(int(config["seed"]), "partition"),
    )
    *nodes, root = [(images[part], labels[part]) for part in (*held.clients, held.root)]
    return Split(nodes, root, (torch.from_numpy(digits.test).float() / 255, torch.from_numpy(digits.test_labels)))


def network(config: UserConfig) -> nn.Module:
    return initialise(CNN((1, 28, 28), CLASSES), stream(int(config["seed"]), "weights"))


def train(model: nn.Module, images: Tensor, labels: Tensor, config: UserConfig, *name: int) -> None:
    """Some steps of SGD on batches of 32; `name` decides which batches, so a repeated round gives the same result."""
    torch.set_num_threads(1)  # several nodes share this machine
    draw = stream(int(config["seed"]), "batches", *name)
    weights = list(model.parameters())
    for _ in range(int(config["steps"])):
        batch = torch.from_numpy(draw.choice(len(labels), min(32, len(labels)), replace=False))
        gradients = torch.autograd.grad(cross_entropy(model(images[batch]), labels[batch]), weights)
        with torch.no_grad():  # by hand: torch.optim loads PyTorch's compiler, which costs every node a second in every round
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= float(config["learning-rate"]) * gradient


@torch.no_grad()
def error(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return (model(images).argmax(1) != labels).double().mean().item()
