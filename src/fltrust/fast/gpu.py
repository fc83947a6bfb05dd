"""The rules' kernels on a CUDA device: sums over rows and columns in one read each, accumulated in float64.

Import this file only where the tensors are on such a device: it needs Triton. n clients, d parameters, updates (n, d) float32.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from fltrust.fast.select import MOST_SORTED, nearest_mean, ranked_mean

__all__ = [
    "MOST_PICKED",
    "MOST_SORTED",
    "gram",
    "inner_products",
    "krum_picks",
    "nearest_mean",
    "ranked_mean",
    "row_sums",
    "running_means",
    "weighted_sum",
]

SPAN = 8192  # values of a row that one program adds up
WIDTH = 2048  # columns of one product of matrices: short, so that float32 sums stay accurate
MOST_PICKED = 128  # clients whose distances one program holds


def row_sums(updates: Tensor, direction: Tensor | None) -> tuple[Tensor, Tensor]:
    """(n,) float64 each: the rows' inner products with the direction (d,), and their squared norms."""
    n, d = updates.shape
    parts = triton.cdiv(d, SPAN)
    sums = torch.empty(2, n, parts, dtype=torch.float64, device=updates.device)
    along = updates if direction is None else direction
    _row_sums[(n, parts)](updates, along, sums, d, updates.stride(0), n * parts, direction is not None, SPAN, 1024)
    along_sums, squares = sums.sum(2)
    return along_sums, squares


@triton.jit
def _row_sums(updates, direction, sums, d, row_stride, plane, WITH: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    along = tl.zeros((BLOCK,), tl.float64)
    squares = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, SPAN, BLOCK):
        column = part * SPAN + start + tl.arange(0, BLOCK)
        value = tl.load(updates + row.to(tl.int64) * row_stride + column, column < d, 0.0).to(tl.float64)
        squares += value * value
        if WITH:
            along += value * tl.load(direction + column, column < d, 0.0).to(tl.float64)
    place = row * tl.num_programs(1) + part
    tl.store(sums + place, tl.sum(along, 0))
    tl.store(sums + plane + place, tl.sum(squares, 0))


def weighted_sum(updates: Tensor, factor: Tensor) -> Tensor:
    """(d,) float64: the sum of factor (n,) times row; a row of factor 0 counts nothing, whatever it holds."""
    n, d = updates.shape
    total = torch.empty(d, dtype=torch.float64, device=updates.device)
    _weighted_sum[(triton.cdiv(d, 128),)](updates, factor, total, n, d, updates.stride(0), 16, 128)
    return total


@triton.jit
def _weighted_sum(updates, factor, total, n, d, row_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float64)
    for first in range(0, n, ROWS):
        row = first + tl.arange(0, ROWS)
        by = tl.load(factor + row, row < n, 0.0)
        counts = (by != 0)[:, None] & (column < d)[None, :]
        value = tl.load(updates + row.to(tl.int64)[:, None] * row_stride + column[None, :], counts, 0.0)
        sums += by[:, None] * value.to(tl.float64)
    tl.store(total + column, tl.sum(sums, 0), column < d)


def gram(updates: Tensor) -> Tensor:
    """The rows' inner products (n, n), float64: see `inner_products`."""
    rows = updates[None]
    return inner_products(rows, rows)[0]


def inner_products(rows: Tensor, others: Tensor) -> Tensor:
    """(B, r, k) float64: of rows (B, r, d) with others (B, k, d), float32 products over a few columns at a time, added up in float64.

    Each row is first divided by a power of two near its largest value, which rounds nothing: so no product overflows.
    """
    count = len(rows)
    left, left_rest, size = _in_blocks(rows)
    right, right_rest, size_of_others = (left, left_rest, size) if others is rows else _in_blocks(others)
    products: Tensor = (left @ right.mT).unflatten(0, (count, -1)).sum(1, dtype=torch.float64)
    products += left_rest @ right_rest.mT
    return products * size[:, :, None] * size_of_others[:, None]


