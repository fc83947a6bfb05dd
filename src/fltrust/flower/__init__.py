"""FLTrust and the other rules as a strategy of Flower. Each name is imported when it is first used: reading an audit needs no Flower."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fltrust.flower.layout import is_statistic
    from fltrust.flower.membership import Quarantine
    from fltrust.flower.root import root_of
    from fltrust.flower.strategy import RobustStrategy
    from fltrust.flower.verdicts import REASONS, VERDICTS

__all__ = ["REASONS", "VERDICTS", "Quarantine", "RobustStrategy", "is_statistic", "root_of"]

_HOME_OF = {
    "RobustStrategy": "strategy",
    "Quarantine": "membership",
    "root_of": "root",
    "is_statistic": "layout",
    "REASONS": "verdicts",
    "VERDICTS": "verdicts",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fltrust.flower' has no attribute {name!r}")
    return getattr(import_module(f"fltrust.flower.{_HOME_OF[name]}"), name)
