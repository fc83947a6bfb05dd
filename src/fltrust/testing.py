"""The laws that every rule and every attack obeys, for yours too: `check_rule(MyRule())`, `check_attack(MyAttack())`.

>>> from fltrust import FedAvg
>>> from fltrust.testing import check_rule
>>> check_rule(FedAvg())

A law is a function that raises an AssertionError; `RULE_LAWS` and `ATTACK_LAWS` list them, for a test per law.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fltrust.attacks import attack as attacks
from fltrust.attacks.attack import Attack, Knowledge, MaliciousClient, Server
from fltrust.rules.clipping import CentredClipping
from fltrust.rules.rule import Aggregate, Received, Rule, take_step
from fltrust.state import Memory, copied, leaves, restored

CLIENTS = 16  # N, in the federation
N, D, ROUNDS = 11, 37, 4
NAN, INF = float("nan"), float("inf")


def check_rule(rule: Rule, dtype: torch.dtype = torch.float32) -> None:
    """Raises an AssertionError that names each law that the rule breaks, and how.

    Parameters
    ----------
    rule : Rule
        The rule to check, with its parameters.
    dtype : torch.dtype, default torch.float32
        Of the updates that the laws are tried on.

    Examples
    --------
    >>> from fltrust import Aggregate, Median, Rule
    >>> from fltrust.testing import check_rule
    >>> check_rule(Median())
    >>> class First(Rule):
    ...     def aggregate(self, received):
    ...         return Aggregate(received.updates[0], None)
    >>> check_rule(First())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    AssertionError: First() breaks ... laws:
      The order of the rows does not matter, ...
    """
    _check(rule, RULE_LAWS, dtype)


def check_attack(attack: Attack, dtype: torch.dtype = torch.float32) -> None:
    """Raises an AssertionError that names each law that the attack breaks, and how.

    Parameters
    ----------
    attack : Attack
        The attack to check, with its parameters.
    dtype : torch.dtype, default torch.float32
        Of the updates that the laws are tried on.

    Examples
    --------
    >>> from fltrust import LabelFlip
    >>> from fltrust.testing import check_attack
    >>> check_attack(LabelFlip())
    """
    _check(attack, ATTACK_LAWS, dtype)


def _check(subject: Any, laws: list[Callable[..., None]], dtype: torch.dtype) -> None:
    broken = []
    for law in laws:
        try:
            law(subject, dtype)
        except Exception as problem:  # whatever it is, the law does not hold
            how = str(problem).strip().splitlines() or [""]
            broken.append(f"{(law.__doc__ or '').splitlines()[0]} ({type(problem).__name__}: {how[0]})")
    if broken:
        raise AssertionError(f"{subject} breaks {len(broken)} of {len(laws)} laws:\n  " + "\n  ".join(broken))


# ---------------------------------------------------------------- what laws are tried on


def draw(n: int = N, d: int = D, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Updates (n, d) around a common direction, a root update (d,), sizes (n,)."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=generator, dtype=torch.float64)
    updates = common + 2 * torch.randn(n, d, generator=generator, dtype=torch.float64)
    root_update = 3 * common + torch.randn(d, generator=generator, dtype=torch.float64)
    sizes = torch.randint(1, 50, (n,), generator=generator)
    return updates.to(dtype), root_update.to(dtype), sizes


def received(seed: int, dtype: torch.dtype, n: int = N) -> Received:
    """What a server receives in round `seed`: some of the clients, not always the same."""
    updates, root_update, sizes = draw(n, D, dtype, seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(CLIENTS, generator=generator)[:n].sort().values
    weights = torch.randn(D, generator=generator, dtype=torch.float64).to(dtype)
    return Received(
        updates,
        root_update,
        sizes,
        client_ids=ids,
        round=torch.tensor(seed),
        generator=torch.Generator().manual_seed(100 + seed),
        weights=weights,
        root_loss=lambda models: (models - weights - root_update).square().sum(1),
    )


def _rounds(rule: Rule, memory: Memory, seen: Iterator[Received] | list[Received]) -> tuple[list[Aggregate], Memory]:
    results = []
    for view in seen:
        result, memory = take_step(rule, view, memory)
        results.append(result)
    return results, memory


def _memory(subject: Rule | Attack, dtype: torch.dtype) -> Memory:
    return subject.init(CLIENTS, torch.empty(D, dtype=dtype))


def _close(actual: Tensor, expected: Tensor) -> None:
    tolerance = 2e-5 if expected.dtype == torch.float32 else 1e-11
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * scale)


def _same(one: Memory, other: Memory) -> bool:
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(one), leaves(other), strict=True))


def _bits(result: Aggregate) -> list[Tensor]:
    return [part for part in result if part is not None]


def _rows(view: Received, change: Callable[[Tensor], Tensor]) -> Received:
    return replace(view, updates=change(view.updates.clone()))


# ---------------------------------------------------------------- laws of rules


def order_does_not_matter(rule: Rule, dtype: torch.dtype) -> None:
    """The order of the rows does not matter, in any round, if sizes and ids move with them."""
    views = [received(t, dtype) for t in range(1, ROUNDS + 1)]
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    moved = []
    for view in views:
        assert view.client_ids is not None
        assert view.sizes is not None
        moved.append(
            replace(
                view,
                updates=view.updates[order],
                sizes=view.sizes[order],
                client_ids=view.client_ids[order],
                generator=torch.Generator().manual_seed(0),
            )
        )
    plain = [replace(view, generator=torch.Generator().manual_seed(0)) for view in views]
    if rule.needs_generator:
        return  # which rows chance picks depends on their order
    ours, theirs = _rounds(rule, _memory(rule, dtype), plain)[0], _rounds(rule, _memory(rule, dtype), moved)[0]
    for one, other in zip(ours, theirs, strict=True):
        _close(other.update, one.update)
        assert (one.shares is None) == (other.shares is None) == rule.by_coordinate
        if one.shares is not None and other.shares is not None:
            _close(other.shares, one.shares[order])


def input_is_left_alone(rule: Rule, dtype: torch.dtype) -> None:
    """Updates, root update, sizes and memory stay as they are, and what comes out is no view of them."""
    memory = _rounds(rule, _memory(rule, dtype), [received(1, dtype)])[1]
    view, before = received(2, dtype), copied(memory)
    tensors = [view.updates, view.root_update, view.sizes, view.client_ids, view.weights]
    copies = [tensor.clone() for tensor in tensors if tensor is not None]
    result, later = take_step(rule, view, memory)
    assert _same(memory, before), "the memory that was given has changed"
    kept = copied(later)
    for part in _bits(result):
        part += 1
    assert all(torch.equal(now, then) for now, then in zip(tensors, copies, strict=True) if now is not None), "an input has changed"
    assert _same(memory, before), "the result is a view of the memory"
    assert _same(later, kept), "the result is a view of the next memory"


def shapes_and_dtypes_are_kept(rule: Rule, dtype: torch.dtype) -> None:
    """The update is (d,), shares are (n,), both of the updates' dtype; the memory keeps its names, shapes and dtypes."""
    memory = _memory(rule, dtype)
    for t in range(1, ROUNDS + 1):
        result, later = take_step(rule, received(t, dtype), memory)  # take_step checks the result
        names = [(name, leaf.shape, leaf.dtype) for name, leaf in leaves(memory)]
        assert [(name, leaf.shape, leaf.dtype) for name, leaf in leaves(later)] == names
        assert not result.update.requires_grad
        memory = later


