"""One's own data by the name of a file and its function, or of a folder with arrays: used, hashed, and refused in one line."""

import hashlib
import io
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fltrust.cli import app
from fltrust.datasets import Examples, examples_of
from fltrust.datasets.own import _built, read_npy
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.registry import DATASETS, MODELS
from fltrust.round import first_state
from fltrust.rules import Krum
from fltrust.simulation import simulate
from fltrust.store.directory import RunDirectory
from fltrust.tasks.build import build_task

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(140, 3)).astype(np.float32)
CLASSES = (POINTS[:, 0] > 0).astype(np.int64) + (POINTS[:, 1] > 0)
NUMBERS = {"num_clients": 4, "malicious": 1, "rounds": 3, "batch_size": 8, "global_lr": 0.4, "root_size": 10, "evaluate_every": 1}
Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def _models_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test registers models of the same names from files of its own."""
    list(MODELS)
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))


def arrays() -> Arrays:
    return {"train_inputs": POINTS[:100], "train_targets": CLASSES[:100], "test_inputs": POINTS[100:], "test_targets": CLASSES[100:]}


def folder(path: Path, change: Callable[[Arrays], object] = lambda arrays: None, **settings: Any) -> str:
    """A folder with arrays and a task.toml; a setting of None is left out."""
    made = arrays()
    change(made)
    path.mkdir(exist_ok=True)
    for name, array in made.items():
        np.save(path / f"{name}.npy", array)
    chosen = {"model": "logistic", "bias": 0.5, **NUMBERS, **settings}
    quoted = {name: f'"{value}"' if isinstance(value, str) else value for name, value in chosen.items() if value is not None}
    (path / "task.toml").write_text("".join(f"{name} = {value}\n" for name, value in quoted.items()))
    return str(path)


def last_error(name: str, **changes: Any) -> float:
    run = Experiment.on(name, **changes)
    errors = [record.test_error for record in simulate(run, build_task(run))]
    assert errors[-1] is not None
    return errors[-1]


def test_a_folder(tmp_path: Path) -> None:
    name = folder(tmp_path / "mine")
    run = Experiment.on(name, "krum", "label-flip")
    assert (run.dataset, run.num_clients, run.global_lr, run.bias, run.rule) == (name, 4, 0.4, 0.5, Krum(tolerate=1))
    task = build_task(run)
    assert task.num_classes == 3
    assert task.files == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "mine").iterdir()}
    assert last_error(name, rounds=40) < 0.2


def test_owners_are_clients(tmp_path: Path) -> None:
    users = np.repeat([70, 3, 9, 12], 25)
    name = folder(tmp_path / "mine", lambda arrays: arrays.update(owners=users), bias=None, root_sampling="random")
    run = Experiment.on(name)
    assert run.bias is None
    task = build_task(Experiment.on(name, malicious=0))
    held = [{int(user) for user in users[own]} for own in task.clients]
    assert sorted(user for own in held for user in own) == [3, 9, 12, 70]
    assert all(len(own) == 1 for own in held)


def test_labels_and_sequences_in_a_folder(tmp_path: Path) -> None:
    def labels(arrays: Arrays) -> None:
        for part in ("train", "test"):
            arrays[f"{part}_targets"] = (arrays[f"{part}_inputs"][:, :2] > 0).astype(np.uint8)
        arrays["owners"] = np.arange(100) % 4

    name = folder(tmp_path / "labels", labels, bias=None, objective="binary", root_sampling="random")
    assert last_error(name, rounds=40) < 0.2

    def tokens(arrays: Arrays) -> None:
        for part in ("train", "test"):
            rows = (np.arange(len(arrays[f"{part}_inputs"]))[:, None] + np.arange(6)) % 5
            arrays[f"{part}_inputs"], arrays[f"{part}_targets"] = rows[:, :-1], rows[:, 1:]
        arrays["owners"] = np.arange(100) % 4

    name = folder(tmp_path / "tokens", tokens, bias=None, model="gru", root_sampling="random", loss="mean", global_lr=1.0)
    assert last_error(name, rounds=30) < 0.1
    with pytest.raises(InputError, match="examples have no single class: set split ="):
        build_task(Experiment.on(name, root_sampling="quota"))
    with pytest.raises(InputError, match="tokens cannot be standardised"):
        build_task(Experiment.on(name, standardise=True))


def test_a_root_set_of_ones_own(tmp_path: Path, my_task: Callable[[str], str]) -> None:
    chosen = np.array([7, 3, 50, 99, 20, 21])
    name = folder(tmp_path / "mine", lambda arrays: arrays.update(root=chosen), root_size=None)
    task = build_task(Experiment.on(name))
    assert sorted(task.root) == sorted(chosen)
    assert not set(task.root) & set(np.concatenate(task.clients))
    assert task.files["root.npy"] == hashlib.sha256((tmp_path / "mine" / "root.npy").read_bytes()).hexdigest()
    with pytest.raises(InputError, match="names 6 examples as the root set: leave out root_size = 7"):
        build_task(Experiment.on(name, root_size=7))
    text = FILE.replace("SEED", "0").replace("root_size=10,", "").replace("settings=settings", "settings=settings, root=np.arange(9)")
    assert build_task(Experiment.on(my_task(text))).root.tolist() == list(range(9))
    for wrong, message in ((np.array([100]), "0 to 99"), (np.array([1, 1]), "each at most once"), (np.zeros(2), "whole numbers")):
        name = folder(tmp_path / "wrong", lambda arrays, wrong=wrong: arrays.update(root=wrong), root_size=None)  # type: ignore[misc]
        with pytest.raises(InputError, match=message):
            build_task(Experiment.on(name))


def test_the_loss_of_ones_own_data_is_a_mean(tmp_path: Path) -> None:
    assert Experiment.on(folder(tmp_path / "mine")).loss == "mean"
    assert Experiment.on(folder(tmp_path / "sum", loss="sum")).loss == "sum"
    assert Experiment.on("mnist-5k").loss == "sum"


def test_a_wrong_type_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine/task.toml: rounds cannot be 'many': expected a whole number"):
        Experiment.on(folder(tmp_path / "mine", rounds="many"))
    with pytest.raises(InputError, match=r"mine/task.toml: unknown field 'clients': did you mean 'num_clients'"):
        Experiment.on(folder(tmp_path / "mine", clients=3))


def test_one_logit_and_numbers_in_a_folder(tmp_path: Path) -> None:
    def targets(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], object]:
        return lambda arrays: arrays.update({f"{part}_targets": change(arrays[f"{part}_inputs"]) for part in ("train", "test")})

    positive = targets(lambda inputs: (inputs[:, 0] > 0).astype(int))
    name = folder(tmp_path / "logit", positive, objective="binary")
    assert build_task(Experiment.on(name)).model.d == 4  # one logit
    assert last_error(name, rounds=40) < 0.2
    name = folder(tmp_path / "numbers", targets(lambda inputs: inputs[:, 0] / 2), objective="squared-error", root_sampling="random")
    with pytest.raises(InputError, match=r"no single class: set split = . name = .iid. . and root_sampling"):
        build_task(Experiment.on(name))
    assert last_error(name, split={"name": "iid"}, rounds=40, global_lr=0.1) < 0.05


FILE = """
import numpy as np
from torch import nn
from fltrust.datasets import Examples
from fltrust.registry import MODELS

