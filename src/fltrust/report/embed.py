"""What the page's script needs: every run that is mentioned, once, and what each thing to click on shows."""

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from fltrust.experiment import Experiment
from fltrust.paper import Cell, Exhibit
from fltrust.report.agreement import Judged
from fltrust.report.repeat import reproduce_command, run_command, strategy_call
from fltrust.report.words import sentences, title
from fltrust.store.results import Curves, Federation


class Embedded:
    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.cells: list[dict[str, Any]] = []
        self.figures: list[dict[str, Any]] = []
        self.sweep: dict[str, Any] | None = None
        self._places: dict[int, int] = {}
        self._opened: dict[tuple[str, Cell], int] = {}

    def place_of(self, result: Curves) -> int:
        """Where a run stands among those of the page."""
        if id(result) not in self._places:  # two federations may have one key
            self._places[id(result)] = len(self.runs)
            self.runs.append(_packed(result))
        return self._places[id(result)]

    def open(self, heading: str, says: Sequence[str], results: Iterable[Curves], command: str = "") -> int:
        """Something to click on, and what its panel will show."""
        self.cells.append({"title": heading, "says": list(says), "runs": [self.place_of(one) for one in results], "again": command})
        return len(self.cells) - 1

    def open_cell(self, exhibit: Exhibit, one: Judged) -> int:
        """The same for a cell, which may stand in a table and in a picture."""
        place = (exhibit.name, one.cell)
        if place not in self._opened:
            again = reproduce_command(exhibit, one.cell, one.results)
            self._opened[place] = self.open(title(exhibit, one.cell), sentences(one), one.results, again)
        return self._opened[place]

    def text(self) -> str:
        """All of it as compressed JSON in base64: small, and no letter in it means anything to HTML."""
        content = {"runs": self.runs, "cells": self.cells, "figures": self.figures, "sweep": self.sweep}
        return base64.b64encode(zlib.compress(json.dumps(content, separators=(",", ":"), allow_nan=False).encode(), 9)).decode()


def _packed(result: Curves) -> dict[str, Any]:
    trust = bytes(255 if value is None else round(250 * min(value, 1.0)) for row in result.trust for value in row)
    return {
        "key": result.run.key,
        "seed": result.run.seed,
        "clients": result.run.num_clients,
        "of": result.run.rounds,
        **_declared(result.run),
        "rounds": result.rounds,
        "train": _short(result.train_error),
        "test": _short(result.test_error),
        "success": None if result.success is None else _short(result.success),
        "trustRounds": result.trust_rounds,
        "trust": base64.b64encode(trust).decode(),
        "seconds": result.seconds,
        "hardware": str(result.about["hardware"]),
        "versions": _listed(result.about["versions"]),
        "files": _listed(result.about["files"]),
        "warnings": _listed(result.about["warnings"]),
    }


def _declared(run: Experiment | Federation) -> dict[str, Any]:
    if isinstance(run, Federation):  # nobody knows who is honest there
        return {
            "malicious": 0,
            "others": "nodes",
            "idle": True,
            "arithmetic": "float32",
            "command": strategy_call(run),
            "names": list(run.names),
        }
    return {
        "malicious": run.malicious,
        "others": "honest",
        "idle": run.attack.idle,  # the malicious clients do as they should
        "arithmetic": run.precision,
        "command": run_command(run),
    }


def _short(values: Iterable[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _listed(written: object) -> str:
    if isinstance(written, dict):
        return ", ".join(f"{name} {value}" for name, value in written.items())
    return "; ".join(map(str, written)) if isinstance(written, list) else "" if written is None else str(written)
