"""The worst-case table: which runs it consists of and in which order, the worst of them, its formats, and the command as a user runs it."""

import csv
import dataclasses
import io
import itertools
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from made_up import made_up
from one_command import Program, assert_damage_is_named, assert_refused, program_of
from waiting import MOST_SECONDS

from fltrust.attacks import Searched
from fltrust.attacks.searched import aims_on
from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_declaration
from fltrust.league import COLUMNS, ROWS, Row
from fltrust.league.worst_case import _FIRST_RULES, ABLATIONS, DATA, OPENERS, SHARES, Cell, Question, asked, plan
from fltrust.paper import EXHIBITS
from fltrust.paper.exhibit import declared
from fltrust.registry import ATTACKS, RULES
from fltrust.report import build
from fltrust.report.agreement import judge
from fltrust.report.embed import Embedded
from fltrust.report.markup import text_of
from fltrust.report.page import reproduction_page
from fltrust.report.reading import Found
from fltrust.report.repeat import worst_case_command
from fltrust.report.worst_case import Place, WorstCases, attack_label, before_search, every_worst_case, needless, worst_cases
from fltrust.report.worst_case_page import worst_case_section
from fltrust.report.worst_case_text import FORMATS
from fltrust.rules import Fallback, FLTrust, Krum
from fltrust.store import results
from fltrust.store.results import Result, Results

# ---------------------------------------------------------------- what it consists of


def cell_of(question: Question, rule: str, share: int) -> Cell:
    return next(cell for cell in question.cells if (cell.row.name, cell.share) == (rule, share))


def test_every_rule_of_the_league_is_there_at_every_share_on_five_data_sets() -> None:
    questions = asked()
    assert [question.dataset for question in questions] == list(DATA)
    assert len(DATA) == 5
    for question in questions:
        rows = (*ROWS, *ABLATIONS.get(question.dataset, ()))
        assert [(cell.row, cell.share) for cell in question.cells] == list(itertools.product(rows, SHARES))
        for cell in question.cells:
            assert bool(cell.runs) != bool(cell.impossible)
            for run in cell.runs:
                assert cell.share == 0 or 100 * run.malicious == cell.share * run.num_clients
    assert set(_FIRST_RULES) <= {row.name for row in ROWS}


@pytest.mark.parametrize(("dataset", "row"), [(name, row) for name, rows in ABLATIONS.items() for row in rows], ids=str)
def test_another_form_of_a_rule_is_asked_for_by_its_name(dataset: str, row: Row) -> None:
    for name in (row.name, row.name.lower()):
        assert [question.rows for question in asked([dataset], [name])] == [(row,)]
    assert row.label == row.name
    assert row.name.startswith("Fallback + ") == isinstance(row.value, Fallback)  # as the league's "Fallback + Anchor"


def test_a_cell_searches_with_every_aim_and_the_rule_expects_what_there_is() -> None:
    (question,) = asked(["mnist-0.5"], ["krum"], [40])
    (cell,) = question.cells
    assert [run.attack for run in cell.runs] == [Searched("mean"), Searched("sign")]
    assert {run.rule for run in cell.runs} == {Krum(tolerate=40)}
    assert {(run.rounds, run.malicious) for run in cell.runs} == {(2000, 40)}
    (short,) = asked(["mnist-0.5"], ["krum"], [40], rounds=50)
    assert {run.rounds for run in short.cells[0].runs} == {50}


@pytest.mark.parametrize("rule", ["fltrust", "anchor", "zeno", "nnm+fltrust"])
def test_a_rule_that_listens_to_a_root_set_is_searched_for_what_the_root_set_does_not_see(rule: str) -> None:
    (cell,) = asked(["mnist-0.5"], [rule], [20])[0].cells
    assert [run.attack for run in cell.runs] == [Searched("mean"), Searched("sign"), Searched("unseen")]


def test_without_malicious_clients_the_leagues_run_counts() -> None:
    (cell,) = asked(["cifar-10"], ["median"], [0])[0].cells
    assert cell.runs == (declared("cifar-10", "median", "none"),)


