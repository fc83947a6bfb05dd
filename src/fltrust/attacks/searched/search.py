"""Searched: the malicious rows that harm most under the very rule that the server uses, found anew in every round."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fltrust.attacks.attack import Altered, Attack, Knowledge, Level, Seen, check_choice, check_level
from fltrust.attacks.rows import bounded
from fltrust.attacks.searched.basis import EXTRA, PUSHES, Basis, basis_of, candidates_in, row_lengths
from fltrust.attacks.searched.damage import damage_of
from fltrust.attacks.searched.finals import most_damaging
from fltrust.attacks.searched.refine import refined
from fltrust.attacks.searched.response import ZERO, has_closed_form
from fltrust.attacks.searched.rivals import rivals_rows, rivals_with
from fltrust.attacks.searched.scene import Aim, AimName, Scene, aim_of, scene_of
from fltrust.attacks.searched.view import as_seen, viewed
from fltrust.errors import InputError
from fltrust.registry import ATTACKS
from fltrust.rules.rule import Rule
from fltrust.state import Memory
from fltrust.triggers import NO_TRIGGER, Trigger

_FINALISTS = 3  # the best candidates: they are refined, and tried on the rule itself as they are
_JITTER = 0.02  # what makes equal rows differ, in median honest lengths: only then can they part
_MOVES, _MOVES_BY_ROWS = 8, 2  # random steps beside those along the slope
_MOST_REMEMBERED = 1000  # clients up to which last round's rows are a start


class Search(NamedTuple):
    """What the search remembers."""

    rounds: Tensor  # () int64: in how many malicious clients took part
    seen: Seen
    last: Tensor  # (N, N + directions): last round's best rows in the basis, by client; empty in large federations
    rivals: tuple[Memory, ...]


@ATTACKS.register("searched", label="Searched")
@dataclass(frozen=True)
class Searched(Attack):
    """The most damaging updates that a search finds on the server's own rule, anew in every round.

    The attacker tries the rule, with what it remembers, on candidates and sends the one with the largest damage (the aim).

    Candidates: the honest mean, the client's own update or an honest client's deviation, less a push (ALIE, IPM and Min-Max are of
    this sort); the root update turned away from a push; copies of honest clients; what every other attack of this package would send that
    does not poison data. The best ones are refined: each client's row moves by itself, along the gradient through the rule where it has
    one, and at random. Last round's rows are a start too. In the end the finalists and all other attacks' rows are compared, so within a
    round and for its aim the search is never weaker than any of these attacks. Some of them need a root update: as for them, the server
    computes one for any rule.

    For a rule that sees only inner products (Krum, DnC, the geometric median, NNM or ARC around one ...), the mean, FLTrust and centred
    clipping, all candidates are evaluated side by side from one Gram matrix. So are the last ones: the rule itself is tried only on the
    best three other attacks and the best two finalists, unless the damage is a loss. If a row lies exactly on a threshold of the rule,
    rounding can decide which these are. Other rules are run on `tries` candidates, and on all of the last ones; those that treat each
    coordinate by itself, on some of the coordinates until then.

    The attacker does not know the server's draws: a rule with chance is tried with draws of the attacker's own. A server optimiser is not
    part of the search.

    Partial knowledge: the attacker knows the rule, but no honest update, no root update and nothing that the rule remembers. It supposes
    that honest updates are drawn from a normal distribution with the mean and covariance of the malicious clients' own.

    Parameters
    ----------
    aim : "sign", "mean", "cosine", "unseen", "loss", "class" or "backdoor", default "mean"
        What the global update u should do. "sign": go against the sign of the result without attack, as in the paper's adaptive attack.
        "mean": go against the honest clients' mean mu, by <u, mu>. "cosine": the same by cos(u, mu). "unseen": go against the part of mu
        that the root update does not see, and along the root update, so that the server has nothing to correct; "mean" if there is no
        root update. "loss": raise the loss on the malicious clients' own examples. "class": raise it on those of class `source`.
        "backdoor": lower the loss on their own examples with the trigger in them and its target as their label. The search takes a loss to
        first order; the finalists are compared by the loss itself.
    knowledge : "full" or "partial", default "full"
        Whether the attacker sees the honest clients' updates, the root update and what the rule remembers.
    guess_root : bool, default True
        Under partial knowledge: take the mean of the own updates for the root update. False: a rule with a root update cannot be tried,
        and the search is on the mean of clipped updates instead.
    candidates : int, default 500
        How many candidates to evaluate side by side. There are about 500; of more than this number a random part is taken.
    tries : int, default 60
        How many candidates to run a rule on that must be run.
    steps : int, default 8
        Steps of refinement; 0 for none.
    ahead : int, default 0
        Look-ahead over the rule's memory: how many more rounds everybody is supposed to send the same again. The damage is the mean over
        all of them.
    behave : int, default 0
        Behave, then turn: in so many rounds malicious clients first do as they should.
    coordinates : int, default 4096
        How many coordinates to run a rule on that treats each by itself. The finalists are tried on all.
    draws : int, default 3
        How often to draw for a rule with chance.
    source : int, default 0
        The class of the aim "class".
    trigger : Trigger or None, default None
        The pattern of the aim "backdoor"; other aims leave it out. `Experiment.on` replaces None by the data set's trigger.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import torch
    >>> from fltrust import FedAvg, Knowledge, Median, Searched
    >>> from fltrust.attacks.attack import Server
    >>> own, others = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 1.0], [4.0, 2.0]])
    >>> known = Knowledge(
    ...     own, others, root_update=None, n=5, tolerate=1, num_clients=5, generator=torch.Generator(),
    ...     client_ids=torch.arange(5), weights=torch.zeros(2), server=Server(Median(), memory=()),
    ... )
    >>> attack = Searched()
    >>> rows, memory = attack.step(known, attack.init(num_clients=5, like=torch.zeros(2)))
    >>> Median()(torch.cat((own, others))).update
    tensor([2., 1.])
    >>> Median()(torch.cat((rows, others))).update  # no row moves the first coordinate further
    tensor([2., 1.])
    >>> mean = replace(known, server=Server(FedAvg(), memory=()))
    >>> rows, memory = attack.step(mean, attack.init(num_clients=5, like=torch.zeros(2)))
    >>> bool((FedAvg()(torch.cat((rows, others))).update < 0).all())
    True
    """

    aim: AimName = "mean"
    knowledge: Level = "full"
    guess_root: bool = True
    candidates: int = 500
    tries: int = 60
    steps: int = 8
    ahead: int = 0
    behave: int = 0
    coordinates: int = 4096
    draws: int = 3
    source: int = 0
    trigger: Trigger | None = None

    on_host = True  # it may run any rule, those on the host too, and ask autograd for slopes that are not there

    def on_host_under(self, rule: Rule) -> bool:
        return not has_closed_form(as_seen(rule, self.ahead)) or rule.needs_generator or rule.holds_out

    @property
    def needs_root(self) -> bool:  # type: ignore[override]
        """The adaptive attacks among its rivals ask for a root update of any rule, and so must a search that is never weaker."""
        return self.knowledge == "full"

    @property
    def wanted_class(self) -> int | None:  # type: ignore[override]
        return self.source if self.aim == "class" else None

    def __post_init__(self) -> None:
        check_level(self.knowledge)
        check_choice("aim", self.aim, AimName)
        for name in ("candidates", "tries", "coordinates", "draws"):
            if getattr(self, name) < 1:
                raise InputError(f"a search needs at least 1 of its {name}, not {getattr(self, name)}")
        for name in ("steps", "ahead", "behave", "source"):
            if getattr(self, name) < 0:
                raise InputError(f"a search cannot have {getattr(self, name)} as {name}: give 0 or more")
        if self.aim != "backdoor":
            object.__setattr__(self, "trigger", None)  # what `Experiment.on` fills in would count as a backdoor to measure
        elif self.trigger is None:
            raise InputError(f"a search for a backdoor {NO_TRIGGER}")

    def init(self, num_clients: int, like: Tensor) -> Search:
        rivals = rivals_with(self.knowledge)
        count = num_clients if num_clients <= _MOST_REMEMBERED else 0
        return Search(
            torch.zeros((), dtype=torch.int64, device=like.device),
            Seen.nothing(like),
            torch.zeros(count, count + EXTRA + len(rivals) if count else 0, dtype=torch.float64, device=like.device),
            tuple(rival.init(num_clients, like) for rival in rivals),
        )

    @torch.no_grad()
    def step(self, known: Knowledge, memory: Search) -> tuple[Tensor, Search]:
        if len(known.own) == 0:
            return known.own, memory
        scene = scene_of(known, self.knowledge, self.guess_root, self.draws)
        known = scene.known  # what this attacker may look at, and nothing else
        rivals, possible, remembered = rivals_rows(rivals_with(self.knowledge), known, memory.rivals)
        shown = known.weights is not None
        seen = memory.seen.now(known) if shown else memory.seen
        last_update = memory.seen.update(known) if shown else torch.zeros_like(known.own[0])
        result = scene.undisturbed()
        aim = aim_of(self.aim, scene, result, self._altered())
        view, mean_seen, sent_for = viewed(scene, self.ahead)
        basis = basis_of(view, aim, result, last_update, mean_seen(rivals), possible)
        finalists, best = self._searched(view, aim, basis, memory.last)
        own = bounded(sent_for(bounded(finalists.to(basis.rows.dtype) @ basis.rows)))  # (F, m, d)
        rows = bounded(most_damaging(scene, aim, basis, rivals, own, self.ahead))
        rows = torch.where(memory.rounds < self.behave, known.own, rows)
        return rows, Search(memory.rounds + 1, seen, _kept(memory.last, known, best), remembered)

    def _altered(self) -> Altered | None:
        """The examples that the aims of one class and of a backdoor are about."""
        trigger, source = self.trigger, self.source

        def of_class(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            _check_labels(labels)
            return inputs, labels, labels == source

        def stamped(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            _check_labels(labels)
            assert trigger is not None
            return trigger.stamp(inputs), torch.full_like(labels, trigger.target), labels != trigger.target

        return {"class": of_class, "backdoor": stamped}.get(self.aim)

    def _searched(self, scene: Scene, aim: Aim, basis: Basis, last: Tensor) -> tuple[Tensor, Tensor]:
        """The finalists (F, m, k), and the refined one of them."""
        known, m = scene.known, scene.m
        damage = damage_of(scene, aim, basis, self.ahead, self.coordinates)
        candidates = candidates_in(basis, known.n, m)
        most = self.candidates if damage.side_by_side else self.tries
        if len(candidates) > most:
            chance = torch.rand(len(candidates), generator=known.generator, device=candidates.device)
            candidates = candidates[chance.topk(most).indices]
        values = damage(candidates).nan_to_num(-torch.inf)
        top = candidates[values.topk(min(_FINALISTS, len(values))).indices]
        pushes = basis.eye[known.n + PUSHES : known.n + EXTRA]
        starts, pushes, moves = (top, pushes, _MOVES) if damage.side_by_side else (top[:1], pushes[:0], _MOVES_BY_ROWS)
        jitter = torch.randn(starts.shape, generator=known.generator, device=starts.device, dtype=torch.float64)
        starts = torch.cat((starts, starts + _JITTER * jitter / jitter.shape[-1] ** 0.5, _recalled(last, known, basis)))
        best = refined(damage, starts, pushes, basis, self.steps, moves, known.generator)
        finalists = torch.cat((top, best[None]))
        if damage.side_by_side:  # the closed form leaves such rows out, and the rule would listen to what rounding makes of them
            finalists = torch.where(row_lengths(finalists, basis)[..., None] <= ZERO**0.5, 0, finalists)
        return finalists, best


def _check_labels(labels: Tensor) -> None:
    if labels.dim() != 1 or labels.is_floating_point():
        raise InputError("the aims 'class' and 'backdoor' need one class per example: these targets are of another kind")


def _places(known: Knowledge, last: Tensor) -> tuple[Tensor, Tensor]:
    """Where the malicious clients' rows (m, k) stand in what is remembered: clients by their ids, then the directions."""
    assert known.client_ids is not None
    directions = torch.arange(len(last), last.shape[1], device=last.device)
    return known.client_ids[: len(known.own)], torch.cat((known.client_ids, directions))


def _recalled(last: Tensor, known: Knowledge, basis: Basis) -> Tensor:
    """Last round's best rows as a start (1, m, k); no start where nothing is remembered."""
    if not len(last) or known.client_ids is None:
        return last.new_zeros(0, len(known.own), len(basis.rows))
    clients, columns = _places(known, last)
    return last[clients][:, columns][None]


def _kept(last: Tensor, known: Knowledge, best: Tensor) -> Tensor:
    if not len(last) or known.client_ids is None:
        return last
    clients, columns = _places(known, last)
    later = last.clone()
    later[clients[:, None], columns] = best
    return later
