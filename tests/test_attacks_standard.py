"""The standard set's attacks on updates, each beside a slow reference written from its paper, and their known traps."""

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrust.attacks import ALIE, IPM, MPAF, Attack, FreeRider, Gaussian, Knowledge, MinMax, MinSum, PoisonedFL, SignFlip
from fltrust.attacks.fake import agreeing_by_chance
from fltrust.attacks.shift import MISTAKEN_TABLE
from fltrust.errors import InputError
from fltrust.rules import FedAvg

Vector = NDArray[np.float64]


def knowing(attack: Attack, n: int = 12, m: int = 3, d: int = 40, seed: int = 0, dtype: torch.dtype = torch.float64) -> Knowledge:
    """Updates around a common direction, and what this attack may see of them."""
    draws = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=draws, dtype=torch.float64)
    updates = (common + 0.7 * torch.randn(n, d, generator=draws, dtype=torch.float64)).to(dtype)
    return seeing(attack, updates, m, seed)


def seeing(attack: Attack, updates: Tensor, m: int, seed: int = 0, **more: Any) -> Knowledge:
    chance = torch.Generator().manual_seed(seed)
    others = updates[m:] if attack.knowledge == "full" else None
    return Knowledge(updates[:m], others, None, n=len(updates), tolerate=m, num_clients=len(updates), generator=chance, **more)


def numbers(rows: Tensor) -> Vector:
    array: Vector = rows.double().numpy()
    return array


# ---------------------------------------------------------------- Gaussian noise


def test_gaussian_noise_is_as_large_as_honest_updates_and_differs_from_client_to_client() -> None:
    known = knowing(Gaussian(), n=6, m=2, d=20_000)
    rows = numbers(Gaussian(sigma=2.0).craft(known))
    size = math.sqrt((numbers(known.honest) ** 2).mean())
    assert rows.std() == pytest.approx(2 * size, rel=0.02)
    assert rows.mean() == pytest.approx(0, abs=0.03 * size)
    assert abs(np.atleast_2d(np.corrcoef(rows))[0, 1]) < 0.05


def test_gaussian_noise_can_be_added_absolute_or_off_centre() -> None:
    known = knowing(Gaussian(), n=6, m=2, d=20_000)

    def again() -> Knowledge:
        return replace(known, generator=torch.Generator().manual_seed(5))

    plain, added = Gaussian().craft(again()), Gaussian(add=True).craft(again())
    torch.testing.assert_close(added, known.own + plain)
    rows = numbers(Gaussian(sigma=0.1, mean=0.1, absolute=True).craft(again()))
    assert (rows.mean(), rows.std()) == pytest.approx((0.1, 0.1), rel=0.03)
    own = knowing(Gaussian(knowledge="partial"), n=6, m=2, d=20_000)
    size = math.sqrt((numbers(own.own) ** 2).mean())
    assert numbers(Gaussian(knowledge="partial").craft(own)).std() == pytest.approx(size, rel=0.02)


# ---------------------------------------------------------------- sign flipping, ALIE, IPM


def test_sign_flipping_turns_each_own_update_round() -> None:
    known = knowing(SignFlip())
    assert torch.equal(SignFlip().craft(known), -known.own)
    assert torch.equal(SignFlip(scale=4.0).craft(known), -4 * known.own)


@pytest.mark.parametrize(("n", "m", "z"), [(25, 5, 0.253), (50, 10, 0.253), (100, 20, 0.286), (60, 18, 0.497)])
def test_the_z_of_alie(n: int, m: int, z: float) -> None:
    assert ALIE().shift(n, m) == pytest.approx(z, abs=5e-4)


@pytest.mark.parametrize("upwards", [False, True])
@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_alie_against_the_paper(knowledge: Any, upwards: bool) -> None:
    attack = ALIE(knowledge=knowledge, upwards=upwards)
    known = knowing(attack, n=20, m=6)
    rows = numbers(known.honest if knowledge == "full" else known.own)
    n, m = 20, 6
    s = math.floor(n / 2 + 1) - m
    z = NormalDist().inv_cdf((n - m - s) / (n - m))
    expected = [rows[:, j].sum() / len(rows) + (z if upwards else -z) * np.sqrt(np.var(rows[:, j])) for j in range(rows.shape[1])]
    np.testing.assert_allclose(numbers(attack.craft(known)), np.tile(expected, (m, 1)), rtol=1e-12)


