"""How long one round takes on this CPU: 100 clients x 32 examples, the paper's CNN, FLTrust with the root update.

    python bench/round.py
    python bench/round.py --repeats 20

Beside it: the plain PyTorch loop, vmap(grad), ByzFL and Flower where they are installed (`pip install byzfl "flwr[simulation]<1.42"`),
and the limit: the same floating-point operations at the best rate of a large matrix product. All get examples of the same shapes and
take turns in one process, with torch's default threads; Flower's engine runs the rounds in its own worker processes, after the others.
"""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import argparse
import statistics
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table
from setting import (
    BUSY,
    CLOCK,
    HELD,
    LR,
    ROOT,
    B,
    N,
    batch_of,
    examples,
    network,
    our_rounds,
    our_run,
    processor,
    root_batch,
    usual_fltrust,
)
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fltrust.experiment import Precision
from fltrust.training.precision import has_bfloat16

# Multiplications of one example in the forward pass: outputs of the layer x inputs that each sums over.
LAYERS = (26 * 26 * 30 * 9, 11 * 11 * 50 * 30 * 9, 100 * 1250, 10 * 100)
# The backward pass costs the same for the weights and again for the layer's inputs, which the first layer does not need; a
# multiplication and an addition are two operations. 3,200 examples make 36.1 GFLOP (the root set's 1.1 GFLOP are not counted).
GFLOP = 2e-9 * (3 * sum(LAYERS) - LAYERS[0]) * N * B

OVER_LIMIT = 1.5  # at most
TARGETS = {"plain loop": 2.3, "ByzFL": 4.0, "Flower simulation": 6.0}  # at least


def ours(precision: Precision = "float32") -> Callable[[], object]:
    images, labels = (part.numpy() for part in examples())
    records = our_rounds(replace(our_run(N, B), precision=precision), images, labels, HELD)
    return lambda: next(records)


def plain_loop() -> Callable[[], object]:
    """Client after client, torch's default threads inside each operator."""
    server, local = network(), network()

    def update(images: Tensor, labels: Tensor) -> Tensor:
        local.load_state_dict(server.state_dict())
        optimiser = torch.optim.SGD(local.parameters(), lr=1.0)
        optimiser.zero_grad()
        cross_entropy(local(images), labels, reduction="sum").backward()
        optimiser.step()
        return (parameters_to_vector(local.parameters()) - parameters_to_vector(server.parameters())).detach()

    def play() -> None:
        updates = torch.stack([update(*batch_of(i)) for i in range(N)])
        step(server, usual_fltrust(updates, update(*root_batch())))

    return play


def step(server: nn.Module, update: Tensor) -> None:
    vector_to_parameters(parameters_to_vector(server.parameters()).detach() + LR * update, server.parameters())


def vmap_grad() -> Callable[[], object]:
    server = network()

    def loss(weights: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(functional_call(server, weights, (images,)), labels, reduction="sum")

    per_client = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=10)  # on two cores faster than 4, 25 or all at once

    def play() -> None:
        weights = {name: value.detach() for name, value in server.named_parameters()}
        images, labels = zip(*(batch_of(i) for i in range(N)), strict=True)
        gradients = per_client(weights, torch.stack(images), torch.stack(labels))
        root = grad(loss)(weights, *root_batch())
        updates = -torch.cat([part.reshape(N, -1) for part in gradients.values()], dim=1)
        step(server, usual_fltrust(updates, -torch.cat([part.reshape(-1) for part in root.values()])))

    return play


