"""`fltrust redteam`: what it plans, what it concludes from results, and a whole red team of one's own task through the command line."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from made_up import made_up
from rich.console import Console
from typer.testing import CliRunner
from waiting import until

from fltrust.attacks import NoAttack, Searched
from fltrust.attacks.searched import aims_on
from fltrust.attacks.searched.scene import AimName
from fltrust.cli import app, many
from fltrust.cli.many import How
from fltrust.cli.redteam import line_of
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.redteam import noticed
from fltrust.redteam.facts import facts_of
from fltrust.redteam.plan import Question, changes, counts_of, most_runs, question_of, stages
from fltrust.registry import ATTACKS, DATASETS, MODELS, OBJECTIVES, RULES
from fltrust.report.redteam import Answer, answer, content
from fltrust.report.redteam_checklist import checklist, doubts
from fltrust.report.redteam_page import redteam_page
from fltrust.report.redteam_text import SEARCHED_FOR, summary, title, warnings
from fltrust.rules import FLTrust, Krum
from fltrust.running import pool
from fltrust.store.results import Result, Results, read
from fltrust.triggers import NO_TRIGGER, Trigger

ASKED: dict[str, Any] = {"shares": "5,10,20,40", "points": 5.0, "seeds": 1, "tried": "median", "precision": "float32"}


def asked(settings: tuple[str, ...] = (), tried: str = "median", shares: str = "5,10,20,40", seeds: int = 1, **given: str) -> Question:
    return question_of(
        {"dataset": "mnist-5k", "rule": "fltrust", **given}, settings, **{**ASKED, "tried": tried, "shares": shares, "seeds": seeds}
    )


# ---------------------------------------------------------------- the plan


def test_a_share_is_as_many_clients_as_fit_in_it_and_too_few_are_named() -> None:
    assert counts_of([5, 10, 20, 30, 40, 50], 20)[0] == {1: 5, 2: 10, 4: 20, 6: 30, 8: 40, 10: 50}
    counts, left_out = counts_of([5, 20, 30, 50], 5)
    assert counts == {1: 20, 2: 50}
    assert [one.why for one in left_out] == [
        "too few clients: 5 % of 5 is less than one client",
        "too few clients: 30 % of 5 is 1, as for 20 %",
    ]
    with pytest.raises(InputError, match="no share is as much as one of 3 clients"):
        counts_of([5], 3)


def test_a_rule_that_listens_to_a_root_set_is_searched_for_what_it_does_not_see() -> None:
    (_, _, searched), _ = stages(asked(rule="krum,fltrust"))
    aims = {
        rule: {run.attack.aim for run in searched.runs if isinstance(run.rule, rule) and isinstance(run.attack, Searched)}
        for rule in (Krum, FLTrust)
    }
    assert aims == {Krum: {"mean", "sign"}, FLTrust: {"mean", "sign", "unseen"}}


def test_no_known_attack_leaves_the_search_alone() -> None:
    (clean, known, searched), _ = stages(asked(attack="none"))
    assert [type(run.attack) for run in clean.runs] == [NoAttack]
    assert known.runs == []
    assert {type(run.attack) for run in searched.runs} == {Searched}


def test_stages_go_from_cheap_to_dear_and_no_run_stands_in_two() -> None:
    question = asked(rule="krum,median", attack="trim,scaling", seeds=2)
    (clean, known, searched), left_out = stages(question)
    assert left_out == []
    assert {run.malicious for run in clean.runs} == {0}
    assert sum(isinstance(run.attack, NoAttack) for run in clean.runs) == 4  # two rules, two seeds; scaling's backdoor is measured too
    assert {run.malicious for run in known.runs} == {1, 2, 4, 8}
    assert len(known.runs) == 2 * 2 * 4 * 2
    assert {run.attack for run in searched.runs} == {Searched("mean"), Searched("sign")}
    assert {run.rule for run in known.runs if run.malicious == 4 and isinstance(run.rule, Krum)} == {Krum(tolerate=4)}
    keys = [run.key for stage in (clean, known, searched) for run in stage.runs]
    assert len(keys) == len(set(keys))
    seeds = [run.seed for run in known.runs]
    assert seeds == sorted(seeds)  # a first seed of everything is worth more than all seeds of something


def test_a_parameter_of_the_rule_is_not_its_rivals_and_one_of_attacks_is_all_of_theirs() -> None:
    question = asked(("rule.tolerate=3", "attack.knowledge=partial"), rule="krum,median", attack="trim,scaling")
    assert question.rules == ({"name": "krum", "tolerate": 3}, "median")
    (clean, known, searched), left_out = stages(question)
    assert {run.rule for run in known.runs if isinstance(run.rule, Krum)} == {Krum(tolerate=3)}
    assert {run.attack.knowledge for run in (*known.runs, *searched.runs)} == {"partial"}
    assert {type(run.attack) for run in clean.runs} == {NoAttack}
    assert {one.what.partition(", malicious")[0] for one in left_out} == {
        "rule krum tolerate=3, attack scaling",
        "rule median, attack scaling",
    }


def test_what_a_missing_trigger_tells_one_to_write_works() -> None:
    setting = re.search("--set '(.*)';", NO_TRIGGER)
    assert setting is not None
    (_, known, _), left_out = stages(asked((setting[1],), attack="scaling,neurotoxin"))
    assert left_out == []
    assert {run.attack.trigger for run in known.runs} == {Trigger(((0, 0),), 1.0, 0)}


def test_the_audit_has_ten_rounds_to_see() -> None:
    assert stages(asked(rounds="60"))[0][0].runs[0].evaluate_every == 6
    assert stages(asked(rounds="3"))[0][0].runs[0].evaluate_every == 1
    assert stages(asked(rounds="60", evaluate_every="30"))[0][0].runs[0].evaluate_every == 30


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": 0.0}, "--points must be a number above 0 and up to 100, not 0"),
        ({"points": float("nan")}, "--points must be a number"),
        ({"shares": "5,x"}, "--shares 5,x: expected per cents above 0 and below 100"),
        ({"shares": "0"}, "expected per cents"),
        ({"shares": "100"}, "expected per cents"),
        ({"shares": ""}, "expected per cents"),
        ({"seeds": 0}, "seeds must be a whole number"),
        ({"tried": "kum"}, "did you mean 'krum'"),
        ({"given": {"rule": "fltrst"}}, "did you mean 'fltrust'"),
        ({"given": {"rounds": "0"}}, "rounds must be at least 1"),
        ({"given": {"rounds": "10,20"}}, "rounds has 2 values: a red team varies rule and attack alone"),
        ({"settings": ["malicious=3"]}, "malicious cannot be set"),
        ({"settings": ["rule.tolerat=3"], "given": {"rule": "krum"}}, "did you mean 'tolerate'"),
    ],
)
def test_wrong_options_are_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    given, settings = change.pop("given", {}), change.pop("settings", [])
    with pytest.raises(InputError, match=re.escape(said)):
        question_of({"dataset": "mnist-5k", "rule": "fltrust", **given}, settings, **{**ASKED, **change})


def test_changes_are_larger_root_sets_other_rules_and_the_control_each_under_the_search_too() -> None:
    question = asked(tried="fltrust,median")
    trim = Experiment.on("mnist-5k", attack="trim").to_dict()["attack"]
    made, left_out = changes(question, trim, 4, broken=True, train_examples=4000)
    assert left_out == []
    assert [one.what for one in made] == [
        "a root set of 200 instead of 100",
        "a root set of 500 instead of 100",
        "median instead",  # fltrust is the rule in question
        "fedavg instead (plain averaging, for comparison)",
    ]
    for change in made:
        assert {(type(run.attack).__name__, run.malicious) for run in change.runs} == {("NoAttack", 0), ("TrimAttack", 4), ("Searched", 4)}
        aims = {run.attack.aim for run in change.runs if isinstance(run.attack, Searched)}
        assert aims == set(aims_on(change.runs[0].rule))
    assert max(len(change.runs) for change in made) == 5
    assert most_runs(question) == (2 + 2 + 1) * 6
    assert {run.root_size for run in made[0].runs} == {200}
    few, _ = changes(question, trim, 4, broken=True, train_examples=1200)
    assert [one.what for one in few][:2] == ["a root set of 200 instead of 100", "median instead"]  # 500 are too much of 1,200
    own, _ = changes(question, trim, 4, broken=True, train_examples=0)
    assert own[0].what == "median instead"
    unbroken, _ = changes(question, trim, 4, broken=False, train_examples=4000)
    assert [one.what for one in unbroken] == ["fedavg instead (plain averaging, for comparison)"]


# ---------------------------------------------------------------- what it concludes

FACTS = {"train_examples": 4000, "test_examples": 1000, "guess_error": 0.9, "difference": 0.4, "own_root": False}


def concluded(
    ends: Callable[[Experiment], float | None], question: Question, *, facts: dict[str, Any] = FACTS, audits: Any = None
) -> Answer:
    """The answer if every run ended at this error, and has no result at None; the changes are those where the rule breaks."""
    runs = [run for stage in stages(question)[0] for run in stage.runs]

    def found(of: list[Experiment]) -> list[Result]:
        ended = [(run, error) for run in of if (error := ends(run)) is not None]
        return [made_up(run, error=error + 0.002 * run.seed, success=0.01, seed=run.seed) for run, error in ended]

    about: dict[str, Any] = {
        "command": "fltrust redteam",
        "plugins": (),
        "where": (),
        "facts": facts,
        "audits": audits or (lambda key: None),
        "problems": (),
    }
    first = answer(question, runs, [], Results(found(runs)), **about)
    if first.breaks is None or first.survival is None:
        return first
    worst = first.survival[1].points[-1].results[0].run.to_dict()["attack"]
    made, _ = changes(question, worst, first.breaks, broken=True, train_examples=4000)
    results = found([*runs, *(run for change in made for run in change.runs)])
    return answer(question, runs, made, Results(results), **about)


def breaks_at_4(run: Experiment) -> float:
    """FLTrust breaks under the search from 4 of 20 on; 500 root examples help, the median does not; FedAvg is ruined."""
    if not run.malicious:
        return 0.1
    if not isinstance(run.attack, Searched):
        return 0.12
    if not isinstance(run.rule, FLTrust):
        return 0.9
    return 0.13 if run.malicious < 4 else {100: 0.3, 200: 0.28, 500: 0.16}[run.root_size]


def test_the_breaking_point_and_the_change_that_helped_most() -> None:
    found = concluded(breaks_at_4, asked(attack="trim", seeds=3))
    assert found.survival is not None
    assert found.survival[0] == (2, 4)
    assert found.survival[1].attack == "searched"
    assert title(found) == "FLTrust breaks at 20 % malicious clients"
    assert next(one.what for one in found.compared()) == "a root set of 500 instead of 100"
    assert found.best is not None
    assert found.best.cost == pytest.approx(0.06)
    said = " ".join(summary(found))
    assert "Without attack the test error is 0.102 ± 0.002 (seeds 0, 1, 2)." in said
    assert (
        "The largest tested share that costs at most 5 points is 10 %. With 20 % (4 of 20), an attack searched on the rule "
        "(“searched”: it pushes against the honest mean) takes the error to 0.302 ± 0.002." in said
    )
    helped = "What helped most: a root set of 500 instead of 100. It costs 6.0 points instead of 20.0 points there."
    assert f"{helped} The rule still breaks with it." in said
    assert warnings(found) == []
    assert [(one.point.malicious, round(one.cost, 3)) for one in found.curve()] == [(1, 0.03), (2, 0.03), (4, 0.2), (8, 0.2)]


def test_every_aim_of_the_search_is_explained_where_it_is_first_named() -> None:
    assert SEARCHED_FOR.keys() == set(get_args(AimName))
    unseen = concluded(lambda run: 0.4 if run.attack == Searched("unseen") and run.malicious > 2 else 0.1, asked(attack="trim"))
    assert "an attack searched on the rule (“searched, aim unseen”: it aims at what the root set does not see) takes" in summary(unseen)[1]
    trim = concluded(lambda run: 0.4 if ATTACKS.name_of(run.attack) == "trim" and run.malicious > 2 else 0.1, asked(attack="trim"))
    assert "With 20 % (4 of 20), trim takes the error to" in summary(trim)[1]


def test_the_title_names_the_rule_as_papers_do() -> None:
    for rule, settings, label in (
        ("fltrust", (), "FLTrust"),
        ("nnm+krum", ("rule.rule.tolerate=3",), "NNM + Krum, rule.tolerate 3"),
        ("krum", ("rule.tolerate=3",), "Krum, tolerate 3"),
    ):
        found = concluded(lambda run: 0.1, asked(settings, rule=rule, attack="trim"))
        assert title(found) == f"{label} holds up to 40 % malicious clients, all that was tested"


def test_a_change_within_the_spread_or_a_point_is_no_help() -> None:
    def nothing_helps(run: Experiment) -> float:
        error = breaks_at_4(run)
        return 0.295 if run.root_size > 100 and run.malicious else error

    found = concluded(nothing_helps, asked(attack="trim"))
    assert found.best is None
    assert "None of the changes that were tried helped clearly." in summary(found)
    assert content(found, [])["most_useful_change"] is None


def test_plain_averaging_is_no_advice_even_where_it_costs_least() -> None:
    def unharmed_here(run: Experiment) -> float:
        return 0.1 if RULES.name_of(run.rule) == "fedavg" else breaks_at_4(run)

    for rules, tried in (("fltrust", "median"), ("fltrust", "fedavg,median"), ("fltrust,fedavg", "median")):
        found = concluded(unharmed_here, asked(attack="trim", rule=rules, tried=tried))
        assert found.best is not None
        assert found.best.what == "a root set of 500 instead of 100"
        assert content(found, [])["most_useful_change"] == found.best.what
        (cheaper,) = (one for one in found.compared() if one.what.startswith("fedavg"))
        assert cheaper.cost == pytest.approx(0.0)
        assert summary(found)[-1] == f"Not advised: {cheaper.what}. It costs 0.0 points there, but plain averaging is no defence."
        assert summary(found)[-1] in redteam_page(found, checklist(found))


def test_a_rule_that_the_search_harms_more_is_no_advice() -> None:
    """The rule breaks under Trim, and hardly under the search."""

    def ends(run: Experiment) -> float:
        if not run.malicious:
            return 0.1
        searched = isinstance(run.attack, Searched)
        if RULES.name_of(run.rule) == "median":
            return 0.2 if searched else 0.11
        return 0.12 if searched else 0.4

    found = concluded(ends, asked(attack="trim"))
    assert found.compared()[0].what == "median instead"
    assert found.best is None
    assert "Not advised: median instead. It costs 10.0 points there, but the search harms it more than your rule." in summary(found)
    as_strong = concluded(lambda run: min(ends(run), 0.125) if RULES.name_of(run.rule) == "median" else ends(run), asked(attack="trim"))
    assert as_strong.best is not None
    assert as_strong.best.what == "median instead"


@pytest.mark.parametrize(("rule", "rival"), [("fltrust", "median"), ("krum", "fltrust")])
def test_a_rival_is_advised_once_all_its_own_runs_have_results(rule: str, rival: str) -> None:
    """A rule with a root set meets one search more than one without."""

    def ends(run: Experiment) -> float:
        return 0.4 if run.malicious >= 4 and RULES.name_of(run.rule) == rule else 0.1

    def without_sign(run: Experiment) -> float | None:
        return None if RULES.name_of(run.rule) == rival and run.attack == Searched("sign") and run.malicious == 4 else ends(run)

    question = asked(attack="trim", rule=f"{rule},{rival}", tried="none")
    found = concluded(ends, question)
    assert found.best is not None
    assert found.best.what == f"{rival} instead"
    lacking = concluded(without_sign, question)
    (incomplete,) = (one for one in lacking.compared() if one.what == f"{rival} instead")
    assert lacking.passed_over(incomplete) == "it has not met all attacks"


def test_a_change_that_learns_worse_is_measured_against_the_rule_in_question() -> None:
    def poor(run: Experiment) -> float:
        return 0.5 if RULES.name_of(run.rule) == "median" else breaks_at_4(run)  # unharmed, but it never learnt much

    found = concluded(poor, asked(attack="trim"))
    costs = {one.what: one.cost for one in found.compared()}
    assert costs["median instead"] == pytest.approx(0.4)
    assert found.best is not None
    assert found.best.what.startswith("a root set of 500")


def test_a_rule_that_holds_is_said_to_hold_only_as_far_as_it_was_tested() -> None:
    found = concluded(lambda run: 0.1, asked(attack="trim"))
    assert found.breaks is None
    assert found.compared() == []
    assert title(found) == "FLTrust holds up to 40 % malicious clients, all that was tested"
    assert found.shown == 8


def test_a_task_that_does_not_learn_is_named() -> None:
    found = concluded(lambda run: 0.89, asked(attack="trim"))
    assert found.learns is False
    assert "the task does not learn. Without attack the error is 0.890." in warnings(found)[0]
    assert checklist(found)[0].answer == "no"
    assert content(found, checklist(found))["learns"] is False
    assert concluded(lambda run: 0.8, asked(attack="trim")).learns is True
    assert concluded(lambda run: 0.8, asked(attack="trim"), facts={**FACTS, "guess_error": None}).learns is None


def test_the_checklist_is_answered_from_the_facts() -> None:
    def answers(found: Answer) -> dict[str, str]:
        return {check.question: check.answer for check in checklist(found)}

    one_seed = answers(concluded(breaks_at_4, asked(attack="trim")))
    three = answers(concluded(breaks_at_4, asked(attack="trim,label-flip,scaling", seeds=3), facts={**FACTS, "difference": 0.01}))
    for question, first, second in (
        ("Is every number a mean over several seeds?", "no", "yes"),
        ("Do the clients hold different data?", "yes", "no"),
        ("Are there several attacks, with different goals?", "no", "yes"),
        ("Do these attacks harm plain averaging?", "yes", "yes"),
        ("Does an attack adapt to the rule?", "yes", "yes"),
        ("Does the rule work without knowing how many clients are malicious?", "yes", "yes"),
    ):
        assert (one_seed[question], three[question]) == (first, second), question
    goals = next(check for check in checklist(concluded(breaks_at_4, asked(attack="trim"))) if "goals" in check.question)
    assert goals.why == "2 kinds of attacks; sabotage only, no backdoor."  # the data have a trigger, but no such attack was asked for
    holds = answers(concluded(lambda run: 0.1, asked(attack="trim")))
    assert holds["Do these attacks harm plain averaging?"] == "not measured"
    krum = concluded(lambda run: 0.1, asked(rule="krum", attack="trim"))
    assert answers(krum)["Does the rule work without knowing how many clients are malicious?"] == "no"
    within = concluded(lambda run: 0.1, asked(rule="norm-clipping+krum", attack="trim"))
    told = next(check for check in checklist(within) if check.question.startswith("Does the rule work without"))
    assert told.answer == "no"
    assert told.why.endswith("Fix it with --set rule.rule.tolerate=NUMBER.")
    fixed = concluded(lambda run: 0.1, asked(("rule.rule.tolerate=3",), rule="norm-clipping+krum", attack="trim"))
    assert answers(fixed)["Does the rule work without knowing how many clients are malicious?"] == "yes"
    many_clients = concluded(lambda run: 0.1, asked(attack="trim", num_clients="100", clients_per_round="20"))
    assert answers(many_clients)["Are there many clients, of which some take part in a round?"] == "yes"


def test_the_first_screen_says_which_checks_say_no() -> None:
    found = concluded(breaks_at_4, asked(attack="trim"))
    many, said = doubts(checklist(found))
    few = "there are fewer than 50 clients, no backdoor was tested, some numbers have only 1 seed, "
    assert (many, said) == ("4 of 12 checks", f" say no: {few}no attacker that sees only its own clients was tried.")
    page = redteam_page(found, checklist(found))
    assert f'<li><a href="#checklist">{many}</a>{said}</li>' in page
    assert '<td class="change">not tested</td>' in page
    assert '<td class="change">not tested</td>' not in redteam_page(concluded(breaks_at_4, asked(attack="trim,scaling")), [])
    assert doubts([check._replace(answer="yes") for check in checklist(found)]) == ("", "")


def test_you_notice_if_the_malicious_are_accused_and_not_the_honest() -> None:
    def seen(found: int, accused: int) -> dict[str, Any]:
        sides = {"malicious": 0.1, "honest": 0.5}
        about = {"rounds": 10, "malicious": 4, "honest": 16, "hostile": found, "since": 3, "evidence": "it is odd", "trust": sides}
        return {**about, "found": found, "accused": accused, "share": sides}

    for found, accused, said in ((4, 0, "yes"), (2, 1, "yes"), (1, 0, "in part"), (3, 3, "in part"), (0, 5, "no")):
        audit = seen(found, accused)
        looked = concluded(breaks_at_4, asked(attack="trim"), audits=lambda key, audit=audit: audit).noticed()
        assert looked is not None
        assert (looked.attack, looked.malicious, looked.noticed) == ("searched", 4, said)
    assert concluded(breaks_at_4, asked(attack="trim")).noticed() is None  # nobody looked


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (4, "The audit would have noticed this attack, which does not try to hide."),
        (1, "The audit might have noticed this attack, which does not try to hide."),
        (0, "The audit would not have noticed this attack, although it does not try to hide."),
    ],
)
def test_to_be_noticed_is_no_promise_where_no_attack_tries_to_hide(found: int, said: str) -> None:
    sides = {"malicious": 0.1, "honest": 0.5}
    audit = {"rounds": 10, "malicious": 4, "honest": 16, "hostile": found, "since": 3, "evidence": "", "trust": sides, "share": sides}
    one = concluded(breaks_at_4, asked(attack="trim"), audits=lambda key: {**audit, "found": found, "accused": 0})
    sentence = f"{said} In 1 run with 4 malicious clients, it accuses {found} of 4 malicious and 0 of 16 honest clients."
    assert sentence in summary(one)
    assert sentence in redteam_page(one, checklist(one))
    assert content(one, [])["noticed_means"] in redteam_page(one, checklist(one))


def test_a_guess_and_the_clients_of_a_task(tmp_path: Path) -> None:
    name = write_task(tmp_path)
    facts = facts_of(Experiment.on(name, malicious=0, attack="none"), None)
    assert (facts.train_examples, facts.test_examples, facts.own_root) == (240, 60, False)
    assert facts.guess_error == pytest.approx(2 / 3)
    alike = facts_of(Experiment.on(name, malicious=0, attack="none", bias=1 / 3), None).difference
    apart = facts_of(Experiment.on(name, malicious=0, attack="none", bias=1.0), None).difference
    assert alike is not None
    assert apart == pytest.approx(2 / 3)
    assert alike < 0.25


# ---------------------------------------------------------------- as a user runs it

TASK = """
import numpy as np
from fltrust.datasets import Examples


