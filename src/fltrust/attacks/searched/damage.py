"""The damage that candidates (C, m, k) do, (C,) in float64: from inner products for most rules, by running the rule for the others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from fltrust.attacks.rows import usable
from fltrust.attacks.searched.basis import Basis, row_lengths
from fltrust.attacks.searched.response import RunningMeans, Sent, has_closed_form, respond
from fltrust.attacks.searched.scene import Aim, Scene
from fltrust.rules.anchor import Anchor
from fltrust.rules.coordinate import MeaMed, Median, Phocas, TrimmedMean
from fltrust.rules.rule import Received, Rule
from fltrust.rules.votes import RLR

# What fits into a CPU's cache; few launches on a GPU.
_AT_ONCE = 1 << 18, 1 << 25  # values of the candidates' products at a time
_ROWS_AT_ONCE = 1 << 21, 1 << 26  # values of the candidates' rows, beside each other, at a time


class Damage(Protocol):
    side_by_side: bool  # whether many candidates cost little more than one

    def __call__(self, candidates: Tensor) -> Tensor: ...


def damage_of(scene: Scene, aim: Aim, basis: Basis, ahead: int, coordinates: int) -> Damage:
    if has_closed_form(scene.rule):
        return Closed(scene, aim, basis, ahead)
    scene, aim, basis = _in_some_coordinates(scene, aim, basis, coordinates)
    return ByCoordinate(scene, aim, basis) if takes_coordinates_apart(scene.rule) else ByRows(scene, aim, basis, ahead)


def takes_coordinates_apart(rule: Rule) -> bool:
    """Whether what the rule returns in a coordinate depends on that coordinate alone, and on which rows are usable: no memory, no chance.

    `by_coordinate` says less: Bulyan and NNM pick rows first.
    """
    return isinstance(rule, Median | TrimmedMean | MeaMed | Phocas | RLR) and not rule.overridden


def joined(damage: Callable[[Tensor], Tensor], candidates: Tensor, at_once: int) -> Tensor:
    """The damage of so many candidates at a time."""
    parts = [damage(part) for part in torch.split(candidates, at_once)]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


class Closed:
    """From the basis vectors' inner products alone. The aim "loss" is taken to first order here. If the basis has sums, Anchor has them."""

    side_by_side = True

    def __init__(self, scene: Scene, aim: Aim, basis: Basis, ahead: int) -> None:
        self.scene, self.aim, self.basis, self.ahead = scene, aim, basis, ahead
        self.against = -basis.along  # (k,)
        n = len(scene.updates)
        self.honest = slice(scene.m, n)  # of the basis
        self.at_once = max(1, _AT_ONCE[basis.along.device.type == "cuda"] // (n * max(n, len(basis.along))))

    def __call__(self, candidates: Tensor) -> Tensor:
        return joined(self._of, candidates, self.at_once)

    def updates(self, candidates: Tensor) -> list[Tensor]:
        """The global updates (C, k) of this round and of those ahead."""
        sent, rule, known = Sent(candidates, self.honest, self.basis), self.scene.rule, self.scene.known
        if self.basis.sums is not None:
            assert isinstance(rule, Anchor)
            sent = RunningMeans(sent, rule, self.scene.memory.rounds[known.client_ids])
        results = [self.basis.centre.expand(len(candidates), -1)]
        for _ in range(1 + self.ahead):
            results.append(respond(rule, sent, results[-1], self.scene.sizes))
        return results[1:]

    def _of(self, candidates: Tensor) -> Tensor:
        done = [self._done_by(update) for update in self.updates(candidates)]
        return torch.stack(done).mean(0) if self.ahead else done[0]

    def _done_by(self, updates: Tensor) -> Tensor:
        damage = updates @ self.against
        return damage / (row_lengths(updates, self.basis) * self.basis.scale) if self.aim.name == "cosine" else damage


class ByCoordinate:
    """By running the rule once on many candidates, as additional columns. Looking ahead shows nothing new."""

    side_by_side = False

    def __init__(self, scene: Scene, aim: Aim, basis: Basis) -> None:
        self.scene, self.aim, self.basis = scene, _to_first_order(aim), basis
        self.exact, self.rows = _as_float64(scene), basis.rows.double()  # for slopes: rules take the plain path of torch there

    def __call__(self, candidates: Tensor) -> Tensor:
        sloped = candidates.requires_grad
        scene, rows = (self.exact, self.rows) if sloped else (self.scene, self.basis.rows)
        at_once = max(1, _ROWS_AT_ONCE[rows.device.type == "cuda"] // scene.updates.numel())
        with torch.set_grad_enabled(sloped):
            return joined(lambda part: self._of(part, scene, rows), candidates.to(rows.dtype), at_once)

    def _of(self, candidates: Tensor, scene: Scene, rows: Tensor) -> Tensor:
        """One run for all candidates of which the rule leaves out the same rows. To find them waits for the device."""
        crafted = torch.einsum("cmk,kd->mcd", candidates, rows)
        heard = usable(crafted.detach().flatten(0, 1)).view(crafted.shape[:2])  # (m, C)
        kinds, kind = heard.unique(dim=1, return_inverse=True)
        alike = [(kind == i).nonzero()[:, 0] for i in range(kinds.shape[1])]
        damage = torch.cat([self._of_alike(crafted[:, which], scene) for which in alike])
        return damage[torch.cat(alike).argsort()]

    def _of_alike(self, crafted: Tensor, scene: Scene) -> Tensor:
        count = crafted.shape[1]
        wide = torch.cat((crafted.flatten(1), scene.updates[scene.m :].repeat(1, count)))  # (n, C d)
        update = scene.rule.step(Received(wide, sizes=scene.sizes), ())[0].update
        return self.aim.damage(scene.known, update.view(count, -1))


class ByRows:
    """By running the rule on each candidate."""

    side_by_side = False

    def __init__(self, scene: Scene, aim: Aim, basis: Basis, ahead: int) -> None:
        self.scene, self.aim, self.basis, self.ahead = scene, _to_first_order(aim), basis, ahead
        rule = scene.rule
        self.exact = None if rule.has_memory or rule.on_host or rule.needs_root_loss else _as_float64(scene)
        self.rows = None if self.exact is None else basis.rows.double()

    def __call__(self, candidates: Tensor) -> Tensor:
        one = self._with_slope if candidates.requires_grad and self.exact is not None else self._plain
        return torch.stack([one(candidate) for candidate in candidates])

    def _plain(self, candidate: Tensor) -> Tensor:
        rows = candidate.detach().to(self.basis.rows.dtype) @ self.basis.rows
        return self.aim.mean_damage(self.scene, rows, self.ahead)

    def _with_slope(self, candidate: Tensor) -> Tensor:
        """In float64, where rules take the plain path of torch, which has gradients."""
        assert self.exact is not None
        assert self.rows is not None
        scene = self.exact
        updates = torch.cat((candidate @ self.rows, scene.updates[scene.m :]))
        steps = [scene.rule.step(scene.received(updates, 0, chance), scene.memory)[0] for chance in scene.chances()]
        return torch.stack([self.aim.damage(scene.known, step.update) for step in steps]).mean()


def _to_first_order(aim: Aim) -> Aim:
    return replace(aim, name="mean") if aim.is_loss else aim


def _in_some_coordinates(scene: Scene, aim: Aim, basis: Basis, coordinates: int) -> tuple[Scene, Aim, Basis]:
    """The same in a part of the coordinates, drawn anew each round, where the rule treats each by itself."""
    d = scene.updates.shape[1]
    if not scene.rule.by_coordinate or scene.rule.has_memory or d <= coordinates:
        return scene, aim, basis
    columns = torch.rand(d, generator=scene.known.generator, device=scene.updates.device).topk(coordinates).indices
    return (
        _each(scene, lambda tensor: tensor[..., columns]),
        replace(aim, target=aim.target[columns]),
        basis._replace(rows=basis.rows[:, columns].contiguous()),
    )


def _as_float64(scene: Scene) -> Scene:
    return _each(scene, Tensor.double)


def _each(scene: Scene, change: Callable[[Tensor], Tensor]) -> Scene:
    """The scene with all tensors of d values changed."""
    known = scene.known
    return replace(
        scene,
        known=replace(known, own=change(known.own), weights=None if known.weights is None else change(known.weights)),
        updates=change(scene.updates).contiguous(),
        root_update=None if scene.root_update is None else change(scene.root_update),
    )
