"""Who holds which examples: laws that every registered split obeys, and what each one promises."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fltrust.datasets import Examples
from fltrust.errors import InputError
from fltrust.experiment import Experiment, from_declaration, from_dict
from fltrust.randomness import stream
from fltrust.registry import DATASETS, SPLITS
from fltrust.simulation import simulate
from fltrust.tasks.build import build_task
from fltrust.tasks.holdings import Holdings
from fltrust.tasks.splits import IID, Bias, Split, Users, partition
from fltrust.tasks.splits_drawn import DirichletClasses, DirichletClients, QuantityDirichlet, QuantityLogNormal
from fltrust.tasks.splits_sorted import LongTail, Shards, Similarity, Sorted
from fltrust.tasks.task import Task


def split_of(split: Split, labels: np.ndarray, num_clients: int, *, owners: np.ndarray | None = None, seed: int = 0) -> Holdings:
    num_classes = max(2, int(labels.max()) + 1)
    return split(labels, owners, num_clients, num_classes, stream(seed, "split"))


def classes(labels: np.ndarray, clients: Sequence[np.ndarray]) -> np.ndarray:
    """(n, M): how many examples of each class each client holds."""
    return np.stack([np.bincount(labels[own], minlength=int(labels.max()) + 1) for own in clients])


def sizes(clients: Sequence[np.ndarray]) -> list[int]:
    return [len(own) for own in clients]


def check(split: Split, clients: Sequence[np.ndarray], count: int, num_clients: int) -> None:
    """What holds for any split of `count` examples."""
    assert len(clients) == num_clients
    held = np.concatenate(clients)
    assert held.dtype == np.int64
    assert len(np.unique(held)) == len(held)
    assert ((held >= 0) & (held < count)).all()
    assert all((np.diff(own) > 0).all() for own in clients)
    assert len(held) == count if split.keeps_all else 0 < len(held) < count


def frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


# Laws of every registered split


@pytest.mark.parametrize("name", SPLITS)
def test_every_example_has_at_most_one_client_and_the_same_stream_gives_the_same_split(name: str) -> None:
    split, labels = SPLITS[name](), frozen(labels_of(600, 4, 0))
    owners = frozen(stream(0, "owners").integers(20, size=600))
    first, again, other = (split_of(split, labels, 12, owners=owners, seed=seed) for seed in (1, 1, 2))
    check(split, first, 600, 12)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", SPLITS)
@settings(max_examples=40)
@given(data=st.data())
def test_any_numbers_are_split_or_refused(name: str, data: st.DataObject) -> None:
    """Few examples, many clients, classes without examples, users without examples: a right split or one clear line."""
    count, num_clients, num_classes = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20)), data.draw(st.integers(2, 6))
    seed = data.draw(st.integers(0, 1000))
    labels = frozen(labels_of(count, data.draw(st.integers(1, num_classes)), seed))
    owners = frozen(stream(seed, "owners").integers(data.draw(st.integers(1, 20)), size=count))
    split = SPLITS[name]()
    clients, refusal = [], ""
    try:
        clients = split(labels, owners, num_clients, num_classes, stream(seed, "split"))
    except InputError as problem:
        refusal = str(problem)
    if refusal:
        assert "\n" not in refusal
    elif split.keeps_all:
        check(split, clients, count, num_clients)
    else:
        held = np.concatenate(clients)
        assert len(np.unique(held)) == len(held) <= count


@pytest.mark.parametrize("name", SPLITS)
def test_an_experiment_with_a_split_is_written_and_read(name: str) -> None:
    run = Experiment.on("mnist-5k", split=name)
    assert (run.bias, run.split) == (None, SPLITS[name]())
    assert run.to_dict()["split"]["name"] == name
    assert from_dict(run.to_dict()) == run == from_declaration(run.to_dict())
    assert run.key != Experiment.on("mnist-5k").key
    for field in dataclasses.fields(run.split):  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"{field.name} cannot be|split must be"):
            Experiment.on("mnist-5k", split={"name": name, field.name: []})


@pytest.mark.parametrize("name", SPLITS)
def test_every_split_says_what_it_does(name: str) -> None:
    kind = SPLITS[name]
    assert kind.__doc__ is not None
    assert ">>> " in kind.__doc__
    for field in dataclasses.fields(kind):
        (line,) = [line for line in kind.__doc__.splitlines() if line.strip().startswith(f"{field.name}: ")]
        assert "(default " in line


def test_the_names_of_the_splits() -> None:
    runs = {Experiment.on("mnist-5k", split=name).key for name in SPLITS}
    assert len(runs) == len(SPLITS) >= 11


# What each split promises


@pytest.mark.parametrize(
    ("split", "within"),
    [
        (IID(), 1),
        (Sorted(), 1),
        (DirichletClasses(0.3), 1),
        (Similarity(0.3), 2),
        (Shards(), 2),
        (Shards(3), 3),
        (QuantityLogNormal(0.0), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("num_clients", [1, 7, 12])
def test_sizes_that_are_equal(split: Split, within: int, num_clients: int) -> None:
    for seed in range(5):
        held = sizes(split_of(split, labels_of(500, 5, seed), num_clients, seed=seed))
        assert max(held) - min(held) <= within


@pytest.mark.parametrize("split", [DirichletClients(0.3, 8), QuantityDirichlet(0.5, 8), QuantityLogNormal(1.0, 8)], ids=str)
def test_a_minimum_size_is_kept(split: Split) -> None:
    smallest = [min(sizes(split_of(split, labels_of(600, 4, seed), 12, seed=seed))) for seed in range(20)]
    assert min(smallest) >= 8
    without = dataclasses.replace(split, min_size=0)  # type: ignore[call-arg]
    assert min(min(sizes(split_of(without, labels_of(600, 4, seed), 12, seed=seed))) for seed in range(20)) < 8


@pytest.mark.parametrize("split", [DirichletClients(min_size=51), QuantityDirichlet(min_size=51), QuantityLogNormal(min_size=51)], ids=str)
def test_a_minimum_size_beyond_the_examples_is_refused(split: Split) -> None:
    with pytest.raises(InputError, match="12 clients with at least 51 examples each need 612; there are 600"):
        split_of(split, labels_of(600, 4, 0), 12)


@pytest.mark.parametrize("split", [DirichletClients(0.001), QuantityDirichlet(0.001), QuantityLogNormal(10.0, 20)], ids=str)
def test_a_minimum_size_that_no_draw_meets_is_refused(split: Split) -> None:
    with pytest.raises(InputError, match=r"in 1,000 draws, some of 12 clients always got fewer than .* of 600 examples"):
        split_of(split, labels_of(600, 4, 0), 12)


def test_dirichlet_over_clients_has_dirichlets_moments() -> None:
    """A client's share of a class is Beta(alpha, (n - 1) alpha); classes are independent of each other."""
    n, alpha, labels = 5, 0.5, np.repeat([0, 1], 1000)
    shares = np.stack([classes(labels, split_of(DirichletClients(alpha, 0), labels, n, seed=seed)) / 1000 for seed in range(600)])
    assert shares.mean((0, 2)) == pytest.approx(np.full(n, 1 / n), abs=0.03)  # 5 standard deviations: 5 * 0.214 / sqrt(1200)
    assert shares.var((0, 2)).mean() == pytest.approx(1 / n * (1 - 1 / n) / (n * alpha + 1), rel=0.1)
    assert abs(np.corrcoef(shares[:, 0, 0], shares[:, 0, 1])[0, 1]) < 5 / np.sqrt(600)


