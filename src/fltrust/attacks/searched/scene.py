"""The round as the attacker sees it or, where it does not see, supposes it: what a search can try the server's rule on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fltrust.attacks.attack import Altered, Knowledge, Level, Server
from fltrust.attacks.rows import finite, outside, units
from fltrust.errors import InputError
from fltrust.rules.preaggregation import NormClipping
from fltrust.rules.rule import Received, Rule, take_step
from fltrust.state import Memory

AimName = Literal["sign", "mean", "cosine", "unseen", "loss", "class", "backdoor"]


@dataclass(frozen=True)
class Scene:
    """n clients, the m malicious first. Every row is finite."""

    known: Knowledge
    rule: Rule
    memory: Memory
    updates: Tensor  # (n, d): before the attack
    root_update: Tensor | None  # (d,)
    sizes: Tensor | None  # (n,)
    root_loss: Callable[[Tensor], Tensor] | None
    root_update_from: Callable[[Tensor], Tensor] | None
    seeds: tuple[int, ...]  # of the draws that a rule with chance is tried with, the same for every candidate; none: no chance

    @property
    def m(self) -> int:
        return len(self.known.own)

    @property
    def honest(self) -> Tensor:
        """What honest clients send (n-m, d); the malicious clients' own where there is nobody else."""
        return self.updates[self.m :] if len(self.updates) > self.m else self.updates

    def received(self, updates: Tensor, round_ahead: int, chance: torch.Generator | None) -> Received:
        known = self.known
        return Received(
            updates,
            self.root_update,
            self.sizes,
            known.client_ids,
            None if known.round is None else known.round + round_ahead,
            chance,
            known.weights,
            self.root_loss,
            known.global_lr,
            self.root_update_from,
        )

    def chances(self) -> list[torch.Generator | None]:
        """The server's chance, as often as it is tried."""
        device = self.updates.device
        return [torch.Generator(device).manual_seed(seed) for seed in self.seeds] or [None]

    def undisturbed(self) -> Tensor:
        """What the rule returns without attack (d,)."""
        return torch.stack(self.outcomes(self.updates[: self.m])).mean(0)

    def outcomes(self, rows: Tensor, ahead: int = 0) -> list[Tensor]:
        """The global updates (d,) if malicious clients send these rows (m, d), in this round and in `ahead` more like it."""
        updates, results = torch.cat((rows, self.updates[self.m :])), []
        for chance in self.chances():
            memory = self.memory
            for t in range(1 + ahead):
                aggregate, memory = take_step(self.rule, self.received(updates, t, chance), memory)
                results.append(aggregate.update)
        return results


def scene_of(known: Knowledge, knowledge: Level, guess_root: bool, draws: int) -> Scene:
    server = known.server
    if server is None:
        raise InputError("this attack searches on the server's rule and was not shown it")
    if knowledge == "full":
        updates, memory = known.seen_updates.rows, server.memory
        scene = Scene(known, server.rule, memory, updates, known.root_update, server.sizes, server.root_loss, server.root_update_from, ())
    else:
        scene = _supposed(replace(known, others=None, root_update=None, server=Server(server.rule)), server.rule, guess_root)
    if scene.memory is None:  # what the rule remembers is not known: as if this were its first round
        scene = replace(scene, memory=scene.rule.init(known.num_clients, known.own[0] if len(known.own) else known.own.sum(0)))
    if scene.rule.needs_generator:
        seeds = torch.randint(1 << 31, (draws,), generator=known.generator, device=known.own.device)
        scene = replace(scene, seeds=tuple(seeds.tolist()))
    return scene


