"""The paper's adaptive attack on FLTrust (Algorithm 3), and the exact optimum of its objective."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge
from fltrust.attacks.fang import TrimAttack
from fltrust.attacks.rows import coordinates, outside, units
from fltrust.errors import InputError
from fltrust.registry import ATTACKS, Look
from fltrust.rules.rows import direction_and_norm, measure, weighted_sum


@ATTACKS.register("adaptive", label="Adaptive attack", look=Look("blue", "v"), reference="Cao, Fang, Liu, Gong, NDSS 2021")
@dataclass(frozen=True)
class Adaptive(Attack):
    """The paper's own attack on FLTrust (Algorithm 3): small random steps that push the model back as far as trust allows.

    Zeroth-order ascent of the damage h over the malicious clients' unit vectors e'_i, one after another.

    It starts from the Trim attack's directions. V times, for each client, Q times: draw u ~ N(0, `variance` I), set
    e'_i += eta (h(e'_i + gamma u) - h(e'_i)) / gamma u, and normalise e'_i. Client i sends ||g_0|| e'_i, where g_0 is the root update. If
    g_0 is zero, NaN or infinite, the attack can gain nothing and sends rows of zeros.

    How it is computed: h depends on e'_i only through its coordinates along e_0 and s, and u has the same distribution in every orthonormal
    basis. So client i's steps use this basis: e_0; s and then the first e'_i, each without its part along those before; the direction in
    which e'_i has left the span of these three so far; and the direction in which the new u leaves all four. The coordinates of u are four
    normals and, for the last, the length of a normal vector of d - 4 dimensions. No step depends on the direction in which e'_i left the
    span. It is uniform among those orthogonal to the three, so it is drawn once, at the end. This is Algorithm 3 without approximation (for
    d > 4), with five random numbers for each of the V Q m steps instead of d.

    Parameters
    ----------
    rounds : int, default 10
        V, how often the attack goes through the malicious clients.
    steps : int, default 10
        Q, how many steps a client takes at a time.
    variance : float, default 0.5
        Variance of each coordinate of u.
    smoothing : float, default 0.005
        gamma, how far along u the damage is tried.
    step_size : float, default 0.01
        eta.
    length : float or None, default None
        Length of the crafted updates; None takes the root update's. FLTrust rescales all updates, so there it makes no difference. For
        other rules it does, and the paper gives no length.
    start : {"trim", "trusted"}, default "trim"
        "trim" is the paper's: the Trim attack's directions. FLTrust often trusts none of them. Then h is flat around the start, and nothing
        moves. "trusted" mirrors each of them at the plane orthogonal to e_0 if its cosine with e_0 is negative, so that its trust is
        positive. With the paper's step size this changes little, because the first steps leave any start. On HAR a `step_size` of 1e-5
        stays near it.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Adaptive, Knowledge, norms
    >>> own, others, root_update = torch.eye(6)[:1], torch.eye(6)[:2], torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    >>> known = Knowledge(own, others, root_update, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> norms(Adaptive().craft(known)).round(decimals=3)  # as long as the root update
    tensor([2.])
    """

    rounds: int = 10
    steps: int = 10
    variance: float = 0.5
    smoothing: float = 0.005
    step_size: float = 0.01
    length: float | None = None
    start: Literal["trim", "trusted"] = "trim"

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
        if self.start not in ("trim", "trusted"):
            raise InputError(f'an adaptive attack starts at "trim" or at "trusted", not at {self.start!r}')

    def craft(self, known: Knowledge) -> Tensor:
        if len(known.own) == 0:
            return known.own
        damage = known.once(_damage)
        plane = damage.plane.to(known.own.dtype)  # (2, d)
        start = self.first(known, damage.plane[0].to(known.own.dtype))  # (m, d)
        third = outside(start, plane)  # (m, d)
        position = torch.cat((coordinates(start, plane), (start * third).sum(1, keepdim=True)), 1).double()  # (m, 3)
        gain = self.step_size / self.smoothing * damage.root_norm
        terms = torch.stack((*damage.sign, damage.pull, damage.trust, gain, gain.new_full((), self.smoothing)))  # (6,)
        position = ascend(position, self.draw(known), terms)  # (m, 4)
        left = known.normal(*start.shape)
        left = outside(left - (left * third).sum(1, keepdim=True) * third, plane)  # (m, d): where all of it left the three to
        position = position.to(start.dtype)
        crafted = position[:, :2] @ plane + position[:, 2:3] * third + position[:, 3:] * left
        length = damage.root_norm if self.length is None else self.length * (damage.root_norm > 0)
        return units(crafted) * length.to(start.dtype)

    def first(self, known: Knowledge, e_0: Tensor) -> Tensor:
        """The unit vectors (m, d) that the ascent starts from."""
        trim = units(TrimAttack().craft(known))
        return trim if self.start == "trim" else trim - 2 * (trim @ e_0).clamp(max=0)[:, None] * e_0

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


@ATTACKS.register("optimal-adaptive", label="Exact adaptive", look=Look("red", "*"), reference="after Cao et al., NDSS 2021")
@dataclass(frozen=True)
class OptimalAdaptive(Attack):
    """The strongest attack of the adaptive kind: the exact optimum that the paper's Algorithm 3 searches for.

    The objective h is largest if all malicious clients send the same e', in the plane of e_0 and s.

    Of all unit vectors with trust p = <e', e_0> = cos t, e' = cos(t) e_0 - sin(t) s_perp has the least <e', s>. Here s_perp is the
    direction of s without its part along e_0. So h is largest where (m p q + B) / (m p + C) is least, with q = <e', s>, and B and C the
    honest clients' pull and trust. This is a search over one angle in [0, pi / 2). If <s, e_0> >= 0 there is one minimum, since p q is then
    convex in p.

    p stays far enough from 0 that rounding cannot make it negative. This loses nothing: the limit p = 0 is continuous and, where no honest
    client is trusted, worse. If the root update is zero, NaN or infinite, the attack can gain nothing and sends rows of zeros.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLTrust, Knowledge, OptimalAdaptive
    >>> own, others, root_update = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([2.0, 0.0])
    >>> known = Knowledge(own, others, root_update, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> crafted = OptimalAdaptive().craft(known)
    >>> FLTrust()(known.updates, root_update).update  # without attack
    tensor([1.8470, 0.3694])
    >>> FLTrust()(torch.cat((crafted, others)), root_update).update  # the second coordinate has changed its sign
    tensor([ 1.8096, -0.3648])
    """

    knowledge = "full"
    needs_root = True

    def craft(self, known: Knowledge) -> Tensor:
        m, dtype = len(known.own), known.own.dtype
        damage = known.once(_damage)
        s_root, s_sign = damage.sign
        grid = torch.linspace(0, 1, _ANGLES, dtype=torch.float64, device=known.own.device)
        largest = math.acos(torch.finfo(dtype).eps ** 0.5)
        low, high = grid[0], grid[-1] * largest
        for _ in range(_ZOOMS):
            angle = torch.lerp(low, high, grid)
            cosine = angle.cos()
            trust, along = m * cosine, torch.addcmul(s_root * cosine, s_sign, angle.sin(), value=-1)
            progress = torch.addcmul(damage.pull, trust, along) / (trust + damage.trust)
            best = angle.take(progress.argmin())
            width = (high - low) / (_ANGLES - 1)
            low, high = (best - width).clamp(min=0), (best + width).clamp(max=largest)
        e_0, s_perp = damage.plane
        crafted = best.cos() * e_0 - best.sin() * s_perp  # (d,)
        return (damage.root_norm * units(crafted[None])).to(dtype).repeat(m, 1)


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
    updates = known.seen_updates.rows
    rows = measure(updates, e_0)
    trust = rows.cosine.relu()  # (n,)
    malicious = torch.arange(known.n, device=trust.device) < len(known.own)
    honest_trust = torch.where(malicious, 0, trust)
    sign = weighted_sum(updates, rows, trust).sign()  # (d,): FLTrust's update has the sign of sum_i trust_i e_i
    pull = weighted_sum(updates, rows, honest_trust) @ sign
    plane = torch.stack((e_0, outside(units(sign[None]), e_0[None])[0]))
    return _Damage(plane, plane @ sign, honest_trust.sum(), pull, root_norm)
