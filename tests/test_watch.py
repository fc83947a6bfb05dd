"""`fltrust watch` as a process of its own, over HTTP: what it sends, whom it lets in, and that it leaves the run alone."""

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from watched import PROGRAM, append, declare, ids, name_nodes, record, start, watching, write_run

import fltrust.watch
from fltrust.audit import RoundLine
from fltrust.cli.watch import watch
from fltrust.errors import InputError
from fltrust.watch.health import health

PATHS = ("/", "/look.css", "/page.css", "/page.js", "/nodes.js", "/curves.js", f"/history?node={ids(1)[0]}")


def get(url: str, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and content, exactly as asked for: no redirect is followed, no path is tidied."""
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content


class Visitor:
    """What a page knows: the changes that came so far, put together."""

    def __init__(self, url: str, last: str | None = None) -> None:
        address = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)
        self.connection.request("GET", "/events", headers={"Last-Event-ID": last} if last else {})
        self.answer = self.connection.getresponse()
        assert self.answer.headers["content-type"].startswith("text/event-stream")
        self.top: dict[str, Any] = {}
        self.rounds: list[dict[str, Any]] = []
        self.nodes: dict[str, dict[str, Any]] = {}
        self.last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.answer.close()
        self.connection.close()

    def hear(self) -> list[dict[str, Any]]:
        """The next event; waits for it."""
        while line := self.answer.readline().decode():
            if line.startswith("id: "):
                self.last = line[4:].strip()
            if line.startswith("data: "):
                changes: list[dict[str, Any]] = json.loads(line[6:])
                for change in changes:
                    self._apply(change)
                return changes
        raise AssertionError("the stream ended")

    def wait(self, holds: Callable[[], object]) -> list[dict[str, Any]]:
        heard: list[dict[str, Any]] = []
        while not holds():
            heard += self.hear()
        return heard

    def _apply(self, change: dict[str, Any]) -> None:
        if change.get("whole"):
            self.top, self.rounds, self.nodes = {}, [], {}
        self.top |= change.get("top", {})
        if "rounds" in change:
            self.rounds[change["from"] :] = change["rounds"]
        for node in change.get("gone", []):
            del self.nodes[node]
        for node, parts in change.get("nodes", {}).items():
            added = parts.pop("add", "")
            known = self.nodes.setdefault(node, {"strip": ""})
            known |= parts
            known["strip"] += added

    @property
    def all(self) -> tuple[Any, ...]:
        return self.top, self.rounds, self.nodes


def whole(url: str) -> tuple[Any, ...]:
    with Visitor(url) as visitor:
        visitor.hear()
        return visitor.all


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture(scope="module")
def page(finished: Path) -> Iterator[str]:
    with watching(finished) as url:
        yield url


# ---------------------------------------------------------------- what it sends


def test_a_visitor_learns_everything_at_once(page: str) -> None:
    top, rounds, nodes = whole(page)
    assert (top["kind"], top["rule"], top["problem"]) == ("federation", "fltrust", None)
    assert "look hostile" in top["headline"]
    assert [line["round"] for line in rounds] == list(range(1, 13))
    assert rounds[-1]["counts"] == {"used": 6, "zero-trust": 3, "rejected": 1}
    assert set(nodes) == {str(node) for node in ids(10)}  # as text: a browser would round them
    flips = nodes[str(ids(1)[0])]
    assert (flips["verdict"], flips["since"], flips["strip"]) == ("hostile", 4, "UUU" + "Z" * 9)
    assert flips["evidence"]


def test_only_what_changed_is_sent(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=3, since=2)
    with watching(run) as url, Visitor(url) as visitor:
        visitor.wait(lambda: len(visitor.rounds) == 3)
        before = visitor.last
        append(run, record(4, 10, 4, since=2))
        first = str(ids(1)[0])
        changes = visitor.wait(lambda: len(visitor.nodes[first]["strip"]) == 4)
        assert not any("whole" in change for change in changes)
        assert [line["round"] for change in changes for line in change.get("rounds", [])] == [4]
        assert all("name" not in node for change in changes for node in change.get("nodes", {}).values())
        append(run, record(5, 12, 4, since=2), record(6, 12, 4, since=2))  # two nodes more
        visitor.wait(lambda: len(visitor.nodes) == 12)
        name_nodes(run, ["first"])
        visitor.wait(lambda: visitor.nodes[first]["name"] == "first")
        assert visitor.nodes[first]["strip"] == "UZZZZZ"
        assert visitor.all == whole(url)
        with Visitor(url, last=before) as away:  # for a moment: it gets what it missed, and nothing else
            missed = away.hear()
        assert not any("whole" in change for change in missed)
        assert [line["round"] for change in missed for line in change.get("rounds", [])] == [4, 5, 6]
        for unknown in ("", "x", "-1", before.split("-")[0] + "-99999", "0-0", before + "9" * 5000):
            with Visitor(url, last=unknown) as stranger:
                assert stranger.hear()[0]["whole"]


def test_the_history_of_chosen_nodes(page: str) -> None:
    first, _, _, alternates, honest = map(str, ids(5))
    status, _, content = get(page, f"/history?after=2&node={first}&node={alternates}&node={honest}")
    found = json.loads(content)
    assert status == 200
    assert [len(found[node]["trust"]) for node in (first, alternates, honest)] == [10, 10, 10]
    assert found[first]["trust"][1:] == [0.0] * 9
    assert [share > 0 for share in found[alternates]["share"]] == [True] + [False, True] * 4 + [False]
    assert min(found[honest]["trust"]) > 0.5
    for odd in ("node=x", "node=-1", "node=" + "9" * 5000, "after=-1&node=5", "after=" + "9" * 5000, "after=%00", "node=%F0%9D%9F%99"):
        assert get(page, f"/history?{odd}")[0] == 200


# ---------------------------------------------------------------- a run directory that is not as it should be


def test_a_run_that_comes_goes_and_is_damaged(tmp_path: Path) -> None:
    run = tmp_path / "later"
    with watching(run) as url, Visitor(url) as visitor:
        visitor.wait(lambda: visitor.top.get("problem"))
        assert visitor.rounds == []
        run.mkdir()
        declare(run)
        (run / "records.jsonl").touch()
        append(run, record(1, 5, 1))
        visitor.wait(lambda: len(visitor.rounds) == 1)
        assert not visitor.top["problem"]
        with (run / "records.jsonl").open("a") as file:
            file.write('{"round": 2, "clients": [1\n')  # damaged half-way
        visitor.wait(lambda: visitor.top["problem"])
        assert "damaged" in visitor.top["problem"]
        assert len(visitor.rounds) == 1  # what was read before stays
        lines = (run / "records.jsonl").read_text().splitlines()
        (run / "records.jsonl").write_text(lines[0] + "\n" + json.dumps(record(2, 5, 1)) + "\n")
        visitor.wait(lambda: len(visitor.rounds) == 2 and not visitor.top["problem"])
        shutil.rmtree(run)
        visitor.wait(lambda: visitor.top["problem"])
        assert str(run) in visitor.top["problem"]
        write_run(run, nodes=3, rounds=1, hostile=0)  # another one in its place
        visitor.wait(lambda: len(visitor.nodes) == 3)
        assert [line["round"] for line in visitor.rounds] == [1]
        assert visitor.all == whole(url)


@pytest.mark.parametrize("name", ["experiment.json", "nodes.json", "records.jsonl"])
def test_a_pipe_in_place_of_a_file_does_not_block_the_page(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", rounds=2)
    shutil.copytree(run, tmp_path / "good")
    with watching(run) as url, Visitor(url) as visitor:
        visitor.wait(lambda: len(visitor.nodes) == 10)
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
        if name == "experiment.json":  # it is read again only after something else went wrong
            (run / "records.jsonl").write_text("{}\n")
            visitor.wait(lambda: visitor.top["problem"])
            shutil.copy(tmp_path / "good" / "records.jsonl", run)
        said = (f"{name} cannot be read: it is no regular file", "records.jsonl is missing", "it has no experiment.json")
        visitor.wait(lambda: any(one in (visitor.top["problem"] or "") for one in said))
        assert get(url, f"/history?node={ids(1)[0]}")[0] == 200
        (run / name).unlink()
        if name == "nodes.json":
            name_nodes(run, ["first"])
        else:
            shutil.copy(tmp_path / "good" / name, run)
        visitor.wait(lambda: not visitor.top["problem"])


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"experiment": 1}', "[" * 100_000, '{"experiment": {}, "kind": "x"}', "\0\xff"]
)
def test_a_damaged_declaration_is_one_line(tmp_path: Path, content: str) -> None:
    run = write_run(tmp_path / "run", rounds=1)
    (run / "experiment.json").write_bytes(content.encode("latin-1"))
    with watching(run) as url:
        top, rounds, _ = whole(url)
        assert top["problem"]
        assert "\n" not in top["problem"]
        assert rounds == []


def test_it_never_writes_into_the_run(finished: Path, page: str) -> None:
    def state() -> list[tuple[Any, ...]]:
        return [
            (path, path.stat().st_mtime_ns, path.stat().st_mode, path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest())
            for path in [finished, *sorted(finished.rglob("*"))]
        ]

    before = state()
    for path in PATHS:
        assert get(page, path)[0] == 200
    whole(page)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert get(page, "/", method)[0] == 405
        assert get(page, "/records.jsonl", method)[0] == 404
    assert state() == before


# ---------------------------------------------------------------- who may come


def test_nothing_but_its_own_files(page: str) -> None:
    for path in (
        "/records.jsonl",
        "/../records.jsonl",
        "/%2e%2e/records.jsonl",
        "/page.js/../feed.py",
        "/..%2f..%2fetc/passwd",
        "/static/page.js",
        "//",
        "/feed.py",
    ):
        status, _, content = get(page, path)
        assert (status, content) == (404, "Not Found"), path


@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
def test_browsers_are_told_to_be_strict(page: str, path: str) -> None:
    _, headers, _ = get(page, path)
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_no_script_or_style_within_the_page(page: str) -> None:
    _, _, content = get(page, "/")
    assert "<style" not in content
    assert " style=" not in content
    assert not re.search(r"\son\w+=", content)
    assert content.count("<script") == 1
    assert '<script type="module" src="page.js"></script>' in content


def test_only_under_its_own_address(page: str) -> None:
    port = urllib.parse.urlsplit(page).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert get(page, "/", Host=host)[0] == 200, host
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{port}.evil.example",
        "localhost",
        "",
        f"127.0.0.1:{port}0",
    ):
        for path in (*PATHS, "/events"):
            status, _, content = get(page, path, Host=host)
            assert (status, content) == (421, "This page answers only under its own address.\n"), host


def test_another_address_needs_the_token(finished: Path) -> None:
    with watching(finished, "--host", "0.0.0.0") as url:
        address = urllib.parse.urlsplit(url)
        (token,) = urllib.parse.parse_qs(address.query)["token"]
        assert len(token) >= 43  # 256 bits
        here = f"http://127.0.0.1:{address.port}"
        for path in (
            *PATHS,
            "/events",
            "/nothing",
            "/?token=",
            "/?token=wrong",
            f"/?token={token[:-1]}",
            f"/?token={token}x",
            "/?token=%ff",
        ):
            status, headers, content = get(here, path)
            assert (status, content) == (401, "This page needs its token: open the address that 'fltrust watch' printed.\n"), path
            assert "set-cookie" not in headers
        status, headers, _ = get(here, f"/?token={token}")
        assert (status, headers["location"]) == (303, "/")  # the token leaves the address bar
        cookie, *settings = headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=lax"} <= set(settings)
        assert get(here, "/", Cookie=cookie)[0] == 200
        assert get(here, "/", Cookie=cookie + "x")[0] == 401
    with watching(finished, "--host", "0.0.0.0") as other:
        assert token not in other


# ---------------------------------------------------------------- the command


def test_ctrl_c_ends_it_quietly_while_somebody_watches(finished: Path) -> None:
    with contextlib.ExitStack() as stack:
        with watching(finished) as url:  # on leaving it is interrupted, and must say nothing and return 0
            visitor = stack.enter_context(Visitor(url))
            visitor.hear()
        assert visitor.answer.read().strip() == b""  # the stream has ended; it was not torn


def test_a_port_that_is_taken(finished: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([*PROGRAM, "watch", str(finished), "--port", str(port)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert done.stderr == f"fltrust: port {port} is taken: give another --port, or 0 for any that is free\n"


def test_without_a_port_the_next_free_one(finished: Path) -> None:
    servers = [start(str(finished)) for _ in range(2)]
    try:
        ports = set()
        for server in servers:
            assert server.stdout is not None
            ports.add(server.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        assert len(ports) == 2
        assert all(8642 <= int(port) < 8742 for port in ports)
    finally:
        for server in servers:
            server.kill()
            server.communicate()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "8.8.8.8", "a b"])
def test_an_address_that_is_not_ours(finished: Path, host: str) -> None:
    done = subprocess.run([*PROGRAM, "watch", str(finished), "--host", host], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert done.stderr.startswith("fltrust: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_extra_one_line_says_what_to_install(finished: Path, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from fltrust.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "watch", str(finished)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert done.stderr == "fltrust: fltrust watch needs the packages starlette and uvicorn: pip install 'fltrust[watch]'\n"


def test_it_needs_neither_torch_nor_flower() -> None:
    code = "import sys, fltrust.watch.serve; assert not {'torch', 'flwr'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


# ---------------------------------------------------------------- is training healthy?


def line(t: int, error: float | None = 0.1, kept: str | None = None, alarms: tuple[str, ...] = ()) -> RoundLine:
    told = [{"kind": "x", "text": text, "nodes": []} for text in alarms]
    nothing = dict.fromkeys(RoundLine._fields)
    return RoundLine(**{**nothing, "round": t, "test_error": error, "kept": kept, "alarms": told, "counts": {}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rounds", "level", "says"),
    [
        ([], "waiting", "No round"),
        ([line(1)], "good", "healthy"),
        ([line(1, None)], "good", "no test error"),
        ([line(1, 0.3), line(2, 0.35)], "good", "healthy"),
        ([line(1, 0.3), line(2, 0.5)], "warn", "rose to 0.500; it was 0.300 in round 1"),
        ([line(1, 0.5), line(2, 0.3), line(3, None)], "good", "healthy"),
        ([line(1), line(2, kept="nobody-trusted")], "bad", "The last round kept the old model: nobody was trusted"),
        ([line(1), line(2, kept="rule"), line(3, kept="rule")], "bad", "Each of the last 2 rounds kept"),
        ([line(1, kept="rule"), line(2)], "good", "healthy"),
        ([line(1, alarms=("old",)), line(2)], "good", "healthy"),
        ([line(1), line(2, alarms=("too few", "more"))], "bad", "Too few"),
    ],
)
def test_health(rounds: list[RoundLine], level: str, says: str) -> None:
    found = health(rounds)
    assert found.level == level
    assert says in found.text


def test_the_colours_are_the_report_s() -> None:
    from fltrust.report.looks import COLOURS

    style = (Path(fltrust.watch.__file__).parent / "page.css").read_text()
    for name, (light, dark) in COLOURS.items():
        assert re.findall(rf"--{name}: (#\w+);", style) == [light, dark]


def test_a_folder_of_runs_is_refused_and_one_of_them_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fltrust.watch.serve.serve", lambda path, **options: None)
    for name in ("second", "first"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.json").write_text("{}")
    with pytest.raises(InputError, match=f"^{tmp_path} is a folder of runs: name one of them, such as {tmp_path}/first$"):
        watch(tmp_path, host="127.0.0.1", port=0, open_browser=False)
    watch(tmp_path / "first", host="127.0.0.1", port=0, open_browser=False)
    (tmp_path / "later").mkdir()
    watch(tmp_path / "later", host="127.0.0.1", port=0, open_browser=False)  # its run may still begin
