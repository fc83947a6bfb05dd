"""What is kept of a finished run."""

import dataclasses
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up, nested

from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.paper.plan import estimate
from fltrust.registry import Absent
from fltrust.simulation import simulate
from fltrust.store import files, results
from fltrust.store.directory import RunDirectory
from fltrust.store.records import read_records
from fltrust.store.results import Federation, Result, Results
from fltrust.tasks.build import build_task

RUN = Experiment.on("mnist-5k", "fltrust", "scaling", rounds=6, evaluate_every=2, batch_size=4, clients_per_round=15)
ABOUT = {"files": {}, "warnings": [], "versions": {"fltrust": "1"}, "hardware": "a test"}


def made(run: Experiment = RUN, error: float = 0.5, **changes: Any) -> Result:
    whole: dict[str, Any] = {"rounds": (2, 4), "train_error": (0.9, 0.4), "test_error": (0.8, error), "success": None, **changes}
    return Result(run, ABOUT, 1.5, **whole)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run"
    task = build_task(RUN)
    with RunDirectory(path, RUN, task) as open_directory:
        open_directory.save(*(record for record in simulate(RUN, task) if record.weights is not None))
    return path


def test_distilled_from_a_run_directory(directory: Path) -> None:
    result = results.distil(directory, 3.0)
    records = [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]
    assert result.run == RUN
    assert result.rounds == result.trust_rounds == (2, 4, 6)
    assert result.test_error == tuple(record["test_error"] for record in records)
    assert (result.error, result.final_success) == (records[-1]["test_error"], records[-1]["success"])
    assert result.about["versions"]["fltrust"]
    for row, record in zip(result.trust, records, strict=True):
        there = {client: max(0.0, cosine) for client, cosine in zip(record["clients"], record["cosine"], strict=True)}
        assert row == tuple(there.get(client) for client in range(RUN.num_clients))
        assert row.count(None) == 5


def test_written_and_read_again(directory: Path, tmp_path: Path) -> None:
    result = results.distil(directory, 3.0)
    assert isinstance(result, Result)
    path = results.write(result, tmp_path)
    assert path.name == f"fltrust-scaling-{RUN.key}.json"
    assert path.stat().st_size < 5000
    (again,) = results.read(tmp_path).all()
    assert dataclasses.replace(again, trust=()) == dataclasses.replace(
        result,
        trust=(),
        train_error=tuple(round(error, 5) for error in result.train_error),
        test_error=tuple(round(error, 5) for error in result.test_error),
        success=tuple(round(share, 5) for share in result.success or ()),
    )
    for row, before in zip(again.trust, result.trust, strict=True):
        for trust, exact in zip(row, before, strict=True):
            assert trust == (None if exact is None else pytest.approx(exact, abs=0.0021))


