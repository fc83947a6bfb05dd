"""What is kept of a finished run: one small file with its declaration, its numbers and its curves.

results/DATASET/RULE-ATTACK-KEY.json holds the experiment, the data files' hashes, versions, hardware, the final figures, the error at each
evaluated round, and for FLTrust the trust of each client (thinned): enough for every table, figure and picture of the report.
"""

import base64
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from fltrust.attacks import ATTACKS
from fltrust.codec import built_or_absent
from fltrust.errors import InputError
from fltrust.experiment import Experiment, Precision, from_declaration
from fltrust.registry import Absent, plugin_files
from fltrust.rules import RULES, Rule
from fltrust.store.files import read_json, replace
from fltrust.store.records import ABOUT, Run, read_run

TRUST_POINTS = 20  # evaluated rounds whose trust is kept
MOST_CLIENTS = 1 << 20  # of a simulation, which has a row of them for each of those
_STEPS = 250  # a trust is one byte, in steps of 1/250; 255 is a client that was not there
_ABSENT = 255


@dataclass(frozen=True)
class Federation:
    """What a run on Flower declares. Its data are the nodes' own, and nobody knows which of them are malicious."""

    key: str
    rule: Rule
    seed: int | None  # None: nobody can repeat which nodes were drawn
    num_clients: int  # nodes that were asked at least once
    rounds: int  # so far
    declared: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    names: tuple[str, ...] = ()  # of the nodes in the order of their ids, where somebody looked them up


@dataclass(frozen=True)
class Curves:
    """What remains of a run, of a simulation (then it is a `Result`) or of a federation."""

    run: Experiment | Federation
    about: Mapping[str, Any]  # files, warnings, versions, hardware
    seconds: float | None  # None for a run that was interrupted and resumed
    rounds: tuple[int, ...]  # those that were evaluated
    train_error: tuple[float, ...]  # empty for a federation
    test_error: tuple[float, ...]
    success: tuple[float, ...] | None  # of a backdoor
    trust_rounds: tuple[int, ...] = ()
    trust: tuple[tuple[float | None, ...], ...] = ()  # a row per trust round: each client's, the malicious first; None where absent
    metrics: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # the other metrics by name: a value per evaluated round

    @property
    def error(self) -> float:
        return self.test_error[-1]

    @property
    def final_success(self) -> float | None:
        return None if self.success is None else self.success[-1]


@dataclass(frozen=True)
class Result(Curves):
    """What remains of a simulation: what tables and figures are made of."""

    run: Experiment
    declared: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)  # the experiment as an earlier version wrote it
    file: Path | None = field(default=None, compare=False, repr=False)  # where it was read; its name has the key that it had then


UNFINISHED = ".unfinished"  # in a folder of results: run directories of runs that are under way, or were cut off


def file_of(run: Experiment, folder: Path) -> Path:
    data = re.sub(r"[^\w.-]+", "-", run.dataset).strip(".-") or "own"  # one's own data are called by their path
    return folder / data / f"{RULES.name_of(run.rule)}-{ATTACKS.name_of(run.attack)}-{run.key}.json"


def distil(directory: Path, seconds: float | None = None) -> Curves:
    """The result of a run directory, finished or not."""
    run = read_run(directory)
    records = [record for record in run.records if record.get("test_error") is not None]
    if not records:
        raise InputError(f"{directory} holds no evaluated round yet")
    try:
        return _of_federation(run, records) if run.kind == "federation" else _of_simulation(run, records, seconds)
    except InputError:
        raise
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise InputError(f"{directory} is damaged: {type(problem).__name__} {problem}") from problem


def _of_simulation(stored: Run, records: list[dict[str, Any]], seconds: float | None) -> Result:
    run = _experiment(stored.declared, stored.path)
    if run.num_clients > MOST_CLIENTS:
        raise InputError(f"{stored.path} declares {run.num_clients:,} clients: at most {MOST_CLIENTS:,} can be read")
    kept = _thinned([record for record in records if record.get("cosine") is not None]) if run.rule.needs_root else []
    return Result(
        run=run,
        about=stored.about,
        seconds=seconds,
        rounds=tuple(record["round"] for record in records),
        train_error=tuple(record["train_error"] for record in records),
        test_error=tuple(record["test_error"] for record in records),
        success=None if records[-1]["success"] is None else tuple(record["success"] for record in records),
        trust_rounds=tuple(record["round"] for record in kept),
        trust=tuple(_by_client(record, run.num_clients) for record in kept),
        metrics={name: tuple(record.get(name) for record in records) for name in run.metrics if name not in _COLUMNS},
    )


