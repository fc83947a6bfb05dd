"""One round, top to bottom, in the order of the paper's Algorithm 2. Read this file first.

n clients take part, the m malicious ones first, of N in the federation; d parameters; R local steps; b examples per batch; the
server takes R0 steps on b0 root examples.

A round is arithmetic on one (n, d) tensor, a row per client. It is a pure function: what it must remember comes in and goes out as a
`State`. It never waits for the device and its shapes are fixed, so on a GPU the whole of it is captured once as a CUDA graph.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.attacks import attack as attacks
from fltrust.attacks.attack import Altered, Knowledge, Server
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.objectives import bounded_loss
from fltrust.rules.rows import divisor
from fltrust.rules.rule import Received, take_step
from fltrust.state import Memory, State
from fltrust.tasks.batches import crop_and_flip
from fltrust.tasks.task import Task
from fltrust.training.local import local_updates
from fltrust.training.momentum import with_momentum
from fltrust.training.optimisers import SGD, optimised

TRIED_AT_ONCE = 25  # models whose loss on the root set is computed in one pass
RELABELLED = 2_000  # examples that a model answers together
GATHERED = 100_000  # examples that are copied together for training; a client's epochs can be many


class Draw(NamedTuple):
    """What chance and the schedule decide about a round before it begins."""

    round: Tensor  # () int64: the first is 1
    client_ids: Tensor  # (n,) int64: who takes part, in ascending order, so that the malicious come first
    examples: Tensor  # (n, R, b): the examples of each client's batches
    loss_weights: Tensor  # (n, R, b): how much each counts in the loss
    shift: Tensor | None  # (n, R, b, 3): crop and flip of each example, where the experiment augments
    root_examples: Tensor  # (1, R0, b0)
    root_loss_weights: Tensor  # (1, R0, b0)
    root_shift: Tensor | None  # (1, R0, b0, 3)
    sizes: Tensor  # (n,): how many examples each client says it has
    global_lr: Tensor  # (): the paper's alpha in this round
    held_out: Tensor | None = None  # (h,): the root examples that only tell how good a model is, for a rule that holds some out
    dropout: Tensor | None = None  # (n, R, b): the seed of each example's dropout, where the model has it


class Noise(NamedTuple):
    """The round's own randomness, on the device."""

    attack: torch.Generator
    rule: torch.Generator


class Sent(NamedTuple):
    """What the server has received, and what clients and attacker remember."""

    updates: Tensor  # (n, d)
    root_update: Tensor | None  # (d,): None where nobody asked for it
    clients: Memory
    attack: Memory


class Outcome(NamedTuple):
    shares: Tensor | None  # (n,): how much of the global update is each client's
    sent: Tensor | None  # (n, d): what the server received; None where it was not kept
    root_update: Tensor | None  # (d,): None where nobody asked for it
    peak: Tensor  # (): the global update's largest absolute value; not finite where the rule returned something else than numbers


def first_state(run: Experiment, task: Task, weights: Tensor | None = None) -> State:
    """All that the first round needs."""
    weights = (task.model.initial_weights if weights is None else weights).to(task.device).clone()
    like = torch.empty_like(weights)
    momentum = like.new_zeros(run.num_clients, task.model.d) if run.client_momentum else ()
    return State(
        weights=weights,
        rule=run.rule.init(run.num_clients, like),
        attack=run.attack.init(run.num_clients, like),
        clients=momentum,
        server=(run.server or SGD()).init(like),
    )


def play_round(run: Experiment, task: Task, state: State, draw: Draw, m: int, noise: Noise) -> tuple[State, Outcome]:
    return aggregated(run, task, state, draw, train(run, task, state, draw, m, noise), noise)


