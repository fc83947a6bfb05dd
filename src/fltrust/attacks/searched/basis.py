"""The candidates: what malicious clients might send, as sums of a few vectors, so that one Gram matrix says all about their lengths.

k basis vectors: all n updates before the attack, the malicious clients' first, then EXTRA directions and one for each rival attack.
A candidate is (m, k): its rows are candidate @ basis.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.attacks.rows import finite, units
from fltrust.attacks.searched.scene import Aim, Scene
from fltrust.rules.pairs import gram
from fltrust.rules.rows import direction_and_norm, measure, median_of

ROOT, CENTRE, PUSHES, EXTRA = 0, 1, 2, 9  # where they stand behind the n updates: root update, rule's centre, then seven pushes
_STRENGTHS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0)
_ANGLES = 8  # between the root update and the push
_LENGTHS = (1.0, 1.5)  # the longest a row may be, in median honest lengths
_FACTORS = (0.1, 0.5, 1.0, 2.0, 10.0, 1000.0)  # of a row that is sent as it is
_SPREAD = 0.7  # how much of an honest client's deviation hides that rows are alike
_COPIED = 10  # honest clients that are tried as a model to copy


class Basis(NamedTuple):
    """The directions are as long as the median honest update, or zero. Products and lengths are in units of it."""

    rows: Tensor  # (k, d)
    products: Tensor  # (k, k), in float64
    scale: Tensor  # (), in float64: the median honest length
    mean: Tensor  # (k,): the honest mean
    eye: Tensor  # (k, k), in float64: each basis vector
    root: int  # which of them is the root update's direction
    root_norm: Tensor  # (): the root update's own length; 0 if there is none
    centre: Tensor  # (k,): what the rule remembers, if that is one vector
    lengths: Tensor  # (rivals,): of the rival attacks' mean rows
    along: Tensor  # (k,): inner products with the aim's target, not in units of the scale
    sums: int | None = None  # the first of n more: what Anchor remembers of each client that takes part


def basis_of(scene: Scene, aim: Aim, result: Tensor, last_update: Tensor, rivals: Tensor, possible: Sequence[bool]) -> Basis:
    """`result` (d,) is what the rule returns without attack. `rivals` (R, d) are the mean rows of those other attacks that are possible."""
    updates, honest, m = scene.updates, scene.honest, scene.m
    n, d = updates.shape
    zero = updates.new_zeros(d)
    norm = measure(honest).norm
    scale = median_of(norm, norm > 0)
    scale = torch.where(scale > 0, scale, 1)
    mean, deviation = honest.mean(0), honest.std(0, correction=0)
    remembered = scene.memory if isinstance(scene.memory, Tensor) and scene.memory.shape == (d,) else zero
    wanted = aim.target if aim.is_loss else result.sign()
    pushes = (wanted, mean.sign(), mean, result, deviation * mean.sign(), deviation, last_update)
    there = iter(finite(rivals))
    means = [next(there) if sends else zero for sends in possible]
    own_length = torch.stack((zero if scene.root_update is None else scene.root_update, remembered, *pushes, *means))
    lengths = torch.nan_to_num(measure(own_length).norm / scale, posinf=0.0)
    rows = torch.cat((updates, units(own_length) * scale.to(updates.dtype)))
    k = len(rows)
    eye = torch.eye(k, dtype=torch.float64, device=rows.device)
    weight = (torch.arange(k, device=rows.device) >= (m if n > m else 0)) & (torch.arange(k, device=rows.device) < n)
    return Basis(
        rows,
        products_of(rows, scale),
        scale,
        weight.double() / weight.sum(),
        eye,
        n + ROOT,
        lengths[ROOT],
        eye[n + CENTRE] * lengths[CENTRE],
        lengths[EXTRA:],
        along_of(rows, aim.target),
    )


def products_of(rows: Tensor, scale: Tensor) -> Tensor:
    """The rows' inner products (k, k), in units of the scale."""
    return torch.nan_to_num(gram(rows) / scale / scale)


def along_of(rows: Tensor, target: Tensor) -> Tensor:
    """The inner products (k,) of rows (k, d) with a vector (d,), in float64; 0 for rows that a rule would not listen to."""
    return usable_and_along(rows, target)[1]


def usable_and_along(rows: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows (k,) a rule would listen to, and `along_of`: one read for both."""
    direction, norm = direction_and_norm(target)
    measured = measure(rows, direction)
    return measured.usable, measured.cosine * measured.norm * norm


def candidates_in(basis: Basis, n: int, m: int) -> Tensor:
    """Some 500 candidates (C, m, k), equal rows and spread-out ones."""
    k, device = len(basis.rows), basis.rows.device
    eye = basis.eye
    strengths, factors = constants(_STRENGTHS, device), constants(_FACTORS, device)
    honest = n - m if n > m else n
    copied = torch.arange(m, device=device) % honest + (n - honest)
    mean, own, away = basis.mean.expand(m, k), eye[:m], eye[copied] - basis.mean  # (m, k) each
    pushes = eye[n + PUSHES : n + EXTRA]  # (p, k)
    push = (strengths[:, None, None] * pushes).reshape(-1, 1, k)  # (strengths p, 1, k)
    shifted = [start - push for start in (mean, own, away)]  # ALIE, IPM and Min-Max are of the first sort
    turned = _turned(basis, eye[n + ROOT], pushes)  # (angles p, 1, k)
    bounded = torch.cat((*shifted, turned.expand(-1, m, k), turned + _SPREAD * away))
    length = row_lengths(bounded, basis)
    bounded = torch.cat([bounded * (most / length).clamp(max=1)[..., None] for most in _LENGTHS])
    others = basis.lengths[:, None] * eye[n + EXTRA :]  # (rivals, k): their mean rows
    free = torch.cat(
        (
            -factors[:, None] * basis.mean,
            basis.mean - factors[-2:, None, None].mul(pushes).reshape(-1, k),  # far out: a rule by coordinates sees only the side
            (factors[1:4, None, None] * others).reshape(-1, k),
            eye[n - honest : n][torch.linspace(0, honest - 1, min(honest, _COPIED), device=device).long()],
        )
    )
    return torch.cat((bounded, free[:, None].expand(-1, m, k)))


def _turned(basis: Basis, root: Tensor, pushes: Tensor) -> Tensor:
    """The root update's direction turned away from each push: cos(t) e_0 - sin(t) v, v the push less its part along e_0."""
    angles = torch.linspace(0, math.pi / 2, _ANGLES + 2, dtype=torch.float64, device=root.device)[1:-1, None, None]
    square = root @ basis.products @ root
    along = (pushes @ basis.products @ root) / torch.where(square > 0, square, 1)
    beside = pushes - along[:, None] * root
    length = row_lengths(beside, basis)
    beside = torch.where(length > 1e-6, 1 / length, 0)[:, None] * beside
    return (angles.cos() * root - angles.sin() * beside).reshape(-1, 1, len(root))


def constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """In float64, written by the device itself: a copy from the host would make it wait, and a CUDA graph cannot hold one."""
    return torch.stack([torch.full((), value, dtype=torch.float64, device=device) for value in values])


def row_lengths(rows: Tensor, basis: Basis) -> Tensor:
    """Lengths (..,) of rows (.., k), in units of the scale."""
    return at_least(((rows @ basis.products) * rows).sum(-1), 1e-24).sqrt()


def at_least(values: Tensor, least: float) -> Tensor:
    """As `clamp`, with a slope that is one kernel on a GPU."""
    return torch.nn.functional.threshold(values, least, least)
