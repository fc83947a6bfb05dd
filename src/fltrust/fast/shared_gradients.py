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
from fltrust.models import norm_relu, shortcut


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
        layers = {
            functional.conv2d: self.conv2d,
            functional.linear: self.linear,
            functional.batch_norm: self.batch_norm,
            norm_relu: self.norm_relu,
            shortcut: _Shortcut.apply,
        }
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
        return _BatchNorm.apply(images, weight, bias, None, False, self, eps)

    def norm_relu(self, images, norm, beside=None):
        return _BatchNorm.apply(images, norm.weight, norm.bias, beside, True, self, norm.eps)


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


class _Shortcut(Function):
    """`models.shortcut`, whose gradient stays channels last."""

    @staticmethod
    def forward(ctx, images, stride, new_channels):
        ctx.rest = images.shape, stride
        kept = images[:, :, ::stride, ::stride]
        return _filled(kept, (slice(None), slice(0, images.shape[1])), (len(kept), images.shape[1] + new_channels, *kept.shape[2:]))

    @staticmethod
    def backward(ctx, error):
        shape, stride = ctx.rest
        every = slice(None, None, stride)
        return _filled(error[:, : shape[1]], (slice(None), slice(None), every, every), shape), None, None


def _filled(values: Tensor, place, shape) -> Tensor:
    """The values at their place among zeros."""
    result = torch.empty(shape, dtype=values.dtype, device=values.device, memory_format=torch.channels_last).zero_()
    result[place] = values
    return result


class _BatchNorm(Function):
    """y = weight * (x - mean) / deviation + bias, with mean and deviation of each client's batch; or relu(y), or relu(y + beside)."""

    @staticmethod
    def forward(ctx, images, weight, bias, beside, relu, per_client, eps):
        images = images.contiguous(memory_format=torch.channels_last)
        if beside is not None:
            beside = beside.contiguous(memory_format=torch.channels_last)
        count = images.numel() // (per_client.n * images.shape[1])
        mean, inverse, slope, offset = (torch.empty(per_client.n, images.shape[1], device=images.device) for _ in range(4))
        sums = _channel_sums(per_client.n, images, images)
        _per_channel(_statistics_kernel, sums, count, weight, bias, eps, mean, inverse, slope, offset)
        result = _normalise(images, slope, offset, beside, relu)
        # Where ReLU cut is seen again in x, or with something beside it in the result.
        cut = offset if relu and beside is None else None
        ctx.save_for_backward(images, weight, bias, mean, inverse, slope, cut, None if beside is None else result)
        ctx.rest = per_client, count
        return result

    @staticmethod
    def backward(ctx, error):
        (images, weight, bias, mean, inverse, slope, offset, result), (per_client, count) = ctx.saved_tensors, ctx.rest
        error = error.contiguous(memory_format=torch.channels_last)
        cut = None if offset is None else (slope, offset)
        passed = None if result is None else torch.empty_like(error)  # what ReLU lets through, which goes back beside too
        second, third = torch.empty_like(slope), torch.empty_like(slope)
        d_weight, d_bias = per_client.gradient[weight], per_client.gradient[bias]
        sums = _channel_sums(per_client.n, error, images, cut, result, passed)
        _per_channel(_statistics_back_kernel, sums, count, mean, inverse, slope, d_weight, d_bias, d_weight.stride(0), second, third)
        before = _combine(error if passed is None else passed, slope, images, second, third, cut)
        return before, None, None, passed, None, None, None


SPLITS = 16  # programs that share a client's sums over positions


