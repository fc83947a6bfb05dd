"""An experiment is data: the paper's numbers, strict names, a key."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
from conftest import rule_of

from fltrust.attacks import ATTACKS, KrumAttack, Scaling, TrimAttack
from fltrust.codec import read_toml
from fltrust.errors import InputError
from fltrust.experiment import FIELDS, Experiment, from_dict, read_experiment
from fltrust.options import assigned
from fltrust.registry import DATASETS, Entry
from fltrust.rules import RULES, FLTrust, Krum, Median, TrimmedMean


@pytest.mark.parametrize(
    ("dataset", "clients", "malicious", "rounds", "batch", "rate", "model"),
    [
        ("mnist-0.1", 100, 20, 2000, 32, 3e-4, "cnn"),
        ("mnist-0.5", 100, 20, 2000, 32, 3e-4, "cnn"),
        ("fashion-mnist", 100, 20, 2500, 32, 6e-3, "cnn"),
        ("cifar-10", 100, 20, 1500, 64, 2e-4, "resnet20"),
        ("har", 30, 6, 1000, 32, 3e-3, "logistic"),
        ("ch-mnist", 40, 8, 2000, 32, 3e-4, "resnet20"),
    ],
)
def test_table_i_of_the_paper(dataset: str, clients: int, malicious: int, rounds: int, batch: int, rate: float, model: str) -> None:
    run = Experiment.on(dataset)
    assert (run.num_clients, run.clients_per_round, run.malicious) == (clients, clients, malicious)
    assert (run.rounds, run.batch_size, run.local_lr * run.global_lr, run.model) == (rounds, batch, rate, model)
    assert (run.local_steps, run.root_size, run.loss, run.root_batch) == (1, 100, "sum", "whole")
    assert Experiment.on(dataset, "krum").rule == Krum(tolerate=malicious)
    assert Experiment.on(dataset, "trim-mean").rule == TrimmedMean(trim=malicious)


def test_ch_mnist_decays() -> None:
    run = Experiment.on("ch-mnist")
    assert [run.lr_at(t) for t in (1, 1499, 1500, 1749, 1750)] == pytest.approx([3e-4, 3e-4, 2.7e-4, 2.7e-4, 2.43e-4])


def test_warm_up_rises_to_the_rate() -> None:
    run = Experiment.on("cifar-10", global_lr=2.0, warmup=50)
    assert [run.lr_at(t) for t in (1, 25, 50, 51)] == pytest.approx([0.04, 1.0, 2.0, 2.0])


def test_the_fraction_of_malicious_clients_is_kept() -> None:
    assert Experiment.on("mnist-0.5", num_clients=50).malicious == 10
    assert Experiment.on("mnist-0.5", num_clients=50, malicious=3).malicious == 3
    assert Experiment.on("mnist-0.5", "krum", clients_per_round=30).rule == Krum(tolerate=6)


BACKDOORS = ("scaling", "dba", "neurotoxin")


def every_experiment() -> list[Experiment]:
    """Every rule under every attack on every data set; a backdoor only where the data have a trigger."""
    return [
        Experiment.on(dataset, rule_of(rule), attack)
        for dataset in DATASETS
        for rule in RULES
        for attack in ATTACKS
        if attack not in BACKDOORS or DATASETS[dataset].trigger is not None
    ]


def test_a_backdoor_without_a_trigger_is_refused() -> None:
    with pytest.raises(InputError, match="needs a trigger"):
        Experiment.on("shakespeare", "fltrust", "scaling")


def test_from_and_to_a_dict_and_keys_differ() -> None:
    runs = every_experiment()
    assert all(from_dict(run.to_dict()) == run for run in runs)
    assert len({run.key for run in runs}) == len(runs) == len(set(runs))
    run = Experiment.on()
    changed = {
        "seed": 1,
        "rounds": 1,
        "bias": 0.3,
        "malicious": 1,
        "loss": "mean",
        "root_bias": 0.5,
        "root_batch": "batch",
        "warmup": 1,
        "augment": True,
        "batch_norm": "clients",
    }
    keys = {run.key} | {dataclasses.replace(run, **{name: value}).key for name, value in changed.items()}  # type: ignore[arg-type]
    assert len(keys) == 1 + len(changed)


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'dataset = "har"\nrule = {name = "krum", tolerate = 4}\nattack = {name = "trim", knowledge = "partial"}\nrounds = 7\n'
        "lr_decay = [[3, 0.5]]\n"
    )
    run = from_dict(read_toml(file))
    assert run.rule == Krum(4)
    assert run.attack == TrimAttack(knowledge="partial")
    assert (run.rounds, run.lr_decay, run.num_clients) == (7, ((3, 0.5),), 30)


def test_values_instead_of_names() -> None:
    run = Experiment.on("mnist-0.5", FLTrust(), KrumAttack(knowledge="partial"))
    assert from_dict(run.to_dict()) == run
    scaling = Experiment.on("mnist-0.5", attack={"name": "scaling", "factor": 10.0}).attack
    assert isinstance(scaling, Scaling)
    assert scaling.factor == 10.0
    assert scaling.trigger.target == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset": "mnist-0.6"}, "unknown dataset 'mnist-0.6': did you mean 'mnist-0.5'"),
        ({"rule": "medain"}, "unknown rule 'medain': did you mean 'median'"),
        ({"attack": "labelflip"}, "unknown attack 'labelflip': did you mean 'label-flip'"),
        ({"rouds": 3}, "unknown field 'rouds': did you mean 'rounds'"),
        ({"rule": {"name": "krum", "tolerat": 3}}, "unknown parameter of krum 'tolerat': did you mean 'tolerate'"),
        ({"rule": "zeno++"}, "unknown rule 'zeno[+][+]': '[+]' puts one rule into another: did you mean 'zeno-plus-plus'"),
        ({"rule": "nnm+"}, "unknown rule 'nnm[+]': '[+]' puts one rule into another, and a rule's name is missing beside it"),
        ({"rule": {"tolerate": 3}}, "a table with a name"),
        ({"rule": 7}, "a table with a name"),
        ({"attack": {"name": "trim", "knowledge": "much"}}, "knowledge"),
        ({"malicious": 101}, "malicious must be 0 to 100"),
        ({"malicious": -1}, "malicious must be 0 to 100"),
        ({"num_clients": 0}, "num_clients must be at least 1"),
        ({"clients_per_round": 101}, "clients_per_round must be at most 100"),
        ({"bias": 0}, "bias .the paper's q. must be above 0"),
        ({"bias": 1.1}, "bias .the paper's q. must be above 0"),
        ({"root_bias": -0.1}, "root_bias must be 0 to 1"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"rounds": "many"}, "rounds cannot be 'many'"),
        ({"rounds": 2.5}, "rounds cannot be 2.5"),
        ({"augment": 1}, "augment cannot be 1"),
        ({"global_lr": float("nan")}, "global_lr cannot be nan"),
        ({"global_lr": 1e308}, "global_lr must be a positive number"),
        ({"global_lr": 0.0}, "global_lr must be a positive number"),
        ({"loss": "median"}, "unknown loss 'median'"),
        ({"root_batch": "hole"}, "unknown root_batch 'hole': did you mean 'whole'"),
        ({"model": "resnet"}, "unknown model 'resnet': did you mean 'resnet20'"),
        ({"seed": -1}, "seed must not be negative"),
        *(({"lr_decay": wrong}, "lr_decay") for wrong in ([3], [[1]], [[1, -1.0]], [[1, float("nan")]], [[1.7, 0.5]], "soon")),
        ({"dataset": ["har"]}, "unknown dataset"),
        ({"rule": {"name": ["krum"]}}, "unknown rule"),
        *(({"rule": {"name": "krum", "tolerate": wrong}}, "tolerate cannot be") for wrong in (2.5, True, "3", float("nan"))),
        ({"rule": {"name": "krum", "tolerate": -1}}, "Krum cannot tolerate -1"),
        ({"attack": {"name": "adaptive", "rounds": 2.5}}, "rounds cannot be 2.5"),
        ({"attack": {"name": "scaling", "factor": "x"}}, "factor cannot be 'x'"),
        ({"attack": {"name": "scaling", "trigger": 3}}, "trigger cannot be 3"),
        ({"attack": {"name": "scaling", "trigger": {"where": [[1, 1]], "value": float("nan"), "target": 0}}}, "value"),
        ({"precision": "bf16"}, "unknown precision 'bf16'"),
    ],
)
def test_mistakes_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_dict(fields)


def test_an_unknown_field_in_python_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match="unknown field 'client': did you mean 'clients_per_round' or 'client_momentum'"):
        Experiment(client=5)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="unknown field 'lr': did you mean 'global_lr'"):
        Experiment.on("mnist-0.5", lr=0.1)
    assert list(inspect.signature(Experiment).parameters) == list(FIELDS)  # as help() shows it


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('seed = "3"', "seed cannot be '3': expected a whole number"),
        ("rounds = 2.5", "rounds cannot be 2.5: expected a whole number"),
        ('global_lr = "fast"', "global_lr cannot be 'fast': expected a number"),
        ("augment = 1", "augment cannot be 1: expected true or false"),
        ("lr_decay = 3", "lr_decay cannot be 3: expected a list"),
        ("model = 3", "model cannot be 3: expected a text in quotes"),
        ("loss = 3", "loss cannot be 3: expected one of sum, mean"),
        ("bias = []", r"bias cannot be \[\]: expected a number"),
        ("clients = 50", "unknown field 'clients': did you mean 'num_clients'"),
        ("Learning_Rate = 0.1", "unknown field 'Learning_Rate': did you mean 'global_lr'"),
        ("num_malicious = 3", "unknown field 'num_malicious': did you mean 'malicious'"),
        ("epochs = 3", "unknown field 'epochs': did you mean 'local_epochs'"),
        ("client = 3", "unknown field 'client': did you mean 'clients_per_round' or 'client_momentum'"),
    ],
)
def test_a_file_is_named_with_what_is_wrong_in_it(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "run.toml").write_text(line)
    with pytest.raises(InputError, match=message) as caught:
        read_experiment(tmp_path / "run.toml")
    assert str(caught.value).startswith(f"{tmp_path / 'run.toml'}: ")


@pytest.mark.parametrize(
    ("dataset", "rule", "attack", "model"), [("MNIST-0.5", "FLTrust", "ALIE", "CNN"), ("Har", "NNM+Krum", "Trim", "MLP")]
)
def test_names_in_large_letters_are_the_same_experiment(dataset: str, rule: str, attack: str, model: str) -> None:
    large = Experiment.on(dataset, rule, {"name": attack}, model=model, metrics=("Confusion",))
    small = Experiment.on(dataset.lower(), rule.lower(), attack.lower(), model=model.lower(), metrics=("confusion",))
    assert large == small
    assert large.key == small.key
    assert large.to_dict() == small.to_dict()
    with pytest.raises(InputError, match="unknown rule 'FLTRUSTED': did you mean 'fltrust'"):
        Experiment.on("mnist-5k", "FLTRUSTED")


def test_no_key_has_changed() -> None:
    """Keys name results: those of the paper's usual experiments must stay."""
    assert Experiment.on("mnist-0.5").key == "2293409d1d894868"
    assert Experiment.on("har", "krum", "trim").key == "18adceecb24f56d5"


