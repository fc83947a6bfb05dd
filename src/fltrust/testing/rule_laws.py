"""The laws of rules. Each is a function that raises an AssertionError."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fltrust.errors import InputError
from fltrust.rules.rule import Aggregate, Received, Rule, take_step
from fltrust.state import Memory, copied, leaves, restored
from fltrust.testing.rounds import CLIENTS, INF, NAN, ROUNDS, D, N, close, memory_of, received, same


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
    ours, theirs = _rounds(rule, memory_of(rule, dtype), plain)[0], _rounds(rule, memory_of(rule, dtype), moved)[0]
    for one, other in zip(ours, theirs, strict=True):
        close(other.update, one.update)
        assert (one.shares is None) == (other.shares is None) == rule.by_coordinate
        if one.shares is not None and other.shares is not None:
            close(other.shares, one.shares[order])


def input_is_left_alone(rule: Rule, dtype: torch.dtype) -> None:
    """Updates, root update, sizes and memory stay as they are, and what comes out is no view of them."""
    memory = _rounds(rule, memory_of(rule, dtype), [received(1, dtype)])[1]
    view, before = received(2, dtype), copied(memory)
    tensors = [view.updates, view.root_update, view.sizes, view.client_ids, view.weights]
    copies = [tensor.clone() for tensor in tensors if tensor is not None]
    result, later = take_step(rule, view, memory)
    assert same(memory, before), "the memory that was given has changed"
    kept = copied(later)
    for part in _bits(result):
        part += 1
    assert all(torch.equal(now, then) for now, then in zip(tensors, copies, strict=True) if now is not None), "an input has changed"
    assert same(memory, before), "the result is a view of the memory"
    assert same(later, kept), "the result is a view of the next memory"


def shapes_and_dtypes_are_kept(rule: Rule, dtype: torch.dtype) -> None:
    """The update is (d,), shares are (n,), both of the updates' dtype; the memory keeps its names, shapes and dtypes."""
    memory = memory_of(rule, dtype)
    for t in range(1, ROUNDS + 1):
        result, later = take_step(rule, received(t, dtype), memory)  # take_step checks the result
        names = [(name, leaf.shape, leaf.dtype) for name, leaf in leaves(memory)]
        assert [(name, leaf.shape, leaf.dtype) for name, leaf in leaves(later)] == names
        assert not result.update.requires_grad
        memory = later


def the_same_again(rule: Rule, dtype: torch.dtype) -> None:
    """The same rounds give the same bits."""
    views = [[received(t, dtype) for t in range(1, ROUNDS + 1)] for _ in range(2)]
    (one, first), (other, second) = (_rounds(rule, memory_of(rule, dtype), seen) for seen in views)
    assert all(torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(_bits(x), _bits(y), strict=True))
    assert same(first, second)


def memory_continues(rule: Rule, dtype: torch.dtype) -> None:
    """A rule whose memory was stored and restored continues bit for bit."""
    (whole, end) = _rounds(rule, memory_of(rule, dtype), [received(t, dtype) for t in range(1, ROUNDS + 1)])
    _, half = _rounds(rule, memory_of(rule, dtype), [received(t, dtype) for t in (1, 2)])
    stored = {name: torch.from_numpy(leaf.numpy().copy()) for name, leaf in leaves(half)}
    again = restored(memory_of(rule, dtype), stored, "the memory")
    rest, last = _rounds(rule, again, [received(t, dtype) for t in range(3, ROUNDS + 1)])
    assert all(torch.equal(a, b) for x, y in zip(whole[2:], rest, strict=True) for a, b in zip(_bits(x), _bits(y), strict=True))
    assert same(end, last)