def build():
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    points = (2 * np.eye(3, 4)[labels] + 0.5 * rng.standard_normal((300, 4))).astype(np.float32)
    settings = dict(model="logistic", num_clients=10, malicious=2, bias=0.5, rounds=4, batch_size=8, global_lr=LR, root_size=12)
    return Examples(points[:240], labels[:240], points[240:], labels[240:], settings=settings)
"""
RULES_FILE = """
from dataclasses import dataclass
from fltrust import RULES, FedAvg


@RULES.register("raises")
@dataclass(frozen=True)
class Raises(FedAvg):
    def aggregate(self, received):
        raise ValueError("no <b>aggregate</b>")


@RULES.register("raises-later")
@dataclass(frozen=True)
class RaisesLater(FedAvg):
    def aggregate(self, received):
        if received.updates.shape[1] > 1:  # a real model, not a trial
            raise ZeroDivisionError("later")
        return super().aggregate(received)


@RULES.register("mine")
@dataclass(frozen=True)
class Mine(FedAvg):
    "The mean."
"""
OBJECTIVE = """
from dataclasses import dataclass
from fltrust.objectives import CrossEntropy
from fltrust.registry import OBJECTIVES


@OBJECTIVES.register("my-objective")
@dataclass(frozen=True)
class Mine(CrossEntropy):
    "The same."
