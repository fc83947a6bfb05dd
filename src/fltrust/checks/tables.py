"""The experiments of the twelve checks, as data. Where a setting differs from the authors', docs/checks.md says so."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from fltrust.checks.check import Cell, Kind, Table, published, theirs
from fltrust.experiment import Experiment

Part = str | dict[str, Any]
MEAN = {"name": "fedavg", "by_size": False}


def _bucketing(rule: Part) -> Part:
    return {"name": "bucketing", "rule": rule if isinstance(rule, dict) else {"name": rule}, "size": 2}


def _table(name: str, cells: Iterable[Cell], like: str = "", title: str = "") -> Table:
    known = published()[like or name]
    return Table(name, title or known["title"], known["source"], known["metric"], known["limit"], known["dead"], tuple(cells))


# ---------------------------------------------------------------- R1: checks 1 to 7

_R1: dict[str, Any] = {
    "model": "cnn-bucketing",
    "initialisation": "torch",
    "loss": "mean",
    "global_lr": 0.01,
    "batch_size": 32,
    "evaluate_every": 30,
    "root_size": 10,  # nothing here uses it
    "momentum_kind": "plain",
}
_SORTED = {"num_clients": 25, "malicious": 5, "rounds": 600, "split": "malicious-iid"}
_KRUM, _RFA, _CC = "krum-4th-power", "rfa-from-zero", {"name": "centred-clipping", "tau": 10.0, "steps": 3}


def _r1(number: int, row: str, attack: Part, rules: dict[str, tuple[Kind, Part]], **changes: Any) -> list[Cell]:
    """One attack against some rules: column -> kind and rule."""
    return [
        Cell(number, row, column, Experiment.on("mnist-0.5", rule, attack, **_R1, **_SORTED, **changes), theirs("r1", row, column), kind)
        for column, (kind, rule) in rules.items()
    ]


def _with_buckets(name: str, rule: Part, kind: Kind = "as published") -> dict[str, tuple[Kind, Part]]:
    return {name: (kind, rule), f"{name}, s = 2": (kind, _bucketing(rule))}


@cache
def r1() -> Table:
    mean: dict[str, tuple[Kind, Part]] = {"mean": ("plain mean", MEAN)}
    dead: dict[str, tuple[Kind, Part]] = {
        "CM": ("as published", "median"),
        "CC": ("as published", {**_CC, "tau": 100.0}),  # 10 / (1 - beta)
        **mean,
    }
    upwards = {"name": "alie", "upwards": True}
    return _table(
        "r1",
        [
            *_r1(1, "mimic", "mimic", {"mean": ("as published", MEAN)}),
            *_r1(2, "mimic", "mimic", _with_buckets("CM", "median")),
            *_r1(3, "IPM 0.1", "ipm", {**_with_buckets("RFA", _RFA), **mean}),
            *_r1(3, "IPM 0.1", "ipm", _with_buckets("geometric median", "geometric-median", "corrected")),
            *_r1(4, "sign flip", "sign-flip", {**_with_buckets("CC", _CC), **mean}),
            *_r1(5, "label flip", "label-flip", {**_with_buckets("Krum", _KRUM), **mean}),
            *_r1(5, "label flip", "label-flip", _with_buckets("Krum, squared", "krum", "corrected")),
            *_r1(6, "ALIE, beta 0.9", upwards, dead, client_momentum=0.9),
        ],
    )


@cache
def r1_long_tail() -> Table:
    rules = {"mean": MEAN, "CM": "median", "CM, s = 2": _bucketing("median")}
    settings = {
        **_R1,
        "num_clients": 24,
        "malicious": 0,
        "rounds": 4500,
        "split": {"name": "long-tail", "beta": 0.5, "then": "sorted"},
        "metrics": ("class_error",),
    }
    cells = [
        Cell(7, "no attack", column, Experiment.on("mnist-0.5", rule, "none", **settings), theirs("r1-long-tail", "no attack", column))
        for column, rule in rules.items()
    ]
    return _table("r1-long-tail", cells)


# ---------------------------------------------------------------- R2: check 8

_ROUNDS_PER_EPOCH = 78  # 50,000 images over the 20 honest workers, in whole batches of 32
_R2: dict[str, Any] = {
    "model": "resnet20-projection",
    "loss": "mean",
    "split": "iid",
    "num_clients": 25,
    "malicious": 5,
    "batch_size": 32,
    "rounds": 100 * _ROUNDS_PER_EPOCH,
    "global_lr": 0.1,
    "lr_decay": ((75 * _ROUNDS_PER_EPOCH + 1, 0.1),),
    "augment": True,
    "evaluate_every": _ROUNDS_PER_EPOCH,
    "root_size": 1000,  # batch norm's statistics for measuring
    "momentum_kind": "plain",
}


@cache
def r2() -> Table:
    rules: dict[str, tuple[Kind, Part]] = {
        "CC": ("as published", {"name": "centred-clipping", "tau": 100.0, "steps": 1}),
        "mean": ("plain mean", MEAN),
    }
    upwards = {"name": "alie", "upwards": True}
    return _table(
        "r2",
        [
            Cell(8, row, column, Experiment.on("cifar-10", rule, upwards, **_R2, client_momentum=beta), theirs("r2", row, column), kind)
            for column, (kind, rule) in rules.items()
            for beta in (0.0, 0.9, 0.99)
            for row in (f"ALIE, beta {beta:g}",)
        ],
    )


# ---------------------------------------------------------------- R3: checks 9 and 10, and the corrections

_R3: dict[str, Any] = {
    "model": "alexnet",
    "initialisation": "torch",
    "loss": "mean",
    "split": "iid",
    "num_clients": 50,
    "malicious": 10,
    "batch_size": 250,
    "rounds": 1200,
    "global_lr": 0.5,
    "lr_decay": ((1001, 0.5),),
    "augment": False,
    "evaluate_every": 5,
    "root_size": 10,
}
_R3_ATTACKS: dict[str, tuple[Kind, Part]] = {
    "Min-Max": ("as published", "min-max-on-gradients"),
    "LIE as released": ("as published", "lie-never-run"),
    "LIE by the table": ("as published", {"name": "alie", "z": "table"}),
    "LIE by the formula": ("corrected", "alie"),
    "Trim attack as released": ("as published", "trim-inert"),
    "Trim attack, corrected": ("corrected", {"name": "trim", "honest_only": True}),
}
_R3_RULES: dict[str, Part] = {"Trim-mean": "trim-mean", "Median": "median-upper", "mean": MEAN}


def _r3(number: int, row: str, column: str) -> Cell:
    kind, attack = _R3_ATTACKS[row]
    run = Experiment.on("cifar-10", _R3_RULES[column], attack, **_R3)
    return Cell(number, row, column, run, theirs("r3", row, column), "plain mean" if column == "mean" else kind)


@cache
def r3() -> Table:
    lie = [(10, row, column) for row in ("LIE as released", "LIE by the table", "LIE by the formula") for column in ("Trim-mean", "mean")]
    return _table("r3", [_r3(*place) for place in [*((9, "Min-Max", column) for column in _R3_RULES), *lie]])


@cache
def corrections() -> Table:
    """All of these attacks against all three rules, for the page about corrected rankings; it contains R3."""
    cells = [_r3(0, row, column) for row in _R3_ATTACKS for column in _R3_RULES]
    return _table("corrections", cells, like="r3", title="R3's setting: attacks as released and as defined")


# ---------------------------------------------------------------- R4: checks 11 and 12

_R4: dict[str, Any] = {
    "loss": "mean",
    "split": "iid",
    "num_clients": 60,
    "batch_size": 64,
    "rounds": 2000,
    "global_lr": 0.1,
    "lr_decay": ((1501, 0.1),),
    "evaluate_every": 50,
    "initialisation": "torch",
}
_DNC = {"name": "dnc", "rounds": 5, "coordinates": 10_000}


@cache
def r4_fashion_mnist() -> Table:
    rules: dict[str, tuple[Kind, Part]] = {
        "DnC": ("as published", _DNC),
        "DnC, all coordinates": ("corrected", "dnc"),
        "mean": ("plain mean", MEAN),
    }
    settings = {**_R4, "model": "cnn-blades", "root_size": 10}
    upwards = {"name": "alie", "upwards": True}
    return _table(
        "r4-fashion-mnist",
        [
            Cell(
                11,
                row,
                column,
                Experiment.on("fashion-mnist", rule, upwards, **settings, malicious=malicious),
                theirs("r4-fashion-mnist", row, column),
                kind,
            )
            for column, (kind, rule) in rules.items()
            for row, malicious in (("ALIE, 15 %", 9), ("ALIE, 20 %", 12))
        ],
    )


@cache
def r4_cifar_10() -> Table:
    settings = {**_R4, "model": "resnet10", "augment": True, "root_size": 1000}
    shares = {"10 %": 6, "20 %": 12, "30 %": 18}

    def cell(share: str, column: str, rule: Part, attack: Part, kind: Kind) -> Cell:
        row = f"Min-Max, {share}" if attack == "min-max-blades" else f"Min-Max as defined, {share}"
        run = Experiment.on("cifar-10", rule, attack, **settings, malicious=shares[share])
        return Cell(12, row, column, run, theirs("r4-cifar-10", row, column), kind)

    return _table(
        "r4-cifar-10",
        [
            *(cell(share, "SignGuard", "sign-guard-2-means", "min-max-blades", "as published") for share in shares),
            *(cell(share, "mean", MEAN, "min-max-blades", "plain mean") for share in shares),
            cell("20 %", "SignGuard as defined", "sign-guard", "min-max", "corrected"),
        ],
    )


TABLES = {
    "r1": r1,
    "r1-long-tail": r1_long_tail,
    "r2": r2,
    "r3": r3,
    "r4-fashion-mnist": r4_fashion_mnist,
    "r4-cifar-10": r4_cifar_10,
    "corrections": corrections,
}


def tables(names: Iterable[str] = ()) -> list[Table]:
    """The tables of these names; all of them if none is named. They are made when asked for: that needs every rule and attack."""
    return [TABLES[name]() for name in names or TABLES]
