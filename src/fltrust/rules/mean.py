"""Plain averages."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fltrust.registry import RULES, Look
from fltrust.rules.rows import divisor, finite, mean_if_usable, measure, weighted_sum
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("fedavg", label="FedAvg", look=Look("grey", "o"), reference="McMahan et al., AISTATS 2017")
@dataclass(frozen=True)
class FedAvg(Rule):
    """The mean of the updates, weighted by the clients' numbers of examples (McMahan et al. 2017).

    g = sum_i |D_i| g_i / sum_i |D_i|, where |D_i| is client i's number of examples.

    Parameters
    ----------
    by_size : bool, default True
        False gives the plain mean, as in the code that FLTrust's authors released. So do updates that come without sizes.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FedAvg
    >>> updates = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    >>> FedAvg()(updates, sizes=torch.tensor([1, 2, 1]))
    Aggregate(update=tensor([1.7500, 2.0000]), shares=tensor([0.2500, 0.5000, 0.2500]))
    """

    by_size: bool = True

    def aggregate(self, received: Received) -> Aggregate:
        updates = received.updates
        shares = self._shares(received, torch.ones(len(updates), dtype=torch.bool, device=updates.device))
        mean = mean_if_usable(updates, shares)
        if mean is None:
            rows = measure(updates)
            shares = self._shares(received, rows.usable)
            mean = finite(weighted_sum(updates, rows, shares * rows.norm), updates)
        return Aggregate(mean, shares.to(updates.dtype))

    def _shares(self, received: Received, usable: Tensor) -> Tensor:
        """(n,) in float64."""
        weight = usable.double()
        if received.sizes is not None and self.by_size:
            weight = torch.where(usable, received.sizes, 0).double()
            weight = weight.nan_to_num(0, 0, 0).clamp(min=0)  # a size that cannot be counts nothing
            weight = weight / weight.amax().clamp(min=1)
        return weight / divisor(weight.sum())
