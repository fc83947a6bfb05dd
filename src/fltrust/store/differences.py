"""In which fields two experiments differ, in words."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from fltrust.codec import canonical, plain
from fltrust.experiment import Experiment

MOST = 5  # fields that are named


def differences(there: Experiment, here: Experiment) -> str:
    """Such as "rule: krum there, fltrust here; attack.reach: 2.0 there, 3.0 here"."""
    found = [f"{name}: {_shown(one)} there, {_shown(other)} here" for name, one, other in _differing(plain(there), plain(here))]
    more = f"; and {len(found) - MOST} more" if len(found) > MOST else ""
    return "; ".join(islice(found, MOST)) + more


def _differing(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Field, value there, value here. Two parts of the same name differ in parameters; of two others the names say enough."""
    found: list[tuple[str, Any, Any]] = []
    for name in {**there, **here}:
        one, other = there.get(name), here.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("name") == other.get("name"):
            found += _differing(one, other, f"{prefix}{name}.")
        elif one != other:
            found.append((prefix + name, one, other))
    return found


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        within = [_shown(part) for part in value.values() if isinstance(part, Mapping) and "name" in part]
        return "+".join([str(value.get("name")), *within])
    return "none" if value is None else value if isinstance(value, str) else canonical(value)
