"""What README and docs show is true: Python is run, experiments on the embedded data are run for two rounds, other commands are checked.

A page's blocks are run in its order, in one folder, as a reader would. A file is written where the page says "Save this as `name`".
"""

import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from fltrust.cli import app
from fltrust.experiment import FIELDS, Experiment, from_dict
from fltrust.league import ROWS
from fltrust.options import assigned
from fltrust.registry import ATTACKS, RULES, Registry, load_plugin
from fltrust.rules import FLTrust
from fltrust.simulation import simulate
from fltrust.sweep import grid_of, plan

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"own-data.md"}  # its blocks need each other: test_own_data.py runs all of them
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in ELSEWHERE),
]
PROGRAM = typer.main.get_command(app)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_OURS = {"flower-upstream.md"}  # Python that changes Flower's own files: it can only be parsed
SHORT = ["--rounds", "2", "--evaluate-every", "1", "--model", "logistic", "--device", "cpu"]


class Block(NamedTuple):
    language: str
    text: str
    file: str  # where the page says to save it


def blocks(page: Path) -> Iterator[Block]:
    found = re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    for block in found:
        saved = re.search(r"Save this as `([^`]+)`:\s*\Z", page.read_text()[: block.start()])
        yield Block(block[1], block[2], saved[1] if saved else "")


def lines(text: str) -> Iterator[list[str]]:
    """The commands of a block, as words; a backslash joins lines, and the body of a loop counts as well."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def test_every_page_has_blocks_of_known_languages() -> None:
    known = {"bash", "sh", "console", "python", "toml", "text", "diff", "{toctree}"}
    strange = {(page.name, block.language) for page in PAGES for block in blocks(page)} - {
        (page.name, one) for page in PAGES for one in known
    }
    assert not strange


def keep_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test sees what a page registers."""
    for registry in (RULES, ATTACKS):
        assert len(registry)  # all of ours are there
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture
def federation() -> SimpleNamespace:
    """What the pages about Flower take for granted: a network, clean examples, and nodes."""
    pytest.importorskip("flwr")
    from fake_federation import FakeGrid, arrays_of, reply_with
    from flwr.app import ArrayRecord

    torch.manual_seed(0)
    model, (images, labels) = nn.Linear(4, 3), (torch.randn(30, 4), torch.randint(3, (30,)))

    def client(_node: int, message: Any) -> Any:
        return reply_with(message, {name: array + 0.1 for name, array in arrays_of(message).items()})

    return SimpleNamespace(
        model=model,
        root_images=images,
        root_labels=labels,
        grid=FakeGrid(client),
        arrays=ArrayRecord(model.state_dict()),
        root=lambda arrays: arrays,
    )


