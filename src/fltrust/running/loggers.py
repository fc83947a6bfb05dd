"""Where a run's numbers can be sent: `fltrust run --log NAME` or `--log NAME:TARGET`. A package is imported only if its logger is used.

A logger of one's own is a registered class; it is made with the text after the colon (or None):

    @LOGGERS.register("mine")
    class Mine(Sink): ...
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.registry import LOGGERS
from fltrust.running.sinks import Sink, by_side, describe, trust_of
from fltrust.store.files import naming
from fltrust.store.records import line_of, lines


def logger(choice: str) -> Sink:
    """The logger that NAME or NAME:TARGET stands for."""
    name, _, target = choice.partition(":")
    made: Sink = LOGGERS.entry(name).kind(target or None)
    return made


@LOGGERS.register("jsonl", label="JSON lines")
class JsonLines(Sink):
    """A line of JSON per evaluated round, as in records.jsonl, to the standard output or to the file TARGET."""

    def __init__(self, target: str | None) -> None:
        self._target = None if target is None else Path(target)
        self._file: IO[str] = sys.stdout

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        if self._target is not None:
            kept = [line.decode() for record, line in lines(self._target) if record["round"] <= after] if after else []
            self._file = self._target.open("w")
            self._file.writelines(kept)

    def record(self, record: Record) -> None:
        if record.evaluated:
            with naming(self._target or Path("standard output")):
                self._file.write(line_of(record).decode())
                self._file.flush()  # whoever reads the stream sees each round when it happens

    def close(self) -> None:
        if self._target is not None:
            self._file.close()


@LOGGERS.register("tensorboard", label="TensorBoard")
class TensorBoard(Sink):
    """TensorBoard event files in the folder TARGET (default: 'tensorboard' in the run directory)."""

    def __init__(self, target: str | None) -> None:
        _needs("tensorboard")
        self._target = target

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        folder = self._target or str((path or Path()) / "tensorboard")
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(folder, purge_step=after + 1 if after else None)  # hides what an interrupted run wrote beyond
        self._writer.add_text("experiment", "\n".join(f"    {name} = {value}" for name, value in parameters(run).items()))

    def record(self, record: Record) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        self._writer.close()


@LOGGERS.register("mlflow", label="MLflow")
class MLflow(Sink):
    """An MLflow run in the experiment 'fltrust', on the tracking server TARGET (default: MLFLOW_TRACKING_URI, or MLflow's own)."""

    def __init__(self, target: str | None) -> None:
        self._mlflow, self._target, self._finished = _needs("mlflow"), target, False

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        self._rounds = run.rounds
        with _named("mlflow"):
            self._client = self._mlflow.MlflowClient(self._target)
            if after and (earlier := _id_file(path, "mlflow")).exists():
                self._id = earlier.read_text()
                self._client.update_run(self._id, "RUNNING")
                self._client.set_tag(self._id, "fltrust.key", run.key)  # another one if more rounds extend the run
                return
            found = self._client.get_experiment_by_name("fltrust")
            experiment = found.experiment_id if found else self._client.create_experiment("fltrust")
            self._id = self._client.create_run(experiment, run_name=describe(run), tags={"fltrust.key": run.key}).info.run_id
            params = [self._mlflow.entities.Param(name, str(value)) for name, value in parameters(run).items()]
            self._client.log_batch(self._id, params=params)
        if path is not None:
            _id_file(path, "mlflow").write_text(self._id)

    def record(self, record: Record) -> None:
        if record.evaluated:
            now = int(1000 * time.time())
            metrics = [self._mlflow.entities.Metric(name, value, now, record.round) for name, value in scalars(record).items()]
            with _named("mlflow"):
                self._client.log_batch(self._id, metrics=metrics)
            self._finished = record.round == self._rounds

    def close(self) -> None:
        with _named("mlflow"):
            self._client.set_terminated(self._id, "FINISHED" if self._finished else "KILLED")


@LOGGERS.register("wandb", label="Weights & Biases")
class WandB(Sink):
    """A Weights & Biases run in the project TARGET (default: fltrust). WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, target: str | None) -> None:
        self._wandb, self._project, self._finished = _needs("wandb"), target or "fltrust", False

    def start(self, run: Experiment, after: int, path: Path | None) -> None:
        self._rounds = run.rounds
        earlier = _id_file(path, "wandb").read_text() if after and _id_file(path, "wandb").exists() else None
        with _named("wandb"):
            self._run = self._wandb.init(
                project=self._project,
                name=describe(run),
                id=earlier,
                resume="allow" if earlier else None,
                config=parameters(run),
                dir=None if path is None else str(path),
            )
        if path is not None:
            _id_file(path, "wandb").write_text(self._run.id)

    def record(self, record: Record) -> None:
        if record.evaluated:
            with _named("wandb"):
                self._run.log(scalars(record), step=record.round)
            self._finished = record.round == self._rounds

    def close(self) -> None:
        self._run.finish(exit_code=0 if self._finished else 1)


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record by name: metrics, a metric per class as name/0, name/1 ..., and shares and trust of each side."""
    found: dict[str, float] = {}
    for name, value in record.metrics.items():
        if isinstance(value, int | float):
            found[name] = value
        elif isinstance(value, list | tuple):
            found |= {f"{name}/{place}": item for place, item in enumerate(value) if isinstance(item, int | float)}
    found |= {f"trust/{whose}": mean for whose, mean in trust_of(record).items()}
    if record.shares is not None:
        found |= {f"shares/{whose}": sum(side) for whose, side in by_side(record, record.shares).items()}
    return found


def parameters(run: Experiment) -> dict[str, Any]:
    """An experiment's fields by name, those of its parts as rule.name, rule.tolerate ..."""

    def flat(written: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in written.items():
            found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
        return found

    return {"key": run.key, **flat(run.to_dict())}


def _id_file(path: Path | None, name: str) -> Path:
    """Where a run directory remembers the run's name on a tracking server, to go on with it there."""
    return (path or Path()) / f"{name}-run.txt"


def _needs(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as problem:
        raise InputError(f"--log {package} needs the package {package}: pip install 'fltrust[{package}]'") from problem


@contextmanager
def _named(name: str) -> Iterator[None]:
    """A tracking server that cannot be reached is a line, not a traceback."""
    try:
        yield
    except Exception as problem:  # each package has its own
        raise InputError(f"--log {name}: {type(problem).__name__}: {problem}; the same command without it resumes the run") from problem
