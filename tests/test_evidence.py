"""Sketches: what is left of an update to compare it with the others."""

import numpy as np
import pytest
import torch

from fltrust.evidence import MOST_PEERS, WIDTH, Sketcher, likeness


def pairs(d: int, cosine: float, count: int, rng: np.random.Generator) -> torch.Tensor:
    """(2 count, d): rows 2i and 2i + 1 have exactly this cosine."""
    one, other = rng.standard_normal((2, count, d))
    one /= np.linalg.norm(one, axis=1, keepdims=True)
    other -= (one * other).sum(1, keepdims=True) * one
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    both = np.stack([one, cosine * one + np.sqrt(1 - cosine**2) * other], 1).reshape(2 * count, d)
    return torch.from_numpy(both * rng.lognormal(0, 3, (2 * count, 1))).float()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("cosine", [-0.9, 0.0, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("d", [100, 509, 7850, 50_000])
def test_a_sketch_keeps_cosines(d: int, cosine: float) -> None:
    rows = pairs(d, cosine, 200, np.random.default_rng(0))
    sketches = torch.nn.functional.normalize(Sketcher(d, generator())(rows))
    error = (sketches[::2] * sketches[1::2]).sum(1) - cosine
    bound = (1 - cosine**2) / np.sqrt(WIDTH) + 1e-6  # what the docstring says
    assert error.std() < 1.3 * bound
    assert abs(error.mean()) < 0.3 * bound + 2e-6


def test_patterns_of_a_layer_do_not_gather_in_one_number() -> None:
    """A column of a layer of 512 inputs: every 512th value, of one sign each, differs between two unlike updates."""
    rows = torch.zeros(40, 512 * 100)
    rows[:, ::512] = torch.randn(40, 100, generator=generator(1))
    found = likeness(Sketcher(rows.shape[1], generator())(rows))
    exact = torch.nn.functional.normalize(rows) @ torch.nn.functional.normalize(rows).T - 2 * torch.eye(40)
    assert (found.closest - exact.max(1).values).abs().max() < 0.25
    assert found.closest.max() < 0.7


def test_likeness_is_what_it_says() -> None:
    sketches = torch.randn(30, WIDTH, dtype=torch.float64, generator=generator())
    sketches[7] = 3 * sketches[4]
    cosines = torch.nn.functional.normalize(sketches) @ torch.nn.functional.normalize(sketches).T
    found = likeness(sketches)
    assert (int(found.closest_to[7]), int(found.closest_to[4])) == (4, 7)
    assert found.closest[7] == pytest.approx(1.0)
    for i in range(30):
        others = cosines[i, [j for j in range(30) if j != i]]
        assert float(found.peers[i]) == pytest.approx(float(others.median()))
        assert float(found.closest[i]) == pytest.approx(float(others.max()))


def test_rows_that_are_not_usable_resemble_nobody() -> None:
    sketches = torch.randn(5, WIDTH, dtype=torch.float64, generator=generator())
    sketches[1], sketches[3] = 0, torch.nan
    found = likeness(sketches)
    assert torch.isnan(found.peers).tolist() == torch.isnan(found.closest).tolist() == [False, True, False, True, False]
    assert set(found.closest_to.tolist()) <= {-1, 0, 2, 4}
    alone = likeness(sketches[1:3])
    assert torch.isnan(alone.closest).all()
    assert alone.closest_to.tolist() == [-1, -1]
    assert len(likeness(sketches[:0]).peers) == 0


def test_many_rows_are_compared_in_blocks() -> None:
    n = MOST_PEERS + 300
    sketches = torch.randn(n, WIDTH, dtype=torch.float64, generator=generator())
    sketches[-1] = sketches[3]
    found = likeness(sketches)
    assert int(found.closest_to[-1]) == 3
    assert found.peers.abs().max() < 0.02


def test_another_secret_is_another_sketch_of_the_same_updates() -> None:
    rows = torch.randn(3, 2000, generator=generator())
    one, same, other = (Sketcher(2000, generator(seed))(rows) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.isclose(one, other).all(1).any()
