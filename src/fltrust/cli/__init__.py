"""The command line. Only typer is imported here; what is heavy is imported by the command that needs it."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fltrust.cli.commands import Commands
from fltrust.cli.compare import league, redteam, report, reproduce, sweep, worst_case
from fltrust.cli.data import app as data_app
from fltrust.cli.federations import audit, new_federation, watch
from fltrust.cli.options import EXPERIMENT, with_experiment_options
from fltrust.cli.root import app as root_app
from fltrust.cli.shared import WHERE, YOURS, DataDir, Device, Plugins, take_task
from fltrust.cli.stopping import Stopped
from fltrust.errors import InputError, printable
from fltrust.registry import plugin_fault
from fltrust.version import __version__

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a model with clients that cannot be trusted, and see which defence withstands which attack.\n\n"
    "New here? [bold]fltrust demo[/bold] needs no download and takes about a minute. "
    "[bold]fltrust COMMAND --help[/bold] shows examples of each command.",
)
app.add_typer(data_app, name="data", help="List, download and check the data sets.")
app.add_typer(root_app, name="root")


def main() -> None:
    """Runs the program; what a user got wrong becomes one line and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded: threads that wait leave the core to those that work
    try:
        app()
    except InputError as problem:
        _stop(str(problem))
    except Stopped as stop:
        _stop(str(stop), stop.code)
    except OSError as problem:  # a full disk, a folder that is none
        _stop(f"{problem.filename or 'writing'}: {problem.strerror or problem}")
    except Exception as problem:
        if not (fault := plugin_fault(problem)):
            raise
        _stop(fault)


def _stop(line: str, code: int = 2) -> None:
    print("fltrust: " + printable(" ".join(line.split())), file=sys.stderr)
    sys.exit(code)


def _version(asked: bool) -> None:
    if asked:
        print(f"fltrust {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def demo(
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if there is one.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Decides the split of the data and who is malicious.")] = 0,
) -> None:
    """See FLTrust withstand two attacks that ruin plain averaging.

    It trains on 5,000 real MNIST images, which come with the package. About a minute.

    Example: [bold]fltrust demo[/bold]
    """
    from fltrust.cli.demo import show

    show(device=device, seed=seed)


@app.command(name="list")
def list_(
    what: Annotated[
        Literal["rules", "attacks", "datasets", "models", "splits", "metrics", "objectives", "optimisers", "loggers"],
        typer.Argument(help="What to list."),
    ],
    plugin: Plugins = None,
) -> None:
    """List the rules, attacks, data sets, ... that other commands take.

    Examples:

    [bold]fltrust list attacks[/bold]

    [bold]fltrust list rules --plugin my_rules.py[/bold]
    """
    from fltrust.cli.names import show

    show(what, plugin or [])


@app.command()
@with_experiment_options
def run(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Argument(help="A TOML file with the experiment. The options override it.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PART.PARAMETER=VALUE",
            help="A parameter of the rule, attack, split or server. May be repeated.",
            rich_help_panel=EXPERIMENT,
        ),
    ] = None,
    knowledge: Annotated[
        str | None, typer.Option(help="'full' or 'partial': short for --set attack.knowledge=...", rich_help_panel=EXPERIMENT)
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION|FOLDER",
            help="Your own data instead of a --dataset: a function that returns them, or a folder.",
            rich_help_panel=YOURS,
        ),
    ] = None,
    plugin: Plugins = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:TARGET]",
            help="Also log to jsonl, tensorboard, mlflow or wandb. May be repeated; see 'fltrust list loggers'.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run (default: runs/KEY). An interrupted run resumes there; more --rounds extend it.", rich_help_panel=WHERE
        ),
    ] = None,
) -> None:
    """Run one experiment: a data set, a rule, an attack.

    Ctrl-C stops it, and the same command resumes it. More --rounds in the same --out extend a finished run.

    Examples:

    [bold]fltrust run --dataset mnist-5k --rule krum --attack trim[/bold]

    [bold]fltrust run --dataset mnist-5k --rule krum --set rule.tolerate=6 --attack trim --set attack.knowledge=partial[/bold]

    [bold]fltrust run experiment.toml --seed 3 --out runs/third --log tensorboard[/bold]

    [bold]fltrust run experiment.toml --seed 3 --out runs/third --rounds 500[/bold]

    [bold]fltrust run --plugin my_rules.py --rule mine --dataset mnist-5k --log jsonl:mine.jsonl[/bold]

    [bold]fltrust run --task my_task.py:build --rule fltrust --attack trim[/bold]
    """
    from fltrust.cli.run import run_one

    take_task(task, given)
    run_one(
        config,
        given,
        settings=[*(settings or []), *([] if knowledge is None else [f"attack.knowledge={knowledge}"])],
        plugins=plugin or [],
        logs=log or [],
        device=device,
        data_dir=data_dir,
        out=out,
    )


for command in (reproduce, league, worst_case, sweep, redteam, report, audit, watch, new_federation):
    app.command()(command)