def train(run: Experiment, task: Task, state: State, draw: Draw, m: int, noise: Noise) -> Sent:
    """The round up to what the server receives."""
    # Step I: the clients that were drawn receive the global weights (d,).

    # Step II: clients and server train from there, each on its own examples.
    server = on_the_side(task.device, lambda: server_update(run, task, state.weights, draw) if run.needs_root else None)
    sent = client_updates(run, task, state.weights, draw, m)  # (n, d)
    root_update = server()  # (d,)
    sent, clients = with_momentum(run, sent, draw.client_ids, state.clients)

    # Malicious clients replace their updates, knowing what the threat model lets them know, and nothing else.
    attack = state.attack
    if m and run.attack.crafts:
        if run.client_momentum:
            sent = sent.clone()  # clients remember what they computed, not what was sent in their name
        full = run.attack.knowledge == "full"
        known = Knowledge(
            own=sent[:m].clone(),
            others=sent[m:] if full else None,
            root_update=root_update if full else None,
            n=len(sent),
            tolerate=getattr(run.rule, "tolerate", m),
            num_clients=run.num_clients,
            generator=noise.attack,
            client_ids=draw.client_ids,
            round=draw.round,
            weights=state.weights,
            global_lr=draw.global_lr,
            server=Server(run.rule, state.rule, draw.sizes, *_root_asked(run, task, draw)) if full else Server(run.rule),
            own_loss=lambda models, *altered: _losses(
                task, draw.examples[:m, 0].flatten(), draw.loss_weights[:m, 0].flatten(), models, *altered
            ),
        )
        sent[:m], attack = attacks.take_step(run.attack, known, state.attack)
    return Sent(sent, root_update, clients, attack)


