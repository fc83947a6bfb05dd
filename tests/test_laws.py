"""The public laws (`fltrust.testing`) over every registered rule and attack, on the plain torch path and on the fast one."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fltrust.attacks import (
    ALIE,
    DBA,
    IPM,
    MPAF,
    Adaptive,
    Attack,
    EdgeCase,
    FreeRider,
    Gaussian,
    Knowledge,
    KrumAttack,
    LabelFlipDynamic,
    MaliciousClient,
    MinMax,
    MinSum,
    Neurotoxin,
    PoisonedFL,
    Searched,
    SignFlip,
    TrimAttack,
)
from fltrust.attacks.attack import Level
from fltrust.codec import built
from fltrust.registry import ATTACKS, DATASETS, RULES
from fltrust.rules import (
    ARC,
    FLAME,
    NNM,
    RLR,
    Aggregate,
    Anchor,
    Bucketing,
    Bulyan,
    BySize,
    CentredClipping,
    DnC,
    Fallback,
    FedAvg,
    FLDetector,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    MeaMed,
    Median,
    MultiKrum,
    NormClipping,
    Phocas,
    Received,
    Rule,
    SignGuard,
    TrimmedMean,
    Zeno,
    rows,
)
from fltrust.rules.rows import measure
from fltrust.testing import ATTACK_LAWS, RULE_LAWS, check_attack, check_rule, no_value_decides_what_is_crafted

# The last is for rules that hold one.
TOLD: dict[str, Any] = {"tolerate": 2, "trim": 2, "trigger": DATASETS["mnist-0.5"].trigger, "rule": Median()}
FEWER = {"bulyan": {"tolerate": 1}}  # it needs 4f + 3 clients, and the laws try ten
EVERY_RULE: list[Rule] = [built(RULES, name, TOLD | FEWER.get(name, {})) for name in RULES]
EVERY_RULE += [FedAvg(by_size=False), CentredClipping(tau=0.5, steps=3)]
EVERY_RULE += [MultiKrum(2, keep=3), MultiKrum(2, iterated=True), DnC(2, filter=1.5), DnC(2, rounds=3, coordinates=9)]
EVERY_RULE += [GeometricMedian(start="mean")]
EVERY_RULE += [  # a rule within a rule: by distances, with a root update, with a memory, with ids, several deep
    NNM(Krum(2), 2),
    NNM(FoolsGold(), 2),
    Bucketing(Krum(2)),
    Bucketing(CentredClipping()),
    ARC(NNM(TrimmedMean(2), 2), 2),
    NormClipping(FLTrust(), bound=1.0),
    NormClipping(FoolsGold(), noise=0.1),
    BySize(Krum(2)),
    BySize(TrimmedMean(2), most=1.0),
    BySize(CentredClipping(), most=5.0),
    BySize(FLTrust()),
    Zeno(2, mean_square=True),
]
EVERY_RULE += [Anchor(momentum=0.0), Anchor(0.5, 2.0), NNM(Anchor(), 2), NormClipping(Anchor(), bound=1.0)]
EVERY_RULE += [Fallback(Anchor()), Fallback(NNM(Krum(2), 2), slack=0.0), NormClipping(Fallback(FLTrust()), bound=1.0)]
EVERY_RULE += [RLR(threshold=3), RLR(by_size=False), MeaMed(0), Phocas(4), NNM(Bulyan(1), 2)]
EVERY_RULE += [FLAME(noise=0), FoolsGold(last=5), SignGuard(similarity=True), FLDetector(window=2, start=1, for_good=True, rule=Median())]
EVERY_ATTACK: list[Attack] = [built(ATTACKS, name, TOLD) for name in ATTACKS]
EVERY_ATTACK += [KrumAttack("partial"), TrimAttack("partial")]
EVERY_ATTACK += [Gaussian(add=True), Gaussian(absolute=True, mean=0.1), Gaussian(knowledge="partial"), SignFlip(scale=3.0)]
EVERY_ATTACK += [ALIE(z=1.5, upwards=True), ALIE(knowledge="partial"), IPM(epsilon=100.0), IPM(knowledge="partial")]
EVERY_ATTACK += [MinMax("sign"), MinMax("mean"), MinMax(knowledge="partial")]
EVERY_ATTACK += [MinSum("sign"), MinSum("mean"), MinSum(bound="min"), MinSum(knowledge="partial")]
EVERY_ATTACK += [FreeRider("zeros"), FreeRider(noise=0.1), MPAF(base="first"), PoisonedFL(every=2), LabelFlipDynamic("runner-up")]
EVERY_ATTACK += [DBA(TOLD["trigger"], factor=100.0), Neurotoxin(TOLD["trigger"], norm=0.2), EdgeCase(radius=2.0, factor=5.0)]
EVERY_ATTACK += [Searched("loss", "partial", steps=1), Searched("cosine", ahead=1, behave=1, candidates=50)]
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)

PATHS = [("plain", torch.float32), pytest.param("plain", torch.float64, marks=pytest.mark.slow), ("fast", torch.float32)]


@pytest.mark.parametrize("law", RULE_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("rule", EVERY_RULE, ids=repr)
@pytest.mark.parametrize(("path", "dtype"), PATHS, ids=str)
def test_rules(path: str, dtype: torch.dtype, rule: Rule, law: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "plain":
        monkeypatch.setattr(rows, "_cpu_kernels", lambda: None)
    else:
        pytest.importorskip("numba")
    law(rule, dtype)


@dtypes
@pytest.mark.parametrize("law", ATTACK_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("attack", EVERY_ATTACK, ids=repr)
def test_attacks(attack: Attack, law: Any, dtype: torch.dtype) -> None:
    if isinstance(attack, Adaptive) and law is no_value_decides_what_is_crafted:
        pytest.skip("on a CPU its loop reads values; tests/test_attacks.py tries the rest of it, tests/test_cuda.py its kernel")
    law(attack, dtype)


# ---------------------------------------------------------------- laws that could not fail would be worth nothing


@dataclass(frozen=True)
class Mean(Rule):
    """The plain mean of the usable rows, right in every way; the wrong rules below each break it in one."""

    def aggregate(self, received: Received) -> Aggregate:
        usable = measure(received.updates).usable
        shares = usable / usable.sum().clamp(min=1)
        update = torch.where(usable[:, None], received.updates, 0).double().T @ shares.double()
        largest = torch.finfo(received.updates.dtype).max
        return Aggregate(update.to(received.updates.dtype).nan_to_num(0, largest, -largest), shares.to(received.updates.dtype))


class First(Mean):
    def aggregate(self, received: Received) -> Aggregate:
        return Aggregate(received.updates[0].clone(), None)


class View(Mean):
    def aggregate(self, received: Received) -> Aggregate:
        return super().aggregate(received)._replace(update=received.updates[0])


class WrongShape(Mean):
    def aggregate(self, received: Received) -> Aggregate:
        return super().aggregate(received)._replace(update=received.updates.mean())


class Chance(Mean):
    def aggregate(self, received: Received) -> Aggregate:
        result = super().aggregate(received)
        return result._replace(update=result.update + torch.rand_like(result.update))


class NaNs(Mean):
    def aggregate(self, received: Received) -> Aggregate:
        return Aggregate(received.updates.mean(0), torch.full((len(received.updates),), 1 / len(received.updates)).to(received.updates))


class Freezes(Mean):
    """One row that is dropped ends training."""

    def aggregate(self, received: Received) -> Aggregate:
        result = super().aggregate(received)
        return result._replace(update=torch.where(measure(received.updates).usable.all(), result.update, 0))


class FailsOpen(Mean):
    """Nobody is usable, so everybody is."""

    def aggregate(self, received: Received) -> Aggregate:
        result = super().aggregate(received)
        return result._replace(update=torch.where(result.update.any(), result.update, 1.0))


class Studentised(Mean):
    def aggregate(self, received: Received) -> Aggregate:
        result, others = super().aggregate(received), torch.tensor(len(received.updates) - 1.0)
        return result._replace(update=result.update * (others / others))


class Looks(Mean):
    def aggregate(self, received: Received) -> Aggregate:
        if received.updates[0, 0] > 0:
            return super().aggregate(received)._replace(shares=None)
        return super().aggregate(received)


@dataclass(frozen=True)
class Hidden(Mean):
    """A memory that is not handed on: it changes the one it was given."""

    def init(self, num_clients: int, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def step(self, received: Received, memory: Tensor) -> tuple[Aggregate, Tensor]:
        result = self.aggregate(received)
        memory += result.update
        return result._replace(update=memory.clone()), memory


@dataclass(frozen=True)
class Trusting(Mean):
    needs_root = True


def test_a_right_rule_passes() -> None:
    check_rule(Mean())
    check_rule(FoolsGold(), torch.float64)


@pytest.mark.parametrize(
    ("rule", "law"),
    [
        (First(), "The order of the rows"),
        (View(), "Updates, root update, sizes and memory stay"),
        (WrongShape(), "The update is"),
        (Chance(), "The same rounds give the same bits"),
        (Hidden(), "Updates, root update, sizes and memory stay"),
        (NaNs(), "A row that holds NaN"),
        (Freezes(), "If as many rows are unusable"),
        (FailsOpen(), "If no row is usable"),
        (Trusting(), "A root update that is zero"),
        (NaNs(), "Values at the edge"),
        (Studentised(), "One client"),
        (Looks(), "No `.item()`"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Rule) else value,
)
def test_each_law_of_rules_can_be_broken(rule: Rule, law: str) -> None:
    with pytest.raises(AssertionError, match="breaks") as caught:
        check_rule(rule)
    assert law in str(caught.value)


class Bad(Attack):
    knowledge: Level = "full"


class Grabs(Bad):
    def craft(self, known: Knowledge) -> Tensor:
        known.honest.zero_()
        return known.own.clone()


class Dice(Bad):
    def craft(self, known: Knowledge) -> Tensor:
        return torch.rand_like(known.own)


class Copies(Bad):
    def craft(self, known: Knowledge) -> Tensor:
        return known.honest.mean(0).expand(len(known.own), -1).clone()


class TooMany(Bad):
    def craft(self, known: Knowledge) -> Tensor:
        return known.honest.clone()


class LosesLabels(Bad):
    def poison(self, images: Tensor, labels: Tensor, client: MaliciousClient) -> tuple[Tensor, Tensor]:
        return images, labels[1:]


class Divides(Bad):
    def craft(self, known: Knowledge) -> Tensor:
        return (known.own - known.own.mean(0)) / known.own.std(0)


class FloatLabels(Bad):
    def relabel(self, labels: Tensor, outputs: Tensor) -> Tensor:
        return outputs.amax(-1)


class Peeks(Bad):
    def craft(self, known: Knowledge) -> Tensor:
        return known.own * float(known.own.sum() > 0)


class Forgets(Bad):
    """Its memory is no part of what it returns."""

    def init(self, num_clients: int, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def step(self, known: Knowledge, memory: Tensor) -> tuple[Tensor, Tensor]:
        memory += 1
        return known.own + memory, memory


@pytest.mark.parametrize(
    ("attack", "law"),
    [
        (Grabs(), "Updates, root update and memory stay"),
        (Dice(), "The same rounds with the same noise"),
        (Forgets(), "Updates, root update and memory stay"),
        (Copies(), "Honest updates that are broken"),
        (TooMany(), "Without malicious clients"),
        (Divides(), "Honest updates that are all equal"),
        (LosesLabels(), "Poisoned data"),
        (FloatLabels(), "New labels of a round"),
        (Peeks(), "No `.item()`"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Attack) else value,
)
def test_each_law_of_attacks_can_be_broken(attack: Attack, law: str) -> None:
    with pytest.raises(AssertionError, match="breaks") as caught:
        check_attack(attack)
    assert law in str(caught.value)


def test_a_memory_that_forgets_breaks_the_law_of_continuing() -> None:
    class Counts(Mean):
        """Counts its rounds in a place that is not stored."""

        seen: list[int] = []  # noqa: RUF012

        def aggregate(self, received: Received) -> Aggregate:
            self.seen.append(1)
            result = super().aggregate(received)
            return result._replace(update=result.update * len(self.seen))

    with pytest.raises(AssertionError, match="stored and restored continues bit for bit"):
        check_rule(Counts())


def test_an_attacks_memory_that_forgets_breaks_the_law_of_continuing() -> None:
    class Counts(Attack):
        seen: list[int] = []  # noqa: RUF012

        def craft(self, known: Knowledge) -> Tensor:
            self.seen.append(1)
            return known.own * len(self.seen)

    with pytest.raises(AssertionError, match="stored and restored continues bit for bit"):
        check_attack(Counts())