def _in_blocks(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows divided by their powers of two, as (B blocks, r, WIDTH), and what is left of them in float64; the powers (B, r)."""
    power = torch.frexp(torch.linalg.vector_norm(rows, torch.inf, dim=2))[1].clamp(-126, 126)
    one = torch.ones_like(power, dtype=torch.float64)
    unit = torch.ldexp(one, -power).float()[:, :, None]
    whole = rows.shape[2] // WIDTH * WIDTH
    blocks = (rows[..., :whole] * unit).unflatten(2, (whole // WIDTH, WIDTH)).transpose(1, 2)
    return blocks.flatten(0, 1), (rows[..., whole:] * unit).double(), torch.ldexp(one, power)


def running_means(
    updates: Tensor, usable: Tensor, sums: Tensor, later: Tensor, ids: Tensor, decay: Tensor, weight: Tensor, whole: Tensor
) -> Tensor:
    """(n, d): the sums of these clients, out of (N, d), times decay (n,), plus updates (n, d) times weight (n,), all over whole (n,).

    The sums before the division go into `later` (N, d). An update that is not usable counts as zeros,
    whatever it holds, and its client's mean is 0.
    """
    n, d = updates.shape
    means = torch.empty_like(updates)
    factors = torch.stack((decay, weight, whole)).to(updates.dtype)
    _running_means[(n, triton.cdiv(d, 2048))](
        updates, usable.view(torch.uint8), sums.contiguous(), later, ids.contiguous(), factors, means, n, d, updates.stride(0), 2048
    )
    return means


@triton.jit
def _running_means(updates, usable, sums, later, ids, factors, means, n, d, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there, counts = column < d, tl.load(usable + row) != 0
    decay, weight, whole = tl.load(factors + row), tl.load(factors + n + row), tl.load(factors + 2 * n + row)
    client = tl.load(ids + row) * d + column
    update = tl.load(updates + row * row_stride + column, there & counts, 0.0)
    value = tl.load(sums + client, there, 0.0) * decay + update * weight
    tl.store(later + client, value, there)
    mean = tl.where(counts, value / whole, 0.0)
    largest: tl.constexpr = 3.4028234663852886e38
    mean = tl.where(mean == mean, tl.minimum(tl.maximum(mean, -largest), largest), 0.0)
    tl.store(means + row * d + column, mean, there)


def krum_picks(sq_distances: Tensor, tolerate: int, usable: Tensor, leave: int, most: int) -> Tensor:
    """(n,) bool: see `fltrust.rules.krum.krum_picks`. One program does all picks; distances (n, n) float64."""
    n = len(sq_distances)
    size, steps = max(16, triton.next_power_of_2(n)), min(n - leave, most)
    picked = torch.empty(n, dtype=torch.uint8, device=sq_distances.device)
    _krum_picks[(1,)](
        sq_distances.contiguous(), usable.view(torch.uint8), picked, n, tolerate, leave, steps, size, num_warps=max(4, size // 4)
    )
    return picked.view(torch.bool)


@triton.jit
def _krum_picks(distances, usable, picked, n, tolerate, leave, steps, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    there = tl.load(usable + row, row < n, 0) != 0
    count = tl.sum(there.to(tl.int32), 0)
    # Column i holds the distances of client i, the same as row i: so threads side by side read side by side, and sums stay in a thread.
    distance = tl.load(distances + row[:, None] * n + row[None, :], (row < n)[:, None] & (row < n)[None, :], 0.0)
    near = tl.where(there[:, None] & (row[:, None] != row[None, :]), distance, -1.0)  # to neighbours that count; else -1
    for _ in range(tolerate + 1):
        near = tl.where(row[:, None] == tl.argmax(near, 0)[None, :], -1.0, near)
    left = there
    for step in range(steps):
        scores = tl.where(left, tl.sum(tl.maximum(near, 0.0), 0), float("inf"))
        to_all = tl.sum(tl.where(left[:, None], distance, 0.0), 0)
        tied = left & (scores == tl.min(scores, 0))
        pick = tl.argmin(tl.where(tied, to_all, float("inf")), 0)
        left = left & ((row != pick) | (step >= tl.maximum(count - leave, 1)))
        # Each row has one neighbour fewer: the picked row if it was one, else the farthest.
        was_near = tl.max(tl.where(row[:, None] == pick, near, -1.0), 0) >= 0
        lost = tl.where(was_near, pick, tl.argmax(near, 0))
        near = tl.where(row[:, None] == lost[None, :], -1.0, near)
    tl.store(picked + row, (there & (left == 0)).to(tl.uint8), row < n)
