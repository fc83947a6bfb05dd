"""`fltrust list`: the names and what stands behind them."""

from rich.console import Console
from rich.table import Table

from fltrust.registry import ATTACKS, DATASETS, METRICS, MODELS, OPTIMISERS, RULES, SPLITS

REGISTRIES = {registry.plural: registry for registry in (RULES, ATTACKS, DATASETS, MODELS, SPLITS, METRICS, OPTIMISERS)}


def show(what: str) -> None:
    registry = REGISTRIES[what]
    table = Table("name", "what it is", box=None, header_style="bold")
    for name in registry:
        table.add_row(name, registry.entry(name).summary)
    Console().print(table)
