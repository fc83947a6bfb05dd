"""A hierarchical root of trust: clients that the root update trusts most help to judge the others."""

from dataclasses import dataclass

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.rows import direction_and_norm, divisor, finite, measure, weighted_sum
from fltrust.rules.rule import Aggregate, Received, Rule

ALIKE = 1 - 1e-9  # scores that differ by rounding alone are equal: copies of a row become deputies together


@RULES.register("fltrust-two-level", label="FLTrust, two levels")
@dataclass(frozen=True)
class FLTrustTwoLevel(Rule):
    """FLTrust with a second root update, which the most trusted clients form together with the server.

    Cao et al. 2021 leave a hierarchical root of trust for future work; this is a small form of it. First level: TS_i = ReLU(cos(g_i, g_0)),
    as in FLTrust. The `top` share of the usable clients with the highest TS_i above 0 are the deputies D; of equal ones all. Second level:
    FLTrust with g_1 = ||g_0|| v / ||v|| instead of g_0, where v = g_0 / ||g_0|| + sum of g_i / ||g_i|| over D. If no client is trusted, the
    update is zero.

    A small root set gives a noisy g_0; the deputies average the noise out. But malicious clients may become deputies too.

    Parameters
    ----------
    top : float, default 0.25
        The share of the usable clients that become deputies, rounded up: above 0 and at most 1.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLTrustTwoLevel
    >>> updates = torch.tensor([[0.6, 0.8], [0.0, 4.0], [-5.0, 0.0]])  # the first one is a deputy
    >>> FLTrustTwoLevel()(updates, root_update=torch.tensor([2.0, 0.0]))
    Aggregate(update=tensor([0.8000, 1.7333]), shares=tensor([0.6667, 0.3333, 0.0000]))
    """

    needs_root = True
    top: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.top <= 1:
            raise InputError(f"top must be above 0 and at most 1, not {self.top}")

    def aggregate(self, received: Received) -> Aggregate:
        updates, root_update = received.updates, received.root_update
        assert root_update is not None  # take_step checks this
        direction, root_norm = direction_and_norm(root_update)
        rows = measure(updates, direction)
        trust = rows.cosine.relu()  # (n,)
        many = (self.top * rows.usable.sum()).ceil().long().clamp(min=1)
        least = trust.sort(descending=True).values.gather(0, many[None] - 1)  # (1,)
        deputies = (trust >= least * ALIKE) & (trust > 0)
        both = direction + weighted_sum(updates, rows, deputies.double())  # (d,)
        rows = measure(updates, both / divisor(both.norm()))
        trust = rows.cosine.relu() * deputies.any()
        total_trust = divisor(trust.sum())
        total = weighted_sum(updates, rows, trust * root_norm) / total_trust
        return Aggregate(finite(total, updates), (trust / total_trust).to(updates.dtype))
