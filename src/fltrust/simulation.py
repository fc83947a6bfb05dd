"""An experiment becomes records, one per round: the loop around `round.py`."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.evidence import Likeness, Sketcher, likeness
from fltrust.experiment import Experiment, per_round
from fltrust.metrics import evaluate
from fltrust.randomness import reseed
from fltrust.record import Record
from fltrust.round import Draw, Noise, Outcome, Sent, aggregated, first_state, in_chunks, play_round, play_round_in_chunks, train
from fltrust.rules import cosines, norms
from fltrust.state import State, copied, move_into
from fltrust.tasks.batches import Batch, Batches, Epochs, draw_clients, draw_dropout, draw_shifts
from fltrust.tasks.root import HELD_OUT, hold_out
from fltrust.tasks.task import Task

DRAWN_AHEAD = 2_000_000  # examples whose batches are drawn and copied to the device at once


def simulate(run: Experiment, task: Task, *, after: int = 0, state: State | None = None) -> Iterator[Record]:
    """Runs an experiment and yields a record after each round.

    Parameters
    ----------
    run : Experiment
        What to run.
    task : Task
        The data and the model, from `build_task` or `Task.from_arrays`.
    after : int, default 0
        Resume after this round.
    state : State or None, default None
        The state of round `after`, from its record or a checkpoint.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from fltrust import Experiment, Task, simulate
    >>> inputs, targets = np.array([[-1.0], [1.0]] * 4), [0, 1] * 4
    >>> model = torch.nn.Linear(1, 2, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> clients, root = np.arange(6).reshape(3, 2), np.array([6, 7])
    >>> task = Task.from_arrays(inputs, targets, inputs[:2], targets[:2], clients=list(clients), root=root, model=model)
    >>> rates = {"global_lr": 1.0, "loss": "mean"}
    >>> run = Experiment(num_clients=3, clients_per_round=3, malicious=0, rounds=2, batch_size=2, evaluate_every=1, **rates)
    >>> for record in simulate(run, task):
    ...     print(record.round, record.test_error)
    1 0.0
    2 0.0
    """
    if len(task.clients) != run.num_clients or task.malicious != run.malicious:
        raise InputError(
            f"the task has {len(task.clients)} clients, {task.malicious} malicious; the experiment {run.num_clients} and {run.malicious}"
        )
    if run.malicious and run.attack.poisons and task.attack != run.attack:
        raise InputError(f"the task's data were not poisoned for {type(run.attack).__name__}: build it with attack=...")
    if run.augment and task.inputs.dim() != 4:
        raise InputError(f"only images can be cropped and flipped: examples have the shape {tuple(task.inputs.shape[1:])}")
    if task.device.type == "cuda" and task.model.has_batch_norm and (fewest := task.sizes.min()) < run.batch_size:
        raise InputError(f"a client has {fewest} examples for batches of {run.batch_size}: batch norm on a GPU needs whole batches")
    if task.device.type == "cuda" and task.model.has_batch_norm and run.local_epochs:
        trained = len(task.root) - (-(-len(task.root) // HELD_OUT) if run.rule.holds_out else 0)
        sizes = np.append(task.sizes, trained if run.root_batch == "batch" else [])
        if (sizes % run.batch_size).any():  # the last batch of an epoch is filled up, and batch norm would see it
            raise InputError(f"batch norm on a GPU needs whole batches: local_epochs asks for multiples of {run.batch_size} examples")
    if run.batch_norm != "root" and not task.model.has_batch_norm:
        raise InputError(f"batch_norm = '{run.batch_norm}' changes nothing: the model has no batch norm")
    if task.model.has_dropout and (run.local_epochs or in_chunks(run, run.clients_per_round)):
        raise InputError("a model with dropout cannot train by local_epochs, nor with more clients in a round than are in memory together")
    if after and state is None:
        raise InputError(f"a run can only resume after round {after} with the state of that round")
    state = first_state(run, task) if state is None else copied(state, task.device)
    graphed = task.device.type == "cuda" and not in_chunks(run, run.clients_per_round) and not run.attack.on_host_under(run.rule)
    player = _Graphed(run, task, state) if graphed else _Plain(run, task, state)
    for t, clients, draw in _draws(run, task, after):
        m = int((clients < run.malicious).sum())
        yield _recorded(run, task, t, m, clients, player.play(draw, m, t), player)  # no name keeps the outcome: its (n, d) tensor is large


def _recorded(run: Experiment, task: Task, t: int, m: int, clients: np.ndarray, outcome: Outcome, player: "_Player") -> Record:
    if t % run.evaluate_every and t != run.rounds:
        return Record(t)
    if not player.sound:
        raise InputError(f"{type(run.rule).__name__} returned NaN or infinity, in round {t} or shortly before: the run stops there")
    sent, root_update = outcome.sent, outcome.root_update
    alike = None if sent is None else _likeness(run, t, sent)
    return Record(
        round=t,
        metrics=evaluate(
            task, player.state.weights, run.attack, run.metrics, shares=outcome.shares, malicious=m, batch_norm=run.batch_norm
        ),
        malicious=m,
        clients=tuple(clients.tolist()),
        shares=None if outcome.shares is None else tuple(outcome.shares.tolist()),
        cosine=None if sent is None or root_update is None else tuple(cosines(sent, root_update).tolist()),
        norm=None if sent is None else tuple(norms(sent).tolist()),
        peers=None if alike is None else tuple(alike.peers.tolist()),
        closest=None if alike is None else tuple(alike.closest.tolist()),
        closest_to=None if alike is None else tuple(int(clients[i]) if i >= 0 else None for i in alike.closest_to.tolist()),
        root_norm=None if root_update is None else norms(root_update[None]).item(),
        state=copied(player.state),
    )


def _likeness(run: Experiment, t: int, sent: Tensor) -> Likeness:
    return likeness(Sketcher(sent.shape[1], reseed(torch.Generator(), run.seed, "evidence", t))(sent))


def _draws(run: Experiment, task: Task, after: int) -> Iterator[tuple[int, np.ndarray, Draw]]:
    """What chance decides about each round, drawn ahead in blocks that are copied to the device at once."""
    mean = run.loss == "mean"
    trained, held = task.root, None
    if run.rule.holds_out:
        trained, held = hold_out(task.root, task.targets[torch.from_numpy(task.root)].cpu().numpy())
    batches, root = (_batches(run, *of, mean=mean) for of in (("batches", task.clients), ("root batches", [trained])))
    whole_root = Batch.whole(trained, steps=run.local_epochs or run.local_steps, mean=mean)
    block = max(1, DRAWN_AHEAD // (run.clients_per_round * batches.steps * batches.size))
    expected = per_round(run.malicious, run.clients_per_round, run.num_clients)
    fixed = (expected, run.malicious) if run.participation == "fixed" else None

    def on_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(task.device)

    held_out = None if held is None else on_device(held)
    for first in range(after + 1, run.rounds + 1, block):
        rounds = range(first, min(first + block, run.rounds + 1))
        clients = draw_clients(run.seed, rounds, run.num_clients, run.clients_per_round, fixed)  # (rounds, n)
        server = np.zeros((len(rounds), 1), np.int64)  # there is one server
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
        dropout: Sequence[Tensor | None] = [None] * len(rounds)
        if task.model.has_dropout:
            dropout = on_device(draw_dropout(run.seed, rounds, (run.num_clients, *batch.examples.shape[2:]), clients)).unbind()
        numbers = on_device(np.array(rounds, np.int64))
        ids = on_device(clients)
        examples, loss_weights = on_device(batch.examples), on_device(batch.loss_weights)
        root_examples = on_device(root_batch.examples).expand(len(rounds), -1, -1, -1)
        root_loss_weights = on_device(root_batch.loss_weights).expand(len(rounds), -1, -1, -1)
        sizes = on_device(task.sizes[clients].astype(np.float32))
        rates = on_device(np.array([run.lr_at(t) for t in rounds], np.float32))
        for i, t in enumerate(rounds):
            yield (
                t,
                clients[i],
                Draw(
                    round=numbers[i],
                    client_ids=ids[i],
                    examples=examples[i],
                    loss_weights=loss_weights[i],
                    shift=shifts[i],
                    root_examples=root_examples[i],
                    root_loss_weights=root_loss_weights[i],
                    root_shift=root_shifts[i],
                    sizes=sizes[i],
                    global_lr=rates[i],
                    held_out=held_out,
                    dropout=dropout[i],
                ),
            )


def _batches(run: Experiment, name: str, owned: Sequence[np.ndarray], *, mean: bool) -> Batches | Epochs:
    if run.local_epochs:
        return Epochs(run.seed, name, owned, epochs=run.local_epochs, size=run.batch_size, mean=mean)
    return Batches(run.seed, name, owned, steps=run.local_steps, size=run.batch_size, mean=mean)


class _Player:
    """Plays rounds one after the other, and holds what each hands to the next."""

    def __init__(self, run: Experiment, task: Task, state: State) -> None:
        self.run, self.task, self.state = run, task, state
        self.noise = Noise(torch.Generator(task.device), torch.Generator(task.device))
        self._peak = torch.zeros((), device=task.device)

    @property
    def sound(self) -> bool:
        """Whether the rule has returned numbers in every round so far."""
        return math.isfinite(self._peak)

    def reseed(self, t: int) -> None:
        reseed(self.noise.attack, self.run.seed, "attack", t)
        if self.run.rule.needs_generator:
            reseed(self.noise.rule, self.run.seed, "rule", t)

    def play(self, draw: Draw, m: int, t: int) -> Outcome:
        raise NotImplementedError


class _Plain(_Player):
    def play(self, draw: Draw, m: int, t: int) -> Outcome:
        round_of = play_round_in_chunks if in_chunks(self.run, self.run.clients_per_round) else play_round
        self.reseed(t)
        self.state, outcome = round_of(self.run, self.task, self.state, draw, m, self.noise)
        self._peak = torch.maximum(self._peak, outcome.peak)  # NaN wins
        return outcome


class _Graphed(_Player):
    """A round as a CUDA graph, captured once for each number m of malicious clients among those drawn.

    If the rule computes on the host, the graph ends where the rule begins.
    """

    def __init__(self, run: Experiment, task: Task, state: State) -> None:
        super().__init__(run, task, state)
        self._captured: dict[int, tuple[torch.cuda.CUDAGraph, Draw, Outcome | Sent]] = {}

    def play(self, draw: Draw, m: int, t: int) -> Outcome:
        if m not in self._captured:
            self._captured[m] = self._capture(draw, m)
        graph, inputs, result = self._captured[m]
        _copy_all(inputs, draw)
        self.reseed(t)
        graph.replay()
        if isinstance(result, Sent):
            return self._keep(*aggregated(self.run, self.task, self.state, inputs, result, self.noise))
        return result

    def _capture(self, draw: Draw, m: int) -> tuple[torch.cuda.CUDAGraph, Draw, Outcome | Sent]:
        inputs = Draw._make(None if part is None else part.clone() for part in draw)
        parts = self.run, self.task, self.state, inputs, m, self.noise
        on_host = self.run.rule.on_host
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries choose and load their kernels before the capture
            for _ in range(2):
                (train if on_host else play_round)(*parts)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        for generator in self.noise[:1] if on_host else self.noise:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            result = train(*parts) if on_host else self._keep(*play_round(*parts))
        return graph, inputs, result

    def _keep(self, state: State, outcome: Outcome) -> Outcome:
        move_into(self.state, state)
        torch.maximum(self._peak, outcome.peak, out=self._peak)  # NaN wins
        return outcome


def _copy_all(targets: Draw, sources: Draw) -> None:
    """All of a draw's tensors into others: one launch for each dtype."""
    pairs = [(to, of) for to, of in zip(targets, sources, strict=True) if to is not None and of is not None]
    for dtype in (torch.int64, torch.float32):
        torch._foreach_copy_([to for to, _ in pairs if to.dtype == dtype], [of for _, of in pairs if of.dtype == dtype])
