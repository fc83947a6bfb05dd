"""Convolutions of all clients' images, and each client's gradient of their weights: the Triton kernels.

The pixels under one row of a kernel lie side by side, so (dx, channel) is one long axis: the columns of a matrix (positions, columns)
that is never stored. Images are stored channels last, each client's examples side by side.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

WIDE = 64  # output channels that one program can hold in its registers


@triton.jit
def _under(images, position, valid, dy, column, BEFORE: tl.constexpr, IMAGE_HEIGHT: tl.constexpr, IMAGE_WIDTH: tl.constexpr,
           HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """The pixels under row dy of the kernel, (positions, columns)."""
    y, x = position // WIDTH % HEIGHT * STRIDE + dy - PADDING, position % WIDTH * STRIDE - PADDING
    pixel = (position // (HEIGHT * WIDTH) * IMAGE_HEIGHT + y) * IMAGE_WIDTH + x
    beside = x[:, None] + (column // BEFORE)[None, :]
    inside = (valid & (y >= 0) & (y < IMAGE_HEIGHT))[:, None] & (column < COLUMNS)[None, :] & (beside >= 0) & (beside < IMAGE_WIDTH)
    return tl.load(images + pixel.to(tl.int64)[:, None] * BEFORE + column[None, :], inside, 0.0)


def convolve(images: Tensor, weight: Tensor, stride: int, padding: int, product: str) -> Tensor:
    """torch.conv2d of square kernels; cuDNN has nothing fast for 16 channels."""
    out, before, side, _ = weight.shape
    if out > WIDE or (images.dtype == torch.float16 and min(before, out) >= 32):
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


def convolution_sums(n: int, images: Tensor, error: Tensor, shape: torch.Size, stride: int, padding: int, product: str) -> Tensor:
    """Each client's gradient of a convolution's weights, (n, out, in, side, side)."""
    out, before, side, _ = shape
    columns, positions = side * before, error.numel() // (n * out)
    block, rows = min(64, max(16, triton.next_power_of_2(columns))), min(WIDE, max(16, triton.next_power_of_2(out)))
    groups, step = triton.cdiv(side, 3), 64
    blocks = triton.cdiv(columns, block) * triton.cdiv(out, rows)
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
    across = (COLUMNS + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS  # programs side by side over the columns; then come further channels
    channel, column = part // across * ROWS + tl.arange(0, ROWS), part % across * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
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
