"""The worst-case table as data: every rule of the league at several shares of malicious clients, under an attack searched on it.

A cell's own runs are the attack `searched` with each of the aims. What else is stored of the cell, such as the league's attacks, counts too
(`report/worst_case.py`), but is not run for this table, with one exception: before a search comes an attack that is known to break the
rule or, if none is, those that break most rules.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from fltrust.attacks.searched import Searched, aims_on
from fltrust.errors import InputError
from fltrust.experiment import Experiment, Precision
from fltrust.league.plan import rows_of
from fltrust.league.table import ROWS, Row
from fltrust.paper.exhibit import POINTS, declared
from fltrust.registry import ATTACKS, DATASETS, known
from fltrust.rules.anchor import Anchor
from fltrust.rules.fallback import Fallback
from fltrust.rules.rule import try_rule

SHARES = (0, 10, 20, 40, 60)  # of the clients are malicious, in per cent; 0: nobody attacks
DECIDES = 20  # the share by which rules are sorted
BROKEN = 0.4  # what an attack adds to a rule's error where nobody needs to search for worse
# Attacks without a search that break most rules: docs/worst-case.md counts.
OPENERS = ("poisonedfl", "trim", "mpaf", "optimal-adaptive", "krum", "sign-flip")
DATA = ("mnist-0.5", "har", "fashion-mnist", "cifar-10", "mnist-0.1")

_LEVELLED = Anchor(limit=1e6, directions=1)
# Other forms of this package's own rule, which show what its parts are good for: further rows of a data set's table.
ABLATIONS: Mapping[str, tuple[Row, ...]] = {
    "mnist-0.5": (
        Row("Levelled Anchor", value=_LEVELLED),
        Row("Fallback + Levelled Anchor", value=Fallback(_LEVELLED)),
        Row("Anchor, 2 directions", value=Anchor(limit=30.0, directions=2)),
        Row("Fallback + Anchor, 2 directions", value=Fallback(Anchor(limit=30.0, directions=2))),
        Row("Anchor without memory", value=Anchor(momentum=0.0)),
        Row("Anchor without voice", value=Anchor(voice=0.0)),
        Row("Anchor, limit 1", value=Anchor(limit=1.0)),
    ),
    "har": (Row("Levelled Anchor", value=_LEVELLED), Row("Fallback + Levelled Anchor", value=Fallback(_LEVELLED))),
}

# In which order cells are run, so that a part of them is worth having.
_FIRST_DATA = DATA[:2]
_FIRST_SHARES = (0, 20, 40, 10, 60)
_FIRST_RULES = (
    "anchor",
    "fltrust",
    "fedavg",
    "median",
    "trim-mean",
    "multi-krum",
    "nnm+geometric-median",
    "centred-clipping",
    "dnc",
    "caf",
    "flame",
    "sign-guard",
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A rule at a share of malicious clients: the runs that search its worst case, or the reason why there are none."""

    dataset: str
    row: Row
    share: int
    clean: Experiment  # the rule without attack: it expects malicious clients, and there are none
    runs: tuple[Experiment, ...]  # of seed 0, one for each aim; without malicious clients the one run
    impossible: str = ""

    def under(self, attack: Any) -> Experiment:
        """Its run of seed 0 under another attack."""
        return dataclasses.replace(self.runs[0], attack=attack)

    @property
    def openers(self) -> tuple[Experiment, ...]:
        """What may break the rule before it is searched."""
        return tuple(self.under(ATTACKS[name]()) for name in OPENERS) if self.share and self.runs else ()


@dataclasses.dataclass(frozen=True)
class Question:
    """What a table asks: which rules on a data set, at which shares. `rounds`: not the data set's usual number."""

    dataset: str
    rows: tuple[Row, ...] = ROWS
    shares: tuple[int, ...] = SHARES
    rounds: int | None = None

    @property
    def cells(self) -> list[Cell]:
        return [self._cell(row, share) for row in self.rows for share in self.shares]

    def _cell(self, row: Row, share: int) -> Cell:
        changes: dict[str, Any] = {} if self.rounds is None else {"rounds": self.rounds, "evaluate_every": max(1, self.rounds // POINTS)}
        clean = declared(self.dataset, row.rule, "none", **changes)  # the league's run
        if share == 0:
            return Cell(self.dataset, row, share, clean, (clean,))
        malicious = round(DATASETS[self.dataset].settings["num_clients"] * share / 100)
        first = declared(self.dataset, row.rule, "searched", malicious=malicious, **changes)
        refusal = _refusal(first.rule, first.clients_per_round, first.num_clients)
        runs = tuple(dataclasses.replace(first, attack=Searched(aim)) for aim in aims_on(first.rule))
        return Cell(self.dataset, row, share, clean, () if refusal else runs, refusal)


@cache  # data sets with equally many clients ask the same
def _refusal(rule: Any, n: int, num_clients: int) -> str:
    try:
        return try_rule(rule, n, num_clients)
    except Exception:  # a plug-in that is broken fails in its own run, which stops no other
        return ""


def asked(
    datasets: Collection[str] = (), rules: Collection[str] = (), shares: Collection[int] = (), rounds: int | None = None
) -> list[Question]:
    """The whole table, or what is asked for by name: any data set and any rule ("nnm+krum"), such as one's own."""
    names = list(dict.fromkeys(name.lower() for name in datasets)) or DATA
    for name in names:
        known("dataset", name, DATASETS)
    for share in shares:
        if share not in SHARES:
            raise InputError(f"--share must be one of {', '.join(map(str, SHARES))} per cent, not {share}")
    parts = {row.name.lower(): row for rows in ABLATIONS.values() for row in rows}
    rows = tuple(parts.get(rule) or rows_of([rule])[0] for rule in dict.fromkeys(name.lower() for name in rules))
    every = {name: (*ROWS, *ABLATIONS.get(name, ())) for name in names}
    return [
        Question(name, rows or every[name], tuple(share for share in SHARES if not shares or share in shares), rounds) for name in names
    ]


def plan(
    questions: Sequence[Question],
    *,
    seeds: int,
    precision: Precision = "float32",
    before: Mapping[Cell, Sequence[Experiment]] = MappingProxyType({}),
) -> list[Experiment]:
    """The runs: the first seed before the second, MNIST-0.5 and HAR before other data, well-known rules before others, 20 % before 40 %.

    So what was run so far compares rules. Runs that differ in their rule alone stand together, since they share their data. A cell's runs
    in `before` come before its searches.
    """
    data = [question.dataset for question in questions]
    listed = list(dict.fromkeys(row.name for question in questions for row in question.rows))  # some tables have ablations

    def place(cell: Cell, aim: int) -> tuple[Any, ...]:
        name = cell.row.name
        first = name in _FIRST_RULES or name not in {row.name for row in ROWS}  # one's own rule is what one asks about
        rule = _FIRST_RULES.index(name) if name in _FIRST_RULES else listed.index(name)
        return cell.dataset not in _FIRST_DATA, not first, _FIRST_SHARES.index(cell.share), data.index(cell.dataset), aim, rule

    cells = [cell for question in questions for cell in question.cells]
    found = [(place(cell, aim), run) for cell in cells for aim, run in enumerate(cell.runs)]
    found += [(place(cell, i - len(OPENERS)), run) for cell in cells for i, run in enumerate(before.get(cell, ()))]
    if not found:
        raise InputError("none of these rules can run at that share of malicious clients")
    runs = {run.key: run for _, run in sorted(found, key=lambda one: one[0])}
    return [dataclasses.replace(run, seed=seed, precision=precision) for seed in range(seeds) for run in runs.values()]
