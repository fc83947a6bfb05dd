"""Attacks: what malicious clients do to their own data before training, and to their own updates after it.

n clients take part in a round, the m malicious ones first; d parameters.
own       (m, d)  the updates that the malicious clients computed as the protocol asks
others  (n-m, d)  the honest clients' updates
crafted   (m, d)  what the malicious clients send instead

An attack gets a `Knowledge` and nothing else: the threat model is a type. Crafting never waits for the device and never changes its
input; an update that holds NaN or infinity counts as an update of zeros, so what is crafted from honest updates is always finite.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.rules import direction_and_norm, krum_scores, measure, sq_distances, weighted_sum

Level = Literal["full", "partial"]


@dataclass(frozen=True)
class Knowledge:
    """All that the attacker knows in a round."""

    own: Tensor  # (m, d)
    others: Tensor | None  # (n-m, d); None under partial knowledge
    root_update: Tensor | None  # (d,); None under partial knowledge
    n: int
    tolerate: int  # how many malicious clients the server's rule expects
    num_clients: int  # in the whole federation, also those that do not take part in this round
    generator: torch.Generator  # of noise, on the updates' device

    @property
    def honest(self) -> Tensor:
        """The honest clients' updates (n-m, d), for an attack that cannot do without them."""
        if self.others is None:
            raise InputError(f"this attack needs full knowledge: it was shown {len(self.own)} of {self.n} updates")
        return self.others

    @property
    def updates(self) -> Tensor:
        """All updates (n, d) as they are before the attack, the malicious clients' first."""
        return torch.cat((self.own, self.honest))

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=self.own.dtype, device=self.own.device)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=self.own.dtype, device=self.own.device)


# ---------------------------------------------------------------- triggers of a backdoor


@dataclass(frozen=True)
class Trigger:
    """A pattern that shall make the model answer `target`: the features at `where` are set to `value`."""

    where: tuple[tuple[int, ...], ...]  # (row, column) of pixels, set in all channels; (feature,) of vectors
    value: float
    target: int

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> "Trigger":
        """A trigger as it stands in a file: {"where": [[26, 26], ...], "value": 1.0, "target": 0}."""
        names = [field.name for field in fields(cls)]
        if sorted(written) != sorted(names):
            raise InputError(f"a trigger has the fields {', '.join(names)}, not {', '.join(map(str, written)) or 'none'}")
        try:
            trigger = cls(tuple(tuple(map(int, spot)) for spot in written["where"]), float(written["value"]), int(written["target"]))
        except (TypeError, ValueError) as problem:
            raise InputError(f"this is not a trigger: {dict(written)!r} ({problem})") from problem
        if not math.isfinite(trigger.value):
            raise InputError(f"a trigger's value must be a number, not {trigger.value}")
        return trigger

    def stamp(self, images: Tensor) -> Tensor:
        """A copy of the images (k, c, h, w), or vectors (k, features), that carries the trigger."""
        stamped = images.clone()
        for spot in self.where:
            size = images.shape[-len(spot) :]
            if images.ndim <= len(spot) or any(not 0 <= place < length for place, length in zip(spot, size, strict=True)):
                raise InputError(f"the trigger's feature {spot} lies outside of examples of shape {tuple(images.shape[1:])}")
            stamped[(slice(None),) * (images.ndim - len(spot)) + spot] = self.value
        return stamped


def _four_pixels(side: int) -> Trigger:
    """The pattern of Gu et al. 2017 near the lower right corner, in white, with target 0."""
    return Trigger(tuple((side - up, side - left) for up, left in ((2, 2), (4, 2), (2, 4), (3, 3))), 1.0, 0)


_BIRD = 2
_WALKING_UPSTAIRS = 1
TRIGGERS: dict[str, Trigger] = {
    "mnist": _four_pixels(28),
    "mnist-5k": _four_pixels(28),
    "fashion-mnist": _four_pixels(28),
    "ch-mnist": _four_pixels(64),
    "cifar-10": Trigger(((1, 28), (1, 29), (1, 30), (2, 29), (3, 28), (4, 29), (5, 28), (5, 29), (5, 30)), 1.0, _BIRD),
    # "Every 20th feature" of 561: counted from one, so the 20th, the 40th, ... the 560th.
    "har": Trigger(tuple((feature,) for feature in range(19, 561, 20)), 0.0, _WALKING_UPSTAIRS),
}


