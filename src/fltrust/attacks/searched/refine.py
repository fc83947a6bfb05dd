"""From good candidates to better ones: steps along the slope of the damage where the rule has one, and steps at random."""

import torch
from torch import Tensor

from fltrust.attacks.searched.basis import Basis, row_lengths
from fltrust.attacks.searched.damage import Damage

_STEPS = (0.05, 0.15, 0.5)  # in median honest lengths
_RIDGE = 1e-4  # of the basis vectors' mean square: directions that are hardly there are left alone
_LONGEST = 1.5  # what rows may grow to, if the start was not longer


@torch.no_grad()
def refined(damage: Damage, starts: Tensor, basis: Basis, steps: int, moves: int, generator: torch.Generator) -> Tensor:
    """The best candidate (m, k) found from starts (S, m, k), each client's row by itself; `moves` of each step are random."""
    values = damage(starts).nan_to_num(-torch.inf)
    best, most = _taken(starts, values.argmax()), values.amax()
    if not steps:
        return best
    k, device = starts.shape[-1], starts.device
    ridge = _RIDGE * basis.products.diagonal().mean()
    metric = torch.linalg.inv_ex(basis.products + ridge * torch.eye(k, dtype=torch.float64, device=device))[0]
    sizes = torch.tensor(_STEPS, dtype=torch.float64, device=device)[:, None, None]
    longest = row_lengths(starts, basis).clamp(min=_LONGEST)[:, None]  # (S, 1, m)
    here = starts
    for _ in range(steps):
        uphill = _unit(_slope(damage, here) @ metric, basis)  # (S, m, k): the slope along rows, not along coefficients
        noise = torch.randn((len(here), moves, *here.shape[1:]), generator=generator, device=device, dtype=torch.float64)
        ways = torch.cat((sizes * uphill[:, None], _STEPS[1] * _unit(noise, basis)), 1)  # (S, tries, m, k)
        tried = here[:, None] + ways
        tried = tried * (longest / row_lengths(tried, basis)).clamp(max=1)[..., None]
        values = damage(tried.flatten(0, 1)).nan_to_num(-torch.inf).view(len(here), -1)  # (S, tries)
        which = values.argmax(1)
        here = tried[torch.arange(len(here), device=device), which]
        top = values.amax(1)
        found = _taken(here, top.argmax())
        best, most = torch.where(top.amax() > most, found, best), most.maximum(top.amax())
    return best


def _slope(damage: Damage, here: Tensor) -> Tensor:
    """The gradient (S, m, k); zeros where there is none."""
    with torch.enable_grad():
        here = here.detach().requires_grad_()
        total = damage(here).sum()
        if not total.requires_grad:
            return torch.zeros_like(here)
        (slope,) = torch.autograd.grad(total, here)
    return torch.nan_to_num(slope, posinf=0.0, neginf=0.0)


def _unit(ways: Tensor, basis: Basis) -> Tensor:
    """Each row at the length of the scale; rows of zeros stay."""
    length = row_lengths(ways, basis)[..., None]
    return torch.where(length > 1e-12, ways / length, 0)


def _taken(candidates: Tensor, index: Tensor) -> Tensor:
    return candidates.index_select(0, index[None])[0]
