"""A run as data: a frozen Experiment, its key, and its way from and to TOML. The paper's Table I is `PAPER`."""

import dataclasses
import difflib
import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fltrust.attacks import ATTACKS, TRIGGERS, Attack, NoAttack, Trigger
from fltrust.errors import InputError
from fltrust.models import MODELS
from fltrust.rules import RULES, FLTrust, Rule

Loss = Literal["sum", "mean"]
RootBatch = Literal["whole", "batch"]
RootSampling = Literal["quota", "random"]
Initialisation = Literal["released", "torch"]
Precision = Literal["float32", "tf32", "float16"]


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run's numbers, but for the rounding of the device that it runs on."""

    dataset: str = "mnist-0.5"
    model: str = "cnn"
    rule: Rule = dataclasses.field(default_factory=FLTrust)
    attack: Attack = dataclasses.field(default_factory=NoAttack)
    seed: int = 0
    bias: float | None = 0.5  # q: the share of a class that its own group of clients gets; None where the data has owners
    num_clients: int = 100  # n
    malicious: int = 20  # m
    clients_per_round: int = 100  # tau
    rounds: int = 2000  # R_g
    local_steps: int = 1  # R_l
    batch_size: int = 32  # b
    local_lr: float = 1.0  # beta; the paper gives only alpha * beta, and the released code has beta = 1
    global_lr: float = 3e-4  # alpha
    lr_decay: tuple[tuple[int, float], ...] = ()  # (round, factor): from that round on the learning rate is multiplied
    warmup: int = 0  # rounds over which the learning rate rises to its value
    loss: Loss = "sum"  # over a batch; the paper's learning rates work only with the sum
    standardise: bool = False  # each feature to mean 0 and deviation 1 over the training examples
    augment: bool = False  # random crop and flip of the images, the root set's too
    root_size: int = 100  # |D_0|
    root_bias: float | None = None  # case II: the share of class 1 in the root set; None is case I
    root_sampling: RootSampling = "quota"  # exact numbers per class (released code), or examples drawn at random
    root_batch: RootBatch = "whole"  # the server trains on its whole root set (released code) or on a batch of b (Algorithm 2)
    initialisation: Initialisation = "released"  # of the first weights: the released code's, or PyTorch's own
    precision: Precision = "float32"  # of a GPU's products; a CPU has float32 only
    evaluate_every: int = 50

    def __post_init__(self) -> None:
        counts = ("num_clients", "rounds", "clients_per_round", "local_steps", "batch_size", "root_size", "evaluate_every")
        for name in counts:
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        _require(0 <= self.malicious <= self.num_clients, f"malicious must be 0 to {self.num_clients} (num_clients), not {self.malicious}")
        _require(
            self.clients_per_round <= self.num_clients,
            f"clients_per_round must be at most {self.num_clients} (num_clients), not {self.clients_per_round}",
        )
        _require(self.bias is None or 0 < self.bias <= 1, f"bias (the paper's q) must be above 0 and at most 1, not {self.bias}")
        _require(self.root_bias is None or 0 <= self.root_bias <= 1, f"root_bias must be 0 to 1, not {self.root_bias}")
        for name in ("local_lr", "global_lr"):
            _require(0 < getattr(self, name) < 1e30, f"{name} must be a positive number, not {getattr(self, name)}")
        for since, factor in self.lr_decay:
            _require(since >= 1 and 0 < factor < 1e30, f"lr_decay must hold [round, positive factor], not {[since, factor]}")
        _require(self.warmup >= 0, f"warmup must not be negative, not {self.warmup}")
        _require(self.seed >= 0, f"seed must not be negative, not {self.seed}")
        known("loss", self.loss, get_args(Loss))
        known("root_batch", self.root_batch, get_args(RootBatch))
        known("root_sampling", self.root_sampling, get_args(RootSampling))
        _require(
            self.root_bias is None or self.root_sampling == "quota",
            "a biased root set has exact numbers per class: root_sampling = 'quota'",
        )
        known("initialisation", self.initialisation, get_args(Initialisation))
        known("precision", self.precision, get_args(Precision))

    @staticmethod
    def on(dataset: str = "mnist-0.5", rule: Any = "fltrust", attack: Any = "none", **changes: Any) -> "Experiment":
        """The paper's experiment on a data set, with changes: `Experiment.on("mnist-0.5", "krum", "trim", rounds=500, seed=1)`.

        A rule or an attack is a value, a name, or a mapping {"name": ..., parameter: ...}. Parameters with no default or None that are left
        out are the paper's: `tolerate` and `trim` are how many of a round's clients are malicious, `trigger` is the data set's.
        """
        known("dataset", dataset, PAPER)
        for name in changes:
            known("field", name, _FIELDS)
        settings = {**PAPER[dataset], **_checked(Experiment, changes)}
        known("model", settings["model"], MODELS)
        _require(settings["num_clients"] >= 1, f"num_clients must be at least 1, not {settings['num_clients']}")
        family = settings.pop("family")
        settings.setdefault("clients_per_round", settings["num_clients"])
        if "malicious" not in changes:  # the paper keeps their fraction when it changes the number of clients
            settings["malicious"] = round(settings["malicious"] / PAPER[dataset]["num_clients"] * settings["num_clients"])
        expected = round(settings["malicious"] * settings["clients_per_round"] / settings["num_clients"])
        told = {"tolerate": expected, "trim": expected, "trigger": TRIGGERS[family]}
        rule, attack = _chosen("rule", rule, RULES, told), _chosen("attack", attack, ATTACKS, told)
        return Experiment(dataset=dataset, rule=rule, attack=attack, **settings)

    @property
    def needs_root(self) -> bool:
        return self.rule.needs_root or self.attack.needs_root

    @property
    def key(self) -> str:
        """Names the run's results: the same experiment, the same key. A field that is added later, with a default, changes no key."""
        chosen = self._plain(lambda value, field: value != field.default)
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        return self._plain(lambda value, field: True)

    def _plain(self, keep: Callable[[Any, dataclasses.Field[Any]], bool]) -> dict[str, Any]:
        def kept(of: Any) -> dict[str, Any]:
            fields = [(getattr(of, field.name), field) for field in dataclasses.fields(of)]
            return {field.name: value for value, field in fields if keep(value, field)}

        plain = kept(self)
        plain["rule"] = {"name": name_of(self.rule, RULES), **kept(self.rule)}
        plain["attack"] = {"name": name_of(self.attack, ATTACKS), **kept(self.attack)}
        as_json: dict[str, Any] = json.loads(json.dumps(plain, default=dataclasses.asdict))
        return as_json

    def lr_at(self, t: int) -> float:
        """alpha in round t, the first of which is 1."""
        rate = self.global_lr * min(1.0, t / self.warmup) if self.warmup else self.global_lr
        for since, factor in self.lr_decay:
            rate *= factor if t >= since else 1.0
        return rate


