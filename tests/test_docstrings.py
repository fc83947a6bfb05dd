"""Docstrings: every public name has a summary, its parameters with their defaults, and an example; and every example is run."""

import doctest
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import fltrust
from fltrust import testing
from fltrust.registry import ATTACKS, OPTIMISERS, RULES

SOURCE = Path(fltrust.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(("fltrust", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for file in SOURCE.rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)
PUBLIC = {
    **{name: getattr(fltrust, name) for name in fltrust.__all__ if name not in ("__version__", "ATTACKS", "RULES")},
    **{f"{registry.plural}.{name}": kind for registry in (RULES, ATTACKS, OPTIMISERS) for name, kind in registry.items()},
    "check_rule": testing.check_rule,
    "check_attack": testing.check_attack,
}
OURS = {name: thing for name, thing in PUBLIC.items() if thing.__module__.startswith("fltrust.")}  # not what other tests register
ELSEWHERE = ("InputError",)  # an error takes a message


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str) -> None:
    try:
        module = import_module(name)
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] == "fltrust":
            raise
        pytest.skip(f"{problem.name} is not installed")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", OURS)
def test_a_public_name_has_a_summary_and_an_example(name: str) -> None:
    summary, _, rest = (inspect.getdoc(OURS[name]) or "").partition("\n")
    assert summary.endswith(".")
    assert not rest or rest.startswith("\n")  # one line
    assert "\n>>> " in rest


@pytest.mark.parametrize("name", [name for name in OURS if name not in ELSEWHERE])
def test_a_docstring_has_all_parameters_and_their_defaults(name: str) -> None:
    lines = (OURS[name].__doc__ or "").splitlines()
    for parameter in inspect.signature(OURS[name]).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        (line,) = [line for line in lines if line.strip().startswith(f"{parameter.name} : ")]
        assert _says(line, parameter.default), line


def _says(line: str, default: Any) -> bool:
    if default is inspect.Parameter.empty:
        return "default" not in line
    if default is None or isinstance(default, bool | int | float | str | tuple):
        return line.replace('"', "'").endswith(f", default {default!r}")
    return ", default " in line  # a function or a factory has words of its own
