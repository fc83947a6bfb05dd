"""One round, top to bottom, in the order of the paper's Algorithm 2. Read this file first.

n clients take part, the m malicious ones first; d parameters; R local steps; b examples per batch; b0 root examples.

A round is arithmetic on one (n, d) tensor, a row per client. It never waits for the device and its shapes are fixed,
so on a GPU the whole of it is captured once as a CUDA graph and replayed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.accumulate import TrustAccumulator
from fltrust.attacks import Knowledge
from fltrust.data import Task, crop_and_flip
from fltrust.experiment import Experiment
from fltrust.local import local_updates
from fltrust.rules import FLTrust, Krum


class Draw(NamedTuple):
    """What chance and the schedule decide about a round before it begins."""

    examples: Tensor  # (n, R, b): the examples of each client's batches
    share: Tensor  # (n, R, b): how much each counts in the loss
    shift: Tensor | None  # (n, R, b, 3): crop and flip of each example, where the experiment augments
    root_examples: Tensor  # (1, R, b0)
    root_share: Tensor  # (1, R, b0)
    root_shift: Tensor | None  # (1, R, b0, 3)
    sizes: Tensor  # (n,): how many examples each client says it has
    global_lr: Tensor  # (): the paper's alpha in this round


class Outcome(NamedTuple):
    weights: Tensor  # (d,): the next global model
    weight: Tensor | None  # (n,): how much of the global update is each client's
    sent: Tensor | None  # (n, d): what the server received; None where it was not kept
    root_update: Tensor | None  # (d,): None where nobody asked for it


def play_round(run: Experiment, task: Task, weights: Tensor, draw: Draw, m: int, noise: torch.Generator) -> Outcome:
    # Step I: the clients that were drawn receive the global weights (d,).

    # Step II: clients and server train from there, each on its own examples.
    sent = client_updates(run, task, weights, draw)  # (n, d)
    root_update = server_update(run, task, weights, draw) if run.needs_root else None  # (d,)

    # Malicious clients replace their updates, knowing what the threat model lets them know, and nothing else.
    if m:
        full = run.attack.knowledge == "full"
        sent[:m] = run.attack.craft(
            Knowledge(
                own=sent[:m].clone(),
                others=sent[m:] if full else None,
                root_update=root_update if full else None,
                n=len(sent),
                tolerate=run.rule.tolerate if isinstance(run.rule, Krum) else m,
                num_clients=run.num_clients,
                generator=noise,
            )
        )

    # Step III: the server aggregates what was sent and moves the global model.
    update, weight = run.rule(sent, root_update, draw.sizes)
    return Outcome(weights + draw.global_lr * update, weight, sent, root_update)


def client_updates(run: Experiment, task: Task, weights: Tensor, draw: Draw) -> Tensor:
    return _updates(run, task, weights, draw.examples, draw.share, draw.shift)


def server_update(run: Experiment, task: Task, weights: Tensor, draw: Draw) -> Tensor:
    return _updates(run, task, weights, draw.root_examples, draw.root_share, draw.root_shift)[0]


def _updates(run: Experiment, task: Task, weights: Tensor, examples: Tensor, share: Tensor, shift: Tensor | None) -> Tensor:
    images, labels = task.images[examples], task.labels[examples]
    if shift is not None:
        images = crop_and_flip(images, shift)
    return local_updates(task.model, weights, images, labels, share, run.local_lr, run.precision)


AT_ONCE = 200  # clients whose updates are in memory together, in a round of more than MANY
MANY = 1000


def in_chunks(run: Experiment, n: int) -> bool:
    """Whether a round is too large for one (n, d) tensor and need not be one: FLTrust takes updates as they come."""
    return n > MANY and type(run.rule) is FLTrust and run.attack.alone


def play_round_in_chunks(run: Experiment, task: Task, weights: Tensor, draw: Draw, m: int, noise: torch.Generator) -> Outcome:
    """The same round, some clients at a time: memory for AT_ONCE updates, however many clients there are."""
    trusted = TrustAccumulator(server_update(run, task, weights, draw))
    for first in range(0, len(draw.examples), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        shift = None if draw.shift is None else draw.shift[some]
        sent = client_updates(run, task, weights, draw._replace(examples=draw.examples[some], share=draw.share[some], shift=shift))
        if own := min(max(m - first, 0), len(sent)):
            known = Knowledge(sent[:own].clone(), None, None, len(draw.examples), m, run.num_clients, noise)
            sent[:own] = run.attack.craft(known)
        trusted.add_many(sent)
    update, weight = trusted.result()
    return Outcome(weights + draw.global_lr * update, weight, None, None)
