"""The commands for federations on Flower, with their options. What is heavy is imported by the command that needs it."""

from pathlib import Path
from typing import Annotated

import typer


def audit(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of a federation, or of 'fltrust run'.")],
    json: Annotated[bool, typer.Option("--json", help="Print everything as one line of JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print a table with a line for each node.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Print again after each round, until Ctrl-C.")] = False,
    ban: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add the hostile nodes to this file, which RobustStrategy(ban=...) reads.")
    ] = None,
) -> None:
    """Say which nodes look hostile, since when, and why.

    The exit code is 3 if a node is hostile or suspicious.

    Examples:

    [bold]fltrust audit runs/first[/bold]

    [bold]fltrust audit runs/first --follow[/bold]

    [bold]fltrust audit runs/first --ban banned.txt[/bold]

    [bold]fltrust audit runs/first --json | jq .headline[/bold]
    """
    from fltrust.cli.audit import audit as show_audit

    if code := show_audit(path, as_json=json, as_csv=csv, follow=follow, ban=ban):
        raise typer.Exit(code)


def watch(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="The run directory of a federation, or of 'fltrust run'. If it does not exist yet, the page waits."
        ),
    ],
    host: Annotated[
        str, typer.Option(help="The address to listen on. Visitors from other machines need the token that is printed.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port; 0 picks a free one (default: 8642, or the next free one).")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a run on a live page: is training healthy, and who is suspicious?

    It only reads, so it cannot disturb the run. Ctrl-C stops it.

    Examples:

    [bold]fltrust watch runs/first --open[/bold]

    [bold]fltrust watch runs/first --host 0.0.0.0[/bold]
    """
    from fltrust.cli.watch import watch as show

    show(path, host=host, port=port, open_browser=open_browser)


def new_federation(path: Annotated[Path, typer.Argument(help="A new or empty folder.")]) -> None:
    """Create a small Flower app with FLTrust and ten nodes, to start from.

    Its README has the commands that start and stop it. Nodes can be made hostile, for a demonstration.

    Example: [bold]fltrust new-federation my-federation[/bold]
    """
    from fltrust.cli.federation import create

    create(path)
