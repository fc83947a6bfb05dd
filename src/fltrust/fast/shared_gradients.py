"""Every client's gradient of any network of convolutions, linear layers and batch norm on a CUDA device, in one shared pass.

Import this file only where the tensors are on such a device: it needs Triton.

All clients start a local step from the same weights, so one forward and one backward pass serve the examples of all of them, as in any
large batch. Two things are per client: the gradients of the weights, and the statistics that batch norm takes from a batch. Calls of
conv2d, linear and batch_norm are intercepted for them, so the network needs no change.

n clients, b examples each, d parameters; images are stored channels last.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fltrust.errors import InputError
from fltrust.fast.cnn_gradients import PRECISIONS


def shared_gradients(module: nn.Module, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor, precision: str) -> Tensor:
    """(n, d): row i is the gradient of sum_j share[i, j] * cross_entropy(logits(images[i, j]), labels[i, j]).

    weights (d,) in the order of the module's parameters, images (n, b, ...), labels (n, b), share (n, b).
    """
    n = len(labels)
    gradients = weights.new_zeros(n, len(weights))
    parameters = [(name, parameter.shape) for name, parameter in module.named_parameters()]
    sizes = [shape.numel() for _, shape in parameters]
    parts = {name: part.view(shape).detach().requires_grad_() for (name, shape), part in zip(parameters, weights.split(sizes), strict=True)}
    per_client = _PerClient(n, PRECISIONS[precision][1])
    for part, columns in zip(parts.values(), gradients.split(sizes, 1), strict=True):
        per_client.gradient[part] = columns.view(n, *part.shape)

    batch = images.flatten(0, 1).to(PRECISIONS[precision][0])
    if batch.dim() == 4:
        batch = batch.contiguous(memory_format=torch.channels_last)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=precision != "float32"), torch.enable_grad():
        with per_client:
            logits = functional_call(module, parts, (batch,))
        loss = functional.cross_entropy(logits.float(), labels.flatten(), reduction="none")
        (loss * share.flatten()).sum().backward()
    elsewhere = [name for name, part in parts.items() if part.grad is not None]
    if elsewhere:
        raise InputError(f"only conv2d, linear and batch_norm have gradients per client; used elsewhere: {', '.join(elsewhere)}")
    return gradients


class _PerClient(TorchFunctionMode):
    """Replaces the calls that have weights by those that leave each client's gradient in `gradient[weight]` (n, ...)."""

    def __init__(self, n: int, product: str) -> None:
        super().__init__()
        self.n, self.product = n, product
        self.gradient: dict[Tensor, Tensor] = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        layers = {functional.conv2d: self.conv2d, functional.linear: self.linear, functional.batch_norm: self.batch_norm}
        return layers.get(function, function)(*args, **(kwargs or {}))

    def conv2d(self, images, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
        stride, padding, dilation = ((pair, pair) if isinstance(pair, int) else tuple(pair) for pair in (stride, padding, dilation))
        square = all(len(set(pair)) == 1 for pair in (weight.shape[2:], stride, padding))
        if not square or groups != 1 or dilation != (1, 1):
            raise InputError("only square convolutions without groups and dilation have gradients per client")
        result = _Convolution.apply(images, weight, self, stride[0], padding[0])
        return result if bias is None else _Bias.apply(result, bias, self)

    def linear(self, features, weight, bias=None):
        if features.dim() != 2:
            raise InputError(
                f"linear layers of {features.dim()}-dimensional input have no gradients per client, only of (examples, features)"
            )
        result = _Linear.apply(features, weight, self)
        return result if bias is None else _Bias.apply(result, bias, self)

    def batch_norm(self, images, mean, variance, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
        if images.dim() != 4 or not training or mean is not None or weight is None or bias is None:
            raise InputError("only batch norm of images, with weights and the statistics of each batch, has gradients per client")
        return _BatchNorm.apply(images, weight, bias, self, eps)


class _Convolution(Function):
    @staticmethod
    def forward(ctx, images, weight, per_client, stride, padding):
        images = images.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(images, weight)
        ctx.rest = per_client, stride, padding
        return _convolve(images, weight.to(images.dtype), stride, padding, per_client.product)

    @staticmethod
    def backward(ctx, error):
        (images, weight), (per_client, stride, padding) = ctx.saved_tensors, ctx.rest
        error = error.contiguous(memory_format=torch.channels_last)
        per_client.gradient[weight] += _convolution_sums(per_client.n, images, error, weight.shape, stride, padding, per_client.product)
        before = None
        if ctx.needs_input_grad[0]:
            taps = weight.detach().to(error.dtype)
            if stride == 1:  # backward is a convolution too, with the kernel turned round
                before = _convolve(error, taps.flip(2, 3).transpose(0, 1), 1, weight.shape[2] - 1 - padding, per_client.product)
            else:
                sizes = (None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [True, False, False])
                before = torch.ops.aten.convolution_backward(error, images, taps.contiguous(memory_format=torch.channels_last), *sizes)[0]
        return before, None, None, None, None


class _Linear(Function):
    @staticmethod
    def forward(ctx, features, weight, per_client):
        ctx.save_for_backward(features, weight)
        ctx.per_client = per_client
        return features @ weight.detach().to(features.dtype).t()

    @staticmethod
    def backward(ctx, error):
        (features, weight), per_client = ctx.saved_tensors, ctx.per_client
        errors, inputs = (tensor.float().unflatten(0, (per_client.n, -1)) for tensor in (error, features))
        per_client.gradient[weight] += errors.mT @ inputs
        return error @ weight.detach().to(error.dtype), None, None


class _Bias(Function):
    @staticmethod
    def forward(ctx, features, bias, per_client):
        ctx.rest = bias, per_client
        return features + bias.detach().to(features.dtype).view(-1, *[1] * (features.dim() - 2))

    @staticmethod
    def backward(ctx, error):
        bias, per_client = ctx.rest
        sums = error.unflatten(0, (per_client.n, -1)).transpose(1, 2).flatten(2).sum(2, dtype=torch.float32)
        per_client.gradient[bias] += sums
        return error, None, None


class _BatchNorm(Function):
    """y = weight * (x - mean) / deviation + bias, with mean and deviation of each client's batch."""

    @staticmethod
    def forward(ctx, images, weight, bias, per_client, eps):
        images = images.contiguous(memory_format=torch.channels_last)
        count = images.numel() // (per_client.n * images.shape[1])
        total, squares = _channel_sums(per_client.n, images, images)  # (n, channels)
        mean = total / count
        inverse = (squares / count - mean * mean).clamp_(min=0).add_(eps).rsqrt_()
        ctx.save_for_backward(images, weight, bias, mean, inverse)
        ctx.rest = per_client, count
        slope = weight * inverse
        return _combine(images, slope, None, None, bias - slope * mean)

    @staticmethod
    def backward(ctx, error):
        (images, weight, bias, mean, inverse), (per_client, count) = ctx.saved_tensors, ctx.rest
        error = error.contiguous(memory_format=torch.channels_last)
        d_bias, products = _channel_sums(per_client.n, error, images)
        d_weight = (products - mean * d_bias) * inverse
        per_client.gradient[bias] += d_bias
        per_client.gradient[weight] += d_weight
        slope = weight * inverse
        second = -slope * inverse * d_weight / count
        return _combine(error, slope, images, second, -slope * d_bias / count - second * mean), None, None, None, None


SPLITS = 16  # programs that share a client's sums over positions


def _channel_sums(n: int, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of `first` and of first * second over each client's examples and pixels, (n, channels) each."""
    channels = first.shape[1]
    positions = first.numel() // (n * channels)
    width = triton.next_power_of_2(channels)
    sums = torch.empty(n, SPLITS, 2, channels, device=first.device)
    _channel_sums_kernel[(n, SPLITS)](first, second, sums, positions, channels, SPLITS, max(1, 4096 // width), width)
    total, products = sums.sum(1).unbind(1)
    return total, products


@triton.jit
def _channel_sums_kernel(
    first,
    second,
    sums,
    positions: tl.constexpr,
    channels: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    client, split = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, WIDTH)
    total, products = tl.zeros((BLOCK, WIDTH), tl.float32), tl.zeros((BLOCK, WIDTH), tl.float32)
    for start in range(0, positions, SPLITS * BLOCK):
        position = start + split * BLOCK + tl.arange(0, BLOCK)
        place = (client.to(tl.int64) * positions + position)[:, None] * channels + channel[None, :]
        mask = (position < positions)[:, None] & (channel < channels)[None, :]
        a = tl.load(first + place, mask, 0.0).to(tl.float32)
        total += a
        products += a * tl.load(second + place, mask, 0.0).to(tl.float32)
    target = sums + (client * SPLITS + split) * 2 * channels + channel
    tl.store(target, tl.sum(total, 0), channel < channels)
    tl.store(target + channels, tl.sum(products, 0), channel < channels)


def _combine(first: Tensor, a: Tensor, second: Tensor | None, b: Tensor | None, c: Tensor) -> Tensor:
    """a * first + b * second + c, with a, b, c (n, channels)."""
    n, channels = a.shape
    positions = first.numel() // (n * channels)
    result = torch.empty_like(first)
    width = triton.next_power_of_2(channels)
    block = max(1, 4096 // width)
    _combine_kernel[(n, triton.cdiv(positions, block))](first, a, second, b, c, result, positions, channels, block, width)
    return result


@triton.jit
def _combine_kernel(first, a, second, b, c, result, positions, channels: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    client, channel = tl.program_id(0), tl.arange(0, WIDTH)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = (client.to(tl.int64) * positions + position)[:, None] * channels + channel[None, :]
    mask = (position < positions)[:, None] & (channel < channels)[None, :]
    factor, known = client * channels + channel, channel < channels
    value = tl.load(first + place, mask).to(tl.float32) * tl.load(a + factor, known)[None, :] + tl.load(c + factor, known)[None, :]
    if second is not None:
        value += tl.load(second + place, mask).to(tl.float32) * tl.load(b + factor, known)[None, :]
    tl.store(result + place, value, mask)


# Convolutions. The pixels under one row of a kernel lie side by side, so (dx, channel) is one long axis: the columns of a matrix
# (positions, columns) that is never stored.


@triton.jit
def _under(images, position, valid, dy, column, BEFORE: tl.constexpr, IMAGE_HEIGHT: tl.constexpr, IMAGE_WIDTH: tl.constexpr,
           HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """The pixels under row dy of the kernel, (positions, columns)."""
    y, x = position // WIDTH % HEIGHT * STRIDE + dy - PADDING, position % WIDTH * STRIDE - PADDING
    pixel = (position // (HEIGHT * WIDTH) * IMAGE_HEIGHT + y) * IMAGE_WIDTH + x
    beside = x[:, None] + (column // BEFORE)[None, :]
    inside = (valid & (y >= 0) & (y < IMAGE_HEIGHT))[:, None] & (column < COLUMNS)[None, :] & (beside >= 0) & (beside < IMAGE_WIDTH)
    return tl.load(images + pixel.to(tl.int64)[:, None] * BEFORE + column[None, :], inside, 0.0)


def _convolve(images: Tensor, weight: Tensor, stride: int, padding: int, product: str) -> Tensor:
    """torch.conv2d of square kernels; cuDNN has nothing fast for 16 channels."""
    out, before, side, _ = weight.shape
    height, width = ((size + 2 * padding - side) // stride + 1 for size in images.shape[2:])
    result = torch.empty(len(images), out, height, width, dtype=images.dtype, device=images.device, memory_format=torch.channels_last)
    positions, columns = len(images) * height * width, side * before
    shape = (before, *images.shape[2:], height, width, stride, padding, columns)
    block = min(64, max(16, triton.next_power_of_2(columns)))
    _convolve_kernel[(triton.cdiv(positions, 128),)](
        images,
        weight.permute(2, 3, 1, 0).contiguous(),
        result,
        positions,
        out,
        side,
        *shape,
        product,
        128,
        max(16, triton.next_power_of_2(out)),
        block,
    )
    return result


@triton.jit
def _convolve_kernel(images, weight, result, positions, OUT: tl.constexpr, SIDE: tl.constexpr,
                     BEFORE: tl.constexpr, IMAGE_HEIGHT: tl.constexpr, IMAGE_WIDTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
                     STRIDE: tl.constexpr, PADDING: tl.constexpr, COLUMNS: tl.constexpr,
                     PRODUCT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):  # fmt: skip
    position, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, ROWS)[None, :]
    valid = position < positions
    total = tl.zeros((BLOCK, ROWS), tl.float32)
    for dy in range(SIDE):
        for start in range(0, COLUMNS, BLOCK_COLUMNS):
            column = start + tl.arange(0, BLOCK_COLUMNS)
            seen = _under(images, position, valid, dy, column, BEFORE, IMAGE_HEIGHT, IMAGE_WIDTH, HEIGHT, WIDTH, STRIDE, PADDING, COLUMNS)
            known = (column < COLUMNS)[:, None] & (channel < OUT)
            taps = tl.load(weight + (dy * COLUMNS + column)[:, None] * OUT + channel, known, 0.0)
            total = tl.dot(seen, taps, total, input_precision=PRODUCT)
    tl.store(result + position.to(tl.int64)[:, None] * OUT + channel, total, valid[:, None] & (channel < OUT))


def _convolution_sums(n: int, images: Tensor, error: Tensor, shape: torch.Size, stride: int, padding: int, product: str) -> Tensor:
    """Each client's gradient of a convolution's weights, (n, out, in, side, side)."""
    out, before, side, _ = shape
    columns, positions = side * before, error.numel() // (n * out)
    block, rows = min(128, max(16, triton.next_power_of_2(columns))), max(16, triton.next_power_of_2(out))
    blocks = triton.cdiv(columns, block)
    step = 128 if rows * block <= 2048 else 64
    splits = min(triton.cdiv(positions, step), max(1, 1024 // (n * side * blocks)))  # programs that share a client's positions
    sums = torch.empty(n, splits, side, out, columns, device=images.device)
    _convolution_sums_kernel[(n * splits, side, blocks)](
        images, error, sums, positions, splits, out, before, *images.shape[2:], *error.shape[2:], stride, padding, columns,
        product, step, rows, block,
    )  # fmt: skip
    return sums.sum(1).view(n, side, out, side, before).permute(0, 2, 4, 1, 3)


@triton.jit
def _convolution_sums_kernel(images, error, sums, POSITIONS: tl.constexpr, SPLITS: tl.constexpr, OUT: tl.constexpr,
                             BEFORE: tl.constexpr, IMAGE_HEIGHT: tl.constexpr, IMAGE_WIDTH: tl.constexpr,
                             HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, COLUMNS: tl.constexpr,
                             PRODUCT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):  # fmt: skip
    """One row of the kernel: the sum over a client's positions of error (positions, out)^T times the pixels under it."""
    client, split, dy = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS, tl.program_id(1)
    channel, column = tl.arange(0, ROWS), tl.program_id(2) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    total = tl.zeros((ROWS, BLOCK_COLUMNS), tl.float32)
    for start in range(0, POSITIONS, SPLITS * BLOCK):
        item = start + split * BLOCK + tl.arange(0, BLOCK)
        position, valid = client * POSITIONS + item, item < POSITIONS
        seen = _under(images, position, valid, dy, column, BEFORE, IMAGE_HEIGHT, IMAGE_WIDTH, HEIGHT, WIDTH, STRIDE, PADDING, COLUMNS)
        known = valid[:, None] & (channel < OUT)[None, :]
        mistake = tl.load(error + position.to(tl.int64)[:, None] * OUT + channel[None, :], known, 0.0)
        total = tl.dot(tl.trans(mistake), seen, total, input_precision=PRODUCT)
    target = ((tl.program_id(0) * tl.num_programs(1) + dy) * OUT + channel)[:, None] * COLUMNS + column[None, :]
    tl.store(sums + target, total, (channel < OUT)[:, None] & (column < COLUMNS)[None, :])
