"""The options that several commands share: one's own code, where and how runs are done."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fltrust.cli.signature import instead_of
from fltrust.errors import InputError

WHERE = "How and where it runs"
YOURS = "Your own data and code"

Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="A Python file that registers your own rules, attacks, ... May be repeated.", rich_help_panel=YOURS),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if there is one.", rich_help_panel=WHERE)]
DataDir = Annotated[
    str | None, typer.Option(help="Folder of the data files (default: $FLTRUST_DATA, or your cache folder).", rich_help_panel=WHERE)
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="Precision of matrix products. On a GPU: float32, tf32 or float16 (about three times faster). "
        "On a CPU: float32 or, if the processor has it, bfloat16 (some networks are up to 1.3 times faster). "
        "If you give one, results of lower precision do not count, and their runs are run again.",
        rich_help_panel=WHERE,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Runs at the same time, each in its own process (default: 1). They share the cores or the GPU. With --ray: runs on each GPU.",
        rich_help_panel=WHERE,
    ),
]
Ray = Annotated[
    str | None, typer.Option(help="Run on the Ray cluster at this address, such as 'auto' or '10.0.0.1:6379'.", rich_help_panel=WHERE)
]
Out = Annotated[Path, typer.Option(help="Folder of the results. A run whose result is there is not run again.", rich_help_panel=WHERE)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run nothing. Say how many runs there are, how long they might take, and which data is missing.")
]


def _a_number(value: float) -> float:
    if math.isnan(value):  # neither below 0 nor above 1
        raise InputError("--threshold must be a number from 0 to 1, not nan")
    return value


Threshold = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        callback=_a_number,
        help="A rule counts as unharmed while an attack adds at most this to its test error or backdoor success.",
    ),
]


def with_how(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command of many runs the options that say how and where; they reach it as `how`, a `fltrust.cli.many.How`.

    An option that the command has itself is left to it.
    """

    def read(given: dict[str, Any]) -> Any:
        from fltrust.cli.many import How

        return How(plugins=given.pop("plugin") or [], **given)

    options = {
        "device": (Device, "auto"),
        "precision": (PrecisionOption, None),
        "jobs": (Jobs, None),
        "ray": (Ray, None),
        "data_dir": (DataDir, None),
        "plugin": (Plugins, None),
        "out": (Out, Path("results")),
        "dry_run": (DryRun, False),
    }
    own = inspect.signature(command).parameters
    return instead_of("how", {name: option for name, option in options.items() if name not in own}, read, command)


def each(given: list[str] | None) -> list[str]:
    """The names of an option that may be repeated, and that may name several with commas."""
    return [name.strip() for text in given or [] for name in text.split(",")]


def take_task(task: str | None, given: dict[str, Any]) -> None:
    """One's own data are a data set too."""
    from fltrust.datasets.own import own

    if task is not None:
        if "dataset" in given:
            raise InputError("--task and --dataset both name the data: give one of them")
        given["dataset"] = own(task)
