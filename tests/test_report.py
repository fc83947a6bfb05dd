"""The report without a browser: what agrees, what is written where, and what a user is told."""

import builtins
import dataclasses
import importlib
import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up
from test_results import federation
from waiting import MOST_SECONDS

from fltrust.cli import app
from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_dict
from fltrust.paper import EXHIBITS, Cell, Figures
from fltrust.paper.exhibit import declared
from fltrust.paper.plan import plan
from fltrust.report import build, reading, tables
from fltrust.report.agreement import Number, _judged, judge, of_the_paper, tally
from fltrust.report.folder import write
from fltrust.report.looks import look_of
from fltrust.report.page import reproduction_page
from fltrust.report.reading import Found
from fltrust.report.repeat import reproduce_command, run_command
from fltrust.report.sections import pairs_of
from fltrust.store import results
from fltrust.store.results import Result, Results

OUR_OWN = "choices", "cifar-10-rates", "cifar-10-study"  # exhibits with questions that the paper leaves open
PROGRAM = [sys.executable, "-c", "from fltrust.cli import main; main()"]


def fltrust(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, timeout=MOST_SECONDS, env={**os.environ, "COLUMNS": "200"}
    )


def written(folder: Path, *some: Result) -> Path:
    for result in some:
        results.write(result, folder)
    return folder


def cell_of(exhibit: str, *place: str) -> Cell:
    return next(cell for cell in EXHIBITS[exhibit].cells if (cell.page, cell.row, cell.column) == place)


# ---------------------------------------------------------------- agreement


@pytest.mark.parametrize(
    ("ours", "paper", "limit", "verdict"),
    [
        ((0.08,), 0.05, 0.03, "agrees"),  # at the limit, although 0.08 - 0.05 > 0.03 in floating point
        ((0.081,), 0.05, 0.03, "differs"),
        ((0.02,), 0.05, 0.03, "agrees"),
        ((0.019,), 0.05, 0.03, "differs"),
        ((0.1, 0.2), 0.03, 0.05, "agrees"),  # 0.12 from it: within twice the sample deviation 0.0707, not within twice 0.05
        ((0.1, 0.2), 0.005, 0.05, "differs"),
        ((0.05, 0.05, 0.05), 0.09, 0.05, "agrees"),  # no spread: the limit holds
        ((0.5,), None, 0.03, "no number"),
        ((), 0.05, 0.03, "not run"),
        ((), None, 0.03, "not run"),
    ],
)
def test_a_number_agrees_within_the_limit_or_twice_the_spread(
    ours: tuple[float, ...], paper: float | None, limit: float, verdict: str
) -> None:
    assert Number(ours, paper, limit).verdict == verdict


def test_agreement_by_spread_alone_is_told_apart() -> None:
    assert Number((0.1, 0.2), 0.03, 0.05).only_by_spread
    assert not Number((0.1, 0.2), 0.12, 0.05).only_by_spread
    assert not Number((0.1, 0.2), 0.005, 0.05).only_by_spread
    cell = cell_of("methods", "HAR", "Trim attack", "FLTrust")
    judged = judge(EXHIBITS["methods"], Results(made_up(cell.run, error=error, seed=seed) for seed, error in enumerate((0.05, 0.25))))
    assert (tally(judged).agree, tally(judged).only_by_spread) == (1, 1)


@pytest.mark.parametrize(
    ("rule", "attack", "limit"),
    [
        ("fltrust", "none", 0.03),
        ("fltrust", "trim", 0.03),
        ("fltrust", "scaling", 0.03),
        ("fedavg", "none", 0.03),
        ("fedavg", "trim", 0.05),
        ("krum", "none", 0.05),
        ("fltrust-norelu", "none", 0.05),
        ("fltrust-server", "none", 0.05),
    ],
)
def test_the_limit_is_strict_for_fltrust_and_for_fedavg_without_attack(rule: str, attack: str, limit: float) -> None:
    cell = Cell("", "", "", declared("mnist-0.5", rule, attack))
    assert _judged(cell, ()).error.limit == limit


