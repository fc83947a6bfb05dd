"""Every rule, attack, data set, model, split, metric and server optimiser: its name, its label, its look and its source, said once.

A thing is registered where it is defined, and the command line, the report, the laws and the documentation read it here:

    @RULES.register("krum", label="Krum", look=Look("orange", "s"), reference="Blanchard et al., NeurIPS 2017")
    class Krum(Rule): ...

Packages add theirs by an entry point of the group "fltrust.rules" (or .attacks, .datasets, .models ...), single files with `load_plugin`.
This module imports nothing heavy: reading names must not wait for torch.
"""

import difflib
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from fltrust.beside import importing_beside, is_beside, whole_code
from fltrust.errors import InputError

Kind = TypeVar("Kind")


class Look(NamedTuple):
    """How a curve is drawn, the same in every picture."""

    colour: str  # one of report.looks.COLOURS
    marker: str  # matplotlib's letter for it
    dashed: bool = False


@dataclass(frozen=True)
class Entry:
    """What is known of one name."""

    name: str
    kind: Any  # the class, or the value itself where there is nothing to construct
    label: str  # in tables and pictures
    look: Look | None = None  # None: the report chooses one
    reference: str = ""
    listed: bool = True  # False: found by its name, but in no list

    @property
    def summary(self) -> str:
        """One line about it: its own `summary`, or the first line of its docstring."""
        own = getattr(self.kind, "summary", None)
        return own if isinstance(own, str) else (self.kind.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True)
class Absent:
    """A rule, an attack ... read from a file while its plug-in is not loaded: it can be named and compared, not run."""

    registry: "Registry"
    name: str
    parameters: tuple[tuple[str, str], ...]  # the values as JSON

    needs_root = True
    idle = False
    trigger = None


class Registry(Mapping[str, Any]):
    """Names of one sort and what stands behind them; the modules in `homes` are imported when a name is first asked for."""

    def __init__(self, plural: str, *homes: str, reserved: Collection[str] = ()) -> None:
        self.plural, self.singular, self._homes = plural, plural.removesuffix("s"), homes
        self._reserved = reserved
        self._entries: dict[str, Entry] = {}
        self._broken: dict[str, str] = {}  # entry points that could not be loaded, and why
        self._loaded = False
        self.finder: Callable[[str], Any] | None = None  # what a name that is not registered stands for (a file, a folder); None: nothing

    __hash__, __eq__ = object.__hash__, object.__eq__  # a Mapping's would compare what is in it, and `Absent` holds a registry

    def register(
        self, name: str, *, label: str = "", look: Look | None = None, reference: str = "", listed: bool = True
    ) -> Callable[[Kind], Kind]:
        """A decorator that gives a class (or a value) its name."""

        def add(kind: Kind) -> Kind:
            if name in self._reserved:
                raise InputError(f"{name!r} cannot name a {self.singular}: records use it for something else")
            if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
                raise InputError(f"{name!r} cannot name a {self.singular}: use small letters, digits, '-', '_' and '.'")
            if hasattr(kind, "registry") and "__dataclass_fields__" not in vars(kind):
                raise InputError(
                    f"the {self.singular} {name!r} must be a dataclass: write @dataclass(frozen=True) between its name and its class"
                )
            taken = self._entries.get(name)
            if taken is not None and _source(taken.kind) != _source(kind):
                raise InputError(f"there is a {self.singular} {name!r} already ({_source(taken.kind)}): choose another name")
            self._entries[name] = Entry(name, kind, label or name, look, reference, listed)
            return kind

        return add

    def entry(self, name: str) -> Entry:
        """What is known of a name, in small letters or large; an unknown one is refused, with the nearest known one."""
        self._load()
        if isinstance(name, str) and name not in self._entries and name.lower() in (*self._entries, *self._broken):
            name = name.lower()
        if isinstance(name, str) and name in self._broken:
            raise InputError(f"{self.singular} {name!r}: {self._broken[name]}")
        if isinstance(name, str) and name not in self._entries and self.finder and (found := self.finder(name)) is not None:
            return Entry(name, found, name)
        if isinstance(name, str) and name in self._entries:
            return self._entries[name]
        return self._entries[known(self.singular, name, list(self))]

    def own_name_of(self, value: Any) -> str:
        """The name of a value's class; a class without a name is called by its own."""
        if isinstance(value, Absent):
            return value.name
        self._load()
        return next((entry.name for entry in self._entries.values() if entry.kind is type(value)), type(value).__name__)

    def name_of(self, value: Any) -> str:
        """The name that stands for a value: "krum", or "nnm+krum" for a rule within a rule."""
        return "+".join(map(self.own_name_of, self.layers(value)))

    def label_of(self, value: Any) -> str:
        names = map(self.own_name_of, self.layers(value))
        return " + ".join(self._entries[name].label if name in self._entries else name for name in names)

    def layers(self, value: Any) -> list[Any]:
        """The value, what is within it, what is within that; without what is there by default."""
        within = getattr(value, self.singular, None)
        if within is None or not hasattr(within, "registry"):
            return [value]
        usual = next(field for field in fields(value) if field.name == self.singular).default_factory
        return [value] if usual is not MISSING and within == usual() else [value, *self.layers(within)]

    def __getitem__(self, name: str) -> Any:
        self._load()
        return self._entries[name].kind

    def __iter__(self) -> Iterator[str]:
        self._load()
        return (name for name, entry in self._entries.items() if entry.listed)

    def __len__(self) -> int:
        self._load()
        return sum(entry.listed for entry in self._entries.values())

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        for home in self._homes:
            import_module(home)
        for point in entry_points(group=f"fltrust.{self.plural}"):
            try:
                kind = point.load()
                if not any(entry.kind is kind for entry in self._entries.values()):
                    self.register(point.name)(kind)
            except Exception as problem:  # somebody else's package must not keep ours from working
                self._broken[point.name] = f"the plug-in {point.value} cannot be loaded: {type(problem).__name__}: {problem}"


