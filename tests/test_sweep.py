"""Sweeps: the grid, what each rule survives, the words for it, and `fltrust sweep` as a user runs it."""

import csv
import dataclasses
import datetime
import io
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import small_attack, small_task
from made_up import made_up
from typer.testing import CliRunner
from waiting import MOST_SECONDS, until

from fltrust.attacks import ALIE, NoAttack, Scaling, TrimAttack
from fltrust.cli import app
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.paper import EXHIBITS
from fltrust.registry import ATTACKS, RULES, Absent
from fltrust.report import build
from fltrust.report.reading import Planned, read
from fltrust.report.repeat import run_command
from fltrust.report.survival import Board, Line, boards
from fltrust.report.survival_text import FORMATS, numbers
from fltrust.report.sweep import headline
from fltrust.report.words import name_of
from fltrust.rules import FedAvg, FLTrust, Krum, Rule, TrimmedMean
from fltrust.simulation import simulate
from fltrust.store import results
from fltrust.store.results import Result, Results
from fltrust.sweep import grid_of, plan
from fltrust.triggers import Trigger

# ---------------------------------------------------------------- the grid


def test_commas_within_braces_and_brackets_do_not_separate_values() -> None:
    settings = ["attack.trigger={where=[[0,0],[0,1]],value=1.0,target=0}", "rule.names=[1,2],3"]
    trigger = {"where": [[0, 0], [0, 1]], "value": 1.0, "target": 0}
    assert grid_of({}, {"lr_decay": "[[5,0.1],[9,0.2]]"}, settings).values == {
        "lr_decay": ([[5, 0.1], [9, 0.2]],),
        "attack.trigger": (trigger,),
        "rule.names": (1, 2, 3),
    }