def test_cells_are_judged_over_their_seeds_and_success_for_itself() -> None:
    scaling = cell_of("methods", "MNIST-0.5", "Scaling attack", "FLTrust")
    assert scaling.paper == Figures(0.05, 0.0)
    results_ = Results(made_up(scaling.run, error=error, success=0.2, seed=seed) for seed, error in enumerate((0.05, 0.06, 0.07)))
    judged = {(one.cell.page, one.cell.row, one.cell.column): one for one in judge(EXHIBITS["methods"], results_)}
    one = judged["MNIST-0.5", "Scaling attack", "FLTrust"]
    assert [result.run.seed for result in one.results] == [0, 1, 2]
    assert one.error.mean == pytest.approx(0.06)
    assert one.error.spread == pytest.approx(0.01)
    assert one.error.verdict == "agrees"
    assert one.success is not None
    assert one.success.difference == pytest.approx(0.2)
    assert one.success.verdict == "differs"
    assert judged["MNIST-0.5", "Trim attack", "FLTrust"].missing == "not run"
    assert judged["CH-MNIST", "Trim attack", "FLTrust"].missing == "not run: no data here"
    count = tally(judged.values())
    assert count == (210, 1, 1, 1, 0, 1, 0)


def test_the_exact_adaptive_attack_has_no_verdict() -> None:
    cell = cell_of("methods", "HAR", "Exact adaptive", "FLTrust")
    judged = judge(EXHIBITS["methods"], Results([made_up(cell.run, error=0.2)]))
    assert [one.error.verdict for one in judged if one.results] == ["no number"]
    assert tally(judged)[1:4] == (1, 0, 0)


def test_runs_that_differ_only_in_arithmetic_are_paired() -> None:
    run = cell_of("methods", "MNIST-0.5", "Trim attack", "FLTrust").run
    half = dataclasses.replace(run, precision="float16")
    found = Results([made_up(half, error=0.07), made_up(run, error=0.06), made_up(half, seed=1), made_up(run, seed=2)])
    assert [(one.run.precision, one.error, other.run.precision, other.error) for one, other in pairs_of(found)] == [
        ("float32", 0.06, "float16", 0.07)
    ]


# ---------------------------------------------------------------- commands that repeat a run


def some_runs() -> list[tuple[str, Cell]]:
    """All cells that switch something unusual, and some of the others."""
    cells = [(exhibit.name, cell) for exhibit in EXHIBITS.values() for cell in exhibit.cells]
    ours = [name for name, exhibit in EXHIBITS.items() if not exhibit.of_paper]
    unusual = [one for one in cells if one[0] in ours]
    return unusual + [one for one in cells if one[0] not in ours][::9]


