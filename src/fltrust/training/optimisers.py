"""The server's optimiser: what it makes of the aggregate before it moves the model. The robust rule comes first, the optimiser after."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.registry import OPTIMISERS, Registry
from fltrust.state import Memory, leaves, rebuilt


@dataclass(frozen=True)
class ServerOptimiser:
    """How the server turns the aggregated update into a step of the model.

    `init` returns the memory before the first round. `step` takes the aggregated update (d,) and the memory, and returns a direction
    (d,) and the next memory. The model then moves by global_lr times that direction.
    """

    registry: ClassVar[Registry] = OPTIMISERS

    def init(self, like: Tensor) -> Memory:
        return ()

    def step(self, update: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        raise InputError(f"{type(self).__name__} must define step(update, memory)")


@OPTIMISERS.register("sgd", label="SGD")
@dataclass(frozen=True)
class SGD(ServerOptimiser):
    """The aggregate as it is: the model moves by global_lr times it.

    Examples
    --------
    >>> import torch
    >>> SGD().step(torch.tensor([1.0, -2.0]), ())
    (tensor([ 1., -2.]), ())
    """

    def step(self, update: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return update, memory


@OPTIMISERS.register("momentum", label="server momentum", reference="Hsu, Qi, Brown 2019 (FedAvgM)")
@dataclass(frozen=True)
class Momentum(ServerOptimiser):
    """Momentum on the server: the model moves along a decaying sum of the aggregates (Hsu et al. 2019, FedAvgM).

    v <- beta v + g; the model moves along v.

    Parameters
    ----------
    beta : float, default 0.9
        How much of v stays in each round.

    Examples
    --------
    >>> import torch
    >>> server, update = Momentum(beta=0.5), torch.tensor([1.0, -2.0])
    >>> direction, memory = server.step(update, server.init(update))
    >>> direction, memory = server.step(update, memory)
    >>> direction
    tensor([ 1.5000, -3.0000])
    """

    beta: float = 0.9

    def __post_init__(self) -> None:
        _check_beta("beta", self.beta)

    def init(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def step(self, update: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        velocity = self.beta * memory + update
        return velocity, velocity


class Moments(NamedTuple):
    first: Tensor  # (d,)
    second: Tensor  # (d,)


@OPTIMISERS.register("adam", label="server Adam", reference="Reddi et al., ICLR 2021 (FedAdam)")
@dataclass(frozen=True)
class Adam(ServerOptimiser):
    """Adam on the server: momentum with a step size for each coordinate (Reddi et al. 2021, FedAdam).

    m <- beta1 m + (1 - beta1) g, v <- beta2 v + (1 - beta2) g^2; the model moves along m / (sqrt(v) + tau).
    As in that paper, there is no bias correction.

    Parameters
    ----------
    beta1 : float, default 0.9
        How much of m stays in each round.
    beta2 : float, default 0.99
        How much of v stays in each round.
    tau : float, default 0.001
        In the units of the aggregate. The smaller it is, the more the steps adapt to each coordinate.

    Examples
    --------
    >>> import torch
    >>> server, update = Adam(beta1=0.5, beta2=0.75, tau=1.0), torch.tensor([2.0, -6.0])
    >>> direction, memory = server.step(update, server.init(update))
    >>> direction  # 1 / (1 + 1) and -3 / (3 + 1)
    tensor([ 0.5000, -0.7500])
    """

    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        _check_beta("beta1", self.beta1)
        _check_beta("beta2", self.beta2)
        if not 0 < self.tau < math.inf:
            raise InputError(f"Adam's tau must be a positive number, not {self.tau}")

    def init(self, like: Tensor) -> Moments:
        return Moments(torch.zeros_like(like), torch.zeros_like(like))

    def step(self, update: Tensor, memory: Moments) -> tuple[Tensor, Moments]:
        first = self.beta1 * memory.first + (1 - self.beta1) * update
        second = self.beta2 * memory.second + (1 - self.beta2) * update.square()
        return first / (second.sqrt() + self.tau), Moments(first, second)


def optimised(optimiser: ServerOptimiser, update: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
    """optimiser.step, but nobody trusted, nothing moves: a zero update (d,) moves neither the model nor what the optimiser remembers."""
    nothing = ~update.any()
    direction, later = optimiser.step(update, memory)
    kept = (torch.where(nothing, old, new) for (_, old), (_, new) in zip(leaves(memory), leaves(later), strict=True))
    return torch.where(nothing, 0, direction), rebuilt(later, kept)


def _check_beta(name: str, beta: float) -> None:
    if not 0 <= beta < 1:
        raise InputError(f"{name} must be at least 0 and below 1, not {beta}")
