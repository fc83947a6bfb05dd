"""How many malicious clients each rule survives: runs sorted into boards, lines and points, and where a line breaks.

A board is a data set with the settings that its runs share. A line is a rule under an attack. A point is a number of malicious clients,
with a result for each seed. Harm is what an attack adds: to the test error of the same rule without attack, or to the backdoor's success.
"""

import dataclasses
import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fltrust.codec import canonical, plain
from fltrust.experiment import Experiment, per_round
from fltrust.registry import ATTACKS, RULES, Absent, Registry
from fltrust.report.agreement import Number
from fltrust.store.results import Result, Results

THRESHOLD = 0.05  # harm up to which a rule counts as unharmed
_ROUNDING = 1e-9  # 0.1 - 0.05 is a little more than 0.05


@dataclass(frozen=True)
class Point:
    malicious: int
    results: tuple[Result, ...]  # by seed
    borrowed: bool = False  # run with another attack, which did nothing

    @functools.cached_property
    def error(self) -> Number:
        """On the test examples."""
        return Number(tuple(one.error for one in self.results), None, 0.0)

    @functools.cached_property
    def success(self) -> Number | None:
        """Of a backdoor, or of another targeted attack."""
        ours = () if self.borrowed else tuple(one.final_success for one in self.results if one.final_success is not None)
        return Number(ours, None, 0.0) if ours else None


class Survival(NamedTuple):
    most: int  # malicious clients up to which every tested number leaves the rule unharmed
    breaks: int | None  # the first number that harms it; None if none that was tested does


@dataclass(frozen=True)
class Line:
    """One rule under one attack."""

    rule: str
    attack: str
    idle: bool  # nobody attacks
    points: tuple[Point, ...]  # by the number of malicious clients
    clean: Point | None  # the same rule without attack

    def harm(self, point: Point) -> float | None:
        """What the attack adds to the error, or to the success if that is more; None if nothing was run without attack."""
        if self.clean is None:
            return None
        harm = point.error.mean - self.clean.error.mean
        if point.success is not None:
            harm = max(harm, point.success.mean - (self.clean.success.mean if self.clean.success else 0.0))
        return harm

    def survival(self, threshold: float) -> Survival | None:
        """None if no malicious client ever attacked, or if nothing was run without attack."""
        tested = [(point.malicious, harm) for point in self.points if point.malicious and (harm := self.harm(point)) is not None]
        if self.idle or not tested:
            return None
        breaks = next((many for many, harm in tested if harm > threshold + _ROUNDING), None)
        return Survival(max((many for many, _ in tested if breaks is None or many < breaks), default=0), breaks)


@dataclass(frozen=True)
class Row:
    """One rule under all attacks."""

    rule: str
    known: bool  # False: its plug-in is not loaded, so nothing but its name and numbers is known
    name: str  # as it is registered
    lines: tuple[Line, ...]

    def worst(self, threshold: float) -> tuple[Survival, Line] | None:
        """The attack that it survives least; of several, the one that does most harm where the rule breaks. One that harms it is worse than
        one that was only tested with few malicious clients."""
        found = [(survival, line) for line in self.lines if (survival := line.survival(threshold))]
        return min(found, key=lambda one: (one[0].breaks is None, one[0].most, -_most_harm(one[1], one[0].breaks)), default=None)

    @property
    def clean(self) -> Point | None:
        return next((line.clean for line in sorted(self.lines, key=lambda line: not line.idle) if line.clean), None)


@dataclass(frozen=True)
class Board:
    dataset: str
    settings: str  # what tells it from other boards of the data set
    num_clients: int
    rows: tuple[Row, ...]  # the rule that survives most first
    attacks: tuple[str, ...]

    @property
    def title(self) -> str:
        return ", ".join(part for part in (self.dataset, self.settings) if part)

    @property
    def lines(self) -> list[Line]:
        return [line for row in self.rows for line in row.lines]

    @property
    def results(self) -> list[Result]:
        return list({id(one): one for line in self.lines for point in line.points for one in point.results}.values())

    @property
    def tested(self) -> list[int]:
        """The numbers of malicious clients."""
        return sorted({point.malicious for line in self.lines for point in line.points})


