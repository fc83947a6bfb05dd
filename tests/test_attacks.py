"""Attacks against their definitions: n clients, m malicious ones first, d parameters."""

import dataclasses
import json
import math
import os
from typing import Any, Literal

import numpy as np
import pytest
import torch
from algorithm3 import Vector, algorithm3, damage, global_update, unit
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fltrust.attacks import (
    ALIE,
    IPM,
    Adaptive,
    Attack,
    Knowledge,
    KrumAttack,
    LabelFlip,
    MaliciousClient,
    NoAttack,
    OptimalAdaptive,
    Scaling,
    Trigger,
    TrimAttack,
    adaptive,
)
from fltrust.errors import InputError
from fltrust.registry import DATASETS
from fltrust.rules import FLTrust, Krum, Median, TrimmedMean

TEN = MaliciousClient(num_classes=10)
TRIGGERS = {profile.family: profile.trigger for profile in DATASETS.values() if profile.trigger is not None}
EVERY: list[Attack] = [
    NoAttack(),
    LabelFlip(),
    KrumAttack(),
    KrumAttack("partial"),
    TrimAttack(),
    TrimAttack("partial"),
    Scaling(TRIGGERS["mnist"]),
    Adaptive(rounds=2, steps=3),
    Adaptive(rounds=2, steps=3, start="trusted"),
    OptimalAdaptive(),
]
MODEL_ATTACKS = [attack for attack in EVERY if not isinstance(attack, NoAttack | LabelFlip)]
by_name = pytest.mark.parametrize("attack", EVERY, ids=repr)


def knowing(attack: Attack, seed: int = 0, n: int = 12, m: int = 3, d: int = 40, dtype: torch.dtype = torch.float64) -> Knowledge:
    """Updates that lie around a common direction, as those of a federation do, and what this attack may see of them."""
    draws = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=draws, dtype=torch.float64)
    updates = (common + 0.7 * torch.randn(n, d, generator=draws, dtype=torch.float64)).to(dtype)
    root_update = (common + 0.7 * torch.randn(d, generator=draws, dtype=torch.float64)).to(dtype)
    return known_of(attack, updates, root_update, m, seed)


def known_of(attack: Attack, updates: Tensor, root_update: Tensor, m: int, seed: int = 0) -> Knowledge:
    full = attack.knowledge == "full"
    return Knowledge(
        own=updates[:m],
        others=updates[m:] if full else None,
        root_update=root_update if full else None,
        n=len(updates),
        tolerate=m,
        num_clients=5 * len(updates),
        generator=torch.Generator().manual_seed(seed),
    )


