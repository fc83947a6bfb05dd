"""The server's root set: exact numbers per class, in both of the paper's cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fltrust.errors import InputError
from fltrust.randomness import stream
from fltrust.tasks.root import sample_root


@settings(max_examples=60)
@given(st.integers(2, 12), st.integers(1, 150), st.integers(0, 1000))
def test_root_quotas_are_equal_in_case_one(num_classes: int, size: int, seed: int) -> None:
    labels = np.repeat(np.arange(num_classes), 150)
    root = sample_root(labels, size, num_classes, stream(seed, "root"))
    counts = np.bincount(labels[root], minlength=num_classes)
    assert len(np.unique(root)) == size
    assert counts.max() - counts.min() <= 1
    assert counts.min() == size // num_classes


@settings(max_examples=60)
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
