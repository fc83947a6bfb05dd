"""`fltrust list`: the names and what stands behind them."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from fltrust.attacks import ATTACKS
from fltrust.experiment import PAPER
from fltrust.models import MODELS
from fltrust.rules import RULES


def show(what: str) -> None:
    table = Table("name", "what it is", box=None, header_style="bold")
    for name, words in _WORDS[what]():
        table.add_row(name, words)
    Console().print(table)


def _described(registry: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, (kind.__doc__ or "").strip().splitlines()[0]) for name, kind in registry.items()]


def _datasets() -> list[tuple[str, str]]:
    rows = []
    for name, paper in PAPER.items():
        split = "by user" if paper["bias"] is None else f"q = {paper['bias']}"
        rows.append(
            (name, f"{paper['num_clients']} clients ({split}), {paper['model']}, {paper['rounds']} rounds of batch {paper['batch_size']}")
        )
    return rows


_WORDS = {
    "rules": lambda: _described(RULES),
    "attacks": lambda: _described(ATTACKS),
    "models": lambda: _described(MODELS),
    "datasets": _datasets,
}