def test_alie_is_refused_where_the_formula_has_no_meaning() -> None:
    for n, m in ((25, 13), (4, 3), (2, 1)):
        with pytest.raises(InputError, match=f"no z for {m} malicious of {n}"):
            ALIE().craft(knowing(ALIE(), n=n, m=m))
    assert ALIE(z=1.5).craft(knowing(ALIE(), n=4, m=3)).isfinite().all()
    with pytest.raises(InputError, match="a number, 'table' or None"):
        ALIE(z=math.nan)


def test_the_mistaken_table_is_phi_of_p_and_only_for_its_own_setting() -> None:
    for m, value in MISTAKEN_TABLE.items():
        p = (50 - m - (26 - m)) / (50 - m)
        assert value == pytest.approx(NormalDist().cdf(math.ceil(100 * p) / 100), abs=6e-6)
        right = ALIE().shift(50, m)
        assert 2.1 < value / right < 26.3
    known = knowing(ALIE(), n=50, m=10)
    table, fixed = ALIE(z="table").craft(known), ALIE(z=0.72575).craft(known)
    assert torch.equal(table, fixed)
    for n, m in ((51, 10), (50, 9), (100, 20)):
        with pytest.raises(InputError, match="table is for 50 clients"):
            ALIE(z="table").craft(knowing(ALIE(), n=n, m=m))


@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_ipm_against_the_paper(knowledge: Any) -> None:
    attack = IPM(knowledge=knowledge)
    known = knowing(attack)
    rows = numbers(known.honest if knowledge == "full" else known.own)
    np.testing.assert_allclose(numbers(attack.craft(known)), np.tile(-0.1 * sum(rows) / len(rows), (3, 1)), rtol=1e-12)


@pytest.mark.parametrize(("epsilon", "reversed_"), [(2.9, False), (3.1, True)])
def test_ipm_reverses_a_mean_above_the_ratio_of_honest_to_malicious(epsilon: float, reversed_: bool) -> None:
    known = knowing(IPM(), n=12, m=3)
    sent = torch.cat((IPM(epsilon=epsilon).craft(known), known.honest))
    assert bool(sent.mean(0) @ known.honest.mean(0) < 0) == reversed_


# ---------------------------------------------------------------- Min-Max, Min-Sum


def direction_of(rows: Vector, name: str) -> Vector:
    mean = rows.mean(0)
    return np.asarray({"deviation": -rows.std(0), "sign": -np.sign(mean), "mean": -mean / np.linalg.norm(mean)}[name])