def _supposed(known: Knowledge, rule: Rule, guess_root: bool) -> Scene:
    """A federation drawn from the normal distribution that has the mean and the covariance of the malicious clients' own updates."""
    own = finite(known.own)
    m = len(own)
    mean = own.mean(0)
    mixing = known.normal(known.n - m, m) / max(1, m - 1) ** 0.5
    updates = torch.cat((own, mean + mixing @ (own - mean)))
    root_update, root_loss = (mean, known.own_loss) if guess_root else (None, None)
    if (rule.needs_root and root_update is None) or (rule.needs_root_loss and root_loss is None):
        rule = NormClipping()  # the plainest rule that bounds a row's length stands in for one that cannot be tried
    return Scene(known, rule, None, updates, root_update, None, root_loss, lambda _: mean, ())


@dataclass(frozen=True)
class Aim:
    """What the attacker wants of the global update u: the damage to make large.

    "sign"    -<u, s>, s = the sign of what the rule returns without attack (the paper's Algorithm 3)
    "mean"    -<u, mu / ||mu||>, mu = the mean of the honest updates: it slows or reverses learning
    "cosine"  -cos(u, mu): the same, whatever the length of u
    "unseen"  -<u, v - e0>, e0 = the root update's direction, v = that of mu's part across it: it harms where the root set does not look,
              and keeps the server content
    "loss"    the loss of the model after u on the malicious clients' own examples
    "class"   the same on those of one class
    "backdoor"  minus its loss on the own examples with the trigger and the target as their label
    """

    name: AimName
    target: Tensor  # (d,): s, mu / ||mu|| or v - e0; of a loss the direction in which it falls, by the own updates or its slope
    altered: Altered | None = None  # which examples the loss is on

    @property
    def is_loss(self) -> bool:
        """Whether the damage is a loss of the next model, and the target only its direction to first order."""
        return self.name in ("loss", "class", "backdoor")

    def damage(self, known: Knowledge, update: Tensor) -> Tensor:
        """Of a global update (d,): (), in float64; unless it is a loss, of updates (C, d) too: (C,)."""
        if self.is_loss:
            rate = 1.0 if known.global_lr is None else known.global_lr
            return self.loss(known, known.model + rate * update)
        along = update.double() @ self.target.double()
        if self.name == "cosine":
            length = torch.linalg.vector_norm(update, dim=-1, dtype=torch.float64)
            along = along / torch.where(length > 0, length, 1)
        return -along

    def loss(self, known: Knowledge, model: Tensor) -> Tensor:
        """What is to be large: the model's loss (), or minus its loss on the backdoor; in float64."""
        if known.own_loss is None:
            raise InputError(f"the aim {self.name!r} needs the malicious clients' examples and was not shown them")
        loss = known.own_loss(model[None], *([] if self.altered is None else [self.altered]))[0].double()
        if self.name == "backdoor":
            return torch.where(torch.isnan(loss), -torch.inf, -loss)  # a broken model answers no trigger
        return torch.where(torch.isnan(loss), torch.inf, loss)

    def mean_damage(self, scene: Scene, rows: Tensor, ahead: int) -> Tensor:
        """Of malicious rows (m, d), found by running the rule: ()."""
        damages = [self.damage(scene.known, update) for update in scene.outcomes(rows, ahead)]
        return torch.stack(damages).mean() if len(damages) > 1 else damages[0]


def aim_of(name: AimName, scene: Scene, result: Tensor, altered: Altered | None = None) -> Aim:
    """`result` (d,) is what the rule returns without attack."""
    if name == "sign":
        return Aim(name, result.sign())
    if altered is not None:
        aim, known = Aim(name, result, altered), scene.known
        slope: Tensor = torch.func.grad(lambda model: aim.loss(known, model))(known.model)
        return replace(aim, target=units(-slope[None])[0])
    if name == "unseen" and scene.root_update is not None:
        mean, seen = units(scene.honest.mean(0, keepdim=True)), units(scene.root_update[None])
        return Aim(name, (outside(mean, seen) - seen)[0])
    rows = scene.updates[: scene.m] if name == "loss" else scene.honest
    return Aim(name, units(rows.mean(0, keepdim=True))[0])
