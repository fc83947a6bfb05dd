"""Every client's gradient of the paper's CNN (Table II, 1 x 28 x 28 images, 10 classes) on a CUDA device, in six fused kernels.

Import this file only where the tensors are on such a device: it needs Triton.

All clients start a local step from the same weights, so one forward and one backward pass serve the examples of all of them;
only the gradients of the weights are per client. What lies between the kernels is small and stays in the L2 cache:

    pooled   (e, 13, 13, 32)  after the first pooling and ReLU; channel 30 is constant 1, so that a bias is one more weight
    winner1  (e, 13, 13, 32)  which of the four values under a pooled one was the largest, 4 where ReLU let nothing through
    hidden   (e, 1280)        after the second pooling and ReLU, in PyTorch's order (channel, y, x), 1250 and padding
    winner2  (e, 25, 64)      as winner1
    d_fc1    (e, 128)         the loss by the input of the hidden layer's ReLU
    d_hidden (e, 25, 64)      the loss by `hidden`, channels last

n clients, b examples each, e = n * b; channels and features are padded to powers of two, as the tensor cores want them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

PRECISIONS = {  # how matrix products are done: their operands' type, and how float32 operands are multiplied; sums are float32 in all
    "highest": (torch.float32, "ieee"),
    "high": (torch.float32, "tf32"),
    "medium": (torch.bfloat16, "tf32"),
}
GROUP = 32  # examples whose gradients are summed by one program
SPLITS = 8  # programs that share a group's gradient of the first layer

# Where each parameter begins in the vector of weights.
CONV1_BIAS = tl.constexpr(270)
CONV2 = tl.constexpr(300)
CONV2_BIAS = tl.constexpr(13800)
FC1 = tl.constexpr(13850)
FC1_BIAS = tl.constexpr(138850)
FC2 = tl.constexpr(138950)
FC2_BIAS = tl.constexpr(139950)
D = tl.constexpr(139960)
OPEN = tl.constexpr(4)  # no winner


def cnn_gradients(weights: Tensor, images: Tensor, labels: Tensor, share: Tensor, precision: str) -> Tensor:
    """(n, d): row i is the gradient of sum_j share[i, j] * cross_entropy(logits(images[i, j]), labels[i, j]).

    weights (d,), images (n, b, 1, 28, 28), labels (n, b), share (n, b).
    """
    n, b = labels.shape
    parts = triton.cdiv(b, GROUP)
    if parts > 1:  # a long batch is several short ones
        size = triton.cdiv(b, parts)
        missing = parts * size - b
        images, labels, share = (
            torch.cat([part, part.new_zeros(n, missing, *part.shape[2:])], 1).view(n * parts, size, *part.shape[2:])
            for part in (images, labels, share)
        )
        return cnn_gradients(weights, images, labels, share, precision).view(n, parts, -1).sum(1)

    dtype, product = PRECISIONS[precision]
    examples = n * b
    images, labels, share = images.contiguous(), labels.contiguous(), share.contiguous()

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=weights.device)

    conv2 = weights.new_zeros(9, 32, 64, dtype=dtype)
    conv2[:, :30, :50] = weights[CONV2.value : CONV2_BIAS.value].view(50, 30, 9).permute(2, 1, 0)
    fc1 = weights.new_zeros(128, 1280, dtype=dtype)
    fc1[:100, :1250] = weights[FC1.value : FC1_BIAS.value].view(100, 1250)

    pooled, winner1 = empty(examples, 13, 13, 32), empty(examples, 13, 13, 32, dtype=torch.uint8)
    _conv1[(triton.cdiv(examples * 169, 128),)](images, weights, pooled, winner1, examples * 169, product, 128)
    hidden, winner2 = weights.new_zeros(examples, 1280, dtype=dtype), empty(examples, 25, 64, dtype=torch.uint8)
    _conv2[(triton.cdiv(examples * 25, 128),)](pooled, conv2, weights, hidden, winner2, examples * 25, product, 128, num_warps=8)

    gradients = empty(n, D.value, dtype=torch.float32)
    d_fc1, d_hidden = empty(examples, 128), empty(examples, 25, 64)
    batch = max(16, triton.next_power_of_2(b))
    _head[(n,)](hidden, fc1, weights, labels, share, d_fc1, gradients, b, product, batch, 64)
    _fc1_backward[(n, 20)](hidden, fc1, d_fc1, d_hidden, gradients, b, product, batch, 64)
    _conv2_backward[(n, 3)](pooled, winner2, d_hidden, gradients, b, product, 32, num_stages=2)
    sums = empty(n, SPLITS, 32, 16, dtype=torch.float32)
    _conv1_backward[(n, SPLITS)](images, conv2, winner1, winner2, d_hidden, sums, b, SPLITS, product, 64)
    conv1 = sums.sum(1)
    gradients[:, : CONV1_BIAS.value].view(n, 30, 9).copy_(conv1[:, :30, :9])
    gradients[:, CONV1_BIAS.value : CONV2.value] = conv1[:, :30, 9]
    return gradients


@triton.jit
def _patch(images, example, y, x, window, valid):
    """What the first convolution sees, (positions, 16): 9 pixels, a 1 for the bias, zeros; for one of the four windows under (y, x)."""
    tap = tl.arange(0, 16)[None, :]
    row, column = 2 * y + window // 2, 2 * x + window % 2
    pixel = (example * 784 + row * 28 + column)[:, None] + tap // 3 * 28 + tap % 3
    patch = tl.load(images + pixel, valid[:, None] & (tap < 9), 0.0)
    return tl.where(tap == 9, 1.0, patch)


@triton.jit
def _conv1(images, weights, pooled, winner1, positions, PRODUCT: tl.constexpr, BLOCK: tl.constexpr):
    """Convolution 1 -> 30, max-pooling, ReLU."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    example, y, x = position // 169, position // 13 % 13, position % 13
    tap, channel = tl.arange(0, 16)[:, None], tl.arange(0, 32)[None, :]
    weight = tl.load(weights + tl.where(tap < 9, channel * 9 + tap, CONV1_BIAS + channel), (tap < 10) & (channel < 30), 0.0)
    weight = weight.to(pooled.dtype.element_ty)

    best = tl.full((BLOCK, 32), float("-inf"), tl.float32)
    winner = tl.full((BLOCK, 32), OPEN, tl.int32)
    for window in range(4):
        patch = _patch(images, example, y, x, window, position < positions).to(pooled.dtype.element_ty)
        value = tl.dot(patch, weight, input_precision=PRODUCT)
        larger = (value > best) | (value != value)  # NaN must not get lost
        best, winner = tl.where(larger, value, best), tl.where(larger, window, winner)

    closed = best <= 0
    target, mask = position[:, None] * 32 + channel, (position < positions)[:, None]
    tl.store(pooled + target, tl.where(channel == 30, 1.0, tl.where(closed, 0.0, best)), mask)
    tl.store(winner1 + target, tl.where(closed, OPEN, winner).to(tl.uint8), mask)


