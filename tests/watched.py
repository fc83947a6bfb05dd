"""Run directories of federations that never ran, with hostile nodes of four kinds; and `fltrust watch` as a process that shows one."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

BEGAN = datetime(2026, 3, 2, 8, 30, tzinfo=UTC)
FIRST_ID = 2**63 + 12345  # beyond a browser's whole numbers, as Flower's ids are
KINDS = ("flip", "nan", "scale", "alternate")


def declare(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    declared = {
        "key": "0123456789abcdef",
        "kind": "federation",
        "experiment": {"rule": {"name": "fltrust"}},
        "versions": {},
        "hardware": "x",
    }
    (path / "experiment.json").write_text(json.dumps(declared))


def ids(nodes: int) -> list[int]:
    return [FIRST_ID + 7 * i for i in range(nodes)]


def name_nodes(path: Path, names: Sequence[str]) -> None:
    entry = {"fingerprint": None, "state": "active", "since": 1, "why": ""}
    (path / "nodes.json").write_text(
        json.dumps({str(node): {**entry, "name": name} for node, name in zip(ids(len(names)), names, strict=True)})
    )


def record(
    t: int, nodes: int, hostile: int, *, since: int = 1, alarms: Sequence[dict[str, Any]] = (), kept: str | None = None
) -> dict[str, Any]:
    """Round t: the first `hostile` nodes misbehave from round `since` on, each in its way."""
    draw = random.Random(t)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("verdict", "reason", "shares", "cosine", "norm", "peers", "closest", "closest_to")
    }
    for i in range(nodes):
        kind = KINDS[i % len(KINDS)] if i < hostile and t >= since else ""
        bad = kind in ("flip", "scale") or (kind == "alternate" and t % 2 == 0)
        cosine = None if kind == "nan" else round(draw.uniform(-0.4, -0.1) if bad else draw.uniform(0.55, 0.75), 6)
        columns["verdict"].append("rejected" if kind == "nan" else "zero-trust" if bad else "used")
        columns["reason"].append("not-finite" if kind == "nan" else None)
        columns["cosine"].append(cosine)
        columns["norm"].append(None if kind == "nan" else round(draw.uniform(0.9, 1.1) * (8 if kind == "scale" else 1), 6))
        columns["peers"].append(cosine)
        columns["closest"].append(None if cosine is None else round(abs(cosine), 6))
        columns["closest_to"].append(None)
    trust = [None if cosine is None else max(0.0, cosine) for cosine in columns["cosine"]]
    total = sum(one or 0.0 for one in trust)
    columns["shares"] = [None if kept else round((one or 0.0) / total, 6) for one in trust]
    return {
        "round": t,
        "time": (BEGAN + timedelta(seconds=40 * t)).isoformat(timespec="seconds"),
        "seconds": round(draw.uniform(5, 7), 2),
        "test_error": round(0.05 + 0.85 * 0.7**t + draw.uniform(0, 0.01), 4),
        "kept": kept,
        "clients": ids(nodes),
        "trust": trust,
        **columns,
        "alarms": list(alarms),
    }


def append(path: Path, *records: dict[str, Any]) -> None:
    with (path / "records.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in records)


def write_run(path: Path, *, nodes: int = 10, rounds: int = 12, hostile: int = 4, since: int = 4) -> Path:
    declare(path)
    append(path, *(record(t, nodes, hostile, since=since) for t in range(1, rounds + 1)))
    return path


PROGRAM = [sys.executable, "-c", "from fltrust.cli import main; main()"]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*PROGRAM, "watch", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})


@contextlib.contextmanager
def watching(path: Path, *options: str) -> Iterator[str]:
    """The address of the page while it is served; it must end quietly."""
    said = "" if path.exists() else f"there is no folder {path} yet: the page waits for it\n"
    with start(str(path), "--port", "0", *options) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", line := server.stdout.readline())
            assert found, line + server.communicate()[1]
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            out, errors = server.communicate(timeout=600)
        assert (server.returncode, out, errors) == (0, "", said), errors
