"""`fltrust list`: the names and what stands behind them."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fltrust.registry import ATTACKS, DATASETS, LOGGERS, METRICS, MODELS, OBJECTIVES, OPTIMISERS, RULES, SPLITS, load_plugin

REGISTRIES = {
    registry.plural: registry for registry in (RULES, ATTACKS, DATASETS, MODELS, SPLITS, METRICS, OBJECTIVES, OPTIMISERS, LOGGERS)
}


def show(what: str, plugins: Sequence[Path] = ()) -> None:
    for plugin in plugins:
        load_plugin(plugin)
    registry = REGISTRIES[what]
    table = Table("name", "what it is", box=None, header_style="bold")
    for name in registry:
        table.add_row(name, registry.entry(name).summary)
    Console().print(table)
