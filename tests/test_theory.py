"""Theorem 1: its formulas, where it does not apply, and its bound beside FLTrust on ridge regression under attack."""

import importlib.util
import math
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fltrust.errors import InputError
from fltrust.rules import Aggregate, FedAvg, FLTrust, FLTrustNoNorm, FLTrustNoReLU, FLTrustServer, Received, Rule
from fltrust.theory import Constants

ATTACKS = ("random", "huge", "flip", "adaptive", "outward")
ENDLESS = 10**12  # a root set so large that Delta_1 and Delta_2 hardly count
PLAIN = Constants(
    mu=1.0,
    lipschitz=2.0,
    root_lipschitz=3.0,
    sigma_1=0.5,
    gamma_1=0.5,
    sigma_2=0.7,
    gamma_2=0.4,
    radius=1e9,
    d=2,
    root_size=400,
    delta=0.1,
    alpha=0.125,
)


@pytest.fixture(scope="module")
def ridge() -> ModuleType:
    path = Path(__file__).parent.parent / "examples" / "theorem_one.py"
    spec = importlib.util.spec_from_file_location("theorem_one", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["theorem_one"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are tiny
    yield
    torch.set_num_threads(threads)


# ---------------------------------------------------------------- the formulas


def test_formulas_are_those_of_the_paper_at_its_learning_rate() -> None:
    delta_1 = 0.5 * math.sqrt(2 / 400) * math.sqrt(2 * math.log(6) + math.log(3 / 0.1))
    inside = 2 * math.log(18 * 3.0 / 0.7) + 0.5 * 2 * math.log(400 / 2) + math.log(6 * 0.7**2 * 1e9 * math.sqrt(400) / (0.4 * 0.5 * 0.1))
    delta_2 = 0.7 * math.sqrt(2 / 400) * math.sqrt(inside)
    rho = 1 - (math.sqrt(1 - 1.0**2 / (4 * 2.0**2)) + 24 * 0.125 * delta_2 + 2 * 0.125 * 2.0)
    assert pytest.approx(delta_1, rel=1e-12) == PLAIN.delta_1
    assert pytest.approx(delta_2, rel=1e-12) == PLAIN.delta_2
    assert pytest.approx(rho, rel=1e-12) == PLAIN.rho
    for t, bound in enumerate(PLAIN.bound(3.0, 5)):
        assert bound == pytest.approx((1 - rho) ** t * 3.0 + 12 * 0.125 * delta_1 * (1 - (1 - rho) ** t) / rho, rel=1e-12)


def test_the_larger_of_both_lipschitz_constants_counts() -> None:
    assert replace(PLAIN, lipschitz=5.0, root_lipschitz=3.0).delta_2 == replace(PLAIN, lipschitz=3.0, root_lipschitz=5.0).delta_2


def test_limit_is_where_the_bound_goes() -> None:
    alone = replace(PLAIN, deviation=0.0, root_size=10**7)
    assert alone.limit == pytest.approx(4 * alone.alpha * alone.delta_1 / alone.rho, rel=1e-12)
    assert alone.bound(3.0, 10_000)[-1] == pytest.approx(alone.limit, rel=1e-9)


@given(
    mu=st.floats(1e-3, 1.0),
    lipschitz=st.floats(1.0, 1e3),
    learning_rate=st.floats(1e-3, 1e3),
    root_size=st.integers(10**3, 10**15),
    deviation=st.sampled_from([math.sqrt(2), 2.0]),
)
def test_no_constants_give_the_theorem_a_limit(mu: float, lipschitz: float, learning_rate: float, root_size: int, deviation: float) -> None:
    constants = replace(
        PLAIN, mu=mu, lipschitz=lipschitz, root_size=root_size, deviation=deviation, alpha=learning_rate * mu / (2 * lipschitz**2)
    )
    assert constants.rho < 0
    with pytest.raises(InputError, match="no alpha and no root set"):
        _ = constants.limit


# ---------------------------------------------------------------- where it does not apply


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu": 0.0}, "positive mu"),
        ({"sigma_2": math.nan}, "positive sigma_2"),
        ({"root_size": 0}, "positive root_size"),
        ({"radius": math.inf}, "positive radius"),
        ({"deviation": -0.1}, "positive deviation"),
        ({"mu": 2.1}, "2.1 is above 2.0"),
        ({"delta": 1.0}, "below 1, not 1.0"),
    ],
)
def test_impossible_constants_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(PLAIN, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"root_size": 10}, "Delta_1 = .* root set of 10 is too small"),
        ({"root_size": 18}, "Delta_2 = .* root set of 18 is too small"),
        ({"d": 10_000, "root_size": 1}, "too small for d = 10000"),
        ({"sigma_2": 300.0, "gamma_2": 300.0}, r"Delta_2 needs sigma_2 sqrt\(d / \|D_0\|\) = .* to be at most 3 L_2 = "),
        ({"radius": 0.1}, "after 0 rounds the model may be 3 from"),
        ({"radius": 30.0}, r"after [1-9]\d* rounds"),
    ],
)
def test_a_bound_that_is_not_proved_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(PLAIN, **changes).bound(3.0, 30)


