"""Rules by which the clients vote on each coordinate."""

from dataclasses import dataclass

import torch

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.mean import FedAvg
from fltrust.rules.rows import measure, sign_sums
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("rlr", label="RLR", reference="Ozdayi et al., AAAI 2021")
@dataclass(frozen=True)
class RLR(Rule):
    """The mean, turned round in each coordinate on whose sign too few clients agree (Ozdayi, Kantarcioglu and Gel 2021).

    g_k = +mean_k if |sum_i sign(x_ik)| >= threshold, else -mean_k: a robust learning rate. Each usable client has one vote.

    If fewer clients are usable than the threshold, every coordinate would be turned round. Then the update is zero instead.

    Parameters
    ----------
    threshold : float or None, default None
        The votes that a coordinate needs. None asks for a quarter of the usable clients: the authors' values are 4 of 10, 8 of 40 and
        8 of about 34 clients, so 0.2 to 0.4 of them, and a fifth of the clients alone cannot reach a quarter.
    by_size : bool, default True
        Weights the mean, not the votes, by the clients' numbers of examples. False gives the plain mean; so do updates without sizes.

    Examples
    --------
    >>> import torch
    >>> from fltrust import RLR
    >>> updates = torch.tensor([[1.0, 4.0, 1.0], [1.0, 4.0, 0.0], [1.0, -2.0, 0.0], [1.0, -2.0, 2.0]])
    >>> RLR(threshold=2)(updates)  # 4, 0 and 2 votes
    Aggregate(update=tensor([ 1.0000, -1.0000,  0.7500]), shares=None)
    """

    threshold: float | None = None
    by_size: bool = True

    by_coordinate = True
    counts_clients = ("threshold",)

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold < float("inf"):
            raise InputError(f"RLR cannot ask for {self.threshold} votes: give a number of clients, 0 or more")

    def aggregate(self, received: Received) -> Aggregate:
        updates = received.updates
        if self.threshold is not None and self.threshold > len(updates):
            raise InputError(f"RLR cannot ask for {self.threshold:g} votes of {len(updates)} clients: no coordinate could reach them")
        usable = measure(updates).usable
        count = usable.sum()
        needed = count / 4 if self.threshold is None else self.threshold
        rate = torch.where(sign_sums(updates, usable).abs() >= needed, 1, -1)
        mean = FedAvg(self.by_size).aggregate(received).update
        return Aggregate(torch.where(count >= needed, rate * mean, 0), None)