def on_the_side(device: torch.device, work: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
    """What to call for the work's result. A GPU begins it at once, beside what comes next: the few root examples leave most of it idle."""
    if device.type != "cuda":
        return work
    side, main = _side_stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        result = work()

    def wait() -> Tensor | None:
        main.wait_stream(side)
        if result is not None:
            result.record_stream(main)
        return result

    return wait


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def aggregated(run: Experiment, task: Task, state: State, draw: Draw, sent: Sent, noise: Noise) -> tuple[State, Outcome]:
    """The rest of the round: the state after it, and what there is to report."""
    # Step III: the server aggregates what was sent and moves the global model.
    root_loss, root_update_from = _root_asked(run, task, draw)
    received = Received(
        updates=sent.updates,
        root_update=sent.root_update,
        sizes=draw.sizes,
        client_ids=draw.client_ids,
        round=draw.round,
        generator=noise.rule,
        weights=state.weights,
        root_loss=root_loss,
        global_lr=draw.global_lr,
        root_update_from=root_update_from,
    )
    aggregate, rule = take_step(run.rule, received, state.rule)
    weights, server, peak = moved(run, state, aggregate.update, draw.global_lr)
    return State(weights, rule, sent.attack, sent.clients, server), Outcome(aggregate.shares, sent.updates, sent.root_update, peak)


def client_updates(run: Experiment, task: Task, weights: Tensor, draw: Draw, m: int) -> Tensor:
    with task.model.dropping(draw.dropout):
        return _updates(run, task, weights, draw.examples, draw.loss_weights, draw.shift, m if run.attack.relabels else 0)


def server_update(run: Experiment, task: Task, weights: Tensor, draw: Draw) -> Tensor:
    return _updates(run, task, weights, draw.root_examples, draw.root_loss_weights, draw.root_shift)[0]


def _updates(
    run: Experiment, task: Task, weights: Tensor, examples: Tensor, loss_weights: Tensor, shift: Tensor | None, relabel: int = 0
) -> Tensor:
    """What clients compute (n, d), the first `relabel` of them on labels of the attack's."""
    if run.local_epochs and len(examples) > 1 and examples.numel() > GATHERED:
        at_once = max(1, GATHERED // examples[0].numel())
        shifts = [None] * len(examples) if shift is None else torch.split(shift, at_once)
        counts = [min(max(relabel - first, 0), at_once) for first in range(0, len(examples), at_once)]
        parts = zip(torch.split(examples, at_once), torch.split(loss_weights, at_once), shifts, counts, strict=False)
        return torch.cat([_updates(run, task, weights, *part) for part in parts])
    inputs, targets = task.inputs[examples], task.targets[examples]
    if shift is not None:
        inputs = crop_and_flip(inputs, shift)
    if relabel:
        targets = torch.cat((_relabelled(run, task, weights, inputs[:relabel], targets[:relabel]), targets[relabel:]))
    return local_updates(task.model, weights, inputs, targets, loss_weights, run.local_lr, run.precision, task.objective)


@torch.no_grad()
def _relabelled(run: Experiment, task: Task, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """The targets (m, R, b, ...) that malicious clients train on, which depend on the model that they were sent."""
    # Batch norm must see each batch by itself.
    parts = inputs.flatten(0, 1).unbind() if task.model.has_batch_norm else torch.split(inputs.flatten(0, 2), RELABELLED)
    outputs = torch.cat([task.model.outputs(weights, part) for part in parts])
    return attacks.relabelled(run.attack, targets.flatten(0, 2), outputs).view(targets.shape)


def _root_asked(run: Experiment, task: Task, draw: Draw) -> tuple[Callable[[Tensor], Tensor] | None, Callable[[Tensor], Tensor] | None]:
    """What the rule may ask about other models: their losses, and the root update from one; None where it asks for none."""
    root_loss = (lambda models: root_losses(task, draw, models)) if run.rule.needs_root_loss else None
    root_update_from = (lambda weights: server_update(run, task, weights, draw)) if run.rule.holds_out else None
    return root_loss, root_update_from


def root_losses(task: Task, draw: Draw, models: Tensor) -> Tensor:
    """The mean loss (k,) of models (k, d) on the round's root examples; if some are held out, on these, each loss bounded."""
    if draw.held_out is not None:
        return _losses(task, draw.held_out, torch.ones_like(draw.held_out), models, bound=True)
    return _losses(task, draw.root_examples[0, 0], draw.root_loss_weights[0, 0], models)


def _losses(task: Task, examples: Tensor, counts: Tensor, models: Tensor, altered: Altered | None = None, bound: bool = False) -> Tensor:
    """The mean loss (k,) of models (k, d), 0 if no example counts; `counts` is 0 for examples that only fill up a batch."""
    inputs, targets = task.inputs[examples], task.targets[examples]
    if altered is not None:
        inputs, targets, which = altered(inputs, targets)
        counts = counts * which
    total = divisor(counts.sum())

    def loss(weights: Tensor) -> Tensor:
        losses = task.objective.loss(task.model.outputs(weights, inputs), targets)
        return ((bounded_loss(losses) if bound else losses) * counts).sum() / total

    losses: Tensor = torch.func.vmap(loss, chunk_size=TRIED_AT_ONCE)(models)
    return losses


def moved(run: Experiment, state: State, update: Tensor, global_lr: Tensor) -> tuple[Tensor, Memory, Tensor]:
    """The next global weights (d,), the server optimiser's next memory, and the update's largest absolute value ()."""
    peak: Tensor = torch.linalg.vector_norm(update, torch.inf)
    if run.server is None:
        return state.weights + global_lr * update, state.server, peak
    direction, server = optimised(run.server, update, state.server)
    return state.weights + global_lr * direction, server, peak


AT_ONCE = 200  # clients whose updates are in memory together, in a round of more than MANY
MANY = 1000


def in_chunks(run: Experiment, n: int) -> bool:
    """Whether a round is too large for one (n, d) tensor and need not be one: the rule takes updates as they come."""
    streams = run.rule.streamed(torch.ones(1)) is not None
    return n > MANY and streams and run.attack.independent and not run.attack.has_memory and not run.client_momentum


def play_round_in_chunks(run: Experiment, task: Task, state: State, draw: Draw, m: int, noise: Noise) -> tuple[State, Outcome]:
    """The same round, some clients at a time: memory for AT_ONCE updates, however many clients there are."""
    accumulator = run.rule.streamed(server_update(run, task, state.weights, draw))
    if accumulator is None:
        raise InputError(f"{type(run.rule).__name__} needs all updates at once")
    attack = state.attack
    for first in range(0, len(draw.examples), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        shift = None if draw.shift is None else draw.shift[some]
        part = draw._replace(examples=draw.examples[some], loss_weights=draw.loss_weights[some], shift=shift)
        own = min(max(m - first, 0), len(part.examples))
        sent = client_updates(run, task, state.weights, part, own)
        if run.attack.crafts and own:
            known = Knowledge(
                own=sent[:own].clone(),
                others=None,
                root_update=None,
                n=len(draw.examples),
                tolerate=getattr(run.rule, "tolerate", m),
                num_clients=run.num_clients,
                generator=noise.attack,
                client_ids=draw.client_ids[some],
                round=draw.round,
                weights=state.weights,
                global_lr=draw.global_lr,
            )
            sent[:own], attack = attacks.take_step(run.attack, known, attack)
        accumulator.add_many(sent)
    update, shares = accumulator.result()
    weights, server, peak = moved(run, state, update, draw.global_lr)
    return state._replace(weights=weights, attack=attack, server=server), Outcome(shares, None, None, peak)
