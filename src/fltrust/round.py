"""One round, top to bottom, in the order of the paper's Algorithm 2. Read this file first.

n clients take part, the m malicious ones first; d parameters; R local steps; b examples per batch; b0 root examples.

A round is arithmetic on one (n, d) tensor, a row per client. It never waits for the device and its shapes are fixed,
so on a GPU the whole of it is captured once as a CUDA graph and replayed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.attacks import Knowledge
from fltrust.data import Task, crop_and_flip
from fltrust.experiment import Experiment
from fltrust.local import local_updates


class Draw(NamedTuple):
    """What chance and the schedule decide about a round before it begins."""

    examples: Tensor  # (n, R, b): the examples of each client's batches
    share: Tensor  # (n, R, b): how much each counts in the loss
    shift: Tensor | None  # (n, R, b, 3): crop and flip of each example, where the experiment augments
    root_examples: Tensor  # (1, R, b0)
    root_share: Tensor  # (1, R, b0)
    sizes: Tensor  # (n,): how many examples each client says it has
    global_lr: Tensor  # (): the paper's alpha in this round


class Outcome(NamedTuple):
    weights: Tensor  # (d,): the next global model
    sent: Tensor  # (n, d): what the server received
    root_update: Tensor | None  # (d,)
    weight: Tensor | None  # (n,): how much of the global update is each client's


def play_round(run: Experiment, task: Task, weights: Tensor, draw: Draw, m: int, noise: torch.Generator) -> Outcome:
    # Step I: the clients that were drawn receive the global weights (d,).

    # Step II: clients and server train from there, each on its own examples.
    images, labels = task.images[draw.examples], task.labels[draw.examples]
    if draw.shift is not None:
        images = crop_and_flip(images, draw.shift)
    sent = local_updates(task.model, weights, images, labels, draw.share, run.local_lr)  # (n, d)
    root_update = None
    if run.needs_root:
        root_images, root_labels = task.images[draw.root_examples], task.labels[draw.root_examples]
        root_update = local_updates(task.model, weights, root_images, root_labels, draw.root_share, run.local_lr)[0]  # (d,)

    # Malicious clients replace their updates, knowing what the threat model lets them know, and nothing else.
    if m:
        full = run.attack.knowledge == "full"
        sent[:m] = run.attack.craft(
            Knowledge(
                own=sent[:m].clone(),
                others=sent[m:] if full else None,
                root_update=root_update if full else None,
                n=len(sent),
                tolerate=m,
                num_clients=run.num_clients,
                generator=noise,
            )
        )

    # Step III: the server aggregates what was sent and moves the global model.
    update, weight = run.rule(sent, root_update, draw.sizes)
    return Outcome(weights + draw.global_lr * update, sent, root_update, weight)
