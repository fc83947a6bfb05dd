"""An attack that is searched anew in every round, on the very rule that it attacks. `search.py` is the whole of it in its order."""

from fltrust.attacks.searched.search import Searched

__all__ = ["Searched"]