def again(known: Knowledge, seed: int) -> Knowledge:
    return dataclasses.replace(known, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- the paper's attacks, beside the laws of `fltrust.testing`


@by_name
def test_the_same_stream_gives_the_same_rows(attack: Attack) -> None:
    known = knowing(attack)
    crafted = attack.craft(again(known, 1))
    assert torch.equal(crafted, attack.craft(again(known, 1)))
    if isinstance(attack, KrumAttack | TrimAttack | Adaptive):
        assert not torch.equal(crafted, attack.craft(again(known, 2)))


@pytest.mark.parametrize("attack", [TrimAttack(), TrimAttack("partial"), ALIE(), IPM()], ids=repr)
def test_torch_func_sees_through(attack: Attack) -> None:
    """In float32, where whole rows go through kernels of ours: these cannot take what stands for values."""
    updates = torch.randn(12, 40, generator=torch.Generator().manual_seed(0))

    def craft(rows: Tensor) -> Tensor:
        return attack.craft(known_of(attack, rows, rows[0], 3)).square().sum()

    slope = torch.func.grad(craft)(updates)
    assert slope.any()
    plain = updates.clone().requires_grad_()
    craft(plain).backward()
    torch.testing.assert_close(slope, plain.grad)


def test_what_an_attack_does_to_all_updates_stays_with_it() -> None:
    known = knowing(TrimAttack())
    before = TrimAttack().craft(again(known, 1))
    known.updates.mul_(-1)
    assert torch.equal(known.updates, torch.cat((known.own, known.honest)))
    assert torch.equal(TrimAttack().craft(again(known, 1)), before)


@by_name
def test_nobody_malicious(attack: Attack) -> None:
    assert attack.craft(knowing(attack, m=0)).shape == (0, 40)


@by_name
@pytest.mark.parametrize("m", [1, 2, 11, 12])
def test_few_and_many_malicious_clients(attack: Attack, m: int) -> None:
    crafted = attack.craft(knowing(attack, m=m))
    assert crafted.shape == (m, 40)
    assert crafted.isfinite().all()


@pytest.mark.parametrize("attack", MODEL_ATTACKS, ids=repr)
@pytest.mark.parametrize("breakage", [math.nan, math.inf, 0.0, 1e30, 1e-30])
@pytest.mark.parametrize("what", ["honest", "all honest", "root", "own, not all", "all"])
def test_what_is_crafted_is_finite(attack: Attack, breakage: float, what: str) -> None:
    known = knowing(attack, dtype=torch.float32)
    others = None if known.others is None else known.others.clone()
    root_update = known.root_update
    own = known.own.clone()
    if others is not None and what in ("honest", "all honest", "all"):
        others[1:3, ::2] = breakage
        others[3:] = breakage if what != "honest" else others[3:]
    if root_update is not None and what in ("root", "all"):
        root_update = torch.full_like(root_update, breakage)
    if what in ("own, not all", "all") and not isinstance(attack, Scaling):
        own[1 if what == "own, not all" else slice(None)] = breakage
    crafted = attack.craft(dataclasses.replace(known, own=own, others=others, root_update=root_update))
    assert crafted.isfinite().all()


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("attack", MODEL_ATTACKS, ids=repr)
def test_very_small_models(attack: Attack, d: int) -> None:
    assert attack.craft(knowing(attack, d=d)).isfinite().all()


@pytest.mark.parametrize("attack", MODEL_ATTACKS, ids=repr)
def test_crafting_never_looks_at_values(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors have none: `.item()`, a branch on data or a boolean index raises, and so would the capture of a CUDA graph."""
    monkeypatch.setattr(adaptive, "ascend", lambda start, noise, terms: start.new_empty(len(start), 4))
    known = knowing(attack)
    with FakeTensorMode() as fake:

        def faked(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else fake.from_tensor(tensor)

        shown: Any = {name: faked(getattr(known, name)) for name in ("own", "others", "root_update")}
        assert attack.craft(dataclasses.replace(known, **shown)).shape == (3, 40)


def test_who_may_see_what() -> None:
    assert {type(attack).__name__ for attack in EVERY if attack.needs_root} == {"Adaptive", "OptimalAdaptive"}
    assert all(attack.knowledge == "full" for attack in EVERY if attack.needs_root)
    assert KrumAttack().knowledge == TrimAttack().knowledge == "full"
    assert [attack.knowledge for attack in (NoAttack(), LabelFlip(), Scaling(TRIGGERS["har"]))] == ["partial"] * 3


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="full or partial, not 'ful'"):
        KrumAttack("ful")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="-1 rounds"):
        Adaptive(rounds=-1)
    with pytest.raises(InputError, match="positive"):
        Adaptive(smoothing=0)
    with pytest.raises(InputError, match="positive length, not 0"):
        Adaptive(length=0)
    with pytest.raises(InputError, match="""starts at "trim" or at "trusted", not at 'own'"""):
        Adaptive(start="own")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="shown 3 of 12 updates"):
        TrimAttack().craft(knowing(TrimAttack("partial")))
    with pytest.raises(InputError, match="root update"):
        OptimalAdaptive().craft(dataclasses.replace(knowing(OptimalAdaptive()), root_update=None))


# ---------------------------------------------------------------- data: label flipping, triggers, scaling


def test_label_flip_twice_is_nothing() -> None:
    images, labels = torch.rand(10, 1, 4, 4), torch.arange(10)
    same, flipped = LabelFlip().poison(images, labels, TEN)
    assert torch.equal(same, images)
    assert flipped.tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert torch.equal(LabelFlip().poison(images, flipped, TEN)[1], labels)


CORNER = [(26, 26), (24, 26), (26, 24), (25, 25)]
PIXELS = {
    "mnist": ((1, 28, 28), CORNER, 0),
    "mnist-5k": ((1, 28, 28), CORNER, 0),
    "fashion-mnist": ((1, 28, 28), CORNER, 0),
    "ch-mnist": ((1, 64, 64), [(62, 62), (60, 62), (62, 60), (61, 61)], 0),
    "cifar-10": ((3, 32, 32), [(1, 28), (1, 29), (1, 30), (2, 29), (3, 28), (4, 29), (5, 28), (5, 29), (5, 30)], 2),
}


@pytest.mark.parametrize("name", PIXELS)
def test_a_trigger_is_these_pixels_and_no_others(name: str) -> None:
    shape, pixels, target = PIXELS[name]
    images = torch.full((2, *shape), 0.25)
    stamped = TRIGGERS[name].stamp(images)
    assert (images == 0.25).all()
    changed = {(int(row), int(column)) for _, _, row, column in (stamped != images).nonzero()}
    assert changed == set(pixels)
    assert (stamped != images).sum() == 2 * shape[0] * len(pixels)
    assert stamped.max() == 1
    assert TRIGGERS[name].target == target


def test_the_trigger_of_har_is_every_20th_feature() -> None:
    stamped = TRIGGERS["har"].stamp(torch.ones(3, 561))
    zeros = [number for number, value in enumerate(stamped[1].tolist(), start=1) if value == 0]
    assert zeros == [20 * k for k in range(1, 29)]
    assert TRIGGERS["har"].target == 1


def test_a_trigger_must_fit() -> None:
    with pytest.raises(InputError, match=r"\(26, 26\) lies outside of examples of shape \(1, 20, 20\)"):
        TRIGGERS["mnist"].stamp(torch.zeros(2, 1, 20, 20))
    with pytest.raises(InputError, match="outside"):
        TRIGGERS["mnist"].stamp(torch.zeros(50, 50))


@pytest.mark.parametrize("trigger", TRIGGERS.values())
def test_a_trigger_survives_a_file(trigger: Trigger) -> None:
    assert Trigger.from_dict(json.loads(json.dumps(dataclasses.asdict(trigger)))) == trigger


@pytest.mark.parametrize("written", [{}, {"where": [[1, 1]], "value": 1, "targt": 0}, {"where": 3, "value": 1, "target": 0}])
def test_what_is_no_trigger_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="trigger"):
        Trigger.from_dict(written)


def test_scaling_doubles_the_data_and_multiplies_the_update() -> None:
    attack = Scaling(Trigger(((1, 1),), 1.0, 7))
    images, labels = torch.rand(5, 1, 3, 3) / 2, torch.arange(5)
    more_images, more_labels = attack.poison(images, labels, TEN)
    assert torch.equal(more_images, torch.cat((images, attack.trigger.stamp(images))))
    assert more_labels.tolist() == [0, 1, 2, 3, 4, 7, 7, 7, 7, 7]
    known = knowing(attack)
    assert torch.equal(attack.craft(known), 60 * known.own)  # num_clients, not those of the round
    assert torch.equal(Scaling(attack.trigger, factor=2.5).craft(known), 2.5 * known.own)


# ---------------------------------------------------------------- the Trim attack


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 8), st.booleans())
def test_trim_attack_lies_where_it_should(seed: int, m: int, d: int, one_sided: bool) -> None:
    known = knowing(TrimAttack(), seed, n=8, m=m, d=d)
    if one_sided:  # all values of one sign: the attack divides instead of multiplying
        known = dataclasses.replace(known, own=known.own.abs(), others=known.updates[m:].abs())
    crafted = TrimAttack().craft(known).numpy()
    updates = known.updates.numpy()
    for j in range(d):
        low, high = updates[:, j].min(), updates[:, j].max()
        for value in crafted[:, j]:
            if updates[:, j].sum() > 0:
                assert (low / 2 <= value <= low) if low > 0 else (2 * low <= value <= low)
            else:
                assert (high / 2 >= value >= high) if high < 0 else (2 * high >= value >= high)


def test_trim_attack_by_hand() -> None:
    updates = torch.tensor([[1.0, -1.0, -1.0, 0.0], [2.0, 3.0, -4.0, 0.0], [4.0, 1.0, 2.0, 0.0]], dtype=torch.float64)
    known = known_of(TrimAttack(), updates, updates[0], 1)
    r = 1 + torch.rand(1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[0]
    expected = torch.stack((1 / r[0], -1 * r[1], 2 * r[2], 0 * r[3]))  # sums 7, 3, -3, 0
    assert torch.allclose(TrimAttack().craft(known)[0], expected, rtol=1e-15)


def test_trim_attack_where_a_coordinate_adds_up_to_nothing() -> None:
    """0 counts as a negative sum: the values lie beyond the largest one, or within it where that is negative already."""
    updates = torch.tensor([[-1.0, 0.0], [3.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    (crafted,) = TrimAttack(reach=1.0).craft(known_of(TrimAttack(), updates, updates[0], 1))
    assert crafted.tolist() == [3.0, 0.0]
    own = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    crafted = TrimAttack("partial").craft(known_of(TrimAttack("partial"), own, own[0], 2))
    assert crafted.tolist() == [[0.0], [0.0]]  # their mean


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_partial_trim_attack_lies_three_to_four_deviations_off(seed: int, m: int) -> None:
    attack = TrimAttack("partial")
    known = knowing(attack, seed, m=m, d=6)
    mean, deviation = known.own.mean(0), known.own.std(0, correction=0)
    off = (mean - attack.craft(known)) * mean.sign()  # against the mean's sign
    assert (off >= 3 * deviation - 1e-12).all()
    assert (off <= 4 * deviation + 1e-12).all()


@pytest.mark.parametrize("knowledge", ["full", "partial"])
@pytest.mark.parametrize("rule", [TrimmedMean(3), Median()], ids=repr)
def test_trim_attack_moves_the_aggregate_back(rule: TrimmedMean | Median, knowledge: Any) -> None:
    attack = TrimAttack(knowledge)
    for seed in range(20):
        known = knowing(attack, seed)
        updates = knowing(TrimAttack(), seed).updates
        sent = torch.cat((attack.craft(known), updates[3:]))
        direction = updates.mean(0).sign()
        assert (rule(sent).update * direction).sum() < (rule(updates).update * direction).sum()


# ---------------------------------------------------------------- the Krum attack


def krum_picks(rows: Tensor, tolerate: int) -> int:
    """Krum by its definition: who has the least sum of squared distances to its n - f - 2 nearest others (at least one)."""
    scores = []
    for i, row in enumerate(rows):
        distances = sorted(float((row - other).square().sum()) for j, other in enumerate(rows) if j != i)
        scores.append(sum(distances[: max(1, len(rows) - tolerate - 2)]))
    return int(np.argmin(scores))


def strengths() -> list[float]:
    tried = [1.0]
    while tried[-1] / 2 >= 1e-5:
        tried.append(tried[-1] / 2)
    return tried


def split(crafted: Tensor) -> tuple[float, Tensor, Tensor]:
    """lambda, the sign and the noise of a Krum attack's rows, whose first has no noise."""
    strength = float(crafted[0].abs().max())
    return strength, -crafted[0].sign(), crafted - crafted[0]


def spread(attack: KrumAttack, seed: int, n: int, m: int, scale: float) -> Knowledge:
    known = knowing(attack, seed, n=n, m=m, d=10)
    return dataclasses.replace(known, own=scale * known.own, others=None if known.others is None else scale * known.others)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0]))
