"""The server: trains on its root set while the nodes train, and trusts each node as far as its update points the same way."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from federation import task
from fltrust import FLTrust
from fltrust.flower import RobustStrategy, root_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    data, model = task.split(config), task.network(config)

    def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"test_error": task.error(model, *data.test)})

    strategy = RobustStrategy(
        FLTrust(),
        root=root_of(task.network(config), data.root, lr=float(config["learning-rate"]), steps=int(config["steps"]), batch_size=32),
        directory=str(config["directory"]),
        min_available_nodes=int(config["nodes"]),
        registered=bool(config["registered"]),
        names=str(config["names"]) or None,
        ban=str(config["ban"]) or (),
        quarantine=int(config["quarantine"]) or None,
        metrics_port=int(config["metrics-port"]) or None,
        log=str(config["log"]),
    )
    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["deadline"]),
        evaluate_fn=evaluate,
    )
