"""A run as data: a frozen Experiment and its key. A data set's usual settings stand with the data set (`datasets/`)."""

import dataclasses
import hashlib
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from fltrust.codec import built, built_or_absent, canonical, checked, plain, read_toml
from fltrust.errors import InputError
from fltrust.registry import ATTACKS, DATASETS, METRICS, MODELS, OPTIMISERS, RULES, SPLITS, Registry, known

if TYPE_CHECKING:
    from fltrust.attacks import Attack
    from fltrust.rules import Rule
    from fltrust.tasks.splits import Split
    from fltrust.training.optimisers import ServerOptimiser
else:  # an experiment can be declared, read and compared without torch
    Attack = Rule = ServerOptimiser = Split = Any

Loss = Literal["sum", "mean"]
RootBatch = Literal["whole", "batch"]
RootSampling = Literal["quota", "random"]
Initialisation = Literal["released", "torch"]
Precision = Literal["float32", "tf32", "float16", "bfloat16"]  # the most exact first
MomentumKind = Literal["normalised", "plain"]
Participation = Literal["pool", "fixed"]
BatchNorm = Literal["root", "clients", "test"]


def _field(default: Any, help: str) -> Any:
    """A field with the words that the command line and the documentation say about it."""
    return dataclasses.field(default=default, metadata={"help": help, "registry": None})


def _part(name: str | None, help: str, registry: Registry) -> Any:
    """A field for a rule, an attack ...: its usual one by name, and where the names are."""
    metadata = {"help": help, "registry": registry, "default": name}
    if name is None:
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(default_factory=lambda: registry[name](), metadata=metadata)


