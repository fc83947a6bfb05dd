"""FLTrust: federated learning with clients that cannot be trusted. The public names; each is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fltrust.version import __version__

if TYPE_CHECKING:
    from fltrust.accumulate import TrustAccumulator
    from fltrust.attacks import Adaptive, Attack, Knowledge, KrumAttack, LabelFlip, NoAttack, OptimalAdaptive, Scaling, Trigger, TrimAttack
    from fltrust.data import Task
    from fltrust.errors import InputError
    from fltrust.experiment import Experiment
    from fltrust.rules import (
        Aggregate,
        FedAvg,
        FLTrust,
        FLTrustNoNorm,
        FLTrustNoReLU,
        FLTrustParNorm,
        FLTrustServer,
        FLTrustWithServer,
        Krum,
        Median,
        Rule,
        TrimmedMean,
        trust_scores,
    )
    from fltrust.simulation import Record, build_task, simulate

__all__ = [
    "Adaptive",
    "Aggregate",
    "Attack",
    "Experiment",
    "FLTrust",
    "FLTrustNoNorm",
    "FLTrustNoReLU",
    "FLTrustParNorm",
    "FLTrustServer",
    "FLTrustWithServer",
    "FedAvg",
    "InputError",
    "Knowledge",
    "Krum",
    "KrumAttack",
    "LabelFlip",
    "Median",
    "NoAttack",
    "OptimalAdaptive",
    "Record",
    "Rule",
    "Scaling",
    "Task",
    "Trigger",
    "TrimAttack",
    "TrimmedMean",
    "TrustAccumulator",
    "__version__",
    "build_task",
    "simulate",
    "trust_scores",
]

# `fltrust --help` must not wait for torch.
_HOMES = {
    "accumulate": "TrustAccumulator",
    "attacks": "Adaptive Attack Knowledge KrumAttack LabelFlip NoAttack OptimalAdaptive Scaling Trigger TrimAttack",
    "data": "Task",
    "errors": "InputError",
    "experiment": "Experiment",
    "rules": "Aggregate FLTrust FLTrustNoNorm FLTrustNoReLU FLTrustParNorm FLTrustServer FLTrustWithServer FedAvg"
    " Krum Median Rule TrimmedMean trust_scores",
    "simulation": "Record build_task simulate",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fltrust' has no attribute {name!r}")
    return getattr(import_module(f"fltrust.{_HOME_OF[name]}"), name)
