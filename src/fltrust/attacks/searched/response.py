"""What the rule makes of many candidates side by side, from the basis vectors' inner products alone, where that is enough.

C candidates of n rows (C, n, k) give C global updates (C, k), all in coordinates of the basis. Differentiable where the rule is.
"""

import torch
from torch import Tensor

from fltrust.attacks.searched.basis import Basis
from fltrust.rules.anchor import Anchor
from fltrust.rules.clipping import CentredClipping
from fltrust.rules.gram import GramRule
from fltrust.rules.hierarchical import ALIKE, FLTrustTwoLevel
from fltrust.rules.mean import FedAvg
from fltrust.rules.preaggregation import NNM, Clipping, Measured, PreAggregation
from fltrust.rules.rows import Rows, divisor
from fltrust.rules.rule import Rule
from fltrust.rules.trust import TrustRule


def has_closed_form(rule: Rule) -> bool:
    """Whether inner products of rows, root update and centre are all that the rule looks at."""
    if rule.overridden:
        return False
    if isinstance(rule, NNM | Clipping):
        return has_closed_form(rule.within)
    if isinstance(rule, Anchor):
        return not rule.has_memory
    return isinstance(rule, TrustRule | FLTrustTwoLevel | FedAvg | CentredClipping) or (isinstance(rule, GramRule) and not rule.needs_rows)


class Sent:
    """Rows (C, n, k), measured: in units of the basis' scale."""

    def __init__(self, rows: Tensor, basis: Basis) -> None:
        self.rows, self.basis = rows, basis
        self.along = rows @ basis.products  # (C, n, k): inner products with the basis vectors
        self.norm = (self.along * rows).sum(-1).clamp(min=1e-24).sqrt()  # (C, n)
        self.usable = self.norm > 1e-9  # a row of zeros counts for nothing
        self.norm = torch.where(self.usable, self.norm, 0)

    @property
    def products(self) -> Tensor:
        """(C, n, n)"""
        both = self.usable[..., :, None] & self.usable[..., None, :]
        return torch.where(both, self.along @ self.rows.mT, 0)


def respond(rule: Rule, sent: Sent, centre: Tensor, sizes: Tensor | None) -> Tensor:
    """The global updates (C, k), for a rule with a closed form; `centre` (C, k) is what it remembers."""
    if isinstance(rule, PreAggregation):
        return respond(rule.within, Sent(_mixing(rule, sent) @ sent.rows, sent.basis), centre, sizes)
    if isinstance(rule, GramRule):
        return _sum(rule.weigh(sent.products, sent.usable), sent.rows)
    if isinstance(rule, TrustRule):
        return _trusted(rule, sent)
    if isinstance(rule, FLTrustTwoLevel):
        return _two_levels(rule, sent)
    if isinstance(rule, Anchor):
        return _anchored(rule, sent)
    if isinstance(rule, CentredClipping):
        return _clipped(rule, sent, centre)
    weight = sent.usable.double()
    if isinstance(rule, FedAvg) and rule.by_size and sizes is not None:
        weight = weight * sizes.double().nan_to_num(0, 0, 0).clamp(min=0)
    return _sum(weight / divisor(weight.sum(-1, keepdim=True)), sent.rows)


def _sum(shares: Tensor, rows: Tensor) -> Tensor:
    return (shares[..., None, :] @ rows)[..., 0, :]


class _Supposed(Measured):
    """Rows that nobody has sent: all that is known of them is their lengths and products."""

    def __init__(self, rows: Rows, products: Tensor) -> None:
        self.__dict__.update(rows=rows, products=products)


def _mixing(rule: PreAggregation, sent: Sent) -> Tensor:
    """(C, n, n): which rows go on, as sums of those received."""

    def one(norm: Tensor, usable: Tensor, products: Tensor) -> Tensor:
        scale = torch.where(usable, sent.basis.scale, torch.inf)
        return rule.mixing(_Supposed(Rows(usable, scale, norm, torch.zeros_like(norm)), products))

    mixing: Tensor = torch.func.vmap(one)(sent.norm, sent.usable, sent.products)
    return mixing


