"""Rules within rules: each against slow loops written from its paper, and what it does to names, files and commands."""

import math
import pickle
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import shares_in
from numpy.typing import NDArray
from torch import Tensor

from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_declaration, from_dict
from fltrust.options import assigned
from fltrust.registry import RULES, Absent
from fltrust.report.repeat import run_command
from fltrust.rules import (
    ARC,
    CAF,
    NNM,
    RLR,
    Bucketing,
    BySize,
    CentredClipping,
    DnC,
    FedAvg,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormClipping,
    Received,
    Rule,
    TrimmedMean,
    ZenoPlusPlus,
    take_step,
)
from fltrust.rules.by_size import GRAIN, client_weights
from fltrust.rules.gram import GramRule
from fltrust.rules.pairs import sq_distances_of
from fltrust.rules.preaggregation import Measured, PreAggregation
from fltrust.rules.rows import divisor
from fltrust.testing import draw

Array = NDArray[np.float64]


def step(rule: Rule, updates: Tensor, seed: int = 0, **known: Any) -> Any:
    received = Received(updates, generator=torch.Generator().manual_seed(seed), **known)
    return take_step(rule, received, rule.init(len(updates), updates[0]))[0]


def close(actual: Tensor, expected: Array | Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual.double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance)


class Nearness(GramRule):
    """A Gram rule for these tests: weights 1 / (1 + sum of squared distances, in units of their mean)."""

    def weigh(self, products: Tensor, usable: Tensor) -> Tensor:
        away = torch.where(usable, sq_distances_of(products), 0).sum(-1)
        away = torch.where(usable, away, 0)
        weight = torch.where(usable, 1 / (1 + away / divisor(away.sum(-1, keepdim=True))), 0)
        return weight / divisor(weight.sum(-1, keepdim=True))


class Rowwise(Nearness):
    """The same rule by another path: a wrapper must give it the rows themselves."""

    needs_rows = True


# ---------------------------------------------------------------- references


def nnm_rows(updates: Array, tolerate: int) -> Array:
    """Allouah et al. 2023, algorithm 2."""
    mixed = []
    for i, row in enumerate(updates):
        others = [j for j in range(len(updates)) if j != i]
        others.sort(key=lambda j: (float(((updates[j] - row) ** 2).sum()), j))
        near = [i, *others][: len(updates) - tolerate]
        mixed.append(sum(updates[j] for j in near) / len(near))
    return np.array(mixed)


def arc_rows(updates: Array, tolerate: int) -> Array:
    """Allouah et al. 2025, algorithm 2."""
    n = len(updates)
    count = math.floor(2 * (tolerate / n) * (n - tolerate))
    order = sorted(range(n), key=lambda i: -float(np.linalg.norm(updates[i])))
    bound = float(np.linalg.norm(updates[order[count]]))
    return np.array([row * min(1.0, bound / float(np.linalg.norm(row))) for row in updates])


def weights_by_bisection(sizes: Array, most: float) -> Array:
    low, high = 0.0, 1e9
    for _ in range(300):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(most, c * sizes).mean() < 1 else (low, c)
    return np.minimum(most, low * sizes)


@pytest.mark.parametrize("tolerate", [0, 1, 3, 5])
@pytest.mark.parametrize("rule", [Median(), TrimmedMean(2), FedAvg(), Nearness()], ids=repr)
def test_nnm_and_arc_are_those_of_the_papers(rule: Rule, tolerate: int) -> None:
    updates = draw(dtype=torch.float64)[0]
    for wrapper, rows in ((NNM(rule, tolerate), nnm_rows), (ARC(rule, tolerate), arc_rows)):
        close(wrapper(updates).update, rule(torch.from_numpy(rows(updates.numpy(), tolerate))).update)


def test_nnm_worked_by_hand() -> None:
    # With f = 2 each mean is of two: 1 -> (1 + 2) / 2, 2 -> (1 + 2) / 2, 4 -> (2 + 4) / 2, 9 -> (4 + 9) / 2.
    result = NNM(FedAvg(), 2)(torch.tensor([[1.0], [2.0], [4.0], [9.0]]))
    close(result.update, torch.tensor([(1.5 + 1.5 + 3 + 6.5) / 4]))
    close(shares_in(result), torch.tensor([2, 3, 2, 1]) / 8)


