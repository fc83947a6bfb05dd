"""In place of the template's task.py: a linear model that the nodes train with NumPy alone, so that they start without PyTorch."""

from functools import cache
from typing import Any

import numpy as np

from fltrust import datasets
from fltrust.randomness import stream
from fltrust.tasks.splits import partition

CLASSES = 10


@cache
def parts(nodes: int, bias: float, seed: int) -> tuple[Any, Any]:
    digits = datasets.load("mnist-5k")
    rng = stream(seed, "partition")
    return digits, partition(digits.train_labels, None, num_clients=max(nodes, 10), num_classes=10, bias=bias, root_size=100, rng=rng)


def own(config: Any, node: int) -> tuple[np.ndarray, np.ndarray]:
    digits, held = parts(config["nodes"], config["bias"], config["seed"])
    return digits.train[held.clients[node]].astype(np.float32) / 255, digits.train_labels[held.clients[node]]


def split(config: Any) -> Any:
    from types import SimpleNamespace

    import torch

    digits, held = parts(config["nodes"], config["bias"], config["seed"])
    pairs = (digits.train[held.root], digits.train_labels[held.root]), (digits.test, digits.test_labels)
    root, test = [(torch.from_numpy(images).float() / 255, torch.from_numpy(labels)) for images, labels in pairs]
    return SimpleNamespace(root=root, test=test)


def network(config: Any) -> Any:
    from fltrust.models import LogisticRegression, initialise

    return initialise(LogisticRegression((1, 28, 28), 10), stream(config["seed"], "weights"))


def train(weight: np.ndarray, bias: np.ndarray, images: np.ndarray, labels: np.ndarray, config: Any, *name: int) -> None:
    """SGD on the cross-entropy of softmax(images weight^T + bias), in place."""
    draw = stream(config["seed"], "batches", *name)
    for _ in range(config["steps"]):
        batch = draw.choice(len(labels), min(32, len(labels)), replace=False)
        features = images[batch].reshape(len(batch), -1)
        logits = features @ weight.T + bias
        slope = np.exp(logits - logits.max(1, keepdims=True))
        slope /= slope.sum(1, keepdims=True)
        slope[np.arange(len(batch)), labels[batch]] -= 1
        weight -= config["learning-rate"] * slope.T @ features / len(batch)
        bias -= config["learning-rate"] * slope.mean(0)


def error(model: Any, images: Any, labels: Any) -> float:
    return float((model(images).argmax(1) != labels).double().mean())
