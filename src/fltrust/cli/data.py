"""`fltrust data`: which data sets there are, getting them, checking them."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

app = typer.Typer(no_args_is_help=True, help="List, download and check the data sets.")

DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", help="Folder of the data files (default: $FLTRUST_DATA, or your cache folder).", show_default=False),
]


@app.command("list")
def list_datasets(data_dir: DataDir = None) -> None:
    """Show every data set, and whether its files are on this machine.

    Example:  fltrust data list
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fltrust.datasets import FAMILIES, data_folder, locate

    table = Table("name", "what", "size", "here", "where", title=f"Data sets in {escape(str(data_folder(data_dir)))}")
    for dataset in FAMILIES.values():
        paths = locate(dataset.name, data_dir)
        here = all(path.is_file() for path in paths)
        how = f"pip install {dataset.package}" if dataset.package else f"fltrust data fetch {dataset.name}"
        table.add_row(dataset.name, dataset.what, dataset.size, "yes" if here else "no", escape(str(paths[0].parent)) if here else how)
    Console().print(table)


@app.command("fetch")
def fetch_datasets(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Data sets, such as mnist; see `fltrust data list`.", show_default=False)
    ],
    data_dir: DataDir = None,
) -> None:
    """Download data sets from their public homes, and check that they are the originals.

    A file that differs from the original is replaced.

    Example:  fltrust data fetch mnist fashion-mnist
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from fltrust.datasets import family_of, fetch, locate

    for name in names:
        locate(name, data_dir)  # a misspelt last name is refused before the first download
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    for name in names:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            paths = fetch(name, data_dir, lambda file, progress=progress: _Bar(progress, file))  # type: ignore[misc]
        dataset = family_of(name)
        console.print(f"{name}: in {paths[0].parent}", soft_wrap=True, highlight=False, markup=False)
        console.print(
            f"  home: {dataset.home}; licence: {dataset.licence}; please cite {dataset.cite}", soft_wrap=True, highlight=False, markup=False
        )


@app.command("check")
def check_datasets(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Data sets, such as mnist.", show_default=False)] = None,
    data_dir: DataDir = None,
) -> None:
    """Read data sets to the end and compare their files with the originals.

    Without a name, it checks every data set that has a file here. A file is ok, differs (readable, but not a known original), is damaged,
    or is missing. The exit code is 2 if a file is damaged or missing.

    Examples:  fltrust data check    fltrust data check mnist --data-dir ~/data
    """
    from rich.console import Console
    from rich.markup import escape

    from fltrust.datasets import FAMILIES, check, locate

    chosen = names or [name for name in FAMILIES if any(path.is_file() for path in locate(name, data_dir))]
    colours = {"ok": "green", "differs": "yellow", "damaged": "red", "missing": "red"}
    console = Console()
    failed = False
    for name in chosen:
        for file in check(name, data_dir):
            failed = failed or file.state in ("damaged", "missing")
            state = f"[{colours[file.state]}]{file.state:8}[/]"
            console.print(f"{state} {name}: {escape(file.file)}: {escape(file.detail)}", soft_wrap=True, highlight=False)
    if failed:
        raise typer.Exit(2)


class _Bar:
    """A bar of rich in the form that pooch asks for."""

    def __init__(self, progress: "Progress", file: str) -> None:
        self.progress = progress
        self.task = progress.add_task(file, total=None)

    @property
    def total(self) -> int:
        return int(self.progress.tasks[self.task].total or 0)

    @total.setter
    def total(self, size: int) -> None:
        self.progress.update(self.task, total=size or None)  # 0: the server did not say

    def update(self, amount: int) -> None:
        self.progress.advance(self.task, amount)

    def reset(self) -> None:
        self.progress.update(self.task, completed=0)

    def close(self) -> None:
        self.progress.stop_task(self.task)
