"""An experiment becomes records, one per round: the loop around `round.py`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fltrust import datasets
from fltrust.attacks import Attack
from fltrust.data import Batch, Batches, Task, draw_clients, draw_shifts, standardised
from fltrust.datasets import Examples
from fltrust.errors import InputError
from fltrust.evaluate import measure
from fltrust.experiment import PAPER, Experiment
from fltrust.models import MODELS, initialise
from fltrust.partition import partition
from fltrust.randomness import reseed, stream
from fltrust.round import Draw, Outcome, in_chunks, play_round, play_round_in_chunks
from fltrust.rules import cosines, norms

DRAWN_AHEAD = 2_000_000  # examples whose batches are drawn and copied to the device at once


@dataclass(frozen=True)
class Record:
    """What is known after a round. All but `round` is None in rounds that are not evaluated."""

    round: int
    train_error: float | None = None
    test_error: float | None = None
    success: float | None = None  # of a backdoor, where the attack has one
    malicious: int | None = None  # how many of the clients below; they come first
    clients: tuple[int, ...] | None = None
    weight: tuple[float, ...] | None = None  # each client's share of the global update; None for the coordinate-wise rules
    cosine: tuple[float, ...] | None = None  # with the root update, where there is one; trust is its positive part
    norm: tuple[float, ...] | None = None  # (like cosine, not kept in rounds of more clients than fit in memory)
    weights: Tensor | None = None  # (d,) the global model

    @property
    def trust(self) -> tuple[float, ...] | None:
        return self.cosine and tuple(max(0.0, cosine) for cosine in self.cosine)


def build_task(
    run: Experiment, *, device: str = "cpu", data_dir: str | None = None, load: Callable[[str, str | None], Examples] = datasets.load
) -> Task:
    """Loads the data, sets the root set aside, splits the rest over the clients, and poisons the malicious clients' share.

    Who builds many tasks gives a `load` that remembers what it has read.
    """
    run.rule(torch.ones(run.clients_per_round, 1), torch.ones(1))  # a rule that cannot work with so many clients says so before any work
    examples = load(PAPER[run.dataset]["family"], data_dir)
    if run.num_clients > len(examples.train_labels):
        raise InputError(f"{run.num_clients:,} clients for {len(examples.train_labels):,} examples: there cannot be more of them")
    held = partition(
        examples.train_labels,
        examples.owners,
        num_clients=run.num_clients,
        num_classes=examples.num_classes,
        bias=run.bias,
        root_size=run.root_size,
        root_bias=run.root_bias,
        root_sampling=run.root_sampling,
        rng=stream(run.seed, "partition"),
    )
    shuffled = stream(run.seed, "malicious").permutation(run.num_clients)  # so that chance decides who is malicious
    network = MODELS[run.model](examples.train.shape[1:], examples.num_classes)
    train, test = standardised(examples.train, examples.test) if run.standardise else (examples.train, examples.test)
    return Task.from_arrays(
        train,
        examples.train_labels,
        test,
        examples.test_labels,
        clients=[held.clients[i] for i in shuffled],
        root=held.root,
        model=initialise(network, stream(run.seed, "weights"), run.initialisation),
        num_classes=examples.num_classes,
        malicious=run.malicious,
        attack=run.attack,
        device=device,
        files=examples.files,
        warnings=examples.warnings,
    )


def simulate(run: Experiment, task: Task, *, after: int = 0, weights: Tensor | None = None) -> Iterator[Record]:
    """Yields a record after each round, going on after round `after` with its `weights`."""
    if len(task.clients) != run.num_clients or task.malicious != run.malicious:
        raise InputError(
            f"the task has {len(task.clients)} clients, {task.malicious} malicious; the experiment {run.num_clients} and {run.malicious}"
        )
    if run.malicious and type(run.attack).poison is not Attack.poison and task.attack != run.attack:
        raise InputError(f"the task's data were not poisoned for {type(run.attack).__name__}: build it with attack=...")
    if run.augment and task.images.dim() != 4:
        raise InputError(f"only images can be cropped and flipped: examples have the shape {tuple(task.images.shape[1:])}")
    if task.device.type == "cuda" and task.model.has_batch_norm and (fewest := task.sizes.min()) < run.batch_size:
        raise InputError(f"a client has {fewest} examples for batches of {run.batch_size}: batch norm on a GPU needs whole batches")
    weights = (task.model.initial_weights if weights is None else weights).to(task.device).clone()
    graphed = task.device.type == "cuda" and not in_chunks(run, run.clients_per_round)
    play = _graphed(run, task, weights) if graphed else _plain(run, task, weights)
    for t, clients, draw in _draws(run, task, after):
        m = int((clients < run.malicious).sum())
        yield _recorded(run, task, t, m, clients, play(draw, m, t), weights)  # no name keeps the outcome: its (n, d) tensor is large


def _recorded(run: Experiment, task: Task, t: int, m: int, clients: np.ndarray, outcome: Outcome, weights: Tensor) -> Record:
    if t % run.evaluate_every and t != run.rounds:
        return Record(t)
    measured = measure(task, weights, run.attack.trigger)
    sent, root_update = outcome.sent, outcome.root_update
    return Record(
        round=t,
        train_error=measured.train_error,
        test_error=measured.test_error,
        success=measured.success,
        malicious=m,
        clients=tuple(clients.tolist()),
        weight=None if outcome.weight is None else tuple(outcome.weight.tolist()),
        cosine=None if sent is None or root_update is None else tuple(cosines(sent, root_update).tolist()),
        norm=None if sent is None else tuple(norms(sent).tolist()),
        weights=weights.clone(),
    )


def _draws(run: Experiment, task: Task, after: int) -> Iterator[tuple[int, np.ndarray, Draw]]:
    """What chance decides about each round, drawn ahead in blocks that are copied to the device at once."""
    steps, mean = run.local_steps, run.loss == "mean"
    batches = Batches(run.seed, "batches", task.clients, steps=steps, size=run.batch_size, mean=mean)
    root = Batches(run.seed, "root batches", [task.root], steps=steps, size=run.batch_size, mean=mean)
    whole_root = Batch.whole(task.root, steps=steps, mean=mean)
    block = max(1, DRAWN_AHEAD // (run.num_clients * run.local_steps * batches.size))

    def on_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(task.device)

    for first in range(after + 1, run.rounds + 1, block):
        rounds = range(first, min(first + block, run.rounds + 1))
        clients = draw_clients(run.seed, rounds, run.num_clients, run.clients_per_round)  # (rounds, n)
        server = np.zeros((len(rounds), 1), np.int64)  # the only one of its kind
        batch = batches.draw(rounds, clients)
        root_batch = whole_root
        if run.root_batch == "batch":
            root_batch = root.draw(rounds, server)
        shifts: Sequence[Tensor | None] = [None] * len(rounds)
        root_shifts = shifts
        if run.augment:
            of_all = (run.num_clients, *batch.examples.shape[2:])
            shifts = on_device(draw_shifts(run.seed, "crop and flip", rounds, of_all, clients)).unbind()
            root_shifts = on_device(draw_shifts(run.seed, "root crop and flip", rounds, root_batch.examples.shape[1:], server)).unbind()
        whole_block = (
            on_device(batch.examples),
            on_device(batch.share),
            on_device(root_batch.examples).expand(len(rounds), -1, -1, -1),
            on_device(root_batch.share).expand(len(rounds), -1, -1, -1),
            on_device(task.sizes[clients].astype(np.float32)),
            on_device(np.array([run.lr_at(t) for t in rounds], np.float32)),
        )
        for i, t in enumerate(rounds):
            examples, share, root_examples, root_share, sizes, lr = (part[i] for part in whole_block)
            yield t, clients[i], Draw(examples, share, shifts[i], root_examples, root_share, root_shifts[i], sizes, lr)


Play = Callable[[Draw, int, int], Outcome]


def _plain(run: Experiment, task: Task, weights: Tensor) -> Play:
    noise = torch.Generator(task.device)
    round_of = play_round_in_chunks if in_chunks(run, run.clients_per_round) else play_round

    def play(draw: Draw, m: int, t: int) -> Outcome:
        outcome = round_of(run, task, weights, draw, m, reseed(noise, run.seed, "attack", t))
        weights.copy_(outcome.weights)
        return outcome

    return play


def _graphed(run: Experiment, task: Task, weights: Tensor) -> Play:
    """A round as a CUDA graph, captured once for each number m of malicious clients among those drawn."""
    noise = torch.Generator(task.device)
    captured: dict[int, tuple[torch.cuda.CUDAGraph, Draw, Outcome]] = {}

    def capture(draw: Draw, m: int) -> tuple[torch.cuda.CUDAGraph, Draw, Outcome]:
        inputs = Draw._make(None if part is None else part.clone() for part in draw)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries choose and load their kernels before the capture
            for _ in range(2):
                play_round(run, task, weights, inputs, m, noise)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(noise)
        with torch.cuda.graph(graph):
            outcome = play_round(run, task, weights, inputs, m, noise)
            weights.copy_(outcome.weights)
        return graph, inputs, outcome

    def play(draw: Draw, m: int, t: int) -> Outcome:
        if m not in captured:
            captured[m] = capture(draw, m)
        graph, inputs, outcome = captured[m]
        for target, part in zip(inputs, draw, strict=True):
            if target is not None and part is not None:
                target.copy_(part)
        reseed(noise, run.seed, "attack", t)
        graph.replay()
        return outcome

    return play
