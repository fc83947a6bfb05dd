"""FLTrust (Cao et al., NDSS 2021) in one file, without the package: the obvious loops of Algorithms 1 and 2.

    python examples/fltrust_in_one_file.py

Ten clients with points of three classes train a small network; four of them send the opposite of what they learnt.
Nothing here is fast. The package computes the same numbers, and its tests check that it does.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Batch = tuple[Tensor, Tensor]  # images and labels of one local step


def model_update(model: nn.Module, batches: list[Batch], local_lr: float) -> Tensor:
    """Algorithm 1: train a copy of the model on a few batches; return how its weights changed, as one vector."""
    local = copy.deepcopy(model)
    optimiser = torch.optim.SGD(local.parameters(), lr=local_lr)
    for images, labels in batches:
        optimiser.zero_grad()
        loss = cross_entropy(local(images), labels, reduction="sum")
        loss.backward()
        optimiser.step()
    before = nn.utils.parameters_to_vector(model.parameters())
    after = nn.utils.parameters_to_vector(local.parameters())
    return (after - before).detach()


def trust_score(update: Tensor, root_update: Tensor) -> float:
    """TS = ReLU(cosine): how much a client's update points the way of the server's own."""
    lengths = update.norm() * root_update.norm()
    return max(0.0, float(update @ root_update / lengths)) if lengths > 0 else 0.0


def aggregate(updates: list[Tensor], root_update: Tensor) -> Tensor:
    """Equation 4: every update is brought to the length of the server's, then averaged by trust."""
    total = torch.zeros_like(root_update)
    sum_of_trust = 0.0
    for update in updates:
        trust = trust_score(update, root_update)
        if trust > 0:
            total += trust * root_update.norm() / update.norm() * update
            sum_of_trust += trust
    return total / sum_of_trust if sum_of_trust > 0 else total  # nobody trusted: the model stays as it is


def fltrust_round(
    model: nn.Module, clients: list[list[Batch]], root: list[Batch], *, local_lr: float, global_lr: float, liars: int = 0
) -> None:
    """One iteration of Algorithm 2; the first `liars` clients send the opposite of what they learnt, ten times as long."""
    updates = [model_update(model, batches, local_lr) for batches in clients]
    updates[:liars] = [-10 * update for update in updates[:liars]]
    root_update = model_update(model, root, local_lr)
    update = aggregate(updates, root_update)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(weights + global_lr * update, model.parameters())


def mean_round(model: nn.Module, clients: list[list[Batch]], *, local_lr: float, global_lr: float, liars: int = 0) -> None:
    """The same with plain averaging, for comparison."""
    updates = [model_update(model, batches, local_lr) for batches in clients]
    updates[:liars] = [-10 * update for update in updates[:liars]]
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(weights + global_lr * torch.stack(updates).mean(0), model.parameters())


def points(count: int, chance: torch.Generator) -> Batch:
    """Three classes of points in ten dimensions, each around its own centre."""
    labels = torch.randint(0, 3, (count,), generator=chance)
    centres = torch.eye(10)[:3] * 3
    return centres[labels] + torch.randn(count, 10, generator=chance), labels


def error(model: nn.Module, test: Batch) -> float:
    images, labels = test
    with torch.no_grad():
        return float((model(images).argmax(1) != labels).float().mean())


def main() -> None:
    chance = torch.Generator().manual_seed(0)
    test = points(1000, chance)
    root = points(30, chance)  # the server's own clean examples
    for name in ("FLTrust", "plain averaging"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
        for _ in range(100):
            clients = [[points(8, chance)] for _ in range(10)]
            if name == "FLTrust":
                fltrust_round(model, clients, [root], local_lr=0.01, global_lr=0.5, liars=4)
            else:
                mean_round(model, clients, local_lr=0.01, global_lr=0.5, liars=4)
        print(f"{name}: error {error(model, test):.3f} with 4 of 10 clients lying")


if __name__ == "__main__":
    main()
