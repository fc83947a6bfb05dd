"""Numbers and lists of things in words, the same on the page, in the tables and on the screen."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fltrust.experiment import Experiment
from fltrust.paper import Cell, Exhibit
from fltrust.registry import ATTACKS, RULES
from fltrust.report.agreement import Judged, Number
from fltrust.store.results import Federation, Result

MARKS = {"agrees": "✓", "only by spread": "≈", "differs": "≠", "no number": "·", "not run": ""}


def mark(number: Number) -> str:
    return MARKS["only by spread" if number.only_by_spread else number.verdict]


def plural(many: int, what: str) -> str:
    return f"{many:,} {what}" + ("" if many == 1 else "s")


def signed(value: float, digits: int = 3) -> str:
    """With its sign, and without the minus of a zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def by_hardware(results: Iterable[Result]) -> str:
    return _counted(str(one.about["hardware"]) for one in results)


def arithmetic(results: Iterable[Result]) -> str:
    return _counted(one.run.precision for one in results)


def made(results: Sequence[Result]) -> str:
    """Where numbers come from."""
    return f"Hardware: {by_hardware(results)}. Arithmetic: {arithmetic(results)}."


def _counted(names: Iterable[str]) -> str:
    """What there is, and of how many runs where there is more than one kind."""
    counts = Counter(names).most_common()
    return "; ".join(name if len(counts) == 1 else f"{name} ({plural(many, 'run')})" for name, many in counts)


def seeds(counts: Iterable[int]) -> str:
    """`n = 3 seeds`, or how many cells have how many."""
    kinds = sorted(Counter(counts).items(), reverse=True)
    if len(kinds) == 1:
        return f"n = {plural(kinds[0][0], 'seed')}"
    return "n = " + ", ".join(f"{many} ({plural(cells, 'cell')})" for many, cells in kinds) + " seeds"


def name_of(run: Experiment | Federation) -> str:
    """Of a run that is not in a table."""
    if isinstance(run, Federation):
        return f"federation of {plural(run.num_clients, 'node')}, {RULES.name_of(run.rule)}"
    who = f"{run.malicious} of {run.num_clients} malicious"
    return f"{run.dataset}, {RULES.name_of(run.rule)}, attack {ATTACKS.name_of(run.attack)}, {who}, seed {run.seed}"


def with_unit(unit: str, value: str) -> str:
    """A place in a table by itself, or with what it counts where it is a number."""
    return f"{unit} {value}" if value.replace(".", "").isdigit() else value


def title(exhibit: Exhibit, cell: Cell) -> str:
    parts = (cell.page, with_unit(exhibit.row, cell.row), with_unit(exhibit.column, cell.column))
    return " · ".join(part for part in parts if part)


def printed(cell: Cell) -> str:
    """The paper's numbers."""
    if cell.paper is None:
        return ""
    return f"{cell.paper.error:.2f}" + ("" if cell.paper.success is None else f" / {cell.paper.success:.2f}")


def sentences(one: Judged) -> list[str]:
    """What a cell says, in full."""
    if not one.results:
        return [one.missing.capitalize() + "." + (f" The paper prints {printed(one.cell)}." if one.cell.paper else "")]
    said = [sentence("Error", one.error, beside_the_paper=True)]
    if one.success and one.success.ours:
        said.append(sentence("Backdoor success", one.success, beside_the_paper=True))
    return said


def sentence(what: str, number: Number, *, beside_the_paper: bool = False) -> str:
    spread = f" ± {number.spread:.3f}" if len(number.ours) > 1 else ""
    ours = f"{what} {number.mean:.3f}{spread} over {plural(len(number.ours), 'seed')}"
    if number.difference is None:
        return f"{ours}; the paper has no number here." if beside_the_paper else f"{ours}."
    allowed = f"{number.allowed:.3f} (twice the spread)" if number.allowed > number.limit else f"{number.limit} (the limit of this cell)"
    verdict = f"{mark(number)} {number.verdict.capitalize()}: {signed(number.difference)}"
    return f"{ours}; the paper prints {number.paper:.2f}. {verdict}, {'within' if number.verdict == 'agrees' else 'more than'} {allowed}."
