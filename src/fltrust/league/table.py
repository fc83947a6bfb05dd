"""What the league consists of: its rules, its attacks, its data sets, and what it leaves out and why. Nothing else lists them.

Every data set's usual share of clients is malicious, which is 20 % on all four, and a rule expects exactly that many.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fltrust.registry import ATTACKS, RULES


@dataclass(frozen=True)
class Row:
    """A rule of the league, by its name: "nnm+krum" is nearest-neighbour mixing before Krum."""

    name: str
    baseline: bool = False  # what every other rule should beat
    value: Any = field(default=None, repr=False)  # the rule itself, where a result has one whose plug-in is not loaded

    @property
    def rule(self) -> Any:
        """As `Experiment.on` takes it."""
        return self.name if self.value is None else self.value

    @cached_property
    def label(self) -> str:
        return " + ".join(RULES.entry(part).label if part in RULES else part for part in map(str.strip, self.name.split("+")))


def brief(name: str) -> str:
    """An attack's label by its registered name: "Trim", but "Krum attack", because Krum is a rule, and "No attack"."""
    label = ATTACKS.entry(name).label if name in ATTACKS else name
    return label if name in RULES or name == "none" else label.removesuffix(" attack")


@dataclass(frozen=True)
class Column:
    """An attack of the league. `name` is its registered name where no parameter tells two columns apart."""

    name: str
    group: str
    parameters: tuple[tuple[str, Any], ...] = ()
    targeted: bool = False  # wants an answer of its choice: its success is a number of its own
    idle: bool = False  # nobody attacks

    @property
    def registered(self) -> str:
        return self.name.rsplit(":", 1)[0]

    @property
    def attack(self) -> Mapping[str, Any]:
        """As `Experiment.on` takes it."""
        return {"name": self.registered, **dict(self.parameters)}

    @cached_property
    def label(self) -> str:
        return " ".join((brief(self.registered), *(f"{value:g}" for _, value in self.parameters)))


ROWS: tuple[Row, ...] = (
    Row("fedavg", baseline=True),
    Row("norm-clipping", baseline=True),
    # near other clients
    Row("krum"),
    Row("multi-krum"),
    Row("bulyan"),
    Row("geometric-median"),
    Row("centred-clipping"),
    # coordinate by coordinate
    Row("median"),
    Row("trim-mean"),
    Row("meamed"),
    Row("phocas"),
    Row("rlr"),
    # directions of much variance
    Row("dnc"),
    Row("caf"),
    # clusters and histories of clients
    Row("sign-guard"),
    Row("flame"),
    Row("fldetector"),
    Row("foolsgold"),
    # rows mixed or shortened before another rule
    Row("bucketing+krum"),
    Row("bucketing+geometric-median"),
    Row("bucketing+centred-clipping"),
    Row("nnm+krum"),
    Row("nnm+geometric-median"),
    Row("nnm+trim-mean"),
    Row("arc+nnm+trim-mean"),
    # a root set at the server
    Row("zeno"),
    Row("zeno-plus-plus"),
    Row("fltrust"),
    Row("anchor"),
    Row("fallback+anchor"),
)

_NONE, _DATA, _BLIND, _SEEING, _TAILORED, _TARGETED = (
    "no attack",
    "poisoned data",
    "no view of honest clients",
    "sees honest updates",
    "tailored to a rule",
    "targeted",
)
COLUMNS: tuple[Column, ...] = (
    Column("none", _NONE, idle=True),
    Column("label-flip", _DATA),
    Column("label-flip-random", _DATA),
    Column("label-flip-dynamic", _DATA),
    Column("gaussian", _BLIND),
    Column("sign-flip", _BLIND),
    Column("free-rider", _BLIND),
    Column("mpaf", _BLIND),
    Column("poisonedfl", _BLIND),
    Column("alie", _SEEING),
    Column("ipm:0.1", _SEEING, (("epsilon", 0.1),)),
    Column("ipm:100", _SEEING, (("epsilon", 100.0),)),
    Column("min-max", _SEEING),
    Column("min-sum", _SEEING),
    Column("mimic", _SEEING),
    Column("krum", _TAILORED),
    Column("trim", _TAILORED),
    Column("adaptive", _TAILORED),
    Column("optimal-adaptive", _TAILORED),
    Column("label-flip-targeted", _TARGETED, targeted=True),
    Column("scaling", _TARGETED, targeted=True),
    Column("dba", _TARGETED, targeted=True),
    Column("neurotoxin", _TARGETED, targeted=True),
    Column("edge-case", _TARGETED, targeted=True),
)
OWN = "your own"  # the group of an attack that is not in the list


@dataclass(frozen=True)
class Board:
    """The league on one data set."""

    dataset: str
    rows: tuple[Row, ...] = ROWS
    columns: tuple[Column, ...] = COLUMNS
    reduced: str = ""  # why it has fewer rows or columns than the others


def _only(items: Any, names: str) -> Any:
    return tuple(item for item in items if item.name in names.split())


BOARDS = {
    board.dataset: board
    for board in (
        Board("mnist-0.5"),
        Board("fashion-mnist"),
        Board("har"),
        Board(
            "cifar-10",
            _only(ROWS, "fedavg norm-clipping krum geometric-median centred-clipping median trim-mean dnc nnm+trim-mean fltrust"),
            _only(COLUMNS, "none label-flip alie min-max trim adaptive scaling"),
            reduced="A run takes 10 to 20 times as long here as on MNIST (ResNet-20), so the grid is reduced to the baselines, one or two "
            "rules of each kind, and one attack of each kind.",
        ),
    )
}

# Combinations that cannot work: shown as such in the table.
IMPOSSIBLE = {("har", "edge-case"): "edge cases are images, and HAR has vectors of features"}

# Registered names that have no row or column of their own.
_ABLATION = "an ablation of FLTrust: it stands in Table IV"
_WRAPPER = "a wrapper: it stands in front of other rules"
RULES_LEFT_OUT = {
    "fltrust-server": _ABLATION,
    "fltrust-withserver": _ABLATION,
    "fltrust-norelu": _ABLATION,
    "fltrust-nonorm": _ABLATION,
    "fltrust-parnorm": _ABLATION,
    "fltrust-two-level": "a first try of a hierarchical root of trust: docs/root-set.md measures it",
    "nnm": _WRAPPER,
    "bucketing": _WRAPPER,
    "arc": _WRAPPER,
    "by-size": "a wrapper for clients of unequal sizes: here they are about equal",
}
ATTACKS_LEFT_OUT = {"searched": "it is made for each rule and holds all others; docs/worst-case.md has its own table"}