def _most_harm(line: Line, malicious: int | None = None) -> float:
    """At one number of malicious clients, or at any."""
    return max((line.harm(point) or 0.0 for point in line.points if malicious in (None, point.malicious)), default=0.0)


def boards(found: Results, threshold: float = THRESHOLD) -> list[Board]:
    """The boards of finished runs, by data set and settings."""
    of_board: dict[tuple[str, str], list[Result]] = {}
    for one in found.all():
        of_board.setdefault((one.run.dataset, canonical(_settings(one.run))), []).append(one)
    declared = {place: _settings(inside[0].run) for place, inside in of_board.items()}
    ordered = sorted(of_board, key=lambda place: (place[0], [_by_number(value) for _, value in sorted(declared[place].items())]))
    made = []
    for dataset, written in ordered:
        others = [settings for place, settings in declared.items() if place[0] == dataset]
        made.append(_board(dataset, _differing(declared[dataset, written], others), of_board[dataset, written], threshold))
    return made


def _settings(run: Experiment) -> dict[str, Any]:
    """What all runs of a board share."""
    return {
        name: value for name, value in run.to_dict().items() if name not in ("dataset", "rule", "attack", "seed", "precision", "malicious")
    }


def _differing(settings: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    names = dict.fromkeys(name for other in (settings, *others) for name in other)
    return ", ".join(
        f"{name} {_short(settings.get(name))}" for name in names if any(other.get(name) != settings.get(name) for other in others)
    )


def _by_number(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, canonical(value))


def _short(value: Any, most: int = 40) -> str:
    text = value if isinstance(value, str) else canonical(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _board(dataset: str, settings: str, results: Sequence[Result], threshold: float) -> Board:
    rules, attacks = _called(RULES, results), _called(ATTACKS, results)
    cells: dict[tuple[str, str], dict[int, list[Result]]] = {}
    for one in results:
        for rule in rules.of(one):
            for attack in attacks.of(one):
                cells.setdefault((rule, attack), {}).setdefault(one.run.malicious, []).append(one)
    points = {place: tuple(Point(many, _by_seed(inside)) for many, inside in sorted(at.items())) for place, at in cells.items()}
    idle = {attack for one in results if one.run.attack.idle for attack in attacks.of(one)}
    rows = []
    for rule in rules.names:
        own = {attack: points[rule, attack] for attack in attacks.names if (rule, attack) in points}
        first = rules.first[rule].run.rule
        rows.append(Row(rule, not isinstance(first, Absent), RULES.name_of(first), _lines(rule, own, idle)))
    rows.sort(key=lambda row: _place(row, threshold))
    return Board(dataset, settings, results[0].run.num_clients, tuple(rows), tuple(attacks.names))


def _lines(rule: str, own: Mapping[str, tuple[Point, ...]], idle: Collection[str]) -> tuple[Line, ...]:
    """Without malicious clients all attacks are the same run, so each line starts at that point, whichever attack it was run with."""
    without = sorted((points[0] for attack, points in own.items() if attack in idle), key=lambda point: point.malicious)
    zeros = [points[0] for points in own.values() if points[0].malicious == 0]
    zero = Point(0, zeros[0].results, borrowed=True) if zeros else None
    lines = []
    for attack, points in own.items():
        from_zero = points if points[0].malicious == 0 or zero is None else (zero, *points)
        clean = from_zero[0] if from_zero[0].malicious == 0 else without[0] if without else None
        lines.append(Line(rule, attack, attack in idle, from_zero, clean))
    return tuple(lines)


def _place(row: Row, threshold: float) -> tuple[Any, ...]:
    """Unknown rules last; then by what it survives, then by its harm, then by its error."""
    worst = row.worst(threshold)
    harm = max((_most_harm(line) for line in row.lines), default=0.0)
    error = max(point.error.mean for line in row.lines for point in line.points)
    return (not row.known, worst is None, -worst[0].most if worst else 0, harm, error)


def _by_seed(results: Iterable[Result]) -> tuple[Result, ...]:
    """One for each seed: of two arithmetics the more exact one."""
    return tuple(Results(results).seeds(next(iter(results)).run)) if results else ()


# ---------------------------------------------------------------- what rules and attacks are called

_ADAPTS = ""  # a parameter that follows the number of malicious clients, as Krum's `tolerate` does
_FOLLOW = ("tolerate", "trim")
_UNKNOWN = ""  # the default of a parameter whose plug-in is not loaded: no value equals it

Identity = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class _Called:
    names: list[str]  # in the registry's order, what is unknown last
    first: dict[str, Result]  # a run of each
    of: Callable[[Result], list[str]]


def _called(registry: Registry, results: Sequence[Result]) -> _Called:
    """The names of the rules, or of the attacks, of some runs. A run may stand on two lines: Krum told 2 and Krum told what there is."""
    following = {id(one): _identity(registry, one.run, follow=True) for one in results}
    fixed = {id(one): _identity(registry, one.run, follow=False) for one in results}
    own_lines = {fixed[place] for place, identity in following.items() if fixed[place] == identity}
    on_fixed = {id(one) for one in results if fixed[id(one)] in own_lines}
    telling = {following[id(one)] for one in results if id(one) not in on_fixed}  # those with a run that no fixed line has

    def identities(one: Result) -> list[Identity]:
        places = [fixed[id(one)]] if id(one) in on_fixed else []
        return places + ([following[id(one)]] if following[id(one)] in telling else [])

    found = {identity: one for one in reversed(results) for identity in identities(one)}
    words = _told_apart({identity: _label(registry, identity, found) for identity in found})
    order = list(registry)
    names = sorted(words.values(), key=lambda label: (_index(order, label), _natural(label)))
    return _Called(
        names, {words[identity]: one for identity, one in found.items()}, lambda one: [words[place] for place in identities(one)]
    )


def _index(order: Sequence[str], label: str) -> int:
    own = re.split(r"[+,]", label)[0]
    return order.index(own) if own in order else len(order)


def _natural(label: str) -> list[tuple[int, str]]:
    """So that 2 comes before 10."""
    return [(len(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", label)]


def _part(registry: Registry, run: Experiment) -> Any:
    return getattr(run, registry.singular)


def _identity(registry: Registry, run: Experiment, *, follow: bool) -> Identity:
    expected = canonical(per_round(run.malicious, run.clients_per_round, run.num_clients))
    part = _part(registry, run)
    written = [
        (path, _ADAPTS if follow and path.rpartition(".")[2] in _FOLLOW and value == expected else value)
        for path, (value, _) in _parameters(registry, part).items()
    ]
    return registry.name_of(part), tuple(written)


def _parameters(registry: Registry, part: Any) -> dict[str, tuple[str, str | None]]:
    """Each parameter and its default as JSON; "rule.tolerate" is one of the rule within a rule. None: it has no default."""
    if isinstance(part, Absent):
        return {name: (value, _UNKNOWN) for name, value in part.parameters}
    found = {}
    layers = registry.layers(part)
    for depth, layer in enumerate(layers):
        for field in dataclasses.fields(layer):
            if field.name == registry.singular and depth + 1 < len(layers):
                continue
            default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
            usual = None if default is dataclasses.MISSING else canonical(plain(default))
            found[f"{registry.singular}." * depth + field.name] = (canonical(plain(getattr(layer, field.name))), usual)
    return found


def _label(registry: Registry, identity: Identity, found: Mapping[Identity, Result]) -> str:
    """Its name, with the parameters that are not the usual ones."""
    name, written = identity
    usual = _parameters(registry, _part(registry, found[identity].run))
    alike = [dict(other) for other_name, other in found if other_name == name]

    def shown(path: str, value: str) -> bool:
        if value == _ADAPTS or path.rpartition(".")[2] in _FOLLOW:
            return value != _ADAPTS
        default = usual[path][1]
        if default is None or value.startswith("{"):  # a data set's trigger is usual, whatever it is
            return any(other.get(path) != value for other in alike)
        return value != default

    parameters = [f"{path} {_short(json.loads(value))}" for path, value in written if shown(path, value)]
    return _short(", ".join((_short(name), *parameters)), 100)


def _told_apart(labels: Mapping[Identity, str]) -> dict[Identity, str]:
    """Long values are cut, and what is cut may be alike."""
    seen: Counter[str] = Counter()
    apart = {}
    for identity, label in labels.items():
        seen[label] += 1
        apart[identity] = label if seen[label] == 1 else f"{label} ({seen[label]})"
    return apart
