"""The worst-case table with its numbers: at each share of malicious clients, the attack that does most harm to each rule.

A cell counts every stored attack on its experiment: the search with its aims, the league's attacks, one's own. Its number is the highest
mean over seeds. A mean of few seeds may be high by chance: where another attack has these seeds and more, and does as much harm in them,
that one goes before, unless it gives way to a third one itself.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fltrust.attacks import NoAttack
from fltrust.experiment import Experiment
from fltrust.league.table import Row, brief
from fltrust.league.worst_case import BROKEN, DECIDES, Cell, Question, asked
from fltrust.registry import ATTACKS, DATASETS, Absent
from fltrust.report.agreement import Number
from fltrust.store.results import Result, Results, first_seed

MEANING = (
    "Worst case: the highest test error under any attack that was run on the rule at this share of malicious clients. One of them is a "
    "search that tries many updates on the rule itself in every round. It is a lower bound: a better attack can only raise it. A backdoor "
    "that works hardly raises the test error: the league table shows how often each one works."
)
GROUPS = ("searched with every aim, or broken", "searched with some of the aims", "not searched")  # at the share that decides
ORDER = (
    f"In up to three groups, by whether the search has run on a rule at {{share}} %: {'; '.join(GROUPS)}. Within each, sorted by the error "
    "there. The numbers of the later groups may be low because nobody has searched for worse."
)
UNEQUAL = "Some numbers are means of fewer runs than others, and less certain."
UNSEARCHED = (
    "≥: the search has not run with every aim here. "
    f"Where an attack adds {BROKEN:g} or more to a rule's own error, the rule is broken, and nobody needs to search for worse. "
    "A number is decided where the search has run with every aim, or the rule is broken."
)


@dataclass(frozen=True)
class Attacked:
    """What an attack does to a rule."""

    attack: Any
    results: tuple[Result, ...]  # by seed

    @property
    def label(self) -> str:
        return attack_label(self.attack)

    @property
    def error(self) -> Number:
        return Number(tuple(one.error for one in self.results), None, 0.0)

    @property
    def by_seed(self) -> dict[int, float]:
        return {one.run.seed: one.error for one in self.results}

    def has_fewer_seeds(self, other: "Attacked") -> bool:
        """Whether the other one has all its seeds and more."""
        return self.by_seed.keys() < other.by_seed.keys()

    def yields_to(self, other: "Attacked") -> bool:
        """Whether the other one has more seeds, and does as much harm in those that both have."""
        return self.has_fewer_seeds(other) and sum(other.by_seed[seed] for seed in self.by_seed) >= sum(self.by_seed.values())


@dataclass(frozen=True)
class Place:
    """A cell with every attack that was run, the worst first."""

    cell: Cell
    attacked: tuple[Attacked, ...]
    aims: int  # that the search ran with
    clean: float | None  # the rule's error without attack

    @property
    def searched(self) -> bool:
        """Whether the search ran with every aim."""
        return 0 < self.aims == len(self.cell.runs)

    @property
    def harm(self) -> float | None:
        """How much the worst attack adds to the rule's own error."""
        return None if self.worst is None or self.clean is None else self.worst.error.mean - self.clean

    @property
    def broken(self) -> bool:
        return self.cell.share > 0 and self.harm is not None and self.harm >= BROKEN

    @property
    def decided(self) -> bool:
        """Whether nothing more is to be run here."""
        return self.searched or self.broken

    @property
    def worst(self) -> Attacked | None:
        return self.attacked[0] if self.attacked else None

    @property
    def missing(self) -> str:
        """What to say where there is no number."""
        return "" if self.attacked else "cannot run" if self.cell.impossible else "not run"


@dataclass(frozen=True)
class Standing:
    """A row: one rule at all shares."""

    row: Row
    places: tuple[Place, ...]  # as the shares

    @property
    def clean(self) -> float | None:
        """Its error without attack."""
        return self.places[0].clean

    @property
    def decisive(self) -> Place:
        return next((place for place in self.places if place.cell.share == DECIDES), self.places[-1])

    @property
    def group(self) -> str:
        return GROUPS[0 if self.decisive.decided else 1 if self.decisive.aims else 2]

    def harm(self, place: Place, best: float | None) -> float | None:
        """How much an attack adds to the rule's own error; without attack, how far the rule is above the best one."""
        if place.cell.share:
            return place.harm
        return None if place.worst is None or best is None else place.worst.error.mean - best


