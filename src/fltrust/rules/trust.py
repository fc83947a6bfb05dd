"""Rules that score clients by the root update: FLTrust and its ablations (the paper's Table IV), siblings that differ in three numbers."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fltrust.registry import RULES, Look
from fltrust.rules.accumulate import ExactTrust, TrustAccumulator
from fltrust.rules.rows import direction_and_norm, divisor, finite, trusted_sum
from fltrust.rules.rule import Accumulator, Aggregate, Received, Rule

_CAO = "Cao, Fang, Liu, Gong, NDSS 2021"


class TrustRule(Rule):
    """The mean of the updates at the root update's length, weighted by how well each aligns with the root update.

    g = (sum_i TS_i g_i s_i + server_trust g_0) / (sum_i TS_i + server_trust), TS_i the cosine with the root update g_0, at least
    `least_trust`, and s_i the factor that brings g_i to g_0's norm, kept within `stretch`.
    """

    needs_root = True
    scores_trust = True
    least_trust: ClassVar[float] = 0.0  # the ReLU
    stretch: ClassVar[tuple[float, float]] = (0.0, torch.inf)
    server_trust: ClassVar[float] = 0.0  # of the root update, as if the server were one more client

    def aggregate(self, received: Received) -> Aggregate:
        updates, root_update = received.updates, received.root_update
        assert root_update is not None  # take_step has seen to it
        total, trust = trusted_sum(updates, root_update, self.least_trust, self.stretch)
        total_trust = trust.sum()
        if self.server_trust:
            usable = direction_and_norm(root_update)[1] > 0
            total += self.server_trust * torch.where(usable, root_update, 0)
            total_trust += self.server_trust * usable
        total_trust = divisor(total_trust)
        return Aggregate(finite(total.div_(total_trust), updates), (trust / total_trust).to(updates.dtype))


@RULES.register("fltrust", label="FLTrust", look=Look("blue", "v"), reference=_CAO)
@dataclass(frozen=True)
class FLTrust(TrustRule):
    """The mean of the updates at the root update's length, weighted by trust: how far each points the same way (Cao et al. 2021).

    Equation 4: g = 1 / (sum_i TS_i) * sum_i TS_i * (||g_0|| / ||g_i||) * g_i.
    TS_i = ReLU(cos(g_i, g_0)) is client i's trust, g_0 the root update. If no client is trusted, the update is zero.
    """

    def accumulator(self, root_update: Tensor, exact_for: int | None = None) -> Accumulator:
        return TrustAccumulator(root_update) if exact_for is None else ExactTrust(root_update, exact_for)


@RULES.register("fltrust-server", label="FLTrust-Server", reference=_CAO)
@dataclass(frozen=True)
class FLTrustServer(Rule):
    """FLTrust-Server: the root update alone. It ignores all clients."""

    needs_root = True

    def aggregate(self, received: Received) -> Aggregate:
        updates, root_update = received.updates, received.root_update
        assert root_update is not None  # take_step has seen to it
        _, root_norm = direction_and_norm(root_update)
        return Aggregate(torch.where(root_norm > 0, root_update, 0), updates.new_zeros(len(updates)))


@RULES.register("fltrust-withserver", label="FLTrust-withServer", reference=_CAO)
@dataclass(frozen=True)
class FLTrustWithServer(TrustRule):
    """FLTrust-withServer: the root update takes part, with trust 1; the clients' shares then sum to less than 1."""

    server_trust = 1.0


@RULES.register("fltrust-norelu", label="FLTrust-NoReLU", reference=_CAO)
@dataclass(frozen=True)
class FLTrustNoReLU(TrustRule):
    """FLTrust-NoReLU: the trust is the cosine itself, also where it is negative."""

    least_trust = -1.0


@RULES.register("fltrust-nonorm", label="FLTrust-NoNorm", reference=_CAO)
@dataclass(frozen=True)
class FLTrustNoNorm(TrustRule):
    """FLTrust-NoNorm: the rows keep their lengths."""

    stretch = (1.0, 1.0)


@RULES.register("fltrust-parnorm", label="FLTrust-ParNorm", reference=_CAO)
@dataclass(frozen=True)
class FLTrustParNorm(TrustRule):
    """FLTrust-ParNorm: only the rows that are longer than the root update are shortened to its norm."""

    stretch = (0.0, 1.0)
