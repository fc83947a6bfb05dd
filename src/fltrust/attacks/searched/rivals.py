"""The package's other attacks: what each would send is a candidate too, so that the search is never weaker than any of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fltrust.attacks.adaptive import Adaptive, OptimalAdaptive
from fltrust.attacks.attack import Attack, Knowledge, Level, take_step
from fltrust.attacks.data import NoAttack
from fltrust.attacks.fake import MPAF, PoisonedFL
from fltrust.attacks.fang import KrumAttack, TrimAttack
from fltrust.attacks.mimic import Mimic
from fltrust.attacks.minmax import MinMax, MinSum
from fltrust.attacks.noise import FreeRider, Gaussian
from fltrust.attacks.shift import ALIE, IPM, SignFlip
from fltrust.errors import InputError
from fltrust.state import Memory

# Attacks that poison data are not here: malicious clients have trained before the search begins, and a backdoor is another aim.
_BLIND: tuple[Attack, ...] = (NoAttack(), SignFlip(), FreeRider(), MPAF(), PoisonedFL())
_SEEING: tuple[Attack, ...] = (
    TrimAttack(),
    KrumAttack(),
    Adaptive(),
    OptimalAdaptive(),
    Mimic(),
    Gaussian(),
    ALIE(),
    ALIE(z=1.5),
    IPM(),
    IPM(epsilon=100.0),
    MinMax(),
    MinMax("sign"),
    MinMax("mean"),
    MinSum(),
)
_PEEPING: tuple[Attack, ...] = (
    TrimAttack("partial"),
    KrumAttack("partial"),
    Gaussian(knowledge="partial"),
    ALIE(knowledge="partial"),
    ALIE(z=1.5, knowledge="partial"),
    IPM(knowledge="partial"),
    IPM(epsilon=100.0, knowledge="partial"),
    MinMax(knowledge="partial"),
    MinMax("sign", knowledge="partial"),
    MinMax("mean", knowledge="partial"),
    MinSum(knowledge="partial"),
)


def rivals_with(knowledge: Level) -> tuple[Attack, ...]:
    return _BLIND + (_SEEING if knowledge == "full" else _PEEPING)


def rivals_rows(rivals: Sequence[Attack], known: Knowledge, memories: Sequence[Memory]) -> tuple[Tensor, list[bool], tuple[Memory, ...]]:
    """What each would send (R, m, d), without those that are impossible in this setting; which are possible; what each remembers."""
    sent: list[Tensor] = []
    possible: list[bool] = []
    later: list[Memory] = []
    for rival, memory in zip(rivals, memories, strict=True):
        try:
            rows, after = take_step(rival, known, memory)
        except InputError:  # no root update to look at, no z for a malicious majority ...
            possible.append(False)
            later.append(memory)
            continue
        possible.append(True)
        sent.append(rows)
        later.append(after)
    return torch.stack(sent), possible, tuple(later)
