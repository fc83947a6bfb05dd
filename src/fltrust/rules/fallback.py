"""Fallback: the model is never much worse than one that the server trained alone, however many clients are malicious."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.rows import direction_and_norm, finite, measure
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
    far instead: a w_0 or an earlier global model. So it does if the rule moves nothing and the model is above the bound, or if there is no
    usable root update. Up to rounding, after every round with a usable update the model's L is at most that bound, whatever the clients
    send.

    The rule within works on the root update of the other examples. It must not ask for losses itself: no update is computed from the
    held-out examples. A round in which no update is usable moves nothing. Use it without a server optimiser: that would move the model
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
        if self.rule.needs_root_loss:
            raise InputError(f"Fallback cannot hold {type(self.rule).__name__}: it would choose updates by the examples that are held out")
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
        alone = alone + lr * finite(update_from(alone), weights)
        best_loss, alone_loss = root_loss(torch.stack((best, alone))).double()
        first, lowest = (torch.where(begun, loss, best_loss) for loss in (memory.first, memory.lowest))
        lowest = torch.where(alone_loss < lowest, alone_loss, lowest)
        better = torch.isfinite(alone_loss) & ~(best_loss <= alone_loss)  # than NaN, too
        best, best_loss = torch.where(better, alone, best), torch.where(better, alone_loss, best_loss)

        # From a model of very large weights, rounding could let no step lead back: such a model is not taken either.
        moved = weights + lr * aggregate.update
        moved_loss, back_loss = root_loss(torch.stack((moved, moved + lr * finite((best - moved) / lr, weights)))).double()
        bound = lowest + self.slack * (first - lowest)
        holds = direction_and_norm(root_update)[0].any() & (torch.maximum(moved_loss, back_loss) <= bound)  # not if a loss is NaN
        usable = measure(received.updates).usable.any()
        update = torch.where(usable, torch.where(holds, aggregate.update, finite((best - weights) / lr, weights)), 0)
        best = torch.where(usable & holds & (moved_loss < best_loss), moved, best)
        shares = None if aggregate.shares is None else torch.where(usable & holds, aggregate.shares, 0)
        return Aggregate(update, shares), Alone(alone, best, first, lowest, within)
