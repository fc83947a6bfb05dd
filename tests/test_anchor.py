"""Anchor against a second implementation in one file, and what it promises."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fltrust import Anchor, Experiment, FedAvg, InputError, Received, build_task, simulate
from fltrust.rules import take_step
from fltrust.rules.spectral import winsorised
from fltrust.state import Memory
from fltrust.testing import check_rule, draw

NAN = float("nan")


@pytest.fixture(scope="module")
def one_file() -> ModuleType:
    path = Path(__file__).parent.parent / "examples" / "anchor_in_one_file.py"
    spec = importlib.util.spec_from_file_location("anchor_in_one_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rounds(n: int, d: int, dtype: torch.dtype) -> list[Received]:
    """Six rounds in which some of 9 clients take part: long rows, rows of zeros and rows that hold NaN among them."""
    views = []
    for t in range(6):
        updates, root_update, _ = draw(n, d, dtype, seed=t)
        updates[t % n] *= 10.0 ** (3 * t - 6)
        updates[(t + 2) % n] = (0.0, NAN, 1.0)[t % 3]
        ids = torch.randperm(9, generator=torch.Generator().manual_seed(t))[:n].sort().values
        views.append(Received(updates, root_update * 10.0 ** (t - 3), client_ids=ids))
    return views


@pytest.mark.parametrize(
    "parameters", [(0.9, 1.0, 30.0, 0), (0.9, 1.0, 1e6, 1), (0.0, 1.0, 1e6, 2), (0.5, 3.0, 1.0, 2), (0.99, 0.0, 1e6, 3)], ids=str
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)], ids=str)
@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_the_same_as_in_one_file(
    one_file: ModuleType, n: int, parameters: tuple[float, float, float, int], dtype: torch.dtype, tolerance: float
) -> None:
    rule, theirs = Anchor(*parameters), one_file.Anchor(*parameters)
    memory = rule.init(9, torch.empty(40, dtype=dtype))
    for view in rounds(n, 40, dtype):
        assert view.client_ids is not None
        assert view.root_update is not None
        aggregate, memory = take_step(rule, view, memory)
        sent = {int(client): row.double().numpy() for client, row in zip(view.client_ids, view.updates, strict=True)}
        expected = theirs.aggregate(sent, view.root_update.double().numpy())
        np.testing.assert_allclose(aggregate.update.double().numpy(), expected, rtol=0, atol=tolerance * max(1e-30, np.abs(expected).max()))


def played(rule: Anchor, updates: Tensor, root_update: Tensor, memory: Memory = ()) -> Tensor:
    view = Received(updates, root_update, client_ids=torch.arange(len(updates)))
    return take_step(rule, view, memory or rule.init(len(updates), updates[0]))[0].update


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e6])
def test_k_clients_move_the_result_by_at_most_2_k_over_n_lengths(length: float) -> None:
    """The bound in docs/anchor.md: whatever k clients send that leaves the median length and the server's part alone, if
    nobody is levelled."""
    n, k, plain = 11, 4, Anchor(momentum=0.0, directions=0)
    updates, root_update, _ = draw(n, 30, torch.float64)
    updates /= updates.norm(dim=1, keepdim=True)
    root_update /= root_update.norm()
    honest = played(plain, updates, root_update)
    others = torch.randn(k, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    attacked = torch.cat((length * others / others.norm(dim=1, keepdim=True), updates[k:]))
    moved = played(plain, attacked, root_update)
    assert (moved - honest).norm() <= 2 * k / n + 1e-12
    updates[:k] = updates[0]  # the worst: clients that agreed turn round
    honest = played(plain, updates, root_update)
    opposite = torch.cat((-length * updates[:k], updates[k:]))
    far = (played(plain, opposite, root_update) - honest).norm()
    assert float(far) == pytest.approx(2 * k / n)


@pytest.mark.parametrize("m", [1, 4])
def test_clients_that_push_together_count_no_more_than_honest_ones_differ(m: int) -> None:
    """Along the direction that they push in, which is then the one of most variance."""
    honest = torch.ones(11 - m, 30, dtype=torch.float64) + 0.3 * draw(11 - m, 30, torch.float64)[0]
    push = torch.zeros(30, dtype=torch.float64)
    push[0] = -1.0
    updates = torch.cat((push.expand(m, -1), honest))
    places = (updates / updates.norm(dim=1, keepdim=True))[:, 0]  # nearly along that direction
    rules = [Anchor(0.0, voice=0.0, directions=directions) for directions in (0, 1)]
    plain, levelled = (
        float(played(rule, updates, torch.ones(30, dtype=torch.float64))[0] / updates.norm(dim=1).median()) for rule in rules
    )
    assert plain == pytest.approx(float(places.mean()))
    assert float(places[m:].min()) < levelled  # where honest clients are
    assert plain < levelled


@pytest.mark.parametrize("directions", [1, 3])
def test_the_laws_hold_for_levelled_clients_too(directions: int) -> None:
    check_rule(Anchor(directions=directions))
    check_rule(Anchor(momentum=0.0, directions=directions))


@pytest.mark.parametrize(("n", "directions"), [(20, 1), (350, 1), (700, 2)])
def test_clients_that_agree_on_nothing_are_levelled_too(n: int, directions: int) -> None:
    """No direction stands out, so powers of the covariance get small; the result must not get large."""
    rows = torch.cat((torch.eye(n, dtype=torch.float64), torch.ones(n, 1, dtype=torch.float64)), 1)
    cosines = rows @ rows.T / 2
    shares = winsorised(cosines, torch.ones(n, dtype=torch.bool), directions)
    assert float(shares.sum()) == pytest.approx(1)
    assert float(shares @ cosines @ shares) <= 1 + directions
    rows = torch.randn(n, 2000, generator=torch.Generator().manual_seed(0))
    update = played(Anchor(0.0, voice=0.0, directions=directions), rows, torch.ones(2000))
    assert update.norm() <= (1 + directions) ** 0.5 * rows.norm(dim=1).median()


def test_the_direction_is_the_first_eigenvector_where_one_stands_clear() -> None:
    rows = draw(15, 40, torch.float64)[0]
    rows[:5] += 8 * torch.ones(40)
    rows /= rows.norm(dim=1, keepdim=True)
    centred = rows - rows.mean(0)
    direction = torch.linalg.svd(centred).Vh[0]
    places = (centred @ direction).numpy()
    middle = np.median(places)
    reach = 1.4826 * np.median(np.abs(places - middle))
    moved = float(np.clip(places, middle - reach, middle + reach).mean())
    expected = rows.mean(0) + moved * direction
    torch.testing.assert_close(winsorised(rows @ rows.T, torch.ones(15, dtype=torch.bool), 1) @ rows, expected)


def test_rows_of_any_length_are_levelled() -> None:
    updates, root_update, _ = draw(16, 400, torch.float64)
    updates[:4] = -updates[4:].mean(0)
    rule = Anchor(0.0, voice=0.0, directions=1)
    expected = played(rule, updates, root_update)
    updates[:4] *= 1e-200
    torch.testing.assert_close(played(rule, updates, root_update), expected, rtol=1e-3, atol=1e-9)


def test_levelled_shares_sum_to_1_and_leave_a_mean_where_rows_agree() -> None:
    rows = draw(9, 30, torch.float64)[0]
    rows /= rows.norm(dim=1, keepdim=True)
    usable = torch.arange(9) != 4
    products = (rows @ rows.T) * usable * usable[:, None]
    for directions in (1, 3, 8, 20):
        shares = winsorised(products, usable, directions)
        assert float(shares.sum()) == pytest.approx(1)
        assert shares[4] == 0
    equal = usable.double() / 8
    torch.testing.assert_close(winsorised(torch.ones_like(products) * usable * usable[:, None], usable, 3), equal)
    torch.testing.assert_close(
        winsorised(torch.stack((torch.eye(9), products)), usable.expand(2, -1), 2)[1], winsorised(products, usable, 2)
    )


def test_long_rows_let_the_whole_root_update_through_and_no_more() -> None:
    """What docs/anchor.md says is not covered by the bound: the quartile is theirs, if they are more than a quarter."""
    updates, root_update, _ = draw(11, 30, torch.float64)
    updates /= updates.norm(dim=1, keepdim=True)
    root_update *= 50 / root_update.norm()
    honest = played(Anchor(momentum=0.0), updates, root_update)
    updates[:4] *= 1e6
    attacked = played(Anchor(momentum=0.0), updates, root_update)
    torch.testing.assert_close(attacked - honest, root_update * 49 / 50)


def test_units_do_not_matter() -> None:
    updates, root_update, _ = draw(9, 30, torch.float64)
    one = played(Anchor(), updates, root_update)
    torch.testing.assert_close(played(Anchor(), 1e5 * updates, 1e5 * root_update), 1e5 * one)


def test_the_server_cannot_shout() -> None:
    """A root update of any length counts no more than the longest quarter of the clients begins: sums over more examples are longer."""
    updates, root_update, _ = draw(9, 30, torch.float64)
    length = updates.norm(dim=1).sort().values[6]
    alone = played(Anchor(0.0, voice=0.0), updates, root_update)
    for factor in (1e3, 1e9):
        server = played(Anchor(0.0), updates, root_update / root_update.norm() * factor) - alone
        torch.testing.assert_close(server, root_update / root_update.norm() * length)
    short = root_update / root_update.norm() / 1e3
    torch.testing.assert_close(played(Anchor(0.0, limit=1e6), updates, short) - alone, short)


def test_a_majority_of_short_rows_does_not_silence_the_server() -> None:
    updates, root_update, _ = draw(10, 30, torch.float64)
    updates[:6] *= 1e-9
    update = played(Anchor(0.0), updates, root_update / root_update.norm())
    torch.testing.assert_close(update, root_update / root_update.norm(), rtol=1e-6, atol=1e-6)


def test_a_long_lie_is_soon_forgotten() -> None:
    """One update, a million times as long as the others, decides what its client says for seven rounds, not for a hundred."""
    rule, root, rows = Anchor(), torch.ones(3, dtype=torch.float64), torch.ones(5, 3, dtype=torch.float64)
    memory = rule.init(5, root)
    signs = []
    for t in range(12):
        sent = rows.clone()
        if t == 0:
            sent[0] *= -1e6
        means, memory = rule.means(Received(sent, root, client_ids=torch.arange(5)), memory)
        signs.append(float(means[0, 0].sign()))
        torch.testing.assert_close(means[1:], rows[1:])
    assert signs.index(1.0) == 7


@pytest.mark.parametrize("directions", [0, 1])
@pytest.mark.parametrize("malicious", [4, 5, 10])
def test_half_of_a_round_has_the_median_length_but_never_more_than_the_limit(malicious: int, directions: int) -> None:
    updates, root_update, _ = draw(10, 30, torch.float64)
    longest = updates.norm(dim=1).max()
    updates[:malicious] *= -1e9
    updates[:malicious] = updates[0]  # one direction: as far as they can move the model
    update = played(Anchor(momentum=0.0, voice=0.0, directions=directions), updates, root_update)
    assert bool(update.norm() > longest) == (malicious >= 5)
    most = (1 + directions) ** 0.5 * 30  # once for the mean, once along the direction that is levelled
    assert update.norm() <= most * root_update.norm() * (1 + 1e-12)


def test_a_client_that_was_away_goes_on_where_it_was() -> None:
    rule, rows = Anchor(momentum=0.5), torch.tensor([[4.0, 0.0], [0.0, 2.0]])
    root = torch.tensor([1.0, 0.0])
    _, memory = take_step(rule, Received(rows, root, client_ids=torch.tensor([0, 2])), rule.init(3, rows[0]))
    _, memory = take_step(rule, Received(rows[:1], root, client_ids=torch.tensor([1])), memory)
    means, memory = rule.means(Received(torch.tensor([[0.0, 8.0]]), root, client_ids=torch.tensor([2])), memory)
    torch.testing.assert_close(means, torch.tensor([[0.0, (0.5 * 8 + 0.25 * 2) / 0.75]]))
    assert memory.rounds.tolist() == [1, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_client_that_sends_the_largest_numbers_breaks_nothing(dtype: torch.dtype) -> None:
    """Neither its own memory, which would silence it for ever, nor what the others do."""
    rule, root = Anchor(momentum=0.5), torch.ones(20, dtype=dtype)
    memory, without = rule.init(9, root), rule.init(8, root)
    for t in range(6):
        updates, _, _ = draw(9, 20, dtype, seed=t)
        updates[8] = torch.finfo(dtype).max * (-1) ** t
        aggregate, memory = take_step(rule, Received(updates, root, client_ids=torch.arange(9)), memory)
        _, without = take_step(rule, Received(updates[:8], root, client_ids=torch.arange(8)), without)
        assert torch.isfinite(aggregate.update).all()
        assert torch.isfinite(memory.sums).all()
        assert aggregate.update.norm() < 100
    assert torch.equal(memory.sums[:8], without.sums)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"momentum": 1.0}, "below 1"),
        ({"momentum": 1 - 1e-9}, "at most"),
        ({"momentum": -0.1}, "at least 0"),
        ({"voice": -1.0}, "voice"),
        ({"limit": 0.0}, "limit"),
        ({"directions": -1}, "directions"),
        ({"directions": 101}, "directions"),
        ({"directions": 1.5}, "whole number"),
        ({"directions": True}, "whole number"),
    ],
)
def test_wrong_parameters(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Anchor(**parameters)


def test_a_whole_number_of_numpy_is_one() -> None:
    rule = Anchor(directions=np.int64(1))  # type: ignore[arg-type]
    assert rule == Anchor(directions=1)
    assert type(rule.directions) is int


def test_it_learns_and_holds_where_the_mean_breaks() -> None:
    """On real images: 4 of 20 clients send the opposite of what they learnt, a hundred times as long."""

    def error(rule: Anchor | FedAvg, attack: dict[str, object] | str) -> float:
        run = Experiment.on("mnist-5k", rule, attack, model="logistic", rounds=40, evaluate_every=40)
        *_, last = simulate(run, build_task(run))
        assert last.test_error is not None
        return last.test_error

    clean = error(Anchor(), "none")
    assert clean < error(FedAvg(), "none") + 0.05
    opposite: dict[str, object] = {"name": "sign-flip", "scale": 100.0}
    assert error(FedAvg(), opposite) > 0.5
    assert error(Anchor(), opposite) < clean + 0.1