# ---------------------------------------------------------------- attacks


class Attack:
    """What malicious clients do; the default is to follow the protocol. Attacks are frozen dataclasses of their parameters."""

    knowledge: Level = "partial"
    needs_root: bool = False
    alone: bool = False  # whether each malicious client crafts its update from its own alone
    trigger: Trigger | None = None

    def poison(self, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """What a malicious client makes of its own examples, once, before training."""
        return images, labels

    def craft(self, known: Knowledge) -> Tensor:
        """What the malicious clients send (m, d) in place of their own updates."""
        return known.own


@dataclass(frozen=True)
class NoAttack(Attack):
    """Malicious clients that do nothing wrong."""

    alone = True


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Label l becomes M - 1 - l on the malicious clients' examples, M the number of classes."""

    alone = True

    def poison(self, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        return images, num_classes - 1 - labels


@dataclass(frozen=True)
class Scaling(Attack):
    """The Scaling attack (Bagdasaryan et al. 2020): a backdoor in the data, and the update times `factor`.

    Every local example is there twice, and the copy carries the trigger and its target label (so a malicious client says that it has
    twice as many, and FedAvg believes it). The factor is the number of clients unless another is given.
    """

    trigger: Trigger
    factor: float | None = None

    alone = True

    def poison(self, images: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        target = torch.full_like(labels, self.trigger.target)
        return torch.cat((images, self.trigger.stamp(images))), torch.cat((labels, target))

    def craft(self, known: Knowledge) -> Tensor:
        return known.own * (known.num_clients if self.factor is None else self.factor)


@dataclass(frozen=True)
class TrimAttack(Attack):
    """The attack of Fang et al. 2020 on the trimmed mean and the median: every coordinate a little beyond the honest ones.

    s is the sign of the updates' sum in a coordinate, and the malicious values lie where they push against it.
    Full knowledge: D = the updates' min if s > 0, their max if s < 0; the values are D / r if s D > 0, else D r, r ~ U[1, b].
    The updates are all clients' before the attack, or with `honest_only` those of the clients that are not malicious. b is `reach`.
    Partial: mu - s r sigma, r ~ U[3, 4], with mean mu and standard deviation sigma of the own updates (of one update sigma is 0).
    """

    knowledge: Level = "full"
    reach: float = 2.0
    honest_only: bool = False

    def __post_init__(self) -> None:
        _check_level(self.knowledge)
        if not 1 <= self.reach < math.inf:
            raise InputError(f"the Trim attack's reach (Fang et al.'s b) must be at least 1, not {self.reach}")

    def craft(self, known: Knowledge) -> Tensor:
        m, d = known.own.shape
        if m == 0:
            return known.own
        share = known.uniform(m, d)
        if self.knowledge == "partial":
            own = _finite(known.own)
            mean, deviation = own.mean(0), own.std(0, correction=0)  # (d,)
            return mean - mean.sign() * (3 + share) * deviation
        updates = _finite(known.honest if self.honest_only and known.n > m else known.updates)
        sign = updates.sum(0).sign()  # (d,)
        extreme = torch.where(sign > 0, updates.amin(0), updates.amax(0))  # (d,)
        factor = 1 + (self.reach - 1) * share  # (m, d)
        return torch.where(sign * extreme > 0, extreme / factor, extreme * factor)


@dataclass(frozen=True)
class KrumAttack(Attack):
    """The attack of Fang et al. 2020 on Krum: the largest step against Krum's choice that Krum still chooses.

    The rows are -lambda s, the same for all but for noise of norm at most 0.01 on all except the first. lambda is the first of 1, 1/2,
    1/4 ... for which Krum picks one of them, or the last that is not below 1e-5 if it never does.
    Full knowledge: s is the sign of what Krum picks from all updates before the attack; Krum sees the malicious rows and the honest ones.
    Partial: s is the sign of the own updates' mean. The m own updates play the honest clients: the attacker tries k = 1 ... m crafted
    rows beside them, with a Krum that expects k, and takes the first k, and for it the first lambda, that works. (Such a Krum looks at
    m - 2 neighbours, here at one at least, so that one or two malicious clients can attack too.)
    """

    knowledge: Level = "full"

    def __post_init__(self) -> None:
        _check_level(self.knowledge)

    def craft(self, known: Knowledge) -> Tensor:
        m, d = known.own.shape
        if m == 0:
            return known.own
        noise = 0.01 * known.uniform(m, 1) * _units(known.normal(m, d))
        noise[0].zero_()
        strengths = torch.full((_STRENGTHS,), 0.5, dtype=torch.float64, device=noise.device).cumprod(0) * 2  # 1, 1/2, 1/4 ...
        seen = self._against_all if self.knowledge == "full" else self._against_own
        sign, scores = seen(known, noise, strengths)
        works = (scores.argmin(-1) < m).flatten()
        order = torch.arange(len(works), device=noise.device)
        first = torch.where(works, order, len(works) - 1).min()
        return noise - strengths.index_select(0, first[None] % _STRENGTHS).to(noise.dtype) * sign

    def _against_all(self, known: Knowledge, noise: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor]:
        """s (d,), and Krum's scores (strengths, n) of crafted and honest rows."""
        m, n, tolerate = len(noise), known.n, _tolerable(known.tolerate, known.n)
        rows = torch.cat((noise, known.honest, known.own))  # (m+n, d): so that one Gram matrix serves before and after
        usable = _usable(rows[m:])  # (n,): honest, own
        rows[m:].masked_fill_(~usable[:, None], 0)
        still = sq_distances(rows)
        chosen = krum_scores(still[m:, m:], tolerate, usable).argmin()
        sign = rows[m:].index_select(0, chosen[None])[0].sign()  # (d,)
        distances = _sq_distances_at(strengths, still[:n, :n], rows[:n], sign, m)  # (strengths, n, n)
        return sign, krum_scores(distances, tolerate, torch.cat((usable.new_ones(m), usable[: n - m])))

    def _against_own(self, known: Knowledge, noise: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor]:
        """s (d,), and Krum's scores (k, strengths, 2m) of k crafted and the own rows, for k = 1 ... m."""
        m, own = len(noise), _finite(known.own)
        sign = own.mean(0).sign()  # (d,)
        rows = torch.cat((noise, own))  # (2m, d)
        distances = _sq_distances_at(strengths, sq_distances(rows), rows, sign, m)  # (strengths, 2m, 2m)
        count = torch.arange(m, device=noise.device)
        present = torch.cat((count <= count[:, None], _usable(known.own).expand(m, m)), 1)[:, None]  # (k, 1, 2m)
        absent_far = torch.where(present[..., None] & present[..., None, :], distances, torch.inf)  # (k, strengths, 2m, 2m)
        return sign, krum_scores(absent_far, _tolerable(m, 2 * m))  # 2m rows less m: as many neighbours as m + k less k


_STRENGTHS = 17  # 1 ... 2^-16, the last that is not below 1e-5


def _sq_distances_at(strengths: Tensor, still: Tensor, rows: Tensor, sign: Tensor, m: int) -> Tensor:
    """Squared distances (strengths, k, k) of k rows, of which the first m move by -strength * sign, from those while they stand still.

    |x - y - lambda c s|^2 = |x - y|^2 - 2 lambda c <x - y, s> + lambda^2 c^2 |s|^2, c = 1, 0, -1: whether x, both or y move.
    """
    along = (rows @ sign).double()  # (k,)
    moves = (torch.arange(len(rows), device=rows.device) < m).double()  # (k,)
    crossing = moves[:, None] - moves
    strengths = strengths[:, None, None]
    linear = crossing * (along[:, None] - along)
    return (still - 2 * strengths * linear + (strengths * crossing).square() * sign.double().square().sum()).clamp(min=0)


def _tolerable(tolerate: int, rows: int) -> int:
    """What Krum can tolerate among so many rows: a neighbour must remain to look at, and the attacker goes on where a server would stop."""
    return min(tolerate, rows - 3)


# ---------------------------------------------------------------- adaptive attacks on FLTrust


@dataclass(frozen=True)
class Adaptive(Attack):
    """The paper's own attack on FLTrust (Algorithm 3): small random steps that push the model back as far as trust allows.

    Zeroth-order ascent of the damage h over the malicious clients' unit vectors e'_i, one after another.

    From the Trim attack's directions, V = `rounds` times, for each client, Q = `steps` times: draw u ~ N(0, `variance` I),
    e'_i += eta (h(e'_i + gamma u) - h(e'_i)) / gamma u, normalise; eta = `step_size`, gamma = `smoothing`. Sent is ||g_0|| e'_i, or
    e'_i with another `length`: FLTrust makes all alike, the other rules do not, and the paper does not say.

    h sees e'_i only through its coordinates along e_0 and s, and the law of u is the same in every orthonormal basis. So client i's
    steps are taken in this one: e_0; s and then the first e'_i, each less what lies along those before; the direction in which e'_i has
    left the span of these three so far; and the direction in which the new u leaves all four. u's coordinates are four normals and, in
    the last, the length of a normal vector of d - 4 dimensions. Where all of it left the span to is a direction that no step depends
    on, uniform among those orthogonal to the three: it is drawn once, at the end. This is Algorithm 3 without approximation (for
    d > 4), for V Q m times five random numbers instead of d. A root update that is zero or broken leaves nothing to gain: rows of zeros.
    """

    rounds: int = 10
    steps: int = 10
    variance: float = 0.5
    smoothing: float = 0.005
    step_size: float = 0.01
    length: float | None = None  # of what is sent; None: the root update's

    knowledge = "full"
    needs_root = True

    def __post_init__(self) -> None:
        if self.rounds < 0 or self.steps < 0:
            raise InputError(f"an adaptive attack cannot take {self.rounds} rounds of {self.steps} steps: give 0 or more")
        if not (self.variance > 0 and self.smoothing > 0 and self.step_size > 0):
            raise InputError(
                "an adaptive attack needs a positive variance, smoothing and step size, "
                f"not {self.variance}, {self.smoothing} and {self.step_size}"
            )
        if self.length is not None and not 0 < self.length < math.inf:
            raise InputError(f"an adaptive attack sends vectors of a positive length, not {self.length}")

    def craft(self, known: Knowledge) -> Tensor:
        if len(known.own) == 0:
            return known.own
        damage = _damage(known)
        plane = damage.plane.to(known.own.dtype)  # (2, d)
        start = _units(TrimAttack().craft(known))  # (m, d)
        third = _outside(start, plane)  # (m, d)
        position = torch.cat((start @ plane.T, (start * third).sum(1, keepdim=True)), 1).double()  # (m, 3)
        gain = self.step_size / self.smoothing * damage.root_norm
        terms = torch.stack((*damage.sign, damage.pull, damage.trust, gain, gain.new_full((), self.smoothing)))  # (6,)
        position = ascend(position, self.draw(known), terms)  # (m, 4)
        left = known.normal(*start.shape)
        left = _outside(left - (left * third).sum(1, keepdim=True) * third, plane)  # (m, d): where all of it left the three to
        position = position.to(start.dtype)
        crafted = position[:, :2] @ plane + position[:, 2:3] * third + position[:, 3:] * left
        length = damage.root_norm if self.length is None else self.length * (damage.root_norm > 0)
        return _units(crafted) * length.to(start.dtype)

    def draw(self, known: Knowledge) -> Tensor:
        """The coordinates (V, m, Q, 5) of every u."""
        m, d = known.own.shape
        normal = known.normal(self.rounds, m, self.steps, 4).double()
        freedom = torch.full_like(normal[..., :1], max(d - 4, 1) / 2)
        length: Tensor = (2 * torch._standard_gamma(freedom, generator=known.generator)).sqrt()  # of a normal vector of d - 4 dimensions
        return torch.cat((normal, length), -1) * math.sqrt(self.variance)


def ascend(start: Tensor, noise: Tensor, terms: Tensor) -> Tensor:
    """Algorithm 3's loop on coordinates: from `start` (m, 3) to (m, 4), with `noise` (V, m, Q, 5), in the basis that `Adaptive` describes.

    `terms` (6,): s's two coordinates, the honest clients' pull and trust (see `_Damage`), eta ||g_0|| / gamma, and gamma. All in float64.
    """
    if start.is_cuda:
        try:
            from fltrust.fast import ascent
        except ImportError as problem:
            raise InputError("the adaptive attack needs Triton on a GPU: install it, or use the CPU") from problem
        return ascent.ascend(start, noise, terms)
    s_root, s_sign, honest_pull, honest_trust, gain, smoothing = terms.tolist()
    positions = [(*position, 0.0) for position in start.tolist()]

    def weigh(e_root: float, e_sign: float) -> tuple[float, float]:
        """The trust that a vector with these coordinates gets, and its pull: trust * <vector, s>."""
        trust = max(e_root, 0.0)
        return trust, trust * (s_root * e_root + s_sign * e_sign)

    def progress(e_root: float, e_sign: float, rest_trust: float, rest_pull: float) -> float:
        """<g', s> / ||g_0||: what this loses, h gains."""
        trust, pull = weigh(e_root, e_sign)
        return (rest_pull + pull) / (rest_trust + trust) if rest_trust + trust > 0 else 0.0

    weights = [weigh(e_root, e_sign) for e_root, e_sign, _, _ in positions]
    for turn in noise.tolist():
        for i, draws in enumerate(turn):
            weights[i] = 0.0, 0.0
            rest = honest_trust + sum(trust for trust, _ in weights), honest_pull + sum(pull for _, pull in weights)
            e_root, e_sign, e_first, e_left = positions[i]
            for u_root, u_sign, u_first, u_left, u_beyond in draws:
                tried = progress(e_root + smoothing * u_root, e_sign + smoothing * u_sign, *rest)
                step = gain * (progress(e_root, e_sign, *rest) - tried)
                e_root, e_sign, e_first = e_root + step * u_root, e_sign + step * u_sign, e_first + step * u_first
                e_left = math.hypot(e_left + step * u_left, step * u_beyond)
                norm = math.hypot(e_root, e_sign, e_first, e_left) or 1.0
                e_root, e_sign, e_first, e_left = e_root / norm, e_sign / norm, e_first / norm, e_left / norm
            positions[i], weights[i] = (e_root, e_sign, e_first, e_left), weigh(e_root, e_sign)
    return torch.tensor(positions, dtype=start.dtype).reshape(-1, 4)


@dataclass(frozen=True)
class OptimalAdaptive(Attack):
    """The strongest attack of the adaptive kind: what the paper's Algorithm 3 searches for, found exactly.

    The maximiser of its objective h is the same e' for all malicious clients, in the plane of e_0 and s.

    Of all unit vectors with trust p = <e', e_0> = cos t, e' = cos(t) e_0 - sin(t) s_perp has the least <e', s>, where s_perp is the
    direction of s less its part along e_0. So h is largest where (m p q + B) / (m p + C) is least, q = <e', s>, B and C the honest
    clients' pull and trust: a search over one angle in [0, pi / 2). If <s, e_0> >= 0 there is one minimum, since then p q is convex in p.
    p stays so far from 0 that rounding does not make it negative; nothing is lost, since the limit p = 0 is continuous and,
    where no honest client is trusted, worse. A root update that is zero or broken leaves nothing to gain: rows of zeros.
    """

    knowledge = "full"
    needs_root = True

    def craft(self, known: Knowledge) -> Tensor:
        m, dtype = len(known.own), known.own.dtype
        damage = _damage(known)
        s_root, s_sign = damage.sign
        grid = torch.linspace(0, 1, _ANGLES, dtype=torch.float64, device=known.own.device)
        largest = math.acos(torch.finfo(dtype).eps ** 0.5)
        low, high = grid[0], grid[-1] * largest
        for _ in range(_ZOOMS):
            angle = low + (high - low) * grid
            trust = m * angle.cos()
            progress = (trust * (s_root * angle.cos() - s_sign * angle.sin()) + damage.pull) / (trust + damage.trust)
            best = angle.take(progress.argmin())
            width = (high - low) / (_ANGLES - 1)
            low, high = (best - width).clamp(min=0), (best + width).clamp(max=largest)
        e_0, s_perp = damage.plane
        crafted = best.cos() * e_0 - best.sin() * s_perp  # (d,)
        return (damage.root_norm * _units(crafted[None])).to(dtype).repeat(m, 1)


_ANGLES = 1025
_ZOOMS = 4  # each narrows the angle 512 times: to 1e-11 of a quarter turn, far finer than h's optimum needs


class _Damage(NamedTuple):
    """What h depends on besides the malicious rows: h falls as (pull + sum p_i q_i) / (trust + sum p_i) grows. All in float64.

    p_i = ReLU(<e'_i, e_0>), q_i = <e'_i, s>; s is the sign of FLTrust's global update without attack.
    """

    plane: Tensor  # (2, d): e_0, and the direction of s less its part along e_0; orthonormal, or zeros where there is none
    sign: Tensor  # (2,): s in these coordinates
    trust: Tensor  # (): C, the honest clients' sum of trust
    pull: Tensor  # (): B, their sum of trust * <e_i, s>
    root_norm: Tensor  # (): ||g_0||


def _damage(known: Knowledge) -> _Damage:
    if known.root_update is None:
        raise InputError("an adaptive attack needs the root update and was not shown it")
    e_0, root_norm = direction_and_norm(known.root_update)
    updates = known.updates
    rows = measure(updates, e_0)
    trust = rows.cosine.relu()  # (n,)
    malicious = torch.arange(known.n, device=trust.device) < len(known.own)
    honest_trust = torch.where(malicious, 0, trust)
    sign = weighted_sum(updates, rows, trust).sign()  # (d,): FLTrust's update has the sign of sum_i trust_i e_i
    pull = weighted_sum(updates, rows, honest_trust) @ sign
    plane = torch.stack((e_0, _outside(_units(sign[None]), e_0[None])[0]))
    return _Damage(plane, plane @ sign, honest_trust.sum(), pull, root_norm)


# ---------------------------------------------------------------- rows


def _usable(updates: Tensor) -> Tensor:
    """Which rows (n,) a rule would listen to: finite and not zero."""
    peak: Tensor = torch.linalg.vector_norm(updates, torch.inf, dim=1)
    return torch.isfinite(peak) & (peak > 0)


def _finite(updates: Tensor) -> Tensor:
    """The updates (n, d), zeros in place of those that hold NaN or infinity."""
    return torch.where(_usable(updates)[:, None], updates, 0)


def _units(rows: Tensor, least: float = 0.0) -> Tensor:
    """The rows' directions (n, d); zeros where a row is not longer than `least`, or broken."""
    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64).to(rows.dtype)
    return torch.where((norm > least) & torch.isfinite(norm), rows / norm, 0)


def _outside(rows: Tensor, frame: Tensor) -> Tensor:
    """The directions (n, d) in which rows of about unit length leave the span of orthonormal ones (k, d); zeros where they do not."""
    return _units(rows - (rows @ frame.T) @ frame, least=100 * torch.finfo(rows.dtype).eps)


def _check_level(knowledge: str) -> None:
    if knowledge not in get_args(Level):
        raise InputError(f"an attacker's knowledge is full or partial, not {knowledge!r}")


ATTACKS: dict[str, type[Attack]] = {
    "none": NoAttack,
    "label-flip": LabelFlip,
    "krum": KrumAttack,
    "trim": TrimAttack,
    "scaling": Scaling,
    "adaptive": Adaptive,
    "optimal-adaptive": OptimalAdaptive,
}