def the_same_again(rule: Rule, dtype: torch.dtype) -> None:
    """The same rounds give the same bits."""
    views = [[received(t, dtype) for t in range(1, ROUNDS + 1)] for _ in range(2)]
    (one, first), (other, second) = (_rounds(rule, _memory(rule, dtype), seen) for seen in views)
    assert all(torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(_bits(x), _bits(y), strict=True))
    assert _same(first, second)


def memory_continues(rule: Rule, dtype: torch.dtype) -> None:
    """A rule whose memory was stored and restored continues bit for bit."""
    (whole, end) = _rounds(rule, _memory(rule, dtype), [received(t, dtype) for t in range(1, ROUNDS + 1)])
    _, half = _rounds(rule, _memory(rule, dtype), [received(t, dtype) for t in (1, 2)])
    stored = {name: torch.from_numpy(leaf.numpy().copy()) for name, leaf in leaves(half)}
    again = restored(_memory(rule, dtype), stored, "the memory")
    rest, last = _rounds(rule, again, [received(t, dtype) for t in range(3, ROUNDS + 1)])
    assert all(torch.equal(a, b) for x, y in zip(whole[2:], rest, strict=True) for a, b in zip(_bits(x), _bits(y), strict=True))
    assert _same(end, last)


def unusable_rows_have_no_influence(rule: Rule, dtype: torch.dtype) -> None:
    """A row that holds NaN or infinity, or only zeros, changes nothing, wherever it stands and however often it comes."""
    if rule.needs_generator:
        return  # chance falls differently on another number of rows
    for bad in ("one NaN", "one infinity", "all NaN", "zeros"):
        for place in (0, 3, N - 1):
            mine, theirs = _memory(rule, dtype), _memory(rule, dtype)
            for t in (1, 2):
                view = received(t, dtype, n=N)
                assert view.client_ids is not None
                assert view.sizes is not None
                rest = torch.arange(N) != place
                without = replace(view, updates=view.updates[rest], sizes=view.sizes[rest], client_ids=view.client_ids[rest])
                expected, theirs = take_step(rule, without, theirs)
                result, mine = take_step(rule, _rows(view, lambda rows, bad=bad, place=place: _broken(rows, place, bad)), mine)  # type: ignore[misc]
                _close(result.update, expected.update)
                if result.shares is not None and expected.shares is not None:
                    assert result.shares[place] == 0, f"{bad}: it has a share"
                    _close(result.shares[rest], expected.shares)


