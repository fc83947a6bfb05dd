"""The made-up rounds that laws are tried on: what a server receives, and what an attacker knows."""

import torch
from torch import Tensor

from fltrust.attacks.attack import Attack, Knowledge, Server
from fltrust.rules.clipping import CentredClipping
from fltrust.rules.rule import Received, Rule
from fltrust.state import Memory, leaves

CLIENTS = 16  # N, in the federation
N, D, ROUNDS = 11, 37, 4
NAN, INF = float("nan"), float("inf")


def draw(n: int = N, d: int = D, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Updates (n, d) around a common direction, a root update (d,), sizes (n,)."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=generator, dtype=torch.float64)
    updates = common + 2 * torch.randn(n, d, generator=generator, dtype=torch.float64)
    root_update = 3 * common + torch.randn(d, generator=generator, dtype=torch.float64)
    sizes = torch.randint(1, 50, (n,), generator=generator)
    return updates.to(dtype), root_update.to(dtype), sizes


def received(seed: int, dtype: torch.dtype, n: int = N) -> Received:
    """What a server receives in round `seed`: some of the clients, not always the same."""
    updates, root_update, sizes = draw(n, D, dtype, seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(CLIENTS, generator=generator)[:n].sort().values
    weights = torch.randn(D, generator=generator, dtype=torch.float64).to(dtype)
    return Received(
        updates,
        root_update,
        sizes,
        client_ids=ids,
        round=torch.tensor(seed),
        generator=torch.Generator().manual_seed(100 + seed),
        weights=weights,
        root_loss=lambda models: (models - weights - root_update).square().sum(1),
        root_update_from=lambda model: root_update + weights - model,
    )


def known(attack: Attack, seed: int, dtype: torch.dtype, m: int = 3, n: int = N) -> Knowledge:
    """What this attack may know in round `seed`: some of the clients, not always the same, the malicious first."""
    updates, root_update, _ = draw(n, D, dtype, seed)
    full = attack.knowledge == "full"
    malicious = torch.arange(m)
    honest = m + torch.randperm(CLIENTS - m, generator=torch.Generator().manual_seed(seed))[: n - m].sort().values
    weights = draw(1, D, dtype, 100 + seed)[1]
    return Knowledge(
        own=updates[:m],
        others=updates[m:] if full else None,
        root_update=root_update if full else None,
        n=n,
        tolerate=m,
        num_clients=CLIENTS,
        generator=torch.Generator().manual_seed(seed),
        client_ids=torch.cat((malicious, honest)),
        round=torch.tensor(seed),
        weights=weights,
        global_lr=torch.tensor(0.5),
        server=Server(CentredClipping(), weights if full else None),
        own_loss=lambda models: (models - weights - updates[0]).square().sum(1),
    )


def memory_of(subject: Rule | Attack, dtype: torch.dtype) -> Memory:
    return subject.init(CLIENTS, torch.empty(D, dtype=dtype))


def close(actual: Tensor, expected: Tensor) -> None:
    tolerance = 2e-5 if expected.dtype == torch.float32 else 1e-11
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * scale)


def same(one: Memory, other: Memory) -> bool:
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(leaves(one), leaves(other), strict=True))
