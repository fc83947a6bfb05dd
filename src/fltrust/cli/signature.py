"""A command's parameter that stands for several options."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any


def instead_of(
    name: str, options: Mapping[str, tuple[Any, Any]], read: Callable[[dict[str, Any]], Any], command: Callable[..., None]
) -> Callable[..., None]:
    """The command with these options (their annotation and default) in the place of one parameter, which gets what `read` makes of them."""

    @wraps(command)
    def run(**values: Any) -> None:
        given = {option: values.pop(option) for option in options}
        command(**{name: read(given)}, **values)

    made = [_parameter(option, default, annotation) for option, (annotation, default) in options.items()]
    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command).parameters.values():
        parameters += made if own.name == name else [_parameter(own.name, own.default, own.annotation)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would read those of the command
    return run


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