def _broken(rows: Tensor, place: int, bad: str) -> Tensor:
    if bad == "one NaN":
        rows[place, -1] = NAN
    elif bad == "one infinity":
        rows[place, 0] = -INF
    else:
        rows[place] = NAN if bad == "all NaN" else 0.0
    return rows


def dropped_rows_do_not_end_training(rule: Rule, dtype: torch.dtype) -> None:
    """If as many rows are unusable as the rule tolerates, the others still move the model, and in their direction."""
    most = max(1, getattr(rule, "tolerate", getattr(rule, "trim", 1)))
    for bad in ("zero", "nan", "infinite"):
        view = received(1, dtype)
        assert view.root_update is not None
        rows = view.root_update + 0.1 * (view.updates - view.root_update)
        for place in range(most):
            rows = _broken(rows, place, bad)
        update = take_step(rule, replace(view, updates=rows), _memory(rule, dtype))[0].update
        cosine = torch.cosine_similarity(update.double(), view.root_update.double(), dim=0)
        assert cosine > 0.5, f"{most} of {N} rows are {bad}: the update's cosine with the others is {cosine:.2f}"


def nobody_usable_nothing_moves(rule: Rule, dtype: torch.dtype) -> None:
    """If no row is usable the update is zero (or the root update, for a rule in which the server takes part), and nobody has a share."""
    for value in (NAN, INF, 0.0):
        memory = _rounds(rule, _memory(rule, dtype), [received(1, dtype)])[1]
        view = _rows(received(2, dtype), lambda rows, value=value: torch.full_like(rows, value))  # type: ignore[misc]
        result, memory = take_step(rule, view, memory)
        if result.update.any() and rule.needs_root and view.root_update is not None:
            _close(result.update, view.root_update)
        else:
            assert not result.update.any(), "the model moves"
        assert result.shares is None or not result.shares.any()
        after = take_step(rule, received(3, dtype), memory)[0]
        assert torch.isfinite(after.update).all(), "the memory is spoilt"


def an_unusable_root_stops_the_round(rule: Rule, dtype: torch.dtype) -> None:
    """A root update that is zero, NaN or infinite gives the zero update, for a rule that needs it."""
    if not rule.needs_root:
        return
    for value in (0.0, NAN, INF):
        view = received(1, dtype)
        assert view.root_update is not None
        result, _ = take_step(rule, replace(view, root_update=torch.full_like(view.root_update, value)), _memory(rule, dtype))
        assert not result.update.any()
        assert result.shares is None or not result.shares.any()


def extreme_values_stay_finite(rule: Rule, dtype: torch.dtype) -> None:
    """Values at the edge of the number range never give NaN or infinity, neither now nor in the next round."""
    sizes = (1e38, 3e38, 1e-38, 1e-45) if dtype == torch.float32 else (1e308, 1e-308, 5e-324)
    for size in sizes:
        for all_rows in (True, False):
            memory = _memory(rule, dtype)
            for t in (1, 2, 3):
                few = slice(None) if all_rows else slice(0, 4)

                def edge(rows: Tensor, few: slice = few, size: float = size) -> Tensor:
                    rows[few] = rows[few].sign() * size
                    return rows

                result, memory = take_step(rule, _rows(received(t, dtype), edge), memory)
                assert all(torch.isfinite(part).all() for part in _bits(result)), f"values of {size}"


def one_client_is_enough_or_refused(rule: Rule, dtype: torch.dtype) -> None:
    """One client gives a finite update or a clear error (InputError)."""
    from fltrust.errors import InputError

    try:
        result, _ = take_step(rule, received(1, dtype, n=1), _memory(rule, dtype))
    except InputError:
        return
    assert all(torch.isfinite(part).all() for part in _bits(result))