"""
DATA = """
import numpy as np
from fltrust.datasets import Examples, Profile
from fltrust.registry import DATASETS


def load(data_dir):
    points, labels = np.ones((60, 2), np.float32), np.arange(60) % 3
    return Examples(points[:40], labels[:40], points[40:], labels[40:], num_classes=3, objective="my-objective")


numbers = dict(num_clients=5, malicious=1, bias=0.5, rounds=2, batch_size=4, global_lr=0.1, root_size=6)
DATASETS.register("my-data")(Profile({"model": "logistic", **numbers}, "mine", load=load))
"""
COMMAND = ["redteam", "--task", "my_task.py:build", "--rule", "fltrust", "--attack", "trim,scaling", "--shares", "5,20,40", "--points", "1"]
COMMAND += ["--seeds", "1", "--try", "median", "--device", "cpu", "--out", "out"]


def changed(*words: str) -> list[str]:
    """COMMAND with these options: one that is given twice would have both values."""
    options = zip(COMMAND[1::2], COMMAND[2::2], strict=True)
    return ["redteam", *(word for option in options if option[0] not in words for word in option), *words]


PROGRAM = [sys.executable, "-c", "from fltrust.cli import main; main()"]


def write_task(folder: Path, learning_rate: float = 0.3) -> str:
    path = folder / "my_task.py"
    path.write_text(TASK.replace("LR", str(learning_rate)))
    return f"{path}:build"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task and rules of one's own, in the current folder. Runs are done in this process, one after the other."""
    write_task(tmp_path)
    (tmp_path / "my_rules.py").write_text(RULES_FILE)
    monkeypatch.chdir(tmp_path)
    for registry in (DATASETS, MODELS, OBJECTIVES, RULES):
        list(registry)
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(many, "execute", here)
    return tmp_path


