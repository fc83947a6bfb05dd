"""The same runs on a Ray cluster: each is a task on a core, or on a share of a GPU, of some machine. `fltrust` must be installed there.

A run whose worker or machine dies is begun again elsewhere, and goes on from its last checkpoint if that is on the same machine.
"""

import functools
import json
import logging
import os
import socket
import tempfile
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_declaration
from fltrust.registry import load_plugin, plugin_fault
from fltrust.running.pool import Event, Failed, Finished, Tasks, forget, run_to_result
from fltrust.store.results import from_json, to_json
from fltrust.training.precision import check_precision

RETRIES = 3  # of a run whose worker died


def execute(
    runs: Collection[Experiment], address: str, *, device: str, jobs: int, data_dir: str | None = None, plugins: Sequence[Path] = ()
) -> Iterator[Event]:
    """Does the runs wherever there is room: `jobs` at a time on each GPU, or one on each core. Yields each as it ends."""
    try:
        ray: Any = import_module("ray")  # its types change from version to version
    except ImportError as problem:
        raise InputError("--ray needs the package ray: pip install 'fltrust[cluster]'") from problem
    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon:  # Ray itself tries for minutes before it gives up
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as problem:
        raise InputError(f"no Ray cluster answers at {address}: {problem}") from problem
    try:
        gpus = ray.cluster_resources().get("GPU", 0)
        if device == "cuda" and not gpus:
            raise InputError(f"the cluster at {address} has no GPU: use --device cpu")
        on_gpu = device != "cpu" and gpus > 0
        for run in runs:
            check_precision(run.precision, "cuda" if on_gpu else "cpu", here=False)
        room = {"num_cpus": 1, "num_gpus": 1 / jobs if on_gpu else 0}
        task = ray.remote(max_retries=RETRIES, **room)(_run)
        sources = [(plugin.name, plugin.read_bytes()) for plugin in plugins]  # the other machines do not have these files
        left = {task.remote(run.to_dict(), "cuda" if on_gpu else "cpu", data_dir, sources): run for run in runs}
        while left:
            (first, *_), _ = ray.wait(list(left), num_returns=1)
            run = left.pop(first)
            try:
                done = ray.get(first)
            except ray.exceptions.RayError as problem:
                yield Failed(
                    run, f"{type(problem).__name__}, after {RETRIES} retries if its worker died: {str(problem).strip().splitlines()[0]}"
                )
                continue
            yield Failed(run, done["failed"]) if "failed" in done else Finished(run, from_json(json.loads(done["result"]), run.key))
    finally:
        ray.shutdown()


def _run(experiment: dict[str, Any], device: str, data_dir: str | None, plugins: Sequence[tuple[str, bytes]] = ()) -> dict[str, str]:
    work = Path(tempfile.gettempdir()) / f"fltrust-unfinished-{os.getuid()}"
    try:
        for name, source in plugins:
            _load(name, source)
        run = from_declaration(experiment)
        result = run_to_result(run, work, _tasks(device, data_dir))
    except Exception as problem:  # whatever it is, it is this run's alone, and would happen again
        return {
            "failed": str(problem) if isinstance(problem, InputError) else plugin_fault(problem) or f"{type(problem).__name__}: {problem}"
        }
    forget(run, work)
    return {"result": to_json(result)}


@functools.lru_cache(maxsize=1)  # a worker does many runs
def _tasks(device: str, data_dir: str | None) -> Tasks:
    return Tasks(device, data_dir)


@functools.cache
def _load(name: str, source: bytes) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="fltrust-plugin-")  # nobody else can write there; it goes with the worker
    path = Path(folder.name) / name
    path.write_bytes(source)
    load_plugin(path)
    return folder
