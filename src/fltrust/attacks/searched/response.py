"""What the rule makes of many candidates side by side, from the basis vectors' inner products alone, where that is enough.

C candidates of n rows (C, n, k) give C global updates (C, k), all in coordinates of the basis. Differentiable where the rule is.
"""

from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import threshold

from fltrust.attacks.searched.basis import Basis, at_least, row_lengths
from fltrust.rules.anchor import Anchor
from fltrust.rules.clipping import CentredClipping
from fltrust.rules.gram import GramRule
from fltrust.rules.hierarchical import ALIKE, FLTrustTwoLevel
from fltrust.rules.mean import FedAvg
from fltrust.rules.preaggregation import NNM, Clipping, Measured, PreAggregation
from fltrust.rules.rows import Rows, divisor, in_order, in_the_middle, medians_of, upper_quartile
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


ZERO = 1e-18  # the square of a length that counts as zero


class Sent:
    """Candidates (C, m, k) and the same honest rows for all, which are basis vectors: in units of the basis' scale."""

    def __init__(self, crafted: Tensor, honest: slice, basis: Basis) -> None:
        self.crafted, self.honest, self.basis = crafted, honest, basis
        self.along = crafted @ basis.products  # (C, m, k): inner products with the basis vectors
        theirs = basis.products.diagonal()[honest].expand(len(crafted), -1)
        self.squares = torch.cat(((self.along * crafted).sum(-1), theirs), -1)  # (C, n)

    @cached_property
    def usable(self) -> Tensor:
        """(C, n): a row of zeros counts for nothing."""
        return self.squares > ZERO

    @cached_property
    def length(self) -> Tensor:
        """(C, n): infinite where not usable."""
        return threshold(self.squares, ZERO, torch.inf).sqrt()

    @cached_property
    def inverse(self) -> Tensor:
        """(C, n): 1 / length, 0 where not usable."""
        return self.length.reciprocal()

    @cached_property
    def of_all(self) -> Tensor:
        """(C, n, n): the products, those of rows that are not usable too."""
        across = self.along[..., self.honest]
        theirs = self.basis.products[self.honest, self.honest].expand(len(across), -1, -1)
        mine = torch.cat((self.along @ self.crafted.mT, across), -1)
        return torch.cat((mine, torch.cat((across.mT, theirs), -1)), -2)

    @cached_property
    def products(self) -> Tensor:
        """(C, n, n)"""
        return self.of_all * (self.usable[..., :, None] & self.usable[..., None, :])

    @property
    def cosines(self) -> Tensor:
        """(C, n, n)"""
        return self.of_all * self.inverse[..., :, None] * self.inverse[..., None, :]

    def onto_root(self) -> Tensor:
        """The rows' inner products (C, n) with the root update's direction."""
        along = self.basis.products[self.basis.root]
        mine = self.crafted @ along
        return torch.cat((mine, along[self.honest].expand(len(mine), -1)), -1)

    def onto(self, vectors: Tensor) -> Tensor:
        """The rows' inner products (C, n) with one vector for each candidate (C, k)."""
        along = vectors @ self.basis.products
        return torch.cat(((self.crafted @ along[..., None])[..., 0], along[..., self.honest]), -1)

    def sum(self, shares: Tensor) -> Tensor:
        """(C, k): shares (C, n) times the rows."""
        mine, theirs = shares.split((self.honest.start, shares.shape[-1] - self.honest.start), -1)
        return torch.addmm((mine[:, None] @ self.crafted)[:, 0], theirs, self.basis.eye[self.honest])


class Mixed(Sent):
    """Sums of the rows sent, by mixing (C, n, n)."""

    def __init__(self, sent: Sent, mixing: Tensor) -> None:
        self.sent, self.mixing, self.basis = sent, mixing, sent.basis
        self.squares = self.of_all.diagonal(dim1=-2, dim2=-1)

    @cached_property
    def of_all(self) -> Tensor:
        return self.mixing @ self.sent.products @ self.mixing.mT

    def onto_root(self) -> Tensor:
        return (self.mixing @ self.sent.onto_root()[..., None])[..., 0]

    def onto(self, vectors: Tensor) -> Tensor:
        return (self.mixing @ self.sent.onto(vectors)[..., None])[..., 0]

    def sum(self, shares: Tensor) -> Tensor:
        return self.sent.sum((shares[..., None, :] @ self.mixing)[..., 0, :])


class RunningMeans(Sent):
    """What Anchor makes of the rows sent and its sums, which are basis vectors: see `Anchor.means`."""

    def __init__(self, sent: Sent, rule: Anchor, rounds: Tensor) -> None:
        self.sent, self.basis = sent, sent.basis
        assert self.basis.sums is not None
        self.sums = slice(self.basis.sums, self.basis.sums + len(rounds))
        longest = medians_of(sent.length, sent.usable) / (1 - rule.momentum)  # (C, 1)
        heard = sent.usable / (1 - rule.momentum ** (rounds + 1).double())  # (C, n)
        self.old = rule.momentum * heard  # (C, n): how often a client's sum is in its mean
        self.new = (1 - rule.momentum) * (longest * sent.inverse).clamp(max=1) * heard  # (C, n): and the row that it sent
        theirs = self.basis.products[sent.honest, self.sums].expand(len(heard), -1, -1)
        self.across = torch.cat((sent.along[..., self.sums], theirs), -2)  # (C, n, n): products of rows with sums
        self.among = self.basis.products[self.sums, self.sums]
        both = 2 * self.old * self.new * self.across.diagonal(dim1=-2, dim2=-1)
        self.squares = self.old.square() * self.among.diagonal() + both + self.new.square() * sent.squares

    @cached_property
    def of_all(self) -> Tensor:
        old, new = self.old[..., :, None], self.new[..., :, None]
        both = new * self.across * old.mT
        return old * self.among * old.mT + both + both.mT + new * self.sent.of_all * new.mT  # `new` and `old` are 0 where nothing is heard

    def sum(self, shares: Tensor) -> Tensor:
        return torch.addmm(self.sent.sum(shares * self.new), shares * self.old, self.basis.eye[self.sums])


