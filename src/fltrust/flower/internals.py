"""All that we use of Flower beyond its public interface (`flwr.app`, `flwr.clientapp`, `flwr.serverapp`), in one place.

Flower may move any of it in any version. tests/test_flower_internals.py says what moved, and docs/federation.md which versions were tried.
"""

from typing import TYPE_CHECKING, Any

import flwr
from flwr.serverapp import Grid

from fltrust.errors import InputError

try:
    from flwr.app.message import make_message
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.common.serde_utils import metadata_from_proto
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid.http_grid import HttpGrid
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid
except ImportError as problem:
    raise InputError(f"flwr {flwr.__version__} is not a version that fltrust knows ({problem}): install flwr 1.41") from problem

if TYPE_CHECKING:
    from flwr.proto.runtime_pb2 import PullAppMessagesResponse

__all__ = [
    "SUPERLINK_NODE_ID",
    "ArrayChunk",
    "HttpGrid",
    "InMemoryGrid",
    "confirm_received",
    "get_object_body",
    "get_object_head_values_from_object_content",
    "inflate_object_from_contents",
    "make_message",
    "metadata_from_proto",
    "public_keys",
    "pull_messages",
    "pull_object",
    "run_id",
]


def run_id() -> Any:
    """Flower's number of this run."""
    return TaskIdentity.run_id


def public_keys(grid: Grid) -> dict[int, bytes]:
    """The nodes that are there, each with the public key that the SuperLink has of it; a grid without a SuperLink knows none."""
    if not hasattr(grid, "get_nodes"):
        return dict.fromkeys(grid.get_node_ids(), b"")
    return {int(node.node_id): bytes(node.public_key) for node in grid.get_nodes()}


def pull_messages(grid: HttpGrid, message_ids: list[str]) -> "PullAppMessagesResponse":
    """What was announced in answer to these messages, and whatever else is addressed to the server."""
    return grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))


def pull_object(grid: HttpGrid, run_id: int, object_id: str) -> Any:
    """One piece of a message."""
    return grid._runtime_client.PullObject(PullObjectRequest(node=grid.node, run_id=run_id, object_id=object_id))


def confirm_received(grid: HttpGrid, run_id: int, message_id: str) -> Any:
    """Lets the SuperLink drop a message and its pieces."""
    request = ConfirmMessageReceivedRequest(node=grid.node, run_id=run_id, message_object_id=message_id)
    return grid._runtime_client.ConfirmMessageReceived(request)