@pytest.mark.parametrize(("start", "rounds"), [(-1.0, 3), (math.nan, 3), (1.0, -3)])
def test_a_bound_needs_a_distance_and_rounds(start: float, rounds: int) -> None:
    with pytest.raises(InputError, match="not negative"):
        PLAIN.bound(start, rounds)


def test_message_says_what_would_help() -> None:
    alone = replace(PLAIN, deviation=0.0)
    with pytest.raises(InputError, match="no alpha changes that, a root set of more than 400"):
        _ = alone.limit
    with pytest.raises(InputError, match="an alpha below 10"):
        _ = replace(alone, root_size=10**9, alpha=10.0).limit


# ---------------------------------------------------------------- beside what happens


def test_constants_of_ridge_satisfy_the_assumptions(ridge: ModuleType) -> None:
    problem = ridge.Ridge.draw(0, d=4, condition=5.0)
    constants = problem.constants(1000)
    generator = torch.Generator().manual_seed(0)

    def unit(count: int) -> Tensor:
        rows = torch.randn(count, 4, generator=generator, dtype=torch.float64)
        return nn.functional.normalize(rows, dim=1)

    def gradients(weights: Tensor) -> Tensor:  # (N, d), of single examples, by autograd
        def loss(weights: Tensor, features: Tensor, target: Tensor) -> Tensor:
            value: Tensor = (features @ weights - target).square() / 2 + problem.penalty * weights @ weights / 2
            return value

        grads: Tensor = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, problem.features, problem.targets)
        return grads

    optimum = problem.optimum
    at_optimum = gradients(optimum)
    assert at_optimum.mean(0).norm() < 1e-12
    xi = torch.linspace(-1, 1, 41, dtype=torch.float64)

    def sub_exponential(values: Tensor, sigma: float, gamma: float) -> bool:  # values (N, k)
        xis = xi[:, None, None] / gamma
        return bool(((xis * values).exp().mean(1) <= (sigma**2 * xis[:, 0] ** 2 / 2).exp() * (1 + 1e-12)).all())

    first = at_optimum @ unit(50).T
    assert sub_exponential(first, constants.sigma_1, constants.gamma_1)
    assert not sub_exponential(first, constants.sigma_1 / 10, constants.gamma_1)
    for step in 3 * unit(20):
        change = gradients(optimum + step) - at_optimum
        assert constants.mu * 3 <= change.mean(0).norm() <= constants.lipschitz * 3
        assert (change.norm(dim=1) <= constants.root_lipschitz * 3).all()
        error = (change - change.mean(0)) @ unit(20).T / 3
        assert sub_exponential(error, constants.sigma_2, constants.gamma_2)
        assert not sub_exponential(error, constants.sigma_2 / 50, constants.gamma_2)


@cache
def problem_and_constants(ridge: ModuleType, seed: int, condition: float) -> tuple[Any, Constants]:
    problem = ridge.Ridge.draw(seed, d=4, condition=condition)
    return problem, problem.constants(500)


