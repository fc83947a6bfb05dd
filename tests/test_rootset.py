"""`fltrust root check`: what it measures on root sets whose faults are known, what it advises, and what it refuses."""

import dataclasses
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fltrust
from fltrust.cli import app
from fltrust.datasets.dataset import Examples
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.rootset.check import Finding, check_root
from fltrust.rootset.measure import Labels, by_mean, classes_of, even_samples, labels_of, trust_of, with_root
from fltrust.rootset.read import with_root_of
from fltrust.tasks.task import Task

RNG = np.random.default_rng(0)
CENTRES = 2 * RNG.normal(size=(3, 6))
CLASSES = RNG.integers(0, 3, 900)
POINTS = (CENTRES[CLASSES] + RNG.normal(size=(900, 6))).astype(np.float32)
RUN = Experiment(
    dataset="points", model="own", num_clients=6, clients_per_round=6, malicious=0, rounds=30, batch_size=16, root_size=60, global_lr=0.1,
    loss="mean", evaluate_every=10,
)  # fmt: skip


def task(root: np.ndarray, labels: np.ndarray = CLASSES) -> Task:
    torch.manual_seed(0)
    clients = list(np.arange(100, 700).reshape(6, 100))
    return Task.from_arrays(POINTS[:700], labels[:700], POINTS[700:], labels[700:], clients=clients, root=root, model=nn.Linear(6, 3))


EVEN = np.concatenate([np.flatnonzero(CLASSES[:100] == label)[:20] for label in range(3)])


def about(findings: tuple[Finding, ...], topic: str) -> Finding:
    (found,) = [finding for finding in findings if finding.about == topic]
    return found


def flipped(share: float) -> tuple[np.ndarray, set[int]]:
    """The labels with a share of the root set's wrong, and the places of these."""
    wrong = RNG.permutation(len(EVEN))[: round(share * len(EVEN))]
    labels = CLASSES.copy()
    labels[EVEN[wrong]] = (labels[EVEN[wrong]] + 1) % 3
    return labels, set(wrong.tolist())


def test_a_good_root_set() -> None:
    said: list[str] = []
    check = check_root(RUN, task(EVEN), said.append)
    assert check.fine
    assert check.classes is not None
    assert (check.size, check.classes.counts, check.classes.from_even) == (60, (20, 20, 20), 0.0)
    assert about(check.findings, "classes").text == "The classes are balanced: 20 to 20 examples of each."
    assert "The labels look right" in about(check.findings, "labels").text
    assert check.labels.noise < 0.05
    assert check.trust.trusted > 0.95
    assert [other.size for other in check.others] == [15, 60]  # 240 would be too much of the clients' data
    assert [step.split()[-1] for step in said] == ["labels", "60", "15", "60"]
    assert json.loads(json.dumps(check.to_dict()))["labels"]["noticeable"] == check.labels.noticeable


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
def test_wrong_labels_are_counted_and_named(share: float) -> None:
    labels, wrong = flipped(share)
    found = labels_of(RUN, task(EVEN, labels))
    assert found.noise == pytest.approx(share, abs=0.04)
    named = {suspect.example for suspect in found.suspects}
    assert wrong <= named
    assert len(named) <= len(wrong) + 6
    first = found.suspects[0]
    assert first.label == labels[EVEN[first.example]] != first.predicted
    finding = about(check_root(RUN, task(EVEN, labels)).findings, "labels")
    assert not finding.fine
    assert f"{found.noise:.0%} of the labels look wrong" in finding.text
    assert str(first.example) in finding.text