def _trusted(rule: TrustRule, sent: Sent) -> Tensor:
    root = sent.basis.root
    root_norm = (root @ sent.basis.products @ root).clamp(min=1e-24).sqrt()
    present = root_norm > 1e-9
    length = torch.where(sent.usable, sent.norm, 1)
    cosine = torch.where(sent.usable & present, sent.along @ root / (length * root_norm), 0)
    trust = torch.where(sent.usable & present, cosine.clamp(min=rule.least_trust), 0)
    norm = root_norm.maximum(rule.stretch[0] * sent.norm)
    norm = norm.minimum(rule.stretch[1] * length) if rule.stretch[1] < torch.inf else norm  # 0 times infinity would spoil the slope
    total = divisor(trust.sum(-1, keepdim=True) + rule.server_trust * present)
    return (_sum(trust * norm / length, sent.rows) + rule.server_trust * present * root) / total


def _two_levels(rule: FLTrustTwoLevel, sent: Sent) -> Tensor:
    root = sent.basis.root
    root_norm = (root @ sent.basis.products @ root).clamp(min=1e-24).sqrt()
    present = root_norm > 1e-9
    length = torch.where(sent.usable, sent.norm, 1)
    trust = torch.where(sent.usable & present, (sent.along @ root / (length * root_norm)).relu(), 0)  # (C, n)
    many = (rule.top * sent.usable.sum(-1, keepdim=True)).ceil().long().clamp(min=1)  # (C, 1)
    deputies = (trust >= ALIKE * trust.sort(-1, descending=True).values.gather(-1, many - 1)) & (trust > 0)
    second = root / root_norm + _sum(deputies / length, sent.rows)  # (C, k)
    second_norm = ((second @ sent.basis.products) * second).sum(-1, keepdim=True).clamp(min=1e-24).sqrt()
    along = (sent.along @ second[..., None])[..., 0]  # (C, n)
    trust = torch.where(sent.usable & deputies.any(-1, keepdim=True), (along / (length * second_norm)).relu(), 0)
    return _sum(trust * root_norm / length / divisor(trust.sum(-1, keepdim=True)), sent.rows)


def _anchored(rule: Anchor, sent: Sent) -> Tensor:
    root = sent.basis.root
    root_norm = (root @ sent.basis.products @ root).clamp(min=1e-24).sqrt()
    present = root_norm > 1e-9
    count = sent.usable.sum(-1, keepdim=True)  # (C, 1)
    length = torch.where(sent.usable, sent.norm, 1)
    ordered = torch.where(sent.usable, sent.norm, torch.inf).sort(-1).values
    reach = torch.where(count > 0, ordered.gather(-1, 3 * (count - 1).clamp(min=0) // 4), 0)
    clients = _sum(sent.usable * _median(sent.norm, sent.usable) / length / divisor(count), sent.rows)
    return torch.where(present, clients + rule.voice * (reach / root_norm).clamp(max=1) * root, 0)


def _clipped(rule: CentredClipping, sent: Sent, centre: Tensor) -> Tensor:
    count = sent.usable.sum(-1, keepdim=True)  # (C, 1)
    before = centre
    for _ in range(rule.steps):
        away = sent.rows - centre[..., None, :]
        distance = ((away @ sent.basis.products) * away).sum(-1).clamp(min=1e-24).sqrt()  # (C, n)
        tau = _median(distance, sent.usable) if rule.tau is None else rule.tau / sent.basis.scale
        pull = torch.where(sent.usable, (tau / distance).clamp(max=1), 0) / divisor(count)
        centre = centre + _sum(pull, away)
    return torch.where(count > 0, centre, before)


def _median(values: Tensor, usable: Tensor) -> Tensor:
    """(C, 1): of an even number of usable values the mean of the two in the middle."""
    count = usable.sum(-1, keepdim=True)
    ordered = torch.where(usable, values, torch.inf).sort(-1).values
    low, high = ((count - 1) // 2).clamp(min=0), (count // 2).clamp(max=values.shape[-1] - 1)
    return (ordered.gather(-1, low) + ordered.gather(-1, high)) / 2