def test_help_explains_every_field() -> None:
    explained = " ".join((Experiment.__doc__ or "").split())
    for name, field in FIELDS.items():
        assert f" {name} : " in explained
        assert field.metadata["help"] in explained
    assert "global_lr : float, default None Learning rate of the server (the paper's alpha). It must be given." in explained


def test_files_that_are_no_experiment(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(InputError, match="not TOML"):
        read_toml(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not TOML"):
        read_toml(tmp_path / "bytes.toml")
    for text in ("[" * 20_000, "1" * 5000):
        (tmp_path / "absurd.toml").write_text(f"rounds = {text}")
        with pytest.raises(InputError, match="not TOML"):
            read_toml(tmp_path / "absurd.toml")
        with pytest.raises(InputError, match="rounds cannot be"):  # as with any other word that is no number
            from_dict(assigned({}, [f"rounds={text}"]))


def test_one_and_one_point_zero_are_one_experiment() -> None:
    assert Experiment.on("mnist-0.5", bias=1).key == Experiment.on("mnist-0.5", bias=1.0).key


def test_a_rule_of_ones_own_has_a_key() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(Median):
        strength: int = 3

    run = Experiment.on("mnist-0.5", Mine())
    assert run.to_dict()["rule"] == {"name": "Mine", "strength": 3}
    assert run.key != Experiment.on("mnist-0.5", Mine(4)).key


def test_a_rule_of_ones_own_is_told_as_the_papers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(Median):
        tolerate: int
        strength: float

    monkeypatch.setitem(RULES._entries, "mine", Entry("mine", Mine, "mine"))
    assert Experiment.on("har", {"name": "mine", "strength": 2}).rule == Mine(tolerate=6, strength=2.0)
    with pytest.raises(InputError, match="rule 'mine' must be told its strength"):
        Experiment.on("har", "mine")