def here(runs: Any, work: Path, *, device: str, data_dir: str | None = None, **_: Any) -> Iterator[pool.Event]:
    tasks = pool.Tasks(device, data_dir)
    for run in runs:
        yield pool._done(run, work, tasks, SimpleNamespace(send=lambda event: None))  # type: ignore[arg-type]


def fltrust(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.output


def written(path: Path = Path("out")) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "redteam.json").read_text())
    return found


def test_a_red_team_of_ones_own_task(folder: Path) -> None:
    planned = fltrust(*changed("--dry-run"))
    assert "stage 3  under the search" in planned
    assert not Path("out").exists()
    said = fltrust(*COMMAND)
    assert next(line for line in said.splitlines() if line.startswith("Stage")).startswith(
        "Stage 1 of 4, without attack; later stages: 8 runs"
    )
    assert "out/index.html: open it in a browser" in said
    assert re.search(r"\d of 12 checks say no: .*no backdoor was tested", said)
    found = written()
    assert found["learns"] is True
    assert found["clean"]["seeds"] == [0]
    assert [one["under_attack"]["malicious"] for one in found["curve"]] == [2, 4]
    reasons = {one["what"]: one["why"] for one in found["not_run"]}
    assert reasons["5 % malicious"] == "left out: too few clients: 5 % of 10 is less than one client"
    assert "needs a trigger" in reasons["rule fltrust, attack scaling"]

    # Every number is that of the stored runs, and each run is named with its seed, its file and a command.
    stored = {one.run.key: one for one in read(Path("out")).all()}
    assert found["runs"].keys() == stored.keys()
    for key, one in found["runs"].items():
        assert (one["error"], one["seed"], one["malicious"]) == (stored[key].error, stored[key].run.seed, stored[key].run.malicious)
        assert json.loads((Path("out") / one["file"]).read_text())["error"] == round(one["error"], 5)
        assert one["command"].endswith("fltrust run experiment.toml --device cpu")
        assert 'dataset = "my_task.py:build"' in one["command"]
    points = [point for rule in found["rules"] for line in rule["attacks"] for point in line["points"]]
    points += [one[side] for one in found["changes"] for side in ("under_attack", "without_attack")]
    for point in points:
        assert point["error"]["values"] == [stored[key].error for key in point["runs"]]
        assert point["error"]["mean"] == pytest.approx(np.mean(point["error"]["values"]), abs=1e-5)

    # The audit was kept of each run, and no run directory is left.
    assert {path.stem for path in Path("out/audits").glob("*.json")} == stored.keys()
    assert not list(Path("out/.unfinished").glob("*/records.jsonl"))
    assert [one["malicious_clients"] for one in found["noticed"]].count(0) == 1
    assert all(one["rounds_seen"] == 4 for one in found["noticed"])
    assert found["command"].startswith("fltrust redteam --task my_task.py:build --rule fltrust ")
    assert found["command"].endswith(" --device cpu --out out")

    # Done again, nothing is run, and the files are the same.
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    assert ", 0 done" not in fltrust(*COMMAND)
    assert {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()} == before


