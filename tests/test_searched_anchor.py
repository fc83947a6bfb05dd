"""The searched attack on a rule with running means: it searches on what the rule will see."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from fltrust import Anchor, Fallback, Knowledge, Searched
from fltrust.attacks.attack import Server, take_step
from fltrust.attacks.searched.basis import basis_of, candidates_in
from fltrust.attacks.searched.damage import Closed, damage_of
from fltrust.attacks.searched.finals import _closed
from fltrust.attacks.searched.rivals import rivals_rows, rivals_with
from fltrust.attacks.searched.scene import AimName, Scene, aim_of, scene_of
from fltrust.attacks.searched.view import viewed
from fltrust.rules import Received, Rule
from fltrust.rules import take_step as aggregate
from fltrust.testing import CLIENTS, draw

N, M, D = 13, 4, 60
RULES = [
    Anchor(),
    Anchor(0.5, 3.0),
    Anchor(momentum=0.0),
    Anchor(voice=0.0),
    Anchor(limit=0.5),
    Anchor(directions=1),
    Anchor(limit=1e6, directions=3),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=repr)


def seen(rule: Anchor, seed: int = 0, dtype: torch.dtype = torch.float64, n: int = N, m: int = M) -> Knowledge:
    """What an attacker sees in the fourth round; a client has sent zeros once and one has missed a round."""
    memory = rule.init(CLIENTS, torch.zeros(D, dtype=dtype))
    for t in range(3):
        updates, root_update, _ = draw(n, D, dtype, 10 * seed + t)
        updates[t] = 0
        ids = torch.arange(n) + (torch.arange(n) >= 5 + t)
        memory = aggregate(rule, Received(updates, root_update, client_ids=ids), memory)[1]
    updates, root_update, sizes = draw(n, D, dtype, 10 * seed + 3)
    return Knowledge(
        updates[:m],
        updates[m:],
        root_update,
        n=n,
        tolerate=m,
        num_clients=CLIENTS,
        generator=torch.Generator().manual_seed(seed),
        client_ids=torch.arange(n),
        round=torch.tensor(4),
        weights=torch.zeros(D, dtype=dtype),
        global_lr=torch.tensor(0.1),
        server=Server(rule, memory, sizes),
    )


def seen_by_rule(scene: Scene, rows: torch.Tensor) -> torch.Tensor:
    """What the rule sees of malicious rows (m, d), by asking it."""
    assert isinstance(scene.rule, Anchor)
    if not scene.rule.has_memory:
        return rows
    return scene.rule.means(scene.received(torch.cat((rows, scene.updates[M:])), 0, None), scene.memory)[0][:M]


@every_rule
def test_what_the_rule_sees_and_what_must_be_sent(rule: Anchor) -> None:
    scene = scene_of(seen(rule), "full", False, 1)
    view, mean_seen, sent_for = viewed(scene, ahead=0)
    assert not view.rule.has_memory

    def seen_of(rows: torch.Tensor) -> torch.Tensor:
        return seen_by_rule(scene, rows)

    rows = torch.randn(M, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(sent_for(seen_of(rows)), rows)
    torch.testing.assert_close(view.outcomes(seen_of(rows)), scene.outcomes(rows))
    several = torch.stack((rows, 1e3 * rows, torch.cat((rows[:2], 1e6 * rows[2:]))))  # the rule cuts most of these
    torch.testing.assert_close(mean_seen(several), torch.stack([seen_of(each).mean(0) for each in several]))
    for each in several:
        torch.testing.assert_close(view.outcomes(seen_of(each)), scene.outcomes(each))
    rows[1] = 0  # the rule leaves it out, and the search knows
    torch.testing.assert_close(mean_seen(rows[None])[0], seen_of(rows).mean(0))
    torch.testing.assert_close(view.outcomes(seen_of(rows)), scene.outcomes(rows))
    torch.testing.assert_close(scene.outcomes(sent_for(seen_of(rows))), scene.outcomes(rows))
    torch.testing.assert_close(view.undisturbed(), scene.undisturbed())


def test_a_look_ahead_is_over_the_rule_with_its_memory() -> None:
    scene = scene_of(seen(Anchor()), "full", False, 1)
    assert viewed(scene, ahead=2)[0] is scene


def basis_in(scene: Scene, known: Knowledge) -> Any:
    rivals = rivals_with("full")
    rows, possible, _ = rivals_rows(rivals, known, tuple(rival.init(CLIENTS, known.own[0]) for rival in rivals))
    view, mean_seen, _ = viewed(scene, ahead=0)
    result = scene.undisturbed()
    return view, basis_of(view, aim_of("mean", scene, result), result, torch.zeros_like(result), mean_seen(rows), possible)


@every_rule
def test_candidates_side_by_side_are_what_the_rule_makes_of_each(rule: Anchor) -> None:
    known = seen(rule)
    scene = scene_of(known, "full", False, 1)
    view, basis = basis_in(scene, known)
    aim = aim_of("mean", scene, scene.undisturbed())
    damage = damage_of(view, aim, basis, 0, 4096)
    assert isinstance(damage, Closed)
    candidates = candidates_in(basis, N, M)[::7]
    _, _, sent_for = viewed(scene, 0)
    reached = 0
    for candidate, value in zip(candidates, damage(candidates), strict=True):
        rows = candidate @ basis.rows
        if torch.allclose(seen_by_rule(scene, sent_for(rows)), rows):  # else the rule cuts what would have to be sent
            reached += 1
            torch.testing.assert_close(value, aim.mean_damage(scene, sent_for(rows), 0), rtol=1e-6, atol=1e-6)
    assert reached > len(candidates) / 2


@pytest.mark.parametrize("aim", ["mean", "cosine"])
@every_rule
def test_rows_of_other_attacks_side_by_side_are_what_the_rule_makes_of_each(rule: Anchor, aim: AimName) -> None:
    """With what the rule remembers, and however far it cuts them and honest rows."""
    known = seen(rule)
    scene = scene_of(known, "full", False, 1)
    _, basis = basis_in(scene, known)
    rivals = rivals_with("full")
    rows, _, _ = rivals_rows(rivals, known, tuple(rival.init(CLIENTS, known.own[0]) for rival in rivals))
    broken, silent = rows[0].clone(), rows[1].clone()
    broken[1, 3], silent[2] = torch.nan, 0
    rows = torch.cat((rows, 1e3 * rows[:3], 1e-3 * rows[:3], broken[None], silent[None], torch.zeros_like(rows[:1])))
    wanted = aim_of(aim, scene, scene.undisturbed())
    values = _closed(scene, wanted, basis, rows, 0)
    expected = torch.stack([wanted.mean_damage(scene, sent, 0) for sent in rows])
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)
    assert len(expected.unique()) > len(rows) / 2


@pytest.mark.parametrize(("rule", "n", "m"), [*((rule, N, M) for rule in RULES), (Anchor(0.2, limit=1e6), 6, 3)], ids=repr)
@pytest.mark.parametrize("aim", ["mean", "sign", "cosine"])
def test_never_weaker_than_any_attack_of_the_package(rule: Anchor, n: int, m: int, aim: AimName) -> None:
    """By the damage that the rule itself shows, memory and all. With half of the round, what malicious clients send moves the cut."""
    for seed in range(2):
        known = seen(rule, seed, torch.float32, n, m)
        attack, rivals = Searched(aim, steps=4), rivals_with("full")
        rows, _ = take_step(attack, known, attack.init(CLIENTS, known.own[0]))
        known.generator.manual_seed(seed)
        scene = scene_of(known, "full", False, 1)
        wanted = aim_of(aim, scene, scene.undisturbed())
        sent, _, _ = rivals_rows(rivals, known, tuple(rival.init(CLIENTS, known.own[0]) for rival in rivals))
        assert wanted.mean_damage(scene, rows, 0) >= max(wanted.mean_damage(scene, other, 0) for other in sent)


@pytest.mark.parametrize("rule", [Anchor(0.5), Fallback(Anchor(0.5), slack=1.0)], ids=repr)
def test_never_weaker_where_malicious_lengths_decide_how_far_honest_rows_are_cut(rule: Rule) -> None:
    """Two of five honest rows are so long that the rule cuts them, at a median that four malicious rows move."""
    n, m, d, rivals = 9, 4, 12, rivals_with("full")
    attack = Searched("cosine", steps=2)
    for seed in range(1, 12):
        draws = torch.Generator().manual_seed(seed)
        weights = torch.randn(d, generator=draws, dtype=torch.float64)
        root_update = torch.randn(d, generator=draws, dtype=torch.float64)
        updates = root_update + torch.randn(n, d, generator=draws, dtype=torch.float64)
        updates[-2:] *= torch.tensor([[20.0], [40.0]])
        goal = weights + 2 * root_update
        server = Server(rule, rule.init(n, weights), None, partial(loss_from, goal), partial(half_way_to, goal))
        known = Knowledge(
            updates[:m],
            updates[m:],
            root_update,
            n=n,
            tolerate=m,
            num_clients=n,
            generator=torch.Generator().manual_seed(1),
            client_ids=torch.arange(n),
            round=torch.tensor(1),
            weights=weights,
            global_lr=torch.tensor(0.5),
            server=server,
        )
        rows, _ = take_step(attack, known, attack.init(n, weights))
        known.generator.manual_seed(1)
        scene = scene_of(known, "full", False, 1)
        aim = aim_of("cosine", scene, scene.undisturbed())
        sent, _, _ = rivals_rows(rivals, known, tuple(rival.init(n, weights) for rival in rivals))
        assert aim.mean_damage(scene, rows, 0) >= max(aim.mean_damage(scene, other, 0) for other in sent)


def half_way_to(goal: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (goal - weights) / 2


def loss_from(goal: torch.Tensor, models: torch.Tensor) -> torch.Tensor:
    return (models - goal).square().sum(1) / 30


def test_partial_knowledge_supposes_a_first_round() -> None:
    known = replace(seen(Anchor()), others=None, root_update=None)
    attack = Searched(knowledge="partial", steps=1)
    rows, _ = take_step(attack, known, attack.init(CLIENTS, known.own[0]))
    assert torch.isfinite(rows).all()
    assert rows.shape == (M, D)
