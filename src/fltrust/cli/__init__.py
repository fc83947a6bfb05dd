"""The command line. Only typer is imported here; what is heavy is imported by the command that needs it."""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fltrust.cli.data import app as data_app
from fltrust.errors import InputError
from fltrust.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train models with clients that cannot be trusted: FLTrust (NDSS 2021), its baselines and its attacks.\n\n"
    "Start with [bold]fltrust demo[/bold]; it needs no download and takes about a minute.",
)
app.add_typer(data_app, name="data", help="The data sets: which there are, fetch them, check them.")


def main() -> None:
    """Runs the program; what a user got wrong becomes one line and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded: threads that wait leave the core to those that work
    try:
        app()
    except InputError as problem:
        _stop(str(problem))
    except OSError as problem:
        kept = "; what was written before stays readable" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        _stop(f"{problem.filename or 'writing'}: {problem.strerror or problem}{kept}")


def _stop(line: str) -> None:
    print("fltrust: " + " ".join(line.split()), file=sys.stderr)
    sys.exit(2)


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
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Another seed, another split, other malicious clients.")] = 0,
) -> None:
    """See FLTrust withstand two attacks that ruin plain averaging, on 5,000 real MNIST images. About a minute.

    Example: [bold]fltrust demo[/bold]
    """
    from fltrust.cli.demo import show

    show(device=device, seed=seed)


@app.command(name="list")
def list_(what: Annotated[Literal["rules", "attacks", "datasets", "models"], typer.Argument(help="What to list.")]) -> None:
    """List the names that other commands take.

    Example: [bold]fltrust list attacks[/bold]
    """
    from fltrust.cli.names import show

    show(what)


@app.command()
def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file with the experiment; options below override it.")] = None,
    dataset: Annotated[str | None, typer.Option(help="mnist-0.1, mnist-0.5, fashion-mnist, cifar-10, har, ch-mnist or mnist-5k.")] = None,
    rule: Annotated[str | None, typer.Option(help="How the server aggregates; see 'fltrust list rules'.")] = None,
    attack: Annotated[str | None, typer.Option(help="What malicious clients do; see 'fltrust list attacks'.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Global rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides the split, the first weights, the batches and the noise.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    malicious: Annotated[int | None, typer.Option(help="How many of them are malicious (default: 20 %).")] = None,
    clients_per_round: Annotated[int | None, typer.Option(help="How many take part in a round (default: all).")] = None,
    local_steps: Annotated[int | None, typer.Option(help="SGD steps of a client in a round.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples in a client's batch.")] = None,
    local_lr: Annotated[float | None, typer.Option(help="The clients' learning rate (beta).")] = None,
    global_lr: Annotated[float | None, typer.Option(help="The server's learning rate (alpha).")] = None,
    bias: Annotated[
        float | None,
        typer.Option(help="q: share of each class that goes to its own group of clients; 0.1 (of ten classes) is an even split."),
    ] = None,
    root_size: Annotated[int | None, typer.Option(help="Examples in the server's root set.")] = None,
    root_bias: Annotated[float | None, typer.Option(help="Share of class 1 in the root set (the paper's case II).")] = None,
    root_batch: Annotated[str | None, typer.Option(help="The server trains on its 'whole' root set or on a 'batch' of it.")] = None,
    loss: Annotated[str | None, typer.Option(help="'sum' or 'mean' over a batch.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Rounds between two measurements (and checkpoints).")] = None,
    model: Annotated[str | None, typer.Option(help="The network; see 'fltrust list models'.")] = None,
    knowledge: Annotated[str | None, typer.Option(help="What the krum or trim attack sees: 'full' or 'partial' (its own clients).")] = None,
    precision: Annotated[str | None, typer.Option(help="Of a GPU's products: float32, tf32 or float16 (about five times faster).")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")] = "auto",
    data_dir: Annotated[str | None, typer.Option(help="Where the data files lie (default: $FLTRUST_DATA, or the user's cache).")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the results (default: runs/KEY); an interrupted run there goes on.")
    ] = None,
) -> None:
    """Run one experiment with the paper's settings, or yours; interrupted, it goes on where it stopped.

    Examples:

    [bold]fltrust run --dataset mnist-5k --rule krum --attack trim[/bold]

    [bold]fltrust run --dataset mnist-0.5 --rule fltrust --attack trim --device cuda[/bold]

    [bold]fltrust run experiment.toml --seed 3 --out runs/third[/bold]
    """
    from fltrust.cli.run import run_one

    given: dict[str, Any] = {
        "dataset": dataset,
        "rule": rule,
        "attack": attack,
        "rounds": rounds,
        "seed": seed,
        "num_clients": clients,
        "malicious": malicious,
        "clients_per_round": clients_per_round,
        "local_steps": local_steps,
        "batch_size": batch_size,
        "local_lr": local_lr,
        "global_lr": global_lr,
        "bias": bias,
        "root_size": root_size,
        "root_bias": root_bias,
        "root_batch": root_batch,
        "loss": loss,
        "evaluate_every": evaluate_every,
        "model": model,
        "precision": precision,
    }
    run_one(
        config,
        {name: value for name, value in given.items() if value is not None},
        knowledge=knowledge,
        device=device,
        data_dir=data_dir,
        out=out,
    )


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables and figures: methods, variants, root-bias, convergence, root-size, clients, malicious, adaptive, choices, "
            "cifar-10-rates (default: all)."
        ),
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this data set; may be given several times.")] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Only this attack; may be given several times.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Only this rule; may be given several times.")] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, ...")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")] = "auto",
    precision: Annotated[
        str | None,
        typer.Option(
            help="Of a GPU's products: float32, tf32 or float16 (about five times faster). If given, only runs as exact count as done."
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Runs at the same time, each in its own process; they share the cores or the GPU. With --ray: on each GPU.")
    ] = 1,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster ('auto', '10.0.0.1:6379') that does the runs instead.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where the data files lie (default: $FLTRUST_DATA, or the user's cache).")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results; what is there is not run again.")] = Path("results"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many runs there are, how long they might take, what data is missing.")
    ] = False,
) -> None:
    """Run the paper's tables and figures, those runs that are not done yet, and print each number beside the paper's.

    Examples:

    [bold]fltrust reproduce --dry-run[/bold]

    [bold]fltrust reproduce methods --dataset mnist-0.5 --seeds 3 --device cuda --precision float16 --jobs 4[/bold]

    [bold]fltrust reproduce methods root-bias --dataset har --seeds 5 --jobs 2[/bold]
    """
    from fltrust.cli.reproduce import reproduce as reproduce_all

    reproduce_all(
        names or [],
        only_datasets=dataset or [],
        only_attacks=attack or [],
        only_rules=rule or [],
        seeds=seeds,
        device=device,
        precision=precision,
        jobs=jobs,
        ray=ray,
        data_dir=data_dir,
        out=out,
        dry_run=dry_run,
    )


@app.command()
def report(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="A folder of results (default: results), or run directories of 'fltrust run', or a folder of them."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page, the figures and the tables.")] = Path("report"),
) -> None:
    """Turn results into a page for a browser, figures (PNG, PDF) and tables (Markdown, LaTeX): beside the paper's numbers, or side by side.

    Examples:

    [bold]fltrust report[/bold]

    [bold]fltrust report runs --out mine[/bold]
    """
    from fltrust.cli.report import report as write_report

    write_report(sources or [Path("results")], out)


@app.command()
def audit(path: Annotated[Path, typer.Argument(help="The run directory of a federation, or of 'fltrust run'.")]) -> None:
    """Say who was trusted how much, who was rejected and why, and who changed.

    Example: [bold]fltrust audit runs/first[/bold]
    """
    from fltrust.cli.audit import show

    show(path)


@app.command()
def new_federation(path: Annotated[Path, typer.Argument(help="A folder that is not there yet, or empty.")]) -> None:
    """Copy a small Flower app to begin with: FLTrust, ten nodes, and hostile ones if you ask for them.

    Example: [bold]fltrust new-federation my-federation[/bold]
    """
    from fltrust.cli.federation import create

    create(path)
