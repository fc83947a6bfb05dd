"""Which runs tables and figures consist of, and how long they would take."""

import dataclasses
import statistics
from collections.abc import Collection, Iterable

from fltrust.experiment import Experiment, Precision
from fltrust.paper.exhibit import Exhibit
from fltrust.registry import ATTACKS, RULES
from fltrust.store.results import Results


def plan(
    exhibits: Iterable[Exhibit],
    *,
    seeds: int,
    precision: Precision = "float32",
    only_datasets: Collection[str] = (),
    only_attacks: Collection[str] = (),
    only_rules: Collection[str] = (),
) -> list[Experiment]:
    """The runs of tables and figures, each once, all with the first seed before any with the second."""

    def wanted(run: Experiment) -> bool:
        named = ((run.dataset, only_datasets), (ATTACKS.name_of(run.attack), only_attacks), (RULES.name_of(run.rule), only_rules))
        return all(not only or name in only for name, only in named)

    first = {cell.run.key: cell.run for exhibit in exhibits for cell in exhibit.cells if wanted(cell.run)}
    return [dataclasses.replace(run, seed=seed, precision=precision) for seed in range(seeds) for run in first.values()]


def estimate(runs: Iterable[Experiment], known: Results, hardware: str) -> tuple[float, int]:
    """Seconds that the runs would take one after the other, and how many cannot be judged.

    A run is judged by those on the same data and hardware, of the same rule and attack if there are such, else of the same attack: a
    search may take a hundred times as long as another attack.
    """
    took: dict[tuple[str, ...], list[float]] = {}
    for result in known.all():
        if result.seconds is not None and f"{hardware}, ".startswith(f"{result.about['hardware']}, "):  # an older result lacks the model
            for kind in _kinds(result.run):
                took.setdefault(kind, []).append(result.seconds / result.run.rounds)
    total, unknown = 0.0, 0
    for run in runs:
        alike = next((took[kind] for kind in _kinds(run) if kind in took), None)
        total += statistics.fmean(alike) * run.rounds if alike else 0.0
        unknown += not alike
    return total, unknown


def _kinds(run: Experiment) -> list[tuple[str, ...]]:
    """What runs that take as long have in common, the closest first."""
    common, attack = (run.dataset, run.precision), ATTACKS.name_of(run.attack)
    return [(*common, attack, RULES.name_of(run.rule)), (*common, attack), common]
