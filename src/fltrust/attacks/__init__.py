"""Attacks: what malicious clients do. One file per family; `attack.py` says what an attack is and what it may know."""

from fltrust.attacks.attack import Attack, Backdoor, Knowledge, MaliciousClient
from fltrust.registry import ATTACKS
from fltrust.triggers import Trigger

# The families, in the order in which tables list them.
# isort: off
from fltrust.attacks.data import LabelFlip, LabelFlipDynamic, LabelFlipRandom, LabelFlipTargeted, NoAttack, Scaling
from fltrust.attacks.fang import KrumAttack, TrimAttack
from fltrust.attacks.adaptive import Adaptive, OptimalAdaptive
from fltrust.attacks.mimic import Mimic
from fltrust.attacks.noise import FreeRider, Gaussian
from fltrust.attacks.shift import ALIE, IPM, SignFlip
from fltrust.attacks.minmax import MinMax, MinSum
from fltrust.attacks.fake import MPAF, PoisonedFL
from fltrust.attacks.backdoors import DBA, EdgeCase, Neurotoxin
from fltrust.attacks.searched import Searched
# isort: on

__all__ = [
    "ALIE",
    "ATTACKS",
    "DBA",
    "IPM",
    "MPAF",
    "Adaptive",
    "Attack",
    "Backdoor",
    "EdgeCase",
    "FreeRider",
    "Gaussian",
    "Knowledge",
    "KrumAttack",
    "LabelFlip",
    "LabelFlipDynamic",
    "LabelFlipRandom",
    "LabelFlipTargeted",
    "MaliciousClient",
    "Mimic",
    "MinMax",
    "MinSum",
    "Neurotoxin",
    "NoAttack",
    "OptimalAdaptive",
    "PoisonedFL",
    "Scaling",
    "Searched",
    "SignFlip",
    "Trigger",
    "TrimAttack",
]
