"""A rule that aggregates running means: the search works on what the rule will see, and sends what makes it see that."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fltrust.attacks.rows import bounded, usable
from fltrust.attacks.searched.scene import Scene
from fltrust.rules.anchor import Anchor
from fltrust.rules.fallback import Fallback
from fltrust.rules.rows import measure, medians_of
from fltrust.rules.rule import Rule

Change = Callable[[Tensor], Tensor]


def as_seen(rule: Rule, ahead: int) -> Rule:
    """The rule that the search works on: what is within a fallback, and without memory, if that is running means and nobody looks ahead."""
    if isinstance(rule, Fallback) and not rule.overridden:
        return as_seen(rule.rule, ahead)
    if isinstance(rule, Anchor) and rule.has_memory and not rule.overridden and not ahead:
        return replace(rule, momentum=0.0)
    return rule


def without_fallback(scene: Scene) -> Scene:
    if isinstance(scene.rule, Fallback) and not scene.rule.overridden:  # it holds no other
        return replace(scene, rule=scene.rule.rule, memory=scene.memory.rule)
    return scene


def viewed(scene: Scene, ahead: int) -> tuple[Scene, Change, Change]:
    """The scene as the rule sees it after its memory; the mean (F, d) of what it sees of malicious rows (F, m, d); what to send for rows.

    Clients choose their running means nearly freely, whatever they sent before: one update can outweigh all before it. So there the rule
    without memory is nearly the same problem; where the rule cuts an update, what it sees is not what was wanted. Not so over several
    rounds: for a look-ahead the scene stays as it is. Honest clients' means are taken as they are without attack. That is not exact where
    an honest update is cut: malicious lengths move the median that it is cut by.
    """
    scene = without_fallback(scene)
    rule, ids = scene.rule, scene.known.client_ids
    if as_seen(rule, ahead) is rule or ids is None:
        return scene, _mean, _unchanged
    assert isinstance(rule, Anchor)
    means, _ = rule.means(scene.received(scene.updates, 0, None), scene.memory)
    own, beta, usual = ids[: scene.m], rule.momentum, measure(scene.updates)
    before: Tensor = scene.memory.sums[own]  # (m, d)
    whole = 1 - beta ** (scene.memory.rounds[own] + 1).to(before.dtype)[:, None]  # (m, 1)

    def mean_seen(rows: Tensor) -> Tensor:
        """The mean of `Anchor.means`, for the malicious rows of several attacks."""
        mine = measure(rows.flatten(0, 1))
        norm, heard = mine.norm.view(-1, scene.m), mine.usable.view(-1, scene.m)  # (F, m)
        norms, usables = (torch.cat((a, b[scene.m :].expand(len(a), -1)), 1) for a, b in ((norm, usual.norm), (heard, usual.usable)))
        longest = medians_of(norms, usables) / (1 - beta)  # (F, 1)
        weight = (1 - beta) * (longest / torch.where(heard, norm, 1)).clamp(max=1)
        rows = torch.where(heard[..., None], rows, 0)  # 0 times NaN is not 0
        share = torch.where(heard, 1 / (whole[:, 0] * scene.m), 0)  # (F, m): of a client's sum in the mean
        sums = beta * (share.to(before.dtype) @ before) + torch.einsum("fm,fmd->fd", (share * weight).to(rows.dtype), rows)
        return bounded(sums)

    def sent(rows: Tensor) -> Tensor:
        counts = usable(rows.flatten(0, -2)).view(rows.shape[:-1])[..., None]  # a row of zeros must stay one: rounding would turn it
        return torch.where(counts, torch.sub(rows * whole, before, alpha=beta) / (1 - beta), 0)

    return replace(scene, rule=as_seen(rule, ahead), memory=(), updates=means), mean_seen, sent


def _mean(rows: Tensor) -> Tensor:
    return rows.mean(1)


def _unchanged(rows: Tensor) -> Tensor:
    return rows