# The paper's Table I, and what REPRODUCTION leaves to the data set. `family` is what is loaded from disk.
_IMAGES = {"model": "cnn", "num_clients": 100, "malicious": 20, "batch_size": 32}
_MNIST = {**_IMAGES, "family": "mnist", "rounds": 2000, "global_lr": 3e-4}
PAPER: dict[str, dict[str, Any]] = {
    "mnist-0.1": {**_MNIST, "bias": 0.1},
    "mnist-0.5": {**_MNIST, "bias": 0.5},
    "fashion-mnist": {**_IMAGES, "family": "fashion-mnist", "bias": 0.5, "rounds": 2500, "global_lr": 6e-3},
    "cifar-10": {**_IMAGES, "family": "cifar-10", "model": "resnet20", "bias": 0.5, "rounds": 1500, "batch_size": 64, "global_lr": 2e-4},
    "har": {
        "family": "har",
        "model": "logistic",
        "bias": None,
        "num_clients": 30,
        "malicious": 6,
        "rounds": 1000,
        "batch_size": 32,
        "global_lr": 3e-3,
        "standardise": True,  # the paper does not say so, but so its HAR numbers come out: docs/reproduction.md
    },
    "ch-mnist": {
        "family": "ch-mnist",
        "model": "resnet20",
        "bias": 0.5,
        "num_clients": 40,
        "malicious": 8,
        "rounds": 2000,
        "batch_size": 32,
        "global_lr": 3e-4,
        "lr_decay": ((1500, 0.9), (1750, 0.9)),
    },
    # Not the paper's: the embedded data set, 4,000 images, so fewer clients and a larger step.
    "mnist-5k": {
        "family": "mnist-5k",
        "model": "cnn",
        "bias": 0.5,
        "num_clients": 20,
        "malicious": 4,
        "rounds": 100,
        "batch_size": 32,
        "global_lr": 3e-3,
        "evaluate_every": 10,
    },
}