def test_dirichlet_over_classes_has_dirichlets_moments() -> None:
    """The first client, for whom nothing has run out: counts are Dirichlet-multinomial with concentration alpha * prior."""
    alpha, prior, labels, size = 2.0, np.array([0.5, 0.3, 0.2]), np.repeat([0, 1, 2], [500, 300, 200]), 100
    mixes = np.stack([classes(labels, split_of(DirichletClasses(alpha), labels, 10, seed=seed))[0] / size for seed in range(800)])
    assert mixes.mean(0) == pytest.approx(prior, abs=0.06)  # 5 standard deviations: 5 * 0.29 / sqrt(800)
    assert mixes.var(0) == pytest.approx(prior * (1 - prior) / size * (1 + (size - 1) / (alpha + 1)), rel=0.12)


def test_the_two_dirichlets_are_even_for_a_large_alpha_and_pure_for_a_small_one() -> None:
    labels = np.repeat(np.arange(4), 100)
    assert (classes(labels, split_of(DirichletClients(1e9), labels, 4)) == 25).all()
    even = classes(labels, split_of(DirichletClasses(1e9), labels, 4))
    assert (np.abs(even - 25) < 5 * np.sqrt(100 * 0.25 * 0.75)).all()
    whole = classes(labels, split_of(DirichletClients(1e-9, 0), labels, 4))
    assert sorted(whole[whole > 0]) == [100] * 4  # each class has one client


