"""Arithmetic on pairs of rows of an (n, d) tensor of updates: their inner products and distances. See `rows.py`."""

import os

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.rules.rows import Rows, check, column_blocks, gpu_kernels, kernels_for, scaled

_AT_ONCE = 1 << 20, 1 << 27  # values of rows that are copied at a time: what fits into a CPU's cache; few launches on a GPU
_FEW = 400  # rows; fewer are compared in float64 at once, which takes no longer


def gram(updates: Tensor) -> Tensor:
    """The rows' inner products (n, n), in float64; exactly symmetric."""
    if kernels := kernels_for(updates):
        products: Tensor = kernels.gram(updates)
    else:
        products = updates.new_zeros(len(updates), len(updates), dtype=torch.float64)
        for columns in column_blocks(updates):
            block = updates[:, columns].double()
            products.addmm_(block, block.T)
    return products.tril() + products.tril(-1).T  # only what is below the diagonal counts beside it


def inner_products_with(rows: Tensor, others: Tensor) -> Tensor:
    """(B, r, k), in float64: the inner products of rows (B, r, d) with others (B, k, d)."""
    count, r, d = rows.shape
    kernels = kernels_for(rows.flatten(0, 1)) if rows.is_cuda and others.dtype == rows.dtype else None
    products = rows.new_zeros(count, r, others.shape[1], dtype=torch.float64)
    width = max(1, _AT_ONCE[rows.is_cuda] // max(1, count * r))
    for start in range(0, d, width):
        some = rows[..., start : start + width]
        against = some if others is rows else others[..., start : start + width]
        products += kernels.inner_products(some, against) if kernels else some.double() @ against.double().mT
    return products


def inner_products(updates: Tensor, rows: Rows) -> Tensor:
    """The rows' inner products (n, n), in float64, after division by `unit_of(rows)`; 0 for rows that are not usable."""
    unit = unit_of(rows)
    if kernels_for(updates):
        products, size = gram(updates) / unit / unit, torch.ones_like(rows.scale)
    else:
        products, size = _scaled_products(updates, rows), rows.scale / unit  # so that no square overflows
    return _of_usable(products * size[:, None] * size, rows)


def cosines_between(updates: Tensor, rows: Rows) -> Tensor:
    """The rows' cosines (n, n) with each other, in float64; 0 for rows that are not usable. However short a row is, it has its cosines."""
    products, length = (gram(updates), rows.norm) if kernels_for(updates) else (_scaled_products(updates, rows), rows.length)
    return _of_usable(products / length[:, None] / length, rows)


def _scaled_products(updates: Tensor, rows: Rows) -> Tensor:
    """The inner products (n, n) of rows divided by their scales."""
    products = updates.new_zeros(len(updates), len(updates), dtype=torch.float64)
    for columns in column_blocks(updates):
        block = scaled(updates[:, columns], rows.scale)
        products.addmm_(block, block.T)
    return products.tril() + products.tril(-1).T


def _of_usable(products: Tensor, rows: Rows) -> Tensor:
    return torch.where(rows.usable[:, None] & rows.usable, products, 0)


def unit_of(rows: Rows) -> Tensor:
    """A power of two () just above the longest row: dividing by it rounds nothing, so rows that tie still do."""
    exponent = torch.frexp(rows.norm.amax())[1].clamp(-1022, 1023)
    return torch.ldexp(torch.ones_like(rows.scale[0]), exponent)


def sq_distances(updates: Tensor) -> Tensor:
    """Squared distances (n, n) between rows, in float64, from one Gram matrix; infinite where not finite, 0 on the diagonal.

    Exactly symmetric, so that two nearest neighbours of each other tie.
    """
    check(updates)
    products = gram(updates)
    squares = products.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * products).clamp_(min=0)
    return distances.nan_to_num_(torch.inf, torch.inf).fill_diagonal_(0)


def sq_distances_of(products: Tensor) -> Tensor:
    """Squared distances (.., n, n) between rows with these inner products; exactly symmetric, 0 on the diagonal."""
    squares = products.diagonal(dim1=-2, dim2=-1)
    distances = (
        squares[..., :, None] + squares[..., None, :] - (products + products.mT)
    )  # mixed rows' products are symmetric up to rounding
    return distances.clamp(min=0) * (1 - torch.eye(products.shape[-1], dtype=products.dtype, device=products.device))


def rough_sq_distances(updates: Tensor, rows: Rows) -> tuple[Tensor, Tensor] | None:
    """Squared distances (n, n) in float32 arithmetic and how wrong each may be at most, where that is faster; None where it is not.

    None too if a value that is not finite turned up: rows that are not usable, or too large for float32.
    """
    kernels = kernels_for(updates) if updates.device.type == "cpu" else None
    if kernels is None or len(updates) < _FEW or not _multiplies_in_float32():
        return None
    lower, wrong = kernels.rough_gram(updates)
    norm, d = rows.norm, updates.shape[1]
    square = norm.square()
    distances = lower.tril_(-1) + lower.T
    distances.mul_(-2).add_(square[:, None]).add_(square)
    if not distances.isfinite().all():
        return None
    # Beside float32: what vanishes below its smallest number, and the rounding of sums in float64, which grows with their length.
    more = (1e-11 + d * 2.0**-52) * square
    errors = torch.mul(2.01 * wrong * norm[:, None], norm, out=lower).add_(more[:, None]).add_(more + d * 2.0**-125)
    return distances, errors


def _multiplies_in_float32() -> bool:
    """Whether torch takes products of float32 matrices in float32: under autocast, or if asked for less precision, no bound would hold."""
    try:
        whole = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # asked in torch's newer way, `torch.backends.fp32_precision` and its kin
        whole = False
    asked = {"ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"} & os.environ.keys()  # of oneDNN itself, which multiplies here
    return whole and not asked and not torch.is_autocast_enabled("cpu")


def sq_distances_from(updates: Tensor, chosen: Tensor) -> Tensor:
    """The chosen rows (m, n) of `sq_distances`, to the bit, where all values are finite. Float32 on a CPU only."""
    kernels = kernels_for(updates)
    if kernels is None:
        raise InputError("no kernels for these updates")
    products, squares = kernels.gram_rows(updates, chosen)
    distances = (squares[chosen, None] + squares - 2 * products).clamp_(min=0)
    distances[torch.arange(len(chosen)), chosen] = 0
    return torch.as_tensor(distances)


def gpu_picks(sq_distances: Tensor, tolerate: int, usable: Tensor, leave: int, most: int) -> Tensor | None:
    """`krum_picks` as one kernel, where there is one for distances (n, n) like these."""
    kernels = gpu_kernels() if sq_distances.device.type == "cuda" and sq_distances.ndim == 2 else None
    if kernels is None or len(sq_distances) > kernels.MOST_PICKED or type(sq_distances) is not Tensor:
        return None
    return torch.as_tensor(kernels.krum_picks(sq_distances, tolerate, usable, leave, most))