def no_value_decides_the_path(rule: Rule, dtype: torch.dtype) -> None:
    """No `.item()`, no `if tensor:`, no boolean indexing: they would break a CUDA graph. Not for a rule that says on_host.

    Fake tensors have no values, so each of these raises.
    """
    if rule.on_host:
        return
    with FakeTensorMode() as fake:
        view, memory = received(1, dtype), rule.init(CLIENTS, torch.empty(D, dtype=dtype))
        parts: dict[str, Any] = {
            name: fake.from_tensor(tensor) if not isinstance(tensor, torch._subclasses.FakeTensor) else tensor
            for name in ("updates", "root_update", "sizes", "client_ids", "round", "weights")
            if (tensor := getattr(view, name)) is not None
        }
        take_step(rule, replace(view, **parts), memory)


RULE_LAWS: list[Callable[[Rule, torch.dtype], None]] = [
    order_does_not_matter,
    input_is_left_alone,
    shapes_and_dtypes_are_kept,
    the_same_again,
    memory_continues,
    unusable_rows_have_no_influence,
    dropped_rows_do_not_end_training,
    nobody_usable_nothing_moves,
    an_unusable_root_stops_the_round,
    extreme_values_stay_finite,
    one_client_is_enough_or_refused,
    no_value_decides_the_path,
]


# ---------------------------------------------------------------- laws of attacks


def known(attack: Attack, seed: int, dtype: torch.dtype, m: int = 3, n: int = N) -> Knowledge:
    """What this attack may know in round `seed`: some of the clients, not always the same, the malicious first."""
    updates, root_update, _ = draw(n, D, dtype, seed)
    full = attack.knowledge == "full"
    malicious = torch.arange(m)
    honest = m + torch.randperm(CLIENTS - m, generator=torch.Generator().manual_seed(seed))[: n - m].sort().values
    weights = draw(1, D, dtype, 100 + seed)[1]
    return Knowledge(
        own=updates[:m],
        others=updates[m:] if full else None,
        root_update=root_update if full else None,
        n=n,
        tolerate=m,
        num_clients=CLIENTS,
        generator=torch.Generator().manual_seed(seed),
        client_ids=torch.cat((malicious, honest)),
        round=torch.tensor(seed),
        weights=weights,
        global_lr=torch.tensor(0.5),
        server=Server(CentredClipping(), weights if full else None),
        own_loss=lambda models: (models - weights - updates[0]).square().sum(1),
    )


def _attacked(attack: Attack, memory: Memory, seen: list[Knowledge]) -> tuple[list[Tensor], Memory]:
    sent = []
    for view in seen:
        rows, memory = attacks.take_step(attack, view, memory)
        sent.append(rows)
    return sent, memory


def crafting_leaves_its_input_alone(attack: Attack, dtype: torch.dtype) -> None:
    """Updates, root update and memory stay as they are; rows keep shape and dtype and are no view of the input."""
    memory = _attacked(attack, _memory(attack, dtype), [known(attack, 1, dtype)])[1]
    view, before = known(attack, 2, dtype), copied(memory)
    tensors = [view.own, view.others, view.root_update, view.weights]
    copies = [None if tensor is None else tensor.clone() for tensor in tensors]
    rows, later = attacks.take_step(attack, view, memory)
    kept = copied(later)
    for now, then in zip(tensors, copies, strict=True):
        assert now is None or then is None or torch.equal(now, then), "an input has changed"
    assert _same(memory, before), "the memory that was given has changed"
    if rows is not view.own:
        rows += 1
    assert _same(later, kept), "the rows are a view of the next memory"


