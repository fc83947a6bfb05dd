"""An experiment on the command line, in both directions: its fields as options, and what `--set` changes in its parts.

--num-clients 50          a field
--rule krum               a part by its name
--set rule.tolerate=25    a parameter of a part; --set rule.rule.tolerate=25 of a part within a part
"""

import inspect
import json
import tomllib
from collections.abc import Iterable
from typing import Any

from fltrust.codec import unfolded
from fltrust.errors import InputError
from fltrust.experiment import FIELDS, PARTS, Experiment
from fltrust.registry import known

OPTIONS = {name: "--" + name.replace("_", "-") for name in FIELDS}


def words(field: str, value: Any) -> list[str]:
    """A field's value on the command line; a list as TOML writes it."""
    option = OPTIONS[field]
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    if field == "metrics":
        return [word for name in value for word in (option, name)]
    return [option, json.dumps(value) if isinstance(value, list | tuple) else str(value)]


def assigned(written: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """An experiment as TOML would declare it, with assignments such as 'rule.tolerate=25' or 'attack.knowledge=partial'."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"--set {assignment}: expected PART.PARAMETER=VALUE, such as rule.tolerate=25")
        written = with_value(written, path, toml_value(text), assignment)
    return written


def with_value(written: dict[str, Any], path: str, value: Any, assignment: str) -> dict[str, Any]:
    """The experiment with a value at a path such as 'rule.tolerate'."""
    first, *inner = path.strip().split(".")
    if not all((first, *inner)):
        raise InputError(f"--set {assignment}: expected PART.PARAMETER=VALUE, such as rule.tolerate=25")
    known("field", first, FIELDS)
    if inner and first not in PARTS:
        raise InputError(f"--set {assignment}: {first} has no parameters; known: {', '.join(PARTS)}")
    part = written.get(first, _DEFAULTS.get(first))
    return {**written, first: _with(unfolded(PARTS[first], part) if inner else part, inner, value, assignment)}


_DEFAULTS = {  # what a part is called if nobody names it
    name: parameter.default for name, parameter in inspect.signature(Experiment.on).parameters.items() if name in PARTS
}


def _with(part: Any, path: list[str], value: Any, assignment: str) -> Any:
    if not path:
        return value
    if not isinstance(part, dict):
        raise InputError(
            f"--set {assignment}: say first what it is a parameter of, such as --split dirichlet-clients --set split.alpha=0.1"
        )
    return {**part, path[0]: _with(part.get(path[0]), path[1:], value, assignment)}


def toml_value(text: str) -> Any:
    """As TOML reads it; what is no TOML is a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
