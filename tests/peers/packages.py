"""One module of an installed package, without the rest of it.

Several peers import data sets, loggers or a scheduler in their `__init__`, which do not install here. Their rules need none of that.
"""

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType


def installed(distribution: str) -> str | None:
    """The version of a package; None if it is not there."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def module(name: str) -> ModuleType:
    """The module of this name. The `__init__` of the packages around it does not run."""
    *parents, _ = name.split(".")
    path = None
    for end in range(1, len(parents) + 1):
        parent = ".".join(parents[:end])
        if parent not in sys.modules:
            found = PathFinder.find_spec(parent, path)
            if found is None or found.submodule_search_locations is None:
                raise ModuleNotFoundError(parent)
            sys.modules[parent] = ModuleType(parent)
            sys.modules[parent].__path__ = list(found.submodule_search_locations)
        path = sys.modules[parent].__path__
    return importlib.import_module(name)