def test_krum_attack_is_the_first_strength_of_a_literal_loop(seed: int, m: int, scale: float) -> None:
    attack = KrumAttack()
    known = spread(attack, seed, 11, m, scale)
    crafted = attack.craft(known)
    strength, sign, noise = split(crafted)
    assert torch.equal(sign, known.updates[krum_picks(known.updates, m)].sign())
    assert (noise.norm(dim=1) <= 0.01).all()
    honest = known.updates[m:]
    for tried in strengths():
        if krum_picks(torch.cat((noise - tried * sign, honest)), m) < m:
            break
    assert strength == tried


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([1e-4, 0.01, 0.1, 1.0, 10.0]))
def test_partial_krum_attack_is_the_first_of_a_literal_loop(seed: int, m: int, scale: float) -> None:
    attack = KrumAttack("partial")
    known = spread(attack, seed, 11, m, scale)
    strength, sign, noise = split(attack.craft(known))
    assert torch.equal(sign, known.own.mean(0).sign())
    assert (noise.norm(dim=1) <= 0.01).all()

    def search() -> float:
        for count in range(1, m + 1):
            for tried in strengths():
                if krum_picks(torch.cat(((noise - tried * sign)[:count], known.own)), count) < count:
                    return tried
        return strengths()[-1]

    assert strength == search()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_krum_picks_a_malicious_row(dtype: torch.dtype) -> None:
    attack, rule = KrumAttack(), Krum(tolerate=6)
    used = set()
    for seed in range(20):
        draws = torch.Generator().manual_seed(seed)
        updates = 0.05 * (0.3 * torch.randn(200, generator=draws) + torch.randn(20, 200, generator=draws)).to(dtype)
        known = known_of(attack, updates, updates[0], 6, seed)
        crafted = attack.craft(known)
        weight = rule(torch.cat((crafted, known.updates[6:]))).shares
        assert weight is not None
        assert weight[:6].sum() == 1
        used.add(float(crafted[0].abs().max()))
    assert max(used) < 1  # the strength had to be sought


