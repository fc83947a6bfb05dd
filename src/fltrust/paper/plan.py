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
    """Seconds that the runs would take one after the other, judged by runs on the same data and hardware, and how many cannot be judged."""
    took: dict[tuple[str, str], list[float]] = {}
    for result in known.all():
        if result.seconds is not None and f"{hardware}, ".startswith(f"{result.about['hardware']}, "):  # an older result lacks the model
            took.setdefault((result.run.dataset, result.run.precision), []).append(result.seconds / result.run.rounds)
    total, unknown = 0.0, 0
    for run in runs:
        alike = took.get((run.dataset, run.precision))
        total += statistics.fmean(alike) * run.rounds if alike else 0.0
        unknown += not alike
    return total, unknown
