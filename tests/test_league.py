"""The league: what it consists of, in which order it runs, what is made of its results, and `fltrust league` as a user runs it."""

import csv
import dataclasses
import io
import itertools
import re
from pathlib import Path

import pytest
from made_up import made_up
from one_command import Program, assert_damage_is_named, assert_refused, program_of

from fltrust.errors import InputError
from fltrust.league import BOARDS, COLUMNS, ROWS, Board, Cell, Column, Row, cells, chosen, plan
from fltrust.league.table import ATTACKS_LEFT_OUT, IMPOSSIBLE, RULES_LEFT_OUT
from fltrust.paper import EXHIBITS
from fltrust.paper.exhibit import declared
from fltrust.registry import ATTACKS, DATASETS, RULES, Registry
from fltrust.report.league_text import FORMATS
from fltrust.report.repeat import league_command
from fltrust.report.standings import Standings, standings, whole_league
from fltrust.rules import Krum, Rule
from fltrust.rules.rule import try_rule
from fltrust.running.pool import Tasks, run_to_result
from fltrust.store.results import Result, Results

# ---------------------------------------------------------------- what it consists of


def ours(registry: Registry) -> set[str]:
    """Registered by this package, and not by a test."""
    return {name for name in registry if registry[name].__module__.startswith("fltrust.")}


def test_data_with_few_rounds_are_evaluated_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    short = dataclasses.replace(DATASETS["har"], settings={**DATASETS["har"].settings, "rounds": 4})
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
    DATASETS.register("short")(short)
    run = declared("short", "fedavg", "none")
    assert (run.rounds, run.evaluate_every) == (4, 1)


def test_every_rule_is_in_the_league_or_left_out_for_a_reason() -> None:
    parts = {part for row in ROWS for part in row.name.split("+")}
    alone = {row.name for row in ROWS}
    assert ours(RULES) == parts | RULES_LEFT_OUT.keys()
    assert not alone & RULES_LEFT_OUT.keys()
    assert all(RULES_LEFT_OUT.values())


def test_every_attack_is_in_the_league_or_left_out_for_a_reason() -> None:
    listed = {column.registered for column in COLUMNS}
    assert ours(ATTACKS) == listed | ATTACKS_LEFT_OUT.keys()
    assert not listed & ATTACKS_LEFT_OUT.keys()


@pytest.mark.parametrize("board", BOARDS.values(), ids=list(BOARDS))
def test_a_board_has_every_cell_once(board: Board) -> None:
    found = cells(board)
    assert len(found) == len(board.rows) * len(board.columns)
    keys = [cell.run.key for cell in found if cell.run]
    assert len(set(keys)) == len(keys)
    assert all((cell.run is None) == bool(cell.impossible) for cell in found)
    for cell in found:
        assert cell.run is None or 5 * cell.run.malicious == cell.run.num_clients
    assert bool(board.reduced) == ((board.rows, board.columns) != (ROWS, COLUMNS))


def test_a_rule_expects_the_malicious_clients() -> None:
    (board,) = chosen(["mnist-0.5"], ["krum"], ["none"])
    (cell,) = cells(board)
    assert cell.run
    assert cell.run.rule == Krum(tolerate=20)
    assert cell.run.rounds == 2000


@pytest.mark.parametrize("board", BOARDS.values(), ids=list(BOARDS))
def test_every_rule_works_with_the_clients_there_are(board: Board) -> None:
    runs = [cell.run for cell in cells(dataclasses.replace(board, columns=board.columns[:1])) if cell.run]
    assert [refusal for run in runs if (refusal := try_rule(run.rule, run.clients_per_round, run.num_clients))] == []


def test_runs_of_the_papers_tables_count() -> None:
    planned = {run.key for run in plan(chosen(), seeds=1)}
    columns = {cell.column for cell in cells(BOARDS["cifar-10"])}
    for cell in EXHIBITS["methods"].cells:
        if cell.run.dataset in ("mnist-0.5", "fashion-mnist", "har"):
            assert cell.run.key in planned
        elif cell.run.dataset == "cifar-10" and ATTACKS.name_of(cell.run.attack) in {column.registered for column in columns}:
            assert cell.run.key in planned  # with CIFAR-10's own settings and trigger


