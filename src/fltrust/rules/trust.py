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
    """The mean of the updates, rescaled towards the root update's length and weighted by how closely each aligns with the root update.

    g = (sum_i TS_i s_i g_i + server_trust g_0) / (sum_i TS_i + server_trust). TS_i is the cosine of g_i with the root update g_0, raised to
    `least_trust` where it is lower. s_i = ||g_0|| / ||g_i||, kept within `stretch`.
    """

    needs_root = True
    scores_trust = True
    least_trust: ClassVar[float] = 0.0  # the ReLU
    stretch: ClassVar[tuple[float, float]] = (0.0, torch.inf)
    server_trust: ClassVar[float] = 0.0  # of the root update, as if the server were one more client

    def aggregate(self, received: Received) -> Aggregate:
        updates, root_update = received.updates, received.root_update
        assert root_update is not None  # take_step checks this
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
    """The mean of the updates, each rescaled to the root update's length and weighted by its trust score (Cao et al. 2021).

    Equation 4: g = 1 / (sum_i TS_i) * sum_i TS_i * (||g_0|| / ||g_i||) * g_i.
    TS_i = ReLU(cos(g_i, g_0)) is client i's trust score and g_0 is the root update. If no client is trusted, the update is zero.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLTrust
    >>> updates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]])  # trust scores 1, 0.6 and 0
    >>> FLTrust()(updates, root_update=torch.tensor([2.0, 0.0]))
    Aggregate(update=tensor([1.7000, 0.6000]), shares=tensor([0.6250, 0.3750, 0.0000]))
    """

    def accumulator(self, root_update: Tensor, exact_for: int | None = None) -> Accumulator:
        return TrustAccumulator(root_update) if exact_for is None else ExactTrust(root_update, exact_for)


@RULES.register("fltrust-server", label="FLTrust-Server", reference=_CAO)
@dataclass(frozen=True)
class FLTrustServer(Rule):
    """FLTrust-Server: the root update alone. It ignores all clients.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLTrustServer
    >>> updates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]])
    >>> FLTrustServer()(updates, root_update=torch.tensor([2.0, 0.0]))
    Aggregate(update=tensor([2., 0.]), shares=tensor([0., 0., 0.]))
    """

    needs_root = True

    def aggregate(self, received: Received) -> Aggregate:
        updates, root_update = received.updates, received.root_update
        assert root_update is not None  # take_step checks this
        _, root_norm = direction_and_norm(root_update)
        return Aggregate(torch.where(root_norm > 0, root_update, 0), updates.new_zeros(len(updates)))


@RULES.register("fltrust-withserver", label="FLTrust-withServer", reference=_CAO)
@dataclass(frozen=True)
class FLTrustWithServer(TrustRule):
    """FLTrust-withServer: FLTrust with the root update as one more client, whose trust score is 1.

    g = (g_0 + sum_i TS_i * (||g_0|| / ||g_i||) * g_i) / (1 + sum_i TS_i). The clients' shares sum to less than 1; the rest is the server's.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLTrustWithServer
    >>> updates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]])
    >>> FLTrustWithServer()(updates, root_update=torch.tensor([2.0, 0.0]))
    Aggregate(update=tensor([1.8154, 0.3692]), shares=tensor([0.3846, 0.2308, 0.0000]))
    """

    server_trust = 1.0


@RULES.register("fltrust-norelu", label="FLTrust-NoReLU", reference=_CAO)
@dataclass(frozen=True)
class FLTrustNoReLU(TrustRule):
    """FLTrust-NoReLU: the trust score is the cosine itself, even where it is negative.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLTrustNoReLU
    >>> updates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]])  # trust scores 1, 0.6 and -1
    >>> FLTrustNoReLU()(updates, root_update=torch.tensor([2.0, 0.0]))
    Aggregate(update=tensor([7.8667, 1.6000]), shares=tensor([ 1.6667,  1.0000, -1.6667]))
    """

    least_trust = -1.0


@RULES.register("fltrust-nonorm", label="FLTrust-NoNorm", reference=_CAO)
@dataclass(frozen=True)
class FLTrustNoNorm(TrustRule):
    """FLTrust-NoNorm: FLTrust without rescaling; the updates keep their lengths.

    g = sum_i TS_i g_i / sum_i TS_i.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLTrustNoNorm
    >>> updates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]])
    >>> FLTrustNoNorm()(updates, root_update=torch.tensor([2.0, 0.0]))
    Aggregate(update=tensor([1.7500, 1.5000]), shares=tensor([0.6250, 0.3750, 0.0000]))
    """

    stretch = (1.0, 1.0)


@RULES.register("fltrust-parnorm", label="FLTrust-ParNorm", reference=_CAO)
@dataclass(frozen=True)
class FLTrustParNorm(TrustRule):
    """FLTrust-ParNorm: FLTrust that only shortens; updates shorter than the root update keep their lengths.

    g = sum_i TS_i * min(1, ||g_0|| / ||g_i||) * g_i / sum_i TS_i.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLTrustParNorm
    >>> updates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]])
    >>> FLTrustParNorm()(updates, root_update=torch.tensor([2.0, 0.0]))
    Aggregate(update=tensor([1.0750, 0.6000]), shares=tensor([0.6250, 0.3750, 0.0000]))
    """

    stretch = (0.0, 1.0)
