"""In place of the template's server_app.py: Flower's own FedAvg, without any defence."""

import json
from pathlib import Path

from federation import task
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    data, model = task.split(config), task.network(config)
    directory = Path(str(config["directory"]))
    directory.mkdir(parents=True)

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        error = task.error(model, *data.test)
        with (directory / "errors.jsonl").open("a") as file:
            file.write(json.dumps({"round": t, "test_error": error}) + "\n")
        return MetricRecord({"test_error": error})

    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=int(config["nodes"]))
    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["deadline"]),
        evaluate_fn=evaluate,
    )
