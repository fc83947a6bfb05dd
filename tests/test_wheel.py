"""The wheel: built from a copy of the source, installed in an environment of its own, and used in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fltrust.version import __version__

CHECKOUT = Path(__file__).parents[1]
SHORT = ["--dataset", "mnist-5k", "--rounds", "2", "--evaluate-every", "1", "--batch-size", "4", "--device", "cpu"]
SHORT_DEMO = """
import importlib
from fltrust.cli import app
demo = importlib.import_module("fltrust.cli.demo")  # the name in the package is the command
demo.SETTINGS |= {"rounds": 2, "evaluate_every": 1, "batch_size": 2}
app(["demo"])
"""

pytestmark = pytest.mark.slow


def done(*command: str | Path, cwd: Path) -> str:
    """What a command prints. It must succeed, and gets no PYTHONPATH, which could lead back to the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(list(command), cwd=cwd, env={**environment, "COLUMNS": "200"}, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from, so that the build finds no traces of earlier ones and leaves none."""
    copy = tmp_path_factory.mktemp("source")
    shutil.copytree(CHECKOUT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("dist")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    done(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", built, source, cwd=built)
    (made,) = built.iterdir()
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel. It finds other packages where this one has them, but not through this one's .pth files: one of
    those leads to the checkout."""
    place = tmp_path_factory.mktemp("environment")
    done(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    python = place / "bin" / "python"
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    done(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=place)
    own = Path(done(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip())
    (own / "others.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    return place


@pytest.fixture
def fltrust(environment: Path, tmp_path: Path) -> Callable[..., str]:
    return lambda *words: done(environment / "bin" / "fltrust", *words, cwd=tmp_path)


def test_the_wheel_holds_every_file_of_the_package(source: Path, wheel: Path) -> None:
    package = {path.relative_to(source / "src").as_posix() for path in (source / "src" / "fltrust").rglob("*") if path.is_file()}
    assert any(name.endswith(".html") for name in package)
    with zipfile.ZipFile(wheel) as held:
        assert {name for name in held.namelist() if ".dist-info/" not in name} == package
        assert f"fltrust-{__version__}.dist-info/licenses/LICENSE" in held.namelist()


def test_the_installed_package_is_the_wheels(environment: Path, fltrust: Callable[..., str], tmp_path: Path) -> None:
    asked = "import json, sys, fltrust; print(json.dumps([fltrust.__file__, sys.path]))"
    file, path = json.loads(done(environment / "bin" / "python", "-c", asked, cwd=tmp_path))
    assert Path(file).is_relative_to(environment)
    assert str(CHECKOUT / "src") not in path
    assert fltrust("--version") == f"fltrust {__version__}\n"


def test_a_run_and_its_report(fltrust: Callable[..., str], tmp_path: Path) -> None:
    said = fltrust("run", *SHORT, "--rule", "fltrust", "--attack", "trim", "--out", "runs/first")
    assert "after 2 rounds" in said
    assert json.loads((tmp_path / "runs/first/experiment.json").read_text())["experiment"]["rule"]["name"] == "fltrust"
    assert "report/index.html: open it in a browser" in fltrust("report", "runs/first")
    page = (tmp_path / "report/index.html").read_text()
    for name in ("page.css", "page.js"):
        assert (CHECKOUT / "src/fltrust/report" / name).read_text().strip() in page
    assert json.loads((tmp_path / "report/report.json").read_text()) == {"files": ["index.html"]}


def test_a_new_federation(fltrust: Callable[..., str], tmp_path: Path) -> None:
    fltrust("new-federation", "mine")
    template = CHECKOUT / "src/fltrust/flower/template"
    expected = {path.relative_to(template).as_posix() for path in template.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    made = {path.relative_to(tmp_path / "mine").as_posix() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert made == {name.replace("gitignore", ".gitignore") for name in expected}


def test_the_demo(environment: Path, tmp_path: Path) -> None:
    """Two rounds of it: a hundred and fifty take minutes."""
    said = done(environment / "bin" / "python", "-c", SHORT_DEMO, cwd=tmp_path)
    assert said.count("done") == 6
    assert "Try next" in said
    assert not list(tmp_path.iterdir())
