"""The same colour and marker for a rule or an attack in every picture, on the page and on paper. Colours after Okabe and Ito."""

from typing import NamedTuple

from fltrust.attacks import ATTACKS
from fltrust.paper import Cell, Exhibit
from fltrust.rules import RULES

COLOURS = {  # on a light and on a dark ground
    "grey": ("#48515c", "#c3cbd4"),
    "blue": ("#0072b2", "#4aa8e0"),
    "sky": ("#4aa5dc", "#8fd0f5"),
    "orange": ("#d98c00", "#f0b23c"),
    "green": ("#009e73", "#2cc79a"),
    "pink": ("#c2669a", "#e29ac0"),
    "red": ("#d55e00", "#f58a3c"),
}


class Look(NamedTuple):
    colour: str
    marker: str  # matplotlib's letter for it
    dashed: bool = False


_RULES = {
    "fedavg": Look("grey", "o"),
    "krum": Look("orange", "s"),
    "trim-mean": Look("green", "^"),
    "median": Look("pink", "D"),
    "fltrust": Look("blue", "v"),
}
_ATTACKS = {
    "none": Look("grey", "o"),
    "label-flip": Look("sky", "X"),
    "krum": Look("orange", "s"),
    "trim": Look("green", "^"),
    "scaling": Look("pink", "D"),
    "adaptive": Look("blue", "v"),
    "optimal-adaptive": Look("red", "*"),
}


def look_of(exhibit: Exhibit, cell: Cell) -> Look:
    """Of the curve that a cell is on: by its rule where rules are compared, else by its attack, and FedAvg beside FLTrust is dashed."""
    rule = RULES.name_of(cell.run.rule)
    if exhibit.column == "rule":
        return _own(exhibit)[cell.column] if exhibit.own else _RULES[rule]
    look = _ATTACKS[_attack(exhibit, cell)]
    return look._replace(dashed=True) if rule == "fedavg" else look


def _own(exhibit: Exhibit) -> dict[str, Look]:
    """The paper's rules as always; the others take the colours that are left, then all of them dashed."""
    looks = {cell.column: _RULES[cell.column] for cell in exhibit.cells if cell.column in _RULES}
    free = [Look(colour, "X") for colour in COLOURS if colour not in {look.colour for look in looks.values()}]
    free += [Look(colour, "P", dashed=True) for colour in COLOURS]
    others = dict.fromkeys(cell.column for cell in exhibit.cells if cell.column not in looks)
    return looks | {column: free[i % len(free)] for i, column in enumerate(others)}


def _attack(exhibit: Exhibit, cell: Cell) -> str:
    """A share of 0 % malicious clients is a run without attack, but a point on its attack's curve."""
    names = [ATTACKS.name_of(other.run.attack) for other in exhibit.cells if other.column == cell.column]
    return next((name for name in names if name != "none"), "none")
