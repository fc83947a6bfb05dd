"""An attack that is searched anew in every round, on the very rule that it attacks. `search.py` is the whole of it in its order."""

from fltrust.attacks.searched.scene import AimName
from fltrust.attacks.searched.search import Searched
from fltrust.rules.rule import Rule

__all__ = ["Searched", "aims_on"]


def aims_on(rule: Rule) -> tuple[AimName, ...]:
    """The aims whose worst result is taken for the rule's worst case: a root set can be misled in a way of its own."""
    return ("mean", "sign", "unseen") if rule.needs_root or rule.needs_root_loss else ("mean", "sign")
