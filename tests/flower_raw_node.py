"""A registered node that is no SuperNode: it speaks Flower's fleet API itself, so that it can say what no SuperNode says.

    python flower_raw_node.py '{"kind": "flooding", "since": 3, ...}'

Before round `since` it is as honest as the others. Then, by kind:

flooding       a reply in a thousand pieces of 32 bytes, all of which it uploads
impersonating  tries to find the ids of the other nodes' messages, to answer and to delete those; answers its own message in another node's
               name; sends instructions to another node, and to the server, in the server's name. In its own name it sends an error
"""

import hashlib
import importlib
import json
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.app.message import array as flwr_array
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

GUESSES = 50  # 38 to 110 were enough while all nodes' messages held the same numbers


def patient(call: Callable[..., Any]) -> Callable[..., Any]:
    """Asks again when the SuperLink's database is locked, as it is while a flood comes in."""

    def again(*arguments: Any) -> Any:
        while True:
            try:
                return call(*arguments)
            except httpx.HTTPStatusError as problem:
                if problem.response.status_code < 500:
                    raise
                time.sleep(0.5)

    return again


CHUNK = "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"  # the array module's own copy of the setting is the one that counts


class RawNode:
    def __init__(self, node: int, calls: tuple[Any, ...], app: ClientApp, given: dict[str, Any]) -> None:
        self.node, self.app, self.given = node, app, given
        self.receive, self.send, _, _, self.pull, self.push, self.confirm = map(patient, calls)
        self.node_config = {"partition-id": given["partition"], "num-partitions": 10}

    def work(self) -> None:
        while True:
            if (received := self.receive()) is None:
                time.sleep(0.3)
                continue
            header, tree = received
            run, name = header.metadata.run_id, header.metadata.message_id
            pieces = {part.object_id: self.fetched(run, part.object_id) for part in iterate_object_tree(tree)}
            self.confirm(run, name)
            own = pieces[name]  # Flower takes the pieces away as it puts them together
            whole = inflate_object_from_contents(name, pieces)
            assert isinstance(whole, Message)
            message = make_message(metadata=header.metadata, content=whole.content)
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, self.node, 1
            t = message.content.config_records["config"]["server-round"]
            assert isinstance(t, int)
            act = getattr(self, self.given["kind"]) if t >= self.given["since"] else self.honest
            print(f"round {t}: {act.__name__}", flush=True)
            act(message, own)

    def fetched(self, run: int, name: str) -> bytes:
        while True:
            try:
                piece: bytes = self.pull(run, name)
                return piece
            except ObjectUnavailableError:  # the server is still uploading it
                time.sleep(0.1)

    def upload(self, message: Message) -> None:
        """As a SuperNode does: first the message's name, then its pieces, itself last. What the SuperLink does not want is left out."""
        message.metadata.__dict__["_message_id"] = message.object_id
        pieces = get_all_nested_objects(message)
        wanted, session = self.send(message, get_object_tree(message), 1.0)
        for name, piece in pieces.items():
            if name in wanted:
                self.push(message.metadata.run_id, session, name, piece.deflate())

    def learnt(self, message: Message) -> Message:
        context = Context(message.metadata.run_id, self.node, self.node_config, RecordDict(), self.given["config"])
        return self.app(message, context)

    # ---------------------------------------------------------------- what it does with a message

    def honest(self, message: Message, content: bytes) -> None:
        self.upload(self.learnt(message))

    def flooding(self, message: Message, content: bytes) -> None:
        setattr(flwr_array, CHUNK, 32)
        try:
            self.upload(self.learnt(message))
        except ObjectPushError:
            print("the server has given up the reply", flush=True)
        finally:
            setattr(flwr_array, CHUNK, self.given["chunk"])

    def impersonating(self, message: Message, content: bytes) -> None:
        found = 0
        for victim in self.given["others"]:
            for name in self.guesses(content, victim):
                if self.exists(message.metadata.run_id, name):
                    found += 1
                    self.upload(self.in_the_name_of(victim, message, name))
                    self.confirm(message.metadata.run_id, name)
            self.upload(self.in_the_name_of(victim, message, secrets.token_hex(32)))
            self.upload(self.in_the_name_of(victim, message, message.metadata.message_id))
        for receiver in (self.given["others"][0], SUPERLINK_NODE_ID):
            self.upload(self.in_the_servers_name(receiver, message))
        print(f"{found} ids found", flush=True)
        self.upload(Message(Error(1, "it had other things to do"), reply_to=message))

    def guesses(self, content: bytes, victim: int) -> list[str]:
        """Ids that the message to another node may have: its own message with another receiver and a time close by."""
        head, body = content.split(HEAD_BODY_DIVIDER, 1)
        kind, inside, _ = head.decode().split(" ")
        proto = ProtoMessage.FromString(body)
        created, names = round(proto.metadata.created_at * 1e6), []
        proto.metadata.dst_node_id = victim
        for i in range(GUESSES):
            proto.metadata.created_at = (created + (i // 2 if i % 2 else -i // 2)) / 1e6
            changed = proto.SerializeToString(deterministic=True)
            names.append(hashlib.sha256(f"{kind} {inside} {len(changed)}".encode() + HEAD_BODY_DIVIDER + changed).hexdigest())
        return names

    def exists(self, run: int, name: str) -> bool:
        try:
            self.pull(run, name)
        except ObjectPullError:
            return False
        except ObjectUnavailableError:  # announced, and not uploaded yet
            return True
        return True

    def in_the_name_of(self, victim: int, message: Message, answered: str) -> Message:
        """Whoever is believed to have sent this is rejected."""
        arrays = ArrayRecord(
            {name: Array(np.full_like(array.numpy(), np.nan)) for name, array in message.content.array_records["arrays"].items()}
        )
        reply = Message(RecordDict({"arrays": arrays}), reply_to=message)
        reply.metadata.__dict__.update(_src_node_id=victim, _reply_to_message_id=answered)
        return reply

    def in_the_servers_name(self, receiver: int, message: Message) -> Message:
        forged = Message(message.content, receiver, message.metadata.message_type, ttl=600, group_id=message.metadata.group_id)
        forged.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        return forged


def main(given: dict[str, Any]) -> None:
    given["chunk"] = getattr(flwr_array, CHUNK)
    sys.path.insert(0, given["app"])
    app = importlib.import_module("federation.client_app").app
    key = load_ssh_private_key(Path(given["key"]).read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    with http_request_response(given["address"], False, given["certificate"], (key, key.public_key())) as (node, *calls):
        print(f"SuperNode ID: {node}", flush=True)
        RawNode(node, tuple(calls), app, given).work()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