def test_a_result_is_found_by_its_experiment_whatever_the_arithmetic() -> None:
    known = Results([made(dataclasses.replace(RUN, precision="float16"), 0.3)])
    found = known.of(RUN)
    assert found is not None
    assert found.error == 0.3
    assert not known.done(RUN)
    known.add(made(dataclasses.replace(RUN, precision="bfloat16"), 0.5))  # the least exact
    assert known.of(RUN) == found
    known.add(made(RUN, 0.2))  # float32 counts before float16
    assert [result.error for result in known.seeds(RUN)] == [0.2]
    known.add(made(dataclasses.replace(RUN, seed=3, precision="float16"), 0.4))
    assert [result.error for result in known.seeds(RUN)] == [0.2, 0.4]
    assert known.of(dataclasses.replace(RUN, rounds=7)) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.pop("rounds"), "rounds"),
        (lambda content: content.update(test_error_curve=[0.1]), "lengths"),
        (lambda content: content.update(trust=["not base64!"], trust_rounds=[2]), "no result"),
        (lambda content: content.update(experiment=None), "declares no experiment"),
        (lambda content: content.update(key="0123456789abcdef"), "its key is"),
        (lambda content: content["experiment"].update(rule={"name": [1]}), "unknown rule"),
        (lambda content: content.update(metrics={"test_loss": [1.0]}), "lengths"),
        (lambda content: content.update(metrics=[1.0]), "no result"),
        (lambda content: content["experiment"].update(rounds="many"), "rounds cannot be 'many'"),
        (lambda content: content["experiment"].update(rule=nested(15)), "more than 10 rules within each other"),
        (lambda content: content["experiment"].update(rule=nested(150)), "nested data that no run writes"),
        (lambda content: content["experiment"].update(rule={"name": "gone", "parameter": nested(450)}), "nested data that no run writes"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, change: Any, said: str) -> None:
    path = results.write(made(), tmp_path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        results.read(tmp_path)


def test_a_field_that_is_newer_than_a_file_has_its_default(tmp_path: Path) -> None:
    raw = Experiment.on("har", "fedavg", "none", standardise=False)
    path = results.write(made(raw), tmp_path)
    content = json.loads(path.read_text())
    del content["experiment"]["standardise"]
    path.write_text(json.dumps(content))
    assert results.read(tmp_path).all()[0].run == raw


COMMITTED = sorted((Path(__file__).parents[1] / "results").glob("*/*.json"))


def test_the_committed_results_are_read_and_written_to_the_byte() -> None:
    assert len(COMMITTED) >= 3600  # they are all looked at, and none is lost
    for path in COMMITTED:
        text = path.read_text()
        result = results.from_json(json.loads(text), path)
        assert results.to_json(result) == text
        assert results.file_of(result.run, path.parents[1]) == path  # and so is its key


def test_metrics_by_name_are_kept(tmp_path: Path) -> None:
    run = dataclasses.replace(RUN, metrics=("test_loss", "class_error"), rounds=4)
    task = build_task(run)
    with RunDirectory(tmp_path / "run", run, task) as directory:
        directory.save(*(record for record in simulate(run, task) if record.evaluated))
    result = results.distil(tmp_path / "run")
    assert isinstance(result, Result)
    assert set(result.metrics) == {"test_loss", "class_error"}
    records = read_records(tmp_path / "run")
    assert result.metrics["test_loss"] == tuple(record["test_loss"] for record in records)
    results.write(result, tmp_path / "results")
    (again,) = results.read(tmp_path / "results").all()
    assert again.metrics["test_loss"] == tuple(round(loss, 5) for loss in result.metrics["test_loss"])
    assert [len(errors) for errors in again.metrics["class_error"]] == [10, 10]


def test_a_rule_whose_plug_in_is_not_here_is_named_and_nothing_is_imported(tmp_path: Path) -> None:
    path = results.write(made(), tmp_path)
    content = json.loads(path.read_text())
    content["experiment"]["rule"] = {"name": "os.system", "tolerate": 3}
    path.write_text(json.dumps(content))
    (result,) = results.read(tmp_path).all()
    assert isinstance(result.run.rule, Absent)
    assert result.run.to_dict()["rule"] == {"name": "os.system", "tolerate": 3}


@pytest.mark.parametrize("name", ["/etc/data", "../../data", "..", "my_task.py:build"])
def test_a_result_of_ones_own_data_stays_in_the_folder(tmp_path: Path, name: str) -> None:
    path = results.write(made(dataclasses.replace(RUN, dataset=name)), tmp_path / "results")
    assert path.resolve().parents[1] == tmp_path / "results"
    assert [result.run.dataset for result in results.read(tmp_path / "results").all()] == [name]


def test_a_run_without_an_evaluation_has_no_result(tmp_path: Path) -> None:
    with RunDirectory(tmp_path, RUN, build_task(RUN)), pytest.raises(InputError, match="no evaluated round"):
        results.distil(tmp_path)


def test_a_billion_clients_are_refused_before_there_is_a_list_of_them(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "run")
    declared = json.loads((directory / "experiment.json").read_text())
    declared["experiment"]["num_clients"] = 10**9
    (tmp_path / "run" / "experiment.json").write_text(json.dumps(declared))
    with pytest.raises(InputError, match="declares 1,000,000,000 clients: at most 1,048,576 can be read"):
        results.distil(tmp_path / "run")


def federation(folder: Path, **changes: Any) -> Path:
    """The run directory of a federation of three nodes, one of which is rejected, and one missing in the second round."""
    folder.mkdir(exist_ok=True)
    declared = {"key": "k", "kind": "federation", "experiment": {"rule": {"name": "fltrust"}, "seed": 1}, "versions": {}, "hardware": "h"}
    (folder / "experiment.json").write_text(json.dumps(declared))
    first = {"round": 1, "test_error": 0.5, "clients": [7, 9, 2**62], "trust": [0.25, None, 0.5], "verdict": ["used", "rejected", "used"]}
    second = {
        "round": 2,
        "test_error": 0.25,
        "clients": [7, 9, 2**62],
        "trust": [0.0, None, None],
        "verdict": ["zero-trust", "rejected", "missing"],
    }
    (folder / "records.jsonl").write_text("".join(json.dumps({**record, **changes}) + "\n" for record in (first, second)))
    return folder


def test_distilled_from_a_federation(tmp_path: Path) -> None:
    result = results.distil(federation(tmp_path))
    assert (result.error, result.rounds, result.train_error) == (0.25, (1, 2), ())
    assert isinstance(result.run, Federation)
    assert (result.run.num_clients, result.run.rounds, result.run.seed, result.run.key) == (3, 2, 1, "k")
    assert result.trust == ((0.25, None, 0.5), (0.0, None, None))  # rejected is not the same as trust 0
    assert result.seconds is None
    assert results.distil(federation(tmp_path, seconds=1.5)).seconds == 3.0
    with pytest.raises(InputError, match="damaged"):
        results.distil(federation(tmp_path, trust=[0.5]))


def test_a_federation_without_a_seed(tmp_path: Path) -> None:
    federation(tmp_path)
    declared = json.loads((tmp_path / "experiment.json").read_text())
    declared["experiment"]["seed"] = None  # as RobustStrategy has it by default
    (tmp_path / "experiment.json").write_text(json.dumps(declared))
    assert results.distil(tmp_path).run.seed is None


def test_time_is_judged_by_the_runs_that_are_most_alike() -> None:
    def run(rule: str, attack: str, rounds: int = 10) -> Experiment:
        return Experiment.on("mnist-5k", rule, attack, rounds=rounds)

    took = {("fltrust", "none"): 2.0, ("fltrust", "searched"): 300.0, ("krum", "searched"): 100.0, ("krum", "trim"): 6.0}
    known = Results([dataclasses.replace(made_up(run(*names)), seconds=seconds) for names, seconds in took.items()])
    here = made_up(run("krum", "trim")).about["hardware"]

    def seconds(*runs: Experiment) -> float:
        return estimate(runs, known, here)[0]

    assert seconds(run("krum", "searched", rounds=20)) == 200
    assert seconds(run("median", "searched")) == 200  # the mean of the searches
    assert seconds(run("median", "krum")) == 102  # of everything on this data
    assert seconds(run("krum", "searched"), run("fltrust", "none")) == 102
    assert estimate([Experiment.on("mnist-0.5", "krum", "trim")], known, here) == (0.0, 1)


def test_hardware_names_the_processor_and_older_results_still_tell_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(files, "CPU_INFO", info)
    monkeypatch.setattr("platform.processor", lambda: "")
    older = files.hardware("cpu")
    assert older == f"{platform.machine()}, {os.cpu_count()} cores"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU 9000\n\nprocessor\t: 1\nmodel name\t: Some CPU 9000\n")
    here = files.hardware("cpu")
    assert here == f"{older}, Some CPU 9000"
    run = Experiment.on("mnist-5k", "fedavg", "none", rounds=10)
    for recorded, seconds in ((older, 5.0), (here, 5.0), (f"{older}, Another", 0.0), ("", 0.0), (older[:-1], 0.0)):
        known = Results([dataclasses.replace(made_up(run, hardware=recorded), seconds=5.0)])
        assert estimate([run], known, here) == (seconds, 0 if seconds else 1)
