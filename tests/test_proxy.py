"""The template's nginx.conf: a real nginx in front of a real SuperLink with TLS and node authentication lets only the fleet API through."""

import http.client
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
if shutil.which("nginx") is None:
    pytest.skip("nginx is not installed: apt-get install nginx-light", allow_module_level=True)

from flower_processes import TEMPLATE, Federation, free_ports, new_app
from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse
from flwr.proto.message_pb2 import PushObjectRequest

CONTROL = "/v1/control/list-nodes"
PROTOBUF = {"Content-Type": "application/protobuf"}
MIB = 1 << 20


class BehindNginx(Federation):
    """A federation whose nodes know the proxy's port alone."""

    def start_link(self) -> None:
        super().start_link()
        (self.proxy_port,) = free_ports(1)
        config = (TEMPLATE / "nginx.conf").read_text()
        assert config.count("8443 ssl") == config.count("https://127.0.0.1:8000") == 1
        config = config.replace("8443 ssl", f"{self.proxy_port} ssl").replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        (self.folder / "nginx.conf").write_text(config)
        # A test's folder is its owner's alone, so nginx stays that user.
        self.start("nginx", "nginx", "-p", str(self.folder), "-c", f"{self.folder}/nginx.conf", "-g", "daemon off; master_process off;")
        self.wait(lambda: self.status("/", port=self.proxy_port) == 403, "nginx does not answer", "nginx")

    def node_options(self, node: int) -> list[str]:
        return [option.replace(f"127.0.0.1:{self.port}", f"127.0.0.1:{self.proxy_port}") for option in super().node_options(node)]

    def ask(self, path: str, body: bytes | Iterable[bytes] = b"", *, method: str = "POST", port: int | None = None) -> tuple[int, bytes]:
        """A request as it is written here, which no library tidies up: status and content; 0 if nobody is there."""
        trust = ssl.create_default_context(cafile=f"{self.folder}/keys/server.crt")
        connection = http.client.HTTPSConnection("127.0.0.1", port or self.proxy_port, context=trust, timeout=600)
        try:
            connection.request(method, path, body, PROTOBUF)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except ConnectionRefusedError:
            return 0, b""
        finally:
            connection.close()

    def status(self, path: str, body: bytes | Iterable[bytes] = b"", *, method: str = "POST", port: int | None = None) -> int:
        return self.ask(path, body, method=method, port=port)[0]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BehindNginx]:
    with BehindNginx(tmp_path_factory.mktemp("proxy"), nodes=3, secure=True) as federation:
        yield federation


def test_nodes_work_through_it_and_have_names_and_bans_by_the_fingerprint_of_their_key(
    federation: BehindNginx, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The fingerprints are ssh-keygen's."""
    app = new_app(tmp_path_factory.mktemp("app") / "app")
    prints = [federation.command("ssh-keygen", "-lf", f"keys/node-{node}.pub").split()[1] for node in range(3)]
    names = {prints[0]: "hospital-a", prints[1]: "hospital-b"}
    (federation.folder / "names.toml").write_text("".join(f"{json.dumps(key)} = {json.dumps(name)}\n" for key, name in names.items()))
    (federation.folder / "ban.txt").write_text(f"hospital-b  # by name\n{2**64 - 1}\n")
    said = federation.run(
        app, nodes=2, rounds=2, directory="runs/named", registered=True, names="names.toml", ban="ban.txt", log="json", steps=5
    )
    records = federation.records("runs/named")
    assert [record["verdict"] for record in records] == [["used", "banned", "used"]] * 2, said
    assert [record["reason"] for record in records] == [[None, "banned", None]] * 2
    nodes = json.loads((federation.folder / "runs/named/nodes.json").read_text())
    assert {nodes[str(node)]["fingerprint"] for node in federation.ids} == set(prints)
    assert [nodes[str(node)]["name"] for node in federation.ids] == ["hospital-a", "hospital-b", prints[2]]
    assert [nodes[str(node)]["state"] for node in federation.ids] == ["active", "banned", "active"]
    lines = [json.loads(line) for line in said.splitlines() if line.startswith('{"time"')]
    assert {(line["event"], line.get("round")) for line in lines} >= {("round", 1), ("round", 2), ("banned", 1)}
    assert any(f"hospital-b (node {federation.ids[1]}) is banned" in line["text"] for line in lines)


def test_the_control_api_answers_anybody_at_the_superlink_and_nobody_through_the_proxy(federation: BehindNginx) -> None:
    request = ListNodesRequest().SerializeToString()
    status, content = federation.ask(CONTROL, request, port=federation.port)
    assert status == 200  # so the proxy is needed
    assert {node.node_id for node in ListNodesResponse.FromString(content).nodes_info} == set(federation.ids)
    assert federation.status(CONTROL, request) == 403


def test_flowers_own_command_line_gets_nowhere_through_the_proxy(federation: BehindNginx) -> None:
    with (federation.folder / "home" / "config.toml").open("a") as file:
        file.write(f'[superlink.proxy]\naddress = "127.0.0.1:{federation.proxy_port}"\n')
        file.write(f'root-certificates = "{federation.folder}/keys/server.crt"\n')
    federation.make_keys("node", "intruder")
    federation.command("flwr", "supernode", "list", "here")
    for command in (["list"], ["register", "keys/intruder.pub"]):
        with pytest.raises(AssertionError, match="403"):
            federation.command("flwr", "supernode", *command, "proxy")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/..%2fcontrol/list-nodes",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/./../control/list-nodes",
        "//v1/control/list-nodes",
        "/v1//control/list-nodes",
        "/V1/CONTROL/list-nodes",
        "/v1/control/list-nodes/../../fleet/pull-messages",
        "/v1/control/list-nodes?/v1/fleet/pull-messages",
        "/v1/fleet/pull-messages?a=b",
        "/v1/fleet/",
        "/v1/fleet",
        "/v1/runtime/pull-object",
        "/health",
        "/docs",
        "/openapi.json",
        "/",
    ],
)
def test_no_way_of_writing_another_path_gets_through(federation: BehindNginx, path: str) -> None:
    assert federation.status(path, ListNodesRequest().SerializeToString()) == 403


def test_requests_that_are_too_large_are_refused_before_the_superlink_has_them(federation: BehindNginx) -> None:
    """Who is not a node hears 401 of the SuperLink."""
    path = "/v1/fleet/push-object"
    in_order, too_large = (PushObjectRequest(object_content=bytes(size * MIB)).SerializeToString() for size in (6, 9))
    assert federation.status(path, in_order) == 401
    assert federation.status(path, too_large) == 413
    assert federation.status(path, iter([too_large[:MIB], too_large[MIB:]])) == 413  # with no length given before
    assert federation.status(path, too_large, port=federation.port) == 401  # the SuperLink itself takes it all


def test_other_methods_are_refused(federation: BehindNginx) -> None:
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "CONNECT"):
        assert federation.status("/v1/fleet/pull-messages", method=method) in (400, 403, 405), method


def test_the_configuration_is_in_order_as_it_is(federation: BehindNginx, tmp_path: Path) -> None:
    shutil.copytree(federation.folder / "keys", tmp_path / "keys")
    shutil.copy(TEMPLATE / "nginx.conf", tmp_path)
    done = subprocess.run(["nginx", "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr
