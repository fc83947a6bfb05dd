"""Who holds which examples: two arrays that read like a list of arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fltrust.tasks.holdings import Holdings

sizes = st.lists(st.integers(0, 4), max_size=6)


def listed(counts: list[int]) -> list[np.ndarray]:
    """Client i's examples are 100 i, 100 i + 1, ..."""
    return [100 * i + np.arange(count) for i, count in enumerate(counts)]


def same(held: Holdings, owned: list[np.ndarray]) -> bool:
    return [own.tolist() for own in held] == [own.tolist() for own in owned]


@given(sizes, st.data())
def test_it_reads_like_a_list_of_arrays(counts: list[int], data: st.DataObject) -> None:
    owned = listed(counts)
    held = Holdings.of(owned)
    assert Holdings.of(held) is held
    assert len(held) == len(owned)
    assert same(held, owned)
    assert held.sizes.tolist() == counts
    first, last = (data.draw(st.integers(-7, 7)) for _ in range(2))
    assert same(held[first:last], owned[first:last])
    if owned:
        assert held[-1].tolist() == owned[-1].tolist()
    for outside in (len(owned), -len(owned) - 1):
        with pytest.raises(IndexError):
            held[outside]


@given(sizes, sizes, st.data())
def test_taken_joined_and_without(counts: list[int], more: list[int], data: st.DataObject) -> None:
    owned = listed(counts)
    held = Holdings.of(owned)
    order = data.draw(st.permutations(range(len(owned))))
    assert same(held.taken(np.array(order, np.int64)), [owned[i] for i in order])
    assert same(held + Holdings.of(listed(more)), owned + listed(more))
    root = data.draw(st.lists(st.sampled_from([0, 1, 100, 203, 999])))
    assert same(held.without(np.array(root, np.int64)), [own[~np.isin(own, root)] for own in owned])