@dataclass(frozen=True)
class WorstCases:
    """The table of a data set: rules that the search met with every aim or need not, with some aims, not at all; the best of each first."""

    question: Question
    rows: tuple[Standing, ...]

    @property
    def label(self) -> str:
        return DATASETS.entry(self.question.dataset).label

    @property
    def shares(self) -> tuple[int, ...]:
        return self.question.shares

    @property
    def best_clean(self) -> float | None:
        return min((row.clean for row in self.rows if row.clean is not None), default=None)

    @property
    def groups(self) -> dict[str, list[Standing]]:
        """Its rows by how far they were searched. A low number of a rule that was not searched says little."""
        return {name: found for name in GROUPS if (found := [row for row in self.rows if row.group == name])}

    @property
    def places(self) -> list[Place]:
        return [place for row in self.rows for place in row.places]

    @property
    def possible(self) -> int:
        """Cells that can be searched."""
        return sum(bool(place.cell.share) and not place.cell.impossible for place in self.places)

    @property
    def decided(self) -> int:
        """Cells that were searched with every aim, or where the rule is broken."""
        return sum(bool(place.cell.share) and place.decided for place in self.places)

    @property
    def counts(self) -> list[int]:
        """The seeds of each number."""
        return [len(place.worst.results) for place in self.places if place.worst]

    @property
    def remarks(self) -> list[str]:
        """What a reader must know of the order of these rules and of their numbers."""
        said = [ORDER.format(share=self.rows[0].decisive.cell.share)] if len(self.groups) > 1 else []
        said += [UNEQUAL] if len(set(self.counts)) > 1 else []
        return said + ([UNSEARCHED] if any(place.worst and not place.searched for place in self.places) else [])

    @property
    def results(self) -> list[Result]:
        """The runs that were compared."""
        return [result for place in self.places for one in place.attacked for result in one.results]


def worst_cases(questions: Sequence[Question], found: Results) -> list[WorstCases]:
    attacks = _stored(found)
    return [_table(question, found, attacks) for question in questions]


def every_worst_case(found: Results) -> list[WorstCases]:
    """The whole table of the report."""
    return worst_cases(asked(), found)


def broke_before(tables: Iterable[WorstCases]) -> dict[Cell, Experiment]:
    """For cells that nothing was found to break: the attack that breaks the rule at a smaller share. It costs less than a search."""
    found: dict[Cell, Experiment] = {}
    for row in (row for table in tables for row in table.rows):
        known: Any = None
        for place in row.places:
            if place.broken:
                known = place.worst.attack if place.worst else None
            elif known is not None and place.cell.runs and not place.decided and not isinstance(known, Absent):
                found[place.cell] = dataclasses.replace(place.cell.runs[0], attack=known)
    return found


def needless(questions: Sequence[Question], before: Mapping[Cell, Experiment], found: Results) -> Callable[[Experiment], bool]:
    """Says of a run whether, by what was found until now, its rule is broken at that share anyway."""
    attacks = _stored(found)
    cells: dict[str, Cell] = {}
    for cell in (cell for question in questions for cell in question.cells):
        for run in (*cell.runs, *([before[cell]] if cell in before else [])):
            cells[run.key] = cell
            attacks.setdefault(_unattacked(run), {})[run.key] = run

    def broken(run: Experiment) -> bool:
        return _place(cells[first_seed(run).key], found, attacks).broken

    return broken


def attack_label(attack: Any) -> str:
    """An attack's name with the parameters that are not the usual ones; of a search, always what it aims at."""
    name = ATTACKS.name_of(attack)
    label = brief(name)
    if isinstance(attack, Absent):
        return label
    said = [
        f"{value:g}" if isinstance(value, float) else str(value)
        for field in dataclasses.fields(attack)
        if isinstance(value := getattr(attack, field.name), str | int | float) and (field.name == "aim" or value != field.default)
    ]
    return f"{label}: {', '.join(said)}" if said else label


def _stored(found: Results) -> dict[str, dict[str, Experiment]]:
    """The attacks on each experiment: the key without attack, and the attacked experiments by their own keys."""
    stored: dict[str, dict[str, Experiment]] = {}
    for result in found.all():
        run = first_seed(result.run)
        if not run.attack.idle:
            stored.setdefault(_unattacked(run), {})[run.key] = run
    return stored


def _unattacked(run: Experiment) -> str:
    return dataclasses.replace(run, attack=NoAttack()).key


def _table(question: Question, found: Results, attacks: dict[str, dict[str, Experiment]]) -> WorstCases:
    of_row: dict[Row, list[Place]] = {row: [] for row in question.rows}
    for cell in question.cells:
        of_row[cell.row].append(_place(cell, found, attacks))
    rows = [Standing(row, tuple(places)) for row, places in of_row.items()]
    return WorstCases(question, tuple(sorted(rows, key=_order)))


def _place(cell: Cell, found: Results, attacks: dict[str, dict[str, Experiment]]) -> Place:
    no_attack = found.seeds(cell.clean)
    clean = statistics.fmean(one.error for one in no_attack) if no_attack else None
    if not cell.runs:
        return Place(cell, (), 0, clean)
    own = {run.key: run for run in cell.runs}
    runs = own if cell.share == 0 else own | attacks.get(_unattacked(cell.runs[0]), {})  # of equal ones the search stays first
    attacked = [Attacked(run.attack, tuple(results)) for run in runs.values() if (results := found.seeds(run))]
    standing: list[Attacked] = []  # whoever yields gives no reason to yield
    for one in sorted(attacked, key=lambda one: len(one.results), reverse=True):
        if not any(map(one.yields_to, standing)):
            standing.append(one)
    worst_first = sorted(attacked, key=lambda one: (one not in standing, -one.error.mean))
    return Place(cell, tuple(worst_first), sum(bool(found.seeds(run)) for run in cell.runs), clean)


def _order(row: Standing) -> tuple[int, float]:
    worst = row.decisive.worst
    return GROUPS.index(row.group), worst.error.mean if worst else 2.0
