"""A learning rate for data of which none is known: three values are tried on the root set."""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.randomness import stream
from fltrust.tasks.task import Task
from fltrust.training.local import local_updates

RATES = (0.01, 0.1, 1.0)
ROUNDS = 100  # at most so many are tried
FEWEST = 4  # examples of a root set that can be halved


def with_searched_rate(run: Experiment, task: Task, name: str) -> Experiment:
    """The experiment with the rate (`global_lr` or `local_lr`) with which half of the root set predicts the other half best.

    Each half trains as the server does, and is measured on the other one: by its error, and by its loss if errors are equal. The errors
    are printed.
    """
    if len(task.root) < FEWEST:
        raise InputError(f"{name} cannot be searched on a root set of {len(task.root)} examples: give a number")
    one, other = np.array_split(stream(run.seed, "learning rate").permutation(task.root), 2)
    tried = {rate: _changed(run, **{name: rate}) for rate in RATES}
    scores = {rate: np.mean([_score(tried[rate], task, *halves) for halves in ((one, other), (other, one))], 0).tolist() for rate in RATES}
    best = min(RATES, key=scores.__getitem__)
    if scores[best][0] == math.inf:
        raise InputError(f"{name}: training diverged with {' and '.join(f'{rate:g}' for rate in RATES)}: give a smaller number")
    edge = {RATES[0]: "; a smaller one may be better", RATES[-1]: "; a larger one may be better"}.get(best, "")
    said = ", ".join(f"{rate:g} gives error {score[0]:.3f}" for rate, score in scores.items())
    print(f"{name}: tried on the two halves of the root set ({len(task.root)} examples), {said}: {best:g} is taken{edge}")
    return tried[best]


def _changed(run: Experiment, **fields: Any) -> Experiment:
    return dataclasses.replace(run, **fields)


def _score(run: Experiment, task: Task, ours: NDArray[np.int64], held_out: NDArray[np.int64]) -> tuple[float, float]:
    """Error and loss on the examples held out, of a model that was trained on ours; infinite if training diverged."""
    own, held = (torch.from_numpy(part).to(task.device) for part in (ours, held_out))
    examples = own.expand(1, run.local_epochs or run.local_steps, -1)  # (1, R, b)
    counts = torch.full(examples.shape, 1 / len(own) if run.loss == "mean" else 1.0, device=task.device)
    inputs, targets = task.inputs[examples], task.targets[examples]
    weights = task.model.initial_weights.to(task.device)
    for _ in range(min(run.rounds, ROUNDS)):
        update = local_updates(task.model, weights, inputs, targets, counts, run.local_lr, objective=task.objective)[0]
        weights = weights + run.global_lr * update
    with torch.no_grad():
        outputs = task.model.frozen(weights, task.inputs[own])(task.inputs[held])
    score = [part(outputs, task.targets[held]).mean().item() for part in (task.objective.error, task.objective.loss)]
    return (score[0], score[1]) if all(map(math.isfinite, score)) else (math.inf, math.inf)
