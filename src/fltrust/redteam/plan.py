"""What a red team runs, in stages: without attack, under known attacks, under the search, and then changes that might help."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fltrust.attacks.searched import aims_on
from fltrust.errors import InputError
from fltrust.experiment import Experiment, Precision, from_dict
from fltrust.options import toml_value, with_value
from fltrust.registry import RULES
from fltrust.rules import Rule
from fltrust.sweep import Grid, LeftOut, Plan, grid_of, plan

SHARES = "5,10,20,30,40,50"  # per cent
ATTACKS = ("label-flip", "trim", "alie", "min-max", "scaling")
TRIED = "anchor,fltrust,nnm+geometric-median,centred-clipping,median"
CONTROL = "fedavg"  # plain averaging: an attack that does not harm it shows nothing
MORE_ROOT = (2, 5)  # times as many root examples
MOST_ROOT = 0.2  # of the training examples
EVALUATED = 10  # rounds that are evaluated at least: the audit sees these alone

DEMO = {"dataset": "mnist-5k", "model": "logistic", "rounds": "60", "rule": "fltrust", "attack": "label-flip,trim,alie,scaling"}
DEMO_SEEDS = 2


@dataclass(frozen=True)
class Question:
    """Which rule, on which task, under what."""

    fields: Mapping[str, Any]  # of every run, but for rule, attack, malicious and seed; "attack.knowledge" is a parameter of attacks
    rules: tuple[Any, ...]  # the one in question, then its rivals
    attacks: tuple[Any, ...]
    counts: Mapping[int, float]  # malicious clients, and the share in per cent that this number stands for
    seeds: tuple[int, ...]
    points: float  # of test error, or of backdoor success, that an attack may cost
    tried: tuple[Any, ...]  # rules to try instead
    precision: Precision
    num_clients: int
    left_out: tuple[LeftOut, ...] = ()  # shares that make no sense

    @property
    def threshold(self) -> float:
        return self.points / 100


class Stage(NamedTuple):
    title: str
    runs: list[Experiment]


class Raised(LeftOut):
    """Left out because the rule or the attack raised when it was tried."""


class Change(NamedTuple):
    """Something that might help, and the runs that show whether it does."""

    what: str
    runs: list[Experiment]


# ---------------------------------------------------------------- what is asked


def question_of(
    given: Mapping[str, str], settings: Sequence[str], *, shares: str, points: float, seeds: int, tried: str, precision: Precision
) -> Question:
    """The question that options ask; a mistake in them is refused."""
    if not 0 < points <= 100:
        raise InputError(f"--points must be a number above 0 and up to 100, not {points:g}")
    grid = grid_of({}, {**given, "seeds": str(seeds)}, settings)
    values = dict(grid.values)
    if "rule" not in values:  # a red team takes long: nobody's rule is guessed
        raise InputError("name the rule to attack, such as --rule fltrust; 'fltrust list rules' shows all")
    rules, attacks = values.pop("rule"), tuple(attack for attack in values.pop("attack", ATTACKS) if attack != "none")
    for name, several in values.items():
        if len(several) > 1:
            raise InputError(f"{name} has {len(several)} values: a red team varies rule and attack alone; use 'fltrust sweep' for the rest")
        if name in ("malicious", "seed"):
            raise InputError(f"{name} cannot be set: --shares and --seeds say how many")
    fields = {name: several[0] for name, several in values.items()}
    mine = {"rule": rules[0]}
    for name in [name for name in fields if name.startswith("rule.")]:  # a parameter of the rule in question, not of its rivals
        mine = with_value(mine, name, value := fields.pop(name), f"{name}={value}")
    rules = tuple({repr(rule): rule for rule in (mine["rule"], *rules[1:])}.values())  # each once
    usual, *_ = [_clean(fields, rule, precision) for rule in rules]  # each of them is checked
    if "evaluate_every" not in fields:
        fields["evaluate_every"] = max(1, min(usual.evaluate_every, usual.rounds // EVALUATED))
    counts, left_out = counts_of(_shares(shares), usual.num_clients)
    alternatives = grid_of({}, {"rule": tried}).values["rule"] if tried != "none" else ()
    return Question(fields, rules, attacks, counts, grid.seeds, points, alternatives, precision, usual.num_clients, left_out)


def clean_run(question: Question, rule: Any = None) -> Experiment:
    """The first run without attack, of the rule in question or of a rival."""
    first = _clean(question.fields, question.rules[0] if rule is None else rule, question.precision)
    return replace(first, seed=question.seeds[0])


def _clean(fields: Mapping[str, Any], rule: Any, precision: Precision) -> Experiment:
    chosen = {name: value for name, value in fields.items() if "." not in name}
    return from_dict({**chosen, "rule": rule, "attack": "none", "malicious": 0, "precision": precision})


def _shares(text: str) -> list[float]:
    shares = [toml_value(part.strip().removesuffix("%").strip()) for part in text.split(",")]
    for share in shares:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 100:
            raise InputError(f"--shares {text}: expected per cents above 0 and below 100, such as {SHARES}")
    return sorted(set(shares))


def counts_of(shares: Iterable[float], num_clients: int) -> tuple[dict[int, float], tuple[LeftOut, ...]]:
    """How many clients each share is: as many as fit in it. A share of less than one client, or of as many as the last, is left out."""
    counts: dict[int, float] = {}
    left_out = []
    for share in shares:
        many = math.floor(share * num_clients / 100 + 1e-9)
        if many == 0:
            left_out.append(LeftOut(f"{share:g} % malicious", f"too few clients: {share:g} % of {num_clients} is less than one client"))
        elif many in counts:
            why = f"too few clients: {share:g} % of {num_clients} is {many}, as for {counts[many]:g} %"
            left_out.append(LeftOut(f"{share:g} % malicious", why))
        else:
            counts[many] = share
    if not counts:
        raise InputError(f"no share is as much as one of {num_clients} clients: {left_out[-1].why}")
    return counts, tuple(left_out)


# ---------------------------------------------------------------- the stages


def stages(question: Question) -> tuple[list[Stage], list[LeftOut]]:
    """The first three stages. Each run stands in the first stage that has it."""
    many = tuple(question.counts)
    asked: tuple[tuple[str, Callable[[Any], Sequence[Any]], tuple[int, ...]], ...] = (
        ("without attack", lambda rule: ("none", *question.attacks), (0,)),
        ("under known attacks", lambda rule: question.attacks, many),
        ("under the search", lambda rule: _searches(_clean(question.fields, rule, question.precision).rule), many),
    )
    seen: set[str] = set()
    made, left_out = [], list(question.left_out)
    for title, attacks_on, malicious in asked:
        whole = [_planned(question, question.fields, rule, attacks_on(rule), malicious) for rule in question.rules]
        runs = [run for seed in question.seeds for one in whole for run in one.runs if run.seed == seed and run.key not in seen]
        seen |= {run.key for run in runs}
        made.append(Stage(title, runs))
        left_out += [one for part in whole for one in part.left_out]
    return made, list(dict.fromkeys(left_out))


def _searches(rule: Rule) -> list[dict[str, str]]:
    return [{"name": "searched", "aim": aim} for aim in aims_on(rule)]


def _planned(question: Question, fields: Mapping[str, Any], rule: Any, attacks: Sequence[Any], malicious: Sequence[int]) -> Plan:
    """As a sweep plans it. A rule that raises is left out, and costs nothing but itself."""
    runs: list[Experiment] = []
    left_out: list[LeftOut] = []
    for attack in attacks:
        own = {name: (value,) for name, value in fields.items() if attack != "none" or not name.startswith("attack.")}
        try:
            part = plan(
                Grid({**own, "attack": (attack,), "malicious": tuple(malicious), "rule": (rule,)}, question.seeds), question.precision
            )
        except InputError as problem:
            part = Plan([], [LeftOut(f"attack {words(attack)}", str(problem))])
        except Exception as problem:  # a rule or an attack may be a user's own
            why = " ".join(f"it raised {type(problem).__name__}: {problem}".split())
            part = Plan([], [Raised(f"attack {words(attack)}", why)])
        runs += part.runs
        left_out += [one._replace(what=f"rule {words(rule)}, attack {words(attack)}{_also(one.what)}") for one in part.left_out]
    return Plan(list({run.key: run for run in runs}.values()), left_out)


def _also(what: str) -> str:
    return f", {what}" if what.startswith("malicious") else ""


def words(part: Any) -> str:
    """A rule or an attack as it was written."""
    if not isinstance(part, Mapping):
        return str(part)
    within = [words(part[name]) for name in ("rule", "attack") if name in part]
    parameters = [f"{name}={value}" for name, value in part.items() if name not in ("name", "rule", "attack")]
    return " ".join(["+".join([str(part.get("name")), *within]), *parameters])


# ---------------------------------------------------------------- what might help


def changes(
    question: Question, worst: Mapping[str, Any], malicious: int, *, broken: bool, train_examples: int
) -> tuple[list[Change], list[LeftOut]]:
    """Other rules and larger root sets, each under the worst attack on the rule and under every search on the changed rule.

    `worst`: that attack as a run declares it. `broken`: whether it broke the rule; if not, plain averaging alone is run, to see whether
    anything could be harmed at all. `train_examples`: how many a larger root set can be drawn from.
    """
    fields = {name: value for name, value in question.fields.items() if not name.startswith("attack.")}
    usual = _clean(fields, question.rules[0], question.precision)
    asked: list[tuple[str, Any, dict[str, Any]]] = []
    if broken and (usual.rule.needs_root or usual.rule.needs_root_loss):
        for times in MORE_ROOT:
            if (size := times * usual.root_size) <= MOST_ROOT * train_examples:
                asked.append((f"a root set of {size} instead of {usual.root_size}", question.rules[0], {"root_size": size}))
    known = {RULES.name_of(usual.rule)} | {words(rule) for rule in question.rules}
    for rule in (*(question.tried if broken else ()), CONTROL):
        if words(rule) not in known:
            known.add(words(rule))
            control = " (plain averaging, for comparison)" if rule == CONTROL else ""
            asked.append((f"{words(rule)} instead{control}", rule, {}))
    made, left_out = [], []
    for what, rule, changed in asked:
        clean = _planned(question, {**fields, **changed}, rule, ["none"], (0,))
        left_out += clean.left_out
        if not clean.runs:
            continue
        searches = [_with_parameters(question, search) for search in _searches(clean.runs[0].rule)]
        part = _planned(question, {**fields, **changed}, rule, [worst, *searches], (0, malicious))  # the worst may be one of them
        left_out += part.left_out
        if part.runs:
            if part.runs[0].rule.needs_root and not usual.rule.needs_root:
                what += ", which needs a root set"
            made.append(Change(what, [run for seed in question.seeds for run in part.runs if run.seed == seed]))
    return made, left_out


def most_runs(question: Question) -> int:
    """How many runs the changes have at most: each without attack, under three searches, and under the worst attack.

    If that is a backdoor, it is also measured without malicious clients.
    """
    alternatives = len(question.tried) + len(MORE_ROOT) + 1  # the last one is the control
    return len(question.seeds) * alternatives * (1 + 3 + 2)


def _with_parameters(question: Question, attack: Any) -> Any:
    """The attack with what the question sets for attacks, as far as it has such a parameter."""
    written = {"attack": attack}
    for name, value in question.fields.items():
        if name.startswith("attack."):
            written = with_value(written, name, value, f"{name}={value}")
    return written["attack"]
