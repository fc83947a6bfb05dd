"""What the global model looks like: its arrays by name, and its parameters as one vector.

weights  (d,)  all parameters, one after the other; buffers (batch-norm statistics, counters) are not among them
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fltrust.errors import InputError

Arrays = dict[str, NDArray[Any]]
Buffers = Collection[str] | Callable[[str], bool]


def is_statistic(name: str) -> bool:
    """Whether an array is a batch norm's running statistic, by the name that PyTorch gives it."""
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of the global arrays, in their order."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype[Any]]
    buffers: frozenset[str]

    @staticmethod
    def of(arrays: Arrays, buffers: Buffers) -> "Layout":
        """Arrays that are not floating point are buffers whatever they are called: they cannot be trained."""
        if not callable(buffers) and (unknown := [name for name in buffers if name not in arrays]):
            raise InputError(f"buffers names {unknown[0]!r}, which is not among the {len(arrays)} arrays of the model")
        chosen = buffers if callable(buffers) else frozenset(buffers).__contains__
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8 or not array.dtype.isnative:
                raise InputError(
                    f"array {name!r} holds {array.dtype}: floating point, integers and booleans of this machine's byte order "
                    "and at most 64 bits can be sent, nothing else"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InputError(f"array {name!r} of the initial model holds NaN or infinity")
        layout = Layout(
            shapes={name: array.shape for name, array in arrays.items()},
            dtypes={name: array.dtype for name, array in arrays.items()},
            buffers=frozenset(name for name, array in arrays.items() if array.dtype.kind != "f" or chosen(name)),
        )
        if layout.d == 0:
            raise InputError(f"none of the {len(arrays)} arrays of the model is a parameter")
        return layout

    @property
    def parameters(self) -> list[str]:
        return [name for name in self.shapes if name not in self.buffers]

    @property
    def d(self) -> int:
        return sum(int(np.prod(self.shapes[name])) for name in self.parameters)

    @property
    def dtype(self) -> torch.dtype:
        """What the rules compute with: float64 if a parameter needs it."""
        return torch.float64 if any(self.dtypes[name].itemsize > 4 for name in self.parameters) else torch.float32

    @property
    def nbytes(self) -> int:
        return sum(int(np.prod(shape)) * self.dtypes[name].itemsize for name, shape in self.shapes.items())

    def vector(self, part_of: Callable[[str], NDArray[Any]]) -> Tensor:
        """(d,): the parameters' arrays, as `part_of` gives them one by one, in one vector."""
        vector = torch.empty(self.d, dtype=self.dtype)
        for name, part in self.parts(vector):
            part[...] = part_of(name)
        return vector

    def parts(self, vector: Tensor) -> Iterator[tuple[str, NDArray[Any]]]:
        """Each parameter's name and its part of the vector (d,), in its shape; writing to a part writes to the vector."""
        flat, start = vector.numpy(), 0
        for name in self.parameters:
            size = int(np.prod(self.shapes[name]))
            yield name, flat[start : start + size].reshape(self.shapes[name])
            start += size


def hash_of(arrays: Arrays) -> str:
    """SHA-256 of a model, or of a memory: of the names, sorted, and each array's dtype, shape and bytes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(f"{name!r} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
