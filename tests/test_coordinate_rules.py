"""MeaMed, Phocas, RLR and Bulyan against references written from their papers, and against what other packages make of them.

The references are loops over exact fractions, so that ties are ties.
"""

from collections.abc import Callable
from fractions import Fraction
from statistics import fmean, median
from typing import Any

import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrust.errors import InputError
from fltrust.rules import RLR, Bulyan, FedAvg, MeaMed, Phocas, Rule, TrimmedMean, rows
from fltrust.rules.krum import krum_picks
from fltrust.rules.pairs import sq_distances_of
from fltrust.rules.rows import nearest_mean, ranked_mean, sign_sums

Array = NDArray[Any]
NAN, INF = float("nan"), float("inf")
plain_and_fast = pytest.mark.parametrize("path", ["plain", "fast"])


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def choose(path: str) -> None:
        if path == "plain":
            monkeypatch.setattr(rows, "_cpu_kernels", lambda: None)
        else:
            pytest.importorskip("numba")

    return choose


def draw(seed: int, n: int, d: int, kind: str) -> Tensor:
    """Rows of random numbers, of a few whole numbers (many ties), or with copies and far outliers."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "whole":
        return torch.randint(-3, 4, (n, d), generator=generator).float()
    values = torch.randn(n, d, generator=generator)
    if kind == "copies":
        values[n // 2 :] = values[: n - n // 2].clone()
        values[-1] *= 1e30
    return values


# ---------------------------------------------------------------- references


def nearest(values: list[Fraction], centre: Fraction, count: int) -> Fraction:
    """The mean of the `count` values nearest to the centre; of two equally near, the lower one first."""
    return sum(sorted(values, key=lambda x: (abs(x - centre), x))[:count], Fraction(0)) / count


def trimmed(values: list[Fraction], trim: int) -> Fraction:
    kept = sorted(values)[trim : len(values) - trim]
    return sum(kept, Fraction(0)) / len(kept)


def by_column(updates: Tensor, of: Callable[[list[Fraction]], Fraction]) -> Tensor:
    columns = updates.double().numpy().T
    return torch.tensor([float(of([Fraction(float(x)) for x in column])) for column in columns], dtype=torch.float64)


def meamed(updates: Tensor, f: int) -> Tensor:
    return by_column(updates, lambda x: nearest(x, median(x), len(x) - f))


def phocas(updates: Tensor, f: int) -> Tensor:
    return by_column(updates, lambda x: nearest(x, trimmed(x, f), len(x) - f))


def krum_order(updates: Tensor, f: int, picks: int) -> list[int]:
    """Bulyan's first stage: Krum on what is left, `picks` times."""
    points = [[Fraction(float(x)) for x in row] for row in updates.double().numpy()]
    apart = [[sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for other in points] for one in points]
    left, chosen = list(range(len(points))), []
    for _ in range(picks):
        neighbours = max(0, len(left) - f - 2)

        def score(i: int, left: list[int] = left, neighbours: int = neighbours) -> tuple[Any, Any, int]:
            others = sorted(apart[i][j] for j in left if j != i)
            return sum(others[:neighbours]), sum(others), i

        chosen.append(min(left, key=score))
        left.remove(chosen[-1])
    return chosen


def bulyan(updates: Tensor, f: int) -> Tensor:
    theta = len(updates) - 2 * f
    chosen = updates[krum_order(updates, f, theta)]
    return by_column(chosen, lambda x: nearest(x, median(x), theta - 2 * f))


def rlr(updates: Array, threshold: float, weights: list[float]) -> list[float]:
    result = []
    for column in updates.T:
        votes = sum(1 if x > 0 else -1 if x < 0 else 0 for x in column)
        mean = sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights)
        result.append(mean if abs(votes) >= threshold else -mean)
    return result


# ---------------------------------------------------------------- MeaMed and Phocas


