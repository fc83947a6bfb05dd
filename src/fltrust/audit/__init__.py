"""Who behaves, who does not, since when, and how one can tell: a run directory becomes findings. Needs neither torch nor Flower."""

from fltrust.audit.audit import Audit
from fltrust.audit.findings import Finding, shortened
from fltrust.audit.read import RoundLine

__all__ = ["Audit", "Finding", "RoundLine", "shortened"]