def test_a_part_of_the_plan_is_worth_having() -> None:
    runs = plan(chosen(["har", "mnist-0.5"]), seeds=2)
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    first = [run for run in runs if run.seed == 0]
    assert [run.dataset for run in first] == sorted(run.dataset for run in first)
    attacks = [run.attack for run in first if run.dataset == "har"]
    assert len(list(itertools.groupby(attacks))) == len(set(attacks))  # each in one go
    for attack in set(attacks):
        waits = [run.rule.on_host for run in first if run.dataset == "har" and run.attack == attack]
        assert waits == sorted(waits, reverse=True)  # the slow ones first


def test_a_combination_that_cannot_work_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IMPOSSIBLE, ("har", "trim"), "because")
    (board,) = chosen(["har"], ["krum"], ["trim", "none"])
    trim, none = cells(board)
    assert (trim.run, trim.impossible) == (None, "because")
    assert none.run
    assert len(plan([board], seeds=1)) == 1
    table = standings(board, Results())
    assert table.possible == 1
    assert "because" in FORMATS["csv"]([table])
    assert "left out" in FORMATS["markdown"]([table])
    without_trigger = cells(chosen(["shakespeare"], ["krum"], ["scaling"])[0])
    assert [cell.impossible for cell in without_trigger] == ["this data set has no trigger for a backdoor"]
    (board,) = chosen(["shakespeare"], ["krum"], ["searched"])  # it has a trigger only if it aims at a backdoor
    assert [(cell.impossible, cell.column.targeted) for cell in cells(board)] == [("", False)]


# ---------------------------------------------------------------- what is made of its results

NONE, FLIP, TRIM, SCALING = (column for column in COLUMNS if column.name in ("none", "label-flip", "trim", "scaling"))
SMALL = Board("har", (Row("fedavg", baseline=True), Row("krum"), Row("median")), (NONE, FLIP, TRIM, SCALING))


def run_of(rule: str, column: Column) -> Cell:
    return next(cell for cell in cells(SMALL) if cell.row.name == rule and cell.column == column)


def result(rule: str, column: Column, error: float, success: float = 0.0, seed: int = 0) -> Result:
    run = run_of(rule, column).run
    assert run
    return made_up(run, error=error, success=success, seed=seed)


def filled() -> Results:
    """FedAvg falls to a backdoor, Krum to an error, Median lacks an attack."""
    return Results(
        [
            *(result("fedavg", NONE, error, seed=seed) for seed, error in enumerate((0.02, 0.04))),
            result("fedavg", FLIP, 0.2),
            *(result("fedavg", TRIM, error, seed=seed) for seed, error in enumerate((0.3, 0.4))),
            result("fedavg", SCALING, 0.05, 0.9),
            result("krum", NONE, 0.5),  # nobody attacks: not the worst attack
            result("krum", FLIP, 0.1),
            result("krum", TRIM, 0.11),
            result("krum", SCALING, 0.45, 0.2),
            result("median", NONE, 0.03),
            result("median", FLIP, 0.04),
            result("median", SCALING, 0.03, 0.01),
        ]
    )


def test_the_worst_attack_is_found_and_a_backdoor_that_works_is_a_failure() -> None:
    table = standings(SMALL, filled())
    assert [one.row.name for one in table.rows] == ["krum", "fedavg", "median"]  # the last was not attacked by all
    krum, fedavg, median = table.rows
    assert krum.worst_error is not None
    assert (krum.worst_error.number.mean, krum.worst_error.place.cell.column) == (0.45, SCALING)
    assert fedavg.worst_error is not None
    assert fedavg.worst_error.number.ours == (0.3, 0.4)
    assert fedavg.worst_success is not None
    assert (fedavg.worst_success.number.mean, fedavg.harm, krum.harm) == (0.9, 0.9, 0.45)
    assert (median.whole, median.ran, len(median.attacked), krum.whole) == (False, 2, 3, True)
    assert table.reference == pytest.approx(0.03)
    assert (len(table.counts), table.possible) == (11, 12)


def test_a_round_is_timed_on_one_hardware_only() -> None:
    one = dataclasses.replace(result("krum", NONE, 0.1), seconds=10.0)
    other = dataclasses.replace(result("krum", FLIP, 0.1), seconds=30.0)
    there = dataclasses.replace(result("krum", TRIM, 0.1), seconds=1.0, about={**one.about, "hardware": "elsewhere"})
    resumed = dataclasses.replace(result("krum", SCALING, 0.1), seconds=None)
    table = standings(SMALL, Results([one, other, there, resumed]))
    krum = next(row for row in table.rows if row.row.name == "krum")
    assert krum.milliseconds == pytest.approx(1000 * 20.0 / one.run.rounds)
    assert table.hardware == "made up, float32"


