"""A run as one call in Python: `fltrust.run`."""

import dataclasses
import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from fltrust.codec import built, checked
from fltrust.errors import InputError
from fltrust.experiment import FIELDS, MEANT, Experiment, per_round
from fltrust.metrics import ALWAYS
from fltrust.record import Record
from fltrust.registry import ATTACKS, METRICS, RULES, known
from fltrust.round import first_state
from fltrust.rules.rule import try_rule
from fltrust.running.loop import play
from fltrust.running.rates import RATES, with_searched_rate
from fltrust.running.sinks import ProgressBar, Sink
from fltrust.state import State
from fltrust.store.directory import RunDirectory
from fltrust.store.records import line_of, read_records
from fltrust.tasks.build import build_task
from fltrust.tasks.task import Task

OF_THE_TASK = ("model", "bias", "num_clients", "split", "root_size", "root_bias", "root_sampling", "initialisation", "standardise")
SEARCH = "search"


@dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """What a run ended with: the numbers, the history and the trained model.

    Parameters
    ----------
    experiment : Experiment
        What was run.
    task : Task
        The data and the first weights.
    records : tuple of dict
        The evaluated rounds in full, as `records.jsonl` holds them: metrics, and each client's share, trust, cosine and norm.
    model : torch.nn.Module
        The trained model, in evaluation mode, on the task's device. It takes inputs as the task holds them: pixels divided by 255.

    Examples
    --------
    >>> import fltrust
    >>> result = fltrust.run("mnist-5k", rule="fltrust", attack="trim", rounds=2, evaluate_every=1, batch_size=4)
    >>> sorted(result.metrics)
    ['test_error', 'train_error']
    >>> [row["round"] for row in result.records]
    [1, 2]
    >>> result.model(result.task.test_inputs[:3]).shape
    torch.Size([3, 10])
    """

    experiment: Experiment
    task: Task
    records: tuple[dict[str, Any], ...]
    model: nn.Module

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics after the last round, by name: test_error, train_error, success under a backdoor, and those asked for."""
        return self._metrics(self.records[-1])

    @property
    def test_error(self) -> float:
        """The error on the test examples after the last round."""
        return float(self.metrics.get("test_error", float("nan")))  # a record has no test error where it was no number

    @property
    def history(self) -> Any:
        """A row per evaluated round, a column per metric and for the mean trust of each side: a pandas DataFrame, or a list of dicts."""
        rows = [{"round": record["round"], **_numbers(self._metrics(record)), **_trust(record)} for record in self.records]
        try:
            return import_module("pandas").DataFrame(rows)
        except ImportError:
            return rows

    def _metrics(self, record: dict[str, Any]) -> dict[str, Any]:
        names = dict.fromkeys((*ALWAYS, *self.experiment.metrics))
        return {name: record[name] for name in names if record.get(name) is not None}

    def __repr__(self) -> str:
        rule, attack = RULES.name_of(self.experiment.rule), ATTACKS.name_of(self.experiment.attack)
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in _numbers(self.metrics).items())
        return f"RunResult({self.experiment.dataset}, {rule}, attack {attack}: {numbers} after {self.records[-1]['round']} rounds)"


def run(
    what: Experiment | Task | str,
    *,
    directory: str | Path | None = None,
    progress: bool = False,
    device: str | None = None,
    data_dir: str | None = None,
    **fields: Any,
) -> RunResult:
    """Runs an experiment, or trains on your own task, and returns the numbers and the trained model.

    Your own task needs a learning rate: no other data's is used. With one local step it is `global_lr`; with `local_steps` or
    `local_epochs` it is `local_lr`, and `global_lr` is 1. The loss is the mean over a batch, so the usual rates of SGD fit. The word
    "search" tries 0.01, 0.1 and 1 on the two halves of the root set, prints their errors and takes the best.

    Parameters
    ----------
    what : Experiment, Task or str
        An experiment; or your own task; or the name of a data set, whose usual experiment is run with changes in `fields`.
    directory : str, Path or None, default None
        A run directory, as `fltrust run` writes it: an interrupted run resumes there, and `fltrust report` reads it.
    progress : bool, default False
        Whether to show a progress bar.
    device : str or None, default None
        "cpu" or "cuda". None is the task's own device, or the CPU.
    data_dir : str or None, default None
        The folder of the data files; None takes the usual one.
    **fields
        Fields of `Experiment`: rule, attack, rounds, malicious, seed, batch_size, metrics ... A rule or an attack is a name, a table with
        its parameters, or a value. A task of your own has 100 rounds unless you say otherwise; `dataset` is what reports call it.

    Examples
    --------
    >>> import numpy as np, torch, fltrust
    >>> points = np.random.default_rng(0).normal(size=(600, 4))
    >>> classes = (points.sum(1) > 0).astype(int)
    >>> task = fltrust.Task.from_arrays(
    ...     points[:400], classes[:400], points[400:], classes[400:], clients=10, root=40, model=torch.nn.Linear(4, 2)
    ... )
    >>> result = fltrust.run(task, rule="fltrust", attack="trim", malicious=3, rounds=50, global_lr=0.5)
    >>> result.test_error < 0.1
    True
    >>> len(result.history)  # every fifth round
    10
    >>> result.model(torch.ones(1, 4)).argmax().item()
    1
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError('no CUDA device here: leave device out, or say device="cpu"')
    if isinstance(what, Task):
        experiment, task = _of_task(what if device is None else what.to(device), fields)
        if directory is not None and not task.files:  # so that no other arrays are taken for these when the run resumes
            task = dataclasses.replace(task, files={"arrays": task.sha256})
    elif isinstance(what, Experiment) and fields:
        raise InputError(f"the experiment says everything: change {', '.join(fields)} there, with dataclasses.replace")
    else:
        experiment = what if isinstance(what, Experiment) else Experiment.on(what, **fields)
        task = build_task(experiment, device=device or "cpu", data_dir=data_dir)
    kept = _Kept()
    path = None if directory is None else Path(directory)
    play(experiment, task, [kept, *([ProgressBar(Console(stderr=True))] if progress else [])], path=path)
    records, state = kept.records, kept.state
    if path is not None:  # also what was recorded before the run was resumed
        records = read_records(path)
        with RunDirectory(path, experiment, task) as written:
            _, state = written.resume(first_state(experiment, task))
    assert state is not None  # the last round is always evaluated
    trained = task.model.trained(state.weights.to(task.device), *task.norm_batches(experiment.batch_norm))
    return RunResult(experiment, task, tuple(records), trained)


