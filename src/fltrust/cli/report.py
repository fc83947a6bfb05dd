"""`fltrust report`: writes the pages, and says on one screen what they show."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fltrust.registry import load_plugin
from fltrust.report import Report, build
from fltrust.report.agreement import of_the_paper, tally
from fltrust.report.words import plural


def report(sources: list[Path], out: Path, plugins: Sequence[Path], threshold: float) -> None:
    for plugin in plugins:
        load_plugin(plugin)
    made = build(sources, out, threshold)
    screen = Console()
    if left := len(made.found.problems) + len(made.found.unfinished):
        screen.print(f"{plural(left, 'run')} in no table (unfinished, damaged or left out): the page lists them last", style="yellow")
    if made.judged:
        screen.print(_summary(made))
        ran, there = of_the_paper(made.judged)
        screen.print(f"{ran:,} of {there:,} experiments of the paper whose data can be had ran")
        screen.print(
            "agree: of the cells that ran and have a number in the paper; by spread: only within twice their seeds' spread", style="dim"
        )
    screen.print(f"{out / 'index.html'}: open it in a browser", highlight=False, markup=False, soft_wrap=True)
    for folder in ("figures", "tables"):
        many = sum(path.parent.name == folder for path in made.files)
        if many:
            screen.print(f"{out / folder}: {many} files", highlight=False, markup=False, soft_wrap=True)


def _summary(made: Report) -> Table:
    table = Table("name", "what", box=None, header_style="bold")
    for title in ("cells", "ran", "agree", "by spread", "backdoor"):
        table.add_column(title, justify="right")
    for exhibit, cells in made.judged.items():
        count = tally(cells)
        agree = f"{count.agree} of {count.compared}" if count.compared else ""
        backdoor = f"{count.success_agree} of {count.success_compared}" if count.success_compared else ""
        table.add_row(
            exhibit.name, exhibit.title.split(":")[0], str(count.cells), str(count.ran), agree, str(count.only_by_spread or ""), backdoor
        )
    return table
