"""Any network seen as a function of one vector of weights.

d: number of trainable parameters; weights (d,): all of them, in the order of `module.named_parameters()`.
Buffers (batch norm's running statistics) are no weights: they are never sent, never aggregated, never part of a cosine.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fltrust.errors import InputError
from fltrust.models.dropout import Dropout, with_seeded_dropout


class Model:
    """A module as a function of (weights, images); the module itself is only its shape and its first weights."""

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Module):
            raise InputError(f"the model must be a torch.nn.Module, not {module!r}")
        self.module = copy.deepcopy(module)
        self.names = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        self.shapes = [parameter.shape for parameter in trainable(self.module)]
        if not self.names:
            raise InputError("the model has no parameters to train")
        self._measured = copy.deepcopy(self.module)
        with_seeded_dropout(self.module)
        if any(isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0 for layer in self.module.modules()):
            raise InputError("AlphaDropout draws from outside of a run's own streams, so no run could be repeated: use Dropout")
        self.initial_weights = flatten([parameter.detach() for parameter in trainable(self.module)]).float()  # (d,)
        self.d = self.initial_weights.numel()
        self.shares_pass: bool | None = None  # on a GPU; see training/local.py
        self._as_made: dict[tuple[type[nn.Module], tuple[int, ...]], bool] = {}
        self.has_dropout = any(isinstance(layer, Dropout) for layer in self.module.modules())
        self.seeds: Tensor | None = None  # (n, R, b) of dropout, while clients train
        norms = _batch_norms(self.module)
        self.has_batch_norm = bool(norms)
        for layer in norms:  # training takes each batch's own statistics
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None

    @contextmanager
    def dropping(self, seeds: Tensor | None) -> Iterator[None]:
        """While clients train: the seeds of dropout (n, R, b) for their examples."""
        self.seeds = seeds
        try:
            yield
        finally:
            self.seeds = None

    def is_as_made(self, kind: type[nn.Module], shape: tuple[int, ...]) -> bool:
        """Whether the module is what kind(shape, classes) makes: then a fast path may compute it without looking at its layers."""
        if (kind, shape) not in self._as_made:
            self._as_made[kind, shape] = type(self.module) is kind and self._equals(kind, shape)
        return self._as_made[kind, shape]

    def _equals(self, kind: type[nn.Module], shape: tuple[int, ...]) -> bool:
        with torch.device("meta"):
            made = kind(shape, self.shapes[-1][0])
        same = repr(self.module) == repr(made) and self.names == [name for name, _ in made.named_parameters()]  # no layer changed or frozen
        return same and not any(_is_hooked(layer) for layer in self.module.modules())

    def split(self, weights: Tensor) -> list[Tensor]:
        """The parameters as views of the vector."""
        sizes = [shape.numel() for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(torch.split(weights, sizes), self.shapes, strict=True)]

    def outputs(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """(k, ...) with the statistics of these inputs in batch norm, as in training."""
        outputs: Tensor = functional_call(self.module, dict(zip(self.names, self.split(weights), strict=True)), (inputs,))
        return outputs

    def frozen(self, weights: Tensor, *batches: Tensor) -> Callable[[Tensor], Tensor]:
        """inputs -> outputs as the server uses them. Batch norm's statistics are the mean of these batches'."""
        module = self._load(self._measured, weights, batches)
        if weights.is_cuda or batches[0].dim() != 4:
            return module
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return lambda images: module(images.contiguous(memory_format=torch.channels_last))

    def trained(self, weights: Tensor, *batches: Tensor) -> nn.Module:
        """The module that was given, with these weights, ready to be used: a copy, in evaluation mode."""
        module = self._load(copy.deepcopy(self._measured), weights, batches)
        return module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload, no-any-return]

    @torch.no_grad()
    def _load(self, module: nn.Module, weights: Tensor, batches: tuple[Tensor, ...]) -> nn.Module:
        """Puts the weights into the module, and the batches' statistics into its batch norm."""
        module.to(weights.device).eval()
        for parameter, part in zip(trainable(module), self.split(weights), strict=True):
            parameter.copy_(part)
        norms = [layer for layer in _batch_norms(module) if layer.track_running_stats]
        usual = [layer.momentum for layer in norms]
        for layer in norms:
            layer.reset_running_stats()
            layer.train().momentum = None  # the mean over the batches seen
        for batch in batches if norms else ():
            module(batch)
        for layer, momentum in zip(norms, usual, strict=True):
            layer.eval().momentum = momentum
        return module


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def flatten(parts: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _is_hooked(layer: nn.Module) -> bool:
    hooks = (hooks for name, hooks in vars(layer).items() if name.endswith("_hooks"))
    return "forward" in vars(layer) or any(hooks)


def _batch_norms(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
