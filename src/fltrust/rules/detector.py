"""FLDetector: finds clients whose updates cannot be predicted from what they sent before. d parameters, N clients, n in a round."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import RULES
from fltrust.rules.mean import FedAvg
from fltrust.rules.pairs import cosines_between
from fltrust.rules.preaggregation import PreAggregation
from fltrust.rules.rows import LARGEST, copied, divisor, finite, measure, usable_only, weighted_sum
from fltrust.rules.rule import Aggregate, Received, Rule, take_step
from fltrust.state import Memory

REFERENCES = 10  # sets of random numbers that the scores are compared with


class Watched(NamedTuple):
    """What FLDetector remembers."""

    rounds: Tensor  # () int64: how many rounds it has seen
    pairs: Tensor  # () int64: how many rows of `steps` and `changes` are in use, at the end
    weights: Tensor  # (d,): last round's global weights
    update: Tensor  # (d,): last round's result
    steps: Tensor  # (window, d): how the global weights moved, round by round
    changes: Tensor  # (window, d): how the result changed from round to round
    expected: Tensor  # (N, d): each client's last update, plus the changes expected in the rounds that it has missed since
    known: Tensor  # (N,) bool: who has sent an update
    errors: Tensor  # (N, window) float64: each client's last errors of prediction; -1 where there is none
    removed: Tensor  # (N,) bool: who is left out for good
    rule: Memory  # what the rule within remembers


def hessian_product(steps: Tensor, changes: Tensor, move: Tensor) -> Tensor:
    """How an update changes (d,) when the weights make this move (d,), by L-BFGS from earlier steps (m, d) and changes of updates (m, d).

    B v = sigma v - [sigma S, Y] [[sigma S'S, L], [L', -D]]^-1 [sigma S'v, Y'v], where S holds the steps and Y the changes as columns,
    sigma = <y_m, s_m> / <s_m, s_m>, L is S'Y below its diagonal and D is that diagonal. Where the matrix is singular, we take the least
    solution. A pair (s, y) counts the same at any length, so all steps are brought to length 1 and the changes with them.
    """
    m, stack = len(steps), torch.cat((steps, changes, move[None]))  # (2m + 1, d)
    rows = measure(stack)
    cosines = cosines_between(stack, rows).clamp(-1, 1).cpu().numpy()
    norm = rows.norm.cpu().numpy()
    with np.errstate(all="ignore"):
        ratio = np.nan_to_num(norm[m : 2 * m] / norm[:m], nan=0, posinf=LARGEST)
        unit = ratio.max()
        ratio = ratio / (unit or 1)
    steps_steps, steps_changes = cosines[:m, :m], cosines[:m, m : 2 * m] * ratio
    sigma = steps_changes[-1, -1]
    lower = np.tril(steps_changes, -1)
    matrix = np.block([[sigma * steps_steps, lower], [lower.T, -np.diag(np.diag(steps_changes))]])
    along = np.concatenate((sigma * cosines[:m, -1], ratio * cosines[m : 2 * m, -1]))
    solved = np.linalg.lstsq(matrix, along, rcond=None)[0]
    parts = np.concatenate((-sigma * solved[:m], -ratio * solved[m:], [sigma]))  # of each row at length 1
    lengths = torch.from_numpy(parts).to(stack.device) * min(unit * norm[-1], LARGEST)
    return finite(weighted_sum(stack, rows, lengths), stack)


def spreads(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least sums of squares (..) around one centre and around two, of values (.., n) in ascending order, and where the second begins.

    Two clusters of numbers are always a lower and an upper part, so trying each place finds the best 2-means.
    """
    n = values.shape[-1]
    count = np.arange(1, n + 1)
    sums, squares = values.cumsum(-1), np.square(values).cumsum(-1)
    below = squares - np.square(sums) / count  # (.., n): of the first 1..n values
    rest = sums[..., -1:] - sums[..., :-1]
    above = squares[..., -1:] - squares[..., :-1] - np.square(rest) / (n - count[:-1])
    both = np.concatenate((below[..., -1:], below[..., :-1] + above), -1)
    least = np.stack((both[..., 0], both[..., 1:].min(-1)), -1)
    return np.maximum(least, 1e-30), both[..., 1:].argmin(-1) + 1  # rounding may leave less than nothing


