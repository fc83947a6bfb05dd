"""A real federation on this machine: a SuperLink, SuperNodes and all that they start, as processes that never outlive the test.

And the same app in one process, without any transport: what a real federation must compute too.
"""

import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
import urllib.request
import uuid
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from waiting import MOST_SECONDS

from fltrust.cli.federation import create

LIGHT_APP = Path(__file__).parent / "flower_app"
TEMPLATE = Path(__file__).parents[1] / "src" / "fltrust" / "flower" / "template"
BIN = Path(sysconfig.get_path("scripts"))


def new_app(path: Path, *, light: bool = True, fedavg: bool = False) -> Path:
    """The app as a user gets it; a light one has a linear model that nodes train with NumPy, since PyTorch takes each a second to load."""
    create(path)
    if light:
        for name in ("task.py", "client_app.py"):
            shutil.copy(LIGHT_APP / name, path / "federation" / name)
    if fedavg:
        shutil.copy(LIGHT_APP / "fedavg.py", path / "federation" / "server_app.py")
    return path


CONFIG: dict[str, bool | float | int | str] = {
    "seed": 0,
    "bias": 0.1,
    "steps": 30,
    "learning-rate": 0.1,
    "malicious": 0,
    "hostile": "",
    "hostile-from": 1,
    "deadline": 60,
}
CONFIG |= {"registered": False, "names": "", "ban": "", "quarantine": 0, "metrics-port": 0, "log": "text"}


def play(app: Path, directory: Path, nodes: int, **config: str | int | float) -> None:
    """A run of the app, ServerApp and ClientApp, in this process; node i has the id i + 2 (1 is the SuperLink's own)."""
    run_config = {**CONFIG, "nodes": nodes, "directory": str(directory), **config}
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    sys.path.insert(0, str(app))
    try:
        client, server = (importlib.import_module(f"federation.{name}") for name in ("client_app", "server_app"))
        server.app(cast(Grid, LocalGrid(client.app, nodes, run_config)), Context(1, 0, {}, RecordDict(), run_config))
    finally:
        sys.path.remove(str(app))
        for name in [name for name in sys.modules if name.split(".")[0] == "federation"]:
            del sys.modules[name]


ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # a node is one of many on these cores


def play_alone(app: Path, directory: Path, nodes: int, *, folder: Path | None = None, **config: str | int | float) -> None:
    """`play` in a process of its own that computes with as many threads as a node does: that decides the last bits."""
    code = f"from flower_processes import *; play(Path({str(app)!r}), Path({str(directory)!r}), {nodes}, **{config!r})"
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", code], cwd=folder, env={**os.environ, **ONE_THREAD, "PYTHONPATH": path}, check=True)


