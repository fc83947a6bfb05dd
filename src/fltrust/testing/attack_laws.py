"""The laws of attacks. Each is a function that raises an AssertionError."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fltrust.attacks import attack as attacks
from fltrust.attacks.attack import Attack, Knowledge, MaliciousClient
from fltrust.errors import InputError
from fltrust.state import Memory, copied, leaves, restored
from fltrust.testing.rounds import CLIENTS, INF, NAN, ROUNDS, D, N, known, memory_of, same


def _attacked(attack: Attack, memory: Memory, seen: list[Knowledge]) -> tuple[list[Tensor], Memory]:
    sent = []
    for view in seen:
        rows, memory = attacks.take_step(attack, view, memory)
        sent.append(rows)
    return sent, memory


def crafting_leaves_its_input_alone(attack: Attack, dtype: torch.dtype) -> None:
    """Updates, root update and memory stay as they are; rows keep shape and dtype and are no view of the input."""
    memory = _attacked(attack, memory_of(attack, dtype), [known(attack, 1, dtype)])[1]
    view, before = known(attack, 2, dtype), copied(memory)
    tensors = [view.own, view.others, view.root_update, view.weights]
    copies = [None if tensor is None else tensor.clone() for tensor in tensors]
    rows, later = attacks.take_step(attack, view, memory)
    kept = copied(later)
    for now, then in zip(tensors, copies, strict=True):
        assert now is None or then is None or torch.equal(now, then), "an input has changed"
    assert same(memory, before), "the memory that was given has changed"
    if rows is not view.own:
        rows += 1
    assert same(later, kept), "the rows are a view of the next memory"


def crafting_again_gives_the_same(attack: Attack, dtype: torch.dtype) -> None:
    """The same rounds with the same noise give the same bits."""
    one, other = (_attacked(attack, memory_of(attack, dtype), [known(attack, t, dtype) for t in range(1, ROUNDS + 1)])[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def attacks_memory_continues(attack: Attack, dtype: torch.dtype) -> None:
    """An attack whose memory was stored and restored continues bit for bit."""
    whole, end = _attacked(attack, memory_of(attack, dtype), [known(attack, t, dtype) for t in range(1, ROUNDS + 1)])
    _, half = _attacked(attack, memory_of(attack, dtype), [known(attack, t, dtype) for t in (1, 2)])
    stored = {name: torch.from_numpy(leaf.numpy().copy()) for name, leaf in leaves(half)}
    rest, last = _attacked(
        attack, restored(memory_of(attack, dtype), stored, "the memory"), [known(attack, t, dtype) for t in range(3, ROUNDS + 1)]
    )
    assert all(torch.equal(a, b) for a, b in zip(whole[2:], rest, strict=True))
    assert same(end, last)


def crafted_rows_are_finite(attack: Attack, dtype: torch.dtype) -> None:
    """Honest updates that are broken do not break what is crafted from them, now or later. (Own rows that are broken may be sent on.)"""
    for value in (NAN, INF):
        memory = memory_of(attack, dtype)
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
    rows, memory = attacks.take_step(attack, known(attack, 1, dtype, m=0), memory_of(attack, dtype))
    assert rows.shape == (0, D)
    rows, _ = attacks.take_step(attack, known(attack, 2, dtype, m=4, n=4), memory)
    assert rows.shape == (4, D)


def odd_rounds_do_not_break_an_attack(attack: Attack, dtype: torch.dtype) -> None:
    """Honest updates that are all equal, all zero or tiny, and a single honest client give finite rows or a clear error (InputError)."""
    for odd in ("equal", "zero", "tiny", "one honest"):
        memory = memory_of(attack, dtype)
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
