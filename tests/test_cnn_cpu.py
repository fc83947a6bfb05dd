"""The CNN's kernels for a CPU against autograd in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from fltrust.models import CNN, LogisticRegression, Model, initialise
from fltrust.objectives import CrossEntropy
from fltrust.training.local import Job, _cnn_in_threads, _fits_closed_form, _fits_cnn_kernels, _threads_over_clients, local_updates

pytest.importorskip("numba")


def job_of(shape: tuple[int, int, int], n: int, steps: int, b: int) -> Job:
    """Pixels and weights of a few bits: the convolutions are exact in float32, so no rounding decides which value a pooling takes."""
    model = Model(initialise(CNN(shape, 4), np.random.default_rng(0), "torch"))
    chance = torch.Generator().manual_seed(1)
    images = torch.randint(0, 17, (n, steps, b, *shape), generator=chance) / 16
    loss_weights, labels = torch.rand(n, steps, b, generator=chance), torch.randint(0, 4, (n, steps, b), generator=chance)
    weights = (model.initial_weights * 64).round() / 64
    return Job(model, weights, images, labels, loss_weights, 0.05, "float32", CrossEntropy())


def in_float64(job: Job) -> torch.Tensor:
    double = {name: getattr(job, name).double() for name in ("weights", "inputs", "loss_weights")}
    return _threads_over_clients(job._replace(**double))


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 16, 20), (1, 13, 19), (1, 10, 10)], ids=str)
@pytest.mark.parametrize(("steps", "b"), [(1, 5), (3, 4), (1, 37)])
def test_kernels_equal_autograd(shape: tuple[int, int, int], steps: int, b: int) -> None:
    job = job_of(shape, 3, steps, b)
    job.loss_weights[0, 0, 1] = 0  # only fills up the batch
    job.loss_weights[1, -1] = 0  # a step without examples
    assert _fits_cnn_kernels(job)
    updates, expected = _cnn_in_threads(job), in_float64(job)
    for part, twin in zip(job.model.split(updates[0]), job.model.split(expected[0]), strict=True):
        assert (part - twin).norm() < 2e-6 * twin.norm()  # each layer, however small its part of the whole
    assert ((updates - expected).norm(dim=1) <= 2e-6 * expected.norm(dim=1)).all()


def test_of_equal_values_the_first_goes_on_as_in_torch() -> None:
    job = job_of((1, 28, 28), 2, 1, 6)
    job.inputs[:] = job.inputs.round()  # black, white, and whole regions of the same values
    job.inputs[..., :14, :] = 0
    updates, expected = _cnn_in_threads(job), in_float64(job)
    assert ((updates - expected).norm(dim=1) <= 2e-6 * expected.norm(dim=1)).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_pixel_stays_with_its_client_and_is_seen(bad: float) -> None:
    job = job_of((1, 28, 28), 3, 1, 5)
    expected = _cnn_in_threads(job)
    job.inputs[1, 0, 2, 0, 9, 9] = bad
    updates = _cnn_in_threads(job)
    assert torch.equal(updates[[0, 2]], expected[[0, 2]])
    assert not updates[1].isfinite().all()
    assert not _threads_over_clients(job)[1].isfinite().all()


def test_a_loss_may_change_outputs_in_place() -> None:
    class Hinge(CrossEntropy):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return outputs.sub_(outputs.detach().gather(1, targets[:, None])).add_(1).relu_().sum(1)

    job = job_of((1, 16, 20), 2, 1, 37)._replace(objective=Hinge())
    updates, expected = _cnn_in_threads(job), in_float64(job)
    assert ((updates - expected).norm(dim=1) <= 2e-6 * expected.norm(dim=1)).all()


def test_other_networks_frozen_layers_colours_and_float64_are_left_to_autograd() -> None:
    job = job_of((1, 28, 28), 1, 1, 2)
    assert not _fits_cnn_kernels(job_of((3, 16, 16), 1, 1, 2))
    assert not _fits_cnn_kernels(job._replace(weights=job.weights.double(), inputs=job.inputs.double()))
    frozen = CNN((1, 28, 28), 4)
    frozen.conv1.requires_grad_(False)
    assert not _fits_cnn_kernels(job._replace(model=Model(frozen)))

    class Other(CNN):
        pass

    assert not _fits_cnn_kernels(job._replace(model=Model(Other((1, 28, 28), 4))))


def _padded(module: CNN) -> None:
    module.conv1 = nn.Conv2d(1, 30, 3, padding=1)  # the poolings drop what is added, so all shapes still fit


def _hooked(module: CNN) -> None:
    module.output.register_forward_hook(lambda _layer, _inputs, outputs: outputs / 10)


def _with_a_layer_more(module: CNN) -> None:
    module.output = nn.Sequential(nn.Tanh(), module.output)  # type: ignore[assignment]


def _wider(module: CNN) -> None:
    module.conv2, module.hidden = nn.Conv2d(30, 64, 3), nn.Linear(64 * 25, 100)


def _with_another_forward(module: CNN) -> None:
    plain = module.forward
    module.forward = lambda images: plain(1 - images)  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [_padded, _hooked, _with_a_layer_more, _wider, _with_another_forward])
def test_a_changed_network_is_trained_as_it_is(change: Callable[[CNN], None]) -> None:
    module = CNN((1, 28, 28), 4)
    change(module)
    job = job_of((1, 28, 28), 2, 1, 4)
    job = job._replace(model=Model(module), weights=Model(module).initial_weights)
    assert not _fits_cnn_kernels(job)
    assert torch.equal(local_updates(job.model, *job[1:6]), _threads_over_clients(job))


def test_a_changed_linear_model_is_left_to_autograd() -> None:
    module = LogisticRegression((1, 28, 28), 4)
    job = job_of((1, 28, 28), 2, 1, 4)._replace(model=Model(module), weights=Model(module).initial_weights)
    assert _fits_closed_form(job)
    module.output.register_forward_hook(lambda _layer, _inputs, outputs: outputs / 10)
    assert not _fits_closed_form(job._replace(model=Model(module)))
