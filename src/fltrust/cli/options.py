"""The options of `fltrust run`, made from the fields of `Experiment`: a new field is an option without another line."""

from collections.abc import Callable, Collection
from types import UnionType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from fltrust.cli.signature import instead_of
from fltrust.experiment import FIELDS, Experiment
from fltrust.options import OPTIONS, toml_value

ALIASES = {"num_clients": "--clients"}
EXPERIMENT = "The experiment (left out: as usual for the data set)"
PANELS = {
    EXPERIMENT: "dataset model rule attack seed num_clients malicious rounds",
    "Clients and data": "bias split clients_per_round participation standardise augment root_size root_bias root_sampling",
    "Measuring": "evaluate_every metrics batch_norm",
}
TRAINING = "Training"  # every other field
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
_HINTS = get_type_hints(Experiment)
_METAVARS = {int: "INTEGER", float: "FLOAT", bool: "true|false"}
GRID = [name for name in FIELDS if name != "precision"]  # the fields of a sweep; the precision is how it is run
ATTACKED = [name for name in GRID if name not in ("malicious", "seed")]  # those of a red team, which says itself how many


def with_experiment_options(command: Callable[..., None], *, several: Collection[str] | None = None) -> Callable[..., None]:
    """Gives a command an option for every field of `Experiment`. Those that a user gave reach it as the mapping `given`.

    `several`: fields of a grid, whose options are texts with commas and may be repeated; the command has options of its own for the others.
    """
    options = {name: (_annotation(name, several is not None), None) for name in (FIELDS if several is None else several)}

    def read(said: dict[str, Any]) -> dict[str, Any]:
        return {name: ",".join(value) if several else _read(name, value) for name, value in said.items() if value not in (None, [])}

    return instead_of("given", options, read, command)


def _annotation(name: str, several: bool) -> Any:
    hint, option = str if several else _hint(name), OPTIONS[name]
    names = [f"{option}/--no-{option[2:]}" if hint is bool else option, *([ALIASES[name]] if name in ALIASES else [])]
    kind = hint if hint in (int, float, bool) else list[str] if several or hint == tuple[str, ...] else str
    help = FIELDS[name].metadata["help"].replace("[", r"\[") + (" May be repeated." if hint == tuple[str, ...] else "")
    told = typer.Option(*names, help=help, rich_help_panel=PANEL_OF.get(name, TRAINING), metavar=None if kind is bool else _metavar(name))
    return Annotated[kind | None, told]


def _metavar(name: str) -> str:
    """What a field's value looks like, also where the option itself is a text with commas."""
    if name in ("dataset", "model", "metrics") or FIELDS[name].metadata["registry"] is not None:
        return "NAME"
    return "LIST" if name == "lr_decay" else _METAVARS.get(_hint(name), "WORD")


def _hint(name: str) -> Any:
    """A field's type, of an optional one without the None."""
    hint = _HINTS[name]
    return next(option for option in get_args(hint) if option is not type(None)) if isinstance(hint, UnionType) else hint


def _read(name: str, value: Any) -> Any:
    """Lists, such as lr_decay's, are written as in TOML; names and numbers are read already."""
    return toml_value(value) if isinstance(value, str) and value.startswith("[") else value
