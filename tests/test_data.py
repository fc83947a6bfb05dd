"""Batches: own examples only, each at most once in a batch, the same whatever the block."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fltrust.tasks.batches import Batches, crop_and_flip, draw_clients, draw_shifts


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), size=st.integers(1, 12), steps=st.integers(1, 3), mean=st.booleans())
def test_a_batch_holds_own_examples_each_once(sizes: list[int], size: int, steps: int, mean: bool) -> None:
    owned = [100 * i + np.arange(count) for i, count in enumerate(sizes)]
    batch = Batches(0, "batches", owned, steps=steps, size=size, mean=mean).draw([1, 2], np.tile(np.arange(len(sizes)), (2, 1)))
    for t in range(2):
        for i, own in enumerate(owned):
            for step in range(steps):
                used = batch.loss_weights[t, i, step] > 0
                drawn = batch.examples[t, i, step][used]
                assert len(drawn) == len(set(drawn)) == min(size, len(own))
                assert set(drawn) <= set(own)
                assert set(batch.examples[t, i, step]) <= (
                    set(own) or {0}
                )  # what counts nothing repeats own examples: batch norm sees no others
                if len(own):
                    assert batch.loss_weights[t, i, step].sum() == pytest.approx(1 if mean else len(drawn))


def test_every_subset_is_as_likely() -> None:
    batches = Batches(0, "batches", [np.arange(5)], steps=1, size=2, mean=False)
    rounds = range(20_000)
    drawn = batches.draw(rounds, np.zeros((len(rounds), 1), np.int64)).examples[:, 0, 0]
    counts = Counter(tuple(sorted(pair)) for pair in drawn.tolist())
    assert len(counts) == 10  # 5 choose 2
    assert all(abs(count - 2000) < 5 * np.sqrt(2000 * 0.9) for count in counts.values())


def test_blocks_and_company_do_not_change_a_clients_batches() -> None:
    batches = Batches(3, "batches", [np.arange(50), 50 + np.arange(40), 90 + np.arange(30)], steps=2, size=8, mean=False)
    everyone = np.tile(np.arange(3), (6, 1))
    together = batches.draw(range(6), everyone).examples
    apart = np.concatenate([batches.draw([t], everyone[:1]).examples for t in range(6)])
    assert (together == apart).all()
    some = batches.draw(range(6), everyone[:, [0, 2]]).examples
    assert (some == together[:, [0, 2]]).all()
    assert (together[0] != together[1]).any()
    assert (
        batches.draw([1], everyone[:1]).examples
        != Batches(4, "batches", [np.arange(50)] * 3, steps=2, size=8, mean=False).draw([1], everyone[:1]).examples
    ).any()


def test_clients_of_a_round() -> None:
    assert draw_clients(0, range(3), 5, 5).tolist() == [[0, 1, 2, 3, 4]] * 3
    drawn = draw_clients(0, range(2000), 10, 3)
    assert drawn.shape == (2000, 3)
    assert (np.diff(drawn, axis=1) > 0).all()
    counts = np.bincount(drawn.ravel(), minlength=10)
    assert (np.abs(counts - 600) < 5 * np.sqrt(600 * 0.7)).all()


def test_crop_and_flip_moves_and_mirrors() -> None:
    images = torch.arange(2 * 3 * 5 * 6.0).reshape(2, 1, 1, 3, 5, 6)
    still = torch.tensor([4, 4, 0]).expand(2, 1, 1, 3)
    assert torch.equal(crop_and_flip(images, still), images)
    moved = crop_and_flip(images, torch.tensor([5, 4, 0]).expand(2, 1, 1, 3))  # one row up
    assert torch.equal(moved[..., :-1, :], images[..., 1:, :])
    assert not moved[..., -1, :].any()
    mirrored = crop_and_flip(images, torch.tensor([4, 4, 1]).expand(2, 1, 1, 3))
    assert torch.equal(mirrored, images.flip(-1))
    shifts = draw_shifts(0, "crop and flip", range(400), (2, 1, 3), np.tile([0, 1], (400, 1)))
    assert shifts.shape == (400, 2, 1, 3, 3)
    assert [sorted(set(shifts[..., i].ravel())) for i in range(3)] == [list(range(9)), list(range(9)), [0, 1]]