def crafting_again_gives_the_same(attack: Attack, dtype: torch.dtype) -> None:
    """The same rounds with the same noise give the same bits."""
    one, other = (_attacked(attack, _memory(attack, dtype), [known(attack, t, dtype) for t in range(1, ROUNDS + 1)])[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def attacks_memory_continues(attack: Attack, dtype: torch.dtype) -> None:
    """An attack whose memory was stored and restored continues bit for bit."""
    whole, end = _attacked(attack, _memory(attack, dtype), [known(attack, t, dtype) for t in range(1, ROUNDS + 1)])
    _, half = _attacked(attack, _memory(attack, dtype), [known(attack, t, dtype) for t in (1, 2)])
    stored = {name: torch.from_numpy(leaf.numpy().copy()) for name, leaf in leaves(half)}
    rest, last = _attacked(
        attack, restored(_memory(attack, dtype), stored, "the memory"), [known(attack, t, dtype) for t in range(3, ROUNDS + 1)]
    )
    assert all(torch.equal(a, b) for a, b in zip(whole[2:], rest, strict=True))
    assert _same(end, last)


def crafted_rows_are_finite(attack: Attack, dtype: torch.dtype) -> None:
    """Honest updates that are broken do not break what is crafted from them, now or later. (Own rows that are broken may be sent on.)"""
    for value in (NAN, INF):
        memory = _memory(attack, dtype)
        for t in (1, 2):
            view = known(attack, t, dtype)
            if view.others is not None:
                others = view.others.clone()
                others[1, 2] = value
                view = replace(view, others=others)
            rows, memory = attacks.take_step(attack, view, memory)
            assert torch.isfinite(rows).all()


def nobody_malicious_nothing_sent(attack: Attack, dtype: torch.dtype) -> None:
    """Without malicious clients there are no rows; alone among themselves malicious clients can craft too."""
    rows, memory = attacks.take_step(attack, known(attack, 1, dtype, m=0), _memory(attack, dtype))
    assert rows.shape == (0, D)
    rows, _ = attacks.take_step(attack, known(attack, 2, dtype, m=4, n=4), memory)
    assert rows.shape == (4, D)


def odd_rounds_do_not_break_an_attack(attack: Attack, dtype: torch.dtype) -> None:
    """Honest updates that are all equal, all zero or tiny, and a single honest client give finite rows or a clear error (InputError)."""
    from fltrust.errors import InputError

    for odd in ("equal", "zero", "tiny", "one honest"):
        memory = _memory(attack, dtype)
        for t in (1, 2):
            view = known(attack, t, dtype, n=4 if odd == "one honest" else N)
            if odd != "one honest":
                value = {"equal": 1.0, "zero": 0.0, "tiny": 1e-38}[odd]
                others = None if view.others is None else view.others[:1].expand_as(view.others) * value
                view = replace(view, others=others, own=view.own[:1].expand_as(view.own) * value)
            try:
                rows, memory = attacks.take_step(attack, view, memory)
            except InputError:
                break
            assert torch.isfinite(rows).all(), f"honest updates: {odd}"


def poisoning_keeps_examples_and_labels_together(attack: Attack, dtype: torch.dtype) -> None:
    """Poisoned data have as many labels as examples, labels of the task, and the originals stay as they are."""
    images, labels = torch.rand(8, 1, 28, 28), torch.arange(8)
    if attack.trigger is not None and any(len(spot) == 1 for spot in attack.trigger.where):
        images = torch.rand(8, 1 + max(spot[0] for spot in attack.trigger.where))
    before = images.clone(), labels.clone()
    poisoned, flipped = attack.poison(images, labels, MaliciousClient(num_classes=10, index=1))
    assert len(poisoned) == len(flipped)
    assert poisoned.shape[1:] == images.shape[1:]
    assert ((flipped >= 0) & (flipped < 10)).all()
    assert torch.equal(images, before[0])
    assert torch.equal(labels, before[1])


def labels_of_the_round_are_labels(attack: Attack, dtype: torch.dtype) -> None:
    """New labels of a round have the shape and kind of the old ones, are classes of the task, and no value decides the path to them."""
    labels, outputs = torch.arange(8), torch.randn(8, 10, generator=torch.Generator().manual_seed(0), dtype=dtype)
    before = labels.clone()
    changed = attacks.relabelled(attack, labels, outputs)
    assert ((changed >= 0) & (changed < 10)).all()
    assert torch.equal(labels, before)
    with FakeTensorMode() as fake:
        attacks.relabelled(attack, fake.from_tensor(labels), fake.from_tensor(outputs))


def no_value_decides_what_is_crafted(attack: Attack, dtype: torch.dtype) -> None:
    """No `.item()`, no `if tensor:`, no boolean indexing: they would break a CUDA graph."""
    if attack.on_host:
        return
    with FakeTensorMode() as fake:
        view, memory = known(attack, 1, dtype), attack.init(CLIENTS, torch.empty(D, dtype=dtype))
        parts: dict[str, Any] = {
            name: fake.from_tensor(tensor) if not isinstance(tensor, torch._subclasses.FakeTensor) else tensor
            for name in ("own", "others", "root_update", "client_ids", "round", "weights", "global_lr")
            if (tensor := getattr(view, name)) is not None
        }
        attacks.take_step(attack, replace(view, **parts), memory)


ATTACK_LAWS: list[Callable[[Attack, torch.dtype], None]] = [
    crafting_leaves_its_input_alone,
    crafting_again_gives_the_same,
    attacks_memory_continues,
    crafted_rows_are_finite,
    nobody_malicious_nothing_sent,
    odd_rounds_do_not_break_an_attack,
    poisoning_keeps_examples_and_labels_together,
    labels_of_the_round_are_labels,
    no_value_decides_what_is_crafted,
]
