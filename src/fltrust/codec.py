"""From and to TOML and JSON: a rule is {"name": "krum", "tolerate": 20}, and so is every other part of an experiment.

What is written is checked against the dataclass: an unknown name or a value of another type is refused by name, never converted.
"""

import dataclasses
import functools
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fltrust.errors import InputError
from fltrust.registry import Absent, Registry, known

MOST_WITHIN = 10  # rules within each other
Keep = Callable[[Any, dataclasses.Field[Any]], bool]


def plain(value: Any, keep: Keep = lambda value, field: True) -> Any:
    """A dataclass as a mapping that JSON can hold, a registered one with its name; `keep` says which fields are written."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return [plain(item, keep) for item in value] if isinstance(value, list | tuple) else value
    if isinstance(value, Absent):
        return {"name": value.name} | {name: json.loads(written) for name, written in value.parameters}
    registry: Registry | None = getattr(value, "registry", None)
    named = {} if registry is None else {"name": registry.own_name_of(value)}
    fields = [(getattr(value, field.name), field) for field in dataclasses.fields(value)]
    return named | {field.name: plain(part, keep) for part, field in fields if keep(part, field)}


def built(registry: Registry, choice: Any, told: Mapping[str, Any]) -> Any:
    """The value that a name or a mapping {"name": ..., parameter: ...} stands for; "nnm+median" is a rule within a rule.

    Parameters that are left out, and have no default or None, are `told`: the number of malicious clients, the data set's trigger.
    """
    if hasattr(choice, "registry"):
        return choice
    what = registry.singular
    choice = unfolded(registry, choice)
    if not isinstance(choice, Mapping) or "name" not in choice:
        raise InputError(f"{what} must be a name or a table with a name, not {choice!r}")
    name = choice["name"]
    kind = registry.entry(name).kind
    fields = dataclasses.fields(kind)
    names = [field.name for field in fields]
    if what in choice and what not in names:
        raise InputError(f"{name!r} cannot hold another {what}")
    if len(choice) > 1 and not names:
        raise InputError(f"{what} {name!r} has no parameters")
    parameters = {known(f"parameter of {name}", field, names): value for field, value in choice.items() if field != "name"}
    unsaid = {
        field.name: field.default
        for field in fields
        if field.default_factory is dataclasses.MISSING and (field.default is None or field.default is dataclasses.MISSING)
    }
    parameters = {field: told[field] for field in unsaid if told.get(field) is not None} | checked(kind, parameters, told)
    for field, default in unsaid.items():
        if field not in parameters and default is not None:
            within = f"{name!r} needs a {what} within it: write {name}+NAME"
            raise InputError(within if field == what else f"{what} {name!r} must be told its {field}")
    return kind(**parameters)


def unfolded(registry: Registry, choice: Any, deep: int = 1) -> Any:
    """A name as a mapping; "nnm+median" as {"name": "nnm", "rule": {"name": "median"}}."""
    if deep > MOST_WITHIN:
        raise InputError(f"more than {MOST_WITHIN} {registry.plural} within each other")
    if isinstance(choice, str):
        choice = {"name": choice}
    if not isinstance(choice, Mapping) or not isinstance(choice.get("name"), str):
        return choice
    name, plus, within = choice["name"].partition("+")
    if not all(choice["name"].split("+")) and plus:
        spelt = choice["name"].replace("+", "-plus")
        near = f": did you mean {spelt!r}?" if spelt in registry else f", and a {registry.singular}'s name is missing beside it"
        raise InputError(f"unknown {registry.singular} {choice['name']!r}: '+' puts one {registry.singular} into another{near}")
    within = within or choice.get(registry.singular)
    return {**choice, "name": name, **({registry.singular: unfolded(registry, within, deep + 1)} if within is not None else {})}


def built_or_absent(registry: Registry, written: Any) -> Any:
    """A part of a stored experiment, in full; one whose plug-in is not loaded, or that of a part within it, stays as it was written."""
    if isinstance(written, Mapping) and isinstance(name := written.get("name"), str) and not _all_known(registry, written):
        return Absent(registry, name, tuple((field, canonical(value)) for field, value in sorted(written.items()) if field != "name"))
    return built(registry, written, {})


def _all_known(registry: Registry, written: Mapping[str, Any]) -> bool:
    within: Any = written
    while isinstance(within, Mapping):
        if not isinstance(name := within.get("name"), str) or name not in registry:
            return False
        within = within.get(registry.singular)
    return True


_hints = functools.cache(get_type_hints)  # reading annotations takes longer than all the rest, and a class keeps its own


def checked(kind: type, values: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the dataclass wants them: a number in quotes or a fraction of a client is a mistake, not something to convert."""
    hints = _hints(kind)
    return {name: _as(hints[name], name, value, told) if name in hints else value for name, value in values.items()}


def _as(hint: Any, name: str, value: Any, told: Mapping[str, Any]) -> Any:
    options = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    if Any in options or (value is None and type(None) in options):
        return value
    for option in options:
        if option is float and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)  # so that 1 and 1.0 are one experiment
        if option is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            inner = get_args(option)
            parts = [inner[0]] * len(value) if inner[-1] is ... else inner
            if len(parts) == len(value):
                return tuple(_as(part, name, item, told) for part, item in zip(parts, value, strict=True))
        if get_origin(option) is Literal and isinstance(value, str):
            return known(name, value, get_args(option))
        if isinstance(registry := getattr(option, "registry", None), Registry):  # a rule within a rule
            return built(registry, value, told)
        if isinstance(value, Mapping) and hasattr(option, "from_dict"):
            return option.from_dict(value)
        if option not in (int, float) and isinstance(option, type) and isinstance(value, option):
            return value
    raise InputError(f"{name} cannot be {value!r}: expected {_words(options)}")


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in quotes", tuple: "a list"}


def _words(options: tuple[Any, ...]) -> str:
    """What a field may hold, for people."""
    kinds = [(get_origin(option) or option, option) for option in options if option is not type(None)]
    return " or ".join(
        f"one of {', '.join(get_args(option))}" if kind is Literal else _WORDS.get(kind, f"a {kind.__name__}") for kind, option in kinds
    )


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:  # also of a number of 5,000 digits
        raise InputError(f"{path} is not TOML: {problem}") from problem


def canonical(value: Any) -> str:
    """JSON in which equal values are equal texts."""
    return json.dumps(value, sort_keys=True)