def test_the_commands_that_repeat_it_say_how_and_where_it_was_run(folder: Path) -> None:
    where = ["--precision", "float32", "--device", "cpu", "--data-dir", "my data"]
    words = ["redteam", "--dataset", "mnist-5k", "--rule", "mine", "--plugin", "my_rules.py", "--rounds", "1", "--attack", "trim"]
    fltrust(*words, "--shares", "5", "--seeds", "1", "--try", "none", *where, "--out", "out")
    found = written()
    told = "fltrust redteam --dataset mnist-5k --rule mine"
    assert re.fullmatch(
        rf"{told} .* --plugin my_rules.py --precision float32 --device cpu --data-dir 'my data' --out out", found["command"]
    )
    for one in found["runs"].values():
        own = " --plugin my_rules.py" if one["rule"] == "mine" else ""
        assert one["command"].endswith(f"{own} --device cpu --data-dir 'my data'")
        assert ("--plugin" in one["command"]) == bool(own)
    first = found["clean"]["runs"][0]
    fltrust(*shlex.split(found["runs"][first]["command"])[1:], "--out", "again")
    assert json.loads(Path("again/experiment.json").read_text())["key"] == first


def test_the_data_and_the_objective_of_plug_ins_are_run_and_repeated(folder: Path) -> None:
    Path("my_data.py").write_text(DATA)
    Path("my_objective.py").write_text(OBJECTIVE)
    words = ["redteam", "--dataset", "my-data", "--rule", "median", "--attack", "trim", "--plugin", "my_objective.py"]
    words += ["--plugin", "my_data.py", "--plugin", "my_rules.py", "--shares", "20", "--seeds", "1", "--try", "none", "--device", "cpu"]
    fltrust(*words, "--out", "out")
    found = written()
    for one in found["runs"].values():
        assert one["command"].endswith(" --plugin my_objective.py --plugin my_data.py --device cpu")
    first = found["clean"]["runs"][0]
    fltrust(*shlex.split(found["runs"][first]["command"])[1:], "--out", "again")
    assert json.loads(Path("again/experiment.json").read_text())["key"] == first


