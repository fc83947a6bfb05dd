"""The rules on the CPU in numba: few reads of the (n, d) matrix, memory for a few vectors (d,) beside it.

updates    (n, d)  float32, rows one after the other in memory
direction  (d,)    float64, of norm 1 (or the root update itself, float32)

A Python thread per core runs each kernel on its part, as many as torch is set to use. Inner loops run over slices from 0, four rows at a
time (`cpu_columns.py`: 48 columns), since that is what the compiler turns into vector code.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

from fltrust.fast.cpu_columns import MOST_SORTED, nearest_mean, ranked_mean, ranked_mean_if_usable
from fltrust.fast.kernels import Floats, Rows, compiled, in_threads, parts, some_zero

__all__ = [
    "MOST_SORTED",
    "gram",
    "gram_rows",
    "mean_if_usable",
    "nearest_mean",
    "ranked_mean",
    "ranked_mean_if_usable",
    "rough_gram",
    "row_sums",
    "trusted_sum",
    "weighted_sum",
]

_COLUMNS = 8192  # whose sums stay in the second cache while all rows are added to them; fewer make short reads of each row
_TILE = 2048  # columns that are multiplied in float32 before float64 takes over
_WIDTH = 512  # columns whose inner products are taken at the same time


# ---------------------------------------------------------------- rows: cosines, norms and weighted sums, four at a time


@compiled
def _sums_of_four(a: Rows, b: Rows, c: Rows, d: Rows, direction: NDArray[Any], along: Floats, squares: Floats) -> None:
    along_a = along_b = along_c = along_d = 0.0
    squares_a = squares_b = squares_c = squares_d = 0.0
    for column in range(direction.size):
        toward = np.float64(direction[column])
        value = np.float64(a[column])
        along_a += value * toward
        squares_a += value * value
        value = np.float64(b[column])
        along_b += value * toward
        squares_b += value * value
        value = np.float64(c[column])
        along_c += value * toward
        squares_c += value * value
        value = np.float64(d[column])
        along_d += value * toward
        squares_d += value * value
    along[0], along[1], along[2], along[3] = along_a, along_b, along_c, along_d
    squares[0], squares[1], squares[2], squares[3] = squares_a, squares_b, squares_c, squares_d


@compiled
def _add_four(total: Floats, updates: Rows, first: int, factor: Floats) -> None:
    """total += factor @ updates[first : first + 4]; rows of factor 0, which may hold anything, are not read."""
    some = -1
    for k in range(4):
        if factor[k] != 0:
            some = k
    if some < 0:
        return
    a = updates[first + (0 if factor[0] != 0 else some)]
    b = updates[first + (1 if factor[1] != 0 else some)]
    c = updates[first + (2 if factor[2] != 0 else some)]
    d = updates[first + (3 if factor[3] != 0 else some)]
    factor_a, factor_b, factor_c, factor_d = factor[0], factor[1], factor[2], factor[3]
    for column in range(total.size):
        total[column] += (factor_a * a[column] + factor_b * b[column]) + (factor_c * c[column] + factor_d * d[column])


@compiled
def _row_sums(updates: Rows, direction: NDArray[Any], along: Floats, squares: Floats, start: int, stop: int) -> None:
    along_four, squares_four = np.empty(4), np.empty(4)
    for first in range(start, stop, 4):
        last = stop - 1
        a, b, c, d = updates[first], updates[min(first + 1, last)], updates[min(first + 2, last)], updates[min(first + 3, last)]
        _sums_of_four(a, b, c, d, direction, along_four, squares_four)
        for k in range(min(4, stop - first)):
            along[first + k], squares[first + k] = along_four[k], squares_four[k]


@compiled
def _add_rows(part: Floats, updates: Rows, begin: int, heard: NDArray[np.int64], factor: Floats) -> None:
    """part += factor @ updates[heard] in the columns from `begin` on. The rows come in fours."""
    end = begin + part.size
    for first in range(0, heard.size, 4):
        a, b = updates[heard[first], begin:end], updates[heard[first + 1], begin:end]
        c, d = updates[heard[first + 2], begin:end], updates[heard[first + 3], begin:end]
        factor_a, factor_b, factor_c, factor_d = factor[first], factor[first + 1], factor[first + 2], factor[first + 3]
        for column in range(part.size):
            part[column] += (factor_a * a[column] + factor_b * b[column]) + (factor_c * c[column] + factor_d * d[column])


@compiled
def _weighted_sum(updates: Rows, heard: NDArray[np.int64], factor: Floats, total: Floats, start: int, stop: int) -> None:
    """total += factor @ updates[heard] for some blocks of columns, whose sums stay in the cache."""
    for begin in range(start * _COLUMNS, min(stop * _COLUMNS, total.size), _COLUMNS):
        _add_rows(total[begin : begin + _COLUMNS], updates, begin, heard, factor)


@compiled
def _weighted_mean(updates: Rows, heard: NDArray[np.int64], factor: Floats, mean: Rows, start: int, stop: int) -> float:
    """mean = factor @ updates[heard] for some blocks of columns, rounded once; 0, or NaN if a value is not finite."""
    sums, wrong = np.empty(_COLUMNS), 0.0
    for begin in range(start * _COLUMNS, min(stop * _COLUMNS, mean.size), _COLUMNS):
        into = mean[begin : begin + _COLUMNS]
        part = sums[: into.size]
        part[:] = 0
        _add_rows(part, updates, begin, heard, factor)
        for column in range(part.size):
            into[column] = part[column]
            wrong += part[column] * 0.0
    return wrong


@compiled
def _trusted_sum(
    updates: Rows,
    root_update: Rows,
    root_norm: float,
    least_trust: float,
    stretch: tuple[float, float],
    trust: Floats,
    total: Floats,
    start: int,
    stop: int,
) -> None:
    """Each row is added right after it was measured, while it is still in the cache: one read from memory."""
    along, squares, factor = np.empty(4), np.empty(4), np.empty(4)
    for first in range(start, stop, 4):
        last = stop - 1
        a, b, c, d = updates[first], updates[min(first + 1, last)], updates[min(first + 2, last)], updates[min(first + 3, last)]
        _sums_of_four(a, b, c, d, root_update, along, squares)
        for k in range(4):
            factor[k] = 0.0
            if first + k < stop and 0 < squares[k] < math.inf:  # usable
                norm = math.sqrt(squares[k])
                trust[first + k] = min(max(along[k] / (norm * root_norm), least_trust), 1.0)
                factor[k] = trust[first + k] * min(max(root_norm / norm, stretch[0]), stretch[1])
        _add_four(total, updates, first, factor)


def _together(totals: Floats) -> Tensor:
    """The sum of the threads' sums (threads, ..)."""
    for total in totals[1:]:
        totals[0] += total
    return torch.from_numpy(totals[0])


