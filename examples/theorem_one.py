"""The paper's Theorem 1 beside what happens: FLTrust on ridge regression, where every constant of the theorem can be computed.

    python examples/theorem_one.py [picture.png]

The distribution is the uniform one on N given examples, so the expected loss F, its optimum w* and all constants are exact. The server
and 20 clients draw their examples from it. Printed are the root sets that the theorem asks for, and the distance to w* that is measured
under several attacks and shares of malicious clients. With a file name, one of the attacks is drawn (this needs matplotlib).
"""

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from fltrust import InputError
from fltrust.attacks import Knowledge, OptimalAdaptive
from fltrust.randomness import reseed, stream
from fltrust.rules import FLTrust, FLTrustServer, Rule, trust_scores
from fltrust.theory import Constants

# ---------------------------------------------------------------- the problem


@dataclass(frozen=True)
class Ridge:
    """F(w) = mean over the N examples of (<x, w> - y)^2 / 2 + penalty ||w||^2 / 2."""

    features: Tensor  # (N, d)
    targets: Tensor  # (N,)
    penalty: float

    @classmethod
    def draw(cls, seed: int, *, d: int, condition: float, examples: int = 1000, penalty: float = 0.1) -> "Ridge":
        """Uniform features, made uncorrelated, with variances that fall geometrically from 1 to 1 / condition."""
        rng = stream(seed, "ridge")
        features = torch.from_numpy(rng.uniform(-1, 1, (examples, d)))
        features = torch.linalg.qr(features).Q * math.sqrt(examples)
        features = features * torch.logspace(0, -math.log10(condition) / 2, d, dtype=torch.float64)
        truth, noise = torch.from_numpy(rng.standard_normal(d)), torch.from_numpy(rng.uniform(-0.5, 0.5, examples))
        return cls(features, features @ truth + noise, penalty)

    def curvature(self, share: Tensor) -> Tensor:
        """The Hessians (k, d, d) of the losses in which example j counts share[i, j], (k, N)."""
        identity = torch.eye(self.features.shape[1], dtype=torch.float64)
        return torch.einsum("kn,nd,ne->kde", share, self.features, self.features) + self.penalty * identity

    def slope(self, share: Tensor) -> Tensor:
        """Minus the gradients (k, d) of these losses at w = 0."""
        return (share * self.targets) @ self.features

    @property
    def everyone(self) -> Tensor:
        return torch.full((1, len(self.features)), 1 / len(self.features), dtype=torch.float64)

    @property
    def optimum(self) -> Tensor:
        optimum: Tensor = torch.linalg.solve(self.curvature(self.everyone), self.slope(self.everyone))[0]
        return optimum  # (d,)

    def constants(self, root_size: int, *, radius: float = 1e40, delta: float = 0.05) -> Constants:
        """All of them follow from the N examples: what lies within +-s and has mean 0 is sub-exponential with sigma = s and any gamma."""
        optimum, hessian = self.optimum, self.curvature(self.everyone)[0]
        each = torch.eye(len(self.features), dtype=torch.float64)  # the losses of single examples
        hessians = self.curvature(each)  # (N, d, d)
        eigenvalues = torch.linalg.eigvalsh(hessian)
        mu, lipschitz = float(eigenvalues[0]), float(eigenvalues[-1])
        sigma_1 = float((self.slope(each) - hessians @ optimum).norm(dim=1).max())
        sigma_2 = float(torch.linalg.matrix_norm(hessians - hessian, 2).max())
        return Constants(
            mu=mu,
            lipschitz=lipschitz,
            root_lipschitz=float(torch.linalg.matrix_norm(hessians, 2).max()),
            sigma_1=sigma_1,
            gamma_1=sigma_1,
            sigma_2=sigma_2,
            gamma_2=sigma_2,
            radius=radius,
            d=len(optimum),
            root_size=root_size,
            delta=delta,
            alpha=mu / (2 * lipschitz**2),
        )


# ---------------------------------------------------------------- attacks: what is known, w - w* (d,) and alpha -> (m, d)

Attack = Callable[[Knowledge, Tensor, float], Tensor]


def random(known: Knowledge, away: Tensor, alpha: float) -> Tensor:
    return known.normal(*known.own.shape)


def huge(known: Knowledge, away: Tensor, alpha: float) -> Tensor:
    return 1e12 * known.normal(*known.own.shape)


def flip(known: Knowledge, away: Tensor, alpha: float) -> Tensor:
    assert known.root_update is not None
    return -known.root_update.repeat(len(known.own), 1)


def adaptive(known: Knowledge, away: Tensor, alpha: float) -> Tensor:
    return OptimalAdaptive().craft(known)


def outward(known: Knowledge, away: Tensor, alpha: float) -> Tensor:
    """Knows w* too: of the vectors between e_0 and the way out, orthogonal to it, the one after which w is farthest from w*."""
    assert known.root_update is not None
    root_norm = known.root_update.norm()
    e_0 = known.root_update / root_norm
    out = away - (away @ e_0) * e_0
    angle = torch.linspace(0, math.acos(1e-7), 512, dtype=torch.float64)
    crafted: Tensor = angle.cos()[:, None] * e_0 + angle.sin()[:, None] * out / out.norm()  # (512, d)
    trust = len(known.own) * angle.cos()[:, None]
    honest = trust_scores(known.honest, known.root_update) if len(known.honest) else known.honest[:, 0]
    pull = honest @ (known.honest / known.honest.norm(dim=1, keepdim=True))
    update = root_norm * (trust * crafted + pull) / (trust + honest.sum())
    best = (away + alpha * update).norm(dim=1).argmax()
    return crafted[best].repeat(len(known.own), 1)


ATTACKS: dict[str, Attack] = {"random": random, "huge": huge, "flip": flip, "adaptive": adaptive, "outward": outward}