def stays_below(
    ridge: ModuleType,
    attack: str,
    m: int,
    *,
    condition: float,
    root_size: int,
    seed: int = 0,
    rule: Rule | None = None,
    deviation: float = 2.0,
) -> bool:
    """Whether the distance to the optimum is within the bound in each of 20 rounds."""
    problem, constants = problem_and_constants(ridge, seed, condition)
    constants = replace(constants, root_size=root_size, deviation=deviation)
    path = ridge.train(
        problem, ridge.ATTACKS[attack], m, constants.alpha, root_size=root_size, client_size=500, rounds=20, seed=seed, rule=rule
    )
    measured = ridge.distances(problem, path)
    bounds = constants.bound(measured[0], 20)
    return all(distance <= bound for distance, bound in zip(measured, bounds, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("m", [0, 1, 10, 16, 19, 20])
@pytest.mark.parametrize("attack", ATTACKS)
def test_fltrust_stays_below_the_bound(ridge: ModuleType, attack: str, m: int) -> None:
    for seed in range(3):
        assert stays_below(ridge, attack, m, condition=1, root_size=500, seed=seed)
        assert stays_below(ridge, attack, m, condition=20, root_size=ENDLESS, seed=seed)
        assert stays_below(ridge, attack, m, condition=1, root_size=ENDLESS, seed=seed, deviation=math.sqrt(2))


@dataclass(frozen=True)
class TooLong(FLTrust):
    """FLTrust whose update is four times as long."""

    def aggregate(self, received: Received) -> Aggregate:
        update, shares = super().aggregate(received)
        return Aggregate(4 * update, shares)


@pytest.mark.parametrize(
    ("rule", "attack", "root_size"),
    [
        (FedAvg(), "huge", 500),
        (FLTrustNoNorm(), "huge", 500),
        (FLTrustNoReLU(), "flip", ENDLESS),
        (TooLong(), "outward", ENDLESS),
    ],
)
def test_broken_rules_do_not(ridge: ModuleType, rule: Rule, attack: str, root_size: int) -> None:
    m = 10 if isinstance(rule, FLTrustNoReLU) else 20
    assert not stays_below(ridge, attack, m, condition=1, root_size=root_size, rule=rule)


def test_the_server_alone_ends_within_its_limit(ridge: ModuleType) -> None:
    problem = ridge.Ridge.draw(0, d=3, condition=1)
    constants = replace(problem.constants(10**9), deviation=0.0)
    path = ridge.train(
        problem, ridge.ATTACKS["huge"], 20, constants.alpha, root_size=10**9, client_size=500, rounds=200, seed=0, rule=FLTrustServer()
    )
    assert 0 < ridge.distances(problem, path)[-1] < constants.limit < 0.01


# ---------------------------------------------------------------- docs/theory.md: what is wrong, and what holds


def test_as_printed_for_any_learning_rate_the_theorem_is_false(ridge: ModuleType) -> None:
    problem = ridge.Ridge.draw(0, d=3, condition=1)
    constants = problem.constants(10**9)
    constants = replace(constants, alpha=constants.alpha / 1000)
    path = ridge.train(problem, ridge.random, 0, constants.alpha, root_size=10**9, client_size=500, rounds=30, seed=0)
    start, *_, end = ridge.distances(problem, path)
    alpha, lipschitz = constants.alpha, constants.lipschitz
    rho = 1 - (math.sqrt(1 - constants.mu**2 / (4 * lipschitz**2)) + 24 * alpha * constants.delta_2 + 2 * alpha * lipschitz)
    assert 0 < rho < 1
    assert end > 10 * ((1 - rho) ** 30 * start + 12 * alpha * constants.delta_1 / rho)
    assert end < constants.bound(start, 30)[-1]


@pytest.mark.parametrize("attack", ["adaptive", "outward"])
def test_with_no_honest_client_the_distance_grows_without_end(ridge: ModuleType, attack: str) -> None:
    problem = ridge.Ridge.draw(0, d=3, condition=1)
    alpha = problem.constants(ENDLESS).alpha
    path = ridge.train(problem, ridge.ATTACKS[attack], 20, alpha, root_size=ENDLESS, client_size=500, rounds=200, seed=0)
    distances = ridge.distances(problem, path)
    growth = math.sqrt(1 + (alpha * 1.1) ** 2)  # L = 1.1: a step as long as the root update's, at a right angle to it
    assert distances[-1] == pytest.approx(growth**200 * distances[0], rel=0.1)


@pytest.mark.parametrize("m", [0, 1, 10, 16, 19])
@pytest.mark.parametrize("attack", ATTACKS)
def test_with_honest_clients_the_loss_falls_as_fast_as_their_share_says(ridge: ModuleType, attack: str, m: int) -> None:
    for condition in (1, 20):
        problem, constants = problem_and_constants(ridge, 0, condition)
        alpha = constants.alpha
        path = ridge.train(problem, ridge.ATTACKS[attack], m, alpha, root_size=ENDLESS, client_size=ENDLESS, rounds=30, seed=0)
        away = path - problem.optimum
        excess = (away @ problem.curvature(problem.everyone)[0] * away).sum(1) / 2  # F(w^t) - F(w*)
        honest = math.sqrt(1 - m / 20)
        progress = 2 * honest / (1 + honest)
        factor = 1 - 2 * alpha * constants.mu * (progress - alpha * constants.lipschitz / 2)
        assert factor < 1
        assert (excess[1:] <= factor * excess[:-1] + 1e-9).all()