def test_a_rule_that_cannot_run_at_a_share_says_why() -> None:
    (question,) = asked(["har"], ["trim-mean", "median"])
    assert cell_of(question, "trim-mean", 40).runs
    refused = cell_of(question, "trim-mean", 60)
    assert refused.runs == ()
    assert "cannot trim 18 from each side of 30" in refused.impossible
    assert cell_of(question, "median", 60).runs
    with pytest.raises(InputError, match="none of these rules can run"):
        plan(asked(["har"], ["trim-mean"], [60]), seeds=1)


def shares_of(runs: list[Experiment]) -> list[int]:
    percent = [0 if run.attack.idle else round(100 * run.malicious / run.num_clients) for run in runs]
    return [share for share, _ in itertools.groupby(percent)]


def test_a_part_of_the_plan_is_worth_having() -> None:
    runs = plan(asked(), seeds=2, precision="float16")
    assert len({run.key for run in runs}) == len(runs)
    assert {run.precision for run in runs} == {"float16"}
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    runs = [run for run in runs if run.seed == 0]
    early = [run for run in runs if run.dataset in ("mnist-0.5", "har")]
    assert early == runs[: len(early)]
    forms = [row.value for rows in ABLATIONS.values() for row in rows]
    named = [RULES.name_of(run.rule) in _FIRST_RULES or run.rule in forms for run in early]
    assert named == sorted(named, reverse=True)
    for which in (True, False):  # 20 % of all of these before 40 % of any
        assert shares_of([run for run, one in zip(early, named, strict=True) if one is which]) == [0, 20, 40, 10, 60]
    start = early[: len(_FIRST_RULES)]
    assert [RULES.name_of(run.rule) for run in start] == list(_FIRST_RULES)
    assert len({dataclasses.replace(run, rule=start[0].rule) for run in start}) == 1  # they share their data


def test_data_sets_and_rules_can_be_named_in_any_order_and_twice() -> None:
    assert {run.key for run in plan(asked(["har", "mnist-0.5"]), seeds=1)} == {
        run.key for run in plan(asked(["mnist-0.5", "har"]), seeds=1)
    }
    (question,) = asked(["har", "HAR"], ["anchor", "Anchor", "Krum"])
    assert [row.name for row in question.rows] == ["anchor", "krum"]


def test_a_rule_that_is_not_listed_comes_among_the_first() -> None:
    names = [RULES.name_of(run.rule) for run in plan(asked(["har"], ["krum", "fltrust", "nnm+dnc"], [20]), seeds=1)]
    assert names == ["fltrust", "nnm+dnc", "fltrust", "nnm+dnc", "fltrust", "krum", "krum"]


# ---------------------------------------------------------------- the worst of what was run

SMALL = Question("har", tuple(Row(name) for name in ("fedavg", "krum", "median", "trim-mean")))


def mean_and_sign(rule: str, share: int) -> tuple[Experiment, Experiment]:
    mean, sign = cell_of(SMALL, rule, share).runs
    return mean, sign


def clean(rule: str, error: float) -> Result:
    return made_up(cell_of(SMALL, rule, 0).runs[0], error=error)


def attacked(rule: str, name: str, error: float, malicious: int = 6, seed: int = 0) -> Result:
    column = next(column for column in COLUMNS if column.name == name)
    return made_up(declared("har", rule, column.attack, malicious=malicious), error=error, seed=seed)


def filled() -> Results:
    mean, sign = mean_and_sign("fedavg", 20)
    krum_mean, krum_sign = mean_and_sign("krum", 20)
    median_mean, _ = mean_and_sign("median", 20)
    return Results(
        [
            clean("fedavg", 0.03),
            clean("krum", 0.11),
            clean("median", 0.05),
            *(made_up(mean, error=error, seed=seed) for seed, error in enumerate((0.5, 0.7))),
            made_up(sign, error=0.62),
            attacked("fedavg", "trim", 0.55),
            attacked("fedavg", "trim", 0.99, malicious=3),  # another share
            made_up(krum_mean, error=0.2),
            made_up(krum_sign, error=0.25),
            attacked("krum", "ipm:100", 0.4),
            attacked("krum", "none", 0.9, malicious=12),  # nobody attacks
            made_up(dataclasses.replace(krum_sign, rule=Krum(tolerate=2)), error=0.95),  # expects another number
            made_up(dataclasses.replace(krum_sign, rounds=7), error=0.95),
            made_up(median_mean, error=0.06),  # the other aim is missing
            attacked("trim-mean", "trim", 0.04),  # no aim
            attacked("median", "trim", 0.055),
        ]
    )


