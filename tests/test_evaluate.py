"""What a model is worth, on examples whose answers are known by construction."""

import numpy as np
import pytest
import torch
from torch import nn

from fltrust.attacks import LabelFlip, Trigger
from fltrust.metrics import measure
from fltrust.tasks.task import Task


def reader() -> nn.Linear:
    """A model that answers the place of the largest of its three inputs."""
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
        model.bias.zero_()
    return model


def task(malicious: int = 0) -> Task:
    images = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2, 0, 1]]
    labels = np.array([0, 1, 2, 1, 1, 0, 0, 1])  # of the clients' six examples, the two last are wrong
    test = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 2, 2, 2, 2, 2, 2]]
    test_labels = np.array([0, 1, 1, 1, 2, 2, 2, 2, 2, 0])  # two of ten are wrong
    clients = [np.array([0, 1, 2]), np.array([3, 4, 5])]
    attack = LabelFlip() if malicious else None
    return Task.from_arrays(
        images, labels, test, test_labels, clients=clients, root=np.array([6, 7]), model=reader(), malicious=malicious, attack=attack
    )


@pytest.mark.parametrize("malicious", [0, 1, 2])
def test_errors_are_counted_on_clean_examples(malicious: int) -> None:
    measured = measure(task(malicious), task(malicious).model.initial_weights)
    assert measured.train_error == pytest.approx(2 / 6)
    assert measured.test_error == pytest.approx(2 / 10)
    assert measured.success is None


def test_success_leaves_out_examples_of_the_target_class() -> None:
    one = task()
    # A trigger too weak to change an answer: of the five examples that are not of class 2, one is taken for it anyway.
    weak = Trigger(((1,),), 0.5, 2)
    assert measure(one, one.model.initial_weights, weak).success == pytest.approx(1 / 5)
    strong = Trigger(((2,),), 5.0, 2)
    assert measure(one, one.model.initial_weights, strong).success == 1
    assert measure(one, one.model.initial_weights, Trigger(((2,),), -5.0, 2)).success == 0


def test_batch_norm_takes_its_statistics_from_the_root_set() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(40, 2, 3, 3)).astype(np.float32)
    images[:20] += 10  # the root set is elsewhere
    network = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 2))
    with torch.no_grad():
        network[2].weight.copy_(torch.stack([torch.ones(18), -torch.ones(18)]))
        network[2].bias.zero_()
    labels = np.ones(40, int)
    made = Task.from_arrays(images, labels, images[20:], labels[20:], clients=[np.arange(20, 40)], root=np.arange(20), model=network)
    # By the root set's mean of 10 all test images are dark, and dark ones get answer 1; by their own mean half of them would not.
    assert measure(made, made.model.initial_weights).test_error == 0
