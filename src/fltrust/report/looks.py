"""The same colour and marker for a rule or an attack in every picture, on the page and on paper. Colours after Okabe and Ito."""

from collections.abc import Mapping

from fltrust.paper import Cell, Exhibit
from fltrust.registry import ATTACKS, RULES, Look, Registry

COLOURS = {  # on a light and on a dark ground
    "grey": ("#48515c", "#c3cbd4"),
    "blue": ("#0072b2", "#4aa8e0"),
    "sky": ("#4aa5dc", "#8fd0f5"),
    "orange": ("#d98c00", "#f0b23c"),
    "green": ("#009e73", "#2cc79a"),
    "pink": ("#c2669a", "#e29ac0"),
    "red": ("#d55e00", "#f58a3c"),
}


def look_of(exhibit: Exhibit, cell: Cell) -> Look:
    """Of the curve that a cell is on: by its rule where rules are compared, else by its attack."""
    if exhibit.column == "rule":
        return _of_column(exhibit)[cell.column]
    look = _registered(ATTACKS, _attack(exhibit, cell)) or Look("grey", "o")
    return look._replace(dashed=cell.reference)


def looks_of_rules(names: Mapping[str, str]) -> dict[str, Look]:
    """By label, of rules called by their registered names. One with parameters of its own looks different from the plain one."""
    return _told_apart({label: _registered(RULES, name) if label == name else None for label, name in names.items()})


def _of_column(exhibit: Exhibit) -> dict[str, Look]:
    return _told_apart({cell.column: _registered(RULES, RULES.name_of(cell.run.rule)) for cell in exhibit.cells})


def _told_apart(own: Mapping[str, Look | None]) -> dict[str, Look]:
    """Rules that have a look of their own as always; the others take the colours that are left, then all of them dashed."""
    looks = {name: look for name, look in own.items() if look is not None}
    free = [Look(colour, "X") for colour in COLOURS if colour not in {look.colour for look in looks.values()}]
    free += [Look(colour, "P", dashed=True) for colour in COLOURS]
    others = [name for name in own if name not in looks]
    return looks | {name: free[i % len(free)] for i, name in enumerate(others)}


def _registered(registry: Registry, name: str) -> Look | None:
    return registry.entry(name).look if name in registry else None


def _attack(exhibit: Exhibit, cell: Cell) -> str:
    """A share of 0 % malicious clients is a run without attack, but a point on its attack's curve."""
    attacks = [other.run.attack for other in exhibit.cells if other.column == cell.column]
    return ATTACKS.name_of(next((attack for attack in attacks if not attack.idle), cell.run.attack))