_COLUMNS = ("train_error", "test_error", "success")  # have a field of their own


def _of_federation(stored: Run, records: list[dict[str, Any]]) -> Curves:
    """The server measures the test error alone. A rejected reply has no trust, which is not the same as trust 0."""
    rule = built_or_absent(RULES, stored.declared["rule"])
    nodes = sorted({node for record in stored.records for node in record["clients"]})
    place = {node: i for i, node in enumerate(nodes)}
    kept = _thinned(records) if rule.needs_root else []
    trust = []
    for record in kept:
        row: list[float | None] = [None] * len(nodes)
        for node, scored in zip(record["clients"], record["trust"], strict=True):
            row[place[node]] = None if scored is None else max(0.0, float(scored))
        trust.append(tuple(row))
    rounds = tuple(record["round"] for record in records)
    seed = stored.declared["seed"]
    took = [record["seconds"] for record in stored.records if isinstance(record.get("seconds"), int | float)]
    return Curves(
        run=Federation(stored.key, rule, None if seed is None else int(seed), len(nodes), rounds[-1], stored.declared),
        about=stored.about,
        seconds=sum(took) if len(took) == len(stored.records) else None,
        rounds=rounds,
        train_error=(),
        test_error=tuple(record["test_error"] for record in records),
        success=None,
        trust_rounds=tuple(record["round"] for record in kept),
        trust=tuple(trust),
    )


