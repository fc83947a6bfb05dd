"""Pages of the reference, made at build time: every public name, and every command with its options."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import click
import typer
from league_tables import table
from registry_pages import WHERE, save
from sphinx.application import Sphinx

import fltrust
from fltrust.cli import app as program
from fltrust.registry import ATTACKS, RULES


def setup(application: Sphinx) -> dict[str, bool]:
    application.connect("builder-inited", write)
    return {"parallel_read_safe": True}


def write(application: Sphinx) -> None:
    folder = Path(application.srcdir) / WHERE
    save(folder / "api.md", reference())
    save(folder / "commands.md", commands())


MODULES = {  # public names outside of `fltrust` itself
    "Write and check your own": ("fltrust.registry", "load_plugin"),
    "The laws": ("fltrust.testing", "check_rule check_attack"),
    "Your own data": ("fltrust.datasets", "Examples"),
    "Federations on Flower": ("fltrust.flower", "RobustStrategy root_of Quarantine"),
    "Hostile nodes for tests": ("fltrust.flower.hostile", "misbehave poisoned"),
    "The audit": ("fltrust.audit", "Audit Finding"),
    "The paper's theorem": ("fltrust.theory", "Constants"),
}


def reference() -> str:
    """Every public name that has no page of its own as a rule or an attack."""
    has_page = {registry[name].__name__ for registry in (RULES, ATTACKS) for name in registry}
    text = [
        "# API",
        "All names can be imported from `fltrust` unless a heading says otherwise.",
        "[Rules](../rules.md) and [attacks](../attacks.md) have pages of their own.",
    ]
    rooms: dict[str, list[str]] = {"Experiments": [], "Parts of a rule": [], "Parts of an attack": []}
    for name in fltrust.__all__:
        room = str(getattr(getattr(fltrust, name), "__module__", "")).split(".")[1:2]
        if name not in has_page:
            rooms[{"rules": "Parts of a rule", "attacks": "Parts of an attack"}.get("".join(room), "Experiments")].append(name)
    for title, names in rooms.items():
        text += [f"## {title}", *_entries("fltrust", names)]
    for title, (module, names) in MODULES.items():
        text += [f"## {title}", f"In `{module}`.", *_entries(module, names.split())]
    return "\n\n".join(text) + "\n"


def _entries(module: str, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        value = getattr(import_module(module), name)
        kind = "autoclass" if isinstance(value, type) else "autofunction" if callable(value) else ""
        members = "\n   :members:\n   :exclude-members: __new__, __init__" if isinstance(value, type) else ""
        if kind:
            yield f"```{{eval-rst}}\n.. {kind}:: {module}.{name}{members}\n```"


# ---------------------------------------------------------------- commands


def commands() -> str:
    root = typer.main.get_command(program)
    assert isinstance(root, click.Group)
    parts = ["# Commands", "`fltrust COMMAND --help` prints the same in a terminal. Bad input ends with one line and exit code 2."]
    for path, command in _flat("fltrust", root):
        parts.append(f"## {path}\n\n{_plain(command.help or '')}")
        shown = [one for one in command.params if one.name not in ("help", "install_completion", "show_completion")]
        rows = [[f"`{_names(one)}`", _plain(str(getattr(one, "help", "") or ""))] for one in shown]
        if rows:
            parts.append(table(["argument or option", "what it does"], rows))
    return "\n\n".join(parts) + "\n"


def _flat(path: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _flat(f"{path} {name}", command)
        else:
            yield f"{path} {name}", command


def _names(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.make_metavar(click.Context(click.Command("x"))).partition(":")[0]
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _plain(text: str) -> str:
    """typer's marks as Markdown's: examples in bold become code."""
    return text.replace("[bold]", "`").replace("[/bold]", "`").replace("\\[", "[").replace("*", "\\*").strip()
