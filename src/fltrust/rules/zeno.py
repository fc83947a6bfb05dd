"""Rules that judge each row by what it does to the loss on the root set: Zeno, and its linear approximation Zeno++."""

import math
from dataclasses import dataclass

import torch

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.rows import combined, direction_and_norm, divisor, finite, measure, room_for, usable_only, weighted_sum
from fltrust.rules.rule import Aggregate, Received, Rule


@RULES.register("zeno", label="Zeno", reference="Xie, Koyejo, Gupta, ICML 2019")
@dataclass(frozen=True)
class Zeno(Rule):
    """The mean of the n - b updates that lower the loss on the root set most (Xie et al. 2019).

    score_i = loss(w) - loss(w + lr g_i) - rho lr ||g_i||^2, on the root examples of the round. w is the global model and lr the global
    learning rate. The mean of the n - b updates with the highest scores is the result. n is the number of usable updates; one whose loss is
    not finite is not usable. Where scores are equal, the first client's update wins.

    The paper writes rho for our rho times lr, and gives it as a ratio of the learning rate. Its updates are gradients of the mean loss: for
    a sum over b examples, or for several local steps, ||g_i|| is longer and rho should be smaller.

    Parameters
    ----------
    tolerate : int
        b, the number of malicious clients to expect.
    rho : float, default 0.005
        How much the length of an update counts against it. The paper has 0.0005 / 0.1.
    mean_square : bool, default False
        True divides ||g_i||^2 by the number of coordinates, as the code that the authors released does.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Received, Zeno
    >>> updates = torch.tensor([[1.0], [2.0], [-3.0]])
    >>> loss = lambda models: (models - 2).square().sum(1)  # 4 at 0; 1, 0 and 25 after each update
    >>> Zeno(tolerate=1, rho=0.0).aggregate(Received(updates, weights=torch.zeros(1), root_loss=loss))
    Aggregate(update=tensor([1.5000]), shares=tensor([0.5000, 0.5000, 0.0000]))
    """

    tolerate: int
    rho: float = 0.005
    mean_square: bool = False

    needs_weights = True
    needs_root_loss = True

    def __post_init__(self) -> None:
        if self.tolerate < 0:
            raise InputError(f"Zeno cannot tolerate {self.tolerate} clients: give 0 or more")
        if not 0 <= self.rho < math.inf:
            raise InputError(f"Zeno needs a rho of 0 or more, not {self.rho}")

    def aggregate(self, received: Received) -> Aggregate:
        updates, weights, root_loss = received.updates, received.weights, received.root_loss
        assert weights is not None  # take_step checks this
        assert root_loss is not None
        n, d = updates.shape
        if n <= self.tolerate:
            raise InputError(f"Zeno cannot tolerate {self.tolerate} of {n}: it needs more clients than it tolerates")
        lr = updates.new_ones(()) if received.global_lr is None else received.global_lr
        rows = measure(updates)
        tried = room_for(n + 1, updates)  # (n + 1, d): the weights, and then with each update
        tried[0] = weights
        torch.mul(usable_only(updates, rows.usable), lr, out=tried[1:]).add_(weights)
        loss = root_loss(tried).double()  # (n + 1,)
        square = rows.norm.square() / (d if self.mean_square else 1)
        score = loss[0] - loss[1:] - self.rho * lr * square
        usable = rows.usable & torch.isfinite(score)
        rank = torch.where(usable, -score, torch.inf).argsort(stable=True).argsort()  # (n,): 0 is the best
        chosen = usable & (rank < usable.sum() - self.tolerate)
        shares = chosen.double() / divisor(chosen.sum())
        return Aggregate(combined(updates, rows, shares), shares.to(updates.dtype))


@RULES.register("zeno-plus-plus", label="Zeno++", reference="Xie, Koyejo, Gupta, ICML 2020")
@dataclass(frozen=True)
class ZenoPlusPlus(Rule):
    """The mean of the updates that align with the root update, each rescaled to the root update's length (Xie et al. 2020).

    Zeno++ replaces Zeno's loss by a first-order approximation with the root update g_0. Each update is rescaled to ||g_0||, as
    h_i = g_i ||g_0|| / ||g_i||. It is kept if <g_0, h_i> >= threshold ||g_0||^2, that is, if its cosine with g_0 reaches the threshold. The
    result is the mean of the h_i that are kept: FLTrust with trust scores of 0 and 1. The paper's algorithm is asynchronous and takes one
    update at a time; this is its synchronous form.

    Parameters
    ----------
    threshold : float, default 0.0
        The smallest cosine, above -1 and below 1. In the paper's terms rho / gamma - epsilon / ||v||^2, where v is the server's gradient.
        An update at a right angle to g_0 is never kept.

    Examples
    --------
    >>> import torch
    >>> from fltrust import ZenoPlusPlus
    >>> updates = torch.tensor([[1.0, 0.0], [3.0, 4.0], [-5.0, 0.0]])  # cosines 1, 0.6 and -1
    >>> ZenoPlusPlus()(updates, root_update=torch.tensor([2.0, 0.0]))
    Aggregate(update=tensor([1.6000, 0.8000]), shares=tensor([0.5000, 0.5000, 0.0000]))
    """

    threshold: float = 0.0

    needs_root = True
    scores_trust = True

    def __post_init__(self) -> None:
        if not -1 < self.threshold < 1:
            raise InputError(f"Zeno++ needs a threshold between -1 and 1, not {self.threshold}")

    def aggregate(self, received: Received) -> Aggregate:
        updates, root_update = received.updates, received.root_update
        assert root_update is not None  # take_step checks this
        direction, root_norm = direction_and_norm(root_update)
        rows = measure(updates, direction)
        kept = (rows.cosine >= self.threshold) & (rows.cosine != 0)  # 0 for rows that are not usable, and if the root update is not
        shares = kept.double() / divisor(kept.sum())
        return Aggregate(finite(weighted_sum(updates, rows, shares * root_norm), updates), shares.to(updates.dtype))