def byzfl_round() -> Callable[[], object]:
    """ByzFL's clients, server and loaders; it has no FLTrust, so the server steps along the usual port of it."""
    import byzfl
    from torch.utils.data import DataLoader, TensorDataset

    byzfl.fed_framework.models.paper_cnn = network  # where it looks models up by name

    def loader(first: int, count: int, batch: int) -> DataLoader:
        images, labels = examples()
        return DataLoader(TensorDataset(images[first : first + count], labels[first : first + count]), batch_size=batch, shuffle=True)

    def client(loader: DataLoader) -> byzfl.Client:
        return byzfl.Client(
            {
                "model_name": "paper_cnn",
                "device": "cpu",
                "loss_name": "CrossEntropyLoss",
                "LabelFlipping": False,
                "nb_labels": 10,
                "momentum": 0.0,
                "training_dataloader": loader,
                "store_per_client_metrics": False,
            }
        )

    clients = [client(loader(i * HELD, 3 * B, B)) for i in range(N)]  # three whole batches each
    root = client(loader(N * HELD, ROOT, ROOT))
    server = byzfl.Server(
        {
            "model_name": "paper_cnn",
            "device": "cpu",
            "test_loader": root.training_dataloader,
            "optimizer_name": "SGD",
            "learning_rate": LR,
            "weight_decay": 0.0,
            "milestones": [],
            "learning_rate_decay": 1.0,
            "aggregator_info": {"name": "Average", "parameters": {}},
            "pre_agg_list": [],
        }
    )

    def play() -> None:
        weights = server.get_dict_parameters()
        for one in (*clients, root):
            one.set_model_state(weights)
            one.compute_gradients()
        gradients = torch.stack([one.get_flat_gradients_with_momentum() for one in clients])
        server.set_gradients(usual_fltrust(gradients, root.get_flat_gradients()))
        server._step()

    return play


def best_gflops() -> float:
    """The rate of a large float32 matrix product with all cores: the best of several."""
    rates = []
    for side in (2048, 4096):
        matrix = torch.randn(side, side)
        for _ in range(8):
            start = CLOCK.now()
            matrix @ matrix
            rates.append(2e-9 * side**3 / (CLOCK.now() - start))
    return max(rates)


def race(players: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Two rounds each to warm up and compile, then in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in players}
    for turn in range(repeats + 2):
        CLOCK.wait()
        for name, play in players.items():
            start = CLOCK.now()
            play()
            if turn >= 2:
                seconds[name].append(CLOCK.now() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--busy", action="store_true", help=BUSY)
    options = parser.parse_args()
    if options.busy:
        CLOCK.on_a_busy_machine()
    warnings.simplefilter("ignore")

    players = {"fltrust": ours(), "plain loop": plain_loop(), "vmap(grad)": vmap_grad()}
    if has_bfloat16():
        players["fltrust, bfloat16"] = ours("bfloat16")
    try:
        players["ByzFL"] = byzfl_round()
    except Exception as error:  # a peer that does not import is a peer that is not there
        print(f"ByzFL left out: {error}")
    CLOCK.wait()
    gflops = best_gflops()
    seconds = race(players, options.repeats)
    gflops = max(gflops, best_gflops())
    try:
        if options.busy:
            raise ImportError("its processes have clocks of their own")
        import flower_app

        CLOCK.wait()
        seconds["Flower simulation"] = flower_app.seconds_per_round(options.repeats)
    except Exception as error:
        print(f"Flower left out: {error}")

    limit = GFLOP / gflops
    median = {name: statistics.median(times) for name, times in seconds.items()}
    table = Table(
        title=f"One round, {N} x {B}, on {processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        caption=f"limit: {GFLOP:.1f} GFLOP at {gflops:.0f} GFLOP/s",
    )
    for heading in ("who", "median, ms", "fastest to slowest, ms", "rounds", "/ ours", "target"):
        table.add_column(heading, justify="left" if heading in ("who", "target") else "right")
    table.add_row("limit", f"{1e3 * limit:.0f}", "", "", f"{limit / median['fltrust']:.2f}", "")
    for name, times in seconds.items():
        ratio, verdict = median[name] / median["fltrust"], ""
        if name == "fltrust":
            over = median[name] / limit
            missed = over - OVER_LIMIT
            verdict = f"{over:.2f} x the limit, at most {OVER_LIMIT}: " + ("met" if missed <= 0 else f"missed by {missed:.2f}")
        elif name in TARGETS:
            least = TARGETS[name]
            verdict = f"at least {least}: " + ("met" if ratio >= least else f"missed by {least - ratio:.2f}")
        spread = f"{1e3 * min(times):.0f} to {1e3 * max(times):.0f}"
        table.add_row(name, f"{1e3 * median[name]:.0f}", spread, str(len(times)), f"{ratio:.2f}", verdict)
    Console(width=max(120, Console().width)).print(table)


if __name__ == "__main__":
    main()
