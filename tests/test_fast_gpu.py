"""The Triton kernels against plain autograd and torch.sort in float64: on a CUDA device, or slowly without one under TRITON_INTERPRET=1."""

import os

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.grad import conv2d_weight

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no CUDA device", allow_module_level=True)

from fltrust.errors import InputError
from fltrust.fast import cnn_gradients as cnn_gradients_file
from fltrust.fast import gpu
from fltrust.fast import shared_gradients as shared_gradients_file
from fltrust.fast.cnn_gradients import cnn_gradients
from fltrust.fast.convolution import convolution_sums, convolve
from fltrust.fast.select import ranked_mean
from fltrust.fast.shared_gradients import shared_gradients
from fltrust.models import CNN, Model, ProjectedBlock, ResidualBlock

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = {"float32": 1e-5, "tf32": 5e-2, "float16": 5e-2} if DEVICE == "cuda" else {"float32": 1e-5}
if DEVICE == "cpu":  # Triton's interpreter cannot multiply bfloat16
    cnn_gradients_file.OPERANDS["float32"] = (torch.float16, 3)
    shared_gradients_file.PRECISIONS["float32"] = (torch.float32, "ieee")


def draw(shape: tuple[int, ...], n: int, b: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(n * 100 + b)
    images, labels, share = (
        torch.rand(n, b, *shape, generator=rng),
        torch.randint(0, 10, (n, b), generator=rng),
        torch.rand(b, n, generator=rng).T - 0.2,  # not in the order of memory
    )
    share[:, -1] = 0  # as examples that only fill up a batch
    return images.to(DEVICE), labels.to(DEVICE), share.to(DEVICE)


def one_by_one(model: Model, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    rows = []
    for own_images, own_labels, own_share in zip(images.double(), labels, share.double(), strict=True):
        leaf = weights.double().requires_grad_()
        loss = (cross_entropy(model.outputs(leaf, own_images), own_labels, reduction="none") * own_share).sum()
        rows.append(torch.autograd.grad(loss, leaf)[0])
    return torch.stack(rows)


def relative_errors(rows: Tensor, expected: Tensor) -> Tensor:
    errors: Tensor = (rows.double() - expected).norm(dim=1) / expected.norm(dim=1)
    return errors


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("n", "b"), [(3, 2), (1, 33)])
def test_cnn_gradients_are_those_of_each_client_alone(n: int, b: int, precision: str) -> None:
    torch.manual_seed(1)
    model = Model(CNN((1, 28, 28), 10).to(DEVICE))
    weights = model.initial_weights.to(DEVICE)
    batch = draw((1, 28, 28), n, b)
    rows = cnn_gradients(weights, *batch, precision)
    assert rows.shape == (n, 139_960)
    assert relative_errors(rows, one_by_one(model, weights, *batch)).max() < PRECISIONS[precision]


def test_cnn_gradients_of_many_clients_are_those_of_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    weights = Model(CNN((1, 28, 28), 10)).initial_weights.to(DEVICE)
    images, labels, share = draw((1, 28, 28), 3, 2)
    expected = cnn_gradients(weights, images, labels, share, "float32")
    monkeypatch.setattr(cnn_gradients_file, "MOST_EXAMPLES", 4)
    rows = cnn_gradients(weights, images, labels, share, "float32")
    assert relative_errors(rows, expected.double()).max() < PRECISIONS["float32"]


@pytest.mark.filterwarnings("ignore:All-NaN")  # of the interpreter
def test_cnn_gradients_keep_nan_to_the_client_that_has_it() -> None:
    torch.manual_seed(1)
    weights = Model(CNN((1, 28, 28), 10)).initial_weights.to(DEVICE)
    images, labels, share = draw((1, 28, 28), 2, 2)
    expected = cnn_gradients(weights, images, labels, share, "float32")
    images[0, 0] = torch.nan
    rows = cnn_gradients(weights, images, labels, share, "float32")
    assert rows[0].isnan().any()
    assert torch.equal(rows[1], expected[1])


class Small(nn.Module):
    """Every kind of layer once: with and without bias, with stride, batch norm, a shortcut, a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.wide = nn.Conv2d(3, 3, 5, padding=2)
        self.norm = nn.BatchNorm2d(3)
        self.block = ResidualBlock(3, 5, 2)
        self.twice = nn.Linear(5, 5)
        self.output = nn.Linear(5, 10, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.block(self.norm(self.wide(self.conv(images)))).mean((2, 3))
        logits: Tensor = self.output(self.twice(self.twice(hidden).relu()))
        return logits


class Wide(nn.Module):
    """More channels than one program holds, a large kernel with a stride, a pooling, and a shortcut with a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 70, 11, 4, padding=5)
        self.block = ProjectedBlock(70, 130, 1)
        self.output = nn.Linear(130, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = nn.functional.max_pool2d(self.first(images.repeat(1, 1, 4, 4)), 2)
        logits: Tensor = self.output(self.block(hidden).mean((2, 3)))
        return logits


@pytest.mark.parametrize(
    ("before", "out", "side", "stride", "padding", "size"),
    [(16, 16, 3, 1, 1, 8), (3, 16, 3, 1, 1, 8), (3, 5, 5, 2, 2, 16), (2, 40, 1, 1, 0, 6), (4, 3, 2, 3, 0, 14)],
)
def test_convolutions_in_strips_are_those_of_torch(before: int, out: int, side: int, stride: int, padding: int, size: int) -> None:
    """Strips of 2, 2, 4, 1 and 1 positions forwards, of 4, 4, 8, 1 and 1 backwards."""
    rng = torch.Generator().manual_seed(0)
    n, b, product = 2, 3, shared_gradients_file.PRECISIONS["float32"][1]
    images = torch.randn(n * b, before, size, size, generator=rng).to(DEVICE, memory_format=torch.channels_last)
    weight = torch.randn(out, before, side, side, generator=rng).to(DEVICE)
    expected = nn.functional.conv2d(images.double(), weight.double(), None, stride, padding)
    torch.testing.assert_close(convolve(images, weight, stride, padding, product).double(), expected, atol=1e-4, rtol=1e-5)
    error = torch.randn(expected.shape, generator=rng).to(DEVICE, memory_format=torch.channels_last)
    for client, row in enumerate(convolution_sums(n, images, error, weight.shape, stride, padding, product)):
        own = slice(client * b, (client + 1) * b)
        sums = conv2d_weight(images[own].double(), weight.shape, error[own].double(), stride, padding)
        torch.testing.assert_close(row.double(), sums, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("network", [Small, Wide])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_shared_gradients_are_those_of_each_client_alone(network: type[nn.Module], precision: str) -> None:
    torch.manual_seed(5)  # with some, a ReLU is so near zero that half precision puts it on the other side
    model = Model(network().to(DEVICE))
    weights = model.initial_weights.to(DEVICE)
    batch = draw((2, 6, 5), 3, 4)
    rows = shared_gradients(model.module, weights, *batch, precision)
    assert relative_errors(rows, one_by_one(model, weights, *batch)).max() < PRECISIONS[precision]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(4, 10)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.output(images.flatten(1)) * self.scale
        return logits


def test_shared_gradients_refuse_what_they_would_get_wrong() -> None:
    batch = draw((1, 2, 2), 2, 2)
    with pytest.raises(InputError, match="used elsewhere: scale"):
        shared_gradients(Scaled(), torch.ones(51, device=DEVICE), *batch, "float32")
    grouped = nn.Sequential(nn.Conv2d(2, 2, 1, groups=2), nn.Flatten(), nn.Linear(8, 10))
    with pytest.raises(InputError, match="without groups"):
        shared_gradients(grouped, torch.ones(94, device=DEVICE), *draw((2, 2, 2), 2, 2), "float32")


def sorted_mean(updates: Tensor, usable: Tensor, trim: int | None) -> Tensor:
    ranked = updates[usable].double().sort(0).values
    half = max(0, len(ranked) - 1) // 2
    cut = half if trim is None else min(trim, half)
    return ranked[cut : len(ranked) - cut].mean(0) if len(ranked) else torch.zeros_like(updates[0], dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 129])
@pytest.mark.parametrize("trim", [None, 0, 1, 20])
def test_ranked_mean_is_that_of_the_sorted_columns(n: int, trim: int | None) -> None:
    rng = torch.Generator().manual_seed(n)
    updates = torch.randn(n, 37, generator=rng).to(DEVICE)
    updates[:, 0] = updates[:, 0].round()  # ties
    updates[:, 1] = -0.5
    for usable in (torch.ones(n, dtype=torch.bool), torch.rand(n, generator=rng) < 0.6, torch.zeros(n, dtype=torch.bool)):
        usable = usable.to(DEVICE)
        expected = sorted_mean(updates, usable, trim)
        sent = torch.where(usable[:, None], updates, torch.nan)
        assert (ranked_mean(sent, usable, trim) - expected).abs().max() < 1e-6


def test_ranked_mean_by_hand() -> None:
    updates = torch.tensor([[1.0, -3.0], [10.0, -3.0], [2.0, 5.0], [4.0, -3.0], [99.0, 99.0]], device=DEVICE)
    usable = torch.tensor([True, True, True, True, False], device=DEVICE)
    assert ranked_mean(updates, usable, None).tolist() == [3.0, -3.0]
    assert ranked_mean(updates, usable, 1).tolist() == [3.0, -3.0]
    assert ranked_mean(updates, usable, 0).tolist() == [4.25, -1.0]
    assert ranked_mean(updates, usable, 2).tolist() == [3.0, -3.0]  # the middle always stays


def test_ranked_mean_says_how_many_clients_are_too_many() -> None:
    with pytest.raises(InputError, match="8193 clients"):
        ranked_mean(torch.zeros(8193, 1, device=DEVICE), torch.ones(8193, dtype=torch.bool, device=DEVICE), None)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (3, 130), (17, 9000)])