def test_nnm_takes_itself_and_then_the_first_of_equals() -> None:
    # 0 is as far from -1 as from 1; of three equal rows each takes itself first.
    close(shares_in(NNM(FedAvg(), 1)(torch.tensor([[-1.0], [0.5], [1.0]]))), torch.tensor([1, 3, 2]) / 6)
    close(shares_in(NNM(FedAvg(), 2)(torch.tensor([[3.0], [3.0], [3.0]]))), torch.tensor([1, 1, 1]) / 3)
    close(shares_in(NNM(FedAvg(), 1)(torch.tensor([[3.0], [3.0], [3.0]]))), torch.tensor([3, 2, 1]) / 6)


def test_nnm_with_nobody_to_tolerate_is_the_mean_of_all() -> None:
    updates = draw(dtype=torch.float64)[0]
    for rule in (Median(), Krum(2), TrimmedMean(3)):
        close(NNM(rule, 0)(updates).update, updates.mean(0))


def test_arc_cuts_as_many_as_the_paper_says() -> None:
    updates = torch.arange(1.0, 11.0)[:, None]  # lengths 1 to 10; f = 3: floor(2 * 0.3 * 7) = 4 are cut to 6
    close(ARC(FedAvg(), 3)(updates).update, torch.tensor([(1 + 2 + 3 + 4 + 5 + 5 * 6) / 10]), 1e-6)
    close(ARC(FedAvg(), 0)(updates).update, updates.mean(0), 1e-6)


def test_norm_clipping_with_a_huge_bound_clips_nothing() -> None:
    updates, _, sizes = draw()
    for rule in (FedAvg(), Median(), TrimmedMean(2), Krum(2)):
        assert torch.equal(NormClipping(rule, bound=1e30)(updates, sizes=sizes).update, rule(updates, sizes=sizes).update)


def test_norm_clipping_bounds_by_a_number_or_by_the_median() -> None:
    updates, _, sizes = draw(dtype=torch.float64)
    rows, norms = updates.numpy(), np.linalg.norm(updates.numpy(), axis=1)
    for bound in (None, float(norms.mean()), 0.1):
        cut = np.median(norms) if bound is None else bound
        clipped = rows * np.minimum(1, cut / norms)[:, None]
        close(NormClipping(bound=bound)(updates, sizes=sizes).update, clipped.mean(0))
        close(NormClipping(FedAvg(), bound)(updates, sizes=sizes).update, sizes.numpy() @ clipped / sizes.sum().item())


def test_noise_is_added_once_to_the_aggregate() -> None:
    updates = torch.ones(50, 20_000)
    added = step(NormClipping(noise=0.5), updates).update - 1
    assert abs(float(added.std()) - 0.5) < 0.02  # on every client it would have been 0.07
    assert abs(float(added.mean())) < 0.02
    assert torch.equal(step(NormClipping(noise=0.5), updates, seed=1).update, step(NormClipping(noise=0.5), updates, seed=1).update)
    assert not torch.equal(step(NormClipping(noise=0.5), updates, seed=1).update, step(NormClipping(noise=0.5), updates, seed=2).update)
    assert not step(NormClipping(noise=0.5), torch.zeros(3, 4)).update.any()


# ---------------------------------------------------------------- bucketing


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(2), Krum(2), FedAvg(), FLTrust(), Nearness()], ids=repr)
def test_buckets_of_one_are_the_rule_itself(rule: Rule) -> None:
    updates, root_update, sizes = draw(dtype=torch.float64)
    one = step(Bucketing(rule, size=1), updates, root_update=root_update, sizes=sizes)
    other = step(rule, updates, root_update=root_update, sizes=sizes)
    close(one.update, other.update)
    assert (one.shares is None) == (other.shares is None)
    if other.shares is not None:
        close(one.shares, other.shares)


