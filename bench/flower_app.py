"""The same round as a Flower app (client, server and FLTrust as a strategy), run by Flower's simulation engine on Ray.

A module of its own because the engine's workers import it by name.
"""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import logging
import time
from collections.abc import Iterable
from itertools import pairwise

import ray  # noqa: F401  (without it the engine ends the process)
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from setting import LR, B, N, batch_of, network, root_batch, usual_fltrust
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

client_app = ClientApp()


def trained(arrays: ArrayRecord, images: Tensor, labels: Tensor) -> torch.nn.Module:
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    cross_entropy(model(images), labels, reduction="sum").backward()
    optimiser.step()
    return model


@client_app.train()
def train(message: Message, context: Context) -> Message:
    model = trained(message.content["arrays"], *batch_of(int(context.node_config["partition-id"])))
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": B})})
    return Message(content=content, reply_to=message)


class FLTrust(FedAvg):
    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=N, min_available_nodes=N)
        self.starts: list[float] = []

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        self.starts.append(time.perf_counter())
        self.arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, None]:
        model = network()
        model.load_state_dict(self.arrays.to_torch_state_dict())
        before = parameters_to_vector(model.parameters()).detach()
        rows = [torch.cat([part.reshape(-1) for part in reply.content["arrays"].to_torch_state_dict().values()]) for reply in replies]
        assert len(rows) == N, f"{len(rows)} of {N} clients answered"
        root_update = parameters_to_vector(trained(self.arrays, *root_batch()).parameters()).detach() - before
        vector_to_parameters(before + LR * usual_fltrust(torch.stack(rows) - before, root_update), model.parameters())
        return ArrayRecord(model.state_dict()), None


def seconds_per_round(rounds: int) -> list[float]:
    """A worker per core, the best for so small a network; the first two rounds start the workers and do not count."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    strategy = FLTrust()
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=rounds + 3)

    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"log_to_driver": False, "logging_level": "error"}}
    run_simulation(server_app, client_app, num_supernodes=N, backend_config=resources)
    starts = strategy.starts[2:]
    return [end - start for start, end in pairwise(starts)]
