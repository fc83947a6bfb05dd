"""The program as a person has it: on a real terminal, in a pipe, stopped in the middle, on a full disk."""

import fcntl
import io
import json
import os
import pty
import re
import resource
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from stopped import PROGRAM, stopped

from fltrust.running.progress import Progress

LONG = ["run", "--dataset", "mnist-5k", "--rounds", "2000", "--evaluate-every", "1", "--batch-size", "4", "--device", "cpu"]
SHORT = [*LONG[:3], "--rounds", "12", *LONG[5:]]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The program on a pseudo-terminal of its own: what it shows can be read, and keys can be pressed."""

    def __init__(self, arguments: list[str], cwd: Path, columns: int) -> None:
        self._screen, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=cwd,
            stdin=child,
            stdout=child,
            stderr=child,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        os.close(child)
        self._seen = b""

    def read(self, until: str | None = None) -> list[str]:
        """The lines that were shown, each as often as it was drawn, until one matches, or to the end."""
        while until is None or not any(re.search(until, line) for line in self._lines()):
            try:
                self._seen += os.read(self._screen, 65536)
            except OSError:  # the program has ended
                assert until is None, self._lines()
                break
        return self._lines()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *problem: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)

    def press(self, key: bytes) -> None:
        os.write(self._screen, key)

    def _lines(self) -> list[str]:
        return [line for line in re.split(r"[\r\n]+", ESCAPES.sub("", self._seen.decode(errors="ignore"))) if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 160])
def test_the_bar_the_round_and_the_time_left_survive_and_ctrl_c_says_how_to_resume(tmp_path: Path, columns: int) -> None:
    name = "--rule", "nnm+geometric-median", "--attack", "scaling"
    with Terminal([*LONG, *name, "--out", "mine"], tmp_path, columns) as terminal:
        terminal.read(until=r"━{5,} round [\d,]+ of 2,000 \d+:\d\d:\d\d left")
        shown = terminal.read(until="^test error 0")
        terminal.press(b"\x03")
        last = terminal.read()[-1]
        assert terminal.process.wait() == 130
        assert not any("Traceback" in line for line in terminal.read())
    assert any("mnist-5k, nnm+geometric-median, attack scaling, seed 0" in line for line in shown)
    assert all(len(line) <= columns for line in shown)
    found = re.fullmatch(
        r"fltrust: stopped in round [\d,]+ of 2,000; the same command resumes after round ([\d,]+), the last one saved in mine", last
    )
    assert found, last
    records = (tmp_path / "mine" / "records.jsonl").read_text().splitlines()
    assert json.loads(records[-1])["round"] == int(found[1].replace(",", ""))


def started(arguments: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.slow
def test_a_pipe_gets_lines_and_kill_says_how_to_resume(tmp_path: Path) -> None:
    with started([*LONG, "--out", "mine"], tmp_path) as process:
        assert process.stdout
        wanted = re.compile(
            r"mnist-5k, fltrust, attack none, seed 0: round [\d,]+ of 2,000, \d+:\d\d:\d\d left: test error 0\.\d{3}, trust"
        )
        for line in process.stdout:
            if wanted.match(line):
                break
        process.terminate()
        rest = process.stdout.read()
    assert process.returncode == 143
    assert re.fullmatch(r"fltrust: stopped in round [\d,]+ of 2,000; the same command resumes after round .*\n", rest.splitlines(True)[-1])
    assert "\x1b" not in rest


@pytest.mark.slow
def test_many_runs_in_a_pipe_get_lines_and_ctrl_c_says_how_to_resume(tmp_path: Path) -> None:
    command = ["league", "--dataset", "mnist-5k", "--rule", "median", "--attack", "none", "--attack", "trim", "--rounds", "2000"]
    with started([*command, "--device", "cpu", "--out", "out"], tmp_path) as process:
        assert process.stdout
        wanted = re.compile(r"0 of 2 runs, \d+:\d\d:\d\d left: mnist-5k, median, attack (none|trim), seed 0: round [\d,]+ of 2,000")
        for line in process.stdout:
            if wanted.match(line):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()  # to the end: no worker outlives the program
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "fltrust: stopped: 0 of 2 runs finished and saved in out; the same command resumes"
    assert "Traceback" not in rest


def test_lines_come_every_few_seconds_and_say_what_is_left() -> None:
    now, file = 0.0, io.StringIO()
    progress = Progress(Console(file=file, width=40), lambda: now)
    progress.start("a run", 0.5)  # half of it was done before
    for round in range(51, 101):
        now += 1.0 if round > 51 else 30.0  # the first one compiles, and says nothing about the pace
        progress.update(round / 100, f"round {round} of 100", "test error 0.5" if round > 60 else "")
    progress.close()
    assert file.getvalue().splitlines()[:4] == [
        "a run: round 51 of 100",
        "a run: round 56 of 100, 0:00:44 left",
        "a run: round 61 of 100, 0:00:39 left: test error 0.5",
        "a run: round 66 of 100, 0:00:34 left: test error 0.5",
    ]
    assert len(file.getvalue().splitlines()) == 10


def test_a_quick_run_says_nothing_in_a_pipe() -> None:
    file = io.StringIO()
    progress = Progress(Console(file=file), lambda: 0.0)
    progress.start("a run")
    progress.update(1.0, "round 1 of 1")
    progress.close()
    assert file.getvalue() == ""


@pytest.mark.slow
def test_killed_and_interrupted_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    command = [*SHORT, "--attack", "trim"]
    subprocess.run([*PROGRAM, *command, "--out", "whole"], cwd=tmp_path, check=True)
    code, said = stopped([*command, "--out", "broken"], cwd=tmp_path, records=3, by=signal.SIGKILL)
    assert code == -signal.SIGKILL
    code, said = stopped([*command, "--out", "broken"], cwd=tmp_path, records=2, by=signal.SIGINT)
    assert code == 130
    assert said.startswith("broken: resumes after round ")
    assert re.fullmatch(r"fltrust: stopped in round \d+ of 12; the same command resumes after round \d+, .* broken", said.splitlines()[-1])
    assert "Traceback" not in said
    done = subprocess.run([*PROGRAM, *command, "--out", "broken"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "broken" / "records.jsonl").read_bytes() == (tmp_path / "whole" / "records.jsonl").read_bytes()


# ---------------------------------------------------------------- full disks


@dataclass(frozen=True)
class SmallDisk:
    folder: Path
    limit: Callable[[], None] | None  # in the program's process, before it starts

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*PROGRAM, *arguments], cwd=self.folder, capture_output=True, text=True, preexec_fn=self.limit)

    def with_room(self) -> "SmallDisk":
        if self.limit is None:
            subprocess.run(["mount", "-o", "remount,size=100m", self.folder], check=True)
        return SmallDisk(self.folder, None)


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], SmallDisk]:
    """Makes a disk with room for so many kilobytes, or, where nobody may mount one, a process whose files can be no larger."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def make(kilobytes: int) -> SmallDisk:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder], capture_output=True).returncode:
            size = 1024 * kilobytes // 2
            return SmallDisk(folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        request.addfinalizer(lambda: subprocess.run(["umount", folder], check=True))
        return SmallDisk(folder, None)

    return make


@pytest.mark.slow
def test_a_run_on_a_full_disk_names_the_file_and_resumes(small_disk: Callable[[int], SmallDisk]) -> None:
    disk = small_disk(900)  # one checkpoint, but not the next one beside it
    full = disk.run(*SHORT, "--out", "mine")
    assert full.returncode == 2
    assert re.fullmatch(
        r"fltrust: mine/checkpoint\.npz: (No space left on device|File too large); make room, and the same command resumes\n", full.stderr
    )
    left = {path.name for path in (disk.folder / "mine").iterdir()}
    assert left - {"checkpoint.npz"} == {".lock", "experiment.json", "records.jsonl"}
    done = disk.with_room().run(*SHORT, "--out", "mine")
    assert done.returncode == 0, done.stderr
    assert ("mine: resumes after round 1\n" if "checkpoint.npz" in left else "mine: checkpoint.npz is missing") in done.stderr
    assert len((disk.folder / "mine" / "records.jsonl").read_text().splitlines()) == 12


@pytest.mark.parametrize("name", ["new", "a/new", "there"])
def test_a_new_federation_on_a_full_disk_leaves_nothing(small_disk: Callable[[int], SmallDisk], name: str) -> None:
    disk = small_disk(8)
    if name == "there":
        (disk.folder / name).mkdir()
    full = disk.run("new-federation", name)
    assert full.returncode == 2
    assert re.fullmatch(
        rf"fltrust: {name}/\S+ cannot be written: (No space left on device|File too large); nothing is left of {name}\n", full.stderr
    )
    assert list(disk.folder.rglob("*")) == ([disk.folder / name] if name == "there" else [])
    assert disk.with_room().run("new-federation", name).returncode == 0
    assert (disk.folder / name / ".gitignore").is_file()
