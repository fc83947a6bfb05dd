"""Batch norm with the statistics of each client's own batch, with ReLU and a shortcut in the same pass: the Triton kernels.

n clients; images (examples, channels, height, width) are stored channels last, each client's examples side by side.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

SPLITS = 16  # programs that share a client's sums over positions


def channel_sums(n: int, first: Tensor, second: Tensor, cut=None, result=None, passed=None) -> Tensor:
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


def per_channel(kernel, sums: Tensor, *others) -> None:
    n, splits, _, channels = sums.shape
    kernel[(n,)](sums, *others, channels, splits, triton.next_power_of_2(channels))


@triton.jit
def _both_sums(sums, channels: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    channel = tl.arange(0, WIDTH)
    place = sums + (tl.program_id(0) * SPLITS + tl.arange(0, SPLITS))[:, None] * 2 * channels + channel[None, :]
    known = (channel < channels)[None, :]
    return tl.sum(tl.load(place, known, 0.0), 0), tl.sum(tl.load(place + channels, known, 0.0), 0)


@triton.jit
def statistics_kernel(
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
def statistics_back_kernel(
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


def normalise(images: Tensor, slope: Tensor, offset: Tensor, beside: Tensor | None, relu: bool) -> Tensor:
    """slope * images + offset, with slope and offset (n, channels); plus what is beside it; what is below zero cut if `relu`."""
    return _pixelwise(_normalise_kernel, images, slope, offset, beside, relu)


def combine(first: Tensor, a: Tensor, second: Tensor, b: Tensor, c: Tensor, cut) -> Tensor:
    """a * first + b * second + c, with a, b, c (n, channels), and of `first` only what ReLU lets through (see channel_sums)."""
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