def test_a_rule_of_ones_own_has_a_row_in_the_report() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(Rule):
        """Not in the list."""

    base = result("fedavg", TRIM, 0.1)
    own = dataclasses.replace(base, run=dataclasses.replace(base.run, rule=Mine()))
    longer = dataclasses.replace(base, run=dataclasses.replace(base.run, rule=Krum(tolerate=2)))  # a rule of the list, but not its row
    table = next(table for table in whole_league(Results([base, own, longer])) if table.board.dataset == "har")
    (row,) = (one for one in table.rows if one.row.name == "Mine")
    assert (row.ran, row.harm) == (1, 0.1)
    assert len(table.rows) == len(BOARDS["har"].rows) + 1


def test_exports() -> None:
    table = standings(SMALL, filled())
    lines = list(csv.DictReader(io.StringIO(FORMATS["csv"]([table]))))
    assert len(lines) == 12
    (trim,) = (line for line in lines if (line["rule"], line["attack"]) == ("fedavg", "trim"))
    assert (trim["error"], trim["error_spread"], trim["seeds"], trim["success"], trim["baseline"]) == ("0.35000", "0.07071", "2", "", "1")
    (absent,) = (line for line in lines if (line["rule"], line["attack"]) == ("median", "trim"))
    assert (absent["error"], absent["seeds"], absent["note"]) == ("", "0", "not run")
    (scaling,) = (line for line in lines if (line["rule"], line["attack"]) == ("krum", "scaling"))
    assert (scaling["success"], scaling["success_spread"]) == ("0.20000", "")
    text = FORMATS["markdown"]([table])
    assert "| FedAvg (baseline) | 0.350 ± 0.071 (Trim) | 0.900 (Scaling) |" in text
    assert "| Median | ≥ 0.040 (Label flipping) | ≥ 0.010 (Scaling) |" in text
    assert r"$\geq$ 0.040 (Label flipping)" in FORMATS["latex"]([table])


def test_a_cell_is_repeated_by_its_command() -> None:
    two = tuple(result("fedavg", TRIM, 0.1, seed=seed) for seed in (0, 1))
    assert league_command(run_of("fedavg", TRIM), two) == "fltrust league --dataset har --rule fedavg --attack trim --seeds 2"
    column = next(one for one in COLUMNS if one.name == "trim")
    assert chosen(["har"], ["fedavg"], ["trim"]) == [Board("har", (Row("fedavg", baseline=True),), (column,), "")]


# ---------------------------------------------------------------- as a user runs it


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    return program_of("league", tmp_path, monkeypatch, capsys)


MINE = """
from dataclasses import dataclass
from fltrust import RULES, Aggregate, Rule
from fltrust.rules import FedAvg

@RULES.register("my-rule")
@dataclass(frozen=True)
class Mine(Rule):
    def aggregate(self, received):
        return FedAvg().aggregate(received)

@RULES.register("broken-rule")
@dataclass(frozen=True)
class Broken(Rule):
    def aggregate(self, received):
        raise RuntimeError("this rule is broken")
"""
SHORT = ["--dataset", "har", "--attack", "none", "--attack", "label-flip", "--rounds", "4", "--device", "cpu", "--out", "out"]