@MODELS.register("one-layer-of-mine")
class Mine(nn.Linear):
    def __init__(self, shape, num_classes):
        super().__init__(shape[0], num_classes)

def build():
    points = np.random.default_rng(SEED).normal(size=(140, 3)).astype(np.float32)
    settings = dict(model="one-layer-of-mine", num_clients=4, malicious=1, rounds=30, batch_size=8, global_lr=0.4, root_size=10,
                    evaluate_every=1)
    return Examples(points[:100], (points[:100, 0] > 0).astype(int), points[100:], (points[100:, 0] > 0).astype(int), settings=settings)
"""


@pytest.fixture
def my_task(tmp_path: Path) -> Callable[[str], str]:
    """Writes my_task.py anew, as a new process would find it, and names its function."""

    def write(text: str) -> str:
        _built.cache_clear()
        for module in [module for module in sys.modules if module.startswith("fltrust_plugin_my_task")]:
            del sys.modules[module]
        (tmp_path / "my_task.py").write_text(text)
        return f"{tmp_path / 'my_task.py'}:build"

    return write


def test_a_function_with_its_own_model(my_task: Callable[[str], str]) -> None:
    name = my_task(FILE.replace("SEED", "0"))
    run = Experiment.on(name, "fltrust", "trim")
    assert (run.dataset, run.model) == (name, "one-layer-of-mine")
    task = build_task(run)
    assert set(task.files) == {"my_task.py", "my_task.py:build()"}
    assert last_error(name) < 0.2
    assert build_task(Experiment.on(my_task(FILE.replace("SEED", "0")))).files == task.files


def test_another_objective_or_number_of_outputs_is_another_task(my_task: Callable[[str], str]) -> None:
    objective = """
