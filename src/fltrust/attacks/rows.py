"""Arithmetic on rows, an update each: those that an attacker learns from, and those that it sends."""

import math
from functools import cached_property

import torch
from torch import Tensor

from fltrust.rules.pairs import sq_distances
from fltrust.rules.rows import measure


def usable(updates: Tensor) -> Tensor:
    """Which rows (n,) a rule would listen to: finite and not zero."""
    return measure(updates).usable


def finite(updates: Tensor) -> Tensor:
    """The updates (n, d), zeros in place of those that hold NaN or infinity."""
    return torch.where(usable(updates)[:, None], updates, 0)


def units(rows: Tensor, least: float = 0.0) -> Tensor:
    """The rows' directions (n, d); zeros where a row is not longer than `least`, or broken."""
    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64).to(rows.dtype)
    return (rows / torch.nn.functional.threshold(norm, least, torch.inf)).nan_to_num(0, 0, 0)  # NaN where a row is broken


def outside(rows: Tensor, frame: Tensor) -> Tensor:
    """The directions (n, d) in which rows of about unit length leave the span of orthonormal ones (k, d); zeros where they do not."""
    return units(rows - coordinates(rows, frame) @ frame, least=100 * torch.finfo(rows.dtype).eps)


def coordinates(rows: Tensor, frame: Tensor) -> Tensor:
    """The inner products (n, k) of rows (n, d) with a few others (k, d), one after the other: a GPU takes long for so narrow a matrix."""
    return torch.stack([rows @ one for one in frame], 1)


class SeenRows:
    """The updates that an attacker learns from, measured once however many attacks ask: a search asks all of them."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = finite(rows)  # (k, d)

    @cached_property
    def peak(self) -> Tensor:
        """The largest absolute value (); 1 for zeros. Rows divided by it have no sum and no square that leaves the range of numbers."""
        peak = self.rows.abs().amax()
        return peak.masked_fill(peak == 0, 1.0)

    @cached_property
    def mean(self) -> Tensor:
        """(d,), of the rows divided by the peak."""
        return self._divided.mean(0)

    @cached_property
    def deviation(self) -> Tensor:
        """(d,): standard deviation of the rows divided by the peak."""
        return self._divided.std(0, correction=0)

    @cached_property
    def against(self) -> tuple[Tensor, Tensor]:
        """(d,) each: the sign of the sum, and the outermost value against it: the smallest if the sign is positive, else the largest."""
        sign = self.rows.sum(0).sign()
        return sign, torch.where(sign > 0, self.rows.amin(0), self.rows.amax(0))

    @cached_property
    def centred(self) -> Tensor:
        """(k, d): mean less row, both divided by the peak."""
        return self.mean - self._divided

    @cached_property
    def centred_squares(self) -> Tensor:
        """(k,), in float64."""
        norms: Tensor = torch.linalg.vector_norm(self.centred, dim=1, dtype=torch.float64)
        return norms.square()

    @cached_property
    def farthest(self) -> Tensor:
        """The largest squared distance () between two rows divided by the peak, in float64."""
        return sq_distances(self.centred).amax()

    @cached_property
    def _divided(self) -> Tensor:
        return self.rows / self.peak


def rms(rows: Tensor) -> Tensor:
    """The root mean square () of all values; 0 if there are none."""
    total: Tensor = torch.linalg.vector_norm(rows, dtype=torch.float64)
    return (total / math.sqrt(max(1, rows.numel()))).to(rows.dtype)


def bounded(rows: Tensor) -> Tensor:
    """The rows with finite values: what left the range of numbers becomes the largest number, NaN becomes 0."""
    largest = torch.finfo(rows.dtype).max
    return rows.nan_to_num(0.0, largest, -largest)


def cut(rows: Tensor, radius: Tensor | float) -> Tensor:
    """The rows (n, d), those longer than `radius` shortened to it."""
    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    return rows * torch.where(norm > radius, radius / norm, 1.0).to(rows.dtype)
