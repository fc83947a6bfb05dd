"""In place of the template's client_app.py: arrays in, arrays out, no framework."""

from federation import task
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fltrust.flower.hostile import misbehave, poisoned

app = ClientApp(mods=[misbehave])


@app.train()
def train(message: Message, context: Context) -> Message:
    t, node = message.content.config_records["config"]["server-round"], context.node_config["partition-id"]
    assert isinstance(t, int)
    own_images, own_labels = task.own(context.run_config, node)
    images, labels = poisoned(own_images, own_labels, task.CLASSES)
    arrays = {name: array.numpy().copy() for name, array in message.content.array_records["arrays"].items()}
    task.train(arrays["output.weight"], arrays["output.bias"], images, labels, context.run_config, node, t)
    record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    metrics = MetricRecord({"num-examples": len(labels), "server-round": t})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)