def unusable_rows_have_no_influence(rule: Rule, dtype: torch.dtype) -> None:
    """A row that holds NaN or infinity, or only zeros, changes nothing, wherever it stands and however often it comes."""
    if rule.needs_generator:
        return  # chance falls differently on another number of rows
    for bad in ("one NaN", "one infinity", "all NaN", "zeros"):
        for place in (0, 3, N - 1):
            mine, theirs = memory_of(rule, dtype), memory_of(rule, dtype)
            for t in (1, 2):
                view = received(t, dtype, n=N)
                assert view.client_ids is not None
                assert view.sizes is not None
                rest = torch.arange(N) != place
                without = replace(view, updates=view.updates[rest], sizes=view.sizes[rest], client_ids=view.client_ids[rest])
                expected, theirs = take_step(rule, without, theirs)
                result, mine = take_step(rule, _rows(view, lambda rows, bad=bad, place=place: _broken(rows, place, bad)), mine)  # type: ignore[misc]
                close(result.update, expected.update)
                if result.shares is not None and expected.shares is not None:
                    assert result.shares[place] == 0, f"{bad}: it has a share"
                    close(result.shares[rest], expected.shares)


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
    for bad in ("zeros", "all NaN", "one infinity"):
        view = received(1, dtype)
        assert view.root_update is not None
        rows = view.root_update + 0.1 * (view.updates - view.root_update)
        for place in range(most):
            rows = _broken(rows, place, bad)
        update = take_step(rule, replace(view, updates=rows), memory_of(rule, dtype))[0].update
        cosine = torch.cosine_similarity(update.double(), view.root_update.double(), dim=0)
        assert cosine > 0.5, f"{most} of {N} rows, {bad}: the update's cosine with the others is {cosine:.2f}"


def nobody_usable_nothing_moves(rule: Rule, dtype: torch.dtype) -> None:
    """If no row is usable the update is zero (or the root update, for a rule in which the server takes part), and nobody has a share."""
    for value in (NAN, INF, 0.0):
        memory = _rounds(rule, memory_of(rule, dtype), [received(1, dtype)])[1]
        view = _rows(received(2, dtype), lambda rows, value=value: torch.full_like(rows, value))  # type: ignore[misc]
        result, memory = take_step(rule, view, memory)
        if result.update.any() and rule.needs_root and view.root_update is not None:
            close(result.update, view.root_update)
        else:
            assert not result.update.any(), "the model moves"
        assert result.shares is None or not result.shares.any()
        after = take_step(rule, received(3, dtype), memory)[0]
        assert torch.isfinite(after.update).all(), "the memory is spoilt"


def an_unusable_root_stops_the_round(rule: Rule, dtype: torch.dtype) -> None:
    """A root update that is zero, NaN or infinite gives the zero update, for a rule that needs it and holds no better model."""
    if not rule.needs_root or rule.holds_out:
        return
    for value in (0.0, NAN, INF):
        view = received(1, dtype)
        assert view.root_update is not None
        result, _ = take_step(rule, replace(view, root_update=torch.full_like(view.root_update, value)), memory_of(rule, dtype))
        assert not result.update.any()
        assert result.shares is None or not result.shares.any()


def extreme_values_stay_finite(rule: Rule, dtype: torch.dtype) -> None:
    """Values at the edge of the number range never give NaN or infinity, neither now nor in the next round."""
    sizes = (1e38, 3e38, 1e-38, 1e-45) if dtype == torch.float32 else (1e308, 1e-308, 5e-324)
    for size in sizes:
        for all_rows in (True, False):
            memory = memory_of(rule, dtype)
            for t in (1, 2, 3):
                few = slice(None) if all_rows else slice(0, 4)

                def edge(rows: Tensor, few: slice = few, size: float = size) -> Tensor:
                    rows[few] = rows[few].sign() * size
                    return rows

                result, memory = take_step(rule, _rows(received(t, dtype), edge), memory)
                assert all(torch.isfinite(part).all() for part in _bits(result)), f"values of {size}"


def one_client_is_enough_or_refused(rule: Rule, dtype: torch.dtype) -> None:
    """One client gives a finite update or a clear error (InputError)."""
    try:
        result, _ = take_step(rule, received(1, dtype, n=1), memory_of(rule, dtype))
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


def _rounds(rule: Rule, memory: Memory, seen: Iterable[Received]) -> tuple[list[Aggregate], Memory]:
    results = []
    for view in seen:
        result, memory = take_step(rule, view, memory)
        results.append(result)
    return results, memory


def _bits(result: Aggregate) -> list[Tensor]:
    return [part for part in result if part is not None]


def _rows(view: Received, change: Callable[[Tensor], Tensor]) -> Received:
    return replace(view, updates=change(view.updates.clone()))
