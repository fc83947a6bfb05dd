"""Federated learning with clients that cannot be trusted. The public names; each is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fltrust.version import __version__

if TYPE_CHECKING:  # for editors and type checkers, which cannot follow what happens at run time
    from fltrust.attacks import *  # noqa: F403
    from fltrust.errors import InputError as InputError
    from fltrust.experiment import Experiment as Experiment
    from fltrust.record import Record as Record
    from fltrust.rules import *  # noqa: F403
    from fltrust.running.call import RunResult as RunResult
    from fltrust.running.call import run as run
    from fltrust.simulation import simulate as simulate
    from fltrust.state import State as State
    from fltrust.tasks.build import build_task as build_task
    from fltrust.tasks.task import Task as Task

# `fltrust --help` must not wait for torch, so this says where each name is.
_HOMES = {
    "attacks": "ALIE ATTACKS Adaptive Attack DBA EdgeCase FreeRider Gaussian IPM Knowledge KrumAttack LabelFlip LabelFlipDynamic"
    " LabelFlipRandom LabelFlipTargeted MPAF MaliciousClient Mimic MinMax MinSum Neurotoxin NoAttack OptimalAdaptive PoisonedFL Scaling"
    " Searched SignFlip Trigger TrimAttack",
    "errors": "InputError",
    "experiment": "Experiment",
    "record": "Record",
    "rules": "ARC CAF FLAME NNM RLR RULES Aggregate Anchor Bucketing Bulyan BySize CentredClipping DnC FLDetector FLTrust FLTrustNoNorm"
    " FLTrustNoReLU FLTrustParNorm FLTrustServer FLTrustTwoLevel FLTrustWithServer Fallback FedAvg FoolsGold GeometricMedian Krum MeaMed"
    " Median MultiKrum NormClipping Phocas Received Rule SignGuard TrimmedMean TrustAccumulator Zeno ZenoPlusPlus cosines norms"
    " trust_scores",
    "running.call": "RunResult run",
    "simulation": "simulate",
    "state": "State",
    "tasks.build": "build_task",
    "tasks.task": "Task",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fltrust' has no attribute {name!r}")
    return getattr(import_module(f"fltrust.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