from dataclasses import dataclass
from fltrust.objectives import CrossEntropy

@dataclass(frozen=True)
class Weighted(CrossEntropy):
    by: object
    margin: float = 0.0
"""
    kept: list[Examples] = []  # so that no two objectives share an address

    def digest(chosen: str, comment: str = "") -> str:
        text = objective + FILE.replace("SEED", "0").replace("settings=settings", f"settings=settings, {chosen}") + comment
        kept.append(examples_of(my_task(text)))
        return kept[-1].files["my_task.py:build()"]

    usual, own = digest(""), digest("objective=Weighted(lambda: 1)")
    assert digest('objective="cross-entropy", num_classes=2', "# the same") == usual
    assert digest("objective=Weighted(lambda: 1)") == own
    others = [
        digest("num_classes=3"),
        digest('objective="binary"'),
        digest("objective=Weighted(lambda: 1, margin=0.5)"),
        digest("objective=Weighted(lambda: 1)", "# its file is another one"),
    ]
    assert len({usual, own, *others}) == 6


def test_changed_data_are_not_resumed(my_task: Callable[[str], str], tmp_path: Path) -> None:
    path = folder(tmp_path / "mine")
    changes: list[tuple[str, Callable[[], object]]] = [
        (my_task(FILE.replace("SEED", "0")), lambda: my_task(FILE.replace("SEED", "1"))),
        (path, lambda: folder(tmp_path / "mine", lambda arrays: arrays["train_inputs"].__setitem__((0, 0), 9))),
    ]
    for name, change in changes:
        run = Experiment.on(name)
        out = tmp_path / f"out of {Path(name).name}"
        task = build_task(run)
        with RunDirectory(out, run, task) as directory:
            assert directory.resume(first_state(run, task)) == (0, None)
        with RunDirectory(out, run, build_task(run)):
            pass
        change()
        assert Experiment.on(name) == run
        with pytest.raises(InputError, match="begun with other data files"), RunDirectory(out, run, build_task(run)):
            pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def other(): ...", "my_task.py has no function 'build'"),
        ("def build(): return 3", "my_task.py:build must return fltrust.datasets.Examples, not int"),
        ("def build():\n    return 1 / 0", "my_task.py:build failed: line 2: ZeroDivisionError: division by zero"),
        ("import nothing_of_the_kind", "my_task.py cannot be loaded: line 1: ModuleNotFoundError"),
        (FILE.replace("SEED", "0").replace("global_lr=0.4,", ""), "my_task.py:build does not set 'global_lr'"),
        (FILE.replace("SEED", "0").replace("rounds=30", "rounds='many'"), "rounds cannot be 'many'"),
        (FILE.replace("SEED", "0").replace("evaluate_every", "evaluate_evry"), "unknown setting of .*my_task.py:build 'evaluate_evry'"),
        (FILE.replace("SEED", "0").replace("points[100:],", "points[99:],"), "41 test inputs and 40 targets"),
        (FILE.replace("SEED", "0").replace("astype(int)", "astype(float)"), "training targets must be whole numbers, not float64"),
        (FILE.replace("SEED", "0").replace("settings=settings", "owners=[1], settings=settings"), "owners must be 100 whole numbers"),
        (FILE.replace("SEED", "0").replace("settings=settings", "objective='best', settings=settings"), "unknown objective 'best'"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line(my_task: Callable[[str], str], text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Experiment.on(my_task(text))
    assert "\n" not in str(caught.value)


def test_what_the_data_do_not_set_the_experiment_can(tmp_path: Path) -> None:
    name = folder(tmp_path / "mine", global_lr=None, num_clients=None)
    with pytest.raises(InputError, match="does not set 'num_clients'"):
        Experiment.on(name)
    run = Experiment.on(name, global_lr=0.5, num_clients=6)
    assert (run.global_lr, run.num_clients, run.malicious) == (0.5, 6, 1)


def test_names() -> None:
    assert DATASETS.entry("mnist-5k").kind.family == "mnist-5k"
    with pytest.raises(InputError, match=r"did you mean 'mnist-0.5'"):
        Experiment.on("mnist-0.6")
    for name in ("no/such/folder", "my_task.py", "folder/my_task.py"):
        with pytest.raises(InputError, match=f"no task {name}: it must be a folder"):
            Experiment.on(name)
    with pytest.raises(InputError, match=r"there is no task .*my_task.py"):
        Experiment.on("no/my_task.py:build")


def test_the_rule_is_not_the_datas_to_choose(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown setting of .* 'rule'"):
        Experiment.on(folder(tmp_path / "mine", rule="fedavg"))


# Hostile files


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def pickled() -> bytes:
    np.save(buffer := io.BytesIO(), np.array([Bomb()], object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no .npy file"),
        (b"PK\x03\x04 an archive", "is no .npy file"),
        (pickle.dumps(3), "is no .npy file"),
        (pickled(), "holds object; numbers are needed"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10**15, 3), }"), "is no .npy file"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 3), }"), "has 0 bytes of numbers, its header"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -2), }", bytes(16)), "has 16 bytes of numbers"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", bytes(16)), "has 16 bytes of numbers"),
        (npy("{'descr': '<U2', 'fortran_order': False, 'shape': (2,), }", bytes(16)), "holds <U2; numbers are needed"),
        (npy("{'descr': '|V0', 'fortran_order': False, 'shape': (2,), }"), r"holds \|V0; numbers are needed"),
        (npy("__import__('os').system('touch exploded')"), "is no .npy file"),
        (npy("(" * 5000), "is no .npy file"),
    ],
)  # fmt: skip
def test_hostile_arrays_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    name = folder(tmp_path / "mine")
    (tmp_path / "mine" / "train_targets.npy").write_bytes(data)
    with pytest.raises(InputError, match=f"mine: train_targets.npy: {message}") as caught:
        build_task(Experiment.on(name))
    assert "\n" not in str(caught.value)
    assert not Path("exploded").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("test_inputs"), "test_inputs.npy: No such file"),
        (lambda arrays: arrays.update(train_targets=CLASSES), "100 training inputs and 140 targets"),
        (lambda arrays: arrays.update(train_targets=CLASSES[:100] - 1), "classes start at 0|labels must be 0 to"),
        (lambda arrays: arrays.update(train_targets=CLASSES[:100] + 2**40), "num_classes must be a whole number from 1 to 1,000,000"),
        (lambda arrays: arrays.update(test_targets=np.full(40, np.nan)), "test targets must be whole numbers, not float64"),
        (lambda arrays: arrays.update(train_inputs=np.float32(3)), "must be arrays of examples"),
        (lambda arrays: arrays.update(train_inputs=np.full((100, 3), np.nan)), "NaN or infinity"),
        (lambda arrays: arrays.update(owners=np.zeros(99, int)), "owners must be 100 whole numbers"),
        (lambda arrays: arrays.update(test_inputs=POINTS[100:, :2]), r"the shape \(3,\), test examples \(2,\)"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_one_line(tmp_path: Path, change: Callable[[Arrays], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build_task(Experiment.on(folder(tmp_path / "mine", change)))
    assert "\n" not in str(caught.value)


def test_a_folder_without_settings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"task.toml: No such file"):
        Experiment.on(str(tmp_path))
    (tmp_path / "task.toml").write_text("model = ")
    with pytest.raises(InputError, match=r"task.toml is not TOML"):
        Experiment.on(str(tmp_path))


@pytest.mark.parametrize("array", [POINTS, np.asfortranarray(POINTS), POINTS.astype(">f8"), np.zeros((0, 3)), np.array(2), CLASSES > 0])
def test_plain_arrays_are_read_as_numpy_reads_them(array: np.ndarray) -> None:
    np.save(buffer := io.BytesIO(), array)
    read = read_npy("x.npy", buffer.getvalue())
    assert (read.shape, read.dtype) == (array.shape, array.dtype)
    assert np.array_equal(read, array)


@pytest.mark.parametrize("command", [["run"], ["sweep", "--rule", "krum"], ["root", "check"]])
def test_a_missing_task_is_not_called_an_unknown_data_set(command: list[str]) -> None:
    with pytest.raises(InputError, match=r"^no task nowhere: it must be a folder"):
        app([*command, "--task", "nowhere"], standalone_mode=False)


NET = """
from torch import nn
from parts.width import WIDTH
from fltrust.registry import MODELS