def test_a_rule_that_nothing_breaks_is_compared_with_plain_averaging_only(folder: Path) -> None:
    said = fltrust(*changed("--points", "100"))
    assert "Stage 4 of 4, plain averaging, for comparison, with 4 of 10 malicious" in said
    assert {type(one.run.rule) for one in read(Path("out")).all()} == {RULES["fltrust"], RULES["fedavg"]}


def test_interrupted_it_leaves_a_page_and_resumes_to_the_same_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fltrust(*COMMAND)
    whole = Path("out/redteam.json").read_bytes()
    Path("out").rename("whole")
    left = iter(range(4))

    def cut(*arguments: Any, **options: Any) -> Iterator[pool.Event]:
        for event in here(*arguments, **options):
            if next(left, None) is None:
                raise KeyboardInterrupt
            yield event

    monkeypatch.setattr(many, "execute", cut)
    from fltrust.cli.stopping import Stopped

    overall = "stopped: 4 of 9 runs finished and saved in out, and the changes are still to be planned; the same command resumes"
    with pytest.raises(Stopped, match=f"^{overall}$") as stopped:  # 1 of the stage's 4
        CliRunner().invoke(app, COMMAND, catch_exceptions=False)
    assert stopped.value.code == 130
    half = written()
    assert len(half["runs"]) == 4
    assert half["clean"] is not None
    assert any("not run yet" in one["why"] for one in half["not_run"])
    assert "Where FLTrust breaks" in Path("out/index.html").read_text()
    monkeypatch.setattr(many, "execute", here)
    fltrust(*COMMAND)
    assert Path("out/redteam.json").read_bytes() == whole


