"""Products in bfloat16 on a CPU: numbers of 8 bits, so each is off by at most 2^-9 of itself; sums are float32."""

import re
from typing import Any

import pytest
import torch
from test_cnn_cpu import job_of
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

from fltrust.cli.run import chosen_device
from fltrust.errors import InputError
from fltrust.models import CNN, Model
from fltrust.training import precision
from fltrust.training.local import _cnn_in_threads, _fits_cnn_kernels, _threads_over_clients, local_updates

needed = pytest.mark.skipif(not precision.has_bfloat16(), reason="this processor has no bfloat16")


class Instead(torch.autograd.Function):
    """Other values forward, the same errors back."""

    @staticmethod
    def forward(_: Any, exact: Tensor, rounded: Tensor) -> Tensor:
        return rounded.clone()

    @staticmethod
    def backward(_: Any, *errors: Tensor) -> tuple[Tensor, None]:
        return errors[0], None


class Rounded(CNN):
    """The CNN whose second convolution has its inputs, weights and sums rounded to bfloat16 on the way forward."""

    def forward(self, images: Tensor) -> Tensor:
        hidden = max_pool2d(self.conv1(images), 2).relu()
        rounded = conv2d(hidden.bfloat16().double(), self.conv2.weight.bfloat16().double()).bfloat16().double()
        sums: Tensor = Instead.apply(conv2d(hidden, self.conv2.weight), rounded)  # type: ignore[no-untyped-call]
        hidden = (max_pool2d(sums, 2) + self.get_parameter("conv2.bias")[:, None, None]).relu()
        logits: Tensor = self.output(self.hidden(hidden.flatten(1)).relu())
        return logits


@needed
@pytest.mark.parametrize("b", [5, 37])
def test_the_cnns_kernels_equal_autograd_with_a_rounded_convolution(b: int) -> None:
    job = job_of((1, 28, 28), 3, 1, b)._replace(precision="bfloat16")  # of few bits: what is summed is exact in float32 too
    assert _fits_cnn_kernels(job)
    double = {name: getattr(job, name).double() for name in ("weights", "inputs", "loss_weights")}
    expected = _threads_over_clients(job._replace(model=Model(Rounded((1, 28, 28), 4)), precision="float32", **double))
    assert ((_cnn_in_threads(job) - expected).norm(dim=1) <= 2e-6 * expected.norm(dim=1)).all()
    assert ((_cnn_in_threads(job._replace(precision="float32")) - expected).norm(dim=1) > 2e-6 * expected.norm(dim=1)).all()


@needed
def test_other_networks_are_off_by_a_few_roundings() -> None:
    model = Model(nn.Sequential(nn.Flatten(), nn.Linear(784, 4)))
    job = job_of((1, 28, 28), 3, 1, 6)
    inputs = job.inputs + torch.rand(job.inputs.shape) / 16
    exact, rounded = (
        local_updates(model, model.initial_weights, inputs, job.targets, job.loss_weights, 0.05, name) for name in ("float32", "bfloat16")
    )
    off = (rounded - exact).norm(dim=1) / exact.norm(dim=1)
    assert (off > 2**-14).all()  # rounded indeed
    assert (off < 8 * 2**-9).all()  # inputs twice, weights, outputs, errors, gradients; softmax between them


def test_refused_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    job = job_of((1, 28, 28), 1, 1, 2)
    with pytest.raises(InputError, match=re.escape("this processor has no bfloat16 (avx512_bf16 or AMX): use precision float32")):
        local_updates(*job[:6], precision="bfloat16")
    with pytest.raises(InputError, match=re.escape("this processor has no bfloat16")):
        chosen_device("cpu", "bfloat16")
    with pytest.raises(InputError, match=re.escape("precision bfloat16 is for a CPU: a GPU computes in float32, tf32 or float16")):
        precision.check_precision("bfloat16", "cuda")
    precision.check_precision("bfloat16", "cpu", here=False)
