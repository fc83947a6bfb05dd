"""Convolutions of all clients' images, and each client's gradient of their weights: the Triton kernels.

The pixels under one row of a kernel lie side by side, so (dx, channel) is one long axis: the columns of a matrix that is never stored.
Neighbouring positions share most of those pixels, so a strip of them is one row of that matrix: its columns are the pixels under any of
them, and each of them sees its own. Images are stored channels last, each client's examples side by side.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

WIDE = 64  # output channels that one program can hold in its registers


def _strip(width: int, out: int, most: int) -> int:
    """The positions of a strip: the largest power of two that divides the width and has at most `most` outputs."""
    strip = 1
    while width % (2 * strip) == 0 and 2 * strip * out <= most:
        strip *= 2
    return strip


@triton.jit
def _under(images, strip, valid, dy, column, BEFORE: tl.constexpr, IMAGE_HEIGHT: tl.constexpr, IMAGE_WIDTH: tl.constexpr,
           HEIGHT: tl.constexpr, STRIPS: tl.constexpr, STRIDE: tl.constexpr, STEP: tl.constexpr, PADDING: tl.constexpr,
           COLUMNS: tl.constexpr):  # fmt: skip
    """The pixels under row dy of the kernel, (strips, columns); an image has HEIGHT rows of STRIPS strips, STEP pixels apart."""
    y, x = strip // STRIPS % HEIGHT * STRIDE + dy - PADDING, strip % STRIPS * STEP - PADDING
    pixel = (strip // (HEIGHT * STRIPS) * IMAGE_HEIGHT + y) * IMAGE_WIDTH + x
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
    strip = _strip(width, out, WIDE // 2)
    strips, columns = width // strip, ((strip - 1) * stride + side) * before
    narrow = strip * out <= 32  # then small steps through the first-level cache are fastest
    geometry = (before, *images.shape[2:], height, strips, stride, strip * stride, padding, columns)
    rows = len(images) * height * strips
    _convolve_kernel[(triton.cdiv(rows, 128),)](
        images,
        weight.permute(2, 3, 1, 0).contiguous(),
        result,
        rows,
        out,
        strip,
        side,
        *geometry,
        product,
        128,
        max(16, triton.next_power_of_2(strip * out)),
        32,
        num_warps=4,
        num_stages=1 if narrow else 3,
    )
    return result


@triton.jit
def _convolve_kernel(images, weight, result, strips, OUT: tl.constexpr, STRIP: tl.constexpr, SIDE: tl.constexpr,
                     BEFORE: tl.constexpr, IMAGE_HEIGHT: tl.constexpr, IMAGE_WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
                     STRIPS: tl.constexpr, STRIDE: tl.constexpr, STEP: tl.constexpr, PADDING: tl.constexpr, COLUMNS: tl.constexpr,
                     PRODUCT: tl.constexpr, BLOCK: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):  # fmt: skip
    strip, output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, OUTPUTS)[None, :]  # an output is (position, channel)
    valid = strip < strips
    total = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    for dy in range(SIDE):
        for start in range(0, COLUMNS, BLOCK_COLUMNS):
            column = start + tl.arange(0, BLOCK_COLUMNS)
            seen = _under(
                images, strip, valid, dy, column, BEFORE, IMAGE_HEIGHT, IMAGE_WIDTH, HEIGHT, STRIPS, STRIDE, STEP, PADDING, COLUMNS
            )
            tap = column[:, None] - output // OUT * (STRIDE * BEFORE)
            known = (tap >= 0) & (tap < SIDE * BEFORE) & (output < STRIP * OUT)
            taps = tl.load(weight + (dy * SIDE * BEFORE + tap) * OUT + output % OUT, known, 0.0)
            total = tl.dot(seen, taps, total, input_precision=PRODUCT)
    tl.store(result + strip.to(tl.int64)[:, None] * (STRIP * OUT) + output, total, valid[:, None] & (output < STRIP * OUT))


def convolution_sums(n: int, images: Tensor, error: Tensor, shape: torch.Size, stride: int, padding: int, product: str) -> Tensor:
    """Each client's gradient of a convolution's weights, (n, out, in, side, side)."""
    out, before, side, _ = shape
    height, width = error.shape[2:]
    strip = _strip(width, out, WIDE)
    strips, columns, seen = width // strip, ((strip - 1) * stride + side) * before, side * before
    outputs, rows = strip * out, height * strips * (len(error) // n)
    geometry = (before, *images.shape[2:], height, strips, stride, strip * stride, padding, columns)
    block, held = 64 if columns % 64 == 0 else 32, min(WIDE, max(16, triton.next_power_of_2(outputs)))
    groups, step = triton.cdiv(side, 3), 64
    blocks = triton.cdiv(columns, block) * triton.cdiv(outputs, held)
    splits = min(triton.cdiv(rows, step), max(1, 2048 // (n * groups * blocks)))  # programs that share a client's strips
    lines = min(side, 3) * groups  # rows of the kernel; the last ones may not exist
    sums = torch.empty(n, splits, lines, outputs, columns, device=images.device)
    _convolution_sums_kernel[(groups * blocks, n * splits)](
        images, error, sums, rows, splits, groups, lines, outputs, *geometry, product, step, held, block,
        num_warps=2 if held == 16 else 4, num_stages=2,
    )  # fmt: skip
    own = (out * columns + stride * before, outputs * columns, columns, 1)  # each position of a strip has its own outputs and columns
    each = sums.as_strided((n, splits, strip, side, out, seen), (*sums.stride()[:2], *own))
    return each.sum((1, 2)).view(n, side, out, side, before).permute(0, 2, 4, 1, 3)


@triton.jit
def _convolution_sums_kernel(images, error, sums, ROWS: tl.constexpr, SPLITS: tl.constexpr, GROUPS: tl.constexpr, LINES: tl.constexpr,
                             OUTPUTS: tl.constexpr, BEFORE: tl.constexpr, IMAGE_HEIGHT: tl.constexpr, IMAGE_WIDTH: tl.constexpr,
                             HEIGHT: tl.constexpr, STRIPS: tl.constexpr, STRIDE: tl.constexpr, STEP: tl.constexpr, PADDING: tl.constexpr,
                             COLUMNS: tl.constexpr,
                             PRODUCT: tl.constexpr, BLOCK: tl.constexpr, HELD: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):  # fmt: skip
    """Three rows dy of the kernel: the sums over a client's strips of error (strips, outputs)^T times the pixels under each."""
    dy, part = tl.program_id(0) % GROUPS * 3, tl.program_id(0) // GROUPS
    client, split = tl.program_id(1) // SPLITS, tl.program_id(1) % SPLITS
    across = (COLUMNS + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS  # programs side by side over the columns; then come further outputs
    output, column = part // across * HELD + tl.arange(0, HELD), part % across * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    upper = tl.zeros((HELD, BLOCK_COLUMNS), tl.float32)
    middle, lower = upper, upper
    for start in range(0, ROWS, SPLITS * BLOCK):
        item = start + split * BLOCK + tl.arange(0, BLOCK)
        strip, valid = client * ROWS + item, item < ROWS
        known = valid[:, None] & (output < OUTPUTS)[None, :]
        mistake = tl.trans(tl.load(error + strip.to(tl.int64)[:, None] * OUTPUTS + output[None, :], known, 0.0))
        seen = _under(images, strip, valid, dy, column, BEFORE, IMAGE_HEIGHT, IMAGE_WIDTH, HEIGHT, STRIPS, STRIDE, STEP, PADDING, COLUMNS)
        upper = tl.dot(mistake, seen, upper, input_precision=PRODUCT)
        if LINES > 1:
            seen = _under(
                images, strip, valid, dy + 1, column, BEFORE, IMAGE_HEIGHT, IMAGE_WIDTH, HEIGHT, STRIPS, STRIDE, STEP, PADDING, COLUMNS
            )
            middle = tl.dot(mistake, seen, middle, input_precision=PRODUCT)
        if LINES > 2:
            seen = _under(
                images, strip, valid, dy + 2, column, BEFORE, IMAGE_HEIGHT, IMAGE_WIDTH, HEIGHT, STRIPS, STRIDE, STEP, PADDING, COLUMNS
            )
            lower = tl.dot(mistake, seen, lower, input_precision=PRODUCT)
    line = (tl.program_id(1) * LINES + dy) * OUTPUTS + output
    target = sums + line.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    known = (output < OUTPUTS)[:, None] & (column < COLUMNS)[None, :]
    tl.store(target, upper, known)
    if LINES > 1:
        tl.store(target + OUTPUTS * COLUMNS, middle, known)
    if LINES > 2:
        tl.store(target + 2 * OUTPUTS * COLUMNS, lower, known)