def test_a_rule_that_raises_is_named_and_the_rest_goes_on(folder: Path) -> None:
    words = changed(
        "--plugin", "my_rules.py", "--rule", "median,raises,raises-later", "--attack", "trim", "--shares", "20", "--try", "none"
    )
    said = fltrust(*words, code=1)
    assert "it raised ValueError: no <b>aggregate</b>" in said
    found = written()
    assert {one["rule"] for one in found["rules"]} == {"median"}
    assert len(found["rules"][0]["attacks"]) == 4  # none, trim and two searches
    reasons = {one["what"]: one["why"] for one in found["not_run"]}
    assert reasons["rule raises, attack none"] == "left out: it raised ValueError: no <b>aggregate</b>"
    (failed,) = {why for what, why in reasons.items() if "raises-later, attack none" in what}
    assert failed == f"failed: the plug-in {Path('my_rules.py').resolve()}, line 18: ZeroDivisionError: later"
    assert {why for what, why in reasons.items() if "raises-later, attack trim" in what} == {
        "not tried: the rule has no result without attack"
    }
    assert "no &lt;b&gt;aggregate&lt;/b&gt;" in Path("out/index.html").read_text()
    alone = fltrust(*changed("--plugin", "my_rules.py", "--rule", "raises", "--out", "alone"), code=1)
    assert "Warning: raises has no finished run without attack, so nothing can be said of it: left out: it raised ValueError" in alone
    assert written(Path("alone"))["breaking_point"] is None
    rival = ["--rule", "median,raises", "--attack", "trim", "--shares", "20", "--try", "none"]
    fltrust(*changed("--plugin", "my_rules.py", *rival, "--out", "rival"), code=1)  # left out before any run, and no other run fails


def test_a_task_that_does_not_learn_is_named_on_the_page_and_the_rest_goes_on(folder: Path) -> None:
    write_task(folder, learning_rate=1e-9)
    said = fltrust(*changed("--shares", "20", "--try", "none", "--attack", "trim"))
    assert "Warning: the task does not learn." in said
    assert "plain averaging, for comparison, with 2 of 10 malicious" in said  # nothing breaks it: the largest share
    assert written()["learns"] is False
    assert len(written()["curve"]) == 1
    assert "the task does not learn" in Path("out/index.html").read_text()


def test_runs_on_data_that_changed_do_not_stand_for_the_new_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*changed("--rule", "median", "--shares", "20", "--try", "none", "--attack", "trim")]
    fltrust(*words)
    before = Path("out/redteam.json").read_bytes()
    task = Path("my_task.py")
    task.write_text(task.read_text() + "# the same data\n")
    fltrust(*words)
    assert Path("out/redteam.json").read_bytes() == before
    monkeypatch.setattr("fltrust.cli.changed.plugins_of", lambda run: {"my_task.py": "another plug-in"})
    with pytest.raises(InputError, match=r"my_task\.py was changed, added or removed after \d+ runs in out"):
        fltrust(*words)
    task.write_text(task.read_text().replace("0.5 * rng", "50 * rng"))
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False)  # this process has loaded the task already
    assert done.returncode == 2
    used = r"fltrust: my_task\.py:build\(\) was changed, added or removed after \d+ runs in out"
    assert re.fullmatch(rf"{used}: choose another --out, or delete them, such as out/\S+\n", done.stderr)
    assert Path("out/redteam.json").read_bytes() == before


def test_a_rule_to_try_that_changed_is_named(folder: Path) -> None:
    words = [*changed("--attack", "trim", "--shares", "40", "--try", "mine", "--plugin", "my_rules.py")]
    fltrust(*words)
    before = Path("out/redteam.json").read_bytes()
    assert "mine instead" in {one["what"] for one in json.loads(before)["changes"]}
    with Path("my_rules.py").open("a") as file:
        file.write("# another one\n")
    with pytest.raises(InputError, match=r"my_rules\.py was changed, added or removed after \d+ runs in out"):
        fltrust(*words)


