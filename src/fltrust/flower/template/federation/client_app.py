"""A node: trains the global model on its own examples. If the run's configuration makes it hostile, it misbehaves."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from federation import task
from fltrust.flower.hostile import misbehave, poisoned

app = ClientApp(mods=[misbehave])


@app.train()
def train(message: Message, context: Context) -> Message:
    t, node = int(message.content["config"]["server-round"]), int(context.node_config["partition-id"])
    images, labels = poisoned(*task.split(context.run_config).nodes[node], task.CLASSES)  # on an honest node: its examples as they are
    model = task.network(context.run_config)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    task.train(model, images, labels, context.run_config, node, t)
    metrics = MetricRecord({"num-examples": len(labels), "server-round": t})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
