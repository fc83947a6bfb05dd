"""docs/baselines.md says what comes out, for every peer that is installed. Flower always is."""

import logging
from collections.abc import Iterator
from importlib import import_module

import numpy as np
import pytest
import torch

from .comparison import SAME, Comparison, call, difference, measured
from .draws import KINDS, SIZES, rows, told
from .packages import installed, module
from .page import in_page, section
from .peer import PEERS, Peer
from .shortest import load, search, small

pytestmark = pytest.mark.filterwarnings("ignore")  # a peer's warnings are not ours
FOUND = load()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """One thread, because the rows are small; and no log, because Flower writes a line for every round."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(threads)


def needed(peer: Peer) -> None:
    if not peer.there:
        pytest.skip(f"{peer.label} {peer.version} is not installed (there: {installed(peer.distribution)})")


def comparison_of(peer: Peer, theirs: str) -> Comparison:
    loaded = import_module(f"{__package__}.{peer.module}")
    every: list[Comparison] = [*loaded.COMPARISONS, *loaded.ATTACKS]
    return next(comparison for comparison in every if comparison.theirs == theirs)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.module)
def test_the_page_says_what_comes_out(peer: Peer) -> None:
    needed(peer)
    assert section(peer) == in_page(peer), "run `make baselines`"


@pytest.mark.parametrize("key", FOUND)
def test_a_shortest_input_shows_the_difference(key: str) -> None:
    name, theirs = key.split(": ", 1)
    peer = next(peer for peer in PEERS if peer.module == name)
    needed(peer)
    comparison, shortest = comparison_of(peer, theirs), FOUND[key]
    drawn = np.array(shortest.rows)
    np.testing.assert_allclose(call(comparison.call, drawn, shortest.f), shortest.theirs, rtol=1e-6)
    np.testing.assert_allclose(call(comparison.our_call, drawn, shortest.f), shortest.ours, rtol=1e-6)
    assert difference(np.array(shortest.theirs), np.array(shortest.ours)) > SAME


def test_a_shortest_input_belongs_to_a_rule_that_is_compared() -> None:
    peer = next(peer for peer in PEERS if peer.module == "flower")
    compared = {peer.key(comparison) for comparison in peer.comparisons()}
    assert {key for key in FOUND if key.startswith("flower: ")} <= compared


# ---------------------------------------------------------------- the audit itself


def test_a_rule_agrees_with_itself_and_not_with_half_of_itself() -> None:
    same = Comparison("median", lambda drawn, f: np.median(drawn, axis=0), "median", "numpy's median")
    half = Comparison("half", lambda drawn, f: np.median(drawn, axis=0) / 2, "median", "half of it")
    assert not any(measured(same).differ.values())
    assert search(same, most=100) is None
    seen = measured(half)
    assert all(count == seen.draws for count in seen.differ.values())
    assert seen.largest == pytest.approx(0.5)
    found = search(half, most=100)
    assert found is not None
    assert (found.f, found.rows, found.theirs, found.ours) == (0, [[1.0]], [0.5], [1.0])


def test_a_tie_is_passed_over() -> None:
    first = Comparison("first of the sorted halves", lambda drawn, f: drawn[0], "median", "the first row, whichever it is")
    assert search(first, most=200) is None


def test_small_inputs_come_in_order_and_hold_no_zero() -> None:
    sizes = [drawn.shape for drawn, _ in small()]
    assert sizes == sorted(sizes)
    assert all((drawn >= 1).all() for drawn, _ in small())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_drawn_by_name_and_seed(kind: str) -> None:
    for n in SIZES:
        assert n >= 4 * told(n) + 3
        np.testing.assert_array_equal(rows(kind, n, 3), rows(kind, n, 3))
        assert not np.array_equal(rows(kind, n, 3), rows(kind, n, 4))


def test_a_module_is_loaded_without_its_package(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "heavy_peer" / "rules"  # type: ignore[operator]
    package.mkdir(parents=True)
    for directory in (package.parent, package):
        (directory / "__init__.py").write_text("raise RuntimeError('the whole package')")
    (package / "one.py").write_text("VALUE = 7")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module("heavy_peer.rules.one").VALUE == 7
    with pytest.raises(ModuleNotFoundError):
        module("heavy_peer.absent.one")
