"""Aggregation rules: how the server turns what n clients sent into one update. One file per family; `rule.py` says what a rule is."""

from fltrust.registry import RULES
from fltrust.rules.pairs import sq_distances
from fltrust.rules.rows import cosines, norms, trust_scores
from fltrust.rules.rule import Aggregate, Received, Rule, take_step

# The families, in the order in which tables list them.
# isort: off
from fltrust.rules.mean import FedAvg
from fltrust.rules.krum import Krum, MultiKrum, krum_scores
from fltrust.rules.geometric import GeometricMedian
from fltrust.rules.spectral import CAF, DnC
from fltrust.rules.coordinate import MeaMed, Median, Phocas, TrimmedMean
from fltrust.rules.bulyan import Bulyan
from fltrust.rules.votes import RLR
from fltrust.rules.accumulate import TrustAccumulator
from fltrust.rules.trust import FLTrust, FLTrustNoNorm, FLTrustNoReLU, FLTrustParNorm, FLTrustServer, FLTrustWithServer
from fltrust.rules.hierarchical import FLTrustTwoLevel
from fltrust.rules.anchor import Anchor
from fltrust.rules.clipping import CentredClipping
from fltrust.rules.history import FoolsGold
from fltrust.rules.zeno import Zeno, ZenoPlusPlus
from fltrust.rules.preaggregation import ARC, NNM, Bucketing, NormClipping
from fltrust.rules.by_size import BySize
from fltrust.rules.fallback import Fallback
from fltrust.rules.cluster import FLAME, SignGuard
from fltrust.rules.detector import FLDetector
# isort: on

__all__ = [
    "ARC",
    "CAF",
    "FLAME",
    "NNM",
    "RLR",
    "RULES",
    "Aggregate",
    "Anchor",
    "Bucketing",
    "Bulyan",
    "BySize",
    "CentredClipping",
    "DnC",
    "FLDetector",
    "FLTrust",
    "FLTrustNoNorm",
    "FLTrustNoReLU",
    "FLTrustParNorm",
    "FLTrustServer",
    "FLTrustTwoLevel",
    "FLTrustWithServer",
    "Fallback",
    "FedAvg",
    "FoolsGold",
    "GeometricMedian",
    "Krum",
    "MeaMed",
    "Median",
    "MultiKrum",
    "NormClipping",
    "Phocas",
    "Received",
    "Rule",
    "SignGuard",
    "TrimmedMean",
    "TrustAccumulator",
    "Zeno",
    "ZenoPlusPlus",
    "cosines",
    "krum_scores",
    "norms",
    "sq_distances",
    "take_step",
    "trust_scores",
]