def test_a_class_that_has_run_out_leaves_the_mix() -> None:
    """Three examples of class 0, one of class 1, two clients who want one class only.

    The first wants class 0 (probability 3/4) and gets two; or class 1, gets the one there is and one of class 0. The second gets the rest.
    """
    labels = np.array([0, 0, 0, 1])
    counts = [classes(labels, split_of(DirichletClasses(1e-9), labels, 2, seed=seed)).tolist() for seed in range(400)]
    wants_first, wants_second = [[2, 0], [1, 1]], [[1, 1], [2, 0]]
    assert all(count in (wants_first, wants_second) for count in counts)
    assert abs(counts.count(wants_first) - 300) < 5 * np.sqrt(400 * 0.75 * 0.25)


def test_a_client_whose_classes_have_all_run_out_draws_from_what_is_left() -> None:
    """One, one and eight examples of three classes, two for each client: who wants a rare class gets it and one of the other nine."""
    labels = np.array([0, 1, *[2] * 8])
    first = [classes(labels, split_of(DirichletClasses(1e-9), labels, 5, seed=seed))[0].tolist() for seed in range(1000)]
    both = 0.2 / 9  # it wants a rare class, and draws the other rare one of the nine that are left
    assert abs(first.count([1, 1, 0]) - 1000 * both) < 5 * np.sqrt(1000 * both * (1 - both))


@pytest.mark.parametrize("split", [IID(), QuantityDirichlet(1.0), QuantityLogNormal(1.0)], ids=str)
def test_labels_are_iid_where_only_sizes_differ(split: Split) -> None:
    labels = np.repeat([0, 1, 2, 3], 1000)
    for own in classes(labels, split_of(split, labels, 8)):
        assert (np.abs(own - own.sum() / 4) <= 5 * np.sqrt(own.sum() * 0.25 * 0.75)).all()


def test_quantity_skew_has_the_sizes_of_its_law() -> None:
    nothing = np.zeros(100_000, np.int64)
    dirichlet = np.stack([sizes(split_of(QuantityDirichlet(0.5, 0), nothing[:5000], 5, seed=seed)) for seed in range(300)]) / 5000
    assert dirichlet.var() == pytest.approx(0.2 * 0.8 / (5 * 0.5 + 1), rel=0.1)
    logs = np.log(sizes(split_of(QuantityLogNormal(0.7), nothing, 400)))
    assert logs.std() == pytest.approx(0.7, rel=0.18)  # 5 standard deviations: 5 / sqrt(800)


