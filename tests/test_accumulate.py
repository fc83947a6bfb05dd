"""FLTrust as a stream equals FLTrust on the whole matrix, whatever the order, the grouping and the tree of merges."""

import pickle
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fltrust.errors import InputError
from fltrust.rules import FLTrust, trust_scores
from fltrust.rules.accumulate import TrustAccumulator


def draw(n: int, d: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    updates = torch.randn(n, d, generator=generator, dtype=dtype)
    return updates, updates[: n // 2 + 1].sum(dim=0)


def equal_to_the_rule(accumulator: TrustAccumulator, updates: Tensor, root_update: Tensor) -> None:
    expected, result = FLTrust()(updates, root_update), accumulator.result()
    tolerance = 1e-5 if updates.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(result.update, expected.update, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(result.shares, expected.shares, rtol=tolerance, atol=tolerance)
    assert accumulator.count == len(updates)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_at_a_time_equals_the_rule(dtype: torch.dtype) -> None:
    updates, root_update = draw(17, 300, dtype)
    before = updates.clone()
    accumulator = TrustAccumulator(root_update)
    trust = [accumulator.add(update) for update in updates]
    torch.testing.assert_close(torch.tensor(trust, dtype=dtype), trust_scores(updates, root_update))
    equal_to_the_rule(accumulator, updates, root_update)
    equal_to_the_rule(accumulator, updates, root_update)  # reading the result changes nothing
    assert torch.equal(updates, before)


@given(st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_any_order_grouping_and_tree_of_merges_equals_the_rule(n: int, seed: int) -> None:
    chance = random.Random(seed)
    updates, root_update = draw(n, 7, torch.float64, seed)
    order = chance.sample(range(n), n)
    accumulators, arrived = [], []
    while order:
        group = [order.pop() for _ in range(chance.randint(1, len(order)))]
        accumulator = TrustAccumulator(root_update)
        if chance.random() < 0.5:
            accumulator.add_many(updates[group])
        else:
            for client in group:
                accumulator.add(updates[client])
        accumulators.append(accumulator)
        arrived.append(group)
    while len(accumulators) > 1:
        one, other = chance.sample(range(len(accumulators)), 2)
        accumulators[one].merge(accumulators[other])
        arrived[one] = arrived[one] + arrived[other]
        del accumulators[other], arrived[other]
    equal_to_the_rule(accumulators[0], updates[arrived[0]], root_update)


def test_merging_leaves_the_other_as_it_is() -> None:
    updates, root_update = draw(8, 10)
    one, other = TrustAccumulator(root_update), TrustAccumulator(root_update.clone())
    one.add_many(updates[:3])
    other.add_many(updates[3:])
    one.merge(pickle.loads(pickle.dumps(other)))  # as from another process
    equal_to_the_rule(one, updates, root_update)
    equal_to_the_rule(other, updates[3:], root_update)
    one.merge(one)
    equal_to_the_rule(one, torch.cat([updates, updates]), root_update)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_hostile_updates_get_no_trust(dtype: torch.dtype) -> None:
    updates, root_update = draw(5, 9, dtype)
    accumulator = TrustAccumulator(root_update)
    for hostile in (updates[0] * float("nan"), updates[0] * float("inf"), torch.zeros(9, dtype=dtype), -root_update):
        assert accumulator.add(hostile) == 0
    assert torch.equal(accumulator.result().update, torch.zeros(9, dtype=dtype))
    accumulator.add_many(updates)
    torch.testing.assert_close(accumulator.result().update, FLTrust()(updates, root_update).update)
    assert accumulator.count == 9


def test_nothing_added_gives_the_zero_update() -> None:
    _, root_update = draw(3, 9)
    accumulator = TrustAccumulator(root_update)
    assert accumulator.add_many(torch.empty(0, 9)).shape == (0,)
    update, weight = accumulator.result()
    assert torch.equal(update, torch.zeros(9))
    assert weight is not None
    assert weight.shape == (0,)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_root_update_that_is_not_usable_trusts_nobody(value: float) -> None:
    updates, _ = draw(5, 9)
    root_update = torch.full((9,), value)
    accumulator, other = TrustAccumulator(root_update), TrustAccumulator(root_update)
    assert [accumulator.add(update) for update in updates] == [0.0] * 5
    other.add_many(updates)
    accumulator.merge(other)
    assert torch.equal(accumulator.result().update, torch.zeros(9))


def test_the_root_update_is_remembered_not_borrowed() -> None:
    updates, root_update = draw(5, 9)
    borrowed = root_update.clone()
    accumulator = TrustAccumulator(borrowed)
    borrowed.zero_()
    accumulator.add_many(updates)
    equal_to_the_rule(accumulator, updates, root_update)


def test_memory_does_not_grow_with_the_updates() -> None:
    updates, root_update = draw(50, 2000)
    accumulator = TrustAccumulator(root_update)
    accumulator.add(updates[0])
    small = len(pickle.dumps(accumulator))
    accumulator.add_many(updates[1:])
    assert len(pickle.dumps(accumulator)) - small <= 49 * 16


def test_every_mistake_has_its_message() -> None:
    _, root_update = draw(5, 9)
    accumulator = TrustAccumulator(root_update)
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: TrustAccumulator(root_update[None]), r"the root update must be a vector, not of shape \(1, 9\)"),
        (lambda: TrustAccumulator(root_update[:0]), r"the root update must be a vector, not of shape \(0,\)"),
        (lambda: TrustAccumulator(root_update.half()), "the root update must be float32 or float64, not torch.float16"),
        (lambda: accumulator.add(root_update[:8]), r"an update must have the shape \(9,\), not \(8,\)"),
        (lambda: accumulator.add(root_update[None]), r"an update must have the shape \(9,\), not \(1, 9\)"),
        (lambda: accumulator.add(root_update.double()), "an update must be torch.float32 on cpu, not torch.float64 on cpu"),
        (lambda: accumulator.add_many(root_update), r"a matrix of updates must have the shape \(9, 9\), not \(9,\)"),
        (lambda: accumulator.add_many(torch.ones(3, 8)), r"a matrix of updates must have the shape \(3, 9\), not \(3, 8\)"),
        (lambda: accumulator.merge(TrustAccumulator(root_update * 2)), "accumulators of two different root updates cannot be merged"),
        (
            lambda: accumulator.merge(TrustAccumulator(root_update[:8])),
            r"the other accumulator's root update must have the shape \(9,\), not \(8,\)",
        ),
    ]
    for call, message in mistakes:
        with pytest.raises(InputError, match=f"^{message}$"):
            call()
    assert accumulator.count == 0