def _channel_sums(n: int, first: Tensor, second: Tensor, cut=None, result=None, passed=None) -> Tensor:
    """(n, SPLITS, 2, channels): parts of the sums of `first` and of first * second over each client's examples and pixels.

    Of `first` only counts what ReLU lets through: where slope * second + offset > 0 with (slope, offset) = cut, or where result > 0;
    in the latter case it is written to `passed`.
    """
    channels = first.shape[1]
    positions = first.numel() // (n * channels)
    width = triton.next_power_of_2(channels)
    sums = torch.empty(n, SPLITS, 2, channels, device=first.device)
    _channel_sums_kernel[(n, SPLITS)](
        first, second, *(cut or (None, None)), result, passed, sums, positions, channels, SPLITS, max(1, 4096 // width), width
    )
    return sums


def _per_channel(kernel, sums: Tensor, *others) -> None:
    n, splits, _, channels = sums.shape
    kernel[(n,)](sums, *others, channels, splits, triton.next_power_of_2(channels))


@triton.jit
def _both_sums(sums, channels: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    channel = tl.arange(0, WIDTH)
    place = sums + (tl.program_id(0) * SPLITS + tl.arange(0, SPLITS))[:, None] * 2 * channels + channel[None, :]
    known = (channel < channels)[None, :]
    return tl.sum(tl.load(place, known, 0.0), 0), tl.sum(tl.load(place + channels, known, 0.0), 0)


@triton.jit
def _statistics_kernel(
    sums, count, weight, bias, eps, mean, inverse, slope, offset, channels: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr
):
    """Of a client's channels: mean and 1 / deviation, and batch norm as slope * x + offset."""
    total, squares = _both_sums(sums, channels, SPLITS, WIDTH)
    channel = tl.arange(0, WIDTH)
    place, known = tl.program_id(0) * channels + channel, channel < channels
    middle = total / count
    spread = tl.maximum(squares / count - middle * middle, 0.0, propagate_nan=tl.PropagateNan.ALL)
    steep = 1 / tl.sqrt(spread + eps)
    rise = tl.load(weight + channel, known) * steep
    tl.store(mean + place, middle, known)
    tl.store(inverse + place, steep, known)
    tl.store(slope + place, rise, known)
    tl.store(offset + place, tl.load(bias + channel, known) - rise * middle, known)


@triton.jit
def _statistics_back_kernel(
    sums,
    count,
    mean,
    inverse,
    slope,
    d_weight,
    d_bias,
    row,
    second,
    third,
    channels: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Adds a client's gradients of weight and bias, and writes the error of x as slope * error + second * x + third."""
    errors, products = _both_sums(sums, channels, SPLITS, WIDTH)
    channel = tl.arange(0, WIDTH)
    place, known = tl.program_id(0) * channels + channel, channel < channels
    target = tl.program_id(0).to(tl.int64) * row + channel
    middle, steep, rise = tl.load(mean + place, known), tl.load(inverse + place, known), tl.load(slope + place, known)
    by_weight = (products - middle * errors) * steep
    tl.store(d_weight + target, tl.load(d_weight + target, known) + by_weight, known)
    tl.store(d_bias + target, tl.load(d_bias + target, known) + errors, known)
    by_image = -rise * steep * by_weight / count
    tl.store(second + place, by_image, known)
    tl.store(third + place, -rise * errors / count - by_image * middle, known)


@triton.jit
def _channel_sums_kernel(
    first,
    second,
    slope,
    offset,
    result,
    passed,
    sums,
    positions: tl.constexpr,
    channels: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    client, split = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, WIDTH)
    factor, known = client * channels + channel, channel < channels
    total, products = tl.zeros((BLOCK, WIDTH), tl.float32), tl.zeros((BLOCK, WIDTH), tl.float32)
    for start in range(0, positions, SPLITS * BLOCK):
        position = start + split * BLOCK + tl.arange(0, BLOCK)
        place = (client.to(tl.int64) * positions + position)[:, None] * channels + channel[None, :]
        mask = (position < positions)[:, None] & known[None, :]
        a, b = tl.load(first + place, mask, 0.0).to(tl.float32), tl.load(second + place, mask, 0.0).to(tl.float32)
        if slope is not None:
            a = tl.where(b * tl.load(slope + factor, known)[None, :] + tl.load(offset + factor, known)[None, :] <= 0, 0.0, a)  # NaN stays
        if result is not None:
            a = tl.where(tl.load(result + place, mask, 0.0) <= 0, 0.0, a)
            tl.store(passed + place, a, mask)
        total += a
        products += a * b
    target = sums + (client * SPLITS + split) * 2 * channels + channel
    tl.store(target, tl.sum(total, 0), known)
    tl.store(target + channels, tl.sum(products, 0), known)


def _normalise(images: Tensor, slope: Tensor, offset: Tensor, beside: Tensor | None, relu: bool) -> Tensor:
    """slope * images + offset, with slope and offset (n, channels); plus what is beside it; what is below zero cut if `relu`."""
    return _pixelwise(_normalise_kernel, images, slope, offset, beside, relu)


def _combine(first: Tensor, a: Tensor, second: Tensor, b: Tensor, c: Tensor, cut) -> Tensor:
    """a * first + b * second + c, with a, b, c (n, channels), and of `first` only what ReLU lets through (see _channel_sums)."""
    return _pixelwise(_combine_kernel, first, a, second, b, c, None if cut is None else cut[1])


def _pixelwise(kernel, images: Tensor, slope: Tensor, *others) -> Tensor:
    """Runs a kernel on all pixels: its arguments, the result, and the shape of the work."""
    n, channels = slope.shape
    positions = images.numel() // (n * channels)
    result = torch.empty_like(images)
    width = triton.next_power_of_2(channels)
    block = max(1, 4096 // width)
    kernel[(n, triton.cdiv(positions, block))](images, slope, *others, result, positions, channels, block, width)
    return result


@triton.jit
def _pixels(positions, channels: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Where a program's pixels lie, which of them exist; where its client's factors lie, which of them exist."""
    client, channel = tl.program_id(0), tl.arange(0, WIDTH)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = (client.to(tl.int64) * positions + position)[:, None] * channels + channel[None, :]
    known = channel < channels
    return place, (position < positions)[:, None] & known[None, :], client * channels + channel, known


@triton.jit
def _normalise_kernel(
    images, slope, offset, beside, RELU: tl.constexpr, result, positions, channels: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):
    place, mask, factor, known = _pixels(positions, channels, BLOCK, WIDTH)
    value = (
        tl.load(images + place, mask).to(tl.float32) * tl.load(slope + factor, known)[None, :] + tl.load(offset + factor, known)[None, :]
    )
    if beside is not None:
        value += tl.load(beside + place, mask).to(tl.float32)
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # NaN stays
    tl.store(result + place, value, mask)


@triton.jit
def _combine_kernel(first, a, second, b, c, offset, result, positions, channels: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    place, mask, factor, known = _pixels(positions, channels, BLOCK, WIDTH)
    slope = tl.load(a + factor, known)[None, :]
    error, image = tl.load(first + place, mask).to(tl.float32), tl.load(second + place, mask).to(tl.float32)
    if offset is not None:
        error = tl.where(image * slope + tl.load(offset + factor, known)[None, :] <= 0, 0.0, error)
    value = error * slope + image * tl.load(b + factor, known)[None, :] + tl.load(c + factor, known)[None, :]
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
    if images.dtype == torch.float16 and min(before, out) >= 32:
        return functional.conv2d(images, weight.contiguous(memory_format=torch.channels_last), None, stride, padding)
    height, width = ((size + 2 * padding - side) // stride + 1 for size in images.shape[2:])
    result = torch.empty(len(images), out, height, width, dtype=images.dtype, device=images.device, memory_format=torch.channels_last)
    positions, columns = len(images) * height * width, side * before
    shape = (before, *images.shape[2:], height, width, stride, padding, columns)
    few = out <= 16  # then small steps through the first-level cache are fastest
    block = 16 if few else min(64, max(16, triton.next_power_of_2(columns)))
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
        num_warps=2 if few else 4,
        num_stages=1 if few else 3,
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
    block, rows = min(64, max(16, triton.next_power_of_2(columns))), max(16, triton.next_power_of_2(out))
    blocks, groups, step = triton.cdiv(columns, block), triton.cdiv(side, 3), 64
    splits = min(triton.cdiv(positions, step), max(1, 2048 // (n * groups * blocks)))  # programs that share a client's positions
    held = min(side, 3) * groups  # rows of the kernel; the last ones may not exist
    sums = torch.empty(n, splits, held, out, columns, device=images.device)
    _convolution_sums_kernel[(groups * blocks, n * splits)](
        images, error, sums, positions, splits, groups, held, out, before, *images.shape[2:], *error.shape[2:], stride, padding, columns,
        product, step, rows, block, num_warps=2 if rows == 16 else 4, num_stages=2,
    )  # fmt: skip
    return sums.sum(1)[:, :side].view(n, side, out, side, before).permute(0, 2, 4, 1, 3)


@triton.jit
def _convolution_sums_kernel(images, error, sums, POSITIONS: tl.constexpr, SPLITS: tl.constexpr, GROUPS: tl.constexpr, HELD: tl.constexpr,
                             OUT: tl.constexpr, BEFORE: tl.constexpr, IMAGE_HEIGHT: tl.constexpr, IMAGE_WIDTH: tl.constexpr,
                             HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, COLUMNS: tl.constexpr,
                             PRODUCT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):  # fmt: skip
    """Three rows dy of the kernel: the sums over a client's positions of error (positions, out)^T times the pixels under each."""
    dy, part = tl.program_id(0) % GROUPS * 3, tl.program_id(0) // GROUPS
    client, split = tl.program_id(1) // SPLITS, tl.program_id(1) % SPLITS
    channel, column = tl.arange(0, ROWS), part * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    upper = tl.zeros((ROWS, BLOCK_COLUMNS), tl.float32)
    middle, lower = upper, upper
    for start in range(0, POSITIONS, SPLITS * BLOCK):
        item = start + split * BLOCK + tl.arange(0, BLOCK)
        position, valid = client * POSITIONS + item, item < POSITIONS
        known = valid[:, None] & (channel < OUT)[None, :]
        mistake = tl.trans(tl.load(error + position.to(tl.int64)[:, None] * OUT + channel[None, :], known, 0.0))
        seen = _under(images, position, valid, dy, column, BEFORE, IMAGE_HEIGHT, IMAGE_WIDTH, HEIGHT, WIDTH, STRIDE, PADDING, COLUMNS)
        upper = tl.dot(mistake, seen, upper, input_precision=PRODUCT)
        if HELD > 1:
            seen = _under(
                images, position, valid, dy + 1, column, BEFORE, IMAGE_HEIGHT, IMAGE_WIDTH, HEIGHT, WIDTH, STRIDE, PADDING, COLUMNS
            )
            middle = tl.dot(mistake, seen, middle, input_precision=PRODUCT)
        if HELD > 2:
            seen = _under(
                images, position, valid, dy + 2, column, BEFORE, IMAGE_HEIGHT, IMAGE_WIDTH, HEIGHT, WIDTH, STRIDE, PADDING, COLUMNS
            )
            lower = tl.dot(mistake, seen, lower, input_precision=PRODUCT)
    row = (tl.program_id(1) * HELD + dy) * OUT + channel
    target = sums + row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    known = (channel < OUT)[:, None] & (column < COLUMNS)[None, :]
    tl.store(target, upper, known)
    if HELD > 1:
        tl.store(target + OUT * COLUMNS, middle, known)
    if HELD > 2:
        tl.store(target + 2 * OUT * COLUMNS, lower, known)
