"""What a rule remembers between the rounds of a federation, and whose row of it is whose.

    memory-T.safetensors    in the run directory: the memory after round T, beside the model of that round

Nodes join while a federation runs, so the memory grows: each node gets its row when it first sends an update, and keeps it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from fltrust.errors import InputError
from fltrust.rules import Rule
from fltrust.state import Memory, grown, leaves, restored

_NODES = "nodes"


@dataclass(frozen=True)
class Remembered:
    """A rule's memory, and the nodes that its rows belong to."""

    memory: Memory = ()
    nodes: tuple[int, ...] = ()

    def knowing(self, rule: Rule, nodes: Sequence[int], like: Tensor) -> "Remembered":
        """The same with a row for each of these nodes too, where the rule remembers each node; `like` is an update (d,)."""
        new = tuple(sorted(set(nodes) - set(self.nodes))) if rule.needs_ids else ()
        fresh = rule.init(len(self.nodes) + len(new), like)
        first = not self.nodes and not list(leaves(self.memory))
        return Remembered(fresh if first else grown(self.memory, fresh), self.nodes + new)

    def ids_of(self, nodes: Sequence[int]) -> Tensor | None:
        """The rows (n,) of these nodes; None where the rule does not tell nodes apart."""
        place = {node: i for i, node in enumerate(self.nodes)}
        return torch.tensor([place[node] for node in nodes], dtype=torch.int64) if self.nodes else None


def write(remembered: Remembered) -> bytes:
    tensors = {f"memory.{name}": leaf.numpy() for name, leaf in leaves(remembered.memory)}
    return save({**tensors, _NODES: np.array(remembered.nodes, np.uint64)})


def read(path: Path, rule: Rule, like: Tensor) -> Remembered:
    """The memory in a file, if it is this rule's and this model's."""
    try:
        saved = load(path.read_bytes())
        nodes = tuple(int(node) for node in saved.pop(_NODES))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as problem:
        raise InputError(f"{path} is missing or damaged ({problem}): put it back, or choose another directory") from problem
    expected = rule.init(len(nodes), like)
    stored = {name.removeprefix("memory").removeprefix("."): torch.from_numpy(array.copy()) for name, array in saved.items()}
    return Remembered(restored(expected, stored, path), nodes)