def given(page: Path, folder: Path, federation: SimpleNamespace) -> dict[str, Any]:
    """The files that a page takes for granted, and the names."""
    if page.name == "operations.md":
        (folder / "ban.txt").write_text("# nobody\n")
        return {"root": federation.root}
    if page.name == "audit.md":
        run = Experiment.on("mnist-5k", FLTrust(), "trim", model="logistic", rounds=4, evaluate_every=1)
        from fltrust.running.loop import play
        from fltrust.tasks.build import build_task

        play(run, build_task(run), [], path=folder / "runs" / "first")
    return vars(federation) if page.name == "own-federation.md" else {}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_and_files(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    written = list(blocks(page))
    if not any(block.language in ("python", "toml", "diff") for block in written):
        return
    monkeypatch.chdir(tmp_path)
    keep_to_itself(monkeypatch)
    needed = page.name in ("operations.md", "own-federation.md")
    names = {"__name__": "page", **given(page, tmp_path, request.getfixturevalue("federation") if needed else SimpleNamespace())}
    for block in written:
        if block.language == "diff":
            after = "\n".join(line[1:] for line in block.text.splitlines() if not line.startswith("-"))
            compile(after, page.name, "exec")
        elif block.language == "toml":
            content = tomllib.loads(block.text)
            if page.name == "sweep.md":
                assert plan(grid_of(content, {})).runs
            elif "dataset" in content:
                from_dict(content)
            (tmp_path / "names.toml").write_text(block.text)
        elif block.language == "python" and page.name in NOT_OURS:
            compile(block.text, page.name, "exec")
        elif block.language == "python":
            module = SimpleNamespace(__dict__=names)
            monkeypatch.setitem(sys.modules, "page", module)  # dataclasses look their module up
            exec(compile(block.text, f"{page.name}, a block of Python", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keep_to_itself(monkeypatch)
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif block.language == "toml":
            (tmp_path / "experiment.toml").write_text(block.text)
        elif block.language in ("bash", "sh", "console"):
            shown = re.findall(r"^\$ (.*)$", block.text, re.MULTILINE)  # of a console: the commands, not what they print
            for words in lines("\n".join(shown) if block.language == "console" else block.text):
                check(words, tmp_path)


def check(words: list[str], folder: Path) -> None:
    program, *rest = words
    if program == "fltrust":
        ours(rest, folder)
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    elif program == "pip":
        extras = re.findall(r"^(?:\.|fltrust)\[(.*)\]$", rest[-1])
        assert extras or rest[-1] in ("flwr[simulation]",), words
        assert set(",".join(extras).split(",")) - {""} <= PROJECT["optional-dependencies"].keys(), words
    elif program == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]), words
    elif program == "python":
        assert (ROOT / rest[0]).exists() or (ROOT / "src/fltrust/flower/template" / rest[0]).exists(), words
    elif program in ("flwr", "flower-superlink", "flower-supernode"):
        assert program in {script.name for script in distribution("flwr").entry_points}, words
    elif program == "export":  # a switch that Flower knows
        assert getattr(importlib.import_module("flwr.common.constant"), rest[0].partition("=")[0]), words
    elif program.startswith("PYTHONPATH="):
        check(words[1:], folder)
    else:
        assert words in ([".", ".venv/bin/activate"],), words


def ours(words: list[str], folder: Path) -> None:
    """A command of `fltrust` as the program itself reads it. What takes a moment only is run."""
    command, options = parsed(words)
    if command == "fltrust run" and "mnist-5k" in words:
        run([*words, *SHORT])
    elif command == "fltrust run":
        experiment(options, folder)
    elif command == "fltrust reproduce" or (command in ("fltrust league", "fltrust worst-case") and not options["format"]):
        run([*without(words, "--device", "--precision"), "--dry-run"])  # there may be no GPU here
    elif command == "fltrust redteam":
        run(words if "--dry-run" in words else [*words, "--dry-run"])
    elif command in ("fltrust list", "fltrust new-federation"):
        run(words)
    elif command == "fltrust report" and (folder / "runs").exists():
        run([*words, "--out", "somewhere"] if "--out" not in words else words)
        assert next(folder.rglob("index.html"))
    elif command == "fltrust audit" and (folder / "runs").exists():
        newest = max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
        run([*words[:1], str(newest)], code=3)  # the malicious clients are named


def experiment(options: dict[str, Any], folder: Path) -> None:
    """What `fltrust run` would run; an InputError if it would refuse it."""
    written = tomllib.loads((folder / options["config"]).read_text()) if options["config"] else {}
    wanted = {name: options[name] for name in FIELDS if options[name] not in (None, [])}
    from_dict(assigned({**written, **wanted}, options["settings"] or []))


def without(words: list[str], *options: str) -> list[str]:
    return [word for before, word in zip(["", *words], words, strict=False) if before not in options and word not in options]


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command and its options; a click.UsageError if the program would not accept them."""
    context = PROGRAM.make_context("fltrust", list(words))
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(f"{context.info_name} {name}", rest, parent=None)
    return str(context.info_name), context.params


def run(words: list[str], code: int = 0) -> None:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == code, f"{shlex.join(words)}: {done.output}"


def test_the_commands_are_really_checked(tmp_path: Path) -> None:
    for wrong in ("fltrust runn", "fltrust run --rul krum", "fltrust list rulez", "fltrust league --jobs many"):
        with pytest.raises(click.UsageError):
            parsed(wrong.split()[1:])
    for wrong in ("make tea", "pip install -e .[tea]", "python bench/tea.py", "tea"):
        with pytest.raises(AssertionError):
            check(wrong.split(), tmp_path)


@pytest.mark.parametrize("registry", [RULES, ATTACKS], ids=lambda registry: registry.plural)
def test_the_command_on_each_page_of_a_rule_or_attack(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    from registry_pages import example

    for name in registry:
        for words in lines(example(registry, registry.entry(name)).strip("`").removeprefix("bash")):
            _, options = parsed(words[1:])
            experiment(options, tmp_path)


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len([link for link in links if link.endswith(".md")]) == 5
    assert not [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()]


def test_readme_and_index_count_what_there_is() -> None:
    ours = [[name for name in registry if registry[name].__module__.startswith("fltrust.")] for registry in (RULES, ATTACKS)]
    rules, attacks, league = len(ours[0]), len(ours[1]) - 1, len(ROWS)  # "none" is no attack
    readme, index = (ROOT / "README.md").read_text(), (ROOT / "docs" / "index.md").read_text()
    assert f"{rules - 1} other rules" in readme
    assert f"{attacks} attacks" in readme
    assert f"**League.** {league} rules" in readme
    assert f"{rules - 1} other aggregation rules and {attacks} attacks" in index
    assert f"compares {league} rules and compositions" in (ROOT / "docs" / "experiments.md").read_text()


def test_a_rule_of_ones_own_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conftest import small_task

    (block,) = (block for block in blocks(ROOT / "docs" / "own-rule.md") if block.file == "my_rules.py")
    (tmp_path / "my_rules.py").write_text(block.text)
    keep_to_itself(monkeypatch)
    load_plugin(tmp_path / "my_rules.py")
    rule = RULES.entry("slow").kind()
    settings: dict[str, Any] = {
        "num_clients": 6,
        "clients_per_round": 6,
        "malicious": 0,
        "batch_size": 4,
        "rounds": 2,
        "global_lr": 0.1,
        "loss": "mean",
    }
    last = list(simulate(Experiment(dataset="small", model="own", rule=rule, **settings), small_task()))[-1]
    assert last.state is not None
    assert last.state.rule.any()
