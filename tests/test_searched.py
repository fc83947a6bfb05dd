"""The searched attack: its closed forms against the rules themselves, and what it may know."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from conftest import FOUR_FEATURES, small_task
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fltrust.attacks import Attack, Knowledge, Searched
from fltrust.attacks.attack import Altered, Level, Server, take_step
from fltrust.attacks.searched.basis import Basis, basis_of, candidates_in, row_lengths
from fltrust.attacks.searched.damage import ByCoordinate, ByRows, Closed, damage_of, takes_coordinates_apart
from fltrust.attacks.searched.finals import _closed
from fltrust.attacks.searched.refine import _inverse, _slope, refined
from fltrust.attacks.searched.response import has_closed_form
from fltrust.attacks.searched.rivals import rivals_rows, rivals_with
from fltrust.attacks.searched.scene import Aim, AimName, Scene, aim_of, scene_of
from fltrust.attacks.searched.view import as_seen
from fltrust.codec import built
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.registry import ATTACKS, DATASETS, RULES
from fltrust.rules import (
    ARC,
    CAF,
    FLAME,
    NNM,
    RLR,
    Aggregate,
    Anchor,
    Bucketing,
    Bulyan,
    BySize,
    CentredClipping,
    DnC,
    FedAvg,
    FLTrust,
    FLTrustNoNorm,
    FLTrustNoReLU,
    FLTrustParNorm,
    FLTrustTwoLevel,
    FLTrustWithServer,
    FoolsGold,
    GeometricMedian,
    Krum,
    MeaMed,
    Median,
    MultiKrum,
    NormClipping,
    Phocas,
    Received,
    Rule,
    TrimmedMean,
    Zeno,
)
from fltrust.rules.anchor import Voices
from fltrust.rules.preaggregation import Measured
from fltrust.simulation import simulate
from fltrust.state import Memory
from fltrust.tasks.task import Task
from fltrust.testing import CLIENTS, draw
from fltrust.triggers import Trigger

N, M, D = 13, 3, 60
CLOSED: list[Rule] = [
    FedAvg(),
    FedAvg(by_size=False),
    Krum(M),
    MultiKrum(M),
    MultiKrum(M, iterated=True),
    GeometricMedian(),
    DnC(M),
    CAF(M),
    FLTrust(),
    FLTrustWithServer(),
    FLTrustNoReLU(),
    FLTrustNoNorm(),
    FLTrustParNorm(),
    FLTrustTwoLevel(),
    CentredClipping(),
    CentredClipping(tau=3.0, steps=3),
    NNM(GeometricMedian(), M),
    NNM(Krum(M), M),
    NNM(CentredClipping(), M),
    NNM(FLTrust(), M),
    ARC(NNM(MultiKrum(M), M), M),
    NormClipping(),
    NormClipping(GeometricMedian(), bound=5.0),
]
BY_ROWS: list[Rule] = [
    Median(),
    TrimmedMean(M),
    NNM(Median(), M),
    FoolsGold(),
    Bucketing(GeometricMedian()),
    DnC(M, rounds=2, coordinates=20),
    BySize(GeometricMedian()),
    Zeno(M),
    FLAME(),
]
APART: list[Rule] = [Median(), TrimmedMean(M), MeaMed(M), Phocas(M), RLR(), RLR(threshold=5, by_size=False)]
AIMS: tuple[AimName, ...] = ("sign", "mean", "cosine", "unseen", "loss", "class", "backdoor")
TRIGGER = Trigger(((0,), (2,)), 3.0, 1)


def seen(rule: Rule, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Knowledge:
    """A round of a rule under full knowledge."""
    updates, root_update, sizes = draw(N, D, dtype, seed)
    weights = draw(1, D, dtype, 100 + seed)[1]
    memory = rule.init(CLIENTS, weights)
    memory = weights / 10 if isinstance(memory, Tensor) and memory.shape == weights.shape else memory

    def loss(models: Tensor) -> Tensor:
        return (models - weights - root_update).square().sum(1)

    def own_loss(models: Tensor, *altered: Altered) -> Tensor:
        """Of the models themselves or, on altered examples, of linear models that should answer the label."""
        if not altered:
            return loss(models)
        inputs, labels, which = altered[0](updates.roll(1, 1), torch.arange(N) % 3)
        return ((models @ inputs.T - labels).square() * which).sum(1) / which.sum()

    known = Knowledge(
        updates[:M],
        updates[M:],
        root_update,
        n=N,
        tolerate=M,
        num_clients=CLIENTS,
        generator=torch.Generator().manual_seed(seed),
        client_ids=torch.arange(N),
        round=torch.tensor(1),
        weights=weights,
        global_lr=torch.tensor(0.1),
        server=Server(rule, memory, sizes, loss),
        own_loss=own_loss,
    )
    return replace(known, **changes)


def started(attack: Attack) -> Any:
    return attack.init(CLIENTS, torch.zeros(D, dtype=torch.float64))


def searched_on(known: Knowledge, aim: AimName = "mean") -> tuple[Scene, Any, Basis]:
    scene = scene_of(known, "full", False, 2)
    rivals = rivals_with("full")
    rows, possible, _ = rivals_rows(rivals, known, tuple(rival.init(CLIENTS, known.own[0]) for rival in rivals))
    result = scene.undisturbed()
    wanted = aim_of(aim, scene, result)
    return scene, wanted, basis_of(scene, wanted, result, torch.zeros_like(result), rows.mean(1), possible)


def small_run(rule: str, attack: Attack, rounds: int) -> Experiment:
    return Experiment(
        dataset="small",
        model="own",
        num_clients=6,
        clients_per_round=5,
        malicious=2,
        rounds=rounds,
        batch_size=4,
        root_size=12,
        global_lr=0.05,
        loss="sum",
        evaluate_every=1,
        rule=built(RULES, rule, {"tolerate": 2}),
        attack=attack,
    )


# ---------------------------------------------------------------- aims


def test_what_the_root_update_does_not_see_is_across_it_and_the_server_is_kept_content() -> None:
    scene, wanted, _ = searched_on(seen(FLTrust()), "unseen")
    assert scene.root_update is not None
    root = scene.root_update / scene.root_update.norm()
    across = wanted.target + root
    mean = scene.honest.mean(0)
    torch.testing.assert_close(across, (mean - (mean @ root) * root) / (mean - (mean @ root) * root).norm())
    assert abs(float(across @ root)) < 1e-12
    assert wanted.damage(scene.known, root) > 0 > wanted.damage(scene.known, across)


def test_without_a_root_update_there_is_nothing_to_hide_from() -> None:
    scene = scene_of(seen(Krum(M), root_update=None), "full", False, 2)
    result = scene.undisturbed()
    assert torch.equal(aim_of("unseen", scene, result).target, aim_of("mean", scene, result).target)


# ---------------------------------------------------------------- closed forms


@pytest.mark.slow
@pytest.mark.parametrize("aim", ["sign", "cosine"])
@pytest.mark.parametrize("rule", CLOSED, ids=repr)
def test_candidates_side_by_side_are_what_the_rule_makes_of_each(rule: Rule, aim: AimName) -> None:
    scene, wanted, basis = searched_on(seen(rule), aim)
    damage = damage_of(scene, wanted, basis, 0, 4096)
    assert isinstance(damage, Closed)
    candidates = candidates_in(basis, N, M)
    candidates = candidates[torch.randperm(len(candidates), generator=torch.Generator().manual_seed(1))[:80]]
    candidates[40:] += 0.01 * torch.randn(candidates[40:].shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (updates,), values = damage.updates(candidates), damage(candidates)
    for candidate, update, value in zip(candidates, updates, values, strict=True):
        rows = candidate @ basis.rows
        (expected,) = scene.outcomes(rows)
        torch.testing.assert_close(update @ basis.rows, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))
        torch.testing.assert_close(value, wanted.mean_damage(scene, rows, 0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", CLOSED, ids=repr)
def test_rows_of_other_attacks_side_by_side_are_what_the_rule_makes_of_each(rule: Rule) -> None:
    known = seen(rule, client_ids=torch.arange(N))
    known.own[1, 3] = torch.nan  # what a rival sends may be broken
    scene, wanted, basis = searched_on(known)
    rivals = rivals_with("full")
    rows, _, _ = rivals_rows(rivals, known, tuple(rival.init(CLIENTS, known.own[0]) for rival in rivals))
    rows = 0.99 * rows  # Min-Max lies exactly on NNM's threshold, where rounding decides
    for rival, value, sent in zip(rivals, _closed(scene, wanted, basis, rows, 0), rows, strict=True):
        expected = wanted.mean_damage(scene, sent, 0)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6, msg=f"{rival}: {{}}".format)


@pytest.mark.parametrize("rule", [*CLOSED, Anchor(momentum=0.0), Anchor(momentum=0.0, directions=1)], ids=repr)
def test_if_all_rows_are_zeros_side_by_side_is_what_the_rule_makes_of_them(rule: Rule) -> None:
    known = seen(rule)
    scene, wanted, basis = searched_on(replace(known, own=known.updates, others=known.own[:0]), "sign")
    zeros = torch.zeros(1, N, D, dtype=torch.float64)
    expected = wanted.mean_damage(scene, zeros[0], 0)[None]
    torch.testing.assert_close(damage_of(scene, wanted, basis, 0, 4096)(zeros.new_zeros(1, N, len(basis.rows))), expected)
    torch.testing.assert_close(_closed(scene, wanted, basis, zeros, 0), expected)


@pytest.mark.parametrize("within", [DnC(1), CAF(1), GeometricMedian(), NormClipping(GeometricMedian(), bound=5.0), FedAvg(False)], ids=repr)
def test_a_mixed_row_that_cancels_counts_side_by_side_where_the_rule_counts_it(within: Rule) -> None:
    """Three rows cancel, without rounding. A rule that sees only products counts their mean as a row, one that sees rows does not."""
    honest = torch.zeros(4, D, dtype=torch.float64)
    honest[:, :3] = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 4.0]])
    sent = -(honest[0] + honest[1])[None]
    rule = NNM(within, 2)
    known = seen(rule, own=sent, others=honest, n=5, tolerate=1, client_ids=torch.arange(5), server=Server(rule, ()))
    scene, aim, basis = searched_on(known)
    expected = aim.mean_damage(scene, sent, 0)[None]
    torch.testing.assert_close(damage_of(scene, aim, basis, 0, 4096)(basis.eye[:1][None]), expected)
    torch.testing.assert_close(_closed(scene, aim, basis, sent[None], 0), expected)


def test_trust_that_sums_to_zero_moves_nothing() -> None:
    """Without ReLU the opposite of the one honest row takes all that this one gives."""
    known = seen(FLTrustNoReLU())
    scene, aim, basis = searched_on(
        replace(
            known,
            own=known.own[:1],
            others=known.honest[:1],
            n=2,
            tolerate=1,
            client_ids=torch.arange(2),
            server=Server(FLTrustNoReLU(), ()),
        )
    )
    opposite = torch.zeros(1, 1, len(basis.rows), dtype=torch.float64)
    opposite[0, 0, 1] = -1
    assert aim.mean_damage(scene, opposite[0] @ basis.rows, 0) == 0
    assert damage_of(scene, aim, basis, 0, 4096)(opposite) == 0


def test_which_rules_have_a_closed_form() -> None:
    assert all(has_closed_form(rule) for rule in CLOSED)
    assert not any(has_closed_form(rule) for rule in BY_ROWS)


def test_looking_ahead_hands_the_rules_memory_on() -> None:
    scene, aim, basis = searched_on(seen(CentredClipping()))
    ahead = damage_of(scene, aim, basis, 3, 4096)
    assert isinstance(ahead, Closed)
    candidate = candidates_in(basis, N, M)[100]
    results = scene.outcomes(candidate @ basis.rows, ahead=3)
    assert len(results) == 4
    assert not torch.equal(results[0], results[3])
    for update, expected in zip(ahead.updates(candidate[None]), results, strict=True):
        torch.testing.assert_close(update[0] @ basis.rows, expected)
    torch.testing.assert_close(ahead(candidate[None])[0], aim.mean_damage(scene, candidate @ basis.rows, 3))


def test_a_rule_by_coordinates_is_tried_on_some_of_them() -> None:
    scene, aim, basis = searched_on(seen(Median()))
    some = damage_of(scene, aim, basis, 0, coordinates=20)
    assert isinstance(some, ByCoordinate)
    assert some.basis.rows.shape == (len(basis.rows), 20)
    candidates = candidates_in(basis, N, M)[::50]
    everywhere = damage_of(scene, aim, basis, 0, coordinates=D)(candidates)
    for candidate, value in zip(candidates, everywhere, strict=True):
        torch.testing.assert_close(value, aim.mean_damage(scene, candidate @ basis.rows, 0))


@pytest.mark.parametrize("aim", ["sign", "cosine"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", APART, ids=repr)
def test_candidates_beside_each_other_are_what_the_rule_makes_of_each(
    rule: Rule, dtype: torch.dtype, aim: AimName, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, wanted, basis = searched_on(seen(rule, dtype=dtype), aim)
    candidates = candidates_in(basis, N, M)[::5]
    candidates += 0.01 * torch.randn(candidates.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)  # nothing ties
    candidates[3:20:4] = 0  # rows of zeros are not usable: the rule leaves them out
    candidates[4:20:4, 1] = 0
    candidates[5:20:4, 2] = torch.nan
    beside, plain = ByCoordinate(scene, wanted, basis), ByRows(scene, wanted, basis, 0)
    close = 1e-4 if dtype == torch.float32 else 1e-9  # only rounding may differ
    for at_once in (1, 5 * N * D, 1 << 30):
        monkeypatch.setattr("fltrust.attacks.searched.damage._ROWS_AT_ONCE", (at_once, 0))
        torch.testing.assert_close(beside(candidates), plain(candidates), rtol=close, atol=close)
        torch.testing.assert_close(_slope(beside, candidates), _slope(plain, candidates), rtol=1e-6, atol=1e-9)
    ahead = [wanted.mean_damage(scene, (candidate @ basis.rows.double()).to(dtype), 2) for candidate in candidates[:6]]
    torch.testing.assert_close(beside(candidates[:6]), torch.stack(ahead), rtol=close, atol=close)


def test_which_rules_take_coordinates_apart() -> None:
    assert all(takes_coordinates_apart(rule) for rule in APART)
    assert not any(takes_coordinates_apart(rule) for rule in (*CLOSED, *BY_ROWS[2:], Bulyan(1), OtherMedian()))


def test_lengths_are_those_of_the_rows() -> None:
    _, _, basis = searched_on(seen(FLTrust()))
    candidates = candidates_in(basis, N, M)
    lengths = (candidates @ basis.rows).norm(dim=-1) / basis.scale
    torch.testing.assert_close(row_lengths(candidates, basis), lengths, rtol=1e-6, atol=1e-6)
    assert len(candidates) > 400


# ---------------------------------------------------------------- refinement


@pytest.mark.parametrize("rule", [FedAvg(), GeometricMedian(), FLTrust(), CentredClipping(), NNM(GeometricMedian(), M)], ids=repr)
def test_the_slope_is_that_of_finite_differences(rule: Rule) -> None:
    scene, aim, basis = searched_on(seen(rule))
    damage = damage_of(scene, aim, basis, 0, 4096)
    draws = torch.Generator().manual_seed(3)
    here = 0.2 * torch.randn(1, M, len(basis.rows), generator=draws, dtype=torch.float64)
    way = torch.randn(here.shape, generator=draws, dtype=torch.float64)
    step = 1e-5
    expected = (damage(here + step * way) - damage(here - step * way))[0] / (2 * step)
    assert abs(expected) > 1e-3
    torch.testing.assert_close((_slope(damage, here) * way).sum(), expected, rtol=1e-3, atol=1e-4)


def test_the_metric_is_the_inverse_of_the_products() -> None:
    _, _, basis = searched_on(seen(FLTrust()))
    ridge = 1e-4 * basis.products.diagonal().mean() * torch.eye(len(basis.products), dtype=torch.float64)
    torch.testing.assert_close(_inverse(basis.products), torch.linalg.inv(basis.products + ridge), rtol=1e-6, atol=1e-6)


def test_rules_that_are_run_have_a_slope_too() -> None:
    scene, aim, basis = searched_on(seen(TrimmedMean(M)))
    damage = ByRows(scene, aim, basis, 0)
    here = candidates_in(basis, N, M)[:1]
    assert _slope(damage, here).any()
    assert not _slope(ByRows(*searched_on(seen(FoolsGold())), 0), here).any()  # it has a memory: random steps only


class InNumPy(Rule):
    """A mean that autograd cannot follow."""

    def aggregate(self, received: Received) -> Aggregate:
        return Aggregate(torch.from_numpy(received.updates.numpy().mean(0)), None)


@dataclass(frozen=True)
class TheOpposite(FLTrust):
    """What a user may write: it shares a name and nothing else with FLTrust."""

    def aggregate(self, received: Received) -> Aggregate:
        update, shares = super().aggregate(received)
        return Aggregate(-update, shares)


class OtherMedian(Median):
    def aggregate(self, received: Received) -> Aggregate:
        return Aggregate(received.updates[received.updates.abs().sum(1).argmin()], None)


@dataclass(frozen=True)
class OppositeAnchor(Anchor):
    def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
        aggregate, memory = super().step(received, memory)
        return aggregate._replace(update=-aggregate.update), memory


@dataclass(frozen=True)
class AnchorOnOpposites(Anchor):
    def means(self, received: Received, memory: Voices) -> tuple[Tensor, Voices]:
        means, memory = super().means(received, memory)
        return -means, memory


@dataclass(frozen=True)
class MixedOpposites(NNM):
    def mixed(self, sent: Measured, mixing: Tensor) -> Tensor:
        return -super().mixed(sent, mixing)


@dataclass(frozen=True)
class HandedOnOpposites(NNM):
    def handed_on(self, received: Received, rows: Tensor, mixing: Tensor) -> Received:
        return super().handed_on(received, -rows, mixing)


@dataclass(frozen=True)
class AlwaysFLTrust(NormClipping):
    @property
    def within(self) -> Rule:
        return FLTrust()


@pytest.mark.parametrize(
    "rule",
    [
        TheOpposite(),
        OppositeAnchor(),
        OppositeAnchor(momentum=0.0),
        AnchorOnOpposites(),
        MixedOpposites(FedAvg(), M),
        HandedOnOpposites(FedAvg(), M),
        AlwaysFLTrust(),
    ],
    ids=repr,
)
def test_a_subclass_that_aggregates_in_another_way_is_run_itself(rule: Rule) -> None:
    assert not has_closed_form(rule)
    assert as_seen(rule, 0) is rule
    attack = Searched(tries=10, steps=0)
    known = seen(rule)
    rows, _ = attack.step(known, started(attack))
    scene, aim, _ = searched_on(known)
    assert aim.mean_damage(scene, rows, 0) > aim.mean_damage(scene, known.own, 0)


def test_a_rule_that_autograd_cannot_follow_is_searched_at_random() -> None:
    scene, aim, basis = searched_on(seen(InNumPy()))
    damage = ByRows(scene, aim, basis, 0)
    here = candidates_in(basis, N, M)[:1]
    assert not _slope(damage, here).any()
    best = refined(damage, here, torch.zeros(0, len(basis.rows)).double(), basis, 4, 4, torch.Generator().manual_seed(0))
    assert damage(best[None])[0] > damage(here)[0]


@pytest.mark.parametrize("rule", [FLTrust(), NNM(GeometricMedian(), M), Krum(M), TrimmedMean(M)], ids=repr)
def test_refinement_never_loses_and_mostly_gains(rule: Rule) -> None:
    gains = []
    for seed in range(4):
        scene, aim, basis = searched_on(seen(rule, seed))
        damage = damage_of(scene, aim, basis, 0, 4096)
        start = candidates_in(basis, N, M)[3:4]
        best = refined(damage, start, torch.zeros(0, len(basis.rows)).double(), basis, 4, 4, torch.Generator().manual_seed(seed))
        gains.append(float(damage(best[None])[0] - damage(start)[0]))
    assert min(gains) >= 0
    assert sum(gain > 1e-3 for gain in gains) >= 3


# ---------------------------------------------------------------- never weaker


@pytest.mark.slow
@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("rule", [*CLOSED[2:8], *CLOSED[8:9], CentredClipping(), NNM(GeometricMedian(), M), *BY_ROWS], ids=repr)
def test_never_weaker_than_any_attack_of_the_package(rule: Rule, aim: AimName) -> None:
    """By the damage that the rule itself shows, in each of two rounds; with the same noise for all."""
    attack = Searched(aim, tries=10, steps=1, draws=1, trigger=TRIGGER)
    rivals = rivals_with("full")
    memory, theirs = attack.init(CLIENTS, torch.zeros(D)), tuple(rival.init(CLIENTS, torch.zeros(D)) for rival in rivals)
    for t in range(2):
        known = seen(rule, t, torch.float32)
        rows, memory = take_step(attack, known, memory)
        known.generator.manual_seed(t)
        scene = scene_of(known, "full", False, 1)
        sent, possible, theirs = rivals_rows(rivals, known, theirs)
        assert all(possible)
        wanted = aim_of(aim, scene, scene.undisturbed(), attack._altered())
        mine = wanted.mean_damage(scene, rows, 0)
        for rival, other in zip(rivals, sent, strict=True):
            assert mine >= wanted.mean_damage(scene, other, 0), rival


@pytest.mark.parametrize("rule", [FedAvg(by_size=False), Median()], ids=repr)
def test_a_row_that_the_closed_form_takes_for_zeros_is_sent_as_zeros(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, aim, basis = searched_on(seen(rule))
    best = basis.eye[:M].clone()
    best[0] *= 1e-10  # to a rule that has no closed form this is a row like others
    monkeypatch.setattr("fltrust.attacks.searched.search.refined", lambda *_: best)
    attack = Searched(tries=10)
    finalists, _ = attack._searched(scene, aim, basis, started(attack).last)
    assert torch.equal(finalists[-1, 1:], best[1:])
    assert finalists[-1, 0].any() == (not has_closed_form(rule))


def test_every_attack_that_crafts_without_poisoning_is_a_rival() -> None:
    told = {"trigger": DATASETS["mnist-0.5"].trigger}
    every: list[Attack] = [built(ATTACKS, name, told) for name in ATTACKS if ATTACKS[name].__module__.startswith("fltrust.attacks.")]
    expected = {type(attack) for attack in every if not attack.poisons and not attack.relabels and not isinstance(attack, Searched)}
    assert {type(rival) for rival in rivals_with("full")} == expected
    assert {type(rival) for rival in rivals_with("partial")} == {kind for kind in expected if kind not in NEED_FULL}
    assert all(rival.knowledge == "partial" for rival in rivals_with("partial"))


@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_a_rule_without_a_root_faces_the_adaptive_attacks_too(knowledge: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the simulator, the server computes a root update for the search as it does for them; nobody does under partial knowledge."""
    possible = []

    def watched(*asked: Any) -> Any:
        sent, here, memories = rivals_rows(*asked)
        possible.append([type(rival) for rival, there in zip(asked[0], here, strict=True) if there])
        return sent, here, memories

    monkeypatch.setattr("fltrust.attacks.searched.search.rivals_rows", watched)
    attack = Searched(knowledge=knowledge, tries=5, steps=1)
    (record,) = simulate(small_run("krum", attack, rounds=1), small_task(malicious=2, attack=attack))
    assert (record.root_norm is not None) == (knowledge == "full")
    assert possible == [[type(rival) for rival in rivals_with(knowledge)]]