def row_sums(updates: Tensor, direction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Each row's inner product with the direction and its sum of squares, both (n,) in float64."""
    n, d = updates.shape
    rows = updates.detach().numpy()
    toward = np.zeros(d) if direction is None else direction.numpy()
    along, squares = np.empty(n), np.empty(n)
    in_threads(lambda _, start, stop: _row_sums(rows, toward, along, squares, start, stop), n, 4)
    return torch.from_numpy(along), torch.from_numpy(squares)


def weighted_sum(updates: Tensor, factor: Tensor) -> Tensor:
    """factor @ updates (d,) in float64; rows of factor 0 may hold anything."""
    rows, total = updates.detach().numpy(), np.zeros(updates.shape[1])
    heard, factors = _in_fours(factor)
    in_threads(lambda _, start, stop: _weighted_sum(rows, heard, factors, total, start, stop), -(-total.size // _COLUMNS), 1)
    return torch.from_numpy(total)


def mean_if_usable(updates: Tensor, shares: Tensor) -> Tensor | None:
    """shares @ updates (d,), added up in float64; None if a row of another share than 0 is not usable: NaN and infinity show in it."""
    rows, mean = updates.detach().numpy(), np.empty(updates.shape[1], np.float32)
    heard, factors = _in_fours(shares)
    if some_zero(rows, heard):
        return None
    wrong, blocks = np.zeros(torch.get_num_threads()), -(-mean.size // _COLUMNS)

    def work(part: int, start: int, stop: int) -> None:
        wrong[part] = _weighted_mean(rows, heard, factors, mean, start, stop)

    in_threads(work, blocks, 1)
    return None if wrong.any() else torch.from_numpy(mean)  # NaN is not 0


def _in_fours(factor: Tensor) -> tuple[NDArray[np.int64], Floats]:
    """The rows of another factor than 0, and their factors; then the last row again, times 0, until they are a multiple of four."""
    factors = factor.numpy()
    heard = factors.nonzero()[0]
    more = -heard.size % 4
    return np.concatenate((heard, np.repeat(heard[-1:], more))), np.concatenate((factors[heard], np.zeros(more)))


def trusted_sum(updates: Tensor, root_update: Tensor, least_trust: float, stretch: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """See `fltrust.rules.trusted_sum`."""
    n, d = updates.shape
    rows, root = updates.detach().numpy(), np.ascontiguousarray(root_update.detach().numpy())
    along, squares, trust, totals = np.empty(1), np.empty(1), np.zeros(n), np.zeros((parts(n, 4), d))
    _row_sums(root[None], root, along, squares, 0, 1)
    if 0 < squares[0] < math.inf:  # usable
        norm = math.sqrt(squares[0])

        def work(part: int, start: int, stop: int) -> None:
            _trusted_sum(rows, root, norm, least_trust, stretch, trust, totals[part], start, stop)

        in_threads(work, n, 4)
    return _together(totals), torch.from_numpy(trust)


# ---------------------------------------------------------------- pairs of rows: inner products, four rows by four


@compiled
def _four_by_four(rows: Floats, i: int, j: int, gram: Floats) -> None:
    """gram[i : i + 4, j : j + 4] += the inner products of these rows; the sixteen sums stay in registers."""
    a, b, c, d = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
    e, f, g, h = rows[j], rows[j + 1], rows[j + 2], rows[j + 3]
    ae = af = ag = ah = be = bf = bg = bh = ce = cf = cg = ch = de = df = dg = dh = 0.0
    for column in range(a.size):
        in_a, in_b, in_c, in_d = a[column], b[column], c[column], d[column]
        other = e[column]
        ae, be, ce, de = ae + in_a * other, be + in_b * other, ce + in_c * other, de + in_d * other
        other = f[column]
        af, bf, cf, df = af + in_a * other, bf + in_b * other, cf + in_c * other, df + in_d * other
        other = g[column]
        ag, bg, cg, dg = ag + in_a * other, bg + in_b * other, cg + in_c * other, dg + in_d * other
        other = h[column]
        ah, bh, ch, dh = ah + in_a * other, bh + in_b * other, ch + in_c * other, dh + in_d * other
    sums = ((ae, af, ag, ah), (be, bf, bg, bh), (ce, cf, cg, ch), (de, df, dg, dh))
    for k in range(4):
        for m in range(4):
            gram[i + k, j + m] += sums[k][m]


@compiled
def _gram(updates: Rows, gram: Floats, start: int, stop: int) -> None:
    n, d = updates.shape
    block = np.zeros((len(gram), _WIDTH))  # in float64, in the cache; rows of zeros fill up the last four
    for first in range(start * _WIDTH, min(stop * _WIDTH, d), _WIDTH):
        width = min(_WIDTH, d - first)
        for i in range(n):
            row, values = block[i], updates[i, first : first + width]
            for column in range(width):
                row[column] = values[column]
            row[width:] = 0
        for i in range(0, len(gram), 4):
            for j in range(0, i + 4, 4):
                _four_by_four(block, i, j, gram)


def gram(updates: Tensor) -> Tensor:
    """The inner products (n, n) of the rows in float64; above the diagonal only some are filled in."""
    n, d = updates.shape
    rows, blocks, height = updates.detach().numpy(), -(-d // _WIDTH), -(-n // 4) * 4
    grams = np.zeros((parts(blocks, 1), height, height))
    in_threads(lambda part, start, stop: _gram(rows, grams[part], start, stop), blocks, 1)
    return _together(grams)[:n, :n]


@compiled
def _gram_rows(updates: Rows, chosen: NDArray[np.int64], gram: Floats, squares: Floats, start: int, stop: int) -> None:
    """The same sums as `_gram`, to the bit, of the chosen rows with all rows; and of each row with itself."""
    n, d = updates.shape
    top = len(gram)  # the chosen rows come first, then all
    block, diagonal = np.zeros((gram.shape[1], _WIDTH)), np.zeros((4, 4))
    for first in range(start * _WIDTH, min(stop * _WIDTH, d), _WIDTH):
        width = min(_WIDTH, d - first)
        for i in range(chosen.size + n):
            row = block[i if i < chosen.size else top + i - chosen.size]
            values = updates[chosen[i] if i < chosen.size else i - chosen.size, first : first + width]
            for column in range(width):
                row[column] = values[column]
            row[width:] = 0
        for j in range(top, len(block), 4):
            for i in range(0, top, 4):
                _four_by_four(block, i, j, gram)
            diagonal[:] = 0
            _four_by_four(block[j : j + 4], 0, 0, diagonal)
            for k in range(4):
                squares[j - top + k] += diagonal[k, k]


def gram_rows(updates: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (m, n) of `gram`, to the bit, and its diagonal (n,)."""
    n, d = updates.shape
    rows, index, blocks = updates.detach().numpy(), chosen.numpy(), -(-d // _WIDTH)
    top, height = -(-index.size // 4) * 4, -(-n // 4) * 4
    grams, squares = np.zeros((parts(blocks, 1), top, top + height)), np.zeros((parts(blocks, 1), height))
    in_threads(lambda part, start, stop: _gram_rows(rows, index, grams[part], squares[part], start, stop), blocks, 1)
    return _together(grams)[: index.size, top : top + n], _together(squares)[:n]


def rough_gram(updates: Tensor) -> tuple[Tensor, float]:
    """The inner products (n, n) in float32, below the diagonal, and their error as a multiple of the product of the rows' norms.

    A sum of w products in float32 is wrong by at most w u / (1 - w u) times the sum of their absolute values, u = 2^-24, in whatever
    order it is added up (Higham, Accuracy and Stability, 3.1); by Cauchy and Schwarz that sum is at most the product of the norms.
    Blocks of columns are added up in float64. oneDNN multiplies, on copies: MKL takes twice as long where it leaves AVX-512 unused.
    """
    n, d = updates.shape
    products, strip = torch.zeros(n, n, dtype=torch.float64), max(64, -(-n // 5))
    onednn = torch.backends.mkldnn.is_available()
    for first in range(0, d, _TILE):
        block = updates.detach()[:, first : first + _TILE]
        block = block.contiguous() if onednn else block
        for i in range(0, n, strip):
            some, upto = block[i : i + strip], block[: i + strip]
            products[i : i + strip, : i + strip] += linear(some.to_mkldnn(), upto).to_dense() if onednn else some @ upto.T
    wrong = _TILE * 2.0**-24
    return products, wrong / (1 - wrong)
