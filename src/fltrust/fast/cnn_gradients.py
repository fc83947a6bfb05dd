"""Every client's gradient of the paper's CNN (Table II, 1 x 28 x 28 images, 10 classes) on a CUDA device, in seven fused kernels.

Import this file only where the tensors are on such a device: it needs Triton.

All clients start a local step from the same weights, so one forward and one backward pass serve the examples of all of them;
only the gradients of the weights are per client. What lies between the kernels is small and stays in the L2 cache:

    pooled   (e, 12, 12, 32)  after the first pooling and ReLU; channel 30 is 1, so that a bias is one more weight
    winner1  (e, 12, 12, 32)  which of the four windows under a pooled value had the largest, 4 where ReLU let nothing through
    hidden   (e, 25, 64)      after the second pooling and ReLU
    winner2  (e, 25, 64)      as winner1
    d_fc1    (e, 128)         the loss by the input of the hidden layer's ReLU
    d_hidden (e, 25, 64)      the loss by `hidden`
    d_pooled (e, 12, 12, 32)  the loss by `pooled`

The second pooling looks at 10 x 10 of 11 x 11 values and so at 12 x 12 of the 13 x 13 that come from the first.
n clients, b examples each, e = n * b; channels come last and are padded to powers of two, as the tensor cores want them.

In float32 each operand of a product is stored as three bfloat16 parts that add up to it (24 bits, the range of float32), and a
product is the six products of parts that matter: the tensor cores multiply bfloat16 eight times faster than float32.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

OPERANDS = {  # the type of matrix products' operands, and how many parts each has; sums are float32 in all
    "float32": (torch.bfloat16, 3),
    "tf32": (torch.float32, 1),
    "float16": (torch.float16, 1),
}
MOST_EXAMPLES = 2**31 // (3 * 12 * 12 * 32)  # the kernels count in 32 bits
GROUP = 32  # examples whose gradients are summed by one program
SPLITS = 16  # programs that share a group's gradient of the first layer


def _launch(block: int, warps: int, stages: int) -> dict[str, int]:
    return {"BLOCK": block, "num_warps": warps, "num_stages": stages}


LAUNCHES = {  # by parts: the fastest of a sweep on an H200
    1: {
        "conv1": _launch(64, 4, 3),
        "conv2": _launch(64, 4, 4),
        "head": _launch(64, 4, 3),
        "conv2_backward": _launch(32, 4, 2),
        "pooled_backward": _launch(128, 8, 1),
        "conv1_backward": _launch(32, 4, 1),
    },
    3: {
        "conv1": _launch(64, 4, 3),
        "conv2": _launch(64, 4, 3),
        "head": _launch(64, 4, 2),  # a third stage would not fit into the shared memory of smaller GPUs
        "conv2_backward": _launch(16, 4, 2),
        "pooled_backward": _launch(128, 8, 1),
        "conv1_backward": _launch(32, 4, 1),
    },
}

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

    examples = n * b
    if examples > MOST_EXAMPLES:
        few = [part.split(MOST_EXAMPLES // b) for part in (images, labels, share)]
        return torch.cat([cnn_gradients(weights, some, truths, part, precision) for some, truths, part in zip(*few, strict=True)])
    dtype, parts = OPERANDS[precision]
    sizes = LAUNCHES[parts]
    largest = share.abs().amax().clamp(min=1e-30)
    share = (
        share / largest
    ).contiguous()  # so that float16 holds what flows back, however small the shares; the gradients are multiplied by it
    images, labels = images.contiguous(), labels.contiguous()

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=weights.device)

    def blocks(items: int) -> Callable[[dict[str, int]], tuple[int]]:
        return lambda meta: (triton.cdiv(items, meta["BLOCK"]),)

    def operand(*shape: int) -> Tensor:
        return empty(parts, *shape, dtype=dtype)

    parted = _parted(weights, dtype, parts)  # (parts, d)
    kernels = parted.new_zeros(parts, 64, 32, 5, 5)  # the second layer's, with a border of zeros
    kernels[:, :50, :30, 1:4, 1:4] = parted[:, CONV2.value : CONV2_BIAS.value].view(parts, 50, 30, 3, 3)
    conv2 = kernels[:, :, :, 1:4, 1:4].permute(0, 3, 4, 2, 1).contiguous()  # (parts, 3, 3, 32, 64)
    # What a 2 x 2 block (y, x) of `pooled` gets back from window (1 - wy, 1 - wx) of the pooled position (-ny, -nx) away is
    # the tap (y + wy + 2 * ny - 1, x + wx + 2 * nx - 1), zero where there is none.
    back = kernels.as_strided((parts, 2, 2, 2, 2, 64, 2, 2, 32), (51200, 10, 2, 5, 1, 800, 5, 1, 25))
    back = back.contiguous()  # (parts, ny, nx, wy, wx, 64, y, x, 32)
    fc1 = parted.new_zeros(parts, 128, 25, 64)
    fc1[:, :100, :, :50] = parted[:, FC1.value : FC1_BIAS.value].view(parts, 100, 50, 25).transpose(2, 3)

    pooled, winner1 = operand(examples, 12, 12, 32), empty(examples, 12, 12, 32, dtype=torch.uint8)
    _conv1[blocks(examples * 144)](images, weights, pooled, winner1, examples * 144, parts, **sizes["conv1"])
    hidden, winner2 = operand(examples, 25, 64), empty(examples, 25, 64, dtype=torch.uint8)
    _conv2[blocks(examples * 25)](pooled, conv2, weights, hidden, winner2, examples * 25, parts, **sizes["conv2"])

    gradients = empty(n, D.value)
    d_fc1, d_hidden = operand(examples, 128), operand(examples, 25, 64)
    batch = max(16, triton.next_power_of_2(b))
    _head[(n,)](hidden, fc1, weights, labels, share, largest, d_fc1, gradients, n, b, parts, batch, **sizes["head"])
    _fc1_backward[(n, 25)](hidden, fc1, largest, d_fc1, d_hidden, gradients, n, b, parts, batch)
    _conv2_backward[(n, 3)](pooled, winner2, largest, d_hidden, gradients, n, b, parts, **sizes["conv2_backward"])
    d_pooled = operand(examples, 12, 12, 32)
    _pooled_backward[blocks(examples * 36)](winner2, d_hidden, back, d_pooled, examples * 36, parts, **sizes["pooled_backward"])
    sums = empty(n, SPLITS, 2, 2, 32, 4, 4)  # (wy, wx, channel, y, x)
    bias_sums = empty(n, SPLITS, 32)
    _conv1_backward[(n, SPLITS)](images, winner1, d_pooled, sums, bias_sums, n, b, SPLITS, parts, **sizes["conv1_backward"])
    sums, bias_sums = sums.sum(1) * largest, bias_sums.sum(1) * largest
    windows = [sums[:, wy, wx, :30, wy : wy + 3, wx : wx + 3] for wy in (0, 1) for wx in (0, 1)]  # a window's 3 x 3 of 4 x 4 pixels
    torch.sum(torch.stack(windows), 0, out=gradients[:, : CONV1_BIAS.value].view(n, 30, 3, 3))
    gradients[:, CONV1_BIAS.value : CONV2.value] = bias_sums[:, :30]
    return gradients


def _parted(values: Tensor, dtype: torch.dtype, parts: int) -> Tensor:
    """(parts, ...): float32 values as a sum of operands, largest first."""
    rest, found = values, []
    for _ in range(parts):
        found.append(rest.to(dtype))
        rest = rest - found[-1]
    return torch.stack(found)


@triton.jit
def _split(values, dtype: tl.constexpr, PARTS: tl.constexpr):
    """As `_parted`; where there is one part, it stands in the place of the others."""
    large = values.to(dtype)
    if PARTS == 1:
        return large, large, large
    middle = (values - large.to(tl.float32)).to(dtype)
    return large, middle, (values - large.to(tl.float32) - middle.to(tl.float32)).to(dtype)


@triton.jit
def _load(source, plane, mask, PARTS: tl.constexpr):
    """The parts of an operand, each a plane away from the one before."""
    other = None if mask is None else 0.0
    large = tl.load(source, mask, other)
    if PARTS == 1:
        return large, large, large
    return large, tl.load(source + plane, mask, other), tl.load(source + 2 * plane, mask, other)


@triton.jit
def _store(target, plane, values, mask, PARTS: tl.constexpr):
    large, middle, small = _split(values, target.dtype.element_ty, PARTS)
    tl.store(target, large, mask)
    if PARTS == 3:
        tl.store(target + plane, middle, mask)
        tl.store(target + 2 * plane, small, mask)


@triton.jit
def _product(first, second, total, PARTS: tl.constexpr):
    """total + first @ second; of parts, the smallest products first, and those of less than 2**-24 are left out.

    The tensor cores cut off what they add up. So in float32 they add few terms, and `total` is added to by ordinary addition, which rounds.
    """
    if PARTS == 1:
        return tl.dot(first[0], second[0], total)
    part = tl.dot(first[2], second[0])
    part = tl.dot(first[1], second[1], part)
    part = tl.dot(first[0], second[2], part)
    part = tl.dot(first[1], second[0], part)
    part = tl.dot(first[0], second[1], part)
    return total + tl.dot(first[0], second[0], part)


@triton.jit
def _where(condition, parts):
    return tl.where(condition, parts[0], 0.0), tl.where(condition, parts[1], 0.0), tl.where(condition, parts[2], 0.0)


@triton.jit
def _turned(parts):
    return tl.trans(parts[0]), tl.trans(parts[1]), tl.trans(parts[2])


@triton.jit
def _pixels(images, example, y, x, valid):
    """The 4 x 4 pixels under a value of `pooled`, (positions, 16)."""
    pixel = tl.arange(0, 16)[None, :]
    corner = example * 784 + 2 * y * 28 + 2 * x
    return tl.load(images + corner[:, None] + pixel // 4 * 28 + pixel % 4, valid[:, None], 0.0)


@triton.jit
def _conv1(images, weights, pooled, winner1, positions, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Convolution 1 -> 30, max-pooling, ReLU; the four windows under a pooled value are four kernels over the same 4 x 4 pixels."""
    dtype: tl.constexpr = pooled.dtype.element_ty
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = position < positions
    pixels = _split(_pixels(images, position // 144, position // 12 % 12, position % 12, valid), dtype, PARTS)
    pixel, column, channel = tl.arange(0, 16)[:, None], tl.arange(0, 128)[None, :], tl.arange(0, 32)[None, :]
    window, out = column // 32, column % 32
    dy, dx = pixel // 4 - window // 2, pixel % 4 - window % 2
    is_tap = (dy >= 0) & (dy < 3) & (dx >= 0) & (dx < 3) & (out < 30)
    weight = _split(tl.load(weights + out * 9 + dy * 3 + dx, is_tap, 0.0), dtype, PARTS)

    values = tl.reshape(_product(pixels, weight, tl.zeros((BLOCK, 128), tl.float32), PARTS), (BLOCK, 4, 32))
    best, winner = tl.max(values, 1, return_indices=True)
    best += tl.load(weights + CONV1_BIAS + channel, channel < 30, 0.0)
    closed = best <= 0
    target = position[:, None] * 32 + channel
    _store(pooled + target, positions * 32, tl.where(channel == 30, 1.0, tl.where(closed, 0.0, best)), valid[:, None], PARTS)
    tl.store(winner1 + target, tl.where(closed, CLOSED, winner).to(tl.uint8), valid[:, None])


@triton.jit
def _conv2(pooled, conv2, weights, hidden, winner2, positions, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Convolution 30 -> 50 where pooling looks (10 x 10 of 11 x 11), max-pooling, ReLU."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    example, y, x = position // 25, position // 5 % 5, position % 5
    mask = (position < positions)[:, None]
    before, channel = tl.arange(0, 32), tl.arange(0, 64)
    plane = positions // 25 * 144 * 32
    source = pooled + (example * 144 + 2 * y * 12 + 2 * x)[:, None] * 32 + before[None, :]
    weight = conv2 + before[:, None] * 64 + channel[None, :]
    bias = tl.load(weights + CONV2_BIAS + channel, channel < 50, 0.0)[None, :]

    best = tl.full((BLOCK, 64), float("-inf"), tl.float32)
    winner = tl.full((BLOCK, 64), CLOSED, tl.int32)
    for window in tl.static_range(4):
        value = tl.zeros((BLOCK, 64), tl.float32) + bias
        for tap in range(9):
            shift = (window // 2 + tap // 3) * 12 + window % 2 + tap % 3
            seen, taps = _load(source + shift * 32, plane, mask, PARTS), _load(weight + tap * 2048, 9 * 2048, None, PARTS)
            value = _product(seen, taps, value, PARTS)
        larger = (value > best) | (value != value)
        best, winner = tl.where(larger, value, best), tl.where(larger, window, winner)

    closed = best <= 0
    target = position[:, None] * 64 + channel[None, :]
    _store(hidden + target, positions * 64, tl.where(closed, 0.0, best), mask, PARTS)
    tl.store(winner2 + target, tl.where(closed, CLOSED, winner).to(tl.uint8), mask)


@triton.jit
def _head(
    hidden,
    fc1,
    weights,
    labels,
    share,
    largest,
    d_fc1,
    gradients,
    n,
    B: tl.constexpr,
    PARTS: tl.constexpr,
    BATCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The two linear layers and the loss of one client, forward and back to the hidden layer's ReLU."""
    dtype: tl.constexpr = hidden.dtype.element_ty
    client, row = tl.program_id(0), tl.arange(0, BATCH)
    example, valid = client * B + row, row < B
    feature, unit, label = tl.arange(0, BLOCK), tl.arange(0, 128), tl.arange(0, 16)

    inner = tl.zeros((BATCH, 128), tl.float32) + tl.load(weights + FC1_BIAS + unit, unit < 100, 0.0)[None, :]
    for start in range(0, 1600, BLOCK):
        activation = _load(hidden + example[:, None] * 1600 + start + feature[None, :], n * B * 1600, valid[:, None], PARTS)
        weight = _load(fc1 + unit[None, :] * 1600 + start + feature[:, None], 128 * 1600, None, PARTS)
        inner = _product(activation, weight, inner, PARTS)
    closed = inner <= 0
    active = _split(tl.where(closed, 0.0, inner), dtype, PARTS)

    is_weight = (label < 10)[:, None] & (unit < 100)[None, :]
    place = FC2 + label[:, None] * 100 + unit[None, :]  # (classes, units)
    fc2 = _split(tl.load(weights + place, is_weight, 0.0), dtype, PARTS)
    bias = tl.load(weights + FC2_BIAS + label, label < 10, float("-inf"))
    logits = _product(active, _turned(fc2), tl.zeros((BATCH, 16), tl.float32), PARTS) + bias[None, :]
    odds = tl.exp(logits - tl.max(logits, 1)[:, None])
    truth = tl.load(labels + example, valid, 0)
    error = odds / tl.sum(odds, 1)[:, None] - (label[None, :] == truth[:, None]).to(tl.float32)
    error *= tl.load(share + example, valid, 0.0)[:, None]  # the loss by the logits

    errors = _split(error, dtype, PARTS)
    d_inner = tl.where(closed, 0.0, _product(errors, fc2, tl.zeros((BATCH, 128), tl.float32), PARTS))
    _store(d_fc1 + example[:, None] * 128 + unit[None, :], n * B * 128, d_inner, valid[:, None], PARTS)
    gradient, size = gradients + client.to(tl.int64) * D, tl.load(largest)
    tl.store(gradient + place, size * _product(_turned(errors), active, tl.zeros((16, 128), tl.float32), PARTS), is_weight)
    tl.store(gradient + FC2_BIAS + label, size * tl.sum(error, 0), label < 10)
    tl.store(gradient + FC1_BIAS + unit, size * tl.sum(d_inner, 0), unit < 100)


@triton.jit
def _fc1_backward(hidden, fc1, largest, d_fc1, d_hidden, gradients, n, B: tl.constexpr, PARTS: tl.constexpr, BATCH: tl.constexpr):
    """The hidden layer's weights, nine tenths of all parameters, 50 features per program; and its input, one of 25 positions each."""
    client, row, part = tl.program_id(0), tl.arange(0, BATCH), tl.program_id(1)
    example, valid = client * B + row, (row < B)[:, None]
    unit, channel = tl.arange(0, 128), tl.arange(0, 64)
    error = _load(d_fc1 + example[:, None] * 128 + unit[None, :], n * B * 128, valid, PARTS)

    feature = part * 50 + channel  # in PyTorch's order: channel * 25 + position
    is_feature = (channel < 50)[None, :]
    source = hidden + example[:, None] * 1600 + (feature % 25 * 64 + feature // 25)[None, :]
    activation = _load(source, n * B * 1600, valid & is_feature, PARTS)
    gradient = gradients + client.to(tl.int64) * D + FC1 + unit[:, None] * 1250 + feature[None, :]
    product = _product(_turned(error), activation, tl.zeros((128, 64), tl.float32), PARTS)
    tl.store(gradient, tl.load(largest) * product, (unit < 100)[:, None] & is_feature)

    place = part * 64 + channel[None, :]
    weight = _load(fc1 + unit[:, None] * 1600 + place, 128 * 1600, None, PARTS)
    product = _product(error, weight, tl.zeros((BATCH, 64), tl.float32), PARTS)
    _store(d_hidden + example[:, None] * 1600 + place, n * B * 1600, product, valid, PARTS)


@triton.jit
def _conv2_backward(pooled, winner2, largest, d_hidden, gradients, n, B: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The second convolution's weights, one row of its 3 x 3 kernel per program, summed over the b * 25 pooled positions."""
    client, dy = tl.program_id(0), tl.program_id(1)
    channel, column = tl.arange(0, 64), tl.arange(0, 128)  # a column is (dx, channel before); dx = 3 is padding
    dx, before = column // 32, column % 32
    total = tl.zeros((64, 128), tl.float32)
    for start in range(0, B * 25, BLOCK):
        item = start + tl.arange(0, BLOCK)
        position, valid = client * B * 25 + item, (item < B * 25)[:, None]
        example, y, x = position // 25, position // 5 % 5, position % 5
        error = _load(d_hidden + position[:, None] * 64 + channel[None, :], n * B * 1600, valid, PARTS)
        winner = tl.load(winner2 + position[:, None] * 64 + channel[None, :], valid, CLOSED)
        source = pooled + (example * 144 + (2 * y + dy) * 12 + 2 * x)[:, None] * 32 + column[None, :]
        for window in tl.static_range(4):
            won = _where(winner == window, error)
            seen = _load(source + (window // 2 * 12 + window % 2) * 32, n * B * 144 * 32, valid & (dx < 3)[None, :], PARTS)
            total = _product(_turned(won), seen, total, PARTS)

    gradient, total = gradients + client.to(tl.int64) * D, tl.load(largest) * total
    weight = CONV2 + channel[:, None] * 270 + (before * 9 + dy * 3 + dx)[None, :]
    tl.store(gradient + weight, total, (channel < 50)[:, None] & ((before < 30) & (dx < 3))[None, :])
    is_bias = (channel < 50)[:, None] & ((column == 30) & (dy == 0))[None, :]  # channel 30 is 1 everywhere
    tl.store(gradient + CONV2_BIAS + channel[:, None] + column[None, :] * 0, total, is_bias)


@triton.jit
def _pooled_backward(winner2, d_hidden, back, d_pooled, blocks, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The loss by `pooled`, in blocks of 2 x 2 values (6 x 6 blocks per example), each of which four values of `hidden` depend on."""
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    example, y, x = block // 36, block // 6 % 6, block % 6
    channel, column = tl.arange(0, 64), tl.arange(0, 128)  # a column is (y, x, channel before) in a block
    total = tl.zeros((BLOCK, 128), tl.float32)
    for step in range(16):
        neighbour, window = step // 4, 3 - step % 4
        above, left = y - neighbour // 2, x - neighbour % 2
        inside = ((block < blocks) & (above >= 0) & (above < 5) & (left >= 0) & (left < 5))[:, None]
        source = (example * 25 + above * 5 + left)[:, None] * 64 + channel[None, :]
        won = tl.load(winner2 + source, inside, CLOSED) == window
        error = _where(won, _load(d_hidden + source, blocks // 36 * 1600, inside, PARTS))
        weight = _load(back + (step * 64 + channel[:, None]) * 128 + column[None, :], 16 * 64 * 128, None, PARTS)
        total = _product(error, weight, total, PARTS)
    y, x = 2 * y[:, None] + (column // 64)[None, :], 2 * x[:, None] + (column // 32 % 2)[None, :]
    target = (example[:, None] * 144 + y * 12 + x) * 32 + (column % 32)[None, :]
    _store(d_pooled + target, blocks * 128, total, (block < blocks)[:, None], PARTS)


@triton.jit
def _conv1_backward(
    images, winner1, d_pooled, sums, bias_sums, n, B: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """The first convolution's weights and bias: for each of the four windows, the sum over positions of errors times the 4 x 4 pixels."""
    dtype: tl.constexpr = d_pooled.dtype.element_ty
    client, split = tl.program_id(0), tl.program_id(1)
    channel, column = tl.arange(0, 32), tl.arange(0, 128)  # a column is (window, channel)
    total, bias_total = tl.zeros((128, 16), tl.float32), tl.zeros((32,), tl.float32)
    for start in range(0, B * 144, SPLITS * BLOCK):
        item = start + split * BLOCK + tl.arange(0, BLOCK)
        position, valid = client * B * 144 + item, item < B * 144
        pixels = _split(_pixels(images, position // 144, position // 12 % 12, position % 12, valid), dtype, PARTS)
        source = position[:, None] * 32 + channel[None, :]
        winner = tl.load(winner1 + source, valid[:, None], CLOSED)
        error = _load(d_pooled + source, n * B * 144 * 32, valid[:, None], PARTS)
        for part in tl.static_range(PARTS):
            bias_total += tl.sum(tl.where(winner == CLOSED, 0.0, error[part].to(tl.float32)), 0)
        won = winner[:, None, :] == tl.arange(0, 4)[None, :, None]
        total = _product(_by_window(won, error, BLOCK), pixels, total, PARTS)
    part = (client * SPLITS + split).to(tl.int64)
    tl.store(sums + (part * 128 + column)[:, None] * 16 + tl.arange(0, 16)[None, :], total)
    tl.store(bias_sums + part * 32 + channel, bias_total)


@triton.jit
def _by_window(won, error, BLOCK: tl.constexpr):
    """The parts (positions, channels) of an error as (windows * channels, positions), zero where another window won."""
    large = tl.trans(tl.reshape(tl.where(won, error[0][:, None, :], 0.0), (BLOCK, 128)))
    middle = tl.trans(tl.reshape(tl.where(won, error[1][:, None, :], 0.0), (BLOCK, 128)))
    return large, middle, tl.trans(tl.reshape(tl.where(won, error[2][:, None, :], 0.0), (BLOCK, 128)))