def called(monkeypatch: pytest.MonkeyPatch, module: str, name: str, words: list[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the command line passes on to the function behind it."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(importlib.import_module(module), name, lambda *arguments, **options: seen.append((arguments, options)))
    app(words, standalone_mode=False)
    return seen[0]


@pytest.mark.slow
def test_the_command_of_a_run_declares_the_same_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    with_file = 0
    for _, cell in some_runs():
        run = dataclasses.replace(cell.run, seed=3, precision="float16")
        toml, _, command = run_command(run).rpartition("\n")
        (config, given), _ = called(monkeypatch, "fltrust.cli.run", "run_one", shlex.split(command)[1:])
        assert (config is None) == (toml == "")
        assert from_dict({**tomllib.loads(toml), **given}) == run
        with_file += config is not None
    assert 0 < with_file < len(some_runs())


@pytest.mark.slow
def test_reproduce_runs_the_cell_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cell in some_runs():
        exhibit = EXHIBITS[name]
        half = dataclasses.replace(cell.run, precision="float16")
        done = tuple(made_up(half, seed=seed) for seed in (0, 2))
        words = shlex.split(reproduce_command(exhibit, cell, done))[1:]
        (names,), options = called(monkeypatch, "fltrust.cli.reproduce", "reproduce", words)
        chosen = {option: options[option] for option in ("seeds", "only_datasets", "only_attacks", "only_rules")}
        precision = options["how"].arithmetic
        assert {one.run for one in done} <= set(plan([EXHIBITS[one] for one in names], precision=precision, **chosen))


@pytest.mark.slow
def test_curves_of_a_figure_look_different_and_a_rule_always_the_same() -> None:
    seen: dict[str, object] = {}
    for exhibit in EXHIBITS.values():
        if exhibit.kind == "table":
            continue
        looks = {cell.column: {look_of(exhibit, one) for one in exhibit.cells if one.column == cell.column} for cell in exhibit.cells}
        assert all(len(look) == 1 for look in looks.values())
        assert len(set.union(*looks.values())) == len(looks)
        for column, look in looks.items():
            assert seen.setdefault(column, look) == look


# ---------------------------------------------------------------- tables as text


def table(kind: Callable[..., str], exhibit: str, *some: Result) -> str:
    return kind(EXHIBITS[exhibit], judge(EXHIBITS[exhibit], Results(some)))


def test_markdown_has_ours_and_the_papers() -> None:
    flip, scaling = (cell_of("methods", "HAR", row, "FLTrust").run for row in ("Label flipping", "Scaling attack"))
    text = table(
        tables.markdown,
        "methods",
        *(made_up(flip, error=error, seed=seed) for seed, error in enumerate((0.03, 0.05))),
        *(made_up(scaling, error=0.05, success=0.02, seed=seed) for seed in (0, 1)),
    )
    har = text[text.index("## Table III: error of five rules under every attack, HAR") :]
    assert "| Label flipping | not run (0.17) | not run (0.10) | not run (0.05) | not run (0.05) | 0.040 ± 0.014 (0.04) |" in har
    assert "| 0.050 ± 0.000 / 0.020 ± 0.000 (0.05 / 0.01) |" in har
    assert "n = 2 seeds. Hardware: made up. Arithmetic: float32." in har
    assert "| not run: no data here (0.10) |" in text[text.index("CH-MNIST") :]


def test_a_table_with_different_numbers_of_seeds_says_so_in_each_cell() -> None:
    flip, trim = (cell_of("methods", "HAR", row, "FLTrust").run for row in ("Label flipping", "Trim attack"))
    text = table(tables.markdown, "methods", made_up(flip, error=0.04), *(made_up(trim, error=0.05, seed=seed) for seed in (0, 1)))
    assert "| 0.040 (0.04), n = 1 |" in text
    assert "| 0.050 ± 0.000 (0.05), n = 2 |" in text
    assert "n = 2 (1 cell), 1 (1 cell) seeds" in text


def test_text_from_files_stays_text() -> None:
    run = cell_of("methods", "HAR", "Label flipping", "FLTrust").run
    hostile = made_up(run, hardware=r"a|b <b>100 %</b> x_1 & $y \input{z}")
    assert r"a\|b &#60;b&#62;100 %&#60;/b&#62; x\_1 &#38; $y \\input{z}" in table(tables.markdown, "methods", hostile)
    latex = table(tables.latex, "methods", hostile)
    assert r"a|b <b>100 \%</b> x\_1 \& \$y \textbackslash{}input\{z\}" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}}") == 6


def test_an_open_choice_is_a_row_of_its_own() -> None:
    runs = [cell_of("choices", "MNIST-0.5", row, "Median, trim attack").run for row in ("as the tables above", "Trim attack: range b = 10")]
    text = table(tables.markdown, "choices", *(made_up(run, error=error) for run, error in zip(runs, (0.2, 0.3), strict=True)))
    assert "| choice | run | with this choice | as the tables above |\n|---|---|--:|--:|" in text
    assert "| Trim attack: range b = 10 | Median, trim attack | 0.300 (0.43) | 0.200 (0.43) |" in text


# ---------------------------------------------------------------- the files of a report


