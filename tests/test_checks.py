"""The twelve checks: what is declared, how agreement is counted, and the odd versions of rules and attacks."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fltrust.attacks import Knowledge, TrimAttack
from fltrust.checks import odd
from fltrust.checks.check import Cell, Judged, Metric, Table, Theirs, Verdict, accuracy, judge, published, tally
from fltrust.checks.pages import filled, written
from fltrust.checks.tables import TABLES, corrections, r1, r1_long_tail, r2, r3, r4_cifar_10, tables
from fltrust.cli.many import How
from fltrust.cli.reproduce import reproduce
from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_declaration
from fltrust.models import AlexNet, BladesCNN, BucketingCNN, Model, ResNet10, ResNet20Projection
from fltrust.paper import EXHIBITS
from fltrust.registry import ATTACKS, MODELS, RULES
from fltrust.report.agreement import judge as paper_judge
from fltrust.report.checks import checks_section
from fltrust.report.embed import Embedded
from fltrust.report.page import reproduction_page
from fltrust.report.reading import Found
from fltrust.rules import Median
from fltrust.store.results import Result, Results
from fltrust.tasks.splits_sorted import LongTail, MaliciousIID

# ---------------------------------------------------------------- what is declared


def test_every_published_number_has_its_cell() -> None:
    for name, table in published().items():
        cells = {(cell.row, cell.column): cell.theirs for made in (name, "corrections") for cell in tables([made])[0].cells}
        for row, columns in table["numbers"].items():
            for column, number in columns.items():
                assert cells[row, column] == Theirs(*number), (name, row, column)


def test_all_twelve_are_there_and_the_plain_mean_stands_beside_each() -> None:
    rows: dict[int, set[tuple[str, str]]] = {}
    for table in tables():
        assert max(Counter((cell.row, cell.column) for cell in table.cells).values()) == 1
        for cell in table.cells:
            rows.setdefault(cell.number, set()).add((table.name, cell.row))
    assert set(rows) == set(range(13))  # 0: the corrections
    means = {(table.name, cell.row) for table in tables() for cell in table.cells if cell.column == "mean"}
    published_rows = {(table.name, cell.row) for table in tables() for cell in table.cells if cell.kind == "as published"}
    assert published_rows <= means
    assert all(cell.run.rule == RULES["fedavg"](by_size=False) for table in tables() for cell in table.cells if cell.column == "mean")


@pytest.mark.parametrize("name", TABLES)
def test_experiments_survive_being_stored(name: str) -> None:
    for cell in tables([name])[0].cells:
        assert (cell.run.seed, cell.run.precision) == (0, "float32")
        again = from_declaration(json.loads(json.dumps(cell.run.to_dict())))
        assert (again, again.key) == (cell.run, cell.run.key)
        assert cell.run.model in MODELS


def _run(table: Table, row: str, column: str) -> Experiment:
    return next(cell.run for cell in table.cells if (cell.row, cell.column) == (row, column))


def test_settings_are_the_authors() -> None:
    dead = _run(r1(), "ALIE, beta 0.9", "CC")
    assert (dead.client_momentum, dead.momentum_kind, dead.rule) == (0.9, "plain", RULES["centred-clipping"](tau=100.0, steps=3))
    assert (dead.num_clients, dead.malicious, dead.rounds, dead.global_lr) == (25, 5, 600, 0.01)
    assert _run(r1(), "label flip", "Krum, s = 2").rule == RULES["bucketing"](odd.KrumFourthPower(5), size=2)
    assert _run(r1_long_tail(), "no attack", "CM").malicious == 0
    first, later = (_run(r2(), "ALIE, beta 0", "CC").lr_at(t) for t in (5850, 5851))
    assert first == 0.1
    assert later == pytest.approx(0.01)
    assert _run(r3(), "LIE as released", "Trim-mean").attack == odd.LIENeverRun()
    assert _run(r3(), "LIE by the table", "Trim-mean").attack == ATTACKS["alie"](z="table")
    assert _run(r3(), "LIE by the formula", "Trim-mean").attack == ATTACKS["alie"]()
    assert [cell.run.malicious for cell in r4_cifar_10().cells] == [6, 12, 18, 6, 12, 18, 12]
    assert {cell.run.key for cell in r3().cells} < {cell.run.key for cell in corrections().cells}


def test_networks_have_the_authors_sizes() -> None:
    sizes = {ResNet20Projection: 272_474, ResNet10: 4_903_242, BucketingCNN: 1_199_882, BladesCNN: 1_475_146, AlexNet: 2_472_266}
    for network, size in sizes.items():
        shape = (1, 28, 28) if network in (BucketingCNN, BladesCNN) else (3, 32, 32)
        assert Model(network(shape, 10)).d == size
    with pytest.raises(InputError, match="at least 32 x 32"):
        AlexNet((3, 28, 28), 10)


def test_networks_normalise_their_pixels() -> None:
    pixel = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
    network = ResNet20Projection((3, 32, 32), 10)
    seen: list[Tensor] = []
    network.conv.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    network(pixel.expand(2, 3, 32, 32) + 0.2023 * torch.tensor([1.0, 0, 0]).view(1, 3, 1, 1))
    torch.testing.assert_close(seen[0].mean((0, 2, 3)), torch.tensor([1.0, 0.0, 0.0]), atol=1e-5, rtol=0)


# ---------------------------------------------------------------- splits


def test_malicious_clients_hold_all_classes_and_honest_ones_few() -> None:
    labels = np.repeat(np.arange(10), 100)
    clients = MaliciousIID()(labels, None, 25, 10, np.random.default_rng(0), malicious=5)
    assert [len(own) for own in clients] == [40] * 25
    assert sorted(np.concatenate(clients).tolist()) == list(range(1000))
    assert all(len(np.unique(labels[own])) >= 8 for own in clients[:5])
    assert all(len(np.unique(labels[own])) <= 2 for own in clients[5:])
    in_order = np.concatenate([np.sort(labels[own]) for own in clients[5:]])
    assert (np.diff(in_order) >= 0).all()  # sorted by label, then cut


def test_malicious_iid_needs_honest_clients_to_split_the_rest() -> None:
    labels = np.repeat([0, 1], 50)
    everyone = MaliciousIID()(labels, None, 4, 2, np.random.default_rng(0), malicious=4)
    assert [len(own) for own in everyone] == [25] * 4
    nobody = MaliciousIID()(labels, None, 4, 2, np.random.default_rng(0))
    assert [np.unique(labels[own]).tolist() for own in nobody] == [[0], [0], [1], [1]]
    tail = MaliciousIID(then=LongTail(0.1))(labels, None, 4, 2, np.random.default_rng(0), malicious=1)
    assert len(tail[0]) == 25
    assert sum(map(len, tail)) < 80


# ---------------------------------------------------------------- metrics and agreement


def result_of(run: Experiment, errors: list[float], **changes: Any) -> Result:
    about = {"files": {}, "warnings": [], "versions": {}, "hardware": "none"}
    rounds = tuple(range(1, len(errors) + 1))
    made = Result(run, about, 1.0, rounds, tuple(errors), tuple(errors), None)
    return dataclasses.replace(made, **changes)


def test_metrics_come_from_the_curve() -> None:
    made = result_of(Experiment.on(), [0.9, 0.2, 0.5, 0.5, 0.5, 0.6, 0.9])
    expected: dict[Metric, float] = {"last five": 40.0, "best": 80.0, "final": 10.0}
    assert {metric: round(accuracy(made, metric), 9) for metric in expected} == expected


def test_the_long_tail_counts_class_i_half_as_much_as_the_one_before() -> None:
    all_right, only_first = [0.0] * 10, [0.0] + [1.0] * 9
    made = result_of(Experiment.on(), [0.0] * 6, metrics={"class_error": (only_first, *[all_right] * 4, only_first)})
    first = 100 * 980 / (980 + 567 + 258 + 126 + 61 + 27 + 14 + 8 + 3 + 1)  # of MNIST's test set
    assert accuracy(made, "last five, long tail") == pytest.approx((4 * 100 + first) / 5)


def judged(ours: list[float], theirs: Theirs | None, *, limit: float = 3.0, dead: bool = False) -> Judged:
    run = Experiment.on()
    cell = Cell(1, "attack", "rule", run, theirs)
    table = Table("made-up", "Made up", "nowhere", "final", limit, dead, (cell,))
    results = [result_of(dataclasses.replace(run, seed=seed), [1 - one / 100]) for seed, one in enumerate(ours)]
    return judge(table, Results(results))[0]


@pytest.mark.parametrize(
    ("ours", "theirs", "changes", "verdict"),
    [
        ([], Theirs(50.0, None), {}, "not run"),
        ([50.0], None, {}, "no number"),
        ([53.0], Theirs(50.0, None), {}, "agrees"),
        ([53.1], Theirs(50.0, None), {}, "differs"),
        ([56.0], Theirs(50.0, 3.0), {}, "agrees"),  # twice their spread
        ([56.1], Theirs(50.0, 3.0), {}, "differs"),
        ([50.0, 60.0], Theirs(65.0, 0.1), {}, "agrees"),  # twice our spread: 14.1
        ([56.0], Theirs(50.0, None), {"limit": 6.0, "dead": True}, "agrees"),
        ([15.0], Theirs(10.0, None), {"limit": 6.0, "dead": True}, "agrees"),
        ([15.5], Theirs(10.0, None), {"limit": 6.0, "dead": True}, "differs"),  # within 6 points, but alive
        ([11.0], Theirs(20.0, None), {"limit": 6.0, "dead": True}, "differs"),
        ([1.0], Theirs(10.0, None), {}, "differs"),  # worse than chance is not dead
    ],
)
def test_verdicts(ours: list[float], theirs: Theirs | None, changes: dict[str, Any], verdict: Verdict) -> None:
    one = judged(ours, theirs, **changes)
    assert one.verdict == verdict
    assert one.explanation == ("unexplained" if verdict == "differs" else "")


def test_counts() -> None:
    cells = [judged([50.0], Theirs(50.0, None)), judged([80.0], Theirs(50.0, None)), judged([50.0], None), judged([], Theirs(1.0, None))]
    assert tally(cells) == (4, 3, 2, 1)


# ---------------------------------------------------------------- pages


def some_results() -> Results:
    found = Results()
    for cell in corrections().cells:
        harm = {"Min-Max": 0.6, "Trim attack, corrected": 0.8, "LIE by the formula": 0.2}.get(cell.row, 0.4)
        found.add(result_of(cell.run, [0.9, harm, 0.9]))
    return found


def test_a_page_is_filled_from_results_and_filled_again_is_the_same() -> None:
    page = "Before.\n<!-- checks: r3 -->\nold\n<!-- end -->\nBetween.\n<!-- rankings: corrections -->\n<!-- end -->\nAfter.\n"
    once = filled(page, some_results())
    assert "old" not in once
    assert once.startswith("Before.\n<!-- checks: r3 -->\n")
    assert once.endswith("<!-- end -->\nAfter.\n")
    assert "| 9 | Min-Max | Trim-mean | 37.1 | 40.0 | 10.0 | 40.0 | 1 | agrees |  |" in once
    assert "| 10 | LIE as released | Trim-mean | 64.4 | 60.0 | 10.0 | 60.0 | 1 | agrees |  |" in once
    assert "Trim attack, corrected 20.0, Min-Max 40.0, LIE by the formula 80.0" in once
    assert "Min-Max 37.1, Trim attack as released 50.7, LIE as released 64.4" in once
    assert filled(once, some_results()) == once
    with pytest.raises(InputError, match="asks for the check 'r9'"):
        filled("<!-- checks: r9 -->\n<!-- end -->", Results())


def test_what_was_not_run_is_said() -> None:
    assert written(judge(r2(), Results())).count("not run") == 6


def test_the_pages_of_the_documentation_have_a_block_for_every_table() -> None:
    docs = Path(__file__).parents[1] / "docs"
    text = "".join((docs / name).read_text(encoding="utf-8") for name in ("checks.md", "corrections.md"))
    assert all(text.count(f"<!-- checks: {name} -->") == 1 for name in TABLES)
    assert "<!-- rankings: corrections -->" in text


# ---------------------------------------------------------------- odd versions


def test_odd_versions_have_names_but_stand_in_no_list() -> None:
    for registry, names in ((RULES, ("krum-4th-power", "median-upper")), (ATTACKS, ("trim-inert", "min-max-blades"))):
        for name in names:
            assert name in registry
            assert name not in list(registry)
            assert registry.name_of(registry[name](1) if name.startswith("krum") else registry[name]()) == name


def test_the_fourth_power_can_choose_another_row_than_krum() -> None:
    rows = torch.tensor([[11.0], [18.0], [14.0], [17.0], [10.0], [22.0]])  # 3 neighbours with f = 1
    assert RULES["krum"](1)(rows).update.item() == 18.0  # 1 + 16 + 16 = 33; the row 14 has 9 + 9 + 16 = 34
    assert odd.KrumFourthPower(1)(rows).update.item() == 14.0  # 81 + 81 + 256 = 418; the row 18 has 1 + 256 + 256 = 513


def test_rfa_from_zero_is_pulled_towards_zero() -> None:
    rows = torch.tensor([[1.0], [4.0], [7.0]])
    z = 0.0
    for _ in range(3):
        weights = [1 / max(abs(z - x), 0.1) for x in (1.0, 4.0, 7.0)]
        z = sum(w * x for w, x in zip(weights, (1.0, 4.0, 7.0), strict=True)) / sum(weights)
    assert odd.RFAFromZero(steps=3)(rows).update.item() == pytest.approx(z, abs=1e-5)
    assert z < 3.5  # the median is 4


def test_the_upper_median() -> None:
    rows = torch.tensor([[1.0, -4.0], [2.0, -1.0], [10.0, 0.0], [3.0, 5.0]])
    assert odd.UpperMedian()(rows).update.tolist() == [3.0, 0.0]
    assert odd.UpperMedian()(rows[:3]).update.tolist() == Median()(rows[:3]).update.tolist()
    rows[3] = torch.nan
    assert odd.UpperMedian()(rows).update.tolist() == [2.0, -1.0]


def test_sign_guard_with_2_means_keeps_the_larger_cluster_cut_to_the_median_norm() -> None:
    rows = torch.cat((torch.ones(5, 8) * torch.arange(1.0, 6)[:, None], -torch.ones(2, 8)))
    aggregate = odd.SignGuardTwoMeans()(rows)
    assert aggregate.shares is not None
    norms = rows.norm(dim=1)
    expected = torch.where(rows[:, 0] > 0, norms.clamp(max=norms.median()) / norms, 0) / 5
    torch.testing.assert_close(aggregate.shares, expected)
    assert not odd.SignGuardTwoMeans()(torch.zeros(4, 8)).update.any()


def known(rows: Tensor, m: int) -> Knowledge:
    generator = torch.Generator().manual_seed(0)
    return Knowledge(rows[:m], rows[m:], None, n=len(rows), tolerate=m, num_clients=len(rows), generator=generator)


def test_the_released_trim_attack_hardly_moves_a_trimmed_mean_and_the_right_one_does() -> None:
    chance = torch.Generator().manual_seed(1)
    rows = 0.3 * torch.randn(1, 2000, generator=chance) + torch.randn(50, 2000, generator=chance)
    direction = rows[10:].mean(0)

    def cosine(crafted: Tensor) -> float:
        update = RULES["trim-mean"](10)(torch.cat((crafted, rows[10:]))).update
        return torch.cosine_similarity(update, direction, dim=0).item()

    assert cosine(odd.InertTrim().craft(known(rows, 10))) > 0.8
    assert cosine(TrimAttack(honest_only=True).craft(known(rows, 10))) < 0.3


def test_where_lie_never_runs_the_rule_gets_the_honest_rows_alone() -> None:
    rows = torch.randn(50, 30, generator=torch.Generator().manual_seed(4))
    sent = torch.cat((odd.LIENeverRun().craft(known(rows, 10)), rows[10:]))
    for name in ("trim-mean", "median-upper"):
        rule = RULES[name](10) if name == "trim-mean" else RULES[name]()
        torch.testing.assert_close(rule(sent).update, rule(rows[10:]).update)


def test_min_max_on_gradients_goes_the_other_way() -> None:
    rows = torch.randn(8, 30, generator=torch.Generator().manual_seed(2))
    ours, theirs = (ATTACKS[name]().craft(known(rows, 2))[0] - rows[2:].mean(0) for name in ("min-max", "min-max-on-gradients"))
    assert (ours < 0).all()
    assert (theirs > 0).all()


def test_min_max_of_blades_turns_half_of_the_deviation_round() -> None:
    rows = torch.randn(12, 40, generator=torch.Generator().manual_seed(3))
    crafted = odd.MinMaxBlades().craft(known(rows, 2))
    shift = (crafted[0] - rows[2:].mean(0)) / rows[2:].std(0)
    gamma = shift[0]
    torch.testing.assert_close(shift, torch.cat((gamma.expand(20), -gamma.expand(20))))
    reach = torch.cdist(rows[2:], rows[2:]).max()
    assert torch.cdist(crafted[:1], rows[2:]).max() == pytest.approx(reach.item(), rel=0.02)
    assert torch.equal(crafted[0], crafted[1])


# ---------------------------------------------------------------- in the report and on the command line


def test_the_report_has_a_section_of_checks_and_lists_their_runs_nowhere_else() -> None:
    found = some_results()
    page = reproduction_page({exhibit: paper_judge(exhibit, found) for exhibit in EXHIBITS.values()}, Found(found))
    assert 'id="checks"' in page
    assert "Other authors' numbers" in page
    assert "Other runs" not in page
    assert checks_section(Embedded(), Results()) is None


def test_reproduce_plans_the_checks(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    how = How("cpu", None, 1, None, str(tmp_path), [], tmp_path, True)
    reproduce(["r2", "r3"], only_datasets=[], only_attacks=[], only_rules=[], seeds=2, how=how)
    said = capsys.readouterr().out
    assert "30 runs, 0 done, 30 to do" in said  # 6 and 9 experiments
    with pytest.raises(InputError, match="unknown check 'methods'"):
        reproduce(["r2", "methods"], only_datasets=[], only_attacks=[], only_rules=[], seeds=1, how=how)
