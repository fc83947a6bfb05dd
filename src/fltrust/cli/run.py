"""`fltrust run`: one experiment into one run directory, with a progress bar."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fltrust.attacks import ATTACKS
from fltrust.codec import read_toml
from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_dict
from fltrust.record import Record
from fltrust.rules import RULES
from fltrust.simulation import simulate
from fltrust.store.directory import RunDirectory, read_records
from fltrust.tasks.build import build_task


def run_one(
    config: Path | None, given: dict[str, Any], *, knowledge: str | None, device: str, data_dir: str | None, out: Path | None
) -> None:
    written = {**(read_toml(config) if config else {}), **given}
    if knowledge is not None:
        attack = written.get("attack", "none")
        written["attack"] = {**(attack if isinstance(attack, dict) else {"name": attack}), "knowledge": knowledge}
    run = from_dict(written)
    task = build_task(run, device=chosen_device(device, run.precision), data_dir=data_dir)
    screen = Console(stderr=True)
    for warning in task.warnings:
        screen.print(f"note: {warning}", style="yellow", highlight=False, markup=False)
    path = out or Path("runs") / run.key
    with RunDirectory(path, run, task) as directory:
        after, state = directory.resume()
        if after:
            said = "was finished already" if after == run.rounds else f"going on after round {after}"
            screen.print(f"{path}: {said}", highlight=False, markup=False)
        with watched(simulate(run, task, after=after, state=state), run, screen, after) as records:
            for record in records:
                if record.weights is not None:
                    directory.save(record)
        last = read_records(path)[-1]
    print(f"{describe(run)}: {figures(last['test_error'], last['success'])} after {last['round']} rounds; {path}")


def chosen_device(asked: str, precision: str = "float32") -> str:
    if asked not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device {asked!r}; known: auto, cpu, cuda")
    if asked == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device here: use --device cpu")
    device = "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"
    if device == "cpu" and precision != "float32":
        raise InputError(f"precision {precision} is for a GPU: a CPU computes in float32")
    return device


def describe(run: Experiment) -> str:
    return f"{run.dataset}, {RULES.name_of(run.rule)}, attack {ATTACKS.name_of(run.attack)}, seed {run.seed}"


def figures(test_error: float | None, success: float | None) -> str:
    return f"test error {test_error:.3f}" + ("" if success is None else f", backdoor success {success:.3f}")


def trust_of(record: Record) -> dict[str, float]:
    """Mean trust of the honest and of the malicious clients, of those that there are."""
    if record.trust is None or record.malicious is None:
        return {}
    sides = {"honest": record.trust[record.malicious :], "malicious": record.trust[: record.malicious]}
    return {whose: sum(side) / len(side) for whose, side in sides.items() if side}


@contextmanager
def watched(records: Iterable[Record], run: Experiment, screen: Console, after: int = 0) -> Iterator[Iterator[Record]]:
    """The same records, with a progress bar on a terminal and silence in a pipe."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}"),
    )
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        bar = progress.add_task(describe(run), total=run.rounds, completed=after, news="")

        def passing() -> Iterator[Record]:
            for record in records:
                progress.update(bar, completed=record.round)
                if record.test_error is not None:
                    trust = trust_of(record) if run.rule.needs_root else {}
                    said = "".join(f", trust {whose} {mean:.2f}" for whose, mean in trust.items())
                    progress.update(bar, news=figures(record.test_error, record.success) + said)
                yield record

        yield passing()