# ---------------------------------------------------------------- the adaptive attacks


def vectors(rows: Tensor) -> list[Vector]:
    return [row.double().numpy() for row in rows]


def damage_of(known: Knowledge, crafted: Tensor) -> float:
    """h of what is sent, by the literal transcription."""
    assert known.root_update is not None
    return damage(
        known.root_update.double().numpy(), [unit(row) for row in vectors(known.updates)], [unit(row) for row in vectors(crafted)]
    )


def frame_of(known: Knowledge, first: Vector) -> Vector:
    """The orthonormal basis (3, d) of e_0, s and a first e'_i that `Adaptive` works in."""
    assert known.root_update is not None
    g_0 = known.root_update.numpy()
    frame: list[Vector] = []
    for vector in (g_0, np.sign(global_update(g_0, [unit(row) for row in vectors(known.updates)])), first):
        frame.append(unit(vector - sum((vector @ axis) * axis for axis in frame)))
    return np.stack(frame)


def first_of(start: str, known: Knowledge) -> list[Vector]:
    """Where Algorithm 3 starts: the Trim attack's rows, for "trusted" those that point against e_0 with their part along it reversed."""
    assert known.root_update is not None
    e_0 = unit(known.root_update.double().numpy())
    trim = vectors(TrimAttack().craft(known))
    if start == "trim":
        return trim
    return [row + 2 * abs(row @ e_0) * e_0 if row @ e_0 < 0 else row for row in trim]


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**32),
    m=st.integers(1, 4),
    honest=st.integers(0, 4),
    d=st.integers(6, 30),
    rounds=st.integers(0, 3),
    steps=st.integers(1, 4),
    scale=st.sampled_from([0.01, 0.3, 3.0]),
    start=st.sampled_from(["trim", "trusted"]),
)
def test_adaptive_is_algorithm_3(
    seed: int, m: int, honest: int, d: int, rounds: int, steps: int, scale: float, start: Literal["trim", "trusted"]
) -> None:
    """There is noise u, with the coordinates that were drawn, for which the literal transcription gives exactly the crafted rows."""
    drawn: list[Tensor] = []

    class Recorded(Adaptive):
        def draw(self, known: Knowledge) -> Tensor:
            drawn.append(super().draw(known))
            return drawn[0]

    attack = Recorded(rounds=rounds, steps=steps, start=start)
    known = knowing(attack, seed, n=m + honest, m=m, d=d)
    assert known.root_update is not None
    known = dataclasses.replace(known, root_update=scale * known.root_update / known.root_update.norm())
    assert known.root_update is not None
    g_0 = known.root_update.numpy()
    assume(global_update(g_0, [unit(row) for row in vectors(known.updates)]).any())  # nobody trusted: there is nothing to attack
    crafted = attack.craft(again(known, seed)).numpy()
    assert np.allclose(np.linalg.norm(crafted, axis=1), scale, rtol=1e-12)
    first = first_of(start, again(known, seed))
    coordinates = drawn[0].numpy()  # (V, m, Q, 5)
    assert coordinates.shape == (rounds, m, steps, 5)
    frames = [frame_of(known, e_i) for e_i in first]
    directions = np.random.default_rng(seed)
    used: dict[tuple[int, int, int], Vector] = {}

    def outside(vector: Vector, frame: Vector) -> Vector:
        vector = vector - (frame @ vector) @ frame
        return vector - (frame @ vector) @ frame

    def lifted(v: int, i: int, t: int, e_i: Vector) -> Vector:
        """A u of d dimensions with these coordinates; what they leave open is any direction."""
        left = outside(e_i, frames[i])
        left = unit(left if np.linalg.norm(left) > 1e-12 else outside(directions.normal(size=d), frames[i]))
        four = np.stack((*frames[i], left))
        five = np.stack((*four, unit(outside(directions.normal(size=d), four))))
        used[v, i, t] = coordinates[v, i, t] @ five
        return used[v, i, t]

    run: Any = {"eta": attack.step_size, "gamma": attack.smoothing, "Q": steps, "V": rounds}
    literal = algorithm3(g_0, vectors(known.updates), first, lifted, **run)
    mirrors = []
    for i in range(m):
        assert np.allclose(frames[i] @ literal[i], frames[i] @ crafted[i] / scale, atol=1e-9)
        there, here = outside(literal[i], frames[i]), outside(crafted[i] / scale, frames[i])
        assert abs(np.linalg.norm(there) - np.linalg.norm(here)) < 1e-9
        mirrors.append(there - here)  # the reflection that moves what is left of the one to that of the other

    def mirrored(v: int, i: int, t: int, e_i: Vector) -> Vector:
        normal = mirrors[i]
        if np.linalg.norm(normal) < 1e-9:
            return used[v, i, t]
        return used[v, i, t] - 2 * (used[v, i, t] @ normal) / (normal @ normal) * normal

    literal = algorithm3(g_0, vectors(known.updates), first, mirrored, **run)
    assert np.abs(np.stack(literal) - crafted / scale).max() < 1e-9