@pytest.mark.parametrize(
    "rules", [["--rule", "fltrust,krum"], ["--rule", "fltrust", "--rule", "krum"]], ids=["with commas", "by repeating the option"]
)
@pytest.mark.parametrize("command", ["sweep", "redteam", "league", "worst-case", "reproduce"])
def test_every_command_takes_several_names_in_both_ways(tmp_path: Path, command: str, rules: list[str]) -> None:
    more = {"worst-case": ["--share", "20,40"], "reproduce": ["methods"], "redteam": ["--shares", "10", "--shares", "20", "--seeds", "1"]}
    data = "har" if command in ("worst-case", "league", "reproduce") else "mnist-5k"
    words = [command, *more.get(command, []), "--dataset", data, *rules, "--dry-run", "--device", "cpu", "--out", str(tmp_path / "out")]
    attacks = [] if command == "worst-case" else ["--attack", "trim", "--attack", "label-flip"]
    done = CliRunner().invoke(app, [*words, *attacks], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    # two rules, and two attacks or shares; a red team also runs none, and searches: two aims on Krum, three on FLTrust; before a search of
    # the worst-case table come six attacks
    many = {"sweep": 4, "redteam": 2 + 2 * 2 * 2 + 2 * (2 + 3), "league": 4, "reproduce": 4, "worst-case": 2 * (2 + 3) + 2 * 2 * 6}
    assert f"\n{many[command]} runs, 0 done" in done.output


def test_options_and_a_file_declare_the_same_grid() -> None:
    given = {"dataset": "mnist-5k", "rule": "fltrust,krum", "attack": "trim, alie", "malicious": "[1, 2]", "rounds": "20", "seeds": "2"}
    written = {
        "dataset": "mnist-5k",
        "rule": ["fltrust", "krum"],
        "attack": ["trim", "alie"],
        "malicious": [1, 2],
        "rounds": 20,
        "seeds": 2,
    }
    assert grid_of({}, given) == grid_of(written, {})
    assert grid_of({}, {}, ["rule.tolerate=1", "rule.tolerate=2,3"]).values == {"rule.tolerate": (1, 2, 3)}
    assert grid_of(written, {"attack": "none"}).values["attack"] == ("none",)  # an option overrides the file


def test_every_combination_is_a_run_and_krum_is_told_how_many_are_malicious() -> None:
    runs, left_out = plan(
        grid_of({}, {"dataset": "mnist-5k", "rule": "fltrust,krum", "attack": "trim,alie", "malicious": "1,3", "seeds": "2"})
    )
    assert left_out == []
    assert [run.seed for run in runs] == [0] * 8 + [1] * 8
    assert [(run.attack, run.malicious, run.rule) for run in runs[:8]] == [
        (attack, many, rule) for attack in (TrimAttack(), ALIE()) for many in (1, 3) for rule in (FLTrust(), Krum(tolerate=many))
    ]


def test_parameters_of_parts_and_fields_that_are_lists_can_be_varied() -> None:
    runs, _ = plan(grid_of({"dataset": "mnist-5k", "rule": "krum", "rule.tolerate": [1, 2]}, {}, ["attack.reach=2,3.5", "attack=trim"]))
    assert {(run.rule, run.attack) for run in runs} == {(Krum(tolerate=t), TrimAttack(reach=reach)) for t in (1, 2) for reach in (2.0, 3.5)}
    fixed = {"dataset": "mnist-5k", "rule": [{"name": "krum", "tolerate": 2}, "fedavg"], "malicious": [1, 2]}
    assert {run.rule for run in plan(grid_of(fixed, {})).runs} == {Krum(tolerate=2), FedAvg()}
    for written, decays in (([[10, 0.5]], [((10, 0.5),)]), ([[], [[10, 0.5]]], [(), ((10, 0.5),)])):
        runs, _ = plan(grid_of({"dataset": "mnist-5k", "lr_decay": written}, {}))
        assert [run.lr_decay for run in runs] == decays
    runs, _ = plan(grid_of({}, {"dataset": "mnist-5k", "bias": "0.1,0.5", "seed": "3,7"}))
    assert [(run.bias, run.seed) for run in runs] == [(0.1, 3), (0.5, 3), (0.1, 7), (0.5, 7)]


def test_without_malicious_clients_attacks_are_one_run_unless_a_backdoor_is_measured() -> None:
    runs, _ = plan(grid_of({}, {"dataset": "mnist-5k", "rule": "fedavg", "attack": "none,trim,alie,scaling", "malicious": "0"}))
    assert [type(run.attack) for run in runs] == [NoAttack, Scaling]


@pytest.mark.parametrize("attack", ["trim", "krum", "alie", "label-flip", "min-max", "mimic", "poisonedfl", "adaptive"])
def test_an_attack_without_malicious_clients_is_no_attack_to_the_last_bit(attack: str) -> None:
    ends = []
    for chosen in (small_attack(attack), NoAttack()):
        task = small_task(malicious=0, attack=chosen)
        numbers: dict[str, Any] = {
            "num_clients": 6,
            "clients_per_round": 6,
            "malicious": 0,
            "rounds": 3,
            "evaluate_every": 3,
            "global_lr": 0.05,
        }
        run = Experiment("mine", "mine", FLTrust(), chosen, loss="mean", **numbers)
        ends.append(list(simulate(run, task))[-1])
    assert torch.equal(*(end.weights for end in ends))  # type: ignore[arg-type]
    assert ends[0].metrics == ends[1].metrics


def test_what_makes_no_sense_is_named_and_left_out() -> None:
    given = {"dataset": "mnist-5k", "rule": "bulyan,fedavg", "attack": "trim", "malicious": "4,5,21"}
    runs, left_out = plan(grid_of({}, given))
    assert {(run.rule, run.malicious) for run in runs} == {(FedAvg(), 4), (FedAvg(), 5), (RULES["bulyan"](tolerate=4), 4)}
    assert [one.what for one in left_out] == ["malicious 5, rule bulyan", "malicious 21, rule bulyan", "malicious 21, rule fedavg"]
    assert left_out[0].why == "Bulyan cannot tolerate 5 of 20: it needs at least 23 clients"
    assert left_out[2].why.startswith("malicious must be 0 to 20")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rule": "kum"}, "did you mean 'krum'"),
        ({"rule": "nnm+kum"}, "did you mean 'krum'"),
        ({"attack": "trm"}, "did you mean 'trim'"),
        ({"dataset": "mnist5k"}, "did you mean"),
        ({"rounds": "ten"}, "rounds"),
        ({"malicious": "0,x"}, "malicious"),
        ({"rule": "krum,,fltrust"}, "a value is missing"),
        ({"rule": "[]"}, "names no value"),
        ({"seeds": "0"}, "seeds must be a whole number from 1 to 10,000, not 0"),
        ({"seeds": "1000000000"}, "not 1000000000"),
        ({"seeds": "2", "seed": "1,2"}, "both seed and seeds"),
        ({"rule": "bulyan", "malicious": "9"}, "Bulyan cannot tolerate 9 of 20"),  # nothing is left to run
    ],
)
def test_mistakes_are_refused_before_anything_runs(given: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        plan(grid_of({}, {"dataset": "mnist-5k", **given}))


def test_a_seed_that_is_named_twice_is_run_once() -> None:
    runs, _ = plan(grid_of({"dataset": "mnist-5k", "seed": [3, 1, 3]}, {}))
    assert [run.seed for run in runs] == [3, 1]


def test_a_parameter_has_the_value_that_the_file_gives_it() -> None:
    trigger = {"where": [[0]], "value": 1.0, "target": 2}
    (run,) = plan(grid_of({"dataset": "mnist-5k", "attack": "scaling", "attack.trigger": trigger}, {})).runs
    assert run.attack.trigger == Trigger(where=((0,),), value=1.0, target=2)
    for value, said in ((datetime.date(2020, 1, 1), "expected a whole number"), ("😀", "tolerate cannot be '😀'")):
        with pytest.raises(InputError, match=said):
            plan(grid_of({"dataset": "mnist-5k", "rule": "krum", "rule.tolerate": value}, {}))


def test_a_threshold_that_is_no_number_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fltrust", "report", "--threshold", "nan"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fltrust: --threshold must be a number from 0 to 1, not nan\n"


def test_an_unknown_field_of_a_file_is_refused() -> None:
    with pytest.raises(InputError, match="unknown field 'rles'"):
        grid_of({"rles": ["krum"]}, {})
    with pytest.raises(InputError, match="unknown field 'clients': did you mean 'num_clients'"):
        grid_of({"clients": 5}, {})
    with pytest.raises(InputError, match=r"expected PART\.PARAMETER=VALUE"):
        grid_of({}, {}, ["rule.tolerate"])


# ---------------------------------------------------------------- what a rule survives


def result(rule: Any, attack: Any, malicious: int, error: float, success: float = 0.0, seed: int = 0, **changes: Any) -> Result:
    return made_up(Experiment.on("mnist-5k", rule, attack, malicious=malicious, **changes), error=error, success=success, seed=seed)


def board_of(*some: Result, threshold: float = 0.05) -> Board:
    (board,) = boards(Results(some), threshold)
    return board


def line_of(board: Board, rule: str, attack: str) -> Line:
    return next(line for line in board.lines if (line.rule, line.attack) == (rule, attack))


@pytest.mark.parametrize(
    ("errors", "survival"),
    [
        ({0: 0.05, 1: 0.06, 2: 0.10, 3: 0.11}, (2, 3)),  # 0.10 is at the threshold
        ({0: 0.05, 1: 0.06, 2: 0.10}, (2, None)),  # nothing that was tested harms it
        ({0: 0.05, 1: 0.30, 2: 0.05}, (0, 1)),  # every smaller number counts
        ({0: 0.05, 2: 0.05, 6: 0.9}, (2, 6)),
        ({0: 0.05}, None),  # nobody attacked
        ({1: 0.05, 2: 0.9}, None),  # nothing was run without attack
    ],
)
def test_a_rule_survives_until_the_first_number_that_harms_it(errors: dict[int, float], survival: Any) -> None:
    board = board_of(*(result("fedavg", "trim", many, error) for many, error in errors.items()))
    assert line_of(board, "fedavg", "trim").survival(0.05) == survival


def test_means_over_seeds_count() -> None:
    some = [result("fedavg", "trim", 0, 0.05, seed=seed) for seed in (0, 1)]
    some += [result("fedavg", "trim", 1, error, seed=seed) for seed, error in enumerate((0.02, 0.17))]
    line = line_of(board_of(*some), "fedavg", "trim")
    assert line.points[1].error.mean == pytest.approx(0.095)
    assert line.survival(0.05) == (1, None)
    assert line.survival(0.04) == (0, 1)


def test_a_backdoor_that_works_is_harm_beyond_what_happens_without_attack() -> None:
    some = [result("fedavg", "scaling", many, 0.05, success) for many, success in ((0, 0.1), (1, 0.14), (2, 0.2))]
    assert line_of(board_of(*some), "fedavg", "scaling").survival(0.05) == (1, 2)
    without = [result("fedavg", "none", 0, 0.05), *some[1:]]  # its success was not measured there
    assert line_of(board_of(*without), "fedavg", "scaling").survival(0.05) == (0, 1)


def test_no_attack_is_what_each_rule_is_measured_against() -> None:
    some = [result("krum", "none", 4, 0.3), result("fedavg", "none", 4, 0.05)]
    some += [result(rule, "trim", 4, 0.32) for rule in ("krum", "fedavg")]
    board = board_of(*some)
    assert line_of(board, "krum", "trim").survival(0.05) == (4, None)
    assert line_of(board, "fedavg", "trim").survival(0.05) == (0, 4)
    assert [row.rule for row in board.rows] == ["krum", "fedavg"]  # what survives most comes first


def test_lines_begin_without_malicious_clients_whichever_attack_that_was_run_with() -> None:
    board = board_of(result("fedavg", "none", 0, 0.04), result("fedavg", "trim", 1, 0.05), result("fedavg", "scaling", 1, 0.05, 0.3))
    for attack in ("trim", "scaling"):
        line = line_of(board, "fedavg", attack)
        assert [(point.malicious, point.borrowed) for point in line.points] == [(0, True), (1, False)]
        assert line.points[0].success is None
    assert numbers([board]).count("\n") == 4  # a head, and each number once


def test_the_worst_attack_is_the_one_survived_least() -> None:
    some = [result("fedavg", "none", 0, 0.04)]
    some += [result("fedavg", attack, many, error) for attack, error in (("trim", 0.5), ("alie", 0.05), ("ipm", 0.9)) for many in (1, 2)]
    worst = board_of(*some).rows[0].worst(0.05)
    assert worst
    assert (worst[0], worst[1].attack) == ((0, 1), "ipm")


def test_of_attacks_that_break_a_rule_at_the_same_share_the_worst_there_counts() -> None:
    some = [result("fedavg", "none", 0, 0.04)]
    some += [
        result("fedavg", attack, many, error)
        for attack, errors in (("trim", (0.5, 0.6)), ("ipm", (0.3, 0.9)))
        for many, error in zip((1, 2), errors, strict=True)
    ]
    worst = board_of(*some).rows[0].worst(0.05)
    assert worst
    assert (worst[0], worst[1].attack) == ((0, 1), "trim")


def test_an_attack_that_was_tested_little_hides_none_that_harms() -> None:
    some = [result("fedavg", "none", 0, 0.04), result("fedavg", "alie", 1, 0.05)]
    some += [result("fedavg", "trim", many, error) for many, error in ((1, 0.05), (2, 0.05), (3, 0.9))]
    board = board_of(*some)
    worst = board.rows[0].worst(0.05)
    assert worst
    assert (worst[0], worst[1].attack) == ((2, 3), "trim")
    assert headline(board, 0.05) == ["fedavg survives 2 of 20 malicious clients (10%); 3 harm it (attack trim)"]


def test_rules_and_attacks_are_told_apart_by_their_parameters() -> None:
    some = [result(rule, "none", many, 0.05) for rule in ("krum", {"name": "krum", "tolerate": 2}) for many in (0, 2, 4)]
    some += [result("nnm+krum", {"name": "trim", "knowledge": "partial"}, many, 0.05) for many in (2, 4)]
    some += [result("fltrust", "scaling", 4, 0.05), result("fltrust", {"name": "scaling", "factor": 3.0}, 4, 0.05)]
    board = board_of(*some)
    assert {row.rule for row in board.rows} == {"krum", "krum, tolerate 2", "nnm+krum", "fltrust"}
    assert [point.malicious for point in line_of(board, "krum, tolerate 2", "none").points] == [0, 2, 4]
    assert [point.malicious for point in line_of(board, "krum", "none").points] == [0, 2, 4]
    assert board.attacks == ("none", "scaling", "scaling, factor 3.0", "trim, knowledge partial")
    alone = board_of(*(result({"name": "krum", "tolerate": 2}, "none", many, 0.05) for many in (0, 2, 4)))
    assert [row.rule for row in alone.rows] == ["krum, tolerate 2"]


def test_settings_make_boards_sorted_by_number() -> None:
    found = Results(result("fedavg", "trim", 4, 0.1, bias=bias, rounds=rounds) for bias in (0.5, 0.1) for rounds in (300, 1000, 50))
    assert [board.settings for board in boards(found)] == [
        f"bias {bias}, rounds {rounds}" for bias in (0.1, 0.5) for rounds in (50, 300, 1000)
    ]


def test_rules_whose_plug_in_is_not_loaded_come_last() -> None:
    known = [result("fedavg", "trim", many, 0.05 + 0.4 * bool(many)) for many in (0, 1)]
    run = Experiment.on("mnist-5k", "fedavg", "trim")
    unknown = [
        made_up(Experiment(**{**vars(run), "rule": Absent(RULES, "mine", (("beta", "0.5"),)), "malicious": many})) for many in (0, 1)
    ]
    board = board_of(*unknown, *known)
    assert [(row.rule, row.known) for row in board.rows] == [("fedavg", True), ("mine, beta 0.5", False)]
    assert line_of(board, "mine, beta 0.5", "trim").survival(0.05) == (1, None)


def test_the_first_sentence_says_if_a_rule_survives_because_it_learns_little() -> None:
    survives = [result("fltrust", "trim", many, 0.5) for many in (0, 1)]
    harmed = [result("fedavg", "trim", many, 0.1 + 0.4 * bool(many)) for many in (0, 1)]
    first, second = headline(board_of(*survives, *harmed), 0.05)
    assert first.endswith("malicious clients (5%). Its error without attack is 0.500; the best rule has 0.100")
    assert "the best rule" not in second


# ---------------------------------------------------------------- as text


def test_tables_say_what_survives_and_what_that_means() -> None:
    some = [result(rule, "none", 0, 0.05) for rule in ("fedavg", "krum")]
    some += [result("fedavg", "trim", many, 0.04 * many) for many in (1, 2, 3)] + [result("krum", "alie", 1, 0.05)]
    text = FORMATS["markdown"]([board_of(*some)], 0.05)
    assert "| rule | worst attack | error without attack | trim | alie |" in text
    assert "| krum | ≥ 1 (alie) | 0.050 | not run | ≥ 1 |" in text
    assert "| fedavg | 2 (trim) | 0.050 | 2 | not run |" in text
    assert "at most 0.05 above its own error without attack" in text
    assert r"$\geq$ 1 (alie)" in FORMATS["latex"]([board_of(*some)], 0.05)
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"]([board_of(*some)], 0.05))))
    assert [(row["rule"], row["attack"], row["survives_up_to"], row["share"], row["harmed_by"]) for row in rows] == [
        ("fedavg", "trim", "2", "0.1000", "3"),
        ("krum", "alie", "1", "0.0500", ""),
    ]


@pytest.mark.parametrize("name", ["=cmd()", "\t=cmd()", "\r=cmd()", " \n=cmd()"])
def test_names_from_files_are_no_formulas_of_a_spreadsheet(name: str) -> None:
    run = Experiment.on("mnist-5k", "fedavg", "trim")
    evil = [made_up(Experiment(**{**vars(run), "rule": Absent(RULES, name, ()), "malicious": many})) for many in (0, 1)]
    rows = list(csv.DictReader(io.StringIO(numbers([board_of(*evil)]), newline="")))
    assert [row["rule"] for row in rows] == ["'=cmd()"] * 2


# ---------------------------------------------------------------- reading, and what it must not do


def test_a_report_runs_no_file_that_a_run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's data set may be a Python file. Whoever is sent a folder of runs must be able to look at it."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('hacked', 'w').close()\n")
    run = Experiment.on("mnist-5k", "fedavg", "trim")
    for malicious in (0, 1):
        results.write(made_up(Experiment(**{**vars(run), "dataset": "evil.py:build", "malicious": malicious})), Path("in"))
    Path("in/sweep.json").write_text('{"planned": {}, "left_out": {}}')
    made = build([Path("in")], Path("out"))
    assert len(made.boards[0].results) == 2
    assert not Path("hacked").exists()
    command = run_command(made.boards[0].results[0].run)
    assert 'dataset = "evil.py:build"' in command
    assert command.endswith("fltrust run experiment.toml")


@pytest.mark.parametrize(("name", "parameters"), [("\ud800", ()), ("mine", (("a b", "1"),)), ("\x7f", ()), ("😀", ())])
def test_a_name_that_toml_cannot_hold_stops_no_report(name: str, parameters: tuple[tuple[str, str], ...]) -> None:
    run = dataclasses.replace(Experiment.on("mnist-5k", "fedavg", "trim"), rule=cast(Rule, Absent(RULES, name, parameters)))
    for one in (run, dataclasses.replace(run, dataset="my.py:build")):
        assert "fltrust run" in run_command(one) or run_command(one).startswith("# a plug-in made this run")


def test_a_damaged_plan_stops_no_report(tmp_path: Path) -> None:
    for many in (0, 1):
        results.write(result("fedavg", "trim", many, 0.1), tmp_path)
    for content in ("[1]", '{"planned": [], "left_out": {}}', '{"planned": {"k": 3}, "left_out": {}}'):
        (tmp_path / "sweep.json").write_text(content)
        found = read([tmp_path])
        assert len(found.results.all()) == 2
        assert [problem.what for problem in found.problems] == [str(tmp_path / "sweep.json")]


def test_a_damaged_result_is_listed_once(tmp_path: Path) -> None:
    some = [result("fedavg", "trim", many, 0.1) for many in (0, 1, 2)]
    plan = Planned({}, {}, {}).and_also([one.run for one in some], [])
    (tmp_path / "sweep.json").write_text(json.dumps(plan._asdict()))
    results.write(some[0], tmp_path)
    damaged = results.write(some[1], tmp_path)
    damaged.write_text("{")
    first, second = read([tmp_path]).problems
    assert first.what == str(damaged)
    assert (second.what, second.why.partition(":")[0]) == (name_of(some[2].run), "not run, or failed")


# ---------------------------------------------------------------- the command

PROGRAM = [sys.executable, "-c", "from fltrust.cli import main; main()"]
RULE = """
from dataclasses import dataclass
from fltrust import RULES, FedAvg

@RULES.register("mine")
@dataclass(frozen=True)
class Mine(FedAvg):
    "The mean."

    beta: float = 0.5
"""
SETTINGS = """
model = "logistic"
num_clients = 6
malicious = 1
rounds = 4
batch_size = 4
global_lr = 0.05
bias = 0.5
root_size = 6
evaluate_every = 2
"""


def fltrust(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=MOST_SECONDS, env={**os.environ, "COLUMNS": "200"}
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rule of one's own, and data of one's own: three classes of points."""
    (tmp_path / "my_rules.py").write_text(RULE)
    data = tmp_path / "points"
    data.mkdir()
    (data / "task.toml").write_text(SETTINGS)
    rng = np.random.default_rng(0)
    for part, count in (("train", 120), ("test", 30)):
        labels = np.arange(count) % 3
        np.save(data / f"{part}_targets.npy", labels)
        np.save(data / f"{part}_inputs.npy", (np.eye(3)[labels] + 0.3 * rng.standard_normal((count, 3))).astype(np.float32))
    (tmp_path / "grid.toml").write_text('rule = ["mine", "bulyan"]\nattack = ["sign-flip", "trim"]\nmalicious = [0, 1, 2]\nseeds = 2\n')
    return tmp_path


COMMAND = ["sweep", "grid.toml", "--task", "points", "--plugin", "my_rules.py", "--device", "cpu", "--out", "out"]


@pytest.mark.slow
def test_a_sweep_is_planned_killed_resumed_and_answers(folder: Path) -> None:
    planned = fltrust(*COMMAND, "--dry-run", cwd=folder)
    assert planned.returncode == 0, planned.stderr
    assert "left out: attack sign-flip, malicious 1, rule bulyan, and 1 more: Bulyan cannot tolerate 1 of 6" in planned.stdout
    assert "12 runs, 0 done, 12 to do" in planned.stdout  # mine: 0 once, 1 and 2 under two attacks; bulyan: 0 alone; two seeds
    assert not (folder / "out").exists()
    hold = ["--plugin", str(Path(__file__).with_name("hold_trim.py"))]
    begun = subprocess.Popen([*PROGRAM, *COMMAND, *hold], cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: list(folder.glob("out/.unfinished/*/records.jsonl")) and len(list(folder.glob("out/points/*.json"))) == 4, begun)
    refused = fltrust(*COMMAND, "--seeds", "3", cwd=folder)
    assert (refused.returncode, refused.stderr) == (2, "fltrust: out/.unfinished is in use by another process\n")
    assert len(json.loads((folder / "out" / "sweep.json").read_text())["planned"]) == 12  # the other's plan
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    before = {path: path.read_bytes() for path in folder.glob("out/points/*.json")}
    assert len(before) == 4  # no attack: mine, bulyan; sign-flip: mine with 1, with 2; then Trim is held
    half = fltrust("report", "out", "--out", "half", cwd=folder)
    assert half.returncode == 0, half.stderr
    assert "in no table" in half.stdout  # what was planned and not run, and what was left out
    damaged = next(iter(before))
    damaged.write_text("{")
    done = fltrust(*COMMAND, "--jobs", "2", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"damaged, so it counts as not run: {damaged.relative_to(folder)}" in done.stdout
    assert f"12 runs, {len(before) - 1} done, {13 - len(before)} to do" in done.stdout
    assert before.items() - {(damaged, before[damaged])} <= {path: path.read_bytes() for path in folder.glob("out/points/*.json")}.items()
    assert re.search(r"rule +worst attack +no attack +trim +sign-flip", done.stdout)
    assert "out/report/index.html: open it in a browser" in done.stdout
    assert "12 runs, 12 done, 0 to do" in fltrust(*COMMAND, cwd=folder).stdout
    text = fltrust("sweep", "--out", "out", "--plugin", "my_rules.py", "--format", "csv", cwd=folder)
    assert {line.split(",")[2] for line in text.stdout.splitlines()[1:]} == {"mine"}
    page = (folder / "out" / "report" / "index.html").read_text()
    assert "Bulyan cannot tolerate 2 of 6" in page
    assert "not run, or failed" not in page
    assert fltrust("report", "out", "--out", "bare", cwd=folder).returncode == 0
    assert "not run, or failed" not in (folder / "bare" / "index.html").read_text()  # neither without the plug-in


def test_a_mistake_in_a_file_is_said_with_the_files_name(folder: Path) -> None:
    (folder / "grid.toml").write_text('seed = "3"\n')
    refused = fltrust(*COMMAND, cwd=folder)
    assert (refused.returncode, refused.stderr) == (2, "fltrust: grid.toml: seed cannot be '3': expected a whole number\n")


@pytest.mark.slow
def test_a_sweep_grows_in_its_folder_and_takes_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)

    def sweep(*arguments: str) -> str:
        short = ["--rule", "fedavg", "--rounds", "1", "--evaluate-every", "1", "--device", "cpu"]
        app(["sweep", "--task", "points", *short, *arguments], standalone_mode=False)
        return capsys.readouterr().out

    sweep("--attack", "none")
    (made,) = Path("sweeps").iterdir()  # named after the grid
    assert "2 runs, 1 done, 1 to do" in sweep("--attack", "none,sign-flip", "--out", str(made))
    assert len(json.loads((made / "sweep.json").read_text())["planned"]) == 2
    assert sweep("--out", str(made), "--format", "md") == sweep("--out", str(made), "--format", "markdown") != ""
    for arguments, said in (
        (["--out", "points"], "points is not empty and holds no sweep: choose another --out"),
        (["--dataset", "mnist-5k"], "--task and --dataset both name the data"),
        (["--out", str(made), "--format", "html"], "unknown format 'html'; known: csv, latex, markdown"),
        (["--format", "csv"], "name it with --out"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            sweep(*arguments)


# ---------------------------------------------------------------- the documentation


def test_the_table_of_the_documentation_is_what_the_results_say() -> None:
    """Figure 6's runs and Table III's, without those that tell Krum and Trim-mean to expect nobody."""
    root = Path(__file__).parent.parent
    cells = [cell for name in ("malicious", "methods") for cell in EXHIBITS[name].cells if cell.run.dataset == "mnist-0.5"]
    declared = [cell.run for cell in cells if cell.run.rule not in (Krum(tolerate=0), TrimmedMean(trim=0))]
    runs = {one.key: one for run in declared for seed in range(3) for one in (dataclasses.replace(run, seed=seed, precision="float16"),)}
    files = [file for run in runs.values() if (file := results.file_of(run, root / "results")).exists()]
    found = Results(results.from_json(json.loads(file.read_text()), file) for file in files)
    text = FORMATS["markdown"](boards(found), 0.05)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 7
    documented = (root / "docs" / "sweep.md").read_text()
    assert "\n".join(table) in documented
    assert f"{len(found.all())} runs" in documented


def test_the_grid_of_the_documentation_leaves_out_what_it_says() -> None:
    text = (Path(__file__).parent.parent / "docs" / "sweep.md").read_text()
    (written,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    runs, left_out = plan(grid_of(tomllib.loads(written), {}))
    assert {ATTACKS.name_of(run.attack) for run in runs} == {"none", "trim", "alie"}
    assert left_out
    assert all("attack scaling" in one.what and "unknown parameter of scaling 'knowledge'" in one.why for one in left_out)
