"""A Task: what is poisoned, what is refused."""

import numpy as np
import pytest
import torch
from conftest import small_task
from torch import nn

from fltrust.attacks import TRIGGERS, LabelFlip, Scaling, Trigger
from fltrust.datasets import DATASETS
from fltrust.errors import InputError
from fltrust.tasks.task import Task


def test_poisoned_examples_replace_the_malicious_clients_own_and_nobody_elses() -> None:
    clean = small_task(num_clients=4)
    task = small_task(num_clients=4, malicious=2, attack=LabelFlip())
    for i in range(4):
        before, after = clean.clients[i], task.clients[i]
        assert torch.equal(clean.images[before], task.inputs[after])
        expected = 2 - clean.labels[before] if i < 2 else clean.labels[before]
        assert torch.equal(task.targets[after], expected)
    assert torch.equal(task.targets[task.root], clean.labels[clean.root])
    assert torch.equal(task.targets[task.clean], clean.labels[clean.clean])


def test_a_backdoor_doubles_the_malicious_clients_examples() -> None:
    trigger = Trigger(where=((0,), (3,)), value=9.0, target=1)
    task = small_task(num_clients=3, malicious=1, attack=Scaling(trigger=trigger))
    own = task.clients[0]
    assert len(own) == 20
    copies = task.inputs[own[10:]]
    assert (copies[:, [0, 3]] == 9).all()
    assert (task.targets[own[10:]] == 1).all()
    assert torch.equal(copies[:, 1], task.inputs[own[:10]][:, 1])
    assert task.sizes.tolist() == [20, 11, 12]


def test_pixels_become_fractions_and_features_stay() -> None:
    def task(images: np.ndarray) -> Task:
        labels = np.array([0, 1, 0, 1])
        parts = {"clients": [np.array([0, 1])], "root": np.array([2])}
        return Task.from_arrays(images, labels, images, labels, model=nn.Linear(3, 2), **parts)

    pixels = np.array([[0, 51, 255]] * 4, np.uint8)
    assert task(pixels).images[0].tolist() == pytest.approx([0, 0.2, 1])
    assert task(pixels.astype(np.float64)).images[0].tolist() == [0, 51, 255]


GOOD = {"clients": [np.array([0, 1]), np.array([2])], "root": np.array([3])}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"malicious": 3}, "3 malicious clients of 2"),
        ({"root": np.array([2])}, "held twice"),
        ({"clients": [np.array([0, 4])]}, "outside 0..3"),
        ({"root": np.array([], int)}, "none may be empty"),
        ({"labels": np.zeros(3, int)}, "4 examples need 4 whole numbers"),
        ({"labels": np.zeros(4)}, "whole numbers as labels, not float64"),
        ({"labels": np.array([0, 1, 2, 0])}, "the model must give 3 numbers"),
        ({"model": nn.Linear(3, 2)}, "cannot take examples of shape .2,."),
        ({"model": nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))}, "dropout"),
        ({"attack": Scaling(Trigger(((0,),), 1.0, 2))}, "target 2 is none of the 2 classes"),
        ({"clients": [np.array([], int)]}, "none may be empty"),
        ({"labels": np.array([0, 1, -1, 0])}, "negative"),
        ({"images": np.full((4, 2), np.nan)}, "NaN"),
    ],
)
def test_bad_arrays_are_refused(changed: dict[str, object], message: str) -> None:
    arrays = {
        "images": np.zeros((4, 2)),
        "labels": np.array([0, 1, 1, 0]),
        "test_images": np.zeros((2, 2)),
        "test_labels": np.zeros(2, int),
    }
    arguments = {**arrays, **GOOD, "model": nn.Linear(2, 2), **changed}
    with pytest.raises(InputError, match=message):
        Task.from_arrays(**arguments)  # type: ignore[arg-type]


def test_every_data_set_has_a_trigger() -> None:
    assert set(TRIGGERS) == set(DATASETS)