def _required(help: str, unnamed: Any) -> Any:
    """A field without a usual value, since none fits all data. `unnamed`: the value that keys leave out, as if it were the default."""
    return dataclasses.field(default=None, metadata={"help": help, "registry": None, "unnamed": unnamed})


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run's numbers, except for the rounding of the device.

    `Experiment.on` starts from a data set's usual settings, and is what you want in most cases. `Experiment(...)` takes every field as it
    is, and must be given `global_lr` and `loss`, since no value fits all data. For your own arrays, call `fltrust.run` with a `Task`.

    Parameters
    ----------

    Examples
    --------
    >>> from fltrust import Experiment
    >>> run = Experiment.on("mnist-0.5", "krum", "trim", num_clients=50, rounds=500)
    >>> run.malicious  # the data set's share, 20 %
    10
    >>> run.rule
    Krum(tolerate=10)
    """

    dataset: str = _field("mnist-0.5", "Data set, split and usual settings (default: mnist-0.5); see 'fltrust list datasets'.")
    model: str = _field("cnn", "Network; see 'fltrust list models'.")
    rule: Rule = _part("fltrust", "Aggregation rule; see 'fltrust list rules'.", RULES)
    attack: Attack = _part("none", "What malicious clients do; see 'fltrust list attacks'.", ATTACKS)
    seed: int = _field(0, "Decides the split, the first weights, the batches and the noise.")
    bias: float | None = _field(
        0.5,
        "Share q of each class that goes to its own group of clients; with ten classes 0.1 is an even split. Users or 'split' replace it.",
    )
    num_clients: int = _field(100, "Number of clients.")
    malicious: int = _field(20, "How many of the clients are malicious (default: the data set's share).")
    clients_per_round: int = _field(100, "How many clients take part in a round (default: all).")
    rounds: int = _field(2000, "Global rounds.")
    local_steps: int = _field(1, "SGD steps of a client in a round.")
    batch_size: int = _field(32, "Examples in a client's batch.")
    # The paper gives only alpha * beta, and the released code has beta = 1.
    local_lr: float = _field(1.0, "Learning rate of the clients (the paper's beta).")
    global_lr: float = _required("Learning rate of the server (the paper's alpha).", unnamed=3e-4)
    lr_decay: tuple[tuple[int, float], ...] = _field((), "Pairs [round, factor]: from that round on, multiply the learning rate.")
    warmup: int = _field(0, "Rounds over which the learning rate rises to its value.")
    loss: Loss = _required("'sum' or 'mean' over a batch; the paper's learning rates need the sum.", unnamed="sum")
    standardise: bool = _field(False, "Bring each feature to mean 0 and deviation 1 over the training examples.")
    augment: bool = _field(False, "Crop and flip images at random, those of the root set too.")
    root_size: int = _field(100, "Examples in the server's root set.")
    root_bias: float | None = _field(None, "Share of class 1 in the root set (the paper's case II).")
    root_sampling: RootSampling = _field("quota", "Root set with exact numbers per class ('quota') or drawn at 'random'.")
    root_batch: RootBatch = _field("whole", "The server trains on its 'whole' root set or on a 'batch' of it.")
    initialisation: Initialisation = _field("released", "First weights: the 'released' code's or those of 'torch'.")
    precision: Precision = _field(
        "float32",
        "Precision of matrix products. On a GPU: float32, tf32 or float16 (about three times faster). "
        "On a CPU: float32 or, if the processor has it, bfloat16 (some networks are up to 1.3 times faster).",
    )
    evaluate_every: int = _field(50, "Rounds between two evaluations (and checkpoints).")
    # Fields that came later stand below: a field with its default changes no key.
    split: Split | None = _part(None, "How examples are split over clients instead of by 'bias'; see 'fltrust list splits'.", SPLITS)
    participation: Participation = _field(
        "pool", "Malicious clients of a round: drawn like all others ('pool'), or the same number in every round ('fixed')."
    )
    local_epochs: int | None = _field(None, "Passes of a client over its own examples in a round, instead of 'local_steps'.")
    client_momentum: float = _field(0.0, "Momentum beta of the clients: what they send is a running mean of their updates.")
    momentum_kind: MomentumKind = _field("normalised", "Clients' momentum: 'normalised' (beta m + (1 - beta) g) or 'plain' (beta m + g).")
    server: ServerOptimiser | None = _part(None, "The server's optimiser (default: SGD); see 'fltrust list optimisers'.", OPTIMISERS)
    metrics: tuple[str, ...] = _field((), "Metrics to record beside the errors; see 'fltrust list metrics'.")
    batch_norm: BatchNorm = _field(
        "root",
        "Statistics that batch norm uses in evaluation: of the 'root' set, averaged over all 'clients' (up to 64 examples of each), "
        "or of up to 1,000 'test' examples.",
    )

    def __post_init__(self) -> None:
        for name in ("global_lr", "loss"):
            _require(
                getattr(self, name) is not None,
                f"Experiment(...) must be given {name}: no value fits all data. Experiment.on(...) knows the data sets' usual ones, and "
                "fltrust.run(task, ...) is for your own data",
            )
        counts = ("num_clients", "rounds", "clients_per_round", "local_steps", "batch_size", "root_size", "evaluate_every")
        for name in counts:
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, not {getattr(self, name)}")
        _require(0 <= self.malicious <= self.num_clients, f"malicious must be 0 to {self.num_clients} (num_clients), not {self.malicious}")
        _require(
            self.clients_per_round <= self.num_clients,
            f"clients_per_round must be at most {self.num_clients} (num_clients), not {self.clients_per_round}",
        )
        _require(self.bias is None or 0 < self.bias <= 1, f"bias (the paper's q) must be above 0 and at most 1, not {self.bias}")
        _require(self.bias is None or self.split is None, "a split replaces the bias: with a split, bias must be None")
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
        _require(
            self.server is None or not self.rule.holds_out,
            "a rule that falls back sets the model itself: leave out the server's optimiser",
        )
        known("initialisation", self.initialisation, get_args(Initialisation))
        known("precision", self.precision, get_args(Precision))
        known("participation", self.participation, get_args(Participation))
        known("momentum_kind", self.momentum_kind, get_args(MomentumKind))
        known("batch_norm", self.batch_norm, get_args(BatchNorm))
        _require(0 <= self.client_momentum < 1, f"client_momentum must be at least 0 and below 1, not {self.client_momentum}")
        _require(self.local_epochs is None or self.local_epochs >= 1, f"local_epochs must be at least 1, not {self.local_epochs}")
        _require(self.local_epochs is None or self.local_steps == 1, "both local_steps and local_epochs are given: give one of them")
        _require(
            self.participation == "pool" or not self.malicious or per_round(self.malicious, self.clients_per_round, self.num_clients) > 0,
            f"participation 'fixed' would never draw any of {self.malicious} malicious clients: {self.clients_per_round} of "
            f"{self.num_clients} clients take part in a round, which makes 0 malicious; use 'pool'",
        )

    @staticmethod
    def on(dataset: str = "mnist-0.5", rule: Any = "fltrust", attack: Any = "none", **changes: Any) -> "Experiment":
        """The usual experiment on a data set, with changes: `Experiment.on("mnist-0.5", "krum", "trim", rounds=500, seed=1)`.

        A rule, an attack or any other part is a value, a name, or a mapping {"name": ..., parameter: ...}. If you leave out a parameter
        that has no default or None, the paper's value is used: `tolerate` and `trim` are how many of a round's clients are malicious, and
        `trigger` is the data set's. A `split` replaces the data set's bias, and a `bias` its split.

        Parameters
        ----------
        dataset : str, default "mnist-0.5"
            See 'fltrust list datasets'.
        rule : Rule, str or mapping, default "fltrust"
            See 'fltrust list rules'.
        attack : Attack, str or mapping, default "none"
            See 'fltrust list attacks'.
        **changes
            Any other field of `Experiment`.
        """
        entry = DATASETS.entry(dataset)
        dataset, profile = entry.name, entry.kind
        for name in changes:
            known("field", name, FIELDS, MEANT)
        for name in profile.settings:
            known(f"setting of {dataset}", name, [field for field in FIELDS if field not in ("dataset", "rule", "attack")], MEANT)
        settings = {"loss": "sum"} | checked(Experiment, {**profile.settings, **changes}, {})
        for name in ("model", "num_clients", "malicious", "rounds", "batch_size", "global_lr"):
            _require(name in settings, f"{dataset} does not set {name!r}: say it there or with the experiment; no other data's is used")
        if changes.get("split") is not None:
            _require(changes.get("bias") is None, "both a bias and a split are given: give one of them")
            settings["bias"] = None
        elif changes.get("bias") is not None:
            settings.pop("split", None)
        settings["model"] = MODELS.entry(settings["model"]).name
        settings["metrics"] = tuple(METRICS.entry(name).name for name in settings.get("metrics", ()))
        _require(settings["num_clients"] >= 1, f"num_clients must be at least 1, not {settings['num_clients']}")
        settings.setdefault("clients_per_round", settings["num_clients"])
        if "malicious" not in changes:  # the paper keeps their fraction when it changes the number of clients
            usual = max(1, profile.settings.get("num_clients", settings["num_clients"]))
            settings["malicious"] = round(settings["malicious"] / usual * settings["num_clients"])
        expected = per_round(settings["malicious"], settings["clients_per_round"], settings["num_clients"])
        told = {"tolerate": expected, "trim": expected, "trigger": profile.trigger}
        settings |= {"rule": rule, "attack": attack}
        parts = {name: built(registry, settings[name], told) for name, registry in PARTS.items() if settings.get(name) is not None}
        return Experiment(**{**settings, "dataset": dataset, **parts})

    @property
    def needs_root(self) -> bool:
        return self.rule.needs_root or self.rule.needs_root_loss or self.attack.needs_root

    @cached_property
    def key(self) -> str:
        """Names the run's results: equal experiments have equal keys. A field that is added later with a default changes no key."""
        chosen = plain(self, lambda value, field: value != field.metadata.get("unnamed", field.default))
        return hashlib.sha256(canonical(chosen).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Every field, as JSON and TOML can hold it. Fields that were added later are left out while they have their default."""
        written: dict[str, Any] = plain(self, lambda value, field: field.name not in _LATER or value != field.default)
        return written

    def lr_at(self, t: int) -> float:
        """alpha in round t, the first of which is 1."""
        rate = self.global_lr * min(1.0, t / self.warmup) if self.warmup else self.global_lr
        for since, factor in self.lr_decay:
            rate *= factor if t >= since else 1.0
        return rate


FIELDS = {field.name: field for field in dataclasses.fields(Experiment)}
PARTS: dict[str, Registry] = {name: field.metadata["registry"] for name, field in FIELDS.items() if field.metadata["registry"] is not None}
_LATER = list(FIELDS)[list(FIELDS).index("split") :]


MEANT = {  # what people call fields elsewhere
    "clients": "num_clients",
    "n_clients": "num_clients",
    "num_malicious": "malicious",
    "num_byzantine": "malicious",
    "byzantine": "malicious",
    "lr": "global_lr",
    "learning_rate": "global_lr",
    "epochs": "local_epochs",
    "num_rounds": "rounds",
    "data": "dataset",
    "aggregator": "rule",
    "defense": "rule",
    "defence": "rule",
}


def _helpful(init: Callable[..., None]) -> Callable[..., None]:
    """Python's own words about an unknown field suggest nothing."""

    @wraps(init)
    def refuse_unknown(self: Experiment, *values: Any, **given: Any) -> None:
        for name in given:
            known("field", name, FIELDS, MEANT)
        init(self, *values, **given)

    return refuse_unknown


Experiment.__init__ = _helpful(Experiment.__init__)  # type: ignore[method-assign]


def _described() -> str:
    """The fields as the docstring lists them: numpy's style, the words from the fields themselves."""
    lines = []
    for name, field in FIELDS.items():
        registry, default = field.metadata["registry"], field.metadata.get("default", field.default)
        kind = "str" if name in ("dataset", "model") else _kind(field.type)
        if registry is not None:
            kind = registry.singular.capitalize() + (" or None" if default is None else "")
        help = field.metadata["help"] + (" It must be given." if "unnamed" in field.metadata else "")
        lines += [f"    {name} : {kind}, default {default!r}", *textwrap.wrap(help, 132, initial_indent=" " * 8, subsequent_indent=" " * 8)]
    return "\n".join(lines)


def _kind(hint: Any) -> str:
    """A type for readers: '"sum" or "mean"', 'float or None'."""
    if get_origin(hint) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(hint))
    if isinstance(hint, UnionType):
        return " or ".join("None" if part is type(None) else _kind(part) for part in get_args(hint))
    return str(hint.__name__)