def place(table: WorstCases, rule: str, share: int) -> Place:
    return next(one for one in table.places if (one.cell.row.name, one.cell.share) == (rule, share))


def test_the_worst_attack_counts_and_is_named() -> None:
    (table,) = worst_cases([SMALL], filled())
    fedavg, krum, median = (place(table, rule, 20) for rule in ("fedavg", "krum", "median"))
    assert fedavg.worst
    searched = fedavg.worst.results[0].run.attack
    assert isinstance(searched, Searched)
    assert (fedavg.worst.label, searched.aim) == ("Searched: sign", "sign")  # 0.62: means of seeds count
    assert [one.label for one in fedavg.attacked] == ["Searched: sign", "Searched: mean", "Trim"]
    assert fedavg.attacked[1].error.ours == (0.5, 0.7)
    assert krum.worst
    assert (krum.worst.label, krum.worst.error.mean) == ("IPM: 100", 0.4)
    assert (fedavg.searched, krum.searched, median.searched) == (True, True, False)
    low = place(table, "fedavg", 10).worst
    assert low
    assert low.label == "Trim"
    assert place(table, "fedavg", 40).missing == "not run"
    assert place(table, "trim-mean", 60).missing == "cannot run"


def test_rules_searched_with_every_aim_come_before_those_with_some_and_these_before_those_with_none() -> None:
    """However low their numbers are: 0.4 and 0.62, then 0.06, then 0.04."""
    (table,) = worst_cases([SMALL], filled())
    expected = ["krum", "fedavg", "median", "trim-mean"]
    assert {group: [one.row.name for one in rows] for group, rows in table.groups.items()} == {
        "searched with every aim": expected[:2],
        "searched with some of the aims": expected[2:3],
        "not searched": expected[3:],
    }
    labels = [one.row.label for one in table.rows]
    for name, before in (("csv", "har,{},20"), ("markdown", "| {} |"), ("latex", "{} & ")):
        text = FORMATS[name]([table])
        places = [text.index(before.format(one)) for one in (expected if name == "csv" else labels)]
        assert places == sorted(places)


def test_the_data_set_with_the_most_searched_cells_comes_first_on_the_page() -> None:
    found = filled()
    for cell in asked(["mnist-0.5"], ["krum"])[0].cells[:1]:
        found.add(made_up(cell.runs[0], error=0.05))
    section = text_of(worst_case_section(Embedded(), every_worst_case(found)))
    assert 0 < section.index(">HAR<") < section.index(">MNIST-0.5<")


def test_a_mean_of_few_seeds_yields_to_one_that_does_as_much_harm_in_them() -> None:
    """One lucky seed of Trim is above the mean of the search, but not above the search in that seed."""
    mean, _ = mean_and_sign("fedavg", 20)
    search = [made_up(mean, error=error, seed=seed) for seed, error in enumerate((0.66, 0.5, 0.4))]
    for lucky, label, runs in ((0.65, "Searched: mean", 3), (0.67, "Trim", 1)):
        (table,) = worst_cases([SMALL], Results([*search, attacked("fedavg", "trim", lucky)]))
        worst = place(table, "fedavg", 20).worst
        assert worst
        assert (worst.label, len(worst.results)) == (label, runs)
    (table,) = worst_cases([SMALL], Results([*search, attacked("fedavg", "trim", 0.65, seed=7)]))  # a seed that the search has not
    worst = place(table, "fedavg", 20).worst
    assert worst
    assert worst.label == "Trim"


def test_an_attack_yields_to_none_that_yields_itself() -> None:
    """ALIE yields to Min-Max. Trim would yield to ALIE, but nothing that is left does as much harm in seed 0."""
    errors = {"trim": (0.8,), "alie": (0.8, 0.2), "min-max": (0.6, 0.4, 0.05)}
    runs = [attacked("fedavg", name, error, seed=seed) for name, several in errors.items() for seed, error in enumerate(several)]
    (table,) = worst_cases([SMALL], Results(runs))
    assert [one.label for one in place(table, "fedavg", 20).attacked] == ["Trim", "Min-Max", "ALIE"]


