"""One round of a federation, from the first reply to the new model.

updates      (n, d)  the valid replies' changes of the parameters
root_update  (d,)    the server's own
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from fltrust.errors import InputError
from fltrust.evidence import Sketcher, likeness
from fltrust.flower.layout import Arrays, Layout
from fltrust.flower.membership import Exclusion
from fltrust.flower.memory import Remembered
from fltrust.flower.order import sort_rows
from fltrust.flower.replies import Limits, ReplyError, read
from fltrust.flower.root import Root, loss_of
from fltrust.flower.verdicts import KEPT, NOT_ASKED, NOT_ITS_FAULT, VERDICTS, plain
from fltrust.rules import Aggregate, Received, Rule, take_step
from fltrust.rules.rows import direction_and_norm, measure, ranked_mean
from fltrust.rules.rule import Accumulator
from fltrust.training.optimisers import SGD, ServerOptimiser, optimised

MOST_EXTRA = 100  # replies of a round that nobody asked for and that are written down


@dataclass
class Entry:
    """What the audit says of one node in one round."""

    verdict: str = "missing"
    reason: str | None = "silent"
    detail: str | None = None
    cosine: float | None = None
    norm: float | None = None
    share: float = 0.0
    peers: float | None = None
    closest: float | None = None
    closest_to: int | None = None


@dataclass
class Round:
    """The replies to round t's model, taken one by one; `close` gives the new model."""

    t: int
    rule: Rule
    layout: Layout
    before: Arrays
    nodes: Sequence[int]
    limits: Limits
    global_lr: float = 1.0
    min_replies: int = 1
    remembered: Remembered = field(default_factory=Remembered)  # of earlier rounds; after `close`, of this one too
    server: ServerOptimiser = field(default_factory=SGD)
    generator: torch.Generator | None = None  # the rule's randomness
    evidence: torch.Generator = field(default_factory=torch.Generator)  # the signs of the sketches, which nodes must not know
    excluded: Mapping[int, Exclusion] = field(default_factory=dict)  # nodes that are there and are not asked
    root: Root | None = None  # for a rule that asks it about other models
    entries: dict[int, Entry] = field(init=False)
    late: list[tuple[int, int]] = field(init=False, default_factory=list)  # (node, the round it was asked in)
    extra: list[tuple[int, str]] = field(init=False, default_factory=list)  # (node, reason) of replies that nobody asked for
    unasked: int = field(init=False, default=0)  # messages that answer nothing; nobody knows whose they are
    kept: str | None = field(init=False, default=None)  # one of KEPT: why the model stays as it was ...
    why: str | None = field(init=False, default=None)  # ... in a sentence

    def __post_init__(self) -> None:
        asked = {node: Entry() for node in self.nodes}
        self.entries = dict(sorted((asked | {node: Entry(*why) for node, why in self.excluded.items()}).items()))
        self._order: list[int] = []  # the nodes whose updates were taken, as they came
        self._sizes: list[float] = []
        self._buffers: list[Tensor] = []
        self._root: Arrays = {}
        self._root_update: Tensor | None = None
        self._direction: Tensor | None = None
        self._stream: Accumulator | None = None  # a rule that takes each update as it comes (FLTrust) ...
        self._rows: Tensor | None = None  # (n, d): ... and the others, which need them all; for the former n is 1
        self._scale: float | None = None  # the norm that an update's is compared with
        self._next: Remembered | None = None
        self._sketcher: Sketcher | None = None
        self._sketches: dict[int, Tensor] = {}  # by node: what is left of each update to compare it with the others
        self._root_norm: float | None = None
        self._rooted = self._root_usable = self._has_shares = False

    def set_root(self, change: Mapping[str, NDArray[Any]]) -> None:
        """The server's own change of the arrays; it must be there before the first reply is taken."""
        for name in change:
            if name not in self.layout.shapes:
                raise InputError(f"the root update holds {name!r}, which is not an array of the model")
        for name in self.layout.parameters:
            if name not in change:
                raise InputError(f"the root update lacks {name!r}")
        self._root = {name: np.asarray(part) for name, part in change.items()}
        for name, part in self._root.items():
            if part.shape != self.layout.shapes[name]:
                raise InputError(f"the root update's {name!r} has the shape {part.shape}, not {self.layout.shapes[name]}")
        self._root_update = self.layout.vector(self._root.__getitem__)
        self._root = {name: part for name, part in self._root.items() if name in self.layout.buffers}
        self._stream = self.rule.streamed(self._root_update, exact_for=len(self.nodes))
        self._direction, norm = direction_and_norm(self._root_update)
        self._root_usable, self._root_norm = bool(self._direction.any()), float(norm)
        if self.rule.needs_root and not self._root_usable and not self.rule.holds_out:  # that one goes back to a better model
            self._keep("root-unusable")
        self._rooted = True

    def not_sent(self, nodes: Collection[int]) -> None:
        for node in nodes:
            self.entries[node].reason = "not-sent"

    def take(self, node: int, reply: Message | Exception) -> None:
        """A reply, or what kept it from being read; whatever it is, it decides about this node alone."""
        entry = self.entries.get(node)
        if entry is None or entry.reason != "silent":
            if len(self.extra) < MOST_EXTRA:
                self.extra.append((node, "stranger" if entry is None or entry.verdict in NOT_ASKED else "duplicate"))
            return
        try:
            if isinstance(reply, ReplyError):
                raise reply
            if isinstance(reply, Exception):
                raise ReplyError("unreadable", f"{type(reply).__name__}: {plain(reply)}")
            update = self._place()
            sent = read(reply, self.t, self.layout, self.before, self.limits, update)
            row = measure(update[None], self._direction)
            if not row.usable[0]:
                if update.any():
                    raise ReplyError("not-finite", "the difference from what was sent out is not finite")
                raise ReplyError("zero-update", "the arrays are those that were sent out")
            if (norm := float(row.norm[0])) < self._least_norm():
                raise ReplyError("tiny-update", f"the update's norm is {norm:.3g}, at least {self._least_norm():.3g} is asked for")
        except ReplyError as problem:
            entry.verdict = "missing" if problem.reason in NOT_ITS_FAULT else "rejected"
            entry.reason, entry.detail = problem.reason, problem.detail
            return
        entry.verdict, entry.reason = "used", None
        entry.norm = norm
        if self._root_usable:
            entry.cosine = float(row.cosine[0])
        self._sketches[node] = self._sketch(update)
        if self._stream is not None:
            self._stream.add_measured(update, row)
        if sent.buffers is not None:
            self._buffers.append(sent.buffers)
        self._order.append(node)
        self._sizes.append(1.0 if sent.examples is None else sent.examples)

    def _sketch(self, update: Tensor) -> Tensor:
        if self._sketcher is None:
            self._sketcher = Sketcher(self.layout.d, self.evidence)
        return self._sketcher(update[None])[0]

    def _compare(self) -> None:
        """How much the updates resemble each other; in the order of the nodes' ids, so that the order of arrival changes no digit."""
        nodes = sorted(self._sketches)
        if nodes:
            found = likeness(torch.stack([self._sketches[node] for node in nodes]))
            for i, node in enumerate(nodes):
                entry, other = self.entries[node], int(found.closest_to[i])
                entry.peers, entry.closest = float(found.peers[i]), float(found.closest[i])
                entry.closest_to = None if other < 0 else nodes[other]
        self._sketches, self._sketcher = {}, None

    def _least_norm(self) -> float:
        """Below it an update is rounding, not learning: one bit that differs must not earn a share."""
        if self._scale is None:
            vector = self.layout.vector(self.before.__getitem__) if self._root_update is None else self._root_update
            self._scale = float(measure(vector[None]).norm[0])
        return self.limits.least_norm * self._scale

    def _place(self) -> Tensor:
        """Where the next update (d,) is written: over the last one, which FLTrust has taken in, or below those that are kept."""
        if self._rows is None:
            rows = len(self.nodes) if self._stream is None else 1
            # Memory is taken as rows are filled; numpy, unlike torch, asks for it in large pages, which are much faster to take.
            dtype = np.float64 if self.layout.dtype == torch.float64 else np.float32
            self._rows = torch.from_numpy(np.empty((rows, self.layout.d), dtype))
        return self._rows[len(self._order) if self._stream is None else 0]

    def close(self) -> Arrays:
        """The global arrays after this round: those before it if it is `kept`."""
        aggregate = self._aggregate()
        self._compare()
        self._stream = self._rows = self._direction = self._root_update = None  # large, and no longer needed
        after = self._after(aggregate)
        if self._next is not None and self.kept != "not-finite":  # as in a simulation: a rule may learn from a round that moves nothing
            self.remembered = self._next
        self._judge(None if aggregate is None else aggregate.shares)
        return after

    def _after(self, aggregate: Aggregate | None) -> Arrays:
        if aggregate is None:
            return self.before
        if not aggregate.update.any():
            self._keep("nobody-trusted" if self.rule.needs_root else "rule")
            return self.before
        direction, server = optimised(self.server, aggregate.update, self.remembered.server)
        self._next = replace(self._next or self.remembered, server=server)
        after = self._moved(direction)
        if not all(np.isfinite(array).all() for array in after.values() if array.dtype.kind == "f"):
            self._keep("not-finite")
        elif all(np.array_equal(after[name], self.before[name]) for name in self.layout.parameters):
            self._keep("rounded-away")
        return self.before if self.kept else after

    def _judge(self, shares: Tensor | None) -> None:
        """What became of the valid updates (n,) follows from what became of the model."""
        if self.kept not in (None, "nobody-trusted"):
            for node in self._order:
                self.entries[node].verdict = "not-counted"
        elif shares is not None:
            self._has_shares = self.kept is None
            for node, share in zip(self._order, shares.tolist(), strict=True):
                entry = self.entries[node]
                entry.share = share
                if share == 0:
                    pointed_away = self.rule.scores_trust and entry.cosine is not None and entry.cosine <= 0
                    entry.verdict = "zero-trust" if pointed_away else "not-chosen"
                elif self.kept is not None:
                    entry.verdict = "not-counted"

    def _keep(self, reason: str, why: str | None = None) -> None:
        if self.kept is None:  # the first reason is the one that counts
            self.kept, self.why = reason, why or KEPT[reason]

    def _aggregate(self) -> Aggregate | None:
        if len(self._order) < max(1, self.min_replies):
            self._keep(
                "too-few-replies", f"{len(self._order)} replies of {len(self.nodes)} could be used, at least {self.min_replies} must"
            )
        if self.kept is not None:
            return None
        if self._stream is not None:
            return self._stream.result()
        assert self._rows is not None
        rows = self._rows[: len(self._order)]
        was = sort_rows(rows, self._sizes)
        self._order = [self._order[i] for i in was]
        sizes = None if self.limits.most_examples is None else torch.tensor([self._sizes[i] for i in was], dtype=rows.dtype)
        try:
            known = self.remembered.knowing(self.rule, self._order, rows[0])
            received = Received(
                rows,
                self._root_update,
                sizes,
                client_ids=known.ids_of(self._order),
                round=torch.tensor(self.t),
                generator=self.generator,
                weights=self.layout.vector(self.before.__getitem__) if self.rule.needs_weights else None,
                root_loss=self._root_losses if loss_of(self.root) is not None else None,
                global_lr=torch.tensor(self.global_lr),
                root_update_from=self._root_update_from if self.root is not None else None,
            )
            aggregate, memory = take_step(self.rule, received, known.rule)
        except Exception as problem:  # such as Krum with too few clients, or whatever a rule of somebody's own does
            self._keep("rule", plain(problem))
            return None
        self._next = replace(known, rule=memory)
        return aggregate

    def _root_losses(self, models: Tensor) -> Tensor:
        """The losses (k,) of models (k, d)."""
        loss = loss_of(self.root)
        assert loss is not None
        return torch.tensor([loss(self._with(model)) for model in models], dtype=torch.float64)

    def _root_update_from(self, weights: Tensor) -> Tensor:
        assert self.root is not None
        return self.layout.vector(self.root(self._with(weights)).__getitem__)

    def _with(self, weights: Tensor) -> Arrays:
        """The global arrays with other parameters (d,)."""
        with np.errstate(all="ignore"):
            return self.before | {name: np.asarray(part, self.layout.dtypes[name]) for name, part in self.layout.parts(weights)}

    def _moved(self, update: Tensor) -> Arrays:
        after = dict(self.before)
        with np.errstate(all="ignore"):
            for name, part in self.layout.parts(update):
                moved = self.before[name] + self.global_lr * part  # in the update's precision, whatever the array's is
                after[name] = np.asarray(moved, self.layout.dtypes[name])
            for name, part in self._root.items():  # statistics of the server's own training are as trustworthy as the server
                after[name] = _like(self.before[name], self.before[name] + part)
        if self._buffers:
            matrix = torch.stack(self._buffers)
            middle = ranked_mean(matrix, torch.ones(len(matrix), dtype=torch.bool), None).numpy()
            start = 0
            for name in self.layout.shapes:
                if name in self.layout.buffers:
                    size = self.before[name].size
                    after[name] = _like(self.before[name], middle[start : start + size].reshape(self.before[name].shape))
                    start += size
        return after

    def count(self) -> dict[str, int]:
        counted = Counter(entry.verdict for entry in self.entries.values())
        return {verdict: counted[verdict] for verdict in VERDICTS if verdict != "late" and (verdict not in NOT_ASKED or counted[verdict])}

    def record(self) -> dict[str, Any]:
        """This round's line of the audit, with the simulator's fields first."""
        entries = list(self.entries.values())

        def column(name: str) -> list[float | None]:
            return [_short(getattr(entry, name)) for entry in entries]

        trust = [None if entry.cosine is None else _short(max(0.0, entry.cosine)) for entry in entries]

        return {
            "round": self.t,
            "train_error": None,
            "test_error": None,
            "success": None,
            "malicious": None,  # a federation does not know
            "clients": list(self.entries),
            "shares": column("share") if self._has_shares else None,
            "trust": trust if self.rule.needs_root else None,
            "cosine": column("cosine") if self._rooted else None,
            "norm": column("norm"),
            "peers": column("peers"),
            "closest": column("closest"),
            "closest_to": [entry.closest_to for entry in entries],
            "root_norm": _short(self._root_norm),
            "verdict": [entry.verdict for entry in entries],
            "reason": [entry.reason for entry in entries],
            "detail": [entry.detail for entry in entries],
            "late": self.late,
            "extra": self.extra,
            "unasked": self.unasked,
            "kept": self.kept,
            "why": self.why,
        }


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _like(array: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Values in an array's dtype, rounded where it holds integers."""
    return np.asarray(values if array.dtype.kind == "f" else np.rint(values), array.dtype)