if Experiment.__doc__:  # python -OO has none
    Experiment.__doc__ = Experiment.__doc__.replace("    ----------\n", f"    ----------\n{_described()}\n", 1)


def per_round(malicious: int, clients_per_round: int, num_clients: int) -> int:
    """How many malicious clients a round has: on average (participation 'pool') or always ('fixed')."""
    return round(malicious * clients_per_round / num_clients)


def from_dict(written: Mapping[str, Any]) -> Experiment:
    """An experiment from a TOML file: what it leaves out is usual on its data set, an unknown field is refused by name."""
    for name in written:
        known("field", name, FIELDS, MEANT)
    return Experiment.on(**written)


def read_experiment(path: Path) -> dict[str, Any]:
    """The fields in a TOML file, for `from_dict`."""
    return check_fields(read_toml(path), path)


def check_fields(written: dict[str, Any], source: object) -> dict[str, Any]:
    """The fields as they are; an unknown one, or one of another type, is refused with the name of the source."""
    try:
        for name in written:
            known("field", name, FIELDS, MEANT)
        checked(Experiment, written, {})
    except InputError as problem:
        raise InputError(f"{source}: {problem}") from problem
    return written


def from_declaration(written: Mapping[str, Any]) -> Experiment:
    """An experiment as `to_dict` wrote it; neither its data set nor its plug-ins need be here. A newer field had its default then."""
    for name in written:
        known("field", name, FIELDS)
    for name in ("rule", "attack"):
        _require(name not in written or written[name] is not None, f"an experiment has {name} = null")
    parts = {name: built_or_absent(registry, written[name]) for name, registry in PARTS.items() if written.get(name) is not None}
    return Experiment(**{**checked(Experiment, written, {}), **parts})


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InputError(otherwise)
