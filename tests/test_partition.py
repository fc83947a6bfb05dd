"""Who holds which examples: every example once, the root set apart, shares as q says, quotas exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fltrust.errors import InputError
from fltrust.randomness import stream
from fltrust.tasks.splits import partition, sample_root, split_by_bias, split_by_owner


def labels_of(count: int, num_classes: int, seed: int) -> np.ndarray:
    return stream(seed, "labels").integers(num_classes, size=count)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_example_is_held_once_and_the_root_set_apart(data: st.DataObject) -> None:
    num_classes = data.draw(st.integers(2, 6))
    num_clients = data.draw(st.integers(num_classes, 3 * num_classes + 1))
    seed = data.draw(st.integers(0, 1000))
    labels = np.concatenate([np.repeat(np.arange(num_classes), 5), labels_of(data.draw(st.integers(0, 200)), num_classes, seed)])
    by_owner = data.draw(st.booleans())
    owners = np.arange(len(labels)) % num_clients if by_owner and len(labels) >= num_clients else None
    held = partition(
        labels,
        owners,
        num_clients=num_clients,
        num_classes=num_classes,
        bias=None if owners is not None else data.draw(st.floats(0.01, 1.0)),
        root_size=data.draw(st.integers(1, 4 * num_classes)),
        rng=stream(seed, "partition"),
    )
    assert len(held.clients) == num_clients
    together = np.concatenate([*held.clients, held.root])
    assert together.dtype == np.int64
    assert sorted(together.tolist()) == list(range(len(labels)))
    for own in [*held.clients, held.root]:
        assert (np.diff(own) > 0).all()
    if owners is not None:
        assert all((owners[own] == user).all() for user, own in enumerate(held.clients))


@pytest.mark.parametrize(("num_clients", "bias"), [(20, 0.5), (10, 0.1), (23, 0.8), (12, 1.0)])
def test_group_shares_match_q(num_clients: int, bias: float) -> None:
    num_classes = 10
    labels = np.repeat(np.arange(num_classes), 6000)
    share = np.zeros((num_clients, num_classes))  # the share of each class that each client holds
    for client, own in enumerate(split_by_bias(labels, num_clients, num_classes, bias, stream(3, "split"))):
        share[client] = np.bincount(labels[own], minlength=num_classes) / 6000
    if bias > 0.1:  # each client's group is the class of which it holds most
        group = share.argmax(1)
        sizes = np.bincount(group, minlength=num_classes)
        assert sizes.max() - sizes.min() <= 1
        assert not (np.sort(group) == group).all()  # the groups are random
    else:
        group, sizes = np.arange(num_clients), np.ones(num_classes)
    for client in range(num_clients):
        expected = np.full(num_classes, (1 - bias) / (num_classes - 1))
        expected[group[client]] = bias
        expected /= sizes[group[client]]
        spread = np.sqrt(expected * (1 - expected) / 6000)
        assert (np.abs(share[client] - expected) <= 5 * spread + 1e-12).all()


def test_split_depends_on_the_stream_and_on_nothing_else() -> None:
    labels = labels_of(500, 10, 0)
    first, again, other = (split_by_bias(labels, 12, 10, 0.5, stream(seed, "split")) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first, other, strict=True))


def test_clients_keep_their_data_when_the_root_set_grows() -> None:
    labels = labels_of(2000, 10, 0)
    small, large = (
        partition(labels, None, num_clients=20, num_classes=10, bias=0.5, root_size=size, rng=stream(0, "partition")) for size in (50, 500)
    )
    for few, many in zip(small.clients, large.clients, strict=True):
        assert set(few) - set(small.root) - set(large.root) == set(many) - set(small.root)


def test_a_client_may_hold_nothing() -> None:
    held = partition(np.array([0, 1, 1, 0]), None, num_clients=9, num_classes=2, bias=0.5, root_size=2, rng=stream(0, "partition"))
    assert len(held.clients) == 9
    assert sum(map(len, held.clients)) == 2
    assert min(map(len, held.clients)) == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(1, 150), st.integers(0, 1000))
def test_root_quotas_are_equal_in_case_one(num_classes: int, size: int, seed: int) -> None:
    labels = np.repeat(np.arange(num_classes), 150)
    root = sample_root(labels, size, num_classes, stream(seed, "root"))
    counts = np.bincount(labels[root], minlength=num_classes)
    assert len(np.unique(root)) == size
    assert counts.max() - counts.min() <= 1
    assert counts.min() == size // num_classes


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(1, 150), st.floats(0, 1), st.integers(0, 1000))
def test_root_quotas_favour_class_one_in_case_two(num_classes: int, size: int, bias: float, seed: int) -> None:
    labels = np.repeat(np.arange(num_classes), 150)
    root = sample_root(labels, size, num_classes, stream(seed, "root"), bias)
    counts = np.bincount(labels[root], minlength=num_classes)
    others = np.delete(counts, 1)
    assert counts.sum() == size
    assert counts[1] == int(bias * size)
    assert others.max() - others.min() <= 1


def test_root_sets_of_the_paper() -> None:
    """HAR: 100 examples of 6 classes, bias 0.17 and 1; the other classes share 83."""
    labels = np.repeat(np.arange(6), 200)
    counts = np.bincount(labels[sample_root(labels, 100, 6, stream(0, "root"), 0.17)])
    assert counts[1] == 17
    assert sorted(np.delete(counts, 1)) == [16, 16, 17, 17, 17]
    assert (labels[sample_root(labels, 100, 6, stream(0, "root"), 1.0)] == 1).all()


def test_remainders_go_to_random_classes() -> None:
    labels = np.repeat(np.arange(10), 20)
    extra = {int(np.bincount(labels[sample_root(labels, 11, 10, stream(seed, "root"))]).argmax()) for seed in range(40)}
    assert len(extra) > 5


@pytest.mark.parametrize("bias", [0.0, -0.1, 1.01, float("nan")])
def test_q_outside_its_range_is_refused(bias: float) -> None:
    with pytest.raises(InputError, match=r"\(0, 1\]"):
        split_by_bias(np.array([0, 1]), 2, 2, bias, stream(0))


def test_impossible_splits_are_refused_with_their_numbers() -> None:
    labels = np.repeat(np.arange(10), 5)
    rng = stream(0)
    with pytest.raises(InputError, match="9 clients for 10 classes"):
        split_by_bias(labels, 9, 10, 0.5, rng)
    with pytest.raises(InputError, match="0 to 8, got 0 to 9"):
        split_by_bias(labels, 20, 9, 0.5, rng)
    with pytest.raises(InputError, match="at least 2"):
        split_by_bias(np.zeros(3, int), 3, 1, 1.0, rng)
    with pytest.raises(InputError, match="100 clients for data of 30 users"):
        split_by_owner(np.arange(60) % 30, 100)
    with pytest.raises(InputError, match=r"bias of 0\.5 makes no sense"):
        partition(labels, labels, num_clients=10, num_classes=10, bias=0.5, root_size=5, rng=rng)
    with pytest.raises(InputError, match="no owners"):
        partition(labels, None, num_clients=10, num_classes=10, bias=None, root_size=5, rng=rng)


def test_impossible_root_sets_are_refused_with_their_numbers() -> None:
    labels = np.repeat(np.arange(10), 5)
    rng = stream(0)
    for size in (0, -1, 51):
        with pytest.raises(InputError, match=f"root set of {size} examples out of 50"):
            sample_root(labels, size, 10, rng)
    with pytest.raises(InputError, match="needs 20 examples of class 1, the training data have 5"):
        sample_root(labels, 25, 10, rng, 0.8)
    for bias in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="root bias"):
            sample_root(labels, 10, 10, rng, bias)