def test_sorted_shards_and_similarity_by_hand() -> None:
    labels = np.array([2, 0, 1, 0, 2, 1])
    assert [own.tolist() for own in split_of(Sorted(), labels, 3)] == [[1, 3], [2, 5], [0, 4]]
    assert classes(labels, split_of(Sorted(), labels, 2)).tolist() == [[2, 1, 0], [0, 1, 2]]
    many = np.repeat(np.arange(10), 200)
    held = classes(many, split_of(Shards(), many, 10))
    assert set(held.ravel()) <= {0, 100, 200}  # 20 shards of 100, each of one class
    assert (held.sum(1) == 200).all()
    assert len({tuple(np.flatnonzero(classes(many, split_of(Shards(), many, 10, seed=seed))[0])) for seed in range(20)}) > 10
    assert all(np.array_equal(a, b) for a, b in zip(split_of(Similarity(0.0), many, 7), split_of(Sorted(), many, 7), strict=True))


@pytest.mark.parametrize("gamma", [0.2, 0.5])
def test_similarity_gives_everyone_a_share_of_all_classes(gamma: float) -> None:
    """A client has its own sorted piece of about one class; examples of classes that are not next to it come from the IID part only."""
    many = np.repeat(np.arange(10), 200)
    held = np.stack([classes(many, split_of(Similarity(gamma), many, 10, seed=seed)) for seed in range(20)])
    assert (held.sum(2) == 200).all()
    assert (held.argmax(2) == np.arange(10)).all()
    far = np.abs(np.arange(10)[:, None] - np.arange(10)) > 1
    expected = gamma * 20
    assert held[:, far].mean() == pytest.approx(expected, abs=5 * np.sqrt(expected / (20 * far.sum())))


def test_a_long_tail_drops_examples_and_then_splits() -> None:
    labels = np.repeat([0, 1, 2, 3], 100)
    assert classes(labels, split_of(LongTail(0.7), labels, 1)).tolist() == [[100, 70, 49, 34]]
    assert classes(labels, split_of(LongTail(0.5, Sorted()), labels, 2)).tolist() == [[94, 0, 0, 0], [6, 50, 25, 12]]
    assert classes(labels, split_of(LongTail(1e-6), labels, 1)).tolist() == [[100, 1, 1, 1]]
    assert sum(sizes(split_of(LongTail(1.0, Bias(0.5)), labels, 8))) == 400
    owners = np.arange(400) % 6
    merged = split_of(LongTail(0.5, Users()), labels, 6, owners=owners)
    assert all((owners[own] == user).all() for user, own in enumerate(merged))
    dropped = [set(range(400)) - set(np.concatenate(split_of(LongTail(0.5), labels, 2, seed=seed)).tolist()) for seed in (0, 1)]
    assert dropped[0] != dropped[1]


def test_what_a_split_leaves_out_is_no_clients_training_data() -> None:
    labels, features = labels_of(200, 4, 0), np.zeros((200, 3), np.float32)
    task = Task.from_arrays(features, labels, features, labels, clients=5, root=10, split=LongTail(0.3), model=nn.Linear(3, 4))
    assert len(task.clean) < 100
    assert np.array_equal(task.clean, np.concatenate(task.clients))
    held = split_of(LongTail(0.3), labels, 5)
    joined = held[:2] + held
    assert [own.tolist() for own in joined] == [own.tolist() for own in [*held[:2], *held]]


@pytest.mark.parametrize(("num_clients", "users_each"), [(30, [1]), (10, [3]), (7, [4, 5]), (1, [30])])
def test_users_are_merged_whole(num_clients: int, users_each: list[int]) -> None:
    owners = stream(0, "owners").permutation(np.repeat(np.arange(30), np.arange(1, 31)))
    clients = split_of(Users(), np.zeros(len(owners), np.int64), num_clients, owners=owners)
    of_client = [set(owners[own].tolist()) for own in clients]
    assert sorted({len(users) for users in of_client}) == users_each
    assert sum(map(len, of_client)) == len(set.union(*of_client)) == 30  # nobody's examples are with two clients
    if num_clients == 30:
        assert of_client == [{user} for user in range(30)]