@triton.jit
def _conv2(pooled, conv2, weights, hidden, winner2, positions, PRODUCT: tl.constexpr, BLOCK: tl.constexpr):
    """Convolution 30 -> 50 where pooling looks (10 x 10 of 11 x 11), max-pooling, ReLU."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    example, y, x = position // 25, position // 5 % 5, position % 5
    mask = (position < positions)[:, None]
    before, channel = tl.arange(0, 32), tl.arange(0, 64)
    source = pooled + (example * 169 + 2 * y * 13 + 2 * x)[:, None] * 32 + before[None, :]
    weight = conv2 + before[:, None] * 64 + channel[None, :]
    bias = tl.load(weights + CONV2_BIAS + channel, channel < 50, 0.0)[None, :]

    best = tl.full((BLOCK, 64), float("-inf"), tl.float32)
    winner = tl.full((BLOCK, 64), OPEN, tl.int32)
    for window in tl.static_range(4):
        value = tl.zeros((BLOCK, 64), tl.float32) + bias
        for tap in range(9):
            shift = (window // 2 + tap // 3) * 13 + window % 2 + tap % 3
            value = tl.dot(tl.load(source + shift * 32, mask, 0.0), tl.load(weight + tap * 2048), value, input_precision=PRODUCT)
        larger = (value > best) | (value != value)
        best, winner = tl.where(larger, value, best), tl.where(larger, window, winner)

    closed = best <= 0
    feature = (example * 1280 + position % 25)[:, None] + channel[None, :] * 25
    tl.store(hidden + feature, tl.where(closed, 0.0, best), mask & (channel < 50)[None, :])
    tl.store(winner2 + position[:, None] * 64 + channel[None, :], tl.where(closed, OPEN, winner).to(tl.uint8), mask)


@triton.jit
def _head(
    hidden, fc1, weights, labels, share, d_fc1, gradients, B: tl.constexpr, PRODUCT: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr
):
    """The two linear layers and the loss of one client, forward and back to the hidden layer's ReLU."""
    dtype = hidden.dtype.element_ty
    client, row = tl.program_id(0), tl.arange(0, BATCH)
    example, valid = client * B + row, row < B
    feature, unit, label = tl.arange(0, BLOCK), tl.arange(0, 128), tl.arange(0, 16)

    inner = tl.zeros((BATCH, 128), tl.float32) + tl.load(weights + FC1_BIAS + unit, unit < 100, 0.0)[None, :]
    for start in range(0, 1280, BLOCK):
        activation = tl.load(hidden + example[:, None] * 1280 + start + feature[None, :], valid[:, None], 0.0)
        weight = tl.load(fc1 + unit[None, :] * 1280 + start + feature[:, None])
        inner = tl.dot(activation, weight, inner, input_precision=PRODUCT)
    closed = inner <= 0
    active = tl.where(closed, 0.0, inner).to(dtype)

    is_weight = (label < 10)[:, None] & (unit < 100)[None, :]
    place = FC2 + label[:, None] * 100 + unit[None, :]  # (classes, units)
    fc2 = tl.load(weights + place, is_weight, 0.0).to(dtype)
    bias = tl.load(weights + FC2_BIAS + label, label < 10, float("-inf"))
    logits = tl.dot(active, tl.trans(fc2), input_precision=PRODUCT) + bias[None, :]
    odds = tl.exp(logits - tl.max(logits, 1)[:, None])
    truth = tl.load(labels + example, valid, 0)
    error = odds / tl.sum(odds, 1)[:, None] - (label[None, :] == truth[:, None]).to(tl.float32)
    error *= tl.load(share + example, valid, 0.0)[:, None]  # the loss by the logits

    d_inner = tl.where(closed, 0.0, tl.dot(error.to(dtype), fc2, input_precision=PRODUCT))
    tl.store(d_fc1 + example[:, None] * 128 + unit[None, :], d_inner, valid[:, None])
    gradient = gradients + client.to(tl.int64) * D
    tl.store(gradient + place, tl.dot(tl.trans(error.to(dtype)), active, input_precision=PRODUCT), is_weight)
    tl.store(gradient + FC2_BIAS + label, tl.sum(error, 0), label < 10)
    tl.store(gradient + FC1_BIAS + unit, tl.sum(d_inner, 0), unit < 100)


