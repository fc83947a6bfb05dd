"""A rule that aggregates running means: the search works on what the rule will see, and sends what makes it see that."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fltrust.attacks.attack import bounded, usable
from fltrust.attacks.searched.scene import Scene
from fltrust.rules.anchor import Anchor
from fltrust.rules.rule import Rule

Change = Callable[[Tensor], Tensor]


def as_seen(rule: Rule, ahead: int) -> Rule:
    """The rule that the search works on: without its memory, if that is running means and nobody looks ahead."""
    if isinstance(rule, Anchor) and rule.has_memory and not rule.overridden and not ahead:
        return replace(rule, momentum=0.0)
    return rule


def viewed(scene: Scene, ahead: int) -> tuple[Scene, Change, Change]:
    """The scene as the rule sees it after its memory; what it sees of malicious rows (.., m, d); and what to send for it to see rows.

    Clients choose their running means freely, whatever they sent before: the last update can be as long as it takes. So there the rule
    without memory is the same problem. Not so over several rounds: for a look-ahead the scene stays as it is.
    """
    rule, ids = scene.rule, scene.known.client_ids
    if as_seen(rule, ahead) is rule or ids is None:
        return scene, _unchanged, _unchanged
    assert isinstance(rule, Anchor)
    means, _ = rule.means(scene.received(scene.updates, 0, None), scene.memory)
    own, beta = ids[: scene.m], rule.momentum
    before: Tensor = scene.memory.sums[own]  # (m, d)
    whole = 1 - beta ** (scene.memory.rounds[own] + 1).to(before.dtype)[:, None]  # (m, 1)

    def counts(rows: Tensor) -> Tensor:
        """Whether the rule listens to each row (.., m, 1): a row of zeros must stay one, since rounding would give it a direction."""
        return usable(rows.flatten(0, -2)).view(rows.shape[:-1])[..., None]

    def seen(rows: Tensor) -> Tensor:
        return torch.where(counts(rows), bounded(bounded(torch.lerp(rows, before, beta)) / whole), 0)

    def sent(rows: Tensor) -> Tensor:
        return torch.where(counts(rows), torch.sub(rows * whole, before, alpha=beta) / (1 - beta), 0)

    return replace(scene, rule=as_seen(rule, ahead), memory=(), updates=means), seen, sent


def _unchanged(rows: Tensor) -> Tensor:
    return rows