@plain_and_fast
@pytest.mark.parametrize("kind", ["normal", "whole", "copies"])
@pytest.mark.parametrize(("n", "f"), [(1, 0), (2, 0), (3, 1), (7, 0), (7, 1), (7, 3), (10, 2), (10, 4), (31, 6)])
def test_meamed_and_phocas(on: Callable[[str], None], path: str, kind: str, n: int, f: int) -> None:
    on(path)
    updates = draw(n + f, n, 23, kind)
    updates = torch.where(updates.any(1)[:, None], updates, 1)  # a row of zeros is not usable
    for rule, reference in ((MeaMed(f), meamed), (Phocas(f), phocas)):
        torch.testing.assert_close(rule(updates).update, reference(updates, f).float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(rule(updates.double()).update, reference(updates, f), rtol=1e-12, atol=0)


@plain_and_fast
def test_by_hand(on: Callable[[str], None], path: str) -> None:
    on(path)
    column = torch.tensor([[1.0], [2.0], [4.0], [7.0], [100.0]])
    assert MeaMed(1)(column).update == 3.5  # median 4, without 100
    assert MeaMed(2)(column).update == pytest.approx(7 / 3)  # 1 and 7 are equally far from 4: the lower one counts
    assert Phocas(1)(column).update == 3.5  # centre 13/3, without 100
    assert Phocas(2)(column).update == pytest.approx(7 / 3)  # the centre is the median
    assert Phocas(1)(torch.tensor([[0.0], [3.0], [3.0], [6.0]]) + 1).update == 3.0  # 1 and 7 are equally far from 4


@plain_and_fast
def test_the_lower_of_two_equally_near_values_counts(on: Callable[[str], None], path: str) -> None:
    on(path)
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        assert MeaMed(1)(torch.tensor([[-1.0], [1.0], [3.0]])[order]).update == 0  # -1 and 3 are 2 away from 1
        assert MeaMed(1)(torch.tensor([[-3.0], [-1.0], [1.0]])[order]).update == -2


def test_nothing_expected_is_the_mean() -> None:
    updates = draw(0, 9, 50, "normal")
    for rule in (MeaMed(0), Phocas(0)):
        torch.testing.assert_close(rule(updates).update, updates.mean(0))


def test_nearest_is_not_trimming_and_not_one_value_fewer() -> None:
    """Some packages trim, and the code of "A Little Is Enough" keeps n - f - 1 values."""
    column = [0.0, 5.0, 6.0, 7.0, 8.0]
    updates = torch.tensor(column)[:, None] + 1
    ours = MeaMed(1)(updates).update.item() - 1
    assert ours == fmean(column[1:])  # 6.5
    assert ours != TrimmedMean(1)(updates).update.item() - 1  # 6
    assert ours != fmean([5.0, 6.0, 7.0])  # the n - f - 1 nearest to 6


@plain_and_fast
@pytest.mark.parametrize("kind", ["normal", "copies"])
def test_one_far_row_moves_nothing(on: Callable[[str], None], path: str, kind: str) -> None:
    """Sums must not lose the small values beside an outlier of 1e30."""
    on(path)
    updates = draw(5, 12, 70, kind)[:-1]
    for far in (1e30, -1e30, 3e38):
        with_far = torch.cat((updates, torch.full((1, 70), far)))
        torch.testing.assert_close(MeaMed(1)(with_far).update, meamed(with_far, 1).float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(Phocas(1)(with_far).update, phocas(with_far, 1).float(), rtol=1e-6, atol=0)


# ---------------------------------------------------------------- the kernel and its twin


@pytest.mark.parametrize("kind", ["normal", "whole", "copies"])
@pytest.mark.parametrize("d", [1, 63, 64, 200])
@pytest.mark.parametrize("n", [1, 2, 3, 11, 64, 65, 100, 128])
def test_the_kernel_is_the_plain_window(monkeypatch: pytest.MonkeyPatch, n: int, d: int, kind: str) -> None:
    pytest.importorskip("numba")
    updates = draw(n * d, n, d, kind)
    usable = torch.rand(n, generator=torch.Generator().manual_seed(n)) < 0.9
    updates[~usable] = NAN
    cases = [(drop, trim) for drop in {0, 1, n // 4, (n - 1) // 2, n} for trim in (None, 0, drop)]
    fast = [nearest_mean(updates, usable, *case) for case in cases]
    monkeypatch.setattr(rows, "_cpu_kernels", lambda: None)
    for case, result in zip(cases, fast, strict=True):
        torch.testing.assert_close(result, nearest_mean(updates, usable, *case), rtol=1e-12, atol=1e-14, msg=str(case))


def test_nobody_usable_is_zero_and_the_middle_always_stays() -> None:
    updates = torch.tensor([[1.0], [2.0], [4.0], [9.0]])
    nobody, three, all_four = (torch.arange(4) < count for count in (0, 3, 4))
    for dtype in (torch.float32, torch.float64):
        sent = updates.to(dtype)
        assert nearest_mean(sent, nobody, 1, None).tolist() == ranked_mean(sent, nobody, 1).tolist() == [0.0]
        assert ranked_mean(sent, three, 1).tolist() == ranked_mean(sent, three, 2).tolist() == ranked_mean(sent, three, 9).tolist() == [2.0]
        assert ranked_mean(sent, all_four, 2).tolist() == ranked_mean(sent, all_four, 9).tolist() == [3.0]
        assert nearest_mean(sent, three, 3, None).tolist() == nearest_mean(sent, three, 9, 9).tolist() == [2.0]
        assert nearest_mean(sent, all_four, 3, None).tolist() == nearest_mean(sent, all_four, 9, 1).tolist() == [3.0]


# ---------------------------------------------------------------- Bulyan


@pytest.mark.slow
@pytest.mark.parametrize(("n", "f"), [(n, f) for n in range(7, 31) for f in range(1, 7) if n >= 4 * f + 3])
def test_bulyan(n: int, f: int) -> None:
    for seed in range(3):
        updates = draw(100 * n + seed, n, 6, "normal")
        updates[-f:] += 3
        torch.testing.assert_close(Bulyan(f)(updates).update, bulyan(updates, f).float(), rtol=1e-5, atol=1e-6)


def test_bulyan_by_hand() -> None:
    """Scores of 1, 3, 4, 6, 10 and 12: 98, 58, 50, 54, 90 and 184. So 4 is first.

    Then 6 (61), 10 (53: 4 to 12, 49 to 3), 3 (4, like 1, but nearer to 12 and 90) and 12 (no neighbours: nearest to 1 and 90).
    """
    updates = torch.tensor([[1.0], [3.0], [4.0], [6.0], [10.0], [12.0], [90.0]])
    assert krum_order(updates, 1, 5) == [2, 3, 4, 1, 5]
    for order in (updates, updates.flip(0)):
        assert Bulyan(1)(order).update == pytest.approx(13 / 3)  # median 6, the nearest are 6, 4 and 3
    assert Bulyan(0)(updates).update == 18  # f = 0: the mean of all


@pytest.mark.parametrize(("n", "f"), [(7, 1), (11, 2), (15, 3)])
def test_equal_scores_in_bulyan(n: int, f: int) -> None:
    """With f = 1 the last pick has no neighbours; the row nearest to all wins, of equal rows the lowest."""
    everyone = torch.ones(n, dtype=torch.bool)
    equal = krum_picks(torch.zeros(n, n, dtype=torch.float64), f, everyone, 2 * f, n)
    assert equal.tolist() == [i < n - 2 * f for i in range(n)]
    updates = draw(n, n, 4, "normal")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(Bulyan(f)(updates[order]).update, Bulyan(f)(updates).update)
    torch.testing.assert_close(Bulyan(f)(torch.full((n, 3), 2.5)).update, torch.full((3,), 2.5))


@pytest.mark.parametrize(("n", "f"), [(7, 1), (12, 2), (15, 3), (20, 4)])
def test_picks_among_many_equal_distances(n: int, f: int) -> None:
    for seed in range(10):
        updates = draw(seed, n, 2, "whole")
        picks = krum_picks(sq_distances_of((updates @ updates.T).double()), f, torch.ones(n, dtype=torch.bool), 2 * f, n)
        assert picks.nonzero().flatten().tolist() == sorted(krum_order(updates, f, n - 2 * f))


@pytest.mark.parametrize("kind", ["normal", "whole"])
def test_picks_of_several_matrices_at_once(kind: str) -> None:
    products = [(updates @ updates.T).double() for updates in (draw(seed, 11, 3, kind) for seed in range(3))]
    usable = torch.tensor([[i != seed for i in range(11)] for seed in range(3)])
    together = krum_picks(sq_distances_of(torch.stack(products)), 1, usable, 2, 20)
    for k in range(3):
        assert torch.equal(together[k], krum_picks(sq_distances_of(products[k]), 1, usable[k], 2, 20))
        assert together[k].sum() == 8
    assert krum_picks(sq_distances_of(products[0]), 1, usable[0], 2, 3).sum() == 3


def test_the_mistakes_of_other_bulyans_change_the_result() -> None:
    n, f = 31, 7
    updates = draw(3, n, 8, "normal")
    updates[-f:] = updates[:-f].mean(0) - 1.5 * updates[:-f].std(0)
    theta = n - 2 * f
    right = bulyan(updates, f)
    torch.testing.assert_close(Bulyan(f)(updates).update, right.float(), rtol=1e-5, atol=1e-6)

    def second(chosen: Tensor, keep: int) -> Tensor:
        return by_column(chosen, lambda x: nearest(x, median(x), keep))

    order, left, shortened = krum_order(updates, f, theta), list(range(n)), []
    for row in order:  # the place in what is left, taken for the row
        shortened.append(left.index(row))
        left.remove(row)
    assert len(set(shortened)) < theta
    once = sorted(range(n), key=lambda i: sum(sorted(((updates[i] - other) ** 2).sum().item() for other in updates)[1 : n - f - 1]))
    wrong = {
        "index of the shortened array": second(updates[shortened], theta - 2 * f),
        "beta = theta": second(updates[order], theta),
        "one value fewer": second(updates[order], theta - 2 * f - 1),
        "one selection": second(updates[once[:theta]], theta - 2 * f),
        "trimming": by_column(updates[order], lambda x: trimmed(x, f)),
    }
    for mistake, result in wrong.items():
        assert (result - right).abs().max() > 1e-3, mistake


# ---------------------------------------------------------------- RLR


@pytest.mark.parametrize("kind", ["normal", "whole"])
@pytest.mark.parametrize("threshold", [None, 0, 2, 4.5, 10])
def test_rlr(kind: str, threshold: float | None) -> None:
    updates = draw(8, 10, 40, kind)
    sizes = torch.arange(1, 11)
    needed = 2.5 if threshold is None else threshold
    expected = rlr(updates.double().numpy(), needed, sizes.tolist())
    assert RLR(threshold)(updates, sizes=sizes).update.tolist() == pytest.approx(expected, abs=1e-6)
    plain = rlr(updates.double().numpy(), needed, [1.0] * 10)
    assert RLR(threshold, by_size=False)(updates, sizes=sizes).update.tolist() == pytest.approx(plain, abs=1e-6)


def test_rlr_turns_round_what_few_agree_on() -> None:
    updates = torch.tensor([[1.0, 4.0, 0.0, 1.0]] * 3 + [[1.0, -2.0, 0.0, 0.0]] * 3)
    assert sign_sums(updates, torch.ones(6, dtype=torch.bool)).tolist() == [6, 0, 0, 3]
    assert RLR(threshold=3)(updates).update.tolist() == [1.0, -1.0, 0.0, 0.5]  # just enough is enough
    assert RLR(threshold=4)(updates).update.tolist() == [1.0, -1.0, 0.0, -0.5]
    torch.testing.assert_close(RLR(threshold=0)(updates).update, FedAvg()(updates).update)


def test_rlr_with_fewer_usable_clients_than_votes_moves_nothing() -> None:
    updates = torch.ones(6, 4)
    updates[2:] = NAN
    assert not RLR(threshold=3)(updates).update.any()
    assert RLR(threshold=2)(updates).update.tolist() == [1.0] * 4
    assert RLR()(updates).update.tolist() == [1.0] * 4  # a quarter of two


# ---------------------------------------------------------------- bad input

RULES = [MeaMed(1), Phocas(1), Bulyan(1), RLR()]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("value", [0.0, NAN, INF])
def test_nobody_usable(rule: Rule, value: float) -> None:
    assert not rule(torch.full((9, 5), value)).update.any()


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_all_rows_equal(rule: Rule) -> None:
    row = torch.tensor([1.5, -2.0, 0.0, 1e-30])
    torch.testing.assert_close(rule(row.expand(9, 4).clone()).update, row)


@pytest.mark.parametrize("rule", [TrimmedMean(5), MeaMed(5), Phocas(5), Bulyan(2)], ids=repr)
def test_no_more_usable_rows_than_may_be_malicious_move_nothing(rule: Rule) -> None:
    updates, most = torch.ones(12, 3), getattr(rule, "tolerate", 5)
    updates[most:] = NAN
    assert not rule(updates).update.any()
    updates[most] = 1
    assert rule(updates).update.tolist() == [1.0] * 3


def test_bulyan_with_fewer_rows_than_it_needs_by_hand() -> None:
    updates = torch.tensor([[1.0], [3.0], [4.0], [6.0], [10.0], [12.0], [NAN]])  # 6 of 7 are usable, f = 1
    # Krum picks n - 2f = 4 of them: 4, 3, 10 and 6. The two nearest to their median, 5, stay.
    assert Bulyan(1)(updates).update.tolist() == [5.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MeaMed(-1), "MeaMed cannot tolerate -1 clients: give 0 or more"),
        (lambda: Phocas(-1), "Phocas cannot tolerate -1 clients"),
        (lambda: Bulyan(-1), "Bulyan cannot tolerate -1 clients"),
        (lambda: RLR(-1), "RLR cannot ask for -1 votes"),
        (lambda: RLR(NAN), "RLR cannot ask for nan votes"),
        (lambda: RLR(INF), "RLR cannot ask for inf votes"),
        (lambda: MeaMed(2)(torch.ones(4, 3)), "MeaMed cannot tolerate 2 of 4: it needs at least 5 clients"),
        (lambda: Phocas(1)(torch.ones(1, 3)), "Phocas cannot tolerate 1 of 1: it needs at least 3 clients"),
        (lambda: Bulyan(2)(torch.ones(10, 3)), "Bulyan cannot tolerate 2 of 10: it needs at least 11 clients"),
        (lambda: RLR(5)(torch.ones(4, 3)), "RLR cannot ask for 5 votes of 4 clients"),
    ],
)
def test_bad_parameters(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
