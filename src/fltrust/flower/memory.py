"""What a federation's server remembers between rounds: the rule's memory, whose row of it is whose, and the server optimiser's.

    memory-T.safetensors    in the run directory: what was remembered after round T, beside the model of that round

Nodes join while a federation runs, so a rule's memory grows: each node gets its row when it first sends an update, and keeps it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from fltrust.errors import InputError
from fltrust.flower.layout import hash_of
from fltrust.rules import Rule
from fltrust.state import Memory, grown, leaves, restored
from fltrust.training.optimisers import ServerOptimiser

_NODES = "nodes"


@dataclass(frozen=True)
class Remembered:
    """A rule's memory, the nodes that its rows belong to, and the memory of the server's optimiser."""

    rule: Memory = ()
    nodes: tuple[int, ...] = ()
    server: Memory = ()

    @staticmethod
    def first(rule: Rule, server: ServerOptimiser, like: Tensor) -> "Remembered":
        """What is remembered before the first round; `like` is an update (d,)."""
        return Remembered(rule.init(0, like), (), server.init(like))

    def knowing(self, rule: Rule, nodes: Sequence[int], like: Tensor) -> "Remembered":
        """The same with a row for each of these nodes too, where the rule remembers each node."""
        new = tuple(sorted(set(nodes) - set(self.nodes))) if rule.needs_ids else ()
        if not new:
            return self
        return replace(self, rule=grown(self.rule, rule.init(len(self.nodes) + len(new), like)), nodes=self.nodes + new)

    def ids_of(self, nodes: Sequence[int]) -> Tensor | None:
        """The rows (n,) of these nodes; None where the rule does not tell nodes apart."""
        place = {node: i for i, node in enumerate(self.nodes)}
        return torch.tensor([place[node] for node in nodes], dtype=torch.int64) if self.nodes else None


def write(remembered: Remembered) -> bytes:
    tensors = dict(leaves((remembered.rule, remembered.server), "memory"))
    arrays = {**{name: leaf.contiguous().numpy() for name, leaf in tensors.items()}, _NODES: np.array(remembered.nodes, np.uint64)}
    return save(arrays, {"checksum": hash_of(arrays)})


def read(path: Path, rule: Rule, server: ServerOptimiser, like: Tensor) -> Remembered:
    """What a file holds, if it is this rule's, this optimiser's and this model's."""
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata()
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata is not None and metadata["checksum"] != hash_of(saved):  # earlier versions wrote none
            raise ValueError("its checksum is wrong")
        nodes = tuple(int(node) for node in saved.pop(_NODES))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as problem:
        raise InputError(f"{path} is missing or damaged ({problem}): put it back, or choose another directory") from problem
    expected = (rule.init(len(nodes), like), server.init(like))
    stored = {name.removeprefix("memory."): torch.from_numpy(array.copy()) for name, array in saved.items()}
    rules_memory, servers_memory = restored(expected, stored, path)
    return Remembered(rules_memory, nodes, servers_memory)