def hard(seed: int, share: float, root: int, test: int) -> Labels:
    """Two classes that overlap, so that the best model is wrong in a quarter of all cases; a share of the root set's labels is wrong."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, root + 2000 + test)
    points = rng.normal(size=(len(labels), 4)).astype(np.float32)
    points[:, 0] += 0.67 * (2 * labels - 1)
    wrong = rng.permutation(root)[: round(share * root)]
    labels[wrong] = 1 - labels[wrong]
    torch.manual_seed(0)
    known, clients = root + 2000, list(np.arange(root, root + 2000).reshape(5, -1))
    task = Task.from_arrays(
        points[:known], labels[:known], points[known:], labels[known:], clients=clients, root=np.arange(root), model=nn.Linear(4, 2)
    )
    return labels_of(dataclasses.replace(RUN, num_clients=5, clients_per_round=5, rounds=20, root_size=root, global_lr=0.3), task)


def test_a_wrong_label_and_a_wrong_model_may_agree() -> None:
    found = [hard(seed, 0.2, root=1000, test=5000) for seed in range(3)]
    assert found[0].test_error > 0.2
    assert np.mean([one.noise for one in found]) == pytest.approx(0.2, abs=0.05)


def test_few_test_examples_raise_no_alarm() -> None:
    found = [hard(seed, 0.0, root=200, test=60) for seed in range(40)]
    assert sum(one.error - one.test_error > 2 * one.spread for one in found) <= 4  # 1 is expected


def test_the_labels_are_judged_by_a_model_that_never_saw_them() -> None:
    labels, _ = flipped(0.4)
    assert labels_of(RUN, task(EVEN, labels)).test_error == labels_of(RUN, task(EVEN)).test_error


def test_a_missing_class_and_a_skewed_root_set() -> None:
    missing = check_root(RUN, task(EVEN[:40]))
    assert about(missing.findings, "classes").text.startswith("It has no example of class 2.")
    assert not missing.fine
    skewed = np.concatenate([np.flatnonzero(CLASSES[:100] == 0), EVEN[20:23], EVEN[40:43]])
    finding = about(check_root(dataclasses.replace(RUN, rounds=5), task(skewed)).findings, "classes")
    assert not finding.fine
    assert "Class 0 is" in finding.text


def test_a_root_set_that_is_all_wrong_gets_nobody_trusted() -> None:
    labels, _ = flipped(1.0)
    check = check_root(dataclasses.replace(RUN, rounds=10), task(EVEN, labels))
    assert check.trust.trusted < 0.3
    assert not about(check.findings, "trust").fine


def test_a_small_root_set_is_told_what_a_larger_one_gives() -> None:
    check = check_root(RUN, task(EVEN[[0, 20, 40]]))
    assert [other.size for other in check.others] == [3, 12]
    assert check.trust.trust < check.others[-1].trust


def test_trust_without_an_attack_is_what_the_simulation_records() -> None:
    fields: dict[str, Any] = {"rounds": 10, "evaluate_every": 1, "global_lr": 0.1, "batch_size": 16}
    records = fltrust.run(task(EVEN), rule="fltrust", **fields).records
    found = trust_of(dataclasses.replace(RUN, rounds=10), task(EVEN))
    given = np.array([record["trust"] for record in records])
    assert found.trust == pytest.approx(given.mean(), rel=1e-4)
    assert found.trusted == pytest.approx((given > 0).mean())
    assert found.test_error == records[-1]["test_error"]


def test_samples_to_compare_with_are_even_and_leave_the_clients() -> None:
    whole = task(EVEN)
    for other in even_samples(whole, seed=0):
        assert np.ptp(classes_of(other).counts) <= 1  # type: ignore[union-attr]
        held = np.concatenate(other.clients)
        assert not set(held) & set(other.root)
        assert len(held) + len(other.root) == 600
        assert sorted(other.clean) == sorted(held)
    assert with_root(whole, np.array([100])).sizes.tolist() == [99, 100, 100, 100, 100, 100]


def test_the_sum_becomes_the_mean_with_the_same_steps() -> None:
    by_sum = dataclasses.replace(RUN, loss="sum", global_lr=0.1 / 60, rounds=5)
    mean = by_mean(by_sum)
    assert mean.loss == "mean"
    assert mean.global_lr == pytest.approx(0.1)
    assert trust_of(mean, task(EVEN)).trust == pytest.approx(trust_of(by_sum, task(EVEN)).trust, rel=1e-3)
    assert by_mean(RUN) is RUN


def test_numbers_as_targets_can_be_checked() -> None:
    targets = POINTS.sum(1) / 4
    clients = list(np.arange(100, 700).reshape(6, 100))
    model = nn.Linear(6, 1)
    made = Task.from_arrays(
        POINTS[:700], targets[:700], POINTS[700:], targets[700:], clients=clients, root=EVEN, model=model, objective="squared-error"
    )
    check = check_root(dataclasses.replace(RUN, global_lr=0.02), made)
    assert check.classes is None
    assert about(check.findings, "labels").fine


# ---------------------------------------------------------------- files


EXAMPLES = Examples(POINTS[:700], CLASSES[:700], POINTS[700:], CLASSES[700:], num_classes=3, owners=np.arange(700) % 7)


def test_indices_and_examples_of_its_own(tmp_path: Path) -> None:
    np.save(tmp_path / "root.npy", np.array([5, 3]))
    np.savez(tmp_path / "indices.npz", indices=np.array([5, 3]))
    for name in ("root.npy", "indices.npz"):
        read = with_root_of(EXAMPLES, tmp_path / name)
        assert read.root is not None
        assert read.root.tolist() == [5, 3]
        assert read.train is EXAMPLES.train
    np.savez(tmp_path / "own.npz", inputs=POINTS[:4].astype(np.float64), targets=CLASSES[:4].astype(np.uint8))
    read = with_root_of(EXAMPLES, tmp_path / "own.npz")
    assert read.root is not None
    assert read.root.tolist() == [700, 701, 702, 703]
    assert read.train[700:].tolist() == POINTS[:4].tolist()
    assert read.train_labels[700:].tolist() == CLASSES[:4].tolist()
    assert read.train.dtype == np.float32
    assert read.owners is not None
    assert len(read.owners) == 704


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"indices": np.array([0, 700])}, "root must name training examples, 0 to 699"),
        ({"indices": np.array([1, 1])}, "each at most once"),
        ({"indices": np.array([0.5])}, "root must be whole numbers"),
        ({"inputs": POINTS[:2]}, "holds inputs: a root set is 'indices', or 'inputs' and 'targets'"),
        ({"inputs": POINTS[:2, :3], "targets": CLASSES[:2]}, r"inputs are float32 of shape \(3,\), training examples float32 of \(6,\)"),
        ({"inputs": POINTS[:2].astype(int), "targets": CLASSES[:2]}, "inputs are int64"),
        ({"inputs": POINTS[:2], "targets": CLASSES[:3]}, "2 inputs and targets of shape"),
        ({"inputs": POINTS[:2], "targets": np.array([0.0, 1.0])}, "targets must be whole numbers"),
        ({"inputs": np.array([None]), "targets": CLASSES[:1]}, "numbers are needed"),
    ],
)  # fmt: skip
def test_files_that_are_no_root_set_are_one_line(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "root.npz", **arrays)
    with pytest.raises(InputError, match=message) as caught:
        with_root_of(EXAMPLES, tmp_path / "root.npz")
    assert "root.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    bytes_: Any = np.zeros((8, 2), np.uint8)
    labels: Any = np.array([0, 1] * 4, np.uint8)  # as a user's own data may have them
    examples = Examples(bytes_, labels, bytes_, labels)
    for inputs, targets in ((np.full((3, 2), 300, np.uint16), [0, 1, 0]), (bytes_[:3], [0, 256, 1])):
        np.savez(tmp_path / "root.npz", inputs=inputs, targets=np.array(targets))
        with pytest.raises(InputError, match=r"root.npz: it holds numbers that do not fit uint8"):
            with_root_of(examples, tmp_path / "root.npz")


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "root.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(InputError, match=r"neither an \.npy nor an \.npz file"):
        with_root_of(EXAMPLES, tmp_path / "root.npz")
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("indices.npy", b"0" * 1000)
    data = bytearray((tmp_path / "bomb.npz").read_bytes())
    place = data.rindex(b"PK\x01\x02") + 24  # the size that the directory claims
    data[place : place + 4] = (2**32 - 2).to_bytes(4, "little")
    (tmp_path / "bomb.npz").write_bytes(data)
    with pytest.raises(InputError, match="more than 2,147,483,648 bytes"):
        with_root_of(EXAMPLES, tmp_path / "bomb.npz")
    with pytest.raises(InputError, match="No such file"):
        with_root_of(EXAMPLES, tmp_path / "none.npz")


# ---------------------------------------------------------------- the command


def folder(path: Path, labels: np.ndarray) -> Path:
    path.mkdir()
    arrays = {"train_inputs": POINTS[:700], "train_targets": labels[:700], "test_inputs": POINTS[700:], "test_targets": labels[700:]}
    for name, array in {**arrays, "root": EVEN}.items():
        np.save(path / f"{name}.npy", array)
    (path / "task.toml").write_text(
        'model = "logistic"\nnum_clients = 6\nmalicious = 1\nbias = 0.5\nrounds = 20\nbatch_size = 16\nglobal_lr = 0.1\n'
    )
    return path


def test_the_command(tmp_path: Path) -> None:
    def check(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["root", "check", *map(str, arguments)])

    good = check("--task", folder(tmp_path / "good", CLASSES))
    assert good.exit_code == 0, good.output
    assert good.stdout.startswith(f"The root set of {tmp_path / 'good'}: 60 examples\n")
    assert "Examples of each class: 20, 20, 20" in good.stdout
    assert "this one" in good.stdout
    assert good.stdout.count("an even sample ") == 2
    assert "attention" not in good.stdout
    np.save(tmp_path / "root.npy", EVEN[:40])
    other = check("--task", tmp_path / "good", "--root", tmp_path / "root.npy")
    assert other.exit_code == 3
    assert "no example of class 2" in other.stdout


def test_the_command_in_a_pipe(tmp_path: Path) -> None:
    labels, _ = flipped(0.3)
    arguments = ["root", "check", "--task", str(folder(tmp_path / "bad", labels)), "--json"]
    bad = subprocess.run([sys.executable, "-m", "fltrust", *arguments], capture_output=True, text=True, check=False)
    assert bad.returncode == 3, bad.stderr
    found = json.loads(bad.stdout)
    assert found["fine"] is False
    assert found["labels"]["noise"] == pytest.approx(0.3, abs=0.06)
    assert next(finding["about"] for finding in found["findings"] if not finding["fine"]) == "labels"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "0"], "name the data: --dataset NAME, or --task for your own"),
        (["--dataset", "mnist-5k", "--task", "folder"], "name the data"),
        (["--dataset", "mnist-5k", "--root", "x.npy", "--root-size", "3"], "leave out --root-size"),
        (["--dataset", "mnist-6k"], "did you mean 'mnist-5k'"),
        (["--dataset", "mnist-5k", "--root", "none.npy"], "none.npy: No such file"),
        (["--dataset", "mnist-5k", "--root-size", "0"], "root_size must be at least 1"),
    ],
)
def test_the_command_refuses_in_one_line(arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(app, ["root", "check", *arguments]).exception
    assert isinstance(refused, InputError)  # `main` makes it a line and exit code 2
    assert message in str(refused)
