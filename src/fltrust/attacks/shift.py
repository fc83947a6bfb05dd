"""Attacks that shift or turn round the honest clients' mean: sign flipping, ALIE and IPM."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge, Level, check_level, measured_rows
from fltrust.attacks.rows import bounded
from fltrust.errors import InputError
from fltrust.registry import ATTACKS


@ATTACKS.register("sign-flip", label="Sign flipping", reference="Li et al., AAAI 2019")
@dataclass(frozen=True)
class SignFlip(Attack):
    """Each malicious client sends its own update times -`scale`.

    Some packages send minus the honest clients' mean under this name. That is `IPM(epsilon=1)` here.

    Parameters
    ----------
    scale : float, default 1.0
        How much longer the update becomes.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Knowledge, SignFlip
    >>> own = torch.tensor([[1.0, -2.0]])
    >>> known = Knowledge(own, others=None, root_update=None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> SignFlip().craft(known)
    tensor([[-1.,  2.]])
    """

    scale: float = 1.0

    independent = True

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise InputError(f"sign flipping needs a positive scale, not {self.scale}")

    def craft(self, known: Knowledge) -> Tensor:
        return -self.scale * known.own


# Phi(p) where the formula says Phi^-1(p), with p rounded up to two digits: as in the notebooks of Shejwalkar and Houmansadr, NDSS 2021.
MISTAKEN_TABLE = {3: 0.69847, 5: 0.7054, 8: 0.71904, 10: 0.72575, 12: 0.73891}
_TABLE_CLIENTS = 50


@ATTACKS.register("alie", label="ALIE", reference="Baruch, Baruch, Goldberg, NeurIPS 2019")
@dataclass(frozen=True)
class ALIE(Attack):
    """A Little Is Enough: the honest clients' mean, shifted by z standard deviations in every coordinate (Baruch et al. 2019).

    All malicious clients send mu - z sd. z is the largest shift for which enough honest clients lie farther out than the malicious ones:
    z = Phi^-1((n - m - s) / (n - m)) with s = floor(n / 2 + 1) - m, the number of honest clients needed for a majority. Where the
    malicious clients are a majority themselves (s < 1) the formula has no meaning, and the attack is refused. With few malicious clients
    z is 0 or negative, and the attack does little.

    Parameters
    ----------
    z : float, "table" or None, default None
        None takes the formula. A number is used as it is (the authors' release has 1.5). "table" takes the values that the notebooks of
        Shejwalkar and Houmansadr (NDSS 2021) use for 50 clients, of which 3, 5, 8, 10 or 12 are malicious. They are Phi(p) instead of
        Phi^-1(p), so this attack is 2 to 26 times stronger. Use it only to check numbers that were made with it.
    knowledge : "full" or "partial", default "full"
        mu and sd are those of the honest clients' updates, or of the malicious clients' own, as in the authors' release.
    upwards : bool, default False
        True sends mu + z sd, as some packages do.

    Examples
    --------
    >>> import torch
    >>> from fltrust import ALIE, Knowledge
    >>> own, others = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    >>> known = Knowledge(own, others, root_update=None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> ALIE(z=1.5).craft(known)
    tensor([[0.5000, 0.0000]])
    >>> round(ALIE().shift(n=50, m=10), 3), ALIE(z="table").shift(n=50, m=10)
    (0.253, 0.72575)
    """

    z: float | Literal["table"] | None = None
    knowledge: Level = "full"
    upwards: bool = False

    def __post_init__(self) -> None:
        check_level(self.knowledge)
        if self.z not in (None, "table") and not (isinstance(self.z, float | int) and math.isfinite(self.z)):
            raise InputError(f"ALIE's z is a number, 'table' or None, not {self.z!r}")

    def shift(self, n: int, m: int) -> float:
        """z for n clients, m of them malicious."""
        if self.z == "table":
            if n != _TABLE_CLIENTS or m not in MISTAKEN_TABLE:
                raise InputError(f"ALIE's table is for 50 clients, 3, 5, 8, 10 or 12 of them malicious, not for {m} of {n}")
            return MISTAKEN_TABLE[m]
        if self.z is not None:
            return self.z
        supporters = n // 2 + 1 - m
        if supporters < 1 or n < 3:
            raise InputError(f"ALIE has no z for {m} malicious of {n} clients: it needs 3 clients, most of them honest, or a fixed z")
        return NormalDist().inv_cdf((n - m - supporters) / (n - m))

    def craft(self, known: Knowledge) -> Tensor:
        m, seen = len(known.own), measured_rows(known, self.knowledge)
        if m == 0 or known.n == m:
            return known.own.clone()
        z = self.shift(known.n, m) * (1 if self.upwards else -1)
        return bounded((seen.mean + z * seen.deviation) * seen.peak).repeat(m, 1)


@ATTACKS.register("ipm", label="IPM", reference="Xie, Koyejo, Gupta, UAI 2020")
@dataclass(frozen=True)
class IPM(Attack):
    """Inner-product manipulation: all malicious clients send -`epsilon` times the honest clients' mean (Xie et al. 2020).

    A small epsilon stays close to the honest updates, which deceives rules that look at distances. A large one reverses a mean: the plain
    mean of all rows turns round if epsilon > (n - m) / m.

    Parameters
    ----------
    epsilon : float, default 0.1
        The authors use 0.1 and 100.
    knowledge : "full" or "partial", default "full"
        The mean of the honest clients' updates, or of the malicious clients' own.

    Examples
    --------
    >>> import torch
    >>> from fltrust import IPM, Knowledge
    >>> own, others = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    >>> known = Knowledge(own, others, root_update=None, n=3, tolerate=1, num_clients=3, generator=torch.Generator())
    >>> IPM(epsilon=0.5).craft(known)
    tensor([[-1., -1.]])
    """

    epsilon: float = 0.1
    knowledge: Level = "full"

    def __post_init__(self) -> None:
        check_level(self.knowledge)
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"IPM needs a positive epsilon, not {self.epsilon}")

    def craft(self, known: Knowledge) -> Tensor:
        m, seen = len(known.own), measured_rows(known, self.knowledge)
        if m == 0:
            return known.own.clone()
        return bounded(-self.epsilon * seen.mean * seen.peak).repeat(m, 1)