@MODELS.register("net")
class Net(nn.Sequential):
    def __init__(self, shape, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(shape[0], WIDTH), nn.Linear(WIDTH, num_classes))
"""
TASK = """
import numpy as np
from fltrust.datasets import Examples

def build():
    import net
    points, classes = np.ones((140, 3), np.float32), np.arange(140) % 3
    settings = dict(model="net", num_clients=4, malicious=1, rounds=3, batch_size=8, global_lr=0.4, root_size=10)
    return Examples(points, classes, points, classes, settings=settings)
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A task whose network is in a file beside it, which imports another one."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/width.py").write_text("WIDTH = 4\n")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "my_task.py").write_text(TASK)
    monkeypatch.setattr("sys.path", list(sys.path))
    yield tmp_path
    for name in ("net", "parts", "parts.width"):
        sys.modules.pop(name, None)


def test_a_file_beside_the_task_is_found_and_a_change_of_it_makes_another_run(beside: Path) -> None:
    name = f"{beside}/my_task.py:build"
    run = Experiment.on(name)
    assert str(beside) not in sys.path
    before = build_task(run).files
    assert {"my_task.py", "net.py", "parts/width.py"} <= before.keys()
    (beside / "parts/width.py").write_text("WIDTH = 5\n")
    after = build_task(run).files
    assert {name for name in before if before[name] != after[name]} == {"parts/width.py"}


def test_files_of_one_name_beside_two_tasks_are_not_taken_for_each_other(beside: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    Experiment.on(f"{beside}/my_task.py:build")
    other = tmp_path_factory.mktemp("other")
    (other / "net.py").write_text("")
    (other / "my_task.py").write_text(TASK)
    with pytest.raises(InputError, match=rf"imports {other}/net.py, but {beside}/net.py is loaded under this name: rename one of them"):
        Experiment.on(f"{other}/my_task.py:build")


def test_a_task_that_cannot_be_loaded_is_called_a_task(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text("import no_such_module\n")
    with pytest.raises(InputError, match=r"^the task .*my_task.py cannot be loaded: line 1: ModuleNotFoundError"):
        Experiment.on(f"{tmp_path}/my_task.py:build")
