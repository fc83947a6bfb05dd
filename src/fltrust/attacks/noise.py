"""Attacks without aim or effort: Gaussian noise, and free riders who do not train."""

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge, Level, Seen, check_choice, check_level, seen_rows
from fltrust.attacks.rows import bounded, rms
from fltrust.errors import InputError
from fltrust.registry import ATTACKS
from fltrust.state import Memory


@ATTACKS.register("gaussian", label="Gaussian noise", reference="Blanchard et al., NeurIPS 2017")
@dataclass(frozen=True)
class Gaussian(Attack):
    """Each malicious client sends noise of its own, as large in a coordinate as honest updates are on average.

    A row is N(mean, sigma^2) in every coordinate, in units of the honest updates' root mean square. Each malicious client draws its own.

    Parameters
    ----------
    sigma : float, default 1.0
        Standard deviation of the noise.
    mean : float, default 0.0
        Mean of the noise. Some packages draw around 0.1 instead of 0.
    add : bool, default False
        True adds the noise to the client's own update instead of replacing it.
    absolute : bool, default False
        True takes `sigma` and `mean` as they are. To check published numbers only: sigma = 1 is huge next to a step of SGD.
    knowledge : "full" or "partial", default "full"
        The root mean square of the honest clients' updates, or of the malicious clients' own.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Gaussian, Knowledge
    >>> own, others = torch.zeros(1, 10_000), torch.full((3, 10_000), 0.01)
    >>> known = Knowledge(own, others, root_update=None, n=4, tolerate=1, num_clients=4, generator=torch.Generator().manual_seed(0))
    >>> Gaussian().craft(known).std().round(decimals=3)
    tensor(0.0100)
    """

    sigma: float = 1.0
    mean: float = 0.0
    add: bool = False
    absolute: bool = False
    knowledge: Level = "full"

    def __post_init__(self) -> None:
        check_level(self.knowledge)
        if not 0 <= self.sigma < math.inf or not math.isfinite(self.mean):
            raise InputError(f"Gaussian noise needs a sigma of 0 or more and a finite mean, not {self.sigma} and {self.mean}")

    def craft(self, known: Knowledge) -> Tensor:
        noise = self.mean + self.sigma * known.normal(*known.own.shape)
        if not self.absolute:
            noise = noise * rms(seen_rows(known, self.knowledge))
        return bounded(known.own + noise if self.add else noise)


Sends = Literal["last-update", "zeros"]


@ATTACKS.register("free-rider", label="Free rider", reference="Fraboni, Vidal, Lorenzi, AISTATS 2021")
@dataclass(frozen=True)
class FreeRider(Attack):
    """Malicious clients do not train: they send the last global update back, or zeros.

    This hardly harms accuracy. It tests whether shares and audits notice clients that contribute nothing. The last global update is how
    the model moved since a malicious client last took part, divided by the server's learning rate. In the first round nothing is known of
    it, and zeros are sent. Rows of zeros have no influence on any rule here.

    Parameters
    ----------
    send : "last-update" or "zeros", default "last-update"
        What the clients send.
    noise : float, default 0.0
        Standard deviation of the noise that each client adds, in units of the row's root mean square. It disguises equal rows.

    Examples
    --------
    >>> import torch
    >>> from fltrust import FreeRider, Knowledge
    >>> attack, own = FreeRider(), torch.tensor([[1.0, -2.0]])
    >>> memory = attack.init(num_clients=3, like=torch.zeros(2))
    >>> for weights in (torch.tensor([5.0, 5.0]), torch.tensor([5.0, 6.0])):
    ...     known = Knowledge(own, None, None, n=3, tolerate=1, num_clients=3, generator=torch.Generator(), weights=weights)
    ...     row, memory = attack.step(known, memory)
    ...     print(row)
    tensor([[0., 0.]])
    tensor([[0., 1.]])
    """

    send: Sends = "last-update"
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_choice("row of a free rider", self.send, Sends)
        if not 0 <= self.noise < math.inf:
            raise InputError(f"a free rider's noise must be 0 or more, not {self.noise}")

    def init(self, num_clients: int, like: Tensor) -> Memory:
        return Seen.nothing(like)

    def step(self, known: Knowledge, memory: Seen) -> tuple[Tensor, Seen]:
        row = memory.update(known) * (self.send == "last-update")  # (d,)
        rows = row.repeat(len(known.own), 1)
        if self.noise:
            rows = bounded(rows + self.noise * rms(row) * known.normal(*rows.shape))
        return rows, memory.now(known)