class LocalGrid:
    """Nodes that answer in this process, at once."""

    in_process = True

    def __init__(self, app: ClientApp, nodes: int, run_config: Any) -> None:
        self.app, self.replies, self.sent = app, dict[str, Message](), 0
        self.contexts = {
            i + 2: Context(1, i + 2, {"partition-id": i, "num-partitions": 10}, RecordDict(), run_config) for i in range(nodes)
        }

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            self.sent += 1
            message.metadata.__dict__["_message_id"] = str(self.sent)
            names.append(str(self.sent))
            try:
                self.replies[str(self.sent)] = self.app(message, self.contexts[message.metadata.dst_node_id])
            except Exception as problem:  # as Flower does
                self.replies[str(self.sent)] = Message(Error(1, repr(problem)), reply_to=message)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Federation:
    """`with Federation(folder, nodes=3) as federation: federation.run(app, rounds=2)`."""

    def __init__(self, folder: Path, nodes: int, *, secure: bool = False, database: bool = True) -> None:
        self.folder, self.count, self.secure, self.database = folder, nodes, secure, database
        self.port, *self.node_ports = free_ports(nodes + 1)
        self.started: list[subprocess.Popen[bytes]] = []
        self.mark = f"FLTRUST_TEST={uuid.uuid4()}"  # in the environment of every process, so that all can be found
        name, value = self.mark.split("=")
        self.env = {
            **os.environ,
            name: value,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            **ONE_THREAD,
        }

    # ---------------------------------------------------------------- processes

    def __enter__(self) -> Self:
        try:
            (self.folder / "home").mkdir(parents=True)
            connection = f'root-certificates = "{self.folder}/keys/server.crt"' if self.secure else "insecure = true"
            text = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{connection}\n'
            (self.folder / "home" / "config.toml").write_text(text)
            if self.secure:
                self.make_keys("server", "localhost")
            self.start_link()
            for node in range(self.count):
                self.start_node(node)
            self.ids = [self.id_of(f"node-{node}") for node in range(self.count)]
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def make_keys(self, *arguments: str, folder: Path | None = None) -> None:
        self.command(sys.executable, str(TEMPLATE / "make_keys.py"), *arguments, folder=folder)

    def start_link(self) -> None:
        """With TLS and a database it keeps its nodes in a file, so that it knows them again after it was killed."""
        options = ["--insecure"]
        if self.secure:
            options = ["--ssl-ca-certfile", "keys/server.crt", "--ssl-certfile", "keys/server.crt", "--ssl-keyfile", "keys/server.key"]
            options += ["--enable-supernode-auth", *(["--database", "link.db"] if self.database else [])]
        self.start("link", "flower-superlink", *options, "--port", str(self.port), "--disable-runtime-dependency-installation")
        self.wait(self._link_answers, "the SuperLink does not answer", "link")

    def start_node(self, node: int) -> None:
        options = ["--insecure"]
        if self.secure:
            self.make_keys("node", f"node-{node}")
            self.command("flwr", "supernode", "register", f"keys/node-{node}.pub", "here")
            options = ["--root-certificates", "keys/server.crt", "--auth-supernode-private-key", f"keys/node-{node}"]
        self.start(f"node-{node}", "flower-supernode", *options, *self.node_options(node))

    def node_options(self, node: int) -> list[str]:
        port = self.node_ports[node] if node < self.count else free_ports(1)[0]
        config = f"partition-id={node} num-partitions=10"
        return ["--superlink", f"127.0.0.1:{self.port}", "--port", str(port), "--node-config", config]

    def _link_answers(self) -> bool:
        """Not only whether the port is open: a process that tries a free port of this machine can happen to connect to itself."""
        trust = ssl.create_default_context(cafile=f"{self.folder}/keys/server.crt") if self.secure else None
        url = f"{'https' if self.secure else 'http'}://127.0.0.1:{self.port}/health"
        with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(url, context=trust, timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def id_of(self, name: str) -> int:
        """The id under which Flower knows a node; it is there once the node has connected."""
        found: list[str] = []

        def connected() -> bool:
            found[:] = re.findall(r"SuperNode ID: (\d+)", self.log(name))
            return bool(found)

        self.wait(connected, "the node does not connect", name)
        return int(found[-1])

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def command(self, *command: str, folder: Path | None = None) -> str:
        done = subprocess.run(command, cwd=folder or self.folder, env=self.env, capture_output=True, text=True, timeout=MOST_SECONDS)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def processes(self) -> list[int]:
        """All that this federation started, directly or not."""
        return [pid for pid, _ in _marked(self.mark)]

    def kill_server(self, *, link: bool) -> None:
        """kill -9 of the ServerApp, or of the SuperLink and all that it started, the ServerApp among it."""
        doomed = ("flower-superlink", f"--runtime-api-address 127.0.0.1:{self.port} ") if link else ("flwr-serverapp",)
        _kill([pid for pid, line in _marked(self.mark) if any(part in line for part in doomed)])
        for process in self.started:
            process.poll()  # one that has ended and is not asked for still counts as running

    def kill_link(self) -> None:
        """kill -9 of the SuperLink alone: what it started lives on."""
        _kill([pid for pid, line in _marked(self.mark) if "flower-superlink" in line])
        for process in self.started:
            process.poll()

    def stop(self) -> None:
        while alive := self.processes():
            _kill(alive)
            for process in self.started:
                process.wait()

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def wait(self, holds: Any, otherwise: str, name: str, seconds: float = MOST_SECONDS) -> None:
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until:
                raise AssertionError(f"{otherwise}\n{self.log(name)}")
            time.sleep(0.1)

    # ---------------------------------------------------------------- runs

    def start_run(self, app: Path, **config: str | int | float) -> subprocess.Popen[str]:
        """`flwr run`, whose output is the server's log to the end of the run."""
        pairs = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        command = ["flwr", "run", str(app), "here", "--stream", "--run-config", pairs]
        return subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, app: Path, *, seconds: float = MOST_SECONDS, **config: str | int | float) -> str:
        """A whole run; returns the server's log."""
        with self.start_run(app, **config) as running:
            try:
                return running.communicate(timeout=seconds)[0]
            except BaseException:
                running.kill()
                raise

    def records(self, directory: str) -> list[dict[str, Any]]:
        """The audit of a run: what it says of each round, the nodes in the order of their partition-ids."""
        path = self.folder / directory / "records.jsonl"
        rounds = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for record in rounds:
            place = [record["clients"].index(node) for node in self.ids]
            for key in ("verdict", "reason", "shares", "cosine", "norm"):
                record[key] = record[key] and [record[key][i] for i in place]
        return rounds


def _marked(mark: str) -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