def test_mistakes_are_one_line_and_exit_code_2(folder: Path) -> None:
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    for words, said in (
        (["redteam"], "name your task with --task"),
        (["redteam", "--dataset", "mnist-5k"], "name the rule to attack, such as --rule fltrust"),
        (["redteam", "--demo", "--dataset", "har"], "--demo brings its own data"),
        (["redteam", "--task", "nowhere.py:build"], "nowhere.py"),
        (["redteam", "--task", "my_task.py:build", "--dataset", "har"], "both name the data"),
        ([*changed("--rule", "fltrst")], "did you mean 'fltrust'"),
        ([*changed("--points", "200")], "--points must be"),
        ([*changed("--shares", "")], "expected per cents above 0"),
        ([*changed("--shares", "1")], "no share is as much as one of 10 clients"),
        ([*changed("--out", "full")], "is not empty and holds no sweep"),
        ([*changed("--num-clients", "9000")], "there cannot be more of them"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            CliRunner().invoke(app, words, catch_exceptions=False)
    done = subprocess.run([*PROGRAM, *changed("--shares", "0")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "fltrust: --shares 0: expected per cents above 0 and below 100, such as 5,10,20,30,40,50\n",
    )


def test_the_demo_is_a_question_about_the_embedded_data() -> None:
    said = fltrust("redteam", "--demo", "--dry-run", "--out", "nowhere")
    assert "stage 1  without attack" in said
    assert "left out" not in said


@pytest.mark.parametrize(
    ("words", "cores", "jobs"),
    [(["--demo"], 2, 2), (["--demo"], 64, 4), (["--demo"], None, 1), (["--demo", "--jobs", "1"], 2, 1), (["--dataset", "mnist-5k"], 2, 1)],
)
def test_the_demo_has_a_run_on_each_core(words: list[str], cores: int | None, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[How] = []

    def team(screen: Console, question: Question, how: How, command: str) -> SimpleNamespace:
        asked.append(how)
        return SimpleNamespace(say_plan=lambda: None)

    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("fltrust.cli.redteam._Team", team)
    fltrust("redteam", *words, "--rule", "fltrust", "--dry-run")
    assert [how.at_once for how in asked] == [jobs]


def test_an_audit_file_that_is_damaged_counts_as_not_measured(tmp_path: Path) -> None:
    (tmp_path / "audits").mkdir()
    for text in ("{", "[]", "{}", '{"rounds": "1"}', '{"problem": "no client"}'):
        (tmp_path / "audits" / "key.json").write_text(text)
        assert noticed.kept("key", tmp_path) is None
    sides = {"malicious": 0.1, "honest": None}
    counts = {"rounds": 4, "malicious": 1, "found": 1, "hostile": 0, "honest": 2, "accused": 0}
    whole = {**counts, "since": 3, "evidence": "it is odd", "trust": sides, "share": sides}
    wrong = [{name: value for name, value in whole.items() if name != missing} for missing in whole]
    wrong += [{**whole, "since": "3"}, {**whole, "trust": {**sides, "honest": float("nan")}}, {**whole, "share": {"malicious": 0.1}}]
    wrong += [{**whole, "trust": {**sides, "honest": huge}} for huge in (10**400, float("inf"))]
    wrong += [{**whole, name: 10**400} for name in ("rounds", "since")]
    for damaged in wrong:  # a page of this would be wrong, or no page at all
        (tmp_path / "audits" / "key.json").write_text(json.dumps(damaged))
        assert noticed.kept("key", tmp_path) is None
    (tmp_path / "audits" / "key.json").write_text(json.dumps(whole))
    assert noticed.kept("key", tmp_path) == whole
    assert noticed.kept("other", tmp_path) is None


@pytest.mark.slow
def test_a_real_red_team_is_stopped_with_ctrl_c_and_resumed(folder: Path) -> None:
    words = [*changed("--shares", "40", "--try", "none")]
    hold = ["--plugin", str(Path(__file__).with_name("hold_trim.py"))]
    begun = subprocess.Popen(
        [*PROGRAM, *words, *hold], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: list(Path("out").glob("*/fltrust-none-*.json")) and list(Path("out").glob(".unfinished/*/records.jsonl")), begun)
    os.killpg(begun.pid, signal.SIGINT)
    said = begun.communicate()[1]
    assert begun.returncode == 130, said
    assert "the same command resumes" in said
    assert "did not run yet" in Path("out/index.html").read_text()
    fltrust(*words)
    found = written()
    assert found["breaking_point"]["survives"] in (0, 4)
    assert not [one for one in found["not_run"] if one["why"].startswith(("failed", "not run"))]


def test_a_run_with_another_root_set_says_so() -> None:
    run = Experiment.on("mnist-5k", "fltrust", "searched", root_size=80)
    assert ", aim mean, root set of 80: 0.050" in line_of(made_up(run), 40)
    assert "root set" not in line_of(made_up(run), 80)


def test_a_run_s_line_shows_the_number_that_its_file_holds(tmp_path: Path) -> None:
    run = Experiment.on("mnist-5k")
    events = (event for event in [pool.Finished(run, made_up(run, error=0.3174951))])
    how = How("cpu", None, None, None, None, [], out=tmp_path)
    screen = Console(file=io.StringIO(), width=200)
    many._follow(screen, events, [run], how, Results(), lambda result: many.numbers(result.error, None), lambda directory: None)
    stored = read(tmp_path).of(run)
    assert stored is not None
    assert isinstance(screen.file, io.StringIO)
    assert f"{stored.error:.3f}" == "0.318"
    assert "0.318\n" in screen.file.getvalue()