def a_few(tmp_path: Path) -> Path:
    """FLTrust under three attacks and one place on each figure."""
    runs: list[Experiment] = [
        cell_of("methods", "MNIST-0.5", row, "FLTrust").run for row in ("Trim attack", "Scaling attack", "Exact adaptive")
    ]
    return written(tmp_path / "results", *(made_up(run, seed=seed) for run in runs for seed in (0, 1)))


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds, and only two tests look at pictures."""
    monkeypatch.setattr("fltrust.report.figures.draw", lambda *_: {"figures/drawn.png": b"a picture"})


def test_a_report_is_a_page_figures_and_tables(tmp_path: Path) -> None:
    done = fltrust("report", str(a_few(tmp_path)), "--out", "seen", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["methods", "Table", "III", "210", "3", "2", "of", "2", "1", "of", "1"] in rows
    assert "seen/index.html" in done.stdout
    assert "3 of 710 experiments of the paper whose data can be had ran" in done.stdout
    files = {str(path.relative_to(tmp_path / "seen")) for path in (tmp_path / "seen").rglob("*") if path.is_file()} - {"report.json"}
    pictures = {"convergence", "root-size", "clients", "malicious", "adaptive", "trust-mnist-0.5"}
    assert files == {
        "index.html",
        *(f"figures/{name}.{kind}" for name in pictures for kind in ("png", "pdf")),
        *(f"tables/{name}.{kind}" for name in EXHIBITS for kind in ("md", "tex")),
        *(f"tables/{name}.{kind}" for name in ("league", "worst-case") for kind in ("md", "tex", "csv")),
    }
    assert all((tmp_path / "seen" / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert all((tmp_path / "seen" / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF") for name in pictures)


@pytest.mark.slow
def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    folder = a_few(tmp_path)
    first, second = (build([folder], tmp_path / out) for out in ("first", "second"))
    assert len(first.files) == len(second.files) > 20
    assert [path.read_bytes() for path in first.files] == [path.read_bytes() for path in second.files]


@pytest.mark.slow
def test_run_directories_get_a_page_of_their_own(tmp_path: Path) -> None:
    short = ["--dataset", "mnist-5k", "--rounds", "2", "--evaluate-every", "1", "--batch-size", "4", "--device", "cpu"]
    assert fltrust("run", *short, "--attack", "scaling", "--out", "one", cwd=tmp_path).returncode == 0
    done = fltrust("report", "one", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(str(path.relative_to(tmp_path / "report")) for path in (tmp_path / "report").rglob("*")) == ["index.html", "report.json"]
    assert "mnist-5k, fltrust, attack scaling" in (tmp_path / "report" / "index.html").read_text()
    mixed = fltrust("report", "one", "report", cwd=tmp_path)
    assert (mixed.returncode, mixed.stderr.count("\n")) == (2, 1)
    assert "report holds no run and no result" in mixed.stderr
    file = tmp_path / "one" / "records.jsonl"
    whole = file.read_text()
    for was, now in (
        ('"train_error"', '"other"'),
        ('"success"', '"other"'),
        ('"clients": [0, 1', '"clients": [0, -1'),
        ('"clients": [0, 1', '"clients": [0, 99'),
    ):
        file.write_text(whole.replace(was, now))
        assert file.read_text() != whole
        done = fltrust("report", "one", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (was, now, done.stderr)


@pytest.mark.slow
def test_a_folder_of_runs_is_all_of_them(tmp_path: Path) -> None:
    short = ["--dataset", "mnist-5k", "--rounds", "2", "--evaluate-every", "1", "--batch-size", "4", "--device", "cpu"]
    for seed in ("0", "1"):
        assert fltrust("run", *short, "--seed", seed, cwd=tmp_path).returncode == 0
    (tmp_path / "runs" / "foreign").mkdir()
    (tmp_path / "runs" / "foreign" / "experiment.json").write_text("{}")
    done = fltrust("report", "runs", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 run in no table" in done.stdout
    page = (tmp_path / "report" / "index.html").read_text()
    assert "What the paper says" not in page
    assert "runs/foreign" in page
    lines = (tmp_path / "report" / "tables" / "numbers.csv").read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("mnist-5k,,fltrust,none,20,4,2,0.")


def test_the_first_screen_counts_a_run_once_and_says_what_the_exact_attack_does() -> None:
    errors = {("none", 20): 0.05, ("optimal-adaptive", 10): 0.2, ("optimal-adaptive", 40): 0.5}
    runs = {(attack, share): declared("mnist-0.5", "fltrust", attack, malicious=share) for attack, share in errors}
    found = Results(made_up(run, error=errors[place]) for place, run in runs.items())
    page = reproduction_page({exhibit: judge(exhibit, found) for exhibit in EXHIBITS.values()}, Found(found))
    assert "multiplies FLTrust's error by 4.0 on MNIST-0.5, with 10 % malicious clients." in page
    assert "<b>1 of 1</b> <span>agree</span>" in page  # FLTrust without attack stands in three tables
    there = {
        cell.run.key
        for name, exhibit in EXHIBITS.items()
        if name not in OUR_OWN
        for cell in exhibit.cells
        if cell.run.dataset != "ch-mnist"
    }
    assert f"<b>3 of {len(there)}</b> <span>experiments</span>" in page


def test_every_experiment_of_the_paper_whose_data_can_be_had_has_run() -> None:
    found = reading.results_in(Path(__file__).parents[1] / "results").results
    ran, there = of_the_paper({exhibit: judge(exhibit, found) for exhibit in EXHIBITS.values()})
    assert ran == there == 710
    assert of_the_paper({EXHIBITS[name]: judge(EXHIBITS[name], found) for name in OUR_OWN}) == (0, 0)


def test_the_table_of_curves_has_training_errors() -> None:
    exhibit = EXHIBITS["convergence"]
    some = [made_up(cell.run, seed=seed) for cell in exhibit.cells for seed in (0, 1)]
    text = tables.markdown(exhibit, judge(exhibit, Results(some)))
    assert "| round | FedAvg, no attack |" in text
    last = [line for line in text.splitlines() if line.startswith("| 2,000 |")]
    assert last[0].split(" | ")[1].startswith(f"{some[0].train_error[-1]:.3f}")
    assert "Training error, mean ± standard deviation over seeds." in text


@pytest.mark.usefixtures("without_pictures")
def test_an_old_report_stays_whole_when_a_new_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = a_few(tmp_path), tmp_path / "out"
    before = {path: path.read_bytes() for path in build([folder], out).files}
    written(folder, made_up(cell_of("methods", "HAR", "Trim attack", "FLTrust").run))

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("fltrust.report.figures.draw", fail)
    with pytest.raises(OSError, match="no space"):
        build([folder], out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "report.json"} == before


def damage(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return apply


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (lambda path: path.write_text(path.read_text()[:100]), "cannot be read"),
        (damage(lambda content: content.pop("hardware")), "is no result"),
        (damage(lambda content: content["test_error_curve"].__setitem__(0, "0.5")), "no number from 0 to 1"),
        (damage(lambda content: content["train_error_curve"].__setitem__(0, float("nan"))), "no number from 0 to 1"),
        (damage(lambda content: content["success_curve"].__setitem__(0, 1.5)), "no number from 0 to 1"),
        (damage(lambda content: content["rounds"].__setitem__(0, "1")), "no whole number"),
        (damage(lambda content: content.__setitem__("seconds", "<b>")), "seconds"),
        (damage(lambda content: content.__setitem__("seconds", 10**400)), "it took 10000000000000000000 seconds"),
        (damage(lambda content: content["trust"].__setitem__(0, "AAAA")), "trust of 100 clients"),
        (damage(lambda content: content["rounds"].__setitem__(-1, 1999)), "ends at round 1999 of 2000"),
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, hurt: Callable[[Path], object], said: str) -> None:
    run = cell_of("methods", "MNIST-0.5", "Scaling attack", "FLTrust").run
    path = results.write(made_up(run), tmp_path / "results")
    hurt(path)
    with pytest.raises(InputError, match=said) as problem:
        build([tmp_path / "results"], tmp_path / "out")
    assert str(path) in str(problem.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_pictures")
def test_a_damaged_result_among_many_stops_nothing(tmp_path: Path) -> None:
    folder = a_few(tmp_path)
    other = results.write(made_up(cell_of("methods", "HAR", "Trim attack", "FLTrust").run), folder)
    other.write_text("<b>no result</b>")
    made = build([folder], tmp_path / "out")
    assert len(made.found.results.all()) == 6
    assert [problem.what for problem in made.found.problems] == [str(other)]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Not in the tables" in page
    assert str(other) in page
    assert "<b>no result" not in page


def test_a_run_that_is_too_deep_or_too_large_to_read_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = results.distil
    folders = {name: federation(tmp_path / name) for name in ("sound", "RecursionError", "MemoryError")}

    def distil(directory: Path) -> results.Curves:
        if directory.name != "sound":
            raise getattr(builtins, directory.name)
        return read(directory)

    monkeypatch.setattr(results, "distil", distil)
    found = reading.read([tmp_path])
    assert len(found.federations) == 1
    assert {(problem.what, problem.why) for problem in found.problems} == {
        (str(folders[name]), name) for name in ("RecursionError", "MemoryError")
    }


@pytest.mark.usefixtures("without_pictures")
def test_a_folder_holds_one_report_and_nothing_else_is_removed(tmp_path: Path) -> None:
    folder, out = a_few(tmp_path), tmp_path / "out"
    paper = {path.name for path in build([folder], out).files}
    (out / "tables" / "mine.md").write_text("a user's own")
    runs = [Experiment.on("mnist-5k", rule, "trim") for rule in ("fedavg", "krum")]
    sweep = written(tmp_path / "sweep", *map(made_up, runs))
    (sweep / "sweep.json").write_text('{"planned": {}, "left_out": {}}')
    own = {path.name for path in build([sweep], out).files}
    assert "methods.md" in paper - own
    here = {path.name for path in out.rglob("*") if path.is_file()}
    assert here == own | {"report.json", "mine.md"}


@pytest.mark.usefixtures("without_pictures")
def test_a_folder_with_another_page_is_refused(tmp_path: Path) -> None:
    folder, out = a_few(tmp_path), tmp_path / "site"
    out.mkdir()
    (out / "index.html").write_text("my home page")
    with pytest.raises(InputError, match="choose another --out"):
        build([folder], out)
    assert [path.read_text() for path in out.iterdir()] == ["my home page"]


def test_a_forged_list_of_files_removes_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write({"index.html": b"first"}, out)
    (tmp_path / "precious.md").write_text("keep")
    (out / "notes.md").write_text("keep")
    names = ["../precious.md", str(tmp_path / "precious.md"), "tables/../notes.md", "notes.md", "figures/../../precious.md", 3]
    for name in names:
        (out / "report.json").write_text(json.dumps({"files": ["index.html", name]}))
        with pytest.raises(InputError, match=r"report.json is not of a report"):
            write({"index.html": b"second"}, out)
    assert (out / "index.html").read_text() == "first"
    assert (tmp_path / "precious.md").exists()
    assert (out / "notes.md").exists()


@pytest.mark.parametrize("theirs", ['{"quarter": 3}', '{"files": ["report of March.pdf"]}', "[1, 2]"])
def test_a_users_own_report_json_is_not_taken_for_ours(tmp_path: Path, theirs: str) -> None:
    out = tmp_path / "site"
    out.mkdir()
    (out / "report.json").write_text(theirs)
    (out / "index.html").write_text("my home page")
    with pytest.raises(InputError):
        write({"index.html": b"ours"}, out)
    assert {path.read_text() for path in out.iterdir()} == {theirs, "my home page"}


def test_a_users_own_file_in_a_report_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write({"index.html": b"first"}, out)
    (out / "tables").mkdir()
    (out / "tables" / "survives.md").write_text("a user's own")
    with pytest.raises(InputError, match=r"tables/survives.md is not of a report"):
        write({"index.html": b"second", "tables/survives.md": b"ours"}, out)
    assert (out / "index.html").read_text() == "first"
    assert (out / "tables" / "survives.md").read_text() == "a user's own"


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    write({"index.html": b"first"}, out)
    (out / "report.json").write_text('{"files": ["index.html", "figures/mine.png"]}')
    elsewhere.mkdir()
    (elsewhere / "mine.png").write_text("a user's own")
    (out / "figures").symlink_to(elsewhere)
    with pytest.raises(InputError, match="figures is not of a report"):
        write({"index.html": b"second"}, out)
    assert (elsewhere / "mine.png").exists()


@pytest.mark.slow
def test_no_results_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for folder, said in (("results", "there is no folder results"), ("empty", "empty holds no run and no result"), ("file", "is a file")):
        done = fltrust("report", folder, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert said in done.stderr
    assert not (tmp_path / "report").exists()


def test_only_the_report_loads_a_plotting_library(tmp_path: Path) -> None:
    script = (
        "import sys, fltrust.cli.run, fltrust.cli.reproduce, fltrust.report; print({'matplotlib', 'plotly', 'pandas'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True).stdout == "set()\n"