@pytest.mark.parametrize(("n", "size"), [(10, 2), (11, 2), (11, 3), (3, 5), (1, 2)])
def test_every_row_is_in_one_bucket(n: int, size: int) -> None:
    updates = torch.ones(n, 3)
    updates[n // 2] = math.nan
    rule, usable = Bucketing(Median(), size), torch.arange(n) != n // 2
    seen = set()
    for seed in range(20):
        mixing = _mixing(rule, Received(updates, generator=torch.Generator().manual_seed(seed)))
        assert mixing.shape == (math.ceil(n / size), n)
        assert torch.equal((mixing > 0).sum(0), usable.long())  # none is lost, none is doubled, the broken one is out before the mixing
        held = (mixing > 0).sum(1)
        assert held[held > 0].tolist() == [size] * ((n - 1) // size) + ([(n - 1) % size] if (n - 1) % size else [])
        close(mixing.sum(1), (held > 0).double())
        seen.add(tuple((mixing > 0).double().argmax(0).tolist()))
    assert len(seen) > 1 or n <= size + 1  # a fresh permutation each round


def _mixing(rule: PreAggregation, received: Received) -> Tensor:
    from fltrust.rules.preaggregation import Measured

    return rule.mixing(Measured(received))


def test_a_bucket_has_the_examples_of_its_clients() -> None:
    updates, sizes = torch.tensor([[2.0], [2.0], [8.0], [8.0], [math.nan]]), torch.tensor([1.0, 2.0, 4.0, 1e30, 5.0])
    received = Received(updates, sizes=sizes, generator=torch.Generator().manual_seed(3))
    rule = Bucketing(FedAvg())
    mixing = _mixing(rule, received)
    told = rule.handed_on(received, torch.ones(3, 1), mixing)
    assert told.sizes is not None
    close(told.sizes, (mixing > 0).double() @ torch.tensor([1.0, 2.0, 4.0, 1e30, 0.0]).double())
    assert told.client_ids is None


def test_bucketing_says_how_many_rows_are_left() -> None:
    with pytest.raises(InputError, match=re.escape("9 clients in buckets of 2 are 5 rows: Krum cannot tolerate 3 of 5")):
        step(Bucketing(Krum(3)), torch.ones(9, 2))
    with pytest.raises(InputError, match="needs randomness"):
        Bucketing(Median())(torch.ones(3, 1))


# ---------------------------------------------------------------- by size


@pytest.mark.parametrize("most", [1.0, 1.25, 2.0, 50.0])
@pytest.mark.parametrize("seed", range(5))
def test_weights_are_filled_up_to_the_bound(seed: int, most: float) -> None:
    sizes = np.random.default_rng(seed).lognormal(sigma=2, size=9)
    weights = client_weights(torch.from_numpy(sizes), torch.ones(9, dtype=torch.bool), most)
    close(weights, weights_by_bisection(sizes, most), 1e-6)
    close(weights.mean(), torch.tensor(1.0))


@pytest.mark.parametrize("lie", [1e30, math.inf, math.nan, -5.0, 0.0])
def test_a_size_that_lies_is_bounded(lie: float) -> None:
    sizes = torch.tensor([lie, 10.0, 20.0, 30.0, 40.0])
    shares = BySize(FedAvg(), most=2.0)(torch.ones(5, 2), sizes=sizes).shares
    assert shares is not None
    assert 0 < float(shares[0]) <= 2.0 / 5 + 0.05
    close(shares.sum(), torch.tensor(1.0), 1e-6)
    if not lie > 1:
        assert float(shares[0]) < 0.06  # one copy


def test_nobody_has_a_size() -> None:
    updates = draw(dtype=torch.float64)[0]
    for sizes in (None, torch.zeros(11), torch.full((11,), math.nan), torch.ones(11)):
        close(BySize(FedAvg())(updates, sizes=sizes).update, updates.mean(0))


def test_by_size_is_the_weighted_mean_and_the_weighted_median() -> None:
    updates = draw(n=6, dtype=torch.float64)[0]
    sizes = torch.tensor([1, 2, 3, 4, 6, 8])  # weights in quarters: 1, 2, 3, 4, 6, 8
    rows = np.repeat(updates.numpy(), sizes.numpy(), axis=0)
    close(BySize(FedAvg(), most=2.0)(updates, sizes=sizes).update, FedAvg()(updates, sizes=sizes).update)
    close(shares_in(BySize(FedAvg(), most=2.0)(updates, sizes=sizes)), sizes.double() / 24)
    close(BySize(Median(), most=2.0)(updates, sizes=sizes).update, np.median(rows, axis=0))
    trimmed = np.sort(rows, axis=0)[8:-8].mean(0)  # one client may have 4 * 2 copies
    close(BySize(TrimmedMean(1), most=2.0)(updates, sizes=sizes).update, trimmed)


def test_by_size_comes_near_the_weighted_mean_for_any_sizes() -> None:
    updates, _, sizes = draw(n=40, dtype=torch.float64)
    exact, near = FedAvg()(updates, sizes=sizes), BySize(FedAvg(), most=10.0)(updates, sizes=sizes)
    assert exact.shares is not None
    assert near.shares is not None
    assert float((exact.shares - near.shares).abs().max()) <= 1 / GRAIN / 40


def test_f_clients_at_the_bound_are_tolerated() -> None:
    updates, sizes = torch.ones(10, 3), torch.full((10,), 10.0)
    updates[:2], sizes[:2] = 1e6, 1e9  # two liars with the largest claims
    for rule in (TrimmedMean(2), Krum(2), Median(), NNM(TrimmedMean(2), 2)):
        close(BySize(rule, most=2.0)(updates, sizes=sizes).update, torch.ones(3), 1e-6)
    assert BySize(NNM(Krum(2), 1), most=1.5).within == NNM(Krum(12), 6)


def test_by_size_says_which_bound_would_work() -> None:
    with pytest.raises(InputError, match=r"with most = 3: 24 of them may be malicious, .*; most = 2 works"):
        BySize(TrimmedMean(2), most=3.0)(torch.ones(10, 2))
    with pytest.raises(InputError, match=r"no smaller bound works"):
        BySize(Krum(9))(torch.ones(10, 2))


# ---------------------------------------------------------------- what every wrapper does


WRAPPERS: list[Any] = [
    lambda rule: NNM(rule, 2),
    lambda rule: Bucketing(rule, 3),
    lambda rule: ARC(rule, 2),
    lambda rule: NormClipping(rule),
    lambda rule: NormClipping(rule, bound=4.0),
    lambda rule: BySize(rule, most=3.0),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_gram_rule_needs_no_rows(wrap: Any, dtype: torch.dtype) -> None:
    updates, _, sizes = draw(dtype=dtype)
    updates[3, 0], updates[5] = math.nan, 0
    for scale in (1.0, 1e30, 1e-30):
        scaled = updates * scale
        fast, slow = (step(wrap(rule), scaled, sizes=sizes) for rule in (Nearness(), Rowwise()))
        tolerance = 1e-5 if dtype == torch.float32 else 1e-11
        close(fast.update / scale, slow.update / scale, tolerance)
        close(fast.shares, slow.shares, tolerance)
        assert not fast.shares[[3, 5]].any()


def test_one_huge_row_does_not_blind_a_gram_rule() -> None:
    updates = torch.ones(8, 2, dtype=torch.float64)
    updates[0] = 1e308
    shares = NNM(Nearness(), 2)(updates).shares
    assert shares is not None
    assert float(shares[1:].sum()) > 0.8


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_wrappers_are_values(wrap: Any) -> None:
    rule = wrap(FLTrust())
    again = pickle.loads(pickle.dumps(rule))
    assert again == rule == replace(rule)
    assert hash(again) == hash(rule)
    assert again.needs_root
    assert again.needs_generator == rule.needs_generator
    other = replace(rule, rule=Median())
    assert not other.needs_root
    assert other.by_coordinate
    assert other != rule


def test_a_wrapper_needs_what_its_rule_needs() -> None:
    assert not NormClipping(FLTrust()).needs_generator
    assert NormClipping(noise=1.0).needs_generator
    assert NormClipping(Bucketing(Median())).needs_generator
    assert NNM(FoolsGold(), 1).needs_ids
    assert NNM(CentredClipping(), 1).has_memory
    assert not NNM(Median(), 1).has_memory
    assert NormClipping(FLTrust()).scores_trust
    assert not NNM(FLTrust(), 1).scores_trust  # a row is several clients'


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Bucketing(FoolsGold()), "of several clients"),
        (lambda: BySize(FoolsGold()), "clients that collude"),
        (lambda: Bucketing(Median(), 0), "at least 1"),
        (lambda: NNM(Median(), -1), "cannot tolerate -1"),
        (lambda: ARC(Median(), -1), "cannot tolerate -1"),
        (lambda: NormClipping(bound=0.0), "positive bound"),
        (lambda: NormClipping(bound=math.nan), "positive bound"),
        (lambda: NormClipping(noise=-1.0), "noise"),
        (lambda: BySize(Median(), 0.5), "1 to 1000"),
        (lambda: NNM("median", 1), "needs a rule within"),  # type: ignore[arg-type]
        (lambda: NNM(Median(), 3)(torch.ones(3, 1)), "cannot tolerate 3 of 3"),
        (lambda: ARC(Median(), 3)(torch.ones(3, 1)), "cannot tolerate 3 of 3"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        make()


def test_more_to_tolerate_than_there_are_usable_rows() -> None:
    updates = torch.full((5, 2), math.nan)
    updates[:2] = 3.0
    for rule in (NNM(FedAvg(), 2), ARC(FedAvg(), 2)):
        assert not rule(updates).update.any()


# ---------------------------------------------------------------- names, files, commands

NESTED = [
    "nnm+median",
    "arc+nnm+trim-mean",
    "norm-clipping",
    "norm-clipping+fltrust",
    {"name": "norm-clipping", "bound": 2.0, "noise": 0.01},
    {"name": "bucketing+krum", "size": 3},
    {"name": "by-size", "most": 1.5, "rule": {"name": "trim-mean", "trim": 1}},
    {"name": "nnm", "tolerate": 3, "rule": {"name": "norm-clipping", "rule": "fedavg"}},
]


@pytest.mark.parametrize("choice", NESTED, ids=str)
def test_a_nested_rule_is_stored_read_and_repeated(choice: Any) -> None:
    run = Experiment.on("mnist-0.5", choice, "trim", rounds=7)
    assert from_declaration(run.to_dict()) == run
    assert from_declaration(run.to_dict()).key == run.key
    command = run_command(run)
    assert "exists in Python only" not in command
    if command.startswith("# experiment.toml"):
        import tomllib

        assert from_dict(tomllib.loads(command.split("\nfltrust run")[0])) == run
    else:
        assert Experiment.on("mnist-0.5", re.findall(r"--rule (\S+)", command)[0], "trim", rounds=7) == run


def test_names_and_labels() -> None:
    assert RULES.name_of(ARC(NNM(TrimmedMean(1), 1), 1)) == "arc+nnm+trim-mean"
    assert RULES.label_of(NNM(Median(), 1)) == "NNM + Median"
    assert RULES.name_of(NormClipping()) == "norm-clipping"
    assert RULES.name_of(NormClipping(FedAvg())) == "norm-clipping+fedavg"


def test_counts_of_clients_are_scaled() -> None:
    assert BySize(MultiKrum(1, keep=3), most=2.0).within == MultiKrum(8, keep=12)
    assert BySize(MultiKrum(1), most=1.0).within == MultiKrum(4)
    assert BySize(RLR(threshold=4)).within == RLR(threshold=16)
    assert BySize(ZenoPlusPlus(threshold=0.5)).within == ZenoPlusPlus(threshold=0.5)  # no count


def test_parameters_of_the_rule_within_are_set() -> None:
    written = assigned({"rule": "nnm+trim-mean"}, ["rule.tolerate=4", "rule.rule.trim=3"])
    assert Experiment.on("mnist-0.5", **written).rule == NNM(TrimmedMean(3), 4)
    with pytest.raises(InputError, match=re.escape("'nnm' needs a rule within it: write nnm+NAME")):
        Experiment.on("mnist-0.5", "nnm")


def test_an_absent_plug_in_within_a_wrapper() -> None:
    written = Experiment.on("mnist-0.5", "nnm+median").to_dict()
    written["rule"]["rule"] = {"name": "somebodys", "x": 1}
    run = from_declaration(written)
    assert isinstance(run.rule, Absent)
    assert run.to_dict()["rule"] == written["rule"]


@pytest.mark.parametrize("rule", [Krum(2), MultiKrum(2), CAF(2), GeometricMedian()], ids=repr)
def test_two_long_rows_that_cancel_in_a_bucket_do_not_look_near(rule: Rule) -> None:
    """Their mean is short but wrong; inner products of rows so long say nothing of it, so the rule must see the means themselves."""
    updates = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    wild = torch.randn(4, generator=torch.Generator().manual_seed(1))
    updates[:2, :4] = 1e27
    updates[0, 4:], updates[1, 4:] = 1e37 * wild, -1e37 * wild
    together = 0
    for seed in range(200):
        received = Received(updates, generator=torch.Generator().manual_seed(seed))
        mixing = Bucketing(rule).mixing(Measured(received))
        together += int((mixing[:, 0] * mixing[:, 1]).any())
        received = Received(updates, generator=torch.Generator().manual_seed(seed))
        assert Bucketing(rule).step(received, ())[0].update.norm() < 5
    assert together  # it did happen


@pytest.mark.parametrize("rule", [Krum(3), MultiKrum(3), DnC(3), NNM(Krum(3), 3), NNM(Median(), 3)], ids=repr)
def test_by_size_refuses_a_malicious_majority_of_rows(rule: Rule) -> None:
    updates, sizes = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), torch.full((10,), 100.0)
    updates[:3], sizes[:3] = 1e6, 1e30
    with pytest.raises(InputError, match=r"24 of them may be malicious, which leaves the others no majority; most = 1\.25 works"):
        BySize(rule)(updates, sizes=sizes)
    assert BySize(rule, most=1.25)(updates, sizes=sizes).update.norm() < 5
