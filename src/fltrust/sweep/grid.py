"""A grid of experiments: a field may have several values, and every combination of them is a run.

    rule = ["fltrust", "krum", { name = "krum", tolerate = 2 }]
    attack = ["trim", "alie"]
    malicious = [0, 1, 2, 3, 4]
    "attack.knowledge" = ["full", "partial"]        # a parameter of a part, as --set takes it
    rounds = 200
    seeds = 3

A list means "each of these". What a combination leaves out is usual for its data set: Krum expects as many malicious clients as there are.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_origin, get_type_hints

from fltrust.attacks import Attack, NoAttack
from fltrust.codec import checked, unfolded
from fltrust.errors import InputError
from fltrust.experiment import FIELDS, MEANT, PARTS, Experiment, Precision, from_dict
from fltrust.options import toml_value, with_value
from fltrust.registry import DATASETS, METRICS, MODELS, Registry, known
from fltrust.rules.rule import try_rule

_DEPTHS = {"lr_decay": 2, "metrics": 1}  # fields whose values are lists themselves, and how deep
_LAST = ("attack", "malicious", "rule")  # change fastest: runs that differ only in their rule share their data

MOST_SEEDS = 10_000  # more is a mistake


@dataclass(frozen=True)
class Grid:
    """The values of each field, and of each parameter ("rule.tolerate"); what is not named is usual for the data set."""

    values: Mapping[str, tuple[Any, ...]]
    seeds: tuple[int, ...] = (0,)


class LeftOut(NamedTuple):
    """A combination that makes no sense, and why."""

    what: str
    why: str


class Plan(NamedTuple):
    runs: list[Experiment]  # all with the first seed before any with the second
    left_out: list[LeftOut]


def grid_of(written: Mapping[str, Any], given: Mapping[str, str], settings: Iterable[str] = ()) -> Grid:
    """The grid of a TOML file, changed by options ("fltrust,krum") and by assignments ("rule.tolerate=1,2")."""
    values = {name: _varied(name, value) for name, value in written.items() if name != "seeds"}
    values |= {name: _listed(name, text) for name, text in given.items() if name != "seeds"}
    texts: dict[str, list[str]] = {}
    for assignment in settings:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"--set {assignment}: expected PART.PARAMETER=VALUE, such as rule.tolerate=1,2")
        texts.setdefault(path.strip(), []).append(text)
    values |= {path: _listed(path, ",".join(several)) for path, several in texts.items()}
    seeds = toml_value(given["seeds"]) if "seeds" in given else written.get("seeds")
    if seeds is not None and "seed" in values:
        raise InputError("both seed and seeds are given: seed = [3, 7] names them, seeds = 3 counts them from 0")
    if seeds is not None and (not isinstance(seeds, int) or isinstance(seeds, bool) or not 1 <= seeds <= MOST_SEEDS):
        raise InputError(f"seeds must be a whole number from 1 to {MOST_SEEDS:,}, not {seeds!r}")
    for name, several in values.items():
        _check(name, several)
    named = tuple(dict.fromkeys(values.pop("seed", ())))
    return Grid(values, named or tuple(range(seeds or 1)))


def _listed(name: str, text: str) -> tuple[Any, ...]:
    """The values of an option: words, numbers and tables with commas between them, or a list as TOML writes it."""
    parts = [part.strip() for part in _between_commas(text)]
    if not all(parts):
        raise InputError(f"{name} {text!r}: a value is missing beside a comma")
    read = tuple(map(toml_value, parts))
    if any(isinstance(value, list) for value in read):
        return tuple(one for value in read for one in _varied(name, value))
    return (read,) if name in _DEPTHS else read


def _between_commas(text: str) -> list[str]:
    """A comma within brackets or braces belongs to a value."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _varied(name: str, value: Any) -> tuple[Any, ...]:
    """A list means each of its items, unless the field's value is a list itself."""
    if not isinstance(value, list) or _depth(value) <= _DEPTHS.get(name, 0):
        return (value,)
    if not value:
        raise InputError(f"{name} = [] names no value")
    return tuple(value)


def _depth(value: Any) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list | tuple) else 0


_NAMED: dict[str, Registry] = {"dataset": DATASETS, "model": MODELS}
assert {name for name, hint in get_type_hints(Experiment).items() if get_origin(hint) is tuple} == set(_DEPTHS)


def _check(name: str, values: Sequence[Any]) -> None:
    """Refuses a misspelt name and a value of the wrong type, before they spoil every combination."""
    field, _, parameter = name.partition(".")
    known("field", field, [*FIELDS, "seeds"], MEANT)
    if parameter:
        return  # `with_value` checks it beside the part that it belongs to
    for value in values:
        if field in PARTS:
            _check_names(PARTS[field], value)
            continue
        checked(Experiment, {field: value}, {})
        if field in _NAMED:
            _NAMED[field].entry(value)
        for metric in value if field == "metrics" else ():
            METRICS.entry(metric)


def _check_names(registry: Registry, choice: Any) -> None:
    choice = unfolded(registry, choice)
    if not isinstance(choice, Mapping) or "name" not in choice:
        raise InputError(f"{registry.singular} must be a name or a table with a name, not {choice!r}")
    registry.entry(choice["name"])
    if (within := choice.get(registry.singular)) is not None:
        _check_names(registry, within)


def plan(grid: Grid, precision: Precision = "float32") -> Plan:
    """Every combination of the grid once. With no malicious client an attack without a backdoor does nothing: such runs are one run."""
    names = sorted(grid.values, key=lambda name: _LAST.index(name) if name in _LAST else -1)
    first: dict[str, Experiment] = {}
    left_out: list[LeftOut] = []
    refusals: dict[tuple[Any, int, int], str] = {}
    for combination in itertools.product(*(grid.values[name] for name in names)):
        chosen = dict(zip(names, combination, strict=True))
        try:
            run = _experiment(chosen, precision)
            asked = (run.rule, run.clients_per_round, run.num_clients)
            if asked not in refusals:
                refusals[asked] = try_rule(*asked)
            if refusals[asked]:
                raise InputError(refusals[asked])
            first.setdefault(run.key, run)
        except InputError as problem:
            varied = [name for name in names if len(grid.values[name]) > 1] or names
            left_out.append(LeftOut(", ".join(f"{name} {_words(chosen[name])}" for name in varied), str(problem)))
    if not first:
        raise InputError(left_out[0].why if left_out else "the sweep has no run")
    return Plan([replace(run, seed=seed) for seed in grid.seeds for run in first.values()], left_out)


def _experiment(chosen: Mapping[str, Any], precision: Precision) -> Experiment:
    fields = {name: value for name, value in chosen.items() if "." not in name}
    for name, value in chosen.items():
        if "." in name:
            fields = with_value(fields, name, value, f"{name}={_words(value)}")
    run = from_dict({**fields, "precision": precision})
    return run if run.malicious or _has_backdoor(run.attack) else replace(run, attack=NoAttack())


def _has_backdoor(attack: Attack) -> bool:
    return attack.trigger is not None or type(attack).backdoor is not Attack.backdoor


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join([str(value.get("name", "")), *(f"{name}={item}" for name, item in value.items() if name != "name")])
    return str(value)
