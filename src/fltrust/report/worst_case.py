"""The worst-case table with its numbers: at each share of malicious clients, the attack that does most harm to each rule.

A cell counts every stored attack on its experiment: the search with its aims, the league's attacks, one's own. More attacks can only raise
its number, so each number is a lower bound of the worst case.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fltrust.attacks import NoAttack
from fltrust.experiment import Experiment
from fltrust.league.table import Row
from fltrust.league.worst_case import DECIDES, Cell, Question, asked
from fltrust.registry import ATTACKS, DATASETS, Absent
from fltrust.report.agreement import Number
from fltrust.store.results import Result, Results, first_seed

MEANING = (
    "Worst case: the highest test error under any attack that was run on the rule at this share of malicious clients. One of them is a "
    "search that tries many updates on the rule itself in every round. It is a lower bound: a better attack can only raise it."
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


@dataclass(frozen=True)
class Place:
    """A cell with every attack that was run, the worst first."""

    cell: Cell
    attacked: tuple[Attacked, ...]
    searched: bool  # whether the search ran with every aim

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

    @cached_property
    def clean(self) -> float | None:
        """Its error without attack, which harm is measured from."""
        worst = next((place.worst for place in self.places if place.cell.share == 0), None)
        return worst.error.mean if worst else None

    def harm(self, place: Place, best: float | None) -> float | None:
        """How much an attack adds to the rule's own error; without attack, how far the rule is above the best one."""
        reference = self.clean if place.cell.share else best
        return None if place.worst is None or reference is None else place.worst.error.mean - reference


@dataclass(frozen=True)
class WorstCases:
    """The table of a data set, the best rule first; rules on which the search did not run come last."""

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
    def places(self) -> list[Place]:
        return [place for row in self.rows for place in row.places]

    @property
    def possible(self) -> int:
        """Cells that can be searched."""
        return sum(bool(place.cell.share) and not place.cell.impossible for place in self.places)

    @property
    def searched(self) -> int:
        """Cells that were searched with every aim."""
        return sum(bool(place.cell.share) and place.searched for place in self.places)

    @property
    def counts(self) -> list[int]:
        """The seeds of each number."""
        return [len(place.worst.results) for place in self.places if place.worst]

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


def attack_label(attack: Any) -> str:
    """An attack's name with the parameters that are not the usual ones; of a search, always what it aims at."""
    name = ATTACKS.name_of(attack)
    label = ATTACKS.entry(name).label.removesuffix(" attack") if name in ATTACKS else name
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
    if not cell.runs:
        return Place(cell, (), searched=False)
    own = {run.key: run for run in cell.runs}
    runs = own if cell.share == 0 else own | attacks.get(_unattacked(cell.runs[0]), {})  # of equal ones the search stays first
    attacked = [Attacked(run.attack, tuple(results)) for run in runs.values() if (results := found.seeds(run))]
    attacked.sort(key=lambda one: -one.error.mean)
    return Place(cell, tuple(attacked), searched=all(found.seeds(run) for run in cell.runs))


def _order(row: Standing) -> tuple[bool, float]:
    decisive = next((place for place in row.places if place.cell.share == DECIDES), row.places[-1])
    return not decisive.searched, decisive.worst.error.mean if decisive.worst else 2.0
