"""`fltrust root check`: is a root set good enough?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fltrust.rootset.check import RootCheck

app = typer.Typer(no_args_is_help=True, help="The server's root set: check it before you rely on it.")


@app.callback()
def _root() -> None:
    """The server's root set: check it before you rely on it."""


@app.command()
def check(
    dataset: Annotated[str | None, typer.Option(help="Check the root set of this data set; see 'fltrust list datasets'.")] = None,
    task: Annotated[
        str | None, typer.Option(metavar="FILE.py:FUNCTION|FOLDER", help="Check the root set of your own data; see 'fltrust run --task'.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The root set: an .npy file of indices into the training examples, or an .npz file of inputs and targets."
        ),
    ] = None,
    root_size: Annotated[int | None, typer.Option(help="Without a file: draw so many examples, as 'fltrust run' would.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of each training (default: the data's own, at most 100).")] = None,
    seed: Annotated[int, typer.Option(help="Decides the split, the root set that is drawn, and the training.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON.")] = False,
    plugin: Annotated[list[Path] | None, typer.Option(help="A Python file that registers models or data sets of your own.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if there is one.")] = "auto",
    data_dir: Annotated[str | None, typer.Option(help="Folder of the data files (default: $FLTRUST_DATA, or your cache folder).")] = None,
) -> None:
    """Check a root set: size, balance, label noise, and how much trust honest clients would get. The exit code is 3 if it needs attention.

    It trains on your data with and without the root set, and with even samples of other sizes. No client is malicious.

    Examples:

    [bold]fltrust root check --dataset mnist-5k[/bold]

    [bold]fltrust root check --task my_task.py:build --root root.npz --json[/bold]
    """
    from fltrust.datasets.own import own
    from fltrust.errors import InputError

    if (task is None) == (dataset is None):
        raise InputError("name the data: --dataset NAME, or --task for your own")
    if root is not None and root_size is not None:
        raise InputError("--root is the root set already: leave out --root-size")
    changes = {"root_size": root_size, "rounds": rounds}
    given = {name: value for name, value in changes.items() if value is not None}
    found = _checked(dataset or own(task or ""), root, {**given, "seed": seed}, plugin or [], device, data_dir)
    if json:
        import json as encoder

        print(encoder.dumps(found.to_dict(), allow_nan=False))
    else:
        _show(found)
    if not found.fine:
        raise typer.Exit(3)


MOST_ROUNDS = 100


def _checked(name: str, root: Path | None, changes: dict[str, Any], plugins: list[Path], device: str, data_dir: str | None) -> "RootCheck":
    from rich.console import Console

    from fltrust import datasets
    from fltrust.cli.run import chosen_device
    from fltrust.experiment import Experiment
    from fltrust.registry import DATASETS, load_plugin
    from fltrust.rootset.check import check_root
    from fltrust.rootset.read import with_root_of
    from fltrust.tasks.build import build_task

    for plugin in plugins:
        load_plugin(plugin)
    changes.setdefault("rounds", min(MOST_ROUNDS, DATASETS.entry(name).kind.settings.get("rounds", MOST_ROUNDS)))
    run = Experiment.on(name, "fltrust", "none", malicious=0, **changes)
    examples = datasets.examples_of(run.dataset, data_dir)
    if root is not None:
        examples = with_root_of(examples, root)
        assert examples.root is not None
        run = Experiment.on(name, "fltrust", "none", malicious=0, **{**changes, "root_size": len(examples.root)})
    task = build_task(run, device=chosen_device(device, run.precision), load=lambda name, data_dir: examples)
    screen = Console(stderr=True)
    with screen.status("") as status:
        return check_root(run, task, lambda step: status.update(step))


def _show(found: "RootCheck") -> None:
    from rich.console import Console
    from rich.table import Table

    screen = Console(highlight=False)

    def say(text: str, markup: bool = False, style: str = "") -> None:
        screen.print(text, style=style, markup=markup, soft_wrap=not screen.is_terminal)  # a pipe has no width: nothing is wrapped

    say(f"The root set of {found.dataset}: {found.size} examples", style="bold")
    if found.classes is not None:
        say(f"Examples of each class: {', '.join(map(str, found.classes.counts))}")
    say(f"\nTrust of honest clients over {found.rounds} rounds, without an attack:")
    table = Table("root set", box=None, header_style="bold")
    for title in ("examples", "clients with trust", "mean trust", "test error"):
        table.add_column(title, justify="right")
    for whose, trust in (("this one", found.trust), *(("an even sample", other) for other in found.others)):
        table.add_row(whose, f"{trust.size:,}", f"{trust.trusted:.0%}", f"{trust.trust:.2f}", f"{trust.test_error:.3f}")
    screen.print(table)
    say("")
    for finding in found.findings:
        say(("[green]fine[/], " if finding.fine else "[yellow]attention[/], ") + f"{finding.about}: {finding.text}", markup=True)
