"""The paper's Algorithm 3 line by line, with whole vectors in float64 and numpy: the oracle of `fltrust.attacks.Adaptive`."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def relu(value: float) -> float:
    return max(value, 0.0)


def unit(vector: Vector) -> Vector:
    return vector / np.linalg.norm(vector)


def global_update(g_0: Vector, vectors: list[Vector]) -> Vector:
    """FLTrust's aggregate as Section V writes it, equations 6 and 7: the vectors are e_i, or e'_i + gamma u, which has another norm."""
    trust = [relu(float(e_i @ unit(g_0))) for e_i in vectors]
    summed = np.zeros_like(g_0)
    for trust_i, e_i in zip(trust, vectors, strict=True):
        if sum(trust) > 0:
            summed += trust_i / sum(trust) * e_i
    return np.linalg.norm(g_0) * summed


def damage(g_0: Vector, e: list[Vector], e_bad: list[Vector]) -> float:
    """h(e'_1, ..., e'_m) = s^T (g - g'): e are the units of all n updates before the attack, e_bad replace the first m."""
    g = global_update(g_0, e)
    s = np.sign(g)
    return float(s @ (g - global_update(g_0, [*e_bad, *e[len(e_bad) :]])))


def algorithm3(
    g_0: Vector,
    g: list[Vector],
    trim: list[Vector],
    sample: Callable[[int, int, int, Vector], Vector],
    *,
    eta: float,
    gamma: float,
    Q: int,  # noqa: N803
    V: int,  # noqa: N803
) -> list[Vector]:
    """`trim`: the Trim attack's m updates; `sample(v, i, t, e'_i)` gives u, which by right depends on nothing."""
    m = len(trim)
    e = [unit(g_i) for g_i in g]  # line 1
    e_bad = [unit(g_i) for g_i in trim]  # line 2
    for v in range(V):
        for i in range(m):
            for t in range(Q):
                u = sample(v, i, t, e_bad[i])
                probed = [*e_bad[:i], e_bad[i] + gamma * u, *e_bad[i + 1 :]]
                gradient = (damage(g_0, e, probed) - damage(g_0, e, e_bad)) / gamma * u
                e_bad[i] = e_bad[i] + eta * gradient
                e_bad[i] = unit(e_bad[i])
    return e_bad