def from_dict(written: Mapping[str, Any]) -> Experiment:
    """An experiment from a TOML file or a results directory; an unknown field is refused by name."""
    for name in written:
        known("field", name, _FIELDS)
    return Experiment.on(**written)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InputError(f"{path} is not TOML: {problem}") from problem


_FIELDS = [field.name for field in dataclasses.fields(Experiment)]


def name_of(value: Rule | Attack, registry: Mapping[str, type]) -> str:
    """Its name on the command line; a rule or attack of one's own is called by its class."""
    return next((name for name, kind in registry.items() if kind is type(value)), type(value).__name__)


def _chosen(what: str, choice: Any, registry: Mapping[str, type], told: Mapping[str, Any]) -> Any:
    if isinstance(choice, Rule | Attack):
        return choice
    if isinstance(choice, str):
        choice = {"name": choice}
    if not isinstance(choice, Mapping) or "name" not in choice:
        raise InputError(f"{what} must be a name or a table with a name, not {choice!r}")
    kind = registry[known(what, choice["name"], registry)]
    fields = dataclasses.fields(kind)
    names = [field.name for field in fields]
    _require(bool(names) or len(choice) == 1, f"{what} {choice['name']!r} has no parameters")
    parameters = {known(f"parameter of {choice['name']}", name, names): value for name, value in choice.items() if name != "name"}
    if isinstance(parameters.get("trigger"), Mapping):
        parameters["trigger"] = Trigger.from_dict(parameters["trigger"])
    unsaid = {field.name: field.default for field in fields if field.default is None or field.default is dataclasses.MISSING}
    parameters = {name: told[name] for name in unsaid if name in told} | _checked(kind, parameters)
    for name, default in unsaid.items():
        _require(name in parameters or default is None, f"{what} {choice['name']!r} must be told its {name}")
    return kind(**parameters)


def _checked(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values as the dataclass wants them: a number in quotes or a fraction of a client is a mistake, not something to convert."""
    hints = get_type_hints(kind)
    return {name: _as(hints[name], name, value) if name in hints else value for name, value in values.items()}


def _as(hint: Any, name: str, value: Any) -> Any:
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        if option is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)  # so that 1 and 1.0 are one experiment
        if option is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            inner = get_args(option)
            parts = [inner[0]] * len(value) if inner[-1] is ... else inner
            if len(parts) == len(value):
                return tuple(_as(part, name, item) for part, item in zip(parts, value, strict=True))
        if get_origin(option) is Literal and isinstance(value, str):
            return value  # which names there are is checked where they are used
        if option not in (int, float) and isinstance(option, type) and isinstance(value, option):
            return value
    raise InputError(f"{name} cannot be {value!r}")


def known(what: str, name: str, names: Collection[str]) -> str:
    """The name, if it is one of the names; else an error that helps."""
    if isinstance(name, str) and name in names:
        return name
    begun = [longer for longer in names if name and longer.startswith(str(name))]
    near = " or ".join(map(repr, begun or difflib.get_close_matches(str(name), list(names), n=1)))
    raise InputError(f"unknown {what} {name!r}" + (f": did you mean {near}?" if near else f"; known: {', '.join(names)}"))


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InputError(otherwise)