NEED_FULL = {ATTACKS["adaptive"], ATTACKS["optimal-adaptive"], ATTACKS["mimic"]}


@pytest.mark.parametrize("rule", [FLTrust(), Krum(M), DnC(M), NNM(GeometricMedian(), M)], ids=repr)
def test_a_search_finds_more_than_all_the_others(rule: Rule) -> None:
    """What the search is for: strictly more damage than the best single attack."""
    for seed in range(3):
        known = seen(rule, seed)
        attack = Searched("mean")
        rows, _ = attack.step(known, started(attack))
        scene, aim, _ = searched_on(seen(rule, seed))
        rivals = rivals_with("full")
        sent, _, _ = rivals_rows(rivals, seen(rule, seed), tuple(rival.init(CLIENTS, known.own[0]) for rival in rivals))
        best = max(float(aim.mean_damage(scene, other, 0)) for other in sent)
        assert float(aim.mean_damage(scene, rows, 0)) > best + 0.01 * abs(best)


# ---------------------------------------------------------------- on a GPU


@pytest.mark.parametrize("aim", ["sign", "mean"])
@pytest.mark.parametrize("rule", CLOSED, ids=repr)
def test_no_value_decides_a_search_on_a_closed_form(rule: Rule, aim: AimName, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it never waits for the device, and the round can be a CUDA graph. The adaptive attack's loop is a kernel there."""
    monkeypatch.setattr("fltrust.attacks.adaptive.ascend", lambda start, noise, terms: torch.cat((start, start[:, :1]), 1))
    attack = Searched(aim, steps=2)
    assert not attack.on_host_under(rule)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        known, memory = seen(rule), started(attack)
        faked: dict[str, Any] = {
            name: fake.from_tensor(getattr(known, name)) for name in ("own", "others", "root_update", "client_ids", "weights")
        }
        rows, _ = take_step(attack, replace(known, **faked), memory)
    assert rows.shape == (M, D)


def test_a_search_that_must_run_the_rule_stays_out_of_a_graph() -> None:
    assert all(Searched().on_host_under(rule) for rule in BY_ROWS)


# ---------------------------------------------------------------- what it may know


@pytest.mark.parametrize("guess_root", [True, False])
@pytest.mark.parametrize("rule", [FLTrust(), NNM(GeometricMedian(), M), Median(), CentredClipping(), FoolsGold(), Zeno(M)], ids=repr)
def test_partial_knowledge_reads_nothing_of_the_honest_clients_or_the_server(rule: Rule, guess_root: bool) -> None:
    def spoilt(tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, torch.nan)

    def refuse(models: Tensor) -> Tensor:
        raise AssertionError("it asked for the root set's loss")

    blind = seen(rule, others=None, root_update=None, server=Server(rule))
    whole = seen(rule)
    assert whole.others is not None
    assert whole.root_update is not None
    memory = rule.init(CLIENTS, whole.own[0])
    server = Server(rule, spoilt(memory) if isinstance(memory, Tensor) else memory, spoilt(torch.ones(N)), refuse)
    baited = replace(whole, others=spoilt(whole.others), root_update=spoilt(whole.root_update), server=server)
    attack = Searched(knowledge="partial", guess_root=guess_root, tries=10, steps=2)
    rows, expected = (attack.step(known, started(attack))[0] for known in (baited, blind))
    assert torch.isfinite(rows).all()
    assert torch.equal(rows, expected)


def test_partial_knowledge_without_a_guess_searches_on_a_clipped_mean() -> None:
    known = seen(FLTrust())
    assert scene_of(known, "partial", False, 1).rule == NormClipping()
    guessed = scene_of(known, "partial", True, 1)
    assert guessed.rule == FLTrust()
    assert guessed.root_update is not None
    torch.testing.assert_close(guessed.root_update, known.own.mean(0))


def test_supposed_clients_have_the_mean_and_spread_of_the_own() -> None:
    known = replace(seen(FLTrust()), n=M + 4000)
    supposed = scene_of(known, "partial", True, 1).honest
    torch.testing.assert_close(supposed.mean(0), known.own.mean(0), rtol=0, atol=0.2)
    torch.testing.assert_close(supposed.std(0), known.own.std(0), rtol=0, atol=0.2)


def test_a_rule_with_chance_is_tried_with_draws_of_the_attackers_own() -> None:
    """The same draws for every candidate, others in the next round."""
    rule = Bucketing(GeometricMedian())
    one, other = scene_of(seen(rule, 0), "full", False, 3), scene_of(seen(rule, 1), "full", False, 3)
    assert len(one.seeds) == 3
    assert set(one.seeds).isdisjoint(other.seeds)
    again = [scene_of(seen(rule, 0), "full", False, 3).outcomes(one.updates[:M]) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*again, strict=True))


