"""Fallback: the model is never much worse than one that the server trained alone, however many clients are malicious."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.rows import direction_and_norm, finite
from fltrust.rules.rule import Aggregate, Received, Rule, take_step, take_traits
from fltrust.state import Memory


class Alone(NamedTuple):
    """What Fallback remembers."""

    model: Tensor  # (d,): trained by the server alone since the first round
    best: Tensor  # (d,): of these models and the global ones, the first among them, the one with the lowest held-out loss
    first: Tensor  # (): the held-out loss before the first round; NaN before it
    lowest: Tensor  # (): the lowest held-out loss of the models that the server trained alone, the first one among them
    rule: Memory


@RULES.register("fallback", label="Fallback")
@dataclass(frozen=True)
class Fallback(Rule):
    """Another rule, until it makes the model worse than one that the server trained alone. This package's own.

    The server holds out every fifth example of its root set. It also trains a second model w_0 by root updates alone. L is the mean of
    1 - exp(-loss) over the held-out examples (with cross-entropy, the mean probability of wrong classes), and b the lowest L(w_0) so far.
    If the rule within would take the model to an L above b + slack (L(first model) - b), the model becomes the one with the lowest L so
    far instead: a w_0 or an earlier global model. So after every round in which the model moves, its L is at most that bound, whatever
    the clients send.

    The rule within works on the root update of the other examples. No update is computed from the held-out ones. A round without a usable
    root update, or in which the rule within moves nothing, moves nothing. Use it without a server optimiser: that would move the model
    elsewhere.

    In a round that falls back no client has a share.

    Parameters
    ----------
    rule : Rule
        The rule that works as long as the model stays good.
    slack : float, default 0.1
        How much of what the server alone has gained the model may give up. A few held-out examples are a noisy measure: with 0, honest
        clients are ignored too often; with 1, the model may be as bad as the first one.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Fallback, FedAvg, Received
    >>> def towards_one(weights):  # the server alone goes half of the way to 1
    ...     return (1 - weights) / 2
    >>> rule, weights = Fallback(FedAvg()), torch.zeros(1)
    >>> seen = dict(weights=weights, root_update=towards_one(weights), root_update_from=towards_one)
    >>> seen["root_loss"] = lambda models: (models - 1).square().sum(1)
    >>> memory = rule.init(num_clients=2, like=weights)
    >>> rule.step(Received(torch.tensor([[0.9], [0.7]]), **seen), memory)[0].update
    tensor([0.8000])
    >>> rule.step(Received(torch.tensor([[0.9], [-9.0]]), **seen), memory)[0].update  # the model that the server trained alone is at 0.5
    tensor([0.5000])
    """

    rule: Rule
    slack: float = 0.1

    needs_root = True
    needs_weights = True
    needs_root_loss = True
    holds_out = True

    def __post_init__(self) -> None:
        take_traits(self, self.rule)
        object.__setattr__(self, "scores_trust", False)  # a share of 0 can also mean that the round fell back
        if not 0 <= self.slack <= 1:
            raise InputError(f"Fallback needs a slack of 0 to 1, not {self.slack}")

    def init(self, num_clients: int, like: Tensor) -> Alone:
        nowhere = torch.zeros_like(like)
        first = torch.full((), torch.nan, dtype=torch.float64, device=like.device)
        return Alone(nowhere, nowhere.clone(), first, first.clone(), self.rule.init(num_clients, like))

    def step(self, received: Received, memory: Alone) -> tuple[Aggregate, Alone]:
        weights, root_update, root_loss, update_from = received.weights, received.root_update, received.root_loss, received.root_update_from
        assert weights is not None  # take_step checks these
        assert root_update is not None
        assert root_loss is not None
        assert update_from is not None
        lr = weights.new_ones(()) if received.global_lr is None else received.global_lr
        aggregate, within = take_step(self.rule, received, memory.rule)

        begun = torch.isfinite(memory.first)
        alone, best = torch.where(begun, memory.model, weights), torch.where(begun, memory.best, weights)
        alone, moved = alone + lr * update_from(alone), weights + lr * aggregate.update
        best_loss, alone_loss, moved_loss = root_loss(torch.stack((best, alone, moved))).double()
        first, lowest = (torch.where(begun, loss, best_loss) for loss in (memory.first, memory.lowest))
        lowest = torch.where(alone_loss < lowest, alone_loss, lowest)
        best = torch.where(alone_loss < best_loss, alone, best)

        holds = moved_loss <= lowest + self.slack * (first - lowest)  # not if a loss is NaN
        moves = aggregate.update.any() & direction_and_norm(root_update)[0].any()
        update = torch.where(moves, torch.where(holds, aggregate.update, finite((best - weights) / lr, weights)), 0)
        best = torch.where(moves & (moved_loss < torch.fmin(alone_loss, best_loss)), moved, best)
        shares = None if aggregate.shares is None else torch.where(holds & moves, aggregate.shares, 0)
        return Aggregate(update, shares), Alone(alone, best, first, lowest, within)
