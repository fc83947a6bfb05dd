"""`fltrust run`: one experiment into one run directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fltrust.cli.stopping import resumable
from fltrust.errors import InputError
from fltrust.experiment import from_dict, read_experiment
from fltrust.options import assigned
from fltrust.registry import load_plugin
from fltrust.running.loggers import logger
from fltrust.running.loop import play
from fltrust.running.sinks import ProgressBar, describe, errors
from fltrust.store.records import read_records
from fltrust.tasks.build import build_task
from fltrust.training.precision import check_precision


def run_one(
    config: Path | None,
    given: dict[str, Any],
    *,
    settings: Sequence[str] = (),
    plugins: Sequence[Path] = (),
    logs: Sequence[str] = (),
    device: str = "auto",
    data_dir: str | None = None,
    out: Path | None = None,
) -> None:
    for plugin in plugins:
        load_plugin(plugin)
    run = from_dict(assigned({**(read_experiment(config) if config else {}), **given}, settings))
    loggers = [logger(choice) for choice in logs]  # a misspelt or missing one is refused before any work
    task = build_task(run, device=chosen_device(device, run.precision), data_dir=data_dir)
    screen = Console(stderr=True)
    for warning in task.warnings:
        screen.print(f"note: {warning}", style="yellow", highlight=False, markup=False)
    path = out or Path("runs") / run.key
    shown = ProgressBar(screen)
    with resumable(lambda: _stopped(shown.round, run.rounds, path)):
        play(run, task, [shown, *loggers], path=path)
    last = read_records(path)[-1]
    try:
        ended = errors(last["test_error"], last["success"])
    except (KeyError, TypeError, ValueError, OverflowError) as problem:  # of a run that was finished before
        raise InputError(f"{path / 'records.jsonl'} is damaged: round {last['round']} lacks a test error or backdoor success") from problem
    said = f"{describe(run)}: {ended} after {last['round']} rounds; {path}"
    screen.print(said, highlight=False, markup=False, soft_wrap=True) if "jsonl" in logs else print(said)


def _stopped(reached: int, rounds: int, path: Path) -> str:
    saved = max((record["round"] for record in read_records(path)), default=0)
    resumes = f"resumes after round {saved:,}, the last one saved in {path}" if saved else "starts again: no round was evaluated yet"
    return f"stopped in round {min(reached + 1, rounds):,} of {rounds:,}; the same command {resumes}"


def chosen_device(asked: str, precision: str = "float32") -> str:
    if asked not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device {asked!r}; known: auto, cpu, cuda")
    if asked == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device here: use --device cpu")
    device = "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"
    check_precision(precision, device)
    return device
