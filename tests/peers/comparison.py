"""One rule or attack of one peer beside ours: how often they differ, by how much, and what each does with a NaN."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fltrust.attacks import ATTACKS
from fltrust.attacks.attack import Knowledge
from fltrust.codec import built
from fltrust.randomness import reseed
from fltrust.rules import RULES, Received, take_step

from .draws import KINDS, SEEDS, SIZES, rows, told

Call = Callable[[np.ndarray, int], np.ndarray]  # rows (n, d) and f -> (d,)
SAME = 1e-5  # relative: some peers compute in float32


@dataclass(frozen=True)
class Comparison:
    """The rule of one peer and the one of ours that it stands beside."""

    theirs: str  # what the peer calls it, with its settings
    call: Call
    ours: str | Mapping[str, Any]  # a name, or a mapping with settings
    computes: str  # what the peer computes, in a line
    largest: int = max(SIZES)  # rows; less for a peer that would take minutes
    by_size: bool = False  # client i has i + 1 examples
    fewest: int = 1  # rows to search with: Bulyan at f = 0 is the mean, and two rows have many geometric medians
    by_order: bool = False  # the peer's result depends on the order of the rows, not only in ties

    registry = RULES

    @property
    def there(self) -> bool:
        """Whether this package has the rule."""
        return all(name in self.registry for name in names(self.ours))

    @property
    def our_text(self) -> str:
        return written(self.ours)

    def our_call(self, drawn: np.ndarray, f: int) -> np.ndarray:
        rule = built(RULES, self.ours, {"tolerate": f, "trim": f})
        updates = torch.from_numpy(drawn)
        n, d = drawn.shape
        received = Received(
            updates,
            sizes=torch.arange(1, n + 1) if self.by_size else None,
            client_ids=torch.arange(n),
            round=torch.tensor(1),
            generator=reseed(torch.Generator(), 0, "peers"),
            weights=torch.zeros(d, dtype=updates.dtype),
        )
        return take_step(rule, received, rule.init(n, updates[0]))[0].update.numpy()


@dataclass(frozen=True)
class AttackComparison(Comparison):
    """An attack: `call` takes the honest rows and m, and returns what a malicious client sends."""

    registry = ATTACKS

    def our_call(self, drawn: np.ndarray, f: int) -> np.ndarray:
        """Malicious clients hold rows of their own: honest ones in reverse order."""
        attack = built(ATTACKS, self.ours, {"tolerate": f})
        honest, n = torch.from_numpy(drawn), len(drawn) + f
        known = Knowledge(
            own=honest.flip(0)[:f].clone(),
            others=honest,
            root_update=None,
            n=n,
            tolerate=f,
            num_clients=n,
            generator=reseed(torch.Generator(), 0, "peers"),
            client_ids=torch.arange(n),
            round=torch.tensor(1),
        )
        return np.asarray(attack.step(known, attack.init(n, honest[0]))[0][0])


def names(choice: str | Mapping[str, Any]) -> list[str]:
    if isinstance(choice, str):
        return [choice]
    inner = choice.get("rule")
    return [choice["name"], *(names(inner) if inner is not None else [])]


def written(choice: str | Mapping[str, Any]) -> str:
    """As one writes it in a table: nnm+median, multi-krum(keep=1)."""
    if isinstance(choice, str):
        return choice
    settings = ", ".join(f"{name}={value}" for name, value in choice.items() if name not in ("name", "rule"))
    inner = f"+{written(choice['rule'])}" if "rule" in choice else ""
    return f"{choice['name']}({settings}){inner}" if settings else f"{choice['name']}{inner}"


# ---------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Measured:
    differ: dict[str, int]  # by kind of rows: draws in which the results differ
    draws: int  # of each kind
    largest: float  # the largest relative difference


def call(side: Call, drawn: np.ndarray, f: int) -> np.ndarray:
    """The side's result on rows of its own to change; the peers' global randomness starts anew."""
    np.random.seed(0)
    torch.manual_seed(0)
    with np.errstate(all="ignore"):
        return np.asarray(side(drawn.copy(), f), dtype=np.float64).reshape(-1)


def difference(theirs: np.ndarray, ours: np.ndarray) -> float:
    """|theirs - ours| / |ours|."""
    if not np.isfinite(theirs).all():
        return np.inf
    return float(np.linalg.norm(theirs - ours) / max(np.linalg.norm(ours), np.finfo(float).tiny))


def measured(comparison: Comparison) -> Measured:
    sizes = [n for n in SIZES if n <= comparison.largest]
    differ, largest = dict.fromkeys(KINDS, 0), 0.0
    for kind in KINDS:
        for n in sizes:
            for seed in SEEDS:
                drawn = rows(kind, n, seed)
                apart = difference(call(comparison.call, drawn, told(n)), call(comparison.our_call, drawn, told(n)))
                differ[kind] += apart > SAME
                largest = max(largest, apart)
    return Measured(differ, len(sizes) * len(SEEDS), largest)


def with_one_nan(side: Call) -> str:
    """What comes of ten rows of which one holds a NaN."""
    broken = rows("plain", 10, 0)
    broken[5, 0] = np.nan
    try:
        result = call(side, broken, told(10))
    except Exception as problem:  # whatever a peer raises
        return f"raises {type(problem).__name__}"
    return "finite" if np.isfinite(result).all() else "NaN"


def least_rows(side: Call, f: int = 1) -> str:
    """The fewest rows that the side accepts when told f."""
    for n in range(1, 13):
        try:
            result = call(side, np.arange(1.0, n + 1)[:, None], f)
        except Exception:  # whatever a peer raises
            continue
        if np.isfinite(result).all() and result.size:
            return str(n)
    return "more than 12"