def test_sums_over_rows_and_columns(n: int, d: int) -> None:
    rng = torch.Generator().manual_seed(n)
    updates = torch.randn(n, d, generator=rng).to(DEVICE)
    direction = torch.randn(d, generator=rng, dtype=torch.float64).to(DEVICE)
    factor = torch.randn(n, generator=rng, dtype=torch.float64).to(DEVICE)
    along, squares = gpu.row_sums(updates, direction)
    torch.testing.assert_close(along, updates.double() @ direction, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(squares, updates.double().square().sum(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gpu.row_sums(updates, None)[1], squares)
    torch.testing.assert_close(gpu.weighted_sum(updates, factor), factor @ updates.double(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gpu.gram(updates), updates.double() @ updates.double().T, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("count", "r", "k", "d"), [(1, 5, 5, 40), (1, 100, 130, 5000), (3, 20, 7, 4096), (1, 1, 1, 1)])
def test_inner_products(count: int, r: int, k: int, d: int) -> None:
    rng = torch.Generator().manual_seed(r)
    rows = torch.randn(count, r, d, generator=rng).to(DEVICE)
    others = torch.randn(count, k, d, generator=rng).to(DEVICE)
    products = gpu.inner_products(rows, others)
    close = 5e-7 * d  # float32, and the rows are about the root of d long
    torch.testing.assert_close(products, rows.double() @ others.double().mT, rtol=0, atol=close)
    far = torch.tensor([2.0**120, 2.0**-60, 1.0]).to(DEVICE).repeat(r)[:r]  # no product overflows
    unit = far.double()[:, None] * 2.0**100
    torch.testing.assert_close(gpu.inner_products(rows * far[:, None], others * 2.0**100) / unit, products, rtol=0, atol=close)
    cut = torch.randn(count, r, d + 3, generator=rng).to(DEVICE)[:, :, :d]  # rows that do not lie one after the other
    expected = gpu.inner_products(cut.contiguous(), others)
    torch.testing.assert_close(gpu.inner_products(cut, others), expected, rtol=0, atol=close)


@pytest.mark.parametrize("everybody", [True, False])
def test_running_means(everybody: bool) -> None:
    """A client that is left out keeps its sum, whatever it sent; so does one that does not take part."""
    rng = torch.Generator().manual_seed(3)
    n, clients, d = 4, 4 if everybody else 6, 2100
    updates, sums = torch.randn(n, d, generator=rng).to(DEVICE), torch.randn(clients, d, generator=rng).to(DEVICE)
    updates[1, 5] = torch.nan
    sums[3, 0] = 3e38 if DEVICE == "cuda" else 3.0  # divided, it overflows: of which NumPy, where it stands in, would warn
    ids = torch.randperm(clients, generator=rng)[:n].to(DEVICE)
    usable = torch.tensor([True, False, True, True]).to(DEVICE)
    decay, weight = (torch.rand(n, generator=rng, dtype=torch.float64).to(DEVICE) for _ in range(2))
    decay, weight = torch.where(usable, decay, 1), torch.where(usable, weight, 0)
    whole = torch.rand(n, generator=rng).to(DEVICE)
    later = torch.full_like(sums, torch.nan) if everybody else sums.clone()  # all of it is written if all take part
    means = gpu.running_means(updates, usable, sums, later, ids, decay, weight, whole)
    expected = sums.clone()
    expected[ids] = decay.float()[:, None] * sums[ids] + weight.float()[:, None] * torch.where(usable[:, None], updates, 0)
    torch.testing.assert_close(later, expected, rtol=1e-6, atol=1e-6)
    largest = torch.finfo(torch.float32).max
    bounded = (expected[ids] / whole[:, None]).clamp(-largest, largest)
    torch.testing.assert_close(means, torch.where(usable[:, None], bounded, 0), rtol=1e-6, atol=1e-5)  # what is divided was rounded


def test_a_row_of_factor_zero_counts_nothing_whatever_it_holds() -> None:
    updates = torch.tensor([[float("nan"), 1.0], [2.0, 3.0]]).to(DEVICE)
    total = gpu.weighted_sum(updates, torch.tensor([0.0, 2.0], dtype=torch.float64).to(DEVICE))
    assert total.tolist() == [4.0, 6.0]