# ---------------------------------------------------------------- FLTrust on it

CLIENTS = 20


def train(
    problem: Ridge,
    attack: Attack,
    m: int,
    alpha: float,
    *,
    root_size: int,
    client_size: int,
    rounds: int,
    seed: int,
    rule: Rule | None = None,
) -> Tensor:
    """w^t (rounds + 1, d) from w^0 = 0, by FLTrust if no rule is given: one local step on all of the client's data, beta = 1."""
    rng, noise = stream(seed, "examples"), reseed(torch.Generator(), seed, "attack")
    everyone = problem.everyone[0].numpy()
    share = torch.stack([torch.from_numpy(rng.multinomial(size, everyone) / size) for size in (root_size, *[client_size] * CLIENTS)])
    curvature, slope, optimum = problem.curvature(share), problem.slope(share), problem.optimum
    rule = rule or FLTrust()
    path = [torch.zeros_like(optimum)]
    for _ in range(rounds):
        computed = slope - curvature @ path[-1]  # (1 + n, d), the server's first
        root_update, sent = computed[0], computed[1:].clone()
        if m:
            sent[:m] = attack(Knowledge(computed[1 : m + 1], sent[m:], root_update, CLIENTS, m, CLIENTS, noise), path[-1] - optimum, alpha)
        path.append(path[-1] + alpha * rule(sent, root_update).update)
    return torch.stack(path)


def distances(problem: Ridge, path: Tensor) -> list[float]:
    """||w^t - w*|| of each round."""
    far: list[float] = (path - problem.optimum).norm(dim=1).tolist()
    return far


# ---------------------------------------------------------------- what is printed and drawn

SEEDS = range(5)
MALICIOUS = (0, 4, 10, 16, 19, 20)


def applies(constants: Constants) -> bool:
    try:
        constants.bound(0.0, 0)
    except InputError:
        return False
    return True


def limit(constants: Constants) -> str:
    try:
        return f"{constants.limit:.2g}"
    except InputError:
        return "none"


def print_constants(constants: Constants) -> None:
    print(f"d = {constants.d}, mu = {constants.mu:.3g}, L = {constants.lipschitz:.3g}, alpha = {constants.alpha:.3g}, ", end="")
    print(f"L_1 = {constants.root_lipschitz:.3g}, sigma_1 = {constants.sigma_1:.3g}, sigma_2 = {constants.sigma_2:.3g}; ", end="")
    least = next(size for size in itertools.count(1) if applies(replace(constants, root_size=size)))
    print(f"the bound applies from a root set of {least:,}")
    print("| root set | Delta_1 | Delta_2 | 1 - rho | limit | server alone: 1 - rho | limit |\n" + "|---" * 7 + "|")
    for size in (least, 1000, 10**5, 10**7, 10**9, 10**11):
        sized = replace(constants, root_size=size)
        alone = replace(sized, deviation=0.0)
        print(f"| {size:,} | {sized.delta_1:.2g} | {sized.delta_2:.2g} | {1 - sized.rho:.5g} | {limit(sized)} ", end="")
        print(f"| {1 - alone.rho:.5g} | {limit(alone)} |")


def print_distances(d: int, condition: float, rounds: int = 100) -> None:
    problems = [Ridge.draw(seed, d=d, condition=condition) for seed in SEEDS]
    alpha = problems[0].constants(1000).alpha

    def last(attack: Attack, m: int, rule: Rule) -> str:
        far = []
        for seed, problem in zip(SEEDS, problems, strict=True):
            path = train(problem, attack, m, alpha, root_size=1000, client_size=1000, rounds=rounds, seed=seed, rule=rule)
            far.append(distances(problem, path)[-1])
        return f"{median(far):.2g} ({min(far):.2g} to {max(far):.2g})"

    start = [float(problem.optimum.norm()) for problem in problems]
    print(f"\n||w^{rounds} - w*||, median (least to most) of {len(SEEDS)} runs, 1,000 examples at the server and at each client; ", end="")
    print(f"w^0: {median(start):.2g} ({min(start):.2g} to {max(start):.2g}); server alone: {last(random, 0, FLTrustServer())}")
    print("| malicious | " + " | ".join(ATTACKS) + " |\n|" + "---|" * (1 + len(ATTACKS)))
    for m in MALICIOUS:
        print(f"| {m / CLIENTS:.0%} | " + " | ".join(last(attack, m, FLTrust()) for attack in ATTACKS.values()) + " |", flush=True)


def draw(file: Path, rounds: int = 60) -> None:
    """The attack `outward` under several shares of malicious clients, beside the bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    problem = Ridge.draw(0, d=3, condition=1)
    constants = problem.constants(1000)
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for m in MALICIOUS:
        path = train(problem, outward, m, constants.alpha, root_size=1000, client_size=1000, rounds=rounds, seed=0)
        axes.semilogy(distances(problem, path), color=pyplot.get_cmap("viridis")(m / CLIENTS * 0.9), label=f"{m / CLIENTS:.0%} malicious")
    for size, style in ((1000, ":"), (10**11, "--")):
        bound = replace(constants, root_size=size, radius=1e200).bound(float(problem.optimum.norm()), rounds)
        axes.semilogy(bound, style, color="crimson", label=f"bound, root set of {size:,}")
    axes.set(xlabel="round", ylabel="distance to the optimum", xlim=(0, rounds), ylim=(3e-3, 1e10))
    axes.legend(loc="upper right", fontsize=8)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the matrices are tiny
    for d, condition in ((3, 1.0), (10, 20.0)):
        print_constants(Ridge.draw(0, d=d, condition=condition).constants(1000))
        print_distances(d, condition)
        print()
    for name in sys.argv[1:]:
        draw(Path(name))
