"""Theorem 1 of the paper: how far from the optimum FLTrust can be after t rounds. docs/theory.md says what it is worth.

F    the expected loss, with its minimum at w*
w^t  the weights (d,) after t rounds, w^t = w^(t-1) + alpha g: one local step on all of a client's data, beta = 1
g    the global update, g_0 the root update: minus the gradient of the loss on the root set D_0
"""

import math
from dataclasses import dataclass, fields

from fltrust.errors import InputError


@dataclass(frozen=True)
class Constants:
    """What Theorem 1 depends on, under the paper's symbols; Assumption 2 is read per example, as its proof does.

    With probability 1 - delta over the root set, and whatever the clients send,

        ||w^t - w*|| <= (1 - rho) ||w^(t-1) - w*|| + 12 alpha Delta_1,
        1 - rho = sqrt(1 - alpha mu + alpha^2 L^2) + 24 alpha Delta_2 + 2 alpha L.

    The square root is the paper's sqrt(1 - mu^2 / (4 L^2)) where alpha = mu / (2 L^2), as its Lemma 2 asks, and true for every alpha.
    The 2 is Lemma 1's ||g - g_0|| <= 2 ||g_0||. For a smaller `deviation` c in its place, 24 becomes 8 (1 + c) and 12 becomes 4 (1 + c).
    """

    mu: float  # F is mu-strongly convex
    lipschitz: float  # L, of the gradient of F
    root_lipschitz: float  # L_1, of the gradient of the loss on the root set, with probability 1 - delta / 3
    sigma_1: float  # an example's gradient at w*, along any unit vector, is sub-exponential with sigma_1 and gamma_1
    gamma_1: float
    sigma_2: float  # so is, with sigma_2 and gamma_2, the error of its change from w* to w, divided by ||w - w*||
    gamma_2: float
    radius: float  # r: all this holds where ||w - w*|| <= r sqrt(d)
    d: int
    root_size: int  # |D_0|
    delta: float  # the bound holds with probability 1 - delta
    alpha: float  # the learning rate; the paper's is mu / (2 L^2)
    deviation: float = 2.0  # c: sqrt(2) is what FLTrust guarantees, 0 is the server alone (FLTrust-Server)

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if not (math.isfinite(value) and (value > 0 or (value == 0 and name == "deviation"))):
                raise InputError(f"Theorem 1 needs a positive {name}, not {value}")
        if self.mu > self.lipschitz:
            raise InputError(f"no function is mu-strongly convex with mu above L, as {self.mu} is above {self.lipschitz}")
        if self.delta >= 1:
            raise InputError(f"delta is the probability that the bound fails: give a number below 1, not {self.delta}")

    @property
    def delta_1(self) -> float:
        """Delta_1 = sigma_1 sqrt(2 / |D_0|) sqrt(d log 6 + log(3 / delta)): the error of the root update at w*."""
        return self.sigma_1 * math.sqrt(2 / self.root_size * (self.d * math.log(6) + math.log(3 / self.delta)))

    @property
    def delta_2(self) -> float:
        """Delta_2 = sigma_2 sqrt(2 / |D_0|) sqrt(K): the error of the root update's change from w* to w, per distance.

        K = d log(18 L_2 / sigma_2) + d / 2 log(|D_0| / d) + log(6 sigma_2^2 r sqrt(|D_0|) / (gamma_2 sigma_1 delta)), L_2 = max(L, L_1).
        """
        largest = max(self.lipschitz, self.root_lipschitz)
        cover = self.d * (math.log(18 * largest / self.sigma_2) + math.log(self.root_size / self.d) / 2)
        shells = math.log(6 * self.sigma_2**2 * self.radius * math.sqrt(self.root_size) / (self.gamma_2 * self.sigma_1 * self.delta))
        if 2 * (cover + shells) < self.d:  # Lemma 4, step (b)
            raise InputError(f"Delta_2 is below sigma_2 sqrt(d / |D_0|): a root set of {self.root_size} is too small for d = {self.d}")
        if (least := self.sigma_2 * math.sqrt(self.d / self.root_size)) > 3 * largest:  # Lemma 4's cover would have less than one point
            raise InputError(f"Delta_2 needs sigma_2 sqrt(d / |D_0|) = {least:.4g} to be at most 3 L_2 = {3 * largest:.4g}")
        return self.sigma_2 * math.sqrt(2 / self.root_size * (cover + shells))

    @property
    def rho(self) -> float:
        """1 - rho is what the distance to w* is multiplied by in a round, at most; see the class."""
        pull = math.sqrt(1 - self.alpha * self.mu + (self.alpha * self.lipschitz) ** 2)
        return 1 - (pull + 8 * (1 + self.deviation) * self.alpha * self.delta_2 + self.deviation * self.alpha * self.lipschitz)

    def bound(self, start: float, rounds: int) -> list[float]:
        """What ||w^t - w*|| is at most for t = 0 ... rounds, where `start` = ||w^0 - w*||.

        (1 - rho)^t start + 12 alpha Delta_1 sum_(k<t) (1 - rho)^k. The paper writes 1 / rho for the sum: more than it if rho > 0, but
        negative, so wrong, if rho < 0.
        """
        if not (start >= 0 and rounds >= 0):
            raise InputError(f"a bound needs a distance and a number of rounds that are not negative, not {start} and {rounds}")
        self._check_root_size()
        bounds, growth = [start], 1 - self.rho
        for t in range(1, rounds + 1):
            if bounds[-1] > self.radius * math.sqrt(self.d):  # the paper takes for granted that the model stays in its space
                raise InputError(f"after {t - 1} rounds the model may be {bounds[-1]:.3g} from w*, beyond r sqrt(d): take a larger radius")
            bounds.append(growth * bounds[-1] + self._noise)
        return bounds

    @property
    def limit(self) -> float:
        """12 alpha Delta_1 / rho, which the bound tends to if |1 - rho| < 1. With the paper's `deviation` of 2 it never is."""
        self._check_root_size()
        if self.rho <= 0:
            raise InputError(f"Theorem 1 has no limit here: |1 - rho| must be below 1 and is {1 - self.rho:.4g}; {self._remedy}")
        return self._noise / self.rho

    @property
    def _noise(self) -> float:
        return 4 * (1 + self.deviation) * self.alpha * self.delta_1

    @property
    def _remedy(self) -> str:
        # 1 - rho is convex in alpha and 1 at alpha = 0: some alpha brings it below 1 if, and only if, it falls there.
        sway, error = self.deviation * self.lipschitz, 8 * (1 + self.deviation) * self.delta_2
        if sway >= self.mu / 2:
            return f"no alpha and no root set change that while deviation * L = {sway:.4g} is not below mu / 2 = {self.mu / 2:.4g}"
        if sway + error >= self.mu / 2:
            return f"no alpha changes that, a root set of more than {self.root_size} may: Delta_2 = {self.delta_2:.4g} is too large"
        return f"an alpha below {self.alpha:.4g} changes that"

    def _check_root_size(self) -> None:
        for name, error, most in (
            ("1", self.delta_1, self.sigma_1**2 / self.gamma_1),
            ("2", self.delta_2, self.sigma_2**2 / self.gamma_2),
        ):
            if error > most:
                raise InputError(
                    f"Theorem 1 does not apply: Delta_{name} = {error:.4g} must not be above sigma_{name}^2 / gamma_{name} = {most:.4g}; "
                    f"a root set of {self.root_size} is too small"
                )
