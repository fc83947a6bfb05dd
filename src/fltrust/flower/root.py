"""The server's own update: a PyTorch module trained on the root set, as the clients train on theirs."""

import copy
import hashlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, default_collate

from fltrust.errors import InputError
from fltrust.flower.layout import Arrays
from fltrust.objectives import bounded_loss
from fltrust.randomness import stream
from fltrust.tasks.root import hold_out as indices_held_out

Root = Callable[[Arrays], Mapping[str, NDArray[Any]]]  # the global arrays -> the change of each


def root_of(
    module: nn.Module,
    data: tuple[Tensor, Tensor] | Dataset[Any],
    *,
    lr: float,
    steps: int = 1,
    batch_size: int | None = None,
    momentum: float = 0.0,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    hold_out: bool = False,
) -> Root:
    """A `root` for RobustStrategy: SGD on a small clean set, starting from the global arrays.

    What is drawn (batches, dropout) depends on the global arrays alone, so a run that was killed draws the same again.

    Parameters
    ----------
    module : nn.Module
        The network. Its state has the names of the global arrays.
    data : (Tensor, Tensor) or Dataset
        The root set: examples and labels, or a data set of such pairs.
    lr : float
        Learning rate. Choose lr, steps and batch_size as the clients do: FLTrust gives each client's update the length of this one.
    steps : int, default 1
        Steps of SGD.
    batch_size : int or None, default None
        Examples in a step. None takes the whole root set.
    momentum : float, default 0.0
        Momentum of SGD.
    loss : callable, default cross_entropy
        Takes outputs and labels and returns the loss.
    hold_out : bool, default False
        Train on four fifths of the root set, and keep every fifth example to measure models on. `Fallback` needs it.
    """
    if lr <= 0 or steps < 1 or (batch_size is not None and batch_size < 1):
        raise InputError(f"the root update needs lr > 0, steps >= 1, batch_size >= 1, not {lr}, {steps}, {batch_size}")
    examples, labels = data if isinstance(data, tuple) else default_collate([data[i] for i in range(len(data))])  # type: ignore[arg-type]
    if len(examples) == 0 or len(examples) != len(labels):
        raise InputError(f"the root set has {len(examples)} examples and {len(labels)} labels")
    described = {"examples": len(examples), "data": _hash(examples, labels), **({"hold_out": True} if hold_out else {})}
    measured = examples, labels
    if hold_out:
        trained, held = (torch.from_numpy(part) for part in indices_held_out(np.arange(len(examples)), labels.cpu().numpy()))
        measured, examples, labels = (examples[held], labels[held]), examples[trained], labels[trained]
    module = copy.deepcopy(module)
    batch = min(batch_size or len(examples), len(examples))

    def load(arrays: Arrays) -> None:
        if (ours := list(module.state_dict())) != list(arrays):
            odd = sorted(set(ours) ^ set(arrays))
            difference = f"{odd[0]!r} is in one only" if odd else "their order differs"
            raise InputError(f"the root module's arrays are not the model's: {difference}")
        module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})

    def loss_of_model(arrays: Arrays) -> float:
        load(arrays)
        with torch.no_grad():
            module.eval()
            outputs, targets = module(measured[0]), measured[1]
            if not hold_out:
                return float(loss(outputs, targets))
            return float(bounded_loss(torch.stack([loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(targets))])).mean())

    @torch.enable_grad()  # rules that ask for it run without
    def root(arrays: Arrays) -> Arrays:
        load(arrays)
        checksum = 0
        for array in arrays.values():
            checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
        chance = stream(checksum, "root")
        optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
        waiting = np.zeros(0, np.int64)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(checksum)
            module.train()
            for _ in range(steps):
                if len(waiting) < batch:
                    waiting = chance.permutation(len(examples))  # what is left of a pass is dropped, so that batches are whole
                picked, waiting = torch.from_numpy(waiting[:batch]), waiting[batch:]
                optimiser.zero_grad()
                loss(module(examples[picked]), labels[picked]).backward()
                optimiser.step()
        trained = {name: after.cpu().numpy() for name, after in module.state_dict().items() if after.dtype != torch.bool}
        return {name: np.asarray(after - arrays[name]) for name, after in trained.items()}

    settings = {
        "lr": lr,
        "steps": steps,
        "batch_size": batch_size,
        "momentum": momentum,
        "loss": name_of_function(loss),
        "module": hashlib.sha256(str(module).encode()).hexdigest(),
        **described,
    }
    root.settings, root.loss = settings, loss_of_model  # type: ignore[attr-defined]  # what `settings_of` and `loss_of` read
    return root


def settings_of(root: Root | None) -> dict[str, Any] | None:
    """What an audit says of a root, and what must be the same when a run goes on: its settings, or the name of a function of one's own."""
    if root is None:
        return None
    return getattr(root, "settings", None) or {"function": name_of_function(root)}


def loss_of(root: Root | None) -> Callable[[Arrays], float] | None:
    """The loss of a model on the root set, or on what is held out of it; None for a function of one's own that has no `loss`."""
    return getattr(root, "loss", None)


def name_of_function(function: Callable[..., Any]) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _hash(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