def upper_cluster(scores: np.ndarray, references: np.ndarray) -> np.ndarray:
    """The members (n,) of the upper of two clusters of scores (n,); nobody if the gap statistic finds one cluster only.

    The gap of k clusters is the mean of log W_k over reference sets (10, n), uniform on [0, 1], less log W_k of the scores, scaled to
    [0, 1]. There is one cluster if gap(1) >= gap(2) - sqrt(1 + 1/10) std(log W_2). The authors look for the least such k up to 7, but only
    whether it is 1 counts.
    """
    nobody = np.zeros(len(scores), bool)
    spread = np.ptp(scores) if len(scores) else 0.0
    if len(scores) < 3 or spread <= 0:
        return nobody
    order = np.argsort(scores)
    scaled = (scores[order] - scores.min()) / spread
    logs = np.log(spreads(np.sort(references))[0])  # (10, 2)
    within, split = spreads(scaled)
    gaps = logs.mean(0) - np.log(within)
    if gaps[0] >= gaps[1] - np.sqrt(1 + 1 / len(references)) * logs[:, 1].std():
        return nobody
    return np.asarray(scores >= scores[order[split]])


@RULES.register("fldetector", label="FLDetector", reference="Zhang, Cao, Jia, Gong, KDD 2022")
@dataclass(frozen=True)
class FLDetector(PreAggregation):
    """Leaves out clients whose updates do not follow from their earlier ones, before another rule (Zhang et al. 2022).

    The server predicts each update: the client's last one plus h, the change that L-BFGS expects from the last move of the global weights.
    It learns h from the last `window` moves and the changes of the global update that came with them. e_i is the distance of the update
    from its prediction, divided by the sum over all clients. A client's score is the mean of its last `window` e_i. After `start` rounds,
    if the gap statistic finds more than one cluster of scores, 2-means splits them and the upper cluster is left out.

    The authors remove these clients and train again from the beginning, and their code starts the attack when it starts to look. Here
    training goes on. A client that misses a round is predicted anew from its last prediction; one that is new cannot be judged yet.
    Predictions hold for clients that train on all their data: small batches make every client unpredictable. Without an attack, the gap
    statistic still finds two clusters now and then, and honest clients are left out.

    Parameters
    ----------
    window : int, default 10
        How many moves and errors are remembered.
    start : int, default 50
        How many rounds nobody is left out.
    for_good : bool, default False
        True leaves a client out of all later rounds too, once it was in the upper cluster. Mistakes then add up over the rounds.
    rule : Rule, default the plain mean
        Aggregates the updates that remain.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FLDetector, Received
    >>> rule = FLDetector(start=3)
    >>> memory, weights = rule.init(num_clients=4, like=torch.zeros(1)), torch.tensor([8.0])
    >>> for t in range(1, 5):
    ...     updates = (-weights / 2).repeat(4, 1)  # every client halves the weight,
    ...     if t == 4:
    ...         updates[3] = 9.0  # until one does not
    ...     received = Received(updates, client_ids=torch.arange(4), weights=weights, generator=torch.Generator())
    ...     result, memory = rule.step(received, memory)
    ...     weights = weights + result.update
    >>> result
    Aggregate(update=tensor([-0.5000]), shares=tensor([0.3333, 0.3333, 0.3333, 0.0000]))
    """

    window: int = 10
    start: int = 50
    for_good: bool = False
    rule: Rule = field(default_factory=lambda: FedAvg(by_size=False))

    needs_ids = True
    needs_weights = True
    needs_generator = True
    on_host = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise InputError(f"FLDetector needs a window of at least 1 round, not {self.window}")
        if self.start < 0:
            raise InputError(f"FLDetector starts after 0 rounds or more, not {self.start}")

    @property
    def has_memory(self) -> bool:
        return True

    def init(self, num_clients: int, like: Tensor) -> Watched:
        none, nobody = (
            torch.zeros((), dtype=torch.int64, device=like.device),
            torch.zeros(num_clients, dtype=torch.bool, device=like.device),
        )
        rows = like.new_zeros(self.window, like.numel())
        return Watched(
            rounds=none,
            pairs=none.clone(),
            weights=torch.zeros_like(like),
            update=torch.zeros_like(like),
            steps=rows,
            changes=rows.clone(),
            expected=like.new_zeros(num_clients, like.numel()),
            known=nobody,
            errors=torch.full((num_clients, self.window), -1.0, dtype=torch.float64, device=like.device),
            removed=nobody.clone(),
            rule=self.rule.init(num_clients, like),
        )

    def step(self, received: Received, memory: Watched) -> tuple[Aggregate, Watched]:
        updates, ids, weights = received.updates, received.client_ids, received.weights
        assert ids is not None  # take_step checks this
        assert weights is not None
        m, usable = int(memory.pairs), measure(updates).usable & ~memory.removed[ids]  # (n,)
        move = finite(weights - memory.weights, updates)
        change = hessian_product(memory.steps[-m:], memory.changes[-m:], move) if m else None  # (d,)
        errors = self._errors(updates, ids, usable, change, memory)
        caught = self._caught(received, usable, errors[ids], memory)
        clean = replace(received, updates=usable_only(updates, usable & ~caught))
        aggregate, within = take_step(self.rule, clean, memory.rule)
        if not bool(usable.any()):
            return aggregate, memory._replace(rule=within)
        there, sent = (ids, updates) if bool(usable.all()) else (ids[usable], updates[usable])
        expected = memory.expected
        if change is not None and len(there) < len(expected):  # for those who are not there
            expected = finite(expected + change, updates)
        return aggregate, self._with_pair(memory, move, aggregate.update)._replace(
            rounds=memory.rounds + 1,
            weights=weights.clone(),
            update=aggregate.update.clone(),
            expected=copied(expected).index_copy_(0, there, sent),
            known=memory.known.index_fill(0, there, True),
            errors=errors,
            removed=memory.removed.index_fill(0, ids[caught], True) if self.for_good else memory.removed,
            rule=within,
        )

    def _errors(self, updates: Tensor, ids: Tensor, usable: Tensor, change: Tensor | None, memory: Watched) -> Tensor:
        """The last errors (N, window), with this round's."""
        who = usable & memory.known[ids]
        if change is None or not bool(who.any()):
            return memory.errors
        wrong = memory.expected[ids].add_(change).sub_(updates)  # (n, d)
        distance = torch.where(who, measure(finite(wrong, updates)).norm, 0)
        distance = distance / divisor(distance.amax())
        error = (distance / divisor(distance.sum()))[who]
        there = ids[who]
        return memory.errors.index_copy(0, there, torch.cat((memory.errors[there, 1:], error[:, None]), 1))

    def _caught(self, received: Received, usable: Tensor, errors: Tensor, memory: Watched) -> Tensor:
        """Who is in the upper cluster of scores (n,)."""
        references = torch.rand(REFERENCES, len(usable), generator=received.generator, dtype=torch.float64, device=usable.device)
        caught = torch.zeros_like(usable)
        if int(memory.rounds) < self.start:
            return caught
        there = errors >= 0  # (n, window)
        scores = torch.where(there, errors, 0).sum(1) / there.sum(1).clamp(min=1)  # (n,)
        who = usable & there.any(1)
        found = upper_cluster(scores[who].cpu().numpy(), references[:, : int(who.sum())].cpu().numpy())
        caught[who] = torch.from_numpy(found).to(caught.device)
        return caught

    def _with_pair(self, memory: Watched, move: Tensor, update: Tensor) -> Watched:
        """With the last move of the weights, and the change of the global update that came with it."""
        if not int(memory.rounds) or not bool(move.any()):
            return memory
        change = finite(update - memory.update, update)
        return memory._replace(
            pairs=(memory.pairs + 1).clamp(max=self.window),
            steps=torch.cat((memory.steps[1:], move[None])),
            changes=torch.cat((memory.changes[1:], change[None])),
        )
