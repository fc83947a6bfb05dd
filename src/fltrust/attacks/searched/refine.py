"""From good candidates to better ones: steps along the slope of the damage where the rule has one, along the pushes, and at random."""

import torch
from torch import Tensor

from fltrust.attacks.searched.basis import Basis, constants, row_lengths
from fltrust.attacks.searched.damage import Damage

_ALONG_SLOPE = (1.0, 0.3, 0.1)  # of the step's size
_FIRST = 0.2  # size of the first step, in median honest lengths; it adapts, since a rule's thresholds want small steps
_GROW, _SHRINK = 1.5, 0.4
_RIDGE = 1e-4  # of the basis vectors' mean square: directions that are hardly there are left alone
_NEWTON = 28  # iterations; 20 bring an eigenvalue 1e-6 of the largest half-way, each one more squares what is missing
_LONGEST = 1.5  # what rows may grow to, if the start was not longer


@torch.no_grad()
def refined(damage: Damage, starts: Tensor, pushes: Tensor, basis: Basis, steps: int, moves: int, generator: torch.Generator) -> Tensor:
    """The best candidate (m, k) found from starts (S, m, k), each client's row by itself.

    A start goes where the damage is largest of what it tries in a step: along the slope, towards and away from the honest mean, against
    each of the pushes (p, k), and in `moves` random directions. If nothing is better, it stays and tries shorter steps.
    """
    here, most = starts, damage(starts).nan_to_num(-torch.inf)  # (S, m, k), (S,)
    (count, m, k), device = starts.shape, starts.device
    metric = _inverse(basis.products)
    sizes = constants(_ALONG_SLOPE, device)[:, None, None]
    longest = row_lengths(starts, basis).clamp(min=_LONGEST)[:, None]  # (S, 1, m)
    reach = torch.full_like(most, _FIRST)[:, None, None, None]
    noise = _unit(torch.randn((steps, count, moves, m, k), generator=generator, device=device, dtype=torch.float64), basis)
    against = -pushes[:, None].expand(steps, count, -1, m, -1)
    each = torch.arange(count, device=device)
    for straight in torch.cat((against, noise), 2):  # (S, p + moves, m, k)
        uphill = _unit(_slope(damage, here) @ metric, basis)[:, None]  # (S, 1, m, k): the slope along rows, not along coefficients
        away = (here - basis.mean)[:, None]
        ways = torch.cat((sizes * uphill, away, -away, straight), 1)  # (S, tries, m, k)
        tried = torch.addcmul(here[:, None], reach, ways)
        tried = tried * (longest / row_lengths(tried, basis)).clamp(max=1)[..., None]
        values = damage(tried.flatten(0, 1)).nan_to_num(-torch.inf).view(count, -1)  # (S, tries)
        top, which = values.max(1)
        better = top > most
        here = torch.where(better[:, None, None], tried[each, which], here)
        most, reach = most.maximum(top), torch.where(better[:, None, None, None], _GROW * reach, _SHRINK * reach)
    return here.index_select(0, most.argmax()[None])[0]


def _inverse(products: Tensor) -> Tensor:
    """Of the matrix with the ridge, by Newton's iteration: a CUDA graph holds products of matrices, but no call of a solver."""
    eye = torch.eye(len(products), dtype=torch.float64, device=products.device)
    matrix = products + (_RIDGE * products.diagonal().mean()).clamp(min=1e-12) * eye
    inverse = eye / matrix.diagonal().sum()  # at least the largest eigenvalue, and at most k / _RIDGE times the smallest
    for _ in range(_NEWTON):
        inverse = torch.addmm(inverse, inverse, matrix @ inverse, beta=2, alpha=-1)
    return inverse


def _slope(damage: Damage, here: Tensor) -> Tensor:
    """The gradient (S, m, k); zeros where there is none."""
    with torch.enable_grad():
        here = here.detach().requires_grad_()
        try:
            total = damage(here).sum()
            if not total.requires_grad:
                return torch.zeros_like(here)
            (slope,) = torch.autograd.grad(total, here)
        except RuntimeError:  # autograd cannot follow the rule, which may be a user's own: NumPy, writes in place ...
            return torch.zeros_like(here)
    return torch.nan_to_num(slope, posinf=0.0, neginf=0.0)


def _unit(ways: Tensor, basis: Basis) -> Tensor:
    """Each row at the length of the scale; rows of zeros stay."""
    return ways / torch.nn.functional.threshold(row_lengths(ways, basis), 1e-12, torch.inf)[..., None]
