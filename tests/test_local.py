"""Local training: both fast ways against torch.optim.SGD, client by client."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fltrust.models import CNN, GRU, MLP, BladesCNN, LogisticRegression, Model, ResNet20, initialise, seed_dropout
from fltrust.objectives import BinaryCrossEntropy, CrossEntropy, Objective
from fltrust.training import local
from fltrust.training.local import Job, _batched_clients, _threads_over_clients, local_updates

WAYS = {"threads over clients": _threads_over_clients, "batched clients": _batched_clients}


def one_class(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def by_hand(
    module: nn.Module,
    weights: Tensor,
    images: Tensor,
    labels: Tensor,
    share: Tensor,
    lr: float,
    loss: Callable[[Tensor, Tensor], Tensor] = one_class,
) -> Tensor:
    """The oracle: one client after the other, with PyTorch's own optimiser."""
    updates = []
    for i in range(len(images)):
        local = copy.deepcopy(module).to(weights.dtype).train()
        nn.utils.vector_to_parameters(weights.clone(), local.parameters())
        optimiser = torch.optim.SGD(local.parameters(), lr=lr)
        for step in range(images.shape[1]):
            optimiser.zero_grad()
            (loss(local(images[i, step]), labels[i, step]) * share[i, step]).sum().backward()
            optimiser.step()
        updates.append(nn.utils.parameters_to_vector(local.parameters()).detach() - weights)
    return torch.stack(updates)


CASES = {
    "cnn": (CNN, (1, 28, 28)),
    "cnn, other shape": (CNN, (3, 16, 20)),
    "logistic": (LogisticRegression, (17,)),
    "mlp": (MLP, (17,)),
    "resnet20": (ResNet20, (3, 8, 8)),
}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_equals_sgd_in_float64(way: str, case: str, steps: int) -> None:
    build, shape = CASES[case]
    module = initialise(build(shape, 4), np.random.default_rng(0))
    model = Model(module)
    chance = torch.Generator().manual_seed(1)
    images = torch.rand(3, steps, 5, *shape, generator=chance, dtype=torch.float64)
    labels = torch.randint(0, 4, (3, steps, 5), generator=chance)
    share = torch.rand(3, steps, 5, generator=chance, dtype=torch.float64)
    weights = model.initial_weights.double()
    expected = by_hand(module, weights, images, labels, share, 0.05)
    updates = WAYS[way](Job(model, weights, images, labels, share, 0.05, "float32", CrossEntropy()))
    assert (updates - expected).abs().max() < 1e-12 * max(1, expected.abs().max().item())
    assert expected.norm(dim=1).min() > 1e-3  # there was something to compare


