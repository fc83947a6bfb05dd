"""The command that repeats a run, checked: it declares the very same experiment."""

import functools
import json
import shlex
import tomllib
from collections.abc import Mapping
from typing import Any

from fltrust.errors import InputError
from fltrust.experiment import PARTS, Experiment, from_declaration, from_dict
from fltrust.flower.verdicts import plain
from fltrust.league import Cell as LeagueCell
from fltrust.league.worst_case import Cell as WorstCaseCell
from fltrust.options import words
from fltrust.paper import Cell, Exhibit
from fltrust.registry import ATTACKS, DATASETS, RULES, Absent
from fltrust.store.results import Federation, Result


def run_command(run: Experiment) -> str:
    """`fltrust run ...`; where options do not say all, a TOML file comes first."""
    try:
        return _command(run)
    except (InputError, tomllib.TOMLDecodeError):  # a hostile name may be no TOML
        return "# a plug-in made this run, and it is not loaded here: the run's own files declare it"


def _command(run: Experiment) -> str:
    if run.dataset not in DATASETS:
        return _in_full(run)
    rule, attack = RULES.name_of(run.rule), ATTACKS.name_of(run.attack)
    changed = changes(run)
    options = {field: value for field, value in changed.items() if field not in PARTS and value is not None}
    if named(run, options) == run:
        command = ["fltrust", "run", "--dataset", run.dataset, "--rule", rule, "--attack", attack]
        return shlex.join(command + [word for field, value in options.items() for word in words(field, value)])
    declared, plain = run.to_dict(), named(run, changed)
    parts = {
        part: name if plain is not None and declared[part] == plain.to_dict()[part] else declared[part]
        for part, name in (("rule", rule), ("attack", attack))
    }
    toml = "".join(
        f"{field} = {_toml(value)}\n" for field, value in {"dataset": run.dataset, **parts, **changed}.items() if value is not None
    )
    if from_dict(tomllib.loads(toml)) == run:
        return f"# experiment.toml\n{toml}\nfltrust run experiment.toml"
    return "# this experiment exists in Python only: its result file declares it"


def _in_full(run: Experiment) -> str:
    """On one's own data. They are not loaded, which would run their file: every field is written, and checked without them."""
    declared = run.to_dict()
    toml = "".join(f"{field} = {_toml(value)}\n" for field, value in declared.items() if value is not None)
    unsaid = {field: None for field, value in declared.items() if value is None}
    if from_declaration({**tomllib.loads(toml), **unsaid}) == run:
        return f"# experiment.toml\n{toml}\nfltrust run experiment.toml"
    return "# this experiment exists in Python only: its result file declares it"


def strategy_call(run: Federation) -> str:
    """The call that declares the same federation; the nodes' data and their chance are their own."""
    settings = {name: run.declared[name] for name in _SETTINGS if name in run.declared}
    limits = run.declared.get("limits")
    settings |= {name: value for name, value in limits.items() if name in _LIMITS} if isinstance(limits, Mapping) else {}
    written = [f"    {name}={value!r}," for name, value in settings.items()]
    root = run.declared.get("root")
    if isinstance(root, Mapping):
        written.insert(0, "    root=...,  # " + plain(", ".join(f"{name} {value}" for name, value in root.items()), 300))
    rule = repr(run.rule) if not isinstance(run.rule, Absent) else f"..., # {plain(run.rule.name, 40)}, whose plug-in is not loaded here"
    return "\n".join(["RobustStrategy(", f"    {rule},", *written, f").start(grid, arrays, num_rounds={run.rounds})"])


_SETTINGS = ("seed", "global_lr", "fraction_train", "min_train_nodes", "min_replies")
_LIMITS = ("most_bytes", "most_value", "most_examples", "take_buffers", "least_norm")


def named(run: Experiment, fields: Mapping[str, Any]) -> Experiment | None:
    """What the names of a run's data set, rule and attack declare with these fields; None if a rule must be told more."""
    try:
        return Experiment.on(run.dataset, RULES.name_of(run.rule), ATTACKS.name_of(run.attack), **fields)
    except InputError:
        return None


def changes(run: Experiment) -> dict[str, Any]:
    """The fields that differ from the paper's experiment."""
    ours = run.to_dict()
    changed: dict[str, Any] = {}
    for field in ("num_clients", "malicious", "clients_per_round"):  # first, since each decides the default of the next
        if _usual(run.dataset, run.rule, run.attack, *changed.items())[field] != ours[field]:
            changed[field] = ours[field]
    paper = _usual(run.dataset, run.rule, run.attack, *changed.items())
    return changed | {field: value for field, value in ours.items() if field not in ("rule", "attack") and value != paper.get(field)}


@functools.lru_cache(maxsize=4096)  # the seeds of an experiment ask the same
def _usual(dataset: str, rule: Any, attack: Any, *changed: tuple[str, Any]) -> dict[str, Any]:
    return Experiment.on(dataset, rule, attack, **dict(changed)).to_dict()


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items() if item is not None) + " }"
    return json.dumps(value, ensure_ascii=False)  # TOML writes strings, numbers, truth values and lists as JSON does


def reproduce_command(exhibit: Exhibit, cell: Cell, results: tuple[Result, ...]) -> str:
    """`fltrust reproduce ...` with this cell's seeds and arithmetic; it may run the cell's neighbours too."""
    names = {"dataset": cell.run.dataset, "rule": RULES.name_of(cell.run.rule), "attack": ATTACKS.name_of(cell.run.attack)}
    return _runs_command(["fltrust", "reproduce", exhibit.name], names, results)


def league_command(cell: LeagueCell, results: tuple[Result, ...]) -> str:
    """`fltrust league ...` of this cell alone."""
    return _runs_command(["fltrust", "league"], {"dataset": cell.dataset, "rule": cell.row.name, "attack": cell.column.name}, results)


def worst_case_command(cell: WorstCaseCell, results: tuple[Result, ...]) -> str:
    """`fltrust worst-case ...` of this cell alone; the search runs with each aim."""
    return _runs_command(["fltrust", "worst-case"], {"dataset": cell.dataset, "rule": cell.row.name, "share": cell.share}, results)


def _runs_command(command: list[str], options: Mapping[str, object], results: tuple[Result, ...]) -> str:
    seeds = max((result.run.seed for result in results), default=0) + 1
    precisions = {result.run.precision for result in results} - {"float32"}
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    command += ["--seeds", str(seeds)] if seeds > 1 else []
    command += ["--precision", precisions.pop()] if len(precisions) == 1 else []
    return shlex.join(command)
