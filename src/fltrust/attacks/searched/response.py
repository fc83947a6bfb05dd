"""What the rule makes of many candidates side by side, from the basis vectors' inner products alone, where that is enough.

C candidates of n rows (C, n, k) give C global updates (C, k), all in coordinates of the basis. Differentiable where the rule is.
"""

from functools import cached_property

import torch
from torch import Tensor

from fltrust.attacks.searched.basis import Basis
from fltrust.rules.anchor import Anchor
from fltrust.rules.clipping import CentredClipping
from fltrust.rules.gram import GramRule
from fltrust.rules.hierarchical import ALIKE, FLTrustTwoLevel
from fltrust.rules.mean import FedAvg
from fltrust.rules.preaggregation import NNM, Clipping, Measured, PreAggregation
from fltrust.rules.rows import Rows, divisor, in_order, medians_of
from fltrust.rules.rule import Rule
from fltrust.rules.spectral import winsorised
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
    """Candidates (C, m, k) and the same honest rows for all, which are basis vectors: in units of the basis' scale."""

    def __init__(self, crafted: Tensor, honest: slice, basis: Basis) -> None:
        self.crafted, self.honest, self.basis = crafted, honest, basis
        self.along = crafted @ basis.products  # (C, m, k): inner products with the basis vectors
        theirs = basis.products.diagonal()[honest].expand(len(crafted), -1)
        self._measure(torch.cat(((self.along * crafted).sum(-1), theirs), -1))

    def _measure(self, squares: Tensor) -> None:
        norm = squares.clamp(min=1e-24).sqrt()  # (C, n)
        self.usable = norm > 1e-9  # a row of zeros counts for nothing
        self.norm = torch.where(self.usable, norm, 0)

    @cached_property
    def products(self) -> Tensor:
        """(C, n, n)"""
        across = self.along[..., self.honest]
        theirs = self.basis.products[self.honest, self.honest].expand(len(across), -1, -1)
        mine = torch.cat((self.along @ self.crafted.mT, across), -1)
        return self._of_usable(torch.cat((mine, torch.cat((across.mT, theirs), -1)), -2))

    def _of_usable(self, products: Tensor) -> Tensor:
        return torch.where(self.usable[..., :, None] & self.usable[..., None, :], products, 0)

    def onto(self, vectors: Tensor) -> Tensor:
        """The rows' inner products (C, n) with a vector (k,), or with one for each candidate (C, k)."""
        along = vectors @ self.basis.products
        mine = (self.crafted @ along[..., None])[..., 0]
        return torch.cat((mine, along[..., self.honest].expand(len(mine), -1)), -1)

    def sum(self, shares: Tensor) -> Tensor:
        """(C, k): shares (C, n) times the rows."""
        m, stop = self.crafted.shape[1], self.honest.stop
        mine = (shares[..., None, :m] @ self.crafted)[..., 0, :]
        return mine + torch.nn.functional.pad(shares[..., m:], (m, mine.shape[-1] - stop))


class Mixed(Sent):
    """Sums of the rows sent, by mixing (C, n, n)."""

    def __init__(self, sent: Sent, mixing: Tensor) -> None:
        self.sent, self.mixing, self.basis = sent, mixing, sent.basis
        products = mixing @ sent.products @ mixing.mT
        self._measure(products.diagonal(dim1=-2, dim2=-1))
        self.products = self._of_usable(products)

    def onto(self, vectors: Tensor) -> Tensor:
        return (self.mixing @ self.sent.onto(vectors)[..., None])[..., 0]

    def sum(self, shares: Tensor) -> Tensor:
        return self.sent.sum((shares[..., None, :] @ self.mixing)[..., 0, :])


def respond(rule: Rule, sent: Sent, centre: Tensor, sizes: Tensor | None) -> Tensor:
    """The global updates (C, k), for a rule with a closed form; `centre` (C, k) is what it remembers."""
    if isinstance(rule, PreAggregation):
        return respond(rule.within, Mixed(sent, _mixing(rule, sent)), centre, sizes)
    if isinstance(rule, GramRule):
        return sent.sum(rule.weigh(sent.products, sent.usable))
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
    return sent.sum(weight / divisor(weight.sum(-1, keepdim=True)))


class _Supposed(Measured):
    """Rows that nobody has sent: all that is known of them is their lengths and products."""

    def __init__(self, rows: Rows, products: Tensor) -> None:
        self.__dict__.update(rows=rows, products=products)