@pytest.mark.parametrize("way", WAYS)
def test_dropout_is_that_of_each_examples_seed(way: str) -> None:
    module = initialise(BladesCNN((1, 8, 8), 4), np.random.default_rng(0))
    model = Model(module)
    chance = torch.Generator().manual_seed(1)
    images = torch.rand(2, 2, 5, 1, 8, 8, generator=chance, dtype=torch.float64)
    labels = torch.randint(0, 4, (2, 2, 5), generator=chance)
    share, seeds = torch.rand(2, 2, 5, generator=chance, dtype=torch.float64), torch.randint(2**62, (2, 2, 5), generator=chance)
    share[0, 1, 3] = 0  # only fills up a batch
    weights = model.initial_weights.double()
    expected = torch.zeros(2, model.d, dtype=torch.float64)
    for i in range(2):
        for step in range(2):
            local = copy.deepcopy(module).double()
            nn.utils.vector_to_parameters(weights + expected[i], local.parameters())
            seed_dropout(local, seeds[i, step])
            loss = (one_class(local(images[i, step]), labels[i, step]) * share[i, step]).sum()
            expected[i] -= 0.05 * torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(local.parameters()))])
    job = Job(model, weights, images, labels, share, 0.05, "float32", CrossEntropy(), seeds)
    torch.testing.assert_close(WAYS[way](job), expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(WAYS[way](job._replace(seeds=None)), expected)


class SquaredError(Objective):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().flatten(1).mean(1)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("kind", ["tokens", "labels", "numbers"])
@pytest.mark.parametrize("way", WAYS)
def test_other_objectives_equal_sgd_in_float64(way: str, kind: str, steps: int) -> None:
    chance = torch.Generator().manual_seed(1)
    features = torch.rand(3, steps, 5, 6, generator=chance, dtype=torch.float64)
    tokens, labels = (torch.randint(0, high, (3, steps, 5, 6), generator=chance) for high in (9, 2))
    network, inputs, targets, objective, loss = {
        "tokens": (
            GRU((6,), 9),
            tokens,
            tokens.flip(-1),
            CrossEntropy(),
            lambda out, y: cross_entropy(out.mT, y, reduction="none").mean(1),
        ),
        "labels": (MLP((6,), 6), features, labels, BinaryCrossEntropy(), lambda out, y: -(out * (2 * y - 1)).sigmoid().log().mean(1)),
        "numbers": (MLP((6,), 6), features, 2 * features, SquaredError(), lambda out, y: (out - y).square().mean(1)),
    }[kind]
    module = initialise(network, np.random.default_rng(0), "torch")
    model = Model(module)
    share = torch.rand(3, steps, 5, generator=chance, dtype=torch.float64)
    weights = model.initial_weights.double()
    expected = by_hand(module, weights, inputs, targets, share, 0.05, loss)
    updates = WAYS[way](Job(model, weights, inputs, targets, share, 0.05, "float32", objective))
    assert (updates - expected).abs().max() < 1e-12 * max(1, expected.abs().max().item())
    assert expected.norm(dim=1).min() > 1e-3


@pytest.mark.parametrize("network", [CNN((1, 28, 28), 10), ResNet20((1, 28, 28), 10)], ids=["cnn", "batch norm"])
def test_examples_that_count_nothing_change_nothing(network: nn.Module) -> None:
    model = Model(network)
    images, labels = torch.rand(1, 1, 6, 1, 28, 28), torch.randint(0, 10, (1, 1, 6))
    share = torch.tensor([1.0, 1, 1, 1, 0, 0]).view(1, 1, 6)
    whole = local_updates(model, model.initial_weights, images, labels, share, 1.0)
    part = local_updates(model, model.initial_weights, images[:, :, :4], labels[:, :, :4], share[:, :, :4], 1.0)
    torch.testing.assert_close(whole, part, rtol=1e-4, atol=1e-6)


def test_a_gpu_that_cannot_run_the_fast_kernels_trains_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfResources(Exception):  # noqa: N818  # its name is Triton's
        __module__ = "triton.runtime.errors"

    def fail(problem: Exception) -> None:
        def shared_pass(job: Job) -> Tensor:
            raise problem

        monkeypatch.setattr(local, "_one_shared_pass", shared_pass)

    model = Model(CNN((1, 28, 28), 10))
    images, labels, share = torch.rand(2, 1, 4, 1, 28, 28), torch.randint(0, 10, (2, 1, 4)), torch.ones(2, 1, 4)
    job = Job(model, model.initial_weights, images, labels, share, 1.0, "float32", CrossEntropy())
    fail(ValueError("a mistake of ours"))
    with pytest.raises(ValueError, match="of ours"):
        local._fits_shared_pass(job)
    fail(OutOfResources("out of resource: shared memory\nand much more"))
    with pytest.warns(UserWarning, match="so training is slower: out of resource: shared memory$"):
        assert not local._fits_shared_pass(job)
    fail(ValueError("not asked again"))
    assert not local._fits_shared_pass(job)


def test_a_client_does_not_depend_on_the_others() -> None:
    model = Model(CNN((1, 28, 28), 10))
    images, labels, share = torch.rand(5, 1, 4, 1, 28, 28), torch.randint(0, 10, (5, 1, 4)), torch.ones(5, 1, 4)
    together = local_updates(model, model.initial_weights, images, labels, share, 1.0)
    for i in range(5):
        alone = local_updates(model, model.initial_weights, images[i : i + 1], labels[i : i + 1], share[i : i + 1], 1.0)
        assert torch.equal(together[i], alone[0])


def test_frozen_parameters_stay_and_unused_ones_do_not_move() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.output, self.unused = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

        def forward(self, features: Tensor) -> Tensor:
            logits: Tensor = self.output(self.frozen(features).tanh())
            return logits

    model = Model(Odd())
    assert model.d == 15 + 6
    images, labels, share = torch.rand(2, 1, 6, 4), torch.randint(0, 3, (2, 1, 6)), torch.ones(2, 1, 6)
    for way in WAYS.values():
        updates = way(Job(model, model.initial_weights, images, labels, share, 1.0, "float32", CrossEntropy()))
        assert updates[:, :15].abs().min(1).values.max() > 0
        assert not updates[:, 15:].any()


@pytest.mark.parametrize("network", [CNN((1, 28, 28), 10), ResNet20((1, 28, 28), 10)], ids=["cnn", "batch norm"])
def test_a_client_without_examples_sends_zeros(network: nn.Module) -> None:
    model = Model(network)
    images, labels = torch.rand(2, 1, 3, 1, 28, 28), torch.randint(0, 10, (2, 1, 3))
    updates = local_updates(model, model.initial_weights, images, labels, torch.tensor([0.0, 1.0])[:, None, None].expand(2, 1, 3), 1.0)
    assert not updates[0].any()
    assert updates[1].any()
