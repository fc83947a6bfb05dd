"""A Task: arrays of any kind, checked; the malicious clients' examples poisoned; a model and an objective that fit."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_task
from torch import Tensor, nn

from fltrust.attacks import Attack, LabelFlip, MaliciousClient, Scaling, Trigger
from fltrust.errors import InputError
from fltrust.objectives import BinaryCrossEntropy, CrossEntropy, Objective
from fltrust.tasks.task import Task


def test_poisoned_examples_replace_the_malicious_clients_own_and_nobody_elses() -> None:
    clean = small_task(num_clients=4)
    task = small_task(num_clients=4, malicious=2, attack=LabelFlip())
    for i in range(4):
        before, after = clean.clients[i], task.clients[i]
        assert torch.equal(clean.inputs[before], task.inputs[after])
        expected = 2 - clean.targets[before] if i < 2 else clean.targets[before]
        assert torch.equal(task.targets[after], expected)
    assert torch.equal(task.targets[task.root], clean.targets[clean.root])
    assert torch.equal(task.targets[task.clean], clean.targets[clean.clean])


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
        parts: dict[str, Any] = {"clients": [np.array([0, 1])], "root": np.array([2])}
        return Task.from_arrays(images, labels, images, labels, model=nn.Linear(3, 2), **parts)

    pixels = np.array([[0, 51, 255]] * 4, np.uint8)
    assert task(pixels).inputs[0].tolist() == pytest.approx([0, 0.2, 1])
    assert task(pixels.astype(np.float64)).inputs[0].tolist() == [0, 51, 255]


GOOD = {"clients": [np.array([0, 1]), np.array([2])], "root": np.array([3])}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"malicious": 3}, "3 malicious clients of 2"),
        ({"root": np.array([2])}, "held twice"),
        ({"clients": [np.array([0, 4])]}, "outside 0..3"),
        ({"root": np.array([], int)}, "none may be empty"),
        ({"targets": np.zeros(3, int)}, "4 examples need 4 whole numbers"),
        ({"targets": np.zeros(4)}, "whole numbers .* as targets, not float64"),
        ({"targets": np.array([0, 1, 2, 0])}, "the model must give 3 numbers"),
        ({"model": nn.Linear(3, 2)}, "cannot take examples of shape .2,."),
        ({"model": nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.1))}, "AlphaDropout"),
        ({"attack": Scaling(Trigger(((0,),), 1.0, 2))}, "target 2 is none of the 2 classes"),
        ({"clients": [np.array([], int)]}, "none may be empty"),
        ({"targets": np.array([0, 1, -1, 0])}, "negative"),
        ({"inputs": np.full((4, 2), np.nan)}, "NaN"),
    ],
)
def test_bad_arrays_are_refused(changed: dict[str, object], message: str) -> None:
    arrays = {
        "inputs": np.zeros((4, 2)),
        "targets": np.array([0, 1, 1, 0]),
        "test_inputs": np.zeros((2, 2)),
        "test_targets": np.zeros(2, int),
    }
    arguments = {**arrays, **GOOD, "model": nn.Linear(2, 2), **changed}
    with pytest.raises(InputError, match=message):
        Task.from_arrays(**arguments)  # type: ignore[arg-type]


RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 7, (8, 5))
LABELS = RNG.integers(0, 2, (8, 3))
FEATURES = RNG.normal(size=(8, 4))
HELD: dict[str, Any] = {"clients": [np.array([0, 1, 2]), np.array([3, 4])], "root": np.array([5])}


class SquaredError(Objective):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().flatten(1).mean(1)

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(outputs, targets).clamp(max=1)


def make(inputs: np.ndarray, targets: np.ndarray, model: nn.Module, objective: Objective | None = None, **more: object) -> Task:
    return Task.from_arrays(inputs, targets, inputs[:2], targets[:2], model=model, objective=objective or CrossEntropy(), **HELD, **more)  # type: ignore[arg-type]


def test_tokens_stay_whole_numbers() -> None:
    for dtype in (np.int64, np.int32, np.uint16, ">i4"):
        task = make(TOKENS.astype(dtype), TOKENS, nn.Embedding(7, 7))
        assert task.inputs.dtype == task.targets.dtype == torch.int64
        assert task.inputs.tolist() == TOKENS.tolist()
    assert task.num_classes == 7


def test_features_of_any_floating_type_become_float32() -> None:
    for dtype in (np.float16, np.float32, np.float64, ">f8", bool):
        task = make(FEATURES.astype(dtype), LABELS[:, 0], nn.Linear(4, 2))
        assert task.inputs.dtype == torch.float32
        assert task.inputs.tolist() == FEATURES.astype(dtype).astype(np.float32).tolist()


def test_the_callers_arrays_are_not_shared() -> None:
    features = FEATURES.astype(np.float32)
    features.flags.writeable = False  # as arrays read from bytes are
    task = make(features, LABELS[:, 0], nn.Linear(4, 2))
    task.inputs.zero_()
    assert features.any()


@pytest.mark.parametrize(
    ("targets", "model"),
    [
        (LABELS, nn.Linear(4, 3)),
        (LABELS[:, 0], nn.Linear(4, 1)),
        (LABELS[:, 0].astype(bool), nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))),
    ],
    ids=["labels", "one logit", "one logit, flat"],
)
def test_yes_or_no(targets: np.ndarray, model: nn.Module) -> None:
    task = make(FEATURES, targets, model, BinaryCrossEntropy(), attack=LabelFlip(), malicious=1)
    assert task.num_classes == 2
    assert task.targets[task.clients[0]].tolist() == (1 - targets[:3].astype(int)).tolist()
    assert task.targets[task.clients[1]].tolist() == targets[3:5].astype(int).tolist()


def test_the_tokens_of_malicious_clients_are_flipped() -> None:
    task = make(TOKENS, TOKENS, nn.Embedding(9, 9), num_classes=9, attack=LabelFlip(), malicious=1)
    assert task.targets[task.clients[0]].tolist() == (8 - TOKENS[:3]).tolist()
    assert task.inputs[task.clients[0]].tolist() == TOKENS[:3].tolist()


def test_numbers_as_targets() -> None:
    task = make(FEATURES, FEATURES[:, :2], nn.Linear(4, 2), SquaredError())
    assert (task.num_classes, task.targets.dtype) == (0, torch.float32)


def test_a_task_in_one_line() -> None:
    task = make(TOKENS, TOKENS, nn.Embedding(9, 9))
    assert repr(task) == (
        "Task(6 + 2 examples of shape (5,), int64; 7 classes; 2 clients, 0 malicious; root set of 1; Embedding with 81 weights; cpu)"
    )


class Wordy(Attack):
    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        return images.double(), labels


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        raise KeyError("two\nlines")


class OneNumber(CrossEntropy):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(outputs, targets).mean()


BACKDOOR = Scaling(Trigger(((0,),), 1.0, 1))


@pytest.mark.parametrize(
    ("inputs", "targets", "model", "more", "message"),
    [
        (TOKENS, TOKENS, nn.Embedding(6, 7), {}, r"cannot take examples of shape \(5,\), int64: index out of range"),
        (TOKENS, TOKENS, nn.Linear(5, 7), {}, r"cannot take examples of shape \(5,\), int64"),
        (TOKENS, TOKENS, nn.Sequential(nn.Embedding(7, 7), nn.Flatten()), {}, r"outputs of shape \(5, 7\) for an example, not \(35,\)"),
        (TOKENS, TOKENS, nn.Embedding(7, 6), {}, r"outputs of shape \(5, 7\) for an example, not \(5, 6\)"),
        (-TOKENS, TOKENS, nn.Embedding(7, 7), {}, "tokens from 0 on"),
        (TOKENS, TOKENS[:, 0], nn.Embedding(7, 7), {}, r"7 numbers for an example, not \(5, 7\)"),
        (TOKENS, TOKENS, nn.Embedding(7, 7), {"num_classes": 6}, "there are 6 classes, 0 to 5, but a target is 6"),
        (TOKENS, TOKENS, nn.Embedding(7, 7), {"attack": BACKDOOR}, "a backdoor has one target class per example"),
        (FEATURES, LABELS, nn.Linear(4, 2), {"objective": BinaryCrossEntropy()}, r"logits of shape \(3,\) for an example, not \(2,\)"),
        (FEATURES, LABELS + 1, nn.Linear(4, 3), {"objective": BinaryCrossEntropy()}, "there are 2 classes, 0 to 1, but a target is 2"),
        (FEATURES, FEATURES, nn.Linear(4, 4), {"objective": BinaryCrossEntropy()}, "whole numbers .* as targets, not float64"),
        (FEATURES, FEATURES, nn.Linear(4, 3), {"objective": SquaredError()}, "SquaredError cannot take outputs of shape .2, 3.: Runt"),
        (FEATURES, FEATURES, nn.Linear(4, 4), {"objective": SquaredError(), "attack": LabelFlip(), "malicious": 1}, "needs classes"),
        (FEATURES, FEATURES, nn.Linear(4, 4), {"objective": SquaredError(), "attack": BACKDOOR}, "one target class per example"),
        (FEATURES, np.full(8, np.inf), nn.Linear(4, 1), {"objective": SquaredError()}, "targets contain NaN or infinity"),
        (FEATURES, LABELS[:, 0], nn.Linear(4, 2), {"objective": OneNumber()}, r"OneNumber.loss must give one number per example, \(2,\)"),
        (FEATURES, LABELS[:, 0], nn.Flatten(0), {}, "no parameters"),
        (FEATURES, LABELS[:, 0], nn.Sequential(nn.Linear(4, 2), nn.Flatten(0)), {}, r"2 examples gave outputs of shape \(4,\)"),
        (FEATURES, LABELS[:, 0], Failing(), {}, r"cannot take examples of shape \(4,\), float32"),
        (FEATURES, LABELS[:, 0], nn.Linear(4, 2), {"attack": Wordy(), "malicious": 1}, "Wordy.poison changed the kind"),
        (FEATURES * 1e300, LABELS[:, 0], nn.Linear(4, 2), {}, "NaN or infinity"),
        (FEATURES.astype(str), LABELS[:, 0], nn.Linear(4, 2), {}, "must be numbers, not <U"),
        (FEATURES.astype(object), LABELS[:, 0], nn.Linear(4, 2), {}, "must be numbers, not object"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(
    inputs: np.ndarray, targets: np.ndarray, model: nn.Module, more: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make(inputs, targets, model, **more)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_test_examples_must_be_of_the_same_kind() -> None:
    def task(test_inputs: np.ndarray, test_targets: np.ndarray) -> Task:
        return Task.from_arrays(FEATURES, LABELS[:, 0], test_inputs, test_targets, model=nn.Linear(4, 2), **HELD)

    with pytest.raises(InputError, match=r"the shape \(4,\), test examples \(3,\)"):
        task(FEATURES[:, :3], LABELS[:, 0])
    with pytest.raises(InputError, match="training examples are float64, test examples int64"):
        task(FEATURES.astype(int) ** 2, LABELS[:, 0])
    with pytest.raises(InputError, match=r"targets have the shape \(\), test targets \(3,\)"):
        task(FEATURES, LABELS)


def test_tensors_are_arrays_too() -> None:
    inputs, targets = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 3
    task = Task.from_arrays(inputs, targets, inputs[:3], targets[:3], clients=3, root=3, model=nn.Linear(2, 3))
    assert torch.equal(task.inputs, inputs)
    assert torch.equal(task.targets, targets)


def test_a_model_that_is_no_module_is_refused() -> None:
    inputs, targets = np.zeros((12, 2), np.float32), np.arange(12) % 3
    with pytest.raises(InputError, match=r"the model must be a torch\.nn\.Module, not 'logistic'"):
        Task.from_arrays(inputs, targets, inputs, targets, clients=3, root=3, model="logistic")  # type: ignore[arg-type]