def _thinned(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return records[:: -(-(-len(records) // TRUST_POINTS) or 1)][::-1]  # the last round is among them


def _by_client(record: Mapping[str, Any], num_clients: int) -> tuple[float | None, ...]:
    trust: list[float | None] = [None] * num_clients
    for client, cosine in zip(record["clients"], record["cosine"], strict=True):
        if client < 0:
            raise IndexError(client)
        trust[client] = max(0.0, cosine or 0.0)
    return tuple(trust)


def write(result: Result, folder: Path) -> Path:
    path = file_of(result.run, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, to_json(result).encode())
    return path


def to_json(result: Result) -> str:
    def short(values: Iterable[float]) -> list[float]:
        return [round(value, 5) for value in values]

    content: dict[str, Any] = {
        "key": result.run.key,
        "error": round(result.error, 5),
        "success": None if result.final_success is None else round(result.final_success, 5),
        "seconds": None if result.seconds is None else round(result.seconds, 1),
        **result.about,
        "experiment": _declaration(result),
        "rounds": list(result.rounds),
        "train_error_curve": short(result.train_error),
        "test_error_curve": short(result.test_error),
        "success_curve": None if result.success is None else short(result.success),
        "trust_rounds": list(result.trust_rounds),
        "trust": [_packed(row) for row in result.trust],
    }
    if result.metrics:
        content["metrics"] = {name: _rounded(curve) for name, curve in result.metrics.items()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    return "{\n" + lines + "\n}\n"


def from_json(content: Mapping[str, Any], source: object) -> Result:
    run = _experiment(content.get("experiment"), source)
    try:
        if content["key"] != run.key and not _absent(run) and not _plugin_changed(run, content["files"]):
            raise InputError(f"its key is {content['key']!r}, its experiment's {run.key}")
        result = Result(
            run=run,
            declared=content["experiment"],
            file=source if isinstance(source, Path) else None,
            about={name: content[name] for name in ABOUT},
            seconds=content["seconds"],
            rounds=tuple(content["rounds"]),
            train_error=tuple(content["train_error_curve"]),
            test_error=tuple(content["test_error_curve"]),
            success=None if content["success_curve"] is None else tuple(content["success_curve"]),
            trust_rounds=tuple(content["trust_rounds"]),
            trust=tuple(_unpacked(row) for row in content["trust"]),
            metrics={name: tuple(curve) for name, curve in content.get("metrics", {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise InputError(f"{source} is no result of a run: {problem}") from problem
    curves = [result.train_error, result.test_error, *([] if result.success is None else [result.success]), *result.metrics.values()]
    if not result.rounds or any(len(curve) != len(result.rounds) for curve in curves) or len(result.trust) != len(result.trust_rounds):
        raise InputError(f"{source} is no result of a run: its curves have different lengths")
    return result


def read(folder: Path) -> "Results":
    """All results below a folder; other files, such as a run directory's, are none."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no directory with results")
    return Results(from_json(read_json(path), path) for path in sorted(folder.glob("*/*-????????????????.json")))


_EXACT_FIRST = get_args(Precision)


class Results:
    """Results by experiment. The arithmetic is not part of the question: where several answered it, the most exact one counts."""

    def __init__(self, results: Iterable[Result] = ()) -> None:
        self._by_experiment: dict[str, dict[int, dict[str, Result]]] = {}  # its key with the first seed -> seed -> arithmetic
        for result in results:
            self.add(result)

    def add(self, result: Result) -> None:
        run = result.run
        self._by_experiment.setdefault(first_seed(run).key, {}).setdefault(run.seed, {})[run.precision] = result

    def of(self, run: Experiment) -> Result | None:
        return _most_exact(self._answers(run))

    def seeds(self, run: Experiment) -> list[Result]:
        """The results of the same experiment with every seed that was run, in the order of the seeds."""
        by_seed = self._by_experiment.get(first_seed(run).key, {})
        return [answer for _, answers in sorted(by_seed.items()) if (answer := _most_exact(answers))]

    def all(self) -> list[Result]:
        return [result for by_seed in self._by_experiment.values() for answers in by_seed.values() for result in answers.values()]

    def done(self, run: Experiment) -> bool:
        """Whether this experiment was run in this arithmetic or a more exact one."""
        return any(precision in self._answers(run) for precision in _EXACT_FIRST[: _EXACT_FIRST.index(run.precision) + 1])

    def _answers(self, run: Experiment) -> Mapping[str, Result]:
        return self._by_experiment.get(first_seed(run).key, {}).get(run.seed, {})


def _most_exact(answers: Mapping[str, Result]) -> Result | None:
    return next((answers[precision] for precision in _EXACT_FIRST if precision in answers), None)


def first_seed(run: Experiment) -> Experiment:
    """The run as a cell of a table declares it."""
    return dataclasses.replace(run, seed=0, precision="float32")


def _experiment(written: object, source: object) -> Experiment:
    if not isinstance(written, Mapping):
        raise InputError(f"{source} declares no experiment")
    try:
        return from_declaration(written)
    except InputError as problem:
        raise InputError(f"{source}: {problem}") from problem


def _declaration(result: Result) -> Mapping[str, Any]:
    """What was read is written again as it was, with the fields that there were."""
    same = result.declared is not None and from_declaration(result.declared) == result.run
    return result.declared if result.declared is not None and same else result.run.to_dict()


def _absent(run: Experiment) -> bool:
    """Whether the plug-in of a part is not loaded: it alone knows which parameters have their default."""
    return any(isinstance(part, Absent) for part in (run.rule, run.attack, run.split, run.server))


def _plugin_changed(run: Experiment, files: Mapping[str, str]) -> bool:
    """Whether a plug-in that defines a part of the run was another one when it ran: a key leaves out the defaults that it had then."""
    now = plugin_files(*map(type, (*RULES.layers(run.rule), run.attack, run.split, run.server)))
    return any(files.get(name) != sha256 for name, sha256 in now.items())


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value


def _packed(row: Iterable[float | None]) -> str:
    return base64.b64encode(bytes(_ABSENT if trust is None else round(min(trust, 1.0) * _STEPS) for trust in row)).decode()


def _unpacked(row: str) -> tuple[float | None, ...]:
    return tuple(None if byte == _ABSENT else byte / _STEPS for byte in base64.b64decode(row, validate=True))