def _source(kind: Any) -> str:
    """Where a class or a function was defined: a module that is imported again defines the same."""
    return f"{kind.__module__}.{kind.__qualname__}" if hasattr(kind, "__qualname__") else repr(kind)


DATASETS = Registry("datasets", "fltrust.datasets")
RULES = Registry("rules", "fltrust.rules", "fltrust.checks.odd")
ATTACKS = Registry("attacks", "fltrust.attacks", "fltrust.checks.odd")
MODELS = Registry("models", "fltrust.models")
SPLITS = Registry("splits", "fltrust.tasks.splits", "fltrust.tasks.splits_sorted", "fltrust.tasks.splits_drawn")
_IN_RECORDS = (
    *("round", "malicious", "clients", "shares", "weight", "trust", "cosine", "norm", "metrics"),
    *("peers", "closest", "closest_to", "root_norm"),
)
METRICS = Registry("metrics", "fltrust.metrics", reserved=_IN_RECORDS)
OBJECTIVES = Registry("objectives", "fltrust.objectives")
OPTIMISERS = Registry("optimisers", "fltrust.training.optimisers")
LOGGERS = Registry("loggers", "fltrust.running.loggers")


_REGISTRIES = (DATASETS, RULES, ATTACKS, MODELS, SPLITS, METRICS, OBJECTIVES, OPTIMISERS, LOGGERS)
_PLUGIN = "fltrust_plugin_"  # what the modules of plug-ins are called


def load_plugin(path: Path, what: str = "plug-in") -> ModuleType:
    """Imports a Python file, which registers what it defines. Loading it twice is the same as once. `what`: errors call it so."""
    path = path.resolve()
    name = f"{_PLUGIN}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"  # two files may have one name
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    if not path.is_file():
        raise InputError(f"there is no {what} {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        with importing_beside(path):
            spec.loader.exec_module(module)
    except InputError as problem:
        del sys.modules[name]
        raise InputError(f"the {what} {path}: {problem}") from problem
    except Exception as problem:
        del sys.modules[name]
        raise InputError(f"the {what} {path} cannot be loaded: {where_in(problem, path)}{type(problem).__name__}: {problem}") from problem
    return module


def plugin_files(*values: Any) -> dict[str, str]:
    """The files of the plug-ins that define these values, those that they import from their folder, and their sha256.

    A run's numbers depend on them.
    """
    modules = {str(getattr(value, "__module__", "")) for value in values}
    paths = {name: Path(str(getattr(sys.modules.get(name), "__file__", ""))) for name in sorted(modules)}
    files: dict[str, Path] = {}
    for name, path in paths.items():
        if name.startswith(_PLUGIN) or is_beside(path):
            files |= whole_code(path)
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


def plugin_fault(problem: BaseException) -> str:
    """The line of a plug-in in which an error happened, and what it was; nothing if no plug-in was involved."""
    kinds = [entry.kind for registry in _REGISTRIES for entry in registry._entries.values()]
    theirs = {module for kind in kinds if not (module := str(getattr(kind, "__module__", "fltrust."))).startswith("fltrust.")}
    place, trace = "", problem.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module.startswith(_PLUGIN) or module in theirs:
            place = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return f"the plug-in {place}: {type(problem).__name__}: {problem}" if place else ""


def where_in(problem: BaseException, path: Path) -> str:
    """The line of the file in which it happened."""
    line, trace = 0, problem.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}: " if line else ""


def known(what: str, name: str, names: Collection[str], others: Mapping[str, str] | None = None) -> str:
    """The name, if it is one of the names; else an error that helps. `others`: what people may call them instead."""
    if isinstance(name, str) and name in names:
        return name
    said = str(name).lower()
    meant = [others[said]] if others and others.get(said) in names else [longer for longer in names if said and longer.startswith(said)]
    near = " or ".join(map(repr, meant or difflib.get_close_matches(said, list(names), n=1)))
    raise InputError(f"unknown {what} {name!r}" + (f": did you mean {near}?" if near else f"; known: {', '.join(names)}"))