def _mixing(rule: PreAggregation, sent: Sent) -> Tensor:
    """(C, n, n): which rows go on, as sums of those received."""

    def one(norm: Tensor, usable: Tensor, products: Tensor) -> Tensor:
        scale = torch.where(usable, sent.basis.scale, torch.inf)
        return rule.mixing(_Supposed(Rows(usable, scale, norm, torch.zeros_like(norm)), products))

    batch = one if type(rule).mixing is NNM.mixing else torch.func.vmap(one)
    mixing: Tensor = batch(sent.norm, sent.usable, sent.products)
    return mixing


def _trusted(rule: TrustRule, sent: Sent) -> Tensor:
    root = sent.basis.root
    root_norm = (root @ sent.basis.products @ root).clamp(min=1e-24).sqrt()
    present = root_norm > 1e-9
    length = torch.where(sent.usable, sent.norm, 1)
    cosine = torch.where(sent.usable & present, sent.onto(root) / (length * root_norm), 0)
    trust = torch.where(sent.usable & present, cosine.clamp(min=rule.least_trust), 0)
    norm = root_norm.maximum(rule.stretch[0] * sent.norm)
    norm = norm.minimum(rule.stretch[1] * length) if rule.stretch[1] < torch.inf else norm  # 0 times infinity would spoil the slope
    total = divisor(trust.sum(-1, keepdim=True) + rule.server_trust * present)
    return (sent.sum(trust * norm / length) + rule.server_trust * present * root) / total


def _two_levels(rule: FLTrustTwoLevel, sent: Sent) -> Tensor:
    root = sent.basis.root
    root_norm = (root @ sent.basis.products @ root).clamp(min=1e-24).sqrt()
    present = root_norm > 1e-9
    length = torch.where(sent.usable, sent.norm, 1)
    trust = torch.where(sent.usable & present, (sent.onto(root) / (length * root_norm)).relu(), 0)  # (C, n)
    many = (rule.top * sent.usable.sum(-1, keepdim=True)).ceil().long().clamp(min=1)  # (C, 1)
    deputies = (trust >= ALIKE * trust.sort(-1, descending=True).values.gather(-1, many - 1)) & (trust > 0)
    second = root / root_norm + sent.sum(deputies / length)  # (C, k)
    second_norm = ((second @ sent.basis.products) * second).sum(-1, keepdim=True).clamp(min=1e-24).sqrt()
    trust = torch.where(sent.usable & deputies.any(-1, keepdim=True), (sent.onto(second) / (length * second_norm)).relu(), 0)
    return sent.sum(trust * root_norm / length / divisor(trust.sum(-1, keepdim=True)))


def _anchored(rule: Anchor, sent: Sent) -> Tensor:
    root = sent.basis.root
    root_norm = (root @ sent.basis.products @ root).clamp(min=1e-24).sqrt()
    present = root_norm > 1e-9
    count = sent.usable.sum(-1, keepdim=True)  # (C, 1)
    length = torch.where(sent.usable, sent.norm, 1)
    ordered = in_order(torch.where(sent.usable, sent.norm, torch.inf))
    reach = torch.where(count > 0, ordered.gather(-1, 3 * (count - 1).clamp(min=0) // 4), 0)
    common = medians_of(sent.norm, sent.usable).minimum(rule.limit * root_norm)  # (C, 1)
    shares = winsorised(sent.products / length[..., :, None] / length[..., None, :], sent.usable, rule.directions)
    clients = sent.sum(shares * common / length)
    return torch.where(present, clients + rule.voice * (reach / root_norm).clamp(max=1) * root, 0)


def _clipped(rule: CentredClipping, sent: Sent, centre: Tensor) -> Tensor:
    count = sent.usable.sum(-1, keepdim=True)  # (C, 1)
    before = centre
    for _ in range(rule.steps):
        square = ((centre @ sent.basis.products) * centre).sum(-1, keepdim=True)
        distance = (sent.norm.square() - 2 * sent.onto(centre) + square).clamp(min=1e-24).sqrt()  # (C, n)
        tau = medians_of(distance, sent.usable) if rule.tau is None else rule.tau / sent.basis.scale
        pull = torch.where(sent.usable, (tau / distance).clamp(max=1), 0) / divisor(count)
        centre = centre * (1 - pull.sum(-1, keepdim=True)) + sent.sum(pull)
    return torch.where(count > 0, centre, before)