@triton.jit
def _fc1_backward(
    hidden, fc1, d_fc1, d_hidden, gradients, B: tl.constexpr, PRODUCT: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr
):
    """The hidden layer's weights and its input, BLOCK of its 1250 features per program: nine tenths of all parameters."""
    client, row = tl.program_id(0), tl.arange(0, BATCH)
    example, valid = client * B + row, (row < B)[:, None]
    feature, unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, 128)
    is_feature = (feature < 1250)[None, :]
    error = tl.load(d_fc1 + example[:, None] * 128 + unit[None, :], valid, 0.0)
    activation = tl.load(hidden + example[:, None] * 1280 + feature[None, :], valid, 0.0)

    gradient = gradients + client.to(tl.int64) * D + FC1 + unit[:, None] * 1250 + feature[None, :]
    tl.store(gradient, tl.dot(tl.trans(error), activation, input_precision=PRODUCT), (unit < 100)[:, None] & is_feature)
    d_activation = tl.dot(error, tl.load(fc1 + unit[:, None] * 1280 + feature[None, :]), input_precision=PRODUCT)
    tl.store(d_hidden + example[:, None] * 1600 + (feature % 25 * 64 + feature // 25)[None, :], d_activation, valid & is_feature)


@triton.jit
def _conv2_backward(pooled, winner2, d_hidden, gradients, B: tl.constexpr, PRODUCT: tl.constexpr, BLOCK: tl.constexpr):
    """The second convolution's weights, one row of its 3 x 3 kernel per program, summed over the b * 25 pooled positions."""
    client, dy = tl.program_id(0), tl.program_id(1)
    channel, column = tl.arange(0, 64), tl.arange(0, 128)  # a column is (dx, channel before); dx = 3 is padding
    dx, before = column // 32, column % 32
    total = tl.zeros((64, 128), tl.float32)
    for start in range(0, B * 25, BLOCK):
        item = start + tl.arange(0, BLOCK)
        position, valid = client * B * 25 + item, (item < B * 25)[:, None]
        example, y, x = position // 25, position // 5 % 5, position % 5
        error = tl.load(d_hidden + position[:, None] * 64 + channel[None, :], valid, 0.0)
        winner = tl.load(winner2 + position[:, None] * 64 + channel[None, :], valid, OPEN)
        source = pooled + (example * 169 + (2 * y + dy) * 13 + 2 * x)[:, None] * 32 + column[None, :]
        for window in tl.static_range(4):
            won = tl.where(winner == window, error, 0.0)
            seen = tl.load(source + (window // 2 * 13 + window % 2) * 32, valid, 0.0)
            total = tl.dot(tl.trans(won), seen, total, input_precision=PRODUCT)

    gradient = gradients + client.to(tl.int64) * D
    weight = CONV2 + channel[:, None] * 270 + (before * 9 + dy * 3 + dx)[None, :]
    tl.store(gradient + weight, total, (channel < 50)[:, None] & ((before < 30) & (dx < 3))[None, :])
    is_bias = (channel < 50)[:, None] & ((column == 30) & (dy == 0))[None, :]  # channel 30 is 1 everywhere
    tl.store(gradient + CONV2_BIAS + channel[:, None] + column[None, :] * 0, total, is_bias)


@triton.jit
def _conv1_backward(
    images, conv2, winner1, winner2, d_hidden, sums, B: tl.constexpr, SPLITS: tl.constexpr, PRODUCT: tl.constexpr, BLOCK: tl.constexpr
):
    """The loss by `pooled`, which never leaves the registers, and the first convolution's weights and bias from it."""
    dtype = conv2.dtype.element_ty
    client, split = tl.program_id(0), tl.program_id(1)
    before, channel = tl.arange(0, 32), tl.arange(0, 64)
    weight = conv2 + before[None, :] * 64 + channel[:, None]
    total = tl.zeros((32, 16), tl.float32)
    for start in range(0, B * 169, SPLITS * BLOCK):
        item = start + split * BLOCK + tl.arange(0, BLOCK)
        position, valid = client * B * 169 + item, item < B * 169
        example, y, x = position // 169, position // 13 % 13, position % 13
        d_pooled = tl.zeros((BLOCK, 32), tl.float32)
        for tap in range(9):
            row, column = y - tap // 3, x - tap % 3  # a position of the second convolution's output
            inside = (valid & (row >= 0) & (row < 10) & (column >= 0) & (column < 10))[:, None]
            source = (example * 25 + row // 2 * 5 + column // 2)[:, None] * 64 + channel[None, :]
            won = tl.load(winner2 + source, inside, OPEN) == (row % 2 * 2 + column % 2)[:, None]
            error = tl.where(won, tl.load(d_hidden + source, inside, 0.0), 0.0)
            d_pooled = tl.dot(error, tl.load(weight + tap * 2048), d_pooled, input_precision=PRODUCT)
        winner = tl.load(winner1 + position[:, None] * 32 + before[None, :], valid[:, None], OPEN)
        for window in range(4):
            won = tl.where(winner == window, d_pooled, 0.0).to(dtype)
            patch = _patch(images, example, y, x, window, valid).to(dtype)
            total = tl.dot(tl.trans(won), patch, total, input_precision=PRODUCT)
    target = ((client * SPLITS + split) * 32 + before)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(sums + target, total)
