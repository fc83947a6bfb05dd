"""The declarations of the paper's tables and figures."""

import dataclasses
from collections import Counter

import pytest

from fltrust.experiment import FIELDS, Experiment
from fltrust.paper import EXHIBITS, PUBLISHED, Cell, Exhibit
from fltrust.paper.plan import plan


def cell(exhibit: str, page: str, row: str, column: str) -> Cell:
    found = [cell for cell in EXHIBITS[exhibit].cells if (cell.page, cell.row, cell.column) == (page, row, column)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=list(EXHIBITS))
def test_no_two_cells_have_one_place_and_all_begin_with_seed_0(exhibit: Exhibit) -> None:
    places = Counter((cell.page, cell.row, cell.column) for cell in exhibit.cells)
    assert max(places.values()) == 1
    assert {(cell.run.seed, cell.run.precision) for cell in exhibit.cells} == {(0, "float32")}


def test_every_printed_number_has_its_cell() -> None:
    printed = {
        "methods": sum(len(rules) for attacks in PUBLISHED["methods"].values() for rules in attacks.values()),
        "variants": sum(figures is not None for attacks in PUBLISHED["variants"].values() for figures in attacks.values()),
        "root-bias": sum(len(shares) for attacks in PUBLISHED["root_bias"].values() for shares in attacks.values()),
    }
    assert printed == {"methods": 180, "variants": 31, "root-bias": 216}
    assert printed == {name: sum(cell.paper is not None for cell in EXHIBITS[name].cells) for name in printed}


def test_cells_hold_the_papers_experiments() -> None:
    trim = cell("methods", "MNIST-0.5", "Trim attack", "Krum")
    assert (trim.paper, trim.run) == ((0.10, None), Experiment.on("mnist-0.5", "krum", "trim", evaluate_every=80))
    scaling = cell("methods", "HAR", "Scaling attack", "FedAvg")
    assert scaling.paper == (0.04, 0.81)
    biased = cell("root-bias", "MNIST-0.1", "No attack", "0.8")
    assert (biased.run.root_bias, biased.paper) == (0.8, (0.05, None))
    assert cell("root-bias", "HAR", "No attack", "0.17").run.root_bias is None  # an even root set is the paper's case I
    assert cell("clients", "Trim attack", "400", "Median").run.malicious == 80
    assert cell("malicious", "Krum attack", "95", "FLTrust").run.malicious == 95
    assert cell("malicious", "Krum attack", "0", "Krum").run == Experiment.on(
        "mnist-0.5", {"name": "krum", "tolerate": 0}, "none", evaluate_every=80
    )
    assert cell("adaptive", "HAR", "60", "Exact adaptive").run.malicious == 18
    assert cell("choices", "HAR", "features: as they are in the files", "FedAvg, no attack").run.standardise is False
    assert cell("cifar-10-rates", "CIFAR-10", "the paper's: 2e-4, sum", "FedAvg").run == Experiment.on(
        "cifar-10", "fedavg", "none", evaluate_every=60
    )


def test_cifar_10_is_run_with_the_last_rate_of_the_search() -> None:
    for rule in ("FedAvg", "FLTrust"):
        last = [one for one in EXHIBITS["cifar-10-rates"].cells if one.column == rule][-1]
        assert last.row.endswith("(the tables')")
        assert cell("methods", "CIFAR-10", "No attack", rule).run == last.run
    attack = cell("methods", "CIFAR-10", "Scaling attack", "FedAvg").run.attack
    assert attack.trigger is not None
    assert attack.trigger.value > 1.5  # white, in deviations from the mean


def test_cifar_10s_study_changes_one_thing_at_a_time() -> None:
    cells = EXHIBITS["cifar-10-study"].cells
    tables = {one.column: one.run for one in cells if one.row == "as the tables above"}
    assert set(tables.values()) <= {one.run for one in EXHIBITS["methods"].cells}
    changed: dict[str, set[frozenset[str]]] = {}
    for one in cells:
        assert one.paper is not None
        fields = [name for name in FIELDS if getattr(one.run, name) != getattr(tables[one.column], name)]
        changed.setdefault(one.row, set()).add(frozenset(fields))
    assert all(len(of_all_columns) == 1 for of_all_columns in changed.values())
    counts = [len(fields) for (fields,) in changed.values()]
    assert counts == [0, 1, 1, 1, 1, 1, 1, 6, 8]
    assert {one.run for one in EXHIBITS["cifar-10-rates"].cells[:2]} <= {one.run for one in cells}  # the paper's settings


def test_the_exact_adaptive_attack_has_its_row_everywhere() -> None:
    for name in ("methods", "root-bias", "adaptive"):
        pages = {cell.page for cell in EXHIBITS[name].cells}
        assert len(pages) == 6
        assert {cell.page for cell in EXHIBITS[name].cells if "Exact adaptive" in (cell.row, cell.column)} == pages


def test_shared_runs_are_planned_once_and_the_first_seed_comes_first() -> None:
    runs = plan([EXHIBITS["methods"], EXHIBITS["variants"], EXHIBITS["convergence"]], seeds=2, only_datasets=["mnist-0.5"])
    assert len(runs) == len({run.key for run in runs}) == 2 * (35 + 29)
    assert [run.seed for run in runs] == [0] * 64 + [1] * 64
    only = plan(EXHIBITS.values(), seeds=1, only_rules=["krum"], only_attacks=["trim"], only_datasets=["har"], precision="float16")
    assert only == [dataclasses.replace(cell("methods", "HAR", "Trim attack", "Krum").run, precision="float16")]


def test_every_data_set_of_the_paper_is_there() -> None:
    paper = {"mnist-0.1", "mnist-0.5", "fashion-mnist", "cifar-10", "har", "ch-mnist"}
    assert {cell.run.dataset for cell in EXHIBITS["methods"].cells} == paper