def test_the_order_and_unequal_numbers_of_runs_are_explained() -> None:
    (table,) = worst_cases([SMALL], Results([*filled().all(), attacked("krum", "ipm:100", 0.4, seed=1)]))
    assert "searched with every aim; searched with some of the aims; not searched; broken, and not searched further" in table.remarks[0]
    assert table.remarks[1] == "Some numbers are means of fewer runs than others, and less certain."
    for name in ("markdown", "latex"):
        assert "nobody has searched for worse" in FORMATS[name]([table])
    mean, sign = mean_and_sign("fedavg", 20)
    whole = Question("har", (Row("fedavg"),), (20,))
    (table,) = worst_cases([whole], Results([made_up(mean, error=0.5), made_up(sign, error=0.5)]))
    assert table.remarks == []


def test_of_equal_numbers_the_search_is_named() -> None:
    mean, _ = mean_and_sign("fedavg", 20)
    (table,) = worst_cases([SMALL], Results([attacked("fedavg", "trim", 0.5), made_up(mean, error=0.5)]))
    worst = place(table, "fedavg", 20).worst
    assert worst
    assert worst.label == "Searched: mean"


def test_harm_is_measured_from_the_rules_own_error_without_attack() -> None:
    (table,) = worst_cases([SMALL], filled())
    krum = next(row for row in table.rows if row.row.name == "krum")
    no_attack, _, twenty, forty, _ = krum.places
    assert krum.harm(twenty, table.best_clean) == pytest.approx(0.29)
    assert krum.harm(no_attack, table.best_clean) == pytest.approx(0.08)  # above the best rule
    assert krum.harm(forty, table.best_clean) is None
    trim_mean = next(row for row in table.rows if row.row.name == "trim-mean")
    assert trim_mean.harm(trim_mean.places[2], table.best_clean) is None


def test_an_attack_is_called_by_what_is_unusual_about_it() -> None:
    def label(attack: object) -> str:
        return attack_label(Experiment.on("har", "fedavg", attack).attack)

    assert label("searched") == "Searched: mean"
    assert label({"name": "searched", "aim": "sign", "knowledge": "partial"}) == "Searched: sign, partial"
    assert label("trim") == "Trim"
    assert label("krum") == "Krum attack"  # Krum is a rule
    assert [column.label for column in COLUMNS if column.registered in ("none", "krum", "trim")] == ["No attack", "Krum attack", "Trim"]
    assert label("scaling") == "Scaling"  # the trigger is the data set's


def test_the_stored_runs_of_other_tables_count() -> None:
    exact = next(
        cell.run
        for cell in EXHIBITS["adaptive"].cells
        if cell.run.dataset == "mnist-0.5" and ATTACKS.name_of(cell.run.attack) == "optimal-adaptive" and cell.run.malicious == 40
    )
    tables = every_worst_case(Results([made_up(exact, error=0.3)]))
    worst = place(tables[0], "fltrust", 40).worst
    assert worst
    assert worst.error.mean == 0.3
    assert [len(table.counts) for table in tables] == [1, 0, 0, 0, 0]


# ---------------------------------------------------------------- where a rule is broken, nothing more is run


def test_a_rule_is_broken_where_an_attack_adds_0_4_to_its_own_error() -> None:
    known = [clean("fedavg", 0.05), attacked("fedavg", "trim", 0.45), attacked("fedavg", "trim", 0.44, malicious=3), clean("krum", 0.5)]
    (table,) = worst_cases([SMALL], Results([*known, attacked("krum", "trim", 0.6), attacked("median", "trim", 0.9)]))
    assert [place(table, "fedavg", share).broken for share in (20, 10, 0)] == [True, False, False]
    assert not place(table, "krum", 20).broken  # it is bad by itself
    assert not place(table, "median", 20).broken  # its own error is not known
    assert {group: [row.row.name for row in rows] for group, rows in table.groups.items()} == {
        "not searched": ["krum", "median", "trim-mean"],
        "broken, and not searched further": ["fedavg"],
    }
    assert table.settled == 1
    assert "nobody needs to search for worse" in table.remarks[-1]
    assert "| ≥ 0.450 (Trim · 1 run) |" in FORMATS["markdown"]([table])
    (line,) = (
        one for one in csv.DictReader(io.StringIO(FORMATS["csv"]([table]))) if (one["rule"], one["malicious_percent"]) == ("fedavg", "20")
    )
    assert (line["searched"], line["broken"]) == ("0", "1")
    section = text_of(worst_case_section(Embedded(), [table, table]))  # a tab each
    assert f" 1 of {table.possible}<" in section