def test_the_coordinates_of_the_noise_have_the_right_law() -> None:
    attack = Adaptive(rounds=20, steps=500, variance=0.5)
    drawn = attack.draw(knowing(attack, m=3, d=40)).numpy().reshape(-1, 5)  # 30,000 draws
    literal = math.sqrt(0.5) * np.random.default_rng(0).normal(size=(30_000, 40))
    literal = np.stack((*literal[:, :4].T, np.linalg.norm(literal[:, 4:], axis=1)), 1)
    for power in (1, 2, 4):
        ours, theirs = drawn**power, literal**power
        error = np.sqrt((ours.var(0) + theirs.var(0)) / len(ours))
        assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error).all()
    assert np.abs(np.corrcoef(drawn.T) - np.eye(5)).max() < 0.03


def test_adaptive_is_distributed_as_algorithm_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole crafted rows over many streams, beside the transcription with u drawn as the paper says."""
    attack = Adaptive(rounds=2, steps=2)
    known = knowing(attack, n=5, m=2, d=8)
    assert known.root_update is not None
    known = dataclasses.replace(known, root_update=5 * known.root_update)
    assert known.root_update is not None
    g_0, updates = known.root_update.numpy(), vectors(known.updates)
    trim = TrimAttack().craft(known)
    monkeypatch.setattr(TrimAttack, "craft", lambda self, known: trim)  # the same start for all
    draws = np.random.default_rng(0)

    def sample(v: int, i: int, t: int, e_i: Vector) -> Vector:
        return draws.normal(scale=math.sqrt(attack.variance), size=len(e_i))

    run: Any = {"eta": attack.step_size, "gamma": attack.smoothing, "Q": attack.steps, "V": attack.rounds}
    ours = np.stack([attack.craft(again(known, seed)).numpy().ravel() for seed in range(800)]) / np.linalg.norm(g_0)
    theirs = np.stack([np.concatenate(algorithm3(g_0, updates, vectors(trim), sample, **run)) for _ in range(800)])
    assert ours.std(0).max() > 0.1  # the noise matters
    pairs = np.triu_indices(ours.shape[1])
    for one, other in ((ours, theirs), (ours[:, pairs[0]] * ours[:, pairs[1]], theirs[:, pairs[0]] * theirs[:, pairs[1]])):
        error = np.sqrt((one.var(0) + other.var(0)) / len(one))
        assert (np.abs(one.mean(0) - other.mean(0)) < 4.5 * error).all()


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 5), st.integers(3, 30), st.sampled_from([0.01, 1.0, 100.0]))
def test_no_attack_on_fltrust_beats_the_optimal_one(seed: int, m: int, honest: int, d: int, scale: float) -> None:
    attack = OptimalAdaptive()
    known = knowing(attack, seed, n=m + honest, m=m, d=d)
    assert known.root_update is not None
    known = dataclasses.replace(known, root_update=scale * known.root_update)
    best = damage_of(known, attack.craft(known))
    for other in (NoAttack(), TrimAttack(), KrumAttack(), Adaptive(rounds=3, steps=3)):
        assert damage_of(known, other.craft(again(known, seed))) <= best + 1e-6 * scale


@pytest.mark.parametrize("seed", range(5))
def test_the_optimal_attack_beats_any_search(seed: int) -> None:
    attack = OptimalAdaptive()
    known = knowing(attack, seed, n=9, m=3, d=12)
    crafted = attack.craft(known)
    best = damage_of(known, crafted)
    assert known.root_update is not None
    g_0 = known.root_update.numpy()
    e = np.stack([unit(row) for row in vectors(known.updates)])
    before = global_update(g_0, list(e))
    sign, trust = np.sign(before), np.maximum(e[3:] @ unit(g_0), 0)

    def damages(units: Vector) -> Vector:
        """h for many choices (k, m, d) at once."""
        weight = np.maximum(units @ unit(g_0), 0)
        progress = ((weight * (units @ sign)).sum(1) + trust @ (e[3:] @ sign)) / (weight.sum(1) + trust.sum())
        return np.asarray(sign @ before - np.linalg.norm(g_0) * progress)

    assert damages(np.stack([unit(row) for row in vectors(crafted)])[None])[0] == pytest.approx(best)
    rng = np.random.default_rng(seed)
    units = rng.normal(size=(10_000, 3, 12))
    units /= np.linalg.norm(units, axis=-1, keepdims=True)
    assert damages(units).max() < best
    assert damages(np.repeat(units[:, :1], 3, 1)).max() < best
    near = np.stack([unit(row) for row in vectors(crafted)]) + rng.normal(size=(10_000, 3, 12)) * 10 ** rng.uniform(-5, -1, (10_000, 1, 1))
    assert damages(near / np.linalg.norm(near, axis=-1, keepdims=True)).max() <= best + 1e-12 * abs(best)
    # the plane of e_0 and s, each client with an angle of its own: two alike and one other
    e_0 = unit(g_0)
    across = unit(sign - (sign @ e_0) * e_0)
    angle = np.linspace(-np.pi, np.pi, 721)
    circle = np.cos(angle)[:, None] * e_0 + np.sin(angle)[:, None] * across
    one, two = (axis.ravel() for axis in np.meshgrid(range(721), range(721)))
    found = max(damages(np.stack((circle[i], circle[i], circle[j]), 1)).max() for i, j in ((one[k::8], two[k::8]) for k in range(8)))
    assert found <= best + 1e-12 * abs(best)
    assert found > best - 1e-3 * abs(best)


def test_algorithm_3_climbs_from_the_trim_attack() -> None:
    """With steps as small as a small root update makes them. A start that nobody trusts stays: h is flat around it."""
    trusted = 0
    for seed in range(12):
        attack = Adaptive(rounds=5)
        known = knowing(attack, seed, n=10, m=3, d=20)
        assert known.root_update is not None
        known = dataclasses.replace(known, root_update=0.1 * known.root_update / known.root_update.norm())
        assert known.root_update is not None
        trim = TrimAttack().craft(again(known, seed))
        crafted = attack.craft(again(known, seed))
        start, climbed, best = (damage_of(known, rows) for rows in (trim, crafted, OptimalAdaptive().craft(known)))
        assert start - 1e-12 <= climbed <= best
        if (trim @ known.root_update > 0).any():
            trusted += 1
            assert climbed > start + 1e-4 * best
        else:
            assert torch.allclose(crafted, trim * (0.1 / trim.norm(dim=1, keepdim=True)))
    assert 0 < trusted < 12


def test_a_trusted_start_always_climbs() -> None:
    """The same federations as above: in some of them nobody trusts the Trim attack, and the paper's start stays where it is."""
    for seed in range(12):
        attack = Adaptive(rounds=5, start="trusted")
        known = knowing(attack, seed, n=10, m=3, d=20)
        assert known.root_update is not None
        known = dataclasses.replace(known, root_update=0.1 * known.root_update / known.root_update.norm())
        assert known.root_update is not None
        first = torch.from_numpy(np.stack(first_of("trusted", again(known, seed))))
        assert (first @ known.root_update > 0).all()
        climbed, best = (damage_of(known, craft(again(known, seed))) for craft in (attack.craft, OptimalAdaptive().craft))
        assert damage_of(known, first) + 1e-4 * best < climbed <= best


