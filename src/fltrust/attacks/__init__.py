"""Attacks: what malicious clients do. One file per family; `attack.py` says what an attack is and what it may know."""

from fltrust.attacks.attack import Attack, Knowledge
from fltrust.registry import ATTACKS
from fltrust.triggers import Trigger

# The families, in the order in which tables list them.
# isort: off
from fltrust.attacks.data import LabelFlip, NoAttack, Scaling
from fltrust.attacks.fang import KrumAttack, TrimAttack
from fltrust.attacks.adaptive import Adaptive, OptimalAdaptive
from fltrust.attacks.mimic import Mimic
# isort: on

__all__ = [
    "ATTACKS",
    "Adaptive",
    "Attack",
    "Knowledge",
    "KrumAttack",
    "LabelFlip",
    "Mimic",
    "NoAttack",
    "OptimalAdaptive",
    "Scaling",
    "Trigger",
    "TrimAttack",
]