def labels(runs: Iterable[Experiment]) -> list[str]:
    return [attack_label(run.attack) for run in runs]


def fedavg_only(*shares: int) -> Question:
    return dataclasses.replace(SMALL, rows=(Row("fedavg"),), shares=shares)


def test_an_attack_that_breaks_a_rule_is_run_before_a_search_there_and_at_larger_shares() -> None:
    found = Results([clean("fedavg", 0.05), attacked("fedavg", "trim", 0.5), attacked("fedavg", "ipm:100", 0.2, malicious=3)])
    for shares in ((40,), (0, 10, 20, 40)):  # also where the smaller share is not asked about
        question = fedavg_only(*shares)
        before = before_search([question], found)
        assert {cell.share: labels(runs) for cell, runs in before.items() if cell.share >= 20} == {20: ["Trim"], 40: ["Trim"], 60: ["Trim"]}
        (cell,) = (cell for cell in question.cells if cell.share == 40)
        assert before[cell] == (declared("har", "fedavg", "trim", malicious=12),)
        runs = [run for run in plan([question], seeds=1, before=before) if run.malicious == 12]
        assert [attack_label(run.attack) for run in runs] == ["Trim", "Searched: mean", "Searched: sign"]


def test_where_no_attack_is_known_to_break_a_rule_those_that_break_most_come_before_the_search() -> None:
    six = ["PoisonedFL", "Trim", "MPAF", "Exact adaptive", "Krum attack", "Sign flipping"]
    searches = ["Searched: mean", "Searched: sign"]
    found = Results([clean("fedavg", 0.05), clean("krum", 0.1), *(made_up(run, error=0.2) for run in mean_and_sign("krum", 20))])
    (question,) = asked(["har"], ["fedavg", "krum"], [20])
    before = before_search([question], found)
    assert {cell.row.name: labels(runs) for cell, runs in before.items() if cell.share == 20} == {"fedavg": six}  # Krum was searched
    assert before[cell_of(question, "fedavg", 20)] == tuple(declared("har", "fedavg", name) for name in OPENERS)  # the league's runs
    runs = plan([question], seeds=1, before=before)
    assert labels(run for run in runs if RULES.name_of(run.rule) == "fedavg") == [*six, *searches]
    spared = needless([question], before, found, lambda run: found.of(run) is not None)
    assert not any(map(spared, runs))
    found.add(attacked("fedavg", "poisonedfl", 0.9))
    assert {RULES.name_of(run.rule) for run in runs if not spared(run)} == {"krum"}


def test_an_attack_of_a_plug_in_that_is_not_loaded_breaks_a_rule_and_is_not_run() -> None:
    trim = attacked("fedavg", "trim", 0.5)
    gone = from_declaration({**trim.run.to_dict(), "attack": {"name": "gone"}})
    found = Results([clean("fedavg", 0.05), trim, made_up(gone, error=0.9)])
    (table,) = worst_cases([SMALL], found)
    worst = place(table, "fedavg", 20)
    assert worst.worst
    assert (worst.worst.label, worst.broken) == ("gone", True)
    assert labels(before_search([SMALL], found)[cell_of(SMALL, "fedavg", 20)]) == ["Trim"]


