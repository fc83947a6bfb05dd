"""The carry: all that one round hands to the next. It is a plain value, so it can be stored, copied and restored.

A memory is a tensor, or a (named) tuple of memories; `()` is no memory. A (N, d) tensor in it has a row per client of the federation.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fltrust.errors import InputError

Memory = Any  # Tensor | tuple[Memory, ...]
Tree = TypeVar("Tree")


class State(NamedTuple):
    """All that one round hands to the next. A round returns a new state and leaves the old one as it is.

    Parameters
    ----------
    weights : Tensor
        (d,), the global model.
    rule : memory, default ()
        What the rule remembers.
    attack : memory, default ()
        What the attacker remembers.
    clients : memory, default ()
        The clients' momentum.
    server : memory, default ()
        What the server's optimiser remembers.

    Examples
    --------
    >>> import torch
    >>> from fltrust import State
    >>> State(weights=torch.zeros(2))
    State(weights=tensor([0., 0.]), rule=(), attack=(), clients=(), server=())
    """

    weights: Tensor
    rule: Memory = ()
    attack: Memory = ()
    clients: Memory = ()
    server: Memory = ()


def leaves(memory: Memory, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name: `weights`, `rule.centre`, `server.1` ..."""
    if isinstance(memory, Tensor):
        yield name, memory
        return
    if not isinstance(memory, tuple):
        raise InputError(f"a memory is a tensor or a tuple of memories, and {name or 'this one'} is a {type(memory).__name__}")
    fields = getattr(memory, "_fields", range(len(memory)))
    for field, part in zip(fields, memory, strict=True):
        yield from leaves(part, f"{name}.{field}" if name else str(field))


def rebuilt(memory: Tree, tensors: Iterator[Tensor]) -> Tree:
    """The same structure with other tensors, in the order of `leaves`."""
    if isinstance(memory, Tensor):
        return next(tensors)  # type: ignore[return-value]
    parts = [rebuilt(part, tensors) for part in memory]  # type: ignore[attr-defined]
    make: Any = getattr(memory, "_make", tuple)
    return make(parts)  # type: ignore[no-any-return]


def copied(memory: Tree, device: torch.device | str | None = None) -> Tree:
    """A copy that shares nothing with the original."""
    return rebuilt(memory, (leaf.to(device=device or leaf.device, copy=True) for _, leaf in leaves(memory)))


def move_into(target: Memory, source: Memory) -> None:
    """Writes a memory's values into another of the same structure, whose tensors stay where they are (a CUDA graph's do)."""
    old, new = [leaf for _, leaf in leaves(target)], [leaf for _, leaf in leaves(source)]
    places = {leaf.data_ptr() for leaf in old}
    # What moves from one place to another (last round's weights, say) is read before anything is overwritten.
    new = [leaf.clone() if leaf is not there and leaf.data_ptr() in places else leaf for leaf, there in zip(new, old, strict=True)]
    for there, leaf in zip(old, new, strict=True):
        if there is not leaf:
            there.copy_(leaf)


def layout(memory: Memory) -> list[tuple[str, torch.Size, torch.dtype]]:
    """The names, shapes and dtypes of a memory, which no round may change."""
    return [(name, leaf.shape, leaf.dtype) for name, leaf in leaves(memory)]


def restored(like: Tree, saved: Mapping[str, Tensor], source: object) -> Tree:
    """A memory read back. What was saved for another rule, attack, model or number of clients is refused by name."""
    expected = dict(leaves(like))
    for name in sorted(expected.keys() ^ saved.keys()):
        what = "lacks" if name in expected else "holds something else:"
        raise InputError(f"{source} is of another experiment: it {what} {name!r}")
    for name, leaf in expected.items():
        there = saved[name]
        if (there.shape, there.dtype) != (leaf.shape, leaf.dtype):
            raise InputError(
                f"{source} is of another experiment: {name!r} is {there.dtype} of shape {tuple(there.shape)}, "
                f"expected {leaf.dtype} of shape {tuple(leaf.shape)}"
            )
    return rebuilt(like, (saved[name].to(leaf.device) for name, leaf in expected.items()))


def grown(memory: Tree, fresh: Tree) -> Tree:
    """A memory for more clients: the rows that were there, and those of `fresh` for the new ones."""

    def parts() -> Iterator[Tensor]:
        for (_, old), (_, new) in zip(leaves(memory), leaves(fresh), strict=True):
            if old.shape != new.shape and (old.ndim == 0 or old.shape[1:] != new.shape[1:]):
                raise InputError("a memory that is not a row per client cannot grow when clients join")
            yield old if old.shape == new.shape else torch.cat((old, new[len(old) :]))

    return rebuilt(fresh, parts())