def test_users_are_divided_only_if_asked_for() -> None:
    owners, labels = np.array([0, 1, 0, 0, 1, 0, 0, 0]), np.zeros(8, np.int64)
    with pytest.raises(InputError, match="4 clients for data of 2 users: there can be at most 2, or more with divide = true"):
        split_of(Users(), labels, 4, owners=owners)
    clients = split_of(Users(divide=True), labels, 4, owners=owners)  # six examples in three parts, two in one
    assert sizes(clients) == [2, 2, 2, 2]
    assert [set(owners[own]) for own in clients] == [{0}, {0}, {0}, {1}]
    assert sizes(split_of(Users(divide=True), np.zeros(11, np.int64), 4, owners=np.repeat([0, 1], [6, 5]))) == [3, 3, 3, 2]
    assert all(
        np.array_equal(a, b)
        for a, b in zip(split_of(Users(True), labels, 2, owners=owners), split_of(Users(), labels, 2, owners=owners), strict=True)
    )


@pytest.mark.parametrize(
    ("split", "message"),
    [
        *(
            ({"name": name, "alpha": wrong}, "alpha must be")
            for name in ("dirichlet-clients", "dirichlet-classes")
            for wrong in (0.0, -1.0, 1e30)
        ),
        *(({"name": name, "min_size": -1}, "min_size must not be negative") for name in ("quantity-dirichlet", "quantity-log-normal")),
        ({"name": "similarity", "gamma": 1.5}, "gamma must be 0 to 1, not 1.5"),
        ({"name": "quantity-log-normal", "sigma": -0.1}, "sigma must be 0 to 10"),
        ({"name": "long-tail", "beta": 0.0}, "beta must be above 0"),
        ({"name": "long-tail", "then": "sort"}, "unknown split 'sort': did you mean 'sorted'"),
        ({"name": "shards", "per_client": 0}, "per_client must be at least 1"),
        ({"name": "dirichlet"}, "unknown split 'dirichlet': did you mean 'dirichlet-clients' or 'dirichlet-classes'"),
        ({"name": "sorted", "gamma": 0.5}, "split 'sorted' has no parameters"),
        ("dirichlet-clients", "both a bias and a split are given"),
    ],
)
def test_bad_splits_are_one_line(split: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Experiment.on("mnist-5k", split=split, **({"bias": 0.5} if split == "dirichlet-clients" else {}))


def test_more_shards_than_examples_and_labels_that_are_no_classes() -> None:
    with pytest.raises(InputError, match=r"14 shards \(7 x 2\) for 13 examples"):
        split_of(Shards(), labels_of(13, 2, 0), 7)
    for split in (Sorted(), DirichletClients(), DirichletClasses(), LongTail(), Bias()):
        with pytest.raises(InputError, match="one class per example"):
            split(np.zeros((20, 3), int), None, 4, 2, stream(0))
    assert sizes(IID()(np.zeros((20, 3), int), None, 4, 2, stream(0))) == [5] * 4  # needs no classes


@pytest.mark.parametrize(
    ("assigned", "message"),
    [
        (np.zeros(9, int), "one client for each of 10 examples"),
        (np.zeros(10), "one client for each of 10 examples"),
        (np.full(10, 3), "client 3 or 3 of 3"),
        (np.full(10, -2), "client -2 or -2 of 3"),
    ],
)
def test_a_split_of_ones_own_that_is_wrong_is_refused(assigned: np.ndarray, message: str) -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(Split):
        def assign(self, data: Any, rng: np.random.Generator) -> Any:
            return assigned

    with pytest.raises(InputError, match=f"Mine .*{message}"):
        split_of(Mine(), np.zeros(10, int), 3)


# In an experiment


def made_of_users(name: str, folder: str | None) -> Examples:
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((900, 561)).astype(np.float32), rng.integers(6, size=900)
    return Examples(features, labels, features[:50], labels[:50], 6, owners=np.arange(900) % 30)


def test_an_experiment_splits_its_data_by_its_split() -> None:
    merged = build_task(Experiment.on("har", num_clients=10, root_size=30), load=made_of_users)
    owners = [set((own % 30).tolist()) for own in merged.clients[merged.malicious :]]  # whose indices are those of the data
    assert [len(users) for users in owners] == [3] * 8
    run = Experiment.on("har", split="sorted", num_clients=6, root_size=30)
    task = build_task(run, load=made_of_users)
    assert sum(len(set(task.targets[own].tolist())) for own in task.clients) <= 6 + 5  # five cuts are within a class
    with pytest.raises(InputError, match=r"bias of 0\.5 makes no sense.*split = { name = \"bias\", q = 0\.5 }"):
        build_task(Experiment.on("har", bias=0.5), load=made_of_users)
    build_task(Experiment.on("har", split={"name": "bias", "q": 0.5}), load=made_of_users)


@pytest.mark.parametrize("name", SPLITS)
def test_every_split_can_be_run(name: str) -> None:
    run = Experiment.on("har", split=name, num_clients=15, rounds=2, local_epochs=1, evaluate_every=1, root_size=30)
    task = build_task(run, load=made_of_users)
    assert [record.round for record in simulate(run, task)] == [1, 2]
    held = np.concatenate([*(own for own in task.clients[task.malicious :]), task.root])
    assert len(np.unique(held)) == len(held)


def test_a_bias_replaces_a_data_sets_own_split(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = DATASETS.entry("mnist-5k")
    settings = {**usual.kind.settings, "bias": None, "split": "shards"}
    monkeypatch.setitem(DATASETS._entries, "mnist-5k", dataclasses.replace(usual, kind=dataclasses.replace(usual.kind, settings=settings)))
    assert (Experiment.on("mnist-5k").split, Experiment.on("mnist-5k").bias) == (Shards(), None)
    changed = Experiment.on("mnist-5k", bias=0.3)
    assert (changed.split, changed.bias) == (None, 0.3)
    assert from_dict(changed.to_dict()) == changed
    with pytest.raises(InputError, match="with a split, bias must be None"):
        dataclasses.replace(changed, split=Shards())


def test_bias_is_the_short_way_to_ask_for_its_split() -> None:
    labels = labels_of(500, 10, 0)
    common: dict[str, Any] = {"num_clients": 12, "num_classes": 10, "root_size": 20}
    short = partition(labels, None, bias=0.3, rng=stream(0), **common)
    long = partition(labels, None, split=Bias(0.3), rng=stream(0), **common)
    assert all(np.array_equal(a, b) for a, b in zip([*short.clients, short.root], [*long.clients, long.root], strict=True))


# The root set, and the paper's two splits


def labels_of(count: int, num_classes: int, seed: int) -> np.ndarray:
    return stream(seed, "labels").integers(num_classes, size=count)


@settings(max_examples=60)
@given(st.data())
def test_every_example_is_held_once_and_the_root_set_apart(data: st.DataObject) -> None:
    num_classes = data.draw(st.integers(2, 6))
    num_clients = data.draw(st.integers(num_classes, 3 * num_classes + 1))
    seed = data.draw(st.integers(0, 1000))
    labels = np.concatenate([np.repeat(np.arange(num_classes), 5), labels_of(data.draw(st.integers(0, 200)), num_classes, seed)])
    by_owner = data.draw(st.booleans())
    owners = np.arange(len(labels)) % num_clients if by_owner and len(labels) >= num_clients else None
    held = partition(
        labels,
        owners,
        num_clients=num_clients,
        num_classes=num_classes,
        bias=None if owners is not None else data.draw(st.floats(0.01, 1.0)),
        root_size=data.draw(st.integers(1, 4 * num_classes)),
        rng=stream(seed, "partition"),
    )
    assert len(held.clients) == num_clients
    together = np.concatenate([*held.clients, held.root])
    assert together.dtype == np.int64
    assert sorted(together.tolist()) == list(range(len(labels)))
    for own in [*held.clients, held.root]:
        assert (np.diff(own) > 0).all()
    if owners is not None:
        assert all((owners[own] == user).all() for user, own in enumerate(held.clients))


@pytest.mark.parametrize(("num_clients", "bias"), [(20, 0.5), (10, 0.1), (23, 0.8), (12, 1.0)])
def test_group_shares_match_q(num_clients: int, bias: float) -> None:
    num_classes = 10
    labels = np.repeat(np.arange(num_classes), 6000)
    share = np.zeros((num_clients, num_classes))  # the share of each class that each client holds
    for client, own in enumerate(Bias(bias)(labels, None, num_clients, num_classes, stream(3, "split"))):
        share[client] = np.bincount(labels[own], minlength=num_classes) / 6000
    if bias > 0.1:  # each client's group is the class of which it holds most
        group = share.argmax(1)
        sizes = np.bincount(group, minlength=num_classes)
        assert sizes.max() - sizes.min() <= 1
        assert not (np.sort(group) == group).all()  # the groups are random
    else:
        group, sizes = np.arange(num_clients), np.ones(num_classes, int)
    for client in range(num_clients):
        expected = np.full(num_classes, (1 - bias) / (num_classes - 1))
        expected[group[client]] = bias
        expected /= sizes[group[client]]
        spread = np.sqrt(expected * (1 - expected) / 6000)
        assert (np.abs(share[client] - expected) <= 5 * spread + 1e-12).all()


def test_clients_keep_their_data_when_the_root_set_grows() -> None:
    labels = labels_of(2000, 10, 0)
    small, large = (
        partition(labels, None, num_clients=20, num_classes=10, bias=0.5, root_size=size, rng=stream(0, "partition")) for size in (50, 500)
    )
    for few, many in zip(small.clients, large.clients, strict=True):
        assert set(few) - set(small.root) - set(large.root) == set(many) - set(small.root)


def test_a_client_may_hold_nothing() -> None:
    held = partition(np.array([0, 1, 1, 0]), None, num_clients=9, num_classes=2, bias=0.5, root_size=2, rng=stream(0, "partition"))
    assert len(held.clients) == 9
    assert sum(map(len, held.clients)) == 2
    assert min(map(len, held.clients)) == 0


@pytest.mark.parametrize("bias", [0.0, -0.1, 1.01, float("nan")])
def test_q_outside_its_range_is_refused(bias: float) -> None:
    with pytest.raises(InputError, match=r"\(0, 1\]"):
        Bias(bias)


def test_impossible_splits_are_refused_with_their_numbers() -> None:
    labels = np.repeat(np.arange(10), 5)
    rng = stream(0)
    with pytest.raises(InputError, match="9 clients for 10 classes"):
        Bias(0.5)(labels, None, 9, 10, rng)
    with pytest.raises(InputError, match="0 to 8, got 0 to 9"):
        Bias(0.5)(labels, None, 20, 9, rng)
    with pytest.raises(InputError, match="at least 2"):
        Bias(1.0)(np.zeros(3, int), None, 3, 1, rng)
    with pytest.raises(InputError, match="100 clients for data of 30 users"):
        Users()(np.zeros(60, int), np.arange(60) % 30, 100, 10, rng)
    with pytest.raises(InputError, match=r"bias of 0\.5 makes no sense"):
        partition(labels, labels, num_clients=10, num_classes=10, bias=0.5, root_size=5, rng=rng)
    with pytest.raises(InputError, match="no owners"):
        partition(labels, None, num_clients=10, num_classes=10, bias=None, root_size=5, rng=rng)
