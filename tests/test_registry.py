"""Names: said once, refused where they would do harm, and found in plug-ins."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from made_up import nested

from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_declaration
from fltrust.registry import METRICS, MODELS, RULES, Absent, Registry, load_plugin, plugin_fault, plugin_files
from fltrust.rules import Rule

PLUGIN = """
from dataclasses import dataclass
from fltrust import RULES, Aggregate, Rule

@RULES.register("{name}")
@dataclass(frozen=True)
class Mine(Rule):
    def aggregate(self, received):
        return Aggregate(received.updates.mean(0) / {divisor}, None)
"""


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (RULES, METRICS):
        list(registry)
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.mark.parametrize("name", ["", "my/rule", "../rule", "Rule", "a rule", "-x", "ü"])
def test_names_that_could_not_be_files_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot name a rule"):
        RULES.register(name)(RULES["krum"])


def test_a_metric_cannot_take_the_place_of_a_records_own_field() -> None:
    for name in ("round", "clients", "shares", "norm"):
        with pytest.raises(InputError, match="records use it"):
            METRICS.register(name)(lambda of: 0.0)


def test_a_rule_must_be_a_dataclass() -> None:
    class Plain(Rule):
        strength: float = 1.0

    with pytest.raises(InputError, match=r"'plain' must be a dataclass: write @dataclass\(frozen=True\)"):
        RULES.register("plain")(Plain)


def test_a_taken_name_is_refused_and_the_same_class_again_is_not() -> None:
    @dataclass(frozen=True)
    class Mine(Rule):
        pass

    with pytest.raises(InputError, match="there is a rule 'krum' already"):
        RULES.register("krum")(Mine)
    assert RULES.register("krum")(RULES["krum"]) is RULES["krum"]


def test_two_plugins_of_one_file_name_are_two(tmp_path: Path) -> None:
    for folder, name in (("a", "first"), ("b", "second"), ("c", "first")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rules.py").write_text(PLUGIN.format(name=name, divisor=1))
    load_plugin(tmp_path / "a" / "rules.py")
    load_plugin(tmp_path / "b" / "rules.py")
    assert RULES["first"] is not RULES["second"]
    with pytest.raises(InputError, match="there is a rule 'first' already"):
        load_plugin(tmp_path / "c" / "rules.py")


def test_a_plugins_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "hashed.py"
    path.write_text(PLUGIN.format(name="hashed", divisor=1))
    load_plugin(path)
    (before,) = plugin_files(RULES["hashed"], RULES["krum"], MODELS["cnn"]).items()
    path.write_text(PLUGIN.format(name="hashed", divisor=2))
    (after,) = plugin_files(RULES["hashed"]).items()
    assert before[0] == after[0] == "hashed.py"
    assert before[1] != after[1]


def test_a_fault_of_an_installed_plugin_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed_rules.py").write_text(PLUGIN.format(name="faulty", divisor=0.0).replace("/ 0.0", "/ (1 // 0)"))
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    import torch

    importlib.import_module("installed_rules")
    with pytest.raises(ZeroDivisionError) as caught:
        RULES["faulty"]()(torch.ones(3, 2))
    assert "installed_rules.py, line 9: ZeroDivisionError" in plugin_fault(caught.value)
    assert plugin_fault(ValueError("ours")) == ""


def test_a_rule_that_fails_among_many_runs_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from fltrust.running import pool

    file = tmp_path / "bad.py"
    file.write_text(PLUGIN.format(name="bad", divisor=0.0).replace("/ 0.0", "/ (1 // 0)"))
    load_plugin(file)
    monkeypatch.setattr(pool, "run_to_result", lambda *what: RULES["bad"]()(torch.ones(3, 2)))
    event = pool._done(Experiment.on("mnist-5k"), tmp_path, None, None)  # type: ignore[arg-type]
    assert isinstance(event, pool.Failed)
    assert event.reason.startswith(f"the plug-in {file}, line 9: ZeroDivisionError: ")


def test_an_entry_point_that_cannot_be_loaded_breaks_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "theirs", "no_such_package:Rule"

        def load(self) -> object:
            raise ModuleNotFoundError("No module named 'no_such_package'")

    monkeypatch.setattr("fltrust.registry.entry_points", lambda group: [Point()] if group == "fltrust.things" else [])
    things = Registry("things")
    things.register("ours")(Rule)
    assert list(things) == ["ours"]
    with pytest.raises(InputError, match="thing 'theirs': the plug-in no_such_package:Rule cannot be loaded: ModuleNotFoundError"):
        things.entry("theirs")


def test_an_experiment_of_a_rule_that_is_not_here_can_be_read_and_compared() -> None:
    written = {**Experiment.on("mnist-5k").to_dict(), "rule": {"name": "gone", "strength": 2.0}}
    run = from_declaration(written)
    assert isinstance(run.rule, Absent)
    assert run.to_dict() == written
    assert run == from_declaration(written)
    with pytest.raises(InputError, match="rule = null"):
        from_declaration({**written, "rule": None})


@pytest.mark.parametrize("rule", [nested(300), nested(10), "nnm+" * 300 + "median"])
def test_rules_nested_too_deep_are_refused(rule: object) -> None:
    with pytest.raises(InputError, match="more than 10 rules within each other"):
        Experiment.on("mnist-5k", rule)
    if isinstance(rule, dict):
        with pytest.raises(InputError, match="more than 10 rules within each other"):
            from_declaration({**Experiment.on("mnist-5k").to_dict(), "rule": rule})


def test_ten_rules_within_each_other_can_be_read() -> None:
    run = Experiment.on("mnist-5k", nested(9))
    assert from_declaration(run.to_dict()) == run


@pytest.mark.parametrize("name", [None, ["krum"]])
def test_a_rule_without_a_name_within_a_rule_is_known_by_the_outer_name(name: object) -> None:
    written = {**Experiment.on("mnist-5k").to_dict(), "rule": nested(1, {"name": name})}
    assert from_declaration(written).to_dict() == written


@pytest.mark.parametrize(("field", "value"), [("global_lr", 10**400), ("loss", "summ"), ("rounds", 2.5)])
def test_values_that_cannot_be_are_one_line(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        Experiment.on("mnist-5k", **{field: value})
