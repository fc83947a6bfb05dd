"""The worst-case table with its numbers: at each share of malicious clients, the attack that does most harm to each rule.

A cell counts every stored attack on its experiment: the search with its aims, the league's attacks, one's own. Its number is the highest
mean over seeds. A mean of few seeds may be high by chance: where another attack has these seeds and more, and does as much harm in them,
that one goes before, unless it gives way to a third one itself.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fltrust.attacks import NoAttack
from fltrust.experiment import Experiment
from fltrust.league.table import Row, brief
from fltrust.league.worst_case import BROKEN, DECIDES, SHARES, Cell, Question, asked
from fltrust.registry import ATTACKS, DATASETS, Absent
from fltrust.report.agreement import Number
from fltrust.store.results import Result, Results, first_seed

MEANING = (
    "Worst case: the highest test error under any attack that was run on the rule at this share of malicious clients. One of them is a "
    "search that tries many updates on the rule itself in every round. It is a lower bound: a better attack can only raise it. A backdoor "
    "that works hardly raises the test error: the league table shows how often each one works."
)
GROUPS = "searched with every aim", "searched with some of the aims", "not searched", "broken, and not searched further"
ORDER = (
    f"In up to four groups, by whether the search has run on a rule at {{share}} %: {'; '.join(GROUPS)}. Within each, sorted by the error "
    "there. Where the search has not run with every aim, a number may be low because nobody has searched for worse."
)
UNEQUAL = "Some numbers are means of fewer runs than others, and less certain."
UNSEARCHED = (
    "≥: the search has not run with every aim here. "
    f"Where an attack adds {BROKEN:g} or more to a rule's own error, the rule is broken, and nobody needs to search for worse."
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
    def breaking(self) -> Any:
        """The worst attack that breaks the rule and can be run here; None if there is none."""
        runnable = tuple(one for one in self.attacked if not isinstance(one.attack, Absent))
        return runnable[0].attack if replace(self, attacked=runnable).broken else None

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
        return GROUPS[0 if self.decisive.searched else 3 if self.decisive.broken else 1 if self.decisive.aims else 2]

    def harm(self, place: Place, best: float | None) -> float | None:
        """How much an attack adds to the rule's own error; without attack, how far the rule is above the best one."""
        if place.cell.share:
            return place.harm
        return None if place.worst is None or best is None else place.worst.error.mean - best


@dataclass(frozen=True)
class WorstCases:
    """The table of a data set: rules that the search met with every aim, with some, not at all, and broken ones; the best of each first."""

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
    def settled(self) -> int:
        """Cells where nothing more is to be run: searched with every aim, or the rule is broken."""
        return sum(bool(place.cell.share) and (place.searched or place.broken) for place in self.places)

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


def before_search(questions: Sequence[Question], found: Results) -> dict[Cell, tuple[Experiment, ...]]:
    """By cell, what is run before the search, since most attacks cost less: an attack that breaks the rule there or at a smaller share. If
    none is known and the cell has not been searched, those that break most rules."""
    first: dict[Cell, tuple[Experiment, ...]] = {}
    for table in worst_cases([replace(question, shares=SHARES) for question in questions], found):
        for row in table.rows:
            known: Any = None
            for place in row.places:
                known = place.breaking or known
                if known is not None and place.cell.runs:
                    first[place.cell] = (place.cell.under(known),)
                elif not place.searched:
                    first[place.cell] = place.cell.openers
    return first


def cells_by_run(questions: Sequence[Question], before: Mapping[Cell, Sequence[Experiment]]) -> dict[str, Cell]:
    """By the key of each run of seed 0, searches and what comes before them, its cell."""
    cells = [cell for question in questions for cell in question.cells]
    return {run.key: cell for cell in dict.fromkeys((*cells, *before)) for run in (*cell.runs, *before.get(cell, ()))}


def needless(
    questions: Sequence[Question], before: Mapping[Cell, Sequence[Experiment]], found: Results, answered: Callable[[Experiment], bool]
) -> Callable[[Experiment], bool]:
    """Says of a run whether its rule is broken at that share anyway, by what was found so far with its seed and in its arithmetic."""
    attacks, cells = _stored(found), cells_by_run(questions, before)
    for runs in before.values():
        for run in runs:
            attacks.setdefault(_unattacked(run), {})[run.key] = run

    def broken(run: Experiment) -> bool:
        def error(other: Experiment) -> float:
            same = replace(other, seed=run.seed, precision=run.precision)
            result = found.of(same) if answered(same) else None
            return math.nan if result is None else result.error

        cell = cells[first_seed(run).key]
        if cell.share == 0:
            return False
        clean, others = error(cell.clean), attacks.get(_unattacked(cell.runs[0]), {}).values()
        return not math.isnan(clean) and any(error(attack) - clean >= BROKEN for attack in (*cell.runs, *others))

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
    return replace(run, attack=NoAttack()).key


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