def test_what_was_found_meanwhile_makes_runs_of_the_same_seed_needless() -> None:
    found = Results([clean("fedavg", 0.05), attacked("fedavg", "trim", 0.5)])
    question = fedavg_only(0, 20, 40)
    before = before_search([question], found)
    spared = needless([question], before, found, lambda run: found.of(run) is not None)
    runs = plan([question], seeds=2, before=before)

    def left(share: int, seed: int) -> list[str]:
        those = [run for run in runs if (run.malicious, run.seed) == (3 * share // 10, seed) and not run.attack.idle]
        assert [attack_label(run.attack) for run in those] == ["Trim", "Searched: mean", "Searched: sign"]
        return [attack_label(run.attack) for run in those if not spared(run)]

    assert left(20, seed=0) == []
    everything = ["Trim", "Searched: mean", "Searched: sign"]
    assert left(40, seed=0) == left(20, seed=1) == left(40, seed=1) == everything
    trim = declared("har", "fedavg", "trim", malicious=12)
    found.add(made_up(trim, error=0.44))
    assert left(40, seed=0) == everything
    found.add(made_up(trim, error=0.46))
    assert left(40, seed=0) == []
    found.add(made_up(trim, error=0.46, seed=1))
    assert left(40, seed=1) == everything  # its own error with this seed is not known
    found.add(made_up(question.cells[0].clean, error=0.05, seed=1))
    assert left(40, seed=1) == []
    assert not any(spared(run) for run in runs if run.attack.idle)


def test_results_of_a_lower_precision_spare_no_run_of_a_higher_one() -> None:
    runs = (clean("fedavg", 0.05).run, attacked("fedavg", "trim", 0.5).run)
    found = Results(
        [made_up(dataclasses.replace(run, precision="float16"), error=error) for run, error in zip(runs, (0.05, 0.5), strict=True)]
    )
    (search, _) = mean_and_sign("fedavg", 20)
    for answered, expected in ((found.done, False), (lambda run: found.of(run) is not None, True)):
        assert needless([SMALL], {}, found, answered)(search) is expected


# ---------------------------------------------------------------- as text, and on the page


def test_formats() -> None:
    tables = worst_cases([SMALL], filled())
    lines = list(csv.DictReader(io.StringIO(FORMATS["csv"](tables))))
    assert len(lines) == 4 * len(SHARES)
    (line,) = (line for line in lines if (line["rule"], line["malicious_percent"]) == ("fedavg", "20"))
    assert (line["worst_error"], line["spread"], line["seeds"], line["attack"]) == ("0.62000", "", "1", "Searched: sign")
    assert (line["searched"], line["attacks_run"], line["note"]) == ("1", "3", "")
    (absent,) = (line for line in lines if (line["rule"], line["malicious_percent"]) == ("trim-mean", "60"))
    assert absent["worst_error"] == ""
    assert "cannot trim" in absent["note"]
    text = FORMATS["markdown"](tables)
    assert "| rule | 0 % malicious | 10 % malicious | 20 % malicious |" in text
    assert "| Krum | 0.110 (1 run) | not run | 0.400 (IPM: 100 · 1 run) | not run | not run |" in text
    assert "| ≥ 0.060 (Searched: mean · 1 run) |" in text
    assert "lower bound" in text
    assert r"0 \% malicious" in FORMATS["latex"](tables)
    assert r"$\geq$ 0.060" in FORMATS["latex"](tables)


def test_a_cell_is_repeated_by_its_command() -> None:
    cell = cell_of(SMALL, "krum", 20)
    two = tuple(made_up(dataclasses.replace(cell.runs[0], precision="float16"), seed=seed) for seed in (0, 1))
    assert worst_case_command(cell, two) == "fltrust worst-case --dataset har --rule krum --share 20 --seeds 2 --precision float16"


def test_the_report_shows_the_table_first(tmp_path: Path) -> None:
    for one in filled().all():
        results.write(one, tmp_path / "results")
    build([tmp_path / "results"], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    header = page[: page.index("</header>")]
    assert header.index('id="worst-case"') < header.index('class="facts"')
    assert "lower bound" in header
    assert "Searched: sign" in header
    assert "≥ 0.060" in header
    assert header.index("Searched with every aim at 20 %") < header.index("Searched with some of the aims at 20 %")
    assert header.index("Searched with some of the aims at 20 %") < header.index("Not searched at 20 %")
    assert {path.name for path in (tmp_path / "report" / "tables").glob("worst-case.*")} == {
        f"worst-case.{end}" for end in ("csv", "md", "tex")
    }
    others = page[page.index("<main>") :]
    assert "fedavg, attack searched" not in others  # it stands in a table


def test_without_results_the_page_has_no_such_table() -> None:
    found = Results([made_up(EXHIBITS["choices"].cells[0].run)])
    judged = {exhibit: judge(exhibit, found) for exhibit in EXHIBITS.values()}
    empty = [WorstCases(SMALL, ())]
    assert 'id="worst-case"' not in reproduction_page(judged, Found(found), worst=empty)


# ---------------------------------------------------------------- as a user runs it


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    return program_of("worst-case", tmp_path, monkeypatch, capsys)


def test_what_is_missing_is_run_and_the_table_is_printed(program: Program, har: Path) -> None:
    rules = ["--rule", "median", "--rule", "trim-mean"]
    short = ["--dataset", "har", "--share", "0", "--share", "60", *rules, "--rounds", "2", "--device", "cpu", "--data-dir", str(har)]
    code, out, err = program(*short)
    assert (code, err) == (0, "")
    assert "10 runs, 0 done, 10 to do" in out  # two without attack, six attacks before the two searches
    assert re.search(r"worst-case: HAR, median, 18 of 30 malicious, Searched: sign, seed 0: [01]\.\d{3}  \d+\.\d s", out)
    assert re.search(r"rule +no attack +60 %", out)
    assert re.search(r"Trim-mean +[01]\.\d{3} +cannot run", out)
    assert "Cannot run: Trim-mean: a trimmed mean cannot trim 18 from each side of 30" in out
    code, out, _ = program(*short, "--share", "20", "--dry-run")
    assert code == 0
    assert "20 runs, 4 done, 16 to do" in out  # what was searched needs no other attack
    code, out, _ = program(*short, "--format", "csv")
    assert code == 0
    assert [line["searched"] for line in csv.DictReader(io.StringIO(out))] == ["1", "1", "1", "0"]


def test_a_line_tells_the_forms_of_a_rule_apart(program: Program, har: Path) -> None:
    named = ["--dataset", "har", "--rule", "levelled anchor,anchor", "--share", "0", "--rounds", "1"]
    code, out, err = program(*named, "--device", "cpu", "--data-dir", str(har))
    assert (code, err) == (0, "")
    for name in ("Levelled Anchor", "anchor"):
        assert f"worst-case: HAR, {name}, no attack, seed 0: " in out


def test_what_is_left_is_not_run_once_the_rule_is_broken(program: Program, har: Path) -> None:
    """After two rounds nearly everything is wrong, which is 0.4 above a made-up error without attack: one attack is enough."""
    short = ["--dataset", "har", "--rule", "median", "--share", "60", "--rounds", "2", "--device", "cpu", "--data-dir", str(har)]
    (question,) = asked(["har"], ["median"], [60], rounds=2)
    results.write(made_up(question.cells[0].clean, error=0.01), Path("results"))
    code, out, err = program(*short)
    assert (code, err) == (0, "")
    assert "8 runs, 0 done, 8 to do" in out
    assert "the run finished, 7 no longer needed" in out
    assert "PoisonedFL" in out
    assert "Searched" not in out
    for arguments in ([*short, "--dry-run"], short):
        code, out, _ = program(*arguments)
        assert code == 0
        assert "3 runs, 1 done, 2 not needed, 0 to do" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rule", "kum"], "unknown rule 'kum': did you mean 'krum'?"),
        (["--dataset", "mnist"], "did you mean"),
        (["--share", "30"], "--share must be one of 0, 10, 20, 40, 60 per cent, not 30"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--format", "pdf"], "unknown format 'pdf'"),
        (["--format", "md", "--out", "nowhere"], "there is no folder nowhere"),
        (["--plugin", "absent.py"], "there is no plug-in"),
    ],
)
def test_mistakes_are_one_line(program: Program, arguments: list[str], said: str) -> None:
    assert_refused(program, arguments, said)


def test_a_damaged_result_is_named_and_counts_as_not_run(program: Program) -> None:
    words = ["--dataset", "har", "--rule", "median", "--share", "0", "--device", "cpu"]
    assert_damage_is_named(program, words, declared("har", "median", "none"))


BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pooch", "flwr", "plotly", "mlxtend"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Refuse())
sys.argv = ["fltrust", "worst-case", *sys.argv[1:]]
from fltrust.cli import main
main()
"""


@pytest.mark.slow
def test_it_runs_without_the_optional_packages(tmp_path: Path, har: Path) -> None:
    command = ["--dataset", "har", "--rule", "fltrust", "--share", "20", "--rounds", "1", "--device", "cpu", "--data-dir", str(har)]
    ran = subprocess.run(
        [sys.executable, "-c", BARE, *command], cwd=tmp_path, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(list(tmp_path.glob("results/har/*.json"))) == len(OPENERS) + len(aims_on(FLTrust()))