def respond(rule: Rule, sent: Sent, centre: Tensor, sizes: Tensor | None) -> Tensor:
    """The global updates (C, k), for a rule with a closed form; `centre` (C, k) is what it remembers."""
    if isinstance(rule, PreAggregation):
        mixed = Mixed(sent, _mixing(rule, sent))
        if isinstance(rule.within, GramRule):  # mixed rows are not measured again: as in `PreAggregation.step`
            return mixed.sum(rule.within.weigh(mixed.of_all, (mixed.mixing != 0).any(-1)))
        return respond(rule.within, mixed, centre, sizes)
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
    return sent.sum(weight / _or_one(weight.sum(-1, keepdim=True)))


class _Supposed(Measured):
    """Rows that nobody has sent: all that is known of them is their lengths and products."""

    def __init__(self, rows: Rows, products: Tensor) -> None:
        self.__dict__.update(rows=rows, products=products)


def _mixing(rule: PreAggregation, sent: Sent) -> Tensor:
    """(C, n, n): which rows go on, as sums of those received."""

    def one(norm: Tensor, usable: Tensor, products: Tensor) -> Tensor:
        scale = torch.where(usable, sent.basis.scale, torch.inf)
        rows = Rows(usable, scale, norm, torch.zeros_like(norm), norm * sent.basis.scale)
        return rule.mixing(_Supposed(rows, products))

    batch = one if type(rule).mixing is NNM.mixing else torch.func.vmap(one)
    mixing: Tensor = batch(torch.where(sent.usable, sent.length, 0), sent.usable, sent.products)
    return mixing


def _trusted(rule: TrustRule, sent: Sent) -> Tensor:
    root_norm = sent.basis.root_norm
    trust = threshold(sent.onto_root() * sent.inverse, rule.least_trust, rule.least_trust)
    reach = root_norm * sent.inverse  # what brings a row to the root update's length
    if rule.stretch != TrustRule.stretch:
        reach = reach.clamp(*rule.stretch)
    total = trust.sum(-1, keepdim=True)
    update = sent.sum(trust * reach)
    if rule.server_trust:
        total, update = (
            total + rule.server_trust * (root_norm > 0),
            update + rule.server_trust * root_norm * sent.basis.eye[sent.basis.root],
        )
    return update / divisor(total)  # without ReLU, trust that is not 0 can sum to 0


def _two_levels(rule: FLTrustTwoLevel, sent: Sent) -> Tensor:
    trust = (sent.onto_root() * sent.inverse).relu()  # (C, n)
    many = (rule.top * sent.usable.sum(-1, keepdim=True)).ceil().long().clamp(min=1)  # (C, 1)
    deputies = (trust >= ALIKE * trust.sort(-1, descending=True).values.gather(-1, many - 1)) & (trust > 0)
    second = sent.basis.eye[sent.basis.root] + sent.sum(deputies * sent.inverse)  # (C, k)
    trust = (sent.onto(second) * sent.inverse / row_lengths(second, sent.basis)[:, None]).relu() * deputies.any(-1, keepdim=True)
    return sent.sum(trust * sent.basis.root_norm * sent.inverse / _or_one(trust.sum(-1, keepdim=True)))


def _anchored(rule: Anchor, sent: Sent) -> Tensor:
    root, root_norm, ordered = sent.basis.eye[sent.basis.root], sent.basis.root_norm, in_order(sent.length)
    count = sent.usable.sum(-1, keepdim=True)  # (C, 1)
    common = in_the_middle(ordered, count).minimum(rule.limit * root_norm)  # (C, 1)
    shares = sent.usable / count.clamp(min=1)
    if rule.directions:
        shares = winsorised(sent.cosines, sent.usable, rule.directions)
    clients = sent.sum(shares * common * sent.inverse)
    reach = upper_quartile(ordered, count).minimum(root_norm) * (count > 0)
    return torch.addcmul(clients, reach, root, value=rule.voice)


def _clipped(rule: CentredClipping, sent: Sent, centre: Tensor) -> Tensor:
    count = sent.usable.sum(-1, keepdim=True)  # (C, 1)
    for _ in range(rule.steps):
        square = ((centre @ sent.basis.products) * centre).sum(-1, keepdim=True)
        distance = at_least(sent.squares - 2 * sent.onto(centre) + square, 1e-24).sqrt()  # (C, n)
        tau = medians_of(distance, sent.usable) if rule.tau is None else rule.tau / sent.basis.scale
        pull = sent.usable * (tau / distance).clamp(max=1) / count.clamp(min=1)
        centre = centre * (1 - pull.sum(-1, keepdim=True)) + sent.sum(pull)
    return torch.where(count > 0, centre, 0)


def _or_one(total: Tensor) -> Tensor:
    """What shares are divided by, where a total of 0 means that they are all 0."""
    return total + (total == 0)