@pytest.mark.slow
def test_what_is_missing_is_run_and_a_failed_run_stops_no_other(program: Program, tmp_path: Path, har: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    where = ["--data-dir", str(har), "--jobs", "2"]
    code, out, err = program(*SHORT, *where, "--rule", "fedavg")
    assert (code, err) == (0, "")
    assert "2 runs, 0 done, 2 to do" in out
    assert re.search(r"league: HAR, FedAvg, Label flipping, seed 0: 0\.\d{3}  \d+\.\d s", out)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("out/har/*.json")}
    assert len(before) == 2

    own = ["--plugin", "mine.py", "--rule", "broken-rule", "--rule", "my-rule"]
    code, out, _ = program(*SHORT, *where, *own)
    assert code == 1
    assert "failed: har, broken-rule, attack none, seed 0" in out
    assert "this rule is broken" in out
    assert "2 runs finished, 2 failed; the same command tries them again" in out
    after = {path.name: path.read_bytes() for path in tmp_path.glob("out/har/*.json")}
    assert len(after) == 4
    assert before.items() <= after.items()
    assert re.search(r"attack +my-rule +broken-rule +FedAvg", out)  # beside the baselines that were run
    numbers = re.search(r"Label flipping +(0\.\d{3}) +not run +(0\.\d{3})", out)
    assert numbers
    assert numbers[1] == numbers[2]  # the rule is FedAvg under another name
    assert "not run" in re.search(r"worst error.*", out)[0]  # type: ignore[index]

    code, out, _ = program(*SHORT, *where, "--plugin", "mine.py", "--rule", "my-rule", "--rule", "fedavg")
    assert code == 0
    assert "4 runs, 4 done, 0 to do" in out
    code, out, _ = program(*SHORT, "--plugin", "mine.py", "--rule", "my-rule", "--format", "csv")
    assert code == 0
    assert [line["rule"] for line in csv.DictReader(io.StringIO(out))] == ["my-rule", "my-rule"]
    (code, short, _), (_, long, _) = (program(*SHORT, "--rule", "fedavg", "--format", name) for name in ("md", "markdown"))
    assert code == 0
    assert short == long
    assert short.startswith("#")


def test_runs_that_differ_in_their_rule_share_a_task_and_nothing_else(tmp_path: Path, har: Path) -> None:
    boards = chosen(["har"], ["foolsgold", "median"], ["label-flip", "none"])
    runs = plan(boards, seeds=1, rounds=3)
    tasks = Tasks("cpu", str(har))
    built = [tasks.of(run) for run in runs]
    assert [one is built[0] for one in built] == [True, True, False, False]
    assert built[2] is built[3]
    for run in runs:
        shared = run_to_result(run, tmp_path / "shared", tasks)
        alone = run_to_result(run, tmp_path / "alone", Tasks("cpu", str(har)))
        assert (shared.test_error, shared.train_error) == (alone.test_error, alone.train_error)
    few = dataclasses.replace(runs[-1], rule=Krum(tolerate=29))
    assert tasks.of(runs[-1])
    with pytest.raises(InputError, match="Krum"):
        tasks.of(few)  # a rule that cannot work is refused although the task is there


def test_a_dry_run_counts_and_runs_nothing(program: Program, tmp_path: Path) -> None:
    code, out, _ = program("--dry-run", "--seeds", "3", "--device", "cpu")
    assert code == 0
    many = 3 * len(plan(chosen(), seeds=1))
    assert f"{many:,} runs, 0 done, {many:,} to do" in out
    assert re.search(rf"har +{len(ROWS)} rules x {len(COLUMNS) - 1} attacks and none", out)
    assert "Runs that appear in more than one row are counted once." in out
    _, out, _ = program("--dry-run", "--dataset", "har", "--attack", "trim", "--device", "cpu")
    assert "x 1 attack " in out
    assert "more than one row" not in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rule", "kum"], "unknown rule 'kum': did you mean 'krum'?"),
        (["--rule", "krum+"], "unknown rule ''"),
        (["--attack", "trimm"], "unknown attack 'trimm': did you mean 'trim'?"),
        (["--dataset", "mnist"], "did you mean"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--format", "pdf"], "unknown format 'pdf'"),
        (["--plugin", "absent.py"], "there is no plug-in"),
        (["--precision", "float16", "--device", "cpu"], "for a GPU"),
    ],
)
def test_mistakes_are_one_line(program: Program, arguments: list[str], said: str) -> None:
    assert_refused(program, arguments, said)


def test_a_damaged_result_is_named_and_counts_as_not_run(program: Program) -> None:
    words = ["--dataset", "har", "--rule", "median", "--attack", "trim", "--device", "cpu"]
    assert_damage_is_named(program, words, declared("har", "median", "trim"))


def test_a_table_of_many_rules_shows_their_worst(program: Program, tmp_path: Path) -> None:
    from rich.console import Console

    from fltrust.cli.league import _show_rules

    screen = Console(file=io.StringIO(), width=200)
    table: Standings = standings(SMALL, filled())
    _show_rules(screen, table)
    assert isinstance(screen.file, io.StringIO)
    said = screen.file.getvalue()
    assert re.search(r"FedAvg \(baseline\) +0\.350 ± 0\.071 +Trim +0\.900 +Scaling +0\.030 ± 0\.014 +3 of 3", said)
    assert re.search(r"Median +0\.040 +Label flipping +0\.010 +Scaling +0\.030 +2 of 3", said)