class _Kept(Sink):
    """Keeps the evaluated rounds as a run directory would, and the last state."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.state: State | None = None

    def record(self, record: Record) -> None:
        if record.evaluated:
            self.records.append(json.loads(line_of(record)))
            self.state = record.state


def _of_task(task: Task, fields: dict[str, Any]) -> tuple[Experiment, Task]:
    """The experiment on a user's own task, and the task with its malicious clients."""
    for name in fields:
        known("field", name, FIELDS, MEANT)
        if name in OF_THE_TASK:
            raise InputError(f"the task decides {name}: it cannot be said here")
    several = fields.get("local_epochs") is not None or fields.get("local_steps", 1) != 1
    rate = "local_lr" if several else "global_lr"
    if fields.get(rate) is None:
        raise InputError(
            f'give {rate}, the learning rate: a number such as 0.1, or "{SEARCH}" to try {", ".join(f"{one:g}" for one in RATES)} on the '
            "root set; no other data's is used"
        )
    search = fields[rate] == SEARCH
    given = checked(Experiment, {**fields, **({rate: RATES[0]} if search else {})}, {})
    given["metrics"] = tuple(METRICS.entry(name).name for name in given.get("metrics", ()))
    attack = built(ATTACKS, given.pop("attack", task.attack or "none"), {})
    task = task.attacked(attack, given.pop("malicious", None), given.get("seed", 0))
    if not task.malicious and not attack.idle:
        raise InputError(f"the attack {ATTACKS.name_of(attack)!r} needs malicious clients: say malicious=..., how many of the clients are")
    number = len(task.clients)
    usual: dict[str, Any] = {
        "dataset": "own",
        "global_lr": 1.0,
        "loss": "mean",
        "rounds": 100,
        "clients_per_round": number,
        "rule": "fltrust",
    } | given
    usual.setdefault("evaluate_every", max(1, usual["rounds"] // 10))
    expected = per_round(task.malicious, usual["clients_per_round"], number)
    usual["rule"] = built(RULES, usual["rule"], {"tolerate": expected, "trim": expected})
    if refusal := try_rule(usual["rule"], usual["clients_per_round"], number):
        raise InputError(refusal)
    experiment = Experiment(
        model=type(task.model.module).__name__,
        attack=attack,
        bias=None,
        num_clients=number,
        malicious=task.malicious,
        root_size=len(task.root),
        **usual,
    )
    return with_searched_rate(experiment, task, rate) if search else experiment, task


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are one number; one number per class becomes name/0, name/1 ..."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        parts = {name: value} if not isinstance(value, list) else {f"{name}/{place}": part for place, part in enumerate(value)}
        found |= {key: part for key, part in parts.items() if isinstance(part, int | float)}
    return found


def _trust(record: dict[str, Any]) -> dict[str, float]:
    """The mean trust of honest and of malicious clients, where the round has both a root update and such clients."""
    trust, m = record["trust"], record["malicious"] or 0
    sides = {"honest_trust": trust[m:], "malicious_trust": trust[:m]} if trust is not None else {}
    return {whose: sum(one or 0 for one in side) / len(side) for whose, side in sides.items() if side}
