"""Every client's gradient of the paper's CNN (Table II, 1 x 28 x 28 images, 10 classes) on a CUDA device, in seven fused kernels.

Import this file only where the tensors are on such a device: it needs Triton.

All clients start a local step from the same weights, so one forward and one backward pass serve the examples of all of them;
only the gradients of the weights are per client. What lies between the kernels is small and stays in the L2 cache:

    pooled   (e, 13, 13, 32)  after the first pooling and ReLU; channel 30 is 1, so that a bias is one more weight
    winner1  (e, 13, 13, 32)  which of the four windows under a pooled value had the largest, 4 where ReLU let nothing through
    hidden   (e, 25, 64)      after the second pooling and ReLU
    winner2  (e, 25, 64)      as winner1
    d_fc1    (e, 128)         the loss by the input of the hidden layer's ReLU
    d_hidden (e, 25, 64)      the loss by `hidden`
    d_pooled (e, 13, 13, 32)  the loss by `pooled`

n clients, b examples each, e = n * b; channels come last and are padded to powers of two, as the tensor cores want them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from fltrust.errors import InputError

PRECISIONS = {  # the type of matrix products' operands, and how float32 ones are multiplied; sums are float32 in all
    "float32": (torch.float32, "tf32x3"),  # three TF32 products for each one: float32's accuracy on tensor cores
    "tf32": (torch.float32, "tf32"),
    "float16": (torch.float16, "tf32"),
}
MOST_EXAMPLES = 2**31 // (13 * 13 * 32)
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
CLOSED = tl.constexpr(4)  # ReLU let nothing through, so there is no winner


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
    if examples >= MOST_EXAMPLES:
        raise InputError(
            f"{examples} examples at once; the kernels count in 32 bits, so at most {MOST_EXAMPLES - 1} fit: take fewer clients"
        )
    images, labels, share = images.contiguous(), labels.contiguous(), share.contiguous()

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=weights.device)

    kernels = weights.new_zeros(64, 32, 5, 5, dtype=dtype)  # the second layer's, with a border of zeros
    kernels[:50, :30, 1:4, 1:4] = weights[CONV2.value : CONV2_BIAS.value].view(50, 30, 3, 3)
    conv2 = kernels[:, :, 1:4, 1:4].permute(2, 3, 1, 0).contiguous()  # (3, 3, 32, 64)
    # What a 2 x 2 block (y, x) of `pooled` gets back from window (1 - wy, 1 - wx) of the pooled position (-ny, -nx) away is
    # the tap (y + wy + 2 * ny - 1, x + wx + 2 * nx - 1), zero where there is none.
    back = kernels.as_strided((2, 2, 2, 2, 64, 2, 2, 32), (10, 2, 5, 1, 800, 5, 1, 25)).contiguous()  # (ny, nx, wy, wx, 64, y, x, 32)
    fc1 = weights.new_zeros(128, 25, 64, dtype=dtype)
    fc1[:100, :, :50] = weights[FC1.value : FC1_BIAS.value].view(100, 50, 25).transpose(1, 2)

    pooled, winner1 = empty(examples, 13, 13, 32), empty(examples, 13, 13, 32, dtype=torch.uint8)
    _conv1[(triton.cdiv(examples * 169, 64),)](images, weights, pooled, winner1, examples * 169, product, 64)
    hidden, winner2 = empty(examples, 25, 64), empty(examples, 25, 64, dtype=torch.uint8)
    _conv2[(triton.cdiv(examples * 25, 64),)](pooled, conv2, weights, hidden, winner2, examples * 25, product, 64, num_stages=4)

    gradients = empty(n, D.value, dtype=torch.float32)
    d_fc1, d_hidden = empty(examples, 128), empty(examples, 25, 64)
    batch = max(16, triton.next_power_of_2(b))
    _head[(n,)](hidden, fc1, weights, labels, share, d_fc1, gradients, b, product, batch, 64)
    _fc1_backward[(n, 25)](hidden, fc1, d_fc1, d_hidden, gradients, b, product, batch)
    _conv2_backward[(n, 3)](pooled, winner2, d_hidden, gradients, b, product, 32, num_stages=2)
    d_pooled = empty(examples, 13, 13, 32)
    _pooled_backward[(triton.cdiv(examples * 49, 64),)](winner2, d_hidden, back, d_pooled, examples * 49, product, 64, num_stages=2)
    sums = empty(n, SPLITS, 2, 2, 32, 4, 4, dtype=torch.float32)  # (wy, wx, channel, y, x)
    bias_sums = empty(n, SPLITS, 32, dtype=torch.float32)
    _conv1_backward[(n, SPLITS)](images, winner1, d_pooled, sums, bias_sums, b, SPLITS, product, 64)
    sums = sums.sum(1)
    windows = [sums[:, wy, wx, :30, wy : wy + 3, wx : wx + 3] for wy in (0, 1) for wx in (0, 1)]  # a window's 3 x 3 of 4 x 4 pixels
    torch.sum(torch.stack(windows), 0, out=gradients[:, : CONV1_BIAS.value].view(n, 30, 3, 3))
    torch.sum(bias_sums[:, :, :30], 1, out=gradients[:, CONV1_BIAS.value : CONV2.value])
    return gradients


@triton.jit
def _pixels(images, example, y, x, valid):
    """The 4 x 4 pixels under a value of `pooled`, (positions, 16)."""
    pixel = tl.arange(0, 16)[None, :]
    corner = example * 784 + 2 * y * 28 + 2 * x
    return tl.load(images + corner[:, None] + pixel // 4 * 28 + pixel % 4, valid[:, None], 0.0)


@triton.jit
def _conv1(images, weights, pooled, winner1, positions, PRODUCT: tl.constexpr, BLOCK: tl.constexpr):
    """Convolution 1 -> 30, max-pooling, ReLU; the four windows under a pooled value are four kernels over the same 4 x 4 pixels."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = position < positions
    pixels = _pixels(images, position // 169, position // 13 % 13, position % 13, valid).to(pooled.dtype.element_ty)
    pixel, column, channel = tl.arange(0, 16)[:, None], tl.arange(0, 128)[None, :], tl.arange(0, 32)[None, :]
    window, out = column // 32, column % 32
    dy, dx = pixel // 4 - window // 2, pixel % 4 - window % 2
    is_tap = (dy >= 0) & (dy < 3) & (dx >= 0) & (dx < 3) & (out < 30)
    weight = tl.load(weights + out * 9 + dy * 3 + dx, is_tap, 0.0).to(pooled.dtype.element_ty)

    values = tl.reshape(tl.dot(pixels, weight, input_precision=PRODUCT), (BLOCK, 4, 32))
    best, winner = tl.max(values, 1, return_indices=True)
    best += tl.load(weights + CONV1_BIAS + channel, channel < 30, 0.0)
    closed = best <= 0
    target = position[:, None] * 32 + channel
    tl.store(pooled + target, tl.where(channel == 30, 1.0, tl.where(closed, 0.0, best)), valid[:, None])
    tl.store(winner1 + target, tl.where(closed, CLOSED, winner).to(tl.uint8), valid[:, None])


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
    winner = tl.full((BLOCK, 64), CLOSED, tl.int32)
    for window in tl.static_range(4):
        value = tl.zeros((BLOCK, 64), tl.float32) + bias
        for tap in range(9):
            shift = (window // 2 + tap // 3) * 13 + window % 2 + tap % 3
            value = tl.dot(tl.load(source + shift * 32, mask, 0.0), tl.load(weight + tap * 2048), value, input_precision=PRODUCT)
        larger = (value > best) | (value != value)
        best, winner = tl.where(larger, value, best), tl.where(larger, window, winner)

    closed = best <= 0
    target = position[:, None] * 64 + channel[None, :]
    tl.store(hidden + target, tl.where(closed, 0.0, best), mask)
    tl.store(winner2 + target, tl.where(closed, CLOSED, winner).to(tl.uint8), mask)


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
    for start in range(0, 1600, BLOCK):
        activation = tl.load(hidden + example[:, None] * 1600 + start + feature[None, :], valid[:, None], 0.0)
        weight = tl.load(fc1 + unit[None, :] * 1600 + start + feature[:, None])
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
def _fc1_backward(hidden, fc1, d_fc1, d_hidden, gradients, B: tl.constexpr, PRODUCT: tl.constexpr, BATCH: tl.constexpr):
    """The hidden layer's weights, nine tenths of all parameters, 50 features per program; and its input, one of 25 positions each."""
    client, row, part = tl.program_id(0), tl.arange(0, BATCH), tl.program_id(1)
    example, valid = client * B + row, (row < B)[:, None]
    unit, channel = tl.arange(0, 128), tl.arange(0, 64)
    error = tl.load(d_fc1 + example[:, None] * 128 + unit[None, :], valid, 0.0)

    feature = part * 50 + channel  # in PyTorch's order: channel * 25 + position
    is_feature = (channel < 50)[None, :]
    activation = tl.load(hidden + example[:, None] * 1600 + (feature % 25 * 64 + feature // 25)[None, :], valid & is_feature, 0.0)
    gradient = gradients + client.to(tl.int64) * D + FC1 + unit[:, None] * 1250 + feature[None, :]
    tl.store(gradient, tl.dot(tl.trans(error), activation, input_precision=PRODUCT), (unit < 100)[:, None] & is_feature)

    place = part * 64 + channel[None, :]
    weight = tl.load(fc1 + unit[:, None] * 1600 + place)
    tl.store(d_hidden + example[:, None] * 1600 + place, tl.dot(error, weight, input_precision=PRODUCT), valid)


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
        winner = tl.load(winner2 + position[:, None] * 64 + channel[None, :], valid, CLOSED)
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
def _pooled_backward(winner2, d_hidden, back, d_pooled, blocks, PRODUCT: tl.constexpr, BLOCK: tl.constexpr):
    """The loss by `pooled`, in blocks of 2 x 2 values (7 x 7 blocks per example), each of which four values of `hidden` depend on."""
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    example, y, x = block // 49, block // 7 % 7, block % 7
    channel, column = tl.arange(0, 64), tl.arange(0, 128)  # a column is (y, x, channel before) in a block
    total = tl.zeros((BLOCK, 128), tl.float32)
    for step in range(16):
        neighbour, window = step // 4, 3 - step % 4
        above, left = y - neighbour // 2, x - neighbour % 2
        inside = ((block < blocks) & (above >= 0) & (above < 5) & (left >= 0) & (left < 5))[:, None]
        source = (example * 25 + above * 5 + left)[:, None] * 64 + channel[None, :]
        won = tl.load(winner2 + source, inside, CLOSED) == window
        error = tl.where(won, tl.load(d_hidden + source, inside, 0.0), 0.0)
        weight = tl.load(back + (step * 64 + channel[:, None]) * 128 + column[None, :])
        total = tl.dot(error, weight, total, input_precision=PRODUCT)
    y, x = 2 * y[:, None] + (column // 64)[None, :], 2 * x[:, None] + (column // 32 % 2)[None, :]
    target = (example[:, None] * 169 + y * 13 + x) * 32 + (column % 32)[None, :]
    tl.store(d_pooled + target, total, (block < blocks)[:, None] & (y < 13) & (x < 13))


@triton.jit
def _conv1_backward(
    images, winner1, d_pooled, sums, bias_sums, B: tl.constexpr, SPLITS: tl.constexpr, PRODUCT: tl.constexpr, BLOCK: tl.constexpr
):
    """The first convolution's weights and bias: for each of the four windows, the sum over positions of errors times the 4 x 4 pixels."""
    client, split = tl.program_id(0), tl.program_id(1)
    channel, column = tl.arange(0, 32), tl.arange(0, 128)  # a column is (window, channel)
    total, bias_total = tl.zeros((128, 16), tl.float32), tl.zeros((32,), tl.float32)
    for start in range(0, B * 169, SPLITS * BLOCK):
        item = start + split * BLOCK + tl.arange(0, BLOCK)
        position, valid = client * B * 169 + item, item < B * 169
        pixels = _pixels(images, position // 169, position // 13 % 13, position % 13, valid).to(d_pooled.dtype.element_ty)
        source = position[:, None] * 32 + channel[None, :]
        winner = tl.load(winner1 + source, valid[:, None], CLOSED)
        error = tl.load(d_pooled + source, valid[:, None], 0.0)
        bias_total += tl.sum(tl.where(winner == CLOSED, 0.0, error.to(tl.float32)), 0)
        won = tl.where(winner[:, None, :] == tl.arange(0, 4)[None, :, None], error[:, None, :], 0.0)
        total = tl.dot(tl.trans(tl.reshape(won, (BLOCK, 128))), pixels, total, input_precision=PRODUCT)
    part = client * SPLITS + split
    tl.store(sums + (part * 128 + column)[:, None] * 16 + tl.arange(0, 16)[None, :], total)
    tl.store(bias_sums + part * 32 + channel, bias_total)
