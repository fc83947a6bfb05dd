"""What we use of Flower's private modules is there and has the shape that we rely on. If Flower moves it, these tests say what."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.task_identity import TaskIdentity

import fltrust.flower
from fltrust.flower import internals

PUBLIC = ("flwr", "flwr.app", "flwr.clientapp", "flwr.clientapp.typing", "flwr.serverapp", "flwr.serverapp.strategy")
FOLDER = Path(fltrust.flower.__file__).parent


def test_no_other_file_imports_what_flower_keeps_private() -> None:
    for file in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr") and file.name != "internals.py":
                assert node.module in PUBLIC, f"{file.name}, line {node.lineno}: {node.module} belongs in internals.py"


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (internals.make_message, {"metadata", "content", "error"}),
        (internals.inflate_object_from_contents, {"object_id", "object_contents"}),
        (internals.get_object_body, {"object_content", "cls"}),
        (internals.get_object_head_values_from_object_content, {"object_content"}),
        (internals.metadata_from_proto, {"metadata_proto"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_functions_take_what_we_give_them(function: Any, parameters: set[str]) -> None:
    assert parameters <= set(inspect.signature(function).parameters)


def test_requests_have_the_fields_that_we_set() -> None:
    fields: dict[Any, set[str]] = {
        PullAppMessagesRequest: {"message_ids"},
        PullObjectRequest: {"node", "run_id", "object_id"},
        ConfirmMessageReceivedRequest: {"node", "run_id", "message_object_id"},
    }
    for request, expected in fields.items():
        assert expected <= {field.name for field in request.DESCRIPTOR.fields}, request.__name__


def test_a_grid_over_http_has_a_node_and_a_client_with_our_three_calls() -> None:
    source = inspect.getsource(internals.HttpGrid)
    assert isinstance(inspect.getattr_static(internals.HttpGrid, "node", None), property) or "self.node" in source
    for call in ("_runtime_client", "PullMessages", "PullObject", "ConfirmMessageReceived"):
        assert call in source or any(call in inspect.getsource(base) for base in internals.HttpGrid.__mro__[1:-1]), call


def test_a_grid_tells_its_nodes_and_their_public_keys() -> None:
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid

    assert {"node_id", "public_key"} <= {field.name for field in NodeInfo.DESCRIPTOR.fields}
    for grid in (Grid, internals.HttpGrid, internals.InMemoryGrid):
        assert callable(grid.get_nodes)


def test_a_message_is_taken_apart_and_put_together_as_we_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):  # what Flower sets in the process of a ServerApp
        monkeypatch.setattr(TaskIdentity, name, 1)
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    content = RecordDict({"arrays": ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", b"12345678")})})
    message = Message(content, dst_node_id=3, message_type="train")
    pieces = {name: piece.deflate() for name, piece in get_all_nested_objects(message).items()}
    kinds = {internals.get_object_head_values_from_object_content(piece)[0] for piece in pieces.values()}
    assert {"Message", "RecordDict", "ArrayRecord", "Array", internals.ArrayChunk.__name__} <= kinds
    again = internals.inflate_object_from_contents(message.object_id, pieces)
    assert isinstance(again, Message)
    assert again.content.array_records["arrays"]["w"].data == b"12345678"