@pytest.mark.parametrize("attack", [Adaptive(), OptimalAdaptive()], ids=repr)
def test_adaptive_rows_have_the_root_updates_norm_and_move_fltrust_back(attack: Attack) -> None:
    known = knowing(attack, n=10, m=4, d=500, dtype=torch.float32)
    assert known.root_update is not None
    known = dataclasses.replace(known, root_update=0.01 * known.root_update)
    assert known.root_update is not None
    crafted = attack.craft(known)
    assert torch.allclose(crafted.norm(dim=1), known.root_update.norm(), rtol=1e-5)
    before = FLTrust()(known.updates, known.root_update).update
    after = FLTrust()(torch.cat((crafted, known.updates[4:])), known.root_update)
    assert after.shares is not None
    assert after.update @ before.sign() < before @ before.sign()


def test_adaptive_rows_of_another_length_have_the_same_direction() -> None:
    known = knowing(Adaptive())
    rows, short = Adaptive().craft(again(known, 1)), Adaptive(length=0.5).craft(again(known, 1))
    assert torch.allclose(short.norm(dim=1), short.new_tensor(0.5))
    assert torch.allclose(rows / rows.norm(dim=1, keepdim=True), 2 * short)
    nothing = dataclasses.replace(known, root_update=torch.zeros_like(rows[0]))
    assert not Adaptive(length=0.5).craft(nothing).any()


def test_the_gpu_kernel_is_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, or by Triton's interpreter if TRITON_INTERPRET=1 and Triton is there."""
    pytest.importorskip("triton")
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    from fltrust.fast import ascent

    device = "cuda" if torch.cuda.is_available() else "cpu"
    draws = np.random.default_rng(0)
    for rounds, m, steps, gain in ((3, 1, 4, 1.0), (4, 5, 3, 0.1), (2, 8, 5, 30.0), (0, 3, 2, 1.0), (1, 2, 1, 0.0)):
        start = draws.normal(size=(m, 3))
        start /= np.linalg.norm(start, axis=1, keepdims=True)
        for honest_pull, honest_trust in ((3.0, 2.0), (0.0, 0.0)):
            terms = torch.tensor([5.0, 12.0, honest_pull, honest_trust, gain, 0.005], dtype=torch.float64)
            noise = torch.from_numpy(np.abs(draws.normal(size=(rounds, m, steps, 5))))
            expected = adaptive.ascend(torch.from_numpy(start), noise, terms)
            got = ascent.ascend(torch.from_numpy(start).to(device), noise.to(device), terms.to(device))
            assert torch.allclose(got.cpu(), expected, atol=1e-9)