def searched(allowed: Any) -> float:
    """The largest gamma that is allowed, by doubling and then halving an interval."""
    low, high = 0.0, 1.0
    while allowed(high):
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("direction", ["deviation", "sign", "mean"])
@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_min_max_is_what_a_fine_search_finds(knowledge: Any, direction: Any, seed: int) -> None:
    attack = MinMax(direction, knowledge)
    known = knowing(attack, n=5 + 2 * seed, m=2 + seed, d=3 + 5 * seed, seed=seed)
    rows = numbers(known.honest if knowledge == "full" else known.own)
    mean, push = rows.mean(0), direction_of(rows, direction)
    farthest = max(np.linalg.norm(x - y) for x in rows for y in rows)
    gamma = searched(lambda tried: max(np.linalg.norm(mean + tried * push - x) for x in rows) <= farthest)
    np.testing.assert_allclose(numbers(attack.craft(known))[0], mean + gamma * push, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("bound", ["max", "min"])
@pytest.mark.parametrize("direction", ["deviation", "sign", "mean"])
def test_min_sum_is_what_a_fine_search_finds(direction: Any, bound: Any, seed: int) -> None:
    attack = MinSum(direction, bound)
    known = knowing(attack, n=6 + seed, m=2, d=3 + 5 * seed, seed=seed)
    rows = numbers(known.honest)
    mean, push = rows.mean(0), direction_of(rows, direction)
    sums = [sum(np.linalg.norm(x - y) ** 2 for y in rows) for x in rows]
    allowed = max(sums) if bound == "max" else min(sums)
    gamma = searched(lambda tried: sum(np.linalg.norm(mean + tried * push - x) ** 2 for x in rows) <= allowed)
    np.testing.assert_allclose(numbers(attack.craft(known))[0], mean + gamma * push, rtol=1e-7, atol=1e-7)


def test_min_max_goes_beyond_where_the_authors_search_ends() -> None:
    """Their search starts at 10 and cannot pass 20. Along -mu / ||mu|| the optimum scales with the updates, so it soon lies beyond."""
    known = knowing(MinMax("mean"))
    rows = 100 * numbers(known.honest)
    crafted = numbers(MinMax("mean").craft(replace(known, own=100 * known.own, others=100 * known.honest)))[0]
    assert np.linalg.norm(crafted - rows.mean(0)) > 20


@pytest.mark.parametrize(
    "attack", [MinMax(), MinMax("sign"), MinMax("mean"), MinSum(), MinSum("mean", "min"), ALIE(z=1.0), IPM()], ids=repr
)
def test_scaled_updates_give_scaled_rows_up_to_the_edge_of_numbers(attack: Attack) -> None:
    known = knowing(attack, dtype=torch.float32)
    plain = attack.craft(known)
    for scale in (2.0**100, 2.0**-100):
        rows = attack.craft(replace(known, own=scale * known.own, others=scale * known.honest))
        torch.testing.assert_close(rows / scale, plain, rtol=1e-4, atol=1e-5)
    edge = attack.craft(replace(known, others=known.honest.sign() * 3e38))
    assert edge.isfinite().all()


@pytest.mark.parametrize("attack", [SignFlip(), IPM(), MinMax("sign"), MinMax("mean"), MinSum("sign"), MinSum("mean")], ids=repr)
def test_the_aggregates_progress_along_the_honest_mean_falls(attack: Attack) -> None:
    for seed in range(5):
        known = knowing(attack, n=20, m=5, d=200, seed=seed)
        honest = numbers(knowing(IPM(), n=20, m=5, d=200, seed=seed).honest)
        sent = torch.cat((attack.craft(known), torch.from_numpy(honest)))
        before = numbers(torch.cat((known.own, torch.from_numpy(honest)))).mean(0) @ honest.mean(0)
        assert numbers(FedAvg(by_size=False)(sent).update) @ honest.mean(0) < before


# ---------------------------------------------------------------- fake clients and free riders


def rounds_of(attack: Attack, path: Tensor, rate: float, m: int = 2) -> list[Vector]:
    """What the attack sends while the model goes along the path (T, d)."""
    memory, sent = attack.init(4, path[0]), []
    for weights in path:
        known = seeing(attack, torch.full((4, path.shape[1]), torch.nan).to(path), m, weights=weights, global_lr=torch.tensor(rate))
        rows, memory = attack.step(known, memory)
        assert (numbers(rows) == numbers(rows)[0]).all()
        sent.append(numbers(rows)[0])
    return sent


def walk(rounds: int, d: int, seed: int = 1) -> Tensor:
    return torch.randn(rounds, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).cumsum(0)


def test_mpaf_drags_towards_one_model() -> None:
    path = walk(4, 5_000)
    sent = rounds_of(MPAF(factor=10.0), path, rate=0.125)
    bases = [row / 10 + weights for row, weights in zip(sent, numbers(path), strict=True)]
    for base in bases[1:]:
        np.testing.assert_allclose(base, bases[0], rtol=1e-9, atol=1e-9)
    size = math.sqrt((numbers(path[0]) ** 2).mean())
    assert bases[0].std() == pytest.approx(size, rel=0.05)
    assert abs(np.corrcoef(bases[0], numbers(path[0]))[0, 1]) < 0.05
    first = rounds_of(MPAF(base="first"), path, rate=0.125)
    np.testing.assert_allclose(first, 1e6 * (numbers(path[0]) - numbers(path)), rtol=1e-9)


def test_mpaf_stays_finite_when_the_model_has_left_all_bounds() -> None:
    path = torch.stack((torch.ones(6), torch.full((6,), 3e38), torch.full((6,), torch.inf)))
    assert np.isfinite(rounds_of(MPAF(), path, rate=1.0)).all()


def poisonedfl(path: Vector, sign: Vector, rate: float, every: int, enough: int) -> tuple[list[Vector], list[float]]:
    """PoisonedFL round by round, as its paper and release have it."""
    c, rows, factors, earlier = 8.0, [np.zeros_like(sign)], [8.0], path[0]
    for t in range(1, len(path)):
        h, r = (path[t] - path[t - 1]) / rate, rows[-1]
        if t % every == 0:
            moved = path[t] - earlier
            agree = sum(np.sign(moved[j] if moved[j] else path[t][j]) == sign[j] for j in range(len(sign)))
            if agree < enough and 0.7 * c >= 0.5:
                c *= 0.7
            earlier = path[t]
        scaled = r * np.linalg.norm(h) / np.linalg.norm(r) if r.any() else r
        u = abs(h - scaled)
        rows.append(c * np.linalg.norm(h) * u * sign / np.linalg.norm(u))
        factors.append(c)
    return rows, factors


@pytest.mark.parametrize("gets_through", [False, True])
def test_poisonedfl_against_the_paper(gets_through: bool) -> None:
    attack, path = PoisonedFL(every=5), walk(70, 300)
    memory = attack.init(4, path[0])
    sign = numbers(memory.sign)
    assert set(sign) == {-1.0, 1.0}
    assert abs(sign.mean()) < 0.2
    if gets_through:  # in the first 30 rounds the model goes where the attack pushes it
        path[:31] = torch.arange(31.0)[:, None] * memory.sign + 0.01 * path[:31]
    path[40:46, :20] = path[40, :20]  # what does not move counts by its own sign
    expected, factors = poisonedfl(numbers(path), sign, rate=0.125, every=5, enough=agreeing_by_chance(300))
    np.testing.assert_allclose(rounds_of(attack, path, rate=0.125), expected, rtol=1e-9, atol=1e-9)
    assert factors[30] == (8 if gets_through else pytest.approx(8 * 0.7**6))
    assert min(factors) >= 0.5


def test_poisonedfl_keeps_to_its_schedule() -> None:
    """c is 8, and 0.7 times as much after each of the rounds 50, 100 ... in which the model did not go along; it stays above 0.5."""
    attack, path = PoisonedFL(), walk(600, 200)
    sent = rounds_of(attack, path, rate=1.0)
    steps = np.linalg.norm(np.diff(numbers(path), axis=0), axis=1)
    factor = [np.linalg.norm(row) / step for row, step in zip(sent[1:], steps, strict=True)]
    assert factor[0] == pytest.approx(8)
    changes = [t + 2 for t in range(len(factor) - 1) if factor[t + 1] < 0.9 * factor[t]]
    assert changes
    assert all(t % 50 == 0 for t in changes)
    assert min(factor) >= 0.5
    assert all(value == pytest.approx(8 * 0.7 ** round(math.log(value / 8, 0.7))) for value in factor)


@pytest.mark.parametrize(("d", "k"), [(139_960, 70_415), (1_204_682, 603_618), (717_924, 359_948), (145_212, 73_049)])
def test_the_99_percent_points_of_the_authors(d: int, k: int) -> None:
    assert agreeing_by_chance(d) == k


@pytest.mark.parametrize("d", [20, 100, 999])
def test_the_99_percent_point_is_exact(d: int) -> None:
    total = 0
    for k in range(d + 1):
        total += math.comb(d, k)
        if total >= 0.99 * 2**d:
            break
    assert agreeing_by_chance(d) == k


def test_a_free_rider_returns_the_last_global_update() -> None:
    path = walk(4, 50)
    sent = rounds_of(FreeRider(), path, rate=0.5)
    assert not sent[0].any()
    np.testing.assert_allclose(sent[1:], np.diff(numbers(path), axis=0) / 0.5, rtol=1e-12)
    assert not np.any(rounds_of(FreeRider("zeros", noise=0.5), path, rate=0.5))


def test_a_free_riders_noise_is_its_own() -> None:
    attack, path = FreeRider(noise=0.1), walk(2, 20_000)
    memory = attack.init(4, path[0])
    for weights in path:
        rows, memory = attack.step(seeing(attack, path.new_zeros(4, 20_000), 2, weights=weights), memory)
    step = numbers(path[1] - path[0])
    disguise = numbers(rows) - step
    assert disguise.std(1) == pytest.approx([0.1 * math.sqrt((step**2).mean())] * 2, rel=0.03)
    assert abs(np.atleast_2d(np.corrcoef(disguise))[0, 1]) < 0.05


def test_an_attack_that_needs_the_model_says_so() -> None:
    for attack in (MPAF(), PoisonedFL(), FreeRider()):
        with pytest.raises(InputError, match="needs the global model"):
            attack.step(knowing(attack), attack.init(12, torch.zeros(40, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(sigma=-1.0), "sigma of 0 or more"),
        (lambda: SignFlip(scale=0.0), "positive scale"),
        (lambda: IPM(epsilon=-0.1), "positive epsilon"),
        (lambda: MinMax("up"), "unknown direction 'up'"),  # type: ignore[arg-type]
        (lambda: MinSum(bound="mean"), "unknown bound 'mean'"),  # type: ignore[arg-type]
        (lambda: MinMax(knowledge="none"), "full or partial"),  # type: ignore[arg-type]
        (lambda: MPAF(factor=math.inf), "positive factor"),
        (lambda: MPAF(base="second"), "unknown base"),  # type: ignore[arg-type]
        (lambda: PoisonedFL(shrink=1.5), "not 8.0, 50, 1.5"),
        (lambda: FreeRider("nothing"), "unknown row of a free rider"),  # type: ignore[arg-type]
        (lambda: FreeRider(noise=-1.0), "0 or more"),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