def test_a_search_without_a_rule_is_refused() -> None:
    attack = Searched()
    with pytest.raises(InputError, match="was not shown it"):
        attack.step(seen(FedAvg(), server=None), started(attack))
    with pytest.raises(InputError, match="aim 'loss' needs the malicious clients' examples"):
        Searched("loss").step(seen(FedAvg(), own_loss=None), started(attack))


@pytest.mark.parametrize(
    "wrong",
    [
        {"aim": "pain"},
        {"candidates": 0},
        {"tries": 0},
        {"steps": -1},
        {"behave": -1},
        {"knowledge": "none"},
        {"aim": "backdoor"},
        {"source": -1},
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Searched(**wrong)


# ---------------------------------------------------------------- one class, a backdoor


def test_the_target_of_a_loss_is_the_direction_in_which_the_damage_falls() -> None:
    for attack in (Searched("class", source=2), Searched("backdoor", trigger=TRIGGER)):
        scene = scene_of(seen(FedAvg()), "full", False, 1)
        aim = aim_of(attack.aim, scene, scene.undisturbed(), attack._altered())
        up, here, down = (aim.loss(scene.known, scene.known.model + step * aim.target) for step in (-1e-4, 0, 1e-4))
        assert up > here > down


def test_a_broken_model_is_the_worst_for_a_loss_and_no_backdoor_at_all() -> None:
    def broken(models: torch.Tensor, *altered: Altered) -> torch.Tensor:
        return torch.full((len(models),), torch.nan)

    known = seen(FedAvg(), own_loss=broken)
    damage = {name: float(Aim(name, known.model).damage(known, known.model)) for name in ("loss", "class", "backdoor")}
    assert damage == {"loss": torch.inf, "class": torch.inf, "backdoor": -torch.inf}


def test_a_trigger_counts_only_where_the_aim_is_a_backdoor() -> None:
    assert Searched("mean", trigger=TRIGGER) == Searched("mean")
    assert Searched("backdoor", trigger=TRIGGER).trigger == TRIGGER
    made = Experiment.on("mnist-5k", "fltrust", {"name": "searched", "aim": "backdoor"})
    assert made.attack.trigger == DATASETS["mnist-5k"].trigger
    assert Experiment.on("mnist-5k", "fltrust", "searched").attack == Searched()


def test_a_searched_backdoor_is_learnt_and_one_class_forgotten() -> None:
    def end(attack: Searched, task: Task | None = None) -> Record:
        *_, last = simulate(small_run("fedavg", attack, rounds=12), task or small_task(malicious=2, attack=attack))
        return last

    before, after = (end(Searched("backdoor", trigger=FOUR_FEATURES, steps=2, behave=behave)) for behave in (12, 0))
    assert before.metrics["success"] < 0.5
    assert after.metrics["success"] > 0.9
    forgetful = end(Searched("class", source=2, steps=2))
    assert forgetful.metrics["test_error"] > before.metrics["test_error"] + 0.1
    nobodys = Searched("class", source=7, steps=2)
    assert end(nobodys, small_task(malicious=2)).norm == before.norm  # nobody has examples of this class: nothing to aim at
    with pytest.raises(InputError, match="about class 7, and these data have 3 classes"):
        small_task(malicious=2, attack=nobodys)  # a rule that holds under this would look safe


# ---------------------------------------------------------------- over rounds


def test_behave_then_turn() -> None:
    attack = Searched(behave=2, tries=10, steps=1)
    memory = started(attack)
    for t in range(4):
        known = seen(FLTrust(), t)
        rows, memory = attack.step(known, memory)
        assert torch.equal(rows, known.own) == (t < 2)


def test_last_rounds_rows_are_a_start_for_the_clients_that_sent_them() -> None:
    attack = Searched(steps=1)
    memory = started(attack)
    _, memory = attack.step(seen(FLTrust(), client_ids=torch.arange(1, N + 1)), memory)
    assert memory.last[1 : M + 1].any()
    assert not memory.last[0].any()
    assert not memory.last[M + 1 :].any()
    assert not memory.last[:, [0, *range(N + 1, CLIENTS)]].any()  # who took no part is in no row


def test_the_same_again_and_another_chance() -> None:
    attack = Searched(steps=2)
    first, second, other = (attack.step(seen(FLTrust(), generator=torch.Generator().manual_seed(s)), started(attack))[0] for s in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["fltrust", "krum", "median", "nnm+geometric-median", "centred-clipping", "foolsgold", "zeno", "flame"])
@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_a_run(rule: str, knowledge: Level) -> None:
    """In the simulator: the rule's own memory reaches the attack, and what it sends is finite."""
    attack = Searched("loss", knowledge, tries=5, steps=1)
    records = list(simulate(small_run(rule, attack, rounds=3), small_task(malicious=2, attack=attack)))
    assert len(records) == 3
    assert all(torch.isfinite(torch.tensor(record.norm)).all() for record in records)
