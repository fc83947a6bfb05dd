"""What chance decides about a round: batches of own examples, whole epochs, who takes part, how images are cropped."""

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_task
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fltrust.errors import InputError
from fltrust.experiment import Experiment, per_round
from fltrust.models import CNN, LogisticRegression, Model, ResNet20, initialise
from fltrust.objectives import CrossEntropy
from fltrust.randomness import drawn_rows, stream
from fltrust.round import Noise, client_updates, first_state, play_round, server_update
from fltrust.simulation import _draws, simulate
from fltrust.tasks.batches import FEW, SHIFTED, Batches, Epochs, crop_and_flip, draw_clients, draw_dropout, draw_shifts
from fltrust.tasks.task import Task
from fltrust.training.local import Job, _batched_clients, _threads_over_clients


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), size=st.integers(1, 12), steps=st.integers(1, 3), mean=st.booleans())
def test_a_batch_holds_own_examples_each_once(sizes: list[int], size: int, steps: int, mean: bool) -> None:
    owned = [100 * i + np.arange(count) for i, count in enumerate(sizes)]
    batch = Batches(0, "batches", owned, steps=steps, size=size, mean=mean).draw([1, 2], np.tile(np.arange(len(sizes)), (2, 1)))
    for t in range(2):
        for i, own in enumerate(owned):
            for step in range(steps):
                used = batch.loss_weights[t, i, step] > 0
                drawn = batch.examples[t, i, step][used]
                assert len(drawn) == len(set(drawn)) == min(size, len(own))
                assert set(drawn) <= set(own)
                assert set(batch.examples[t, i, step]) <= (
                    set(own.tolist()) or {0}
                )  # what counts nothing repeats own examples: batch norm sees no others
                if len(own):
                    assert batch.loss_weights[t, i, step].sum() == pytest.approx(1 if mean else len(drawn))


def test_every_subset_is_as_likely() -> None:
    batches = Batches(0, "batches", [np.arange(5)], steps=1, size=2, mean=False)
    rounds = range(20_000)
    drawn = batches.draw(rounds, np.zeros((len(rounds), 1), np.int64)).examples[:, 0, 0]
    counts = Counter(tuple(sorted(pair)) for pair in drawn.tolist())
    assert len(counts) == 10  # 5 choose 2
    assert all(abs(count - 2000) < 5 * np.sqrt(2000 * 0.9) for count in counts.values())


def test_blocks_and_company_do_not_change_a_clients_batches() -> None:
    batches = Batches(3, "batches", [np.arange(50), 50 + np.arange(40), 90 + np.arange(30)], steps=2, size=8, mean=False)
    everyone = np.tile(np.arange(3), (6, 1))
    together = batches.draw(range(6), everyone).examples
    apart = np.concatenate([batches.draw([t], everyone[:1]).examples for t in range(6)])
    assert (together == apart).all()
    some = batches.draw(range(6), everyone[:, [0, 2]]).examples
    assert (some == together[:, [0, 2]]).all()
    assert (together[0] != together[1]).any()
    assert (
        batches.draw([1], everyone[:1]).examples
        != Batches(4, "batches", [np.arange(50)] * 3, steps=2, size=8, mean=False).draw([1], everyone[:1]).examples
    ).any()


@pytest.mark.parametrize("width", [1, 3, 4, 32])
@pytest.mark.parametrize("below", [None, 2**62], ids=["random", "integers"])
def test_who_does_not_take_part_is_skipped_and_not_drawn(width: int, below: int | None) -> None:
    """The numbers of those who do are the same: beside a table of all clients' numbers, which the stream fills row by row."""
    clients = np.array([0, 1, 5, 77, 78, 2999])
    counts: list[int] = []

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        counts.append(count)
        return rng.random(count) if below is None else rng.integers(below, size=count)

    rng = stream(5, "table")
    rows = drawn_rows(rng, lambda count: draw(rng, count), clients, width)
    assert sum(counts) <= len(clients) * (width + 3)
    assert (rows == draw(stream(5, "table"), 3000 * width).reshape(3000, width)[clients]).all()


def test_a_few_of_many_clients_draw_what_they_draw_among_all() -> None:
    """`FEW` decides which way numbers are drawn, never which."""
    many = SHIFTED + 50 * FEW
    owned = [np.arange(10 * i, 10 * i + i % 7) for i in range(many)]
    everyone, some = np.arange(many)[None], np.array([[3, 6, 700, many - 1]])
    batches = Batches(0, "batches", owned, steps=2, size=4, mean=True)
    for draw in (
        lambda who: batches.draw([4], who).examples,
        lambda who: batches.draw([4], who).loss_weights,
        lambda who: draw_dropout(0, [4], (many, 2, 4), who),
        lambda who: draw_shifts(0, "crop and flip", [4], (many, 2, 4), who),
    ):
        assert (draw(everyone)[:, some[0]] == draw(some)).all()
    whole = stream(0, "crop and flip", 4).integers(0, (9, 9, 2), (many, 2, 4, 3))  # in one piece
    assert (draw_shifts(0, "crop and flip", [4], (many, 2, 4), some)[0] == whole[some[0]]).all()


def test_clients_of_a_round() -> None:
    assert draw_clients(0, range(3), 5, 5).tolist() == [[0, 1, 2, 3, 4]] * 3
    drawn = draw_clients(0, range(2000), 10, 3)
    assert drawn.shape == (2000, 3)
    assert (np.diff(drawn, axis=1) > 0).all()
    counts = np.bincount(drawn.ravel(), minlength=10)
    assert (np.abs(counts - 600) < 5 * np.sqrt(600 * 0.7)).all()


@pytest.mark.parametrize(
    ("clients_per_round", "num_clients", "malicious", "expected"),
    [(10, 20, 4, 2), (7, 20, 4, 1), (10, 10, 3, 3), (19, 20, 10, 10), (5, 20, 0, 0), (5, 6, 6, 5)],
)
def test_a_fixed_number_of_malicious_clients(clients_per_round: int, num_clients: int, malicious: int, expected: int) -> None:
    m = per_round(malicious, clients_per_round, num_clients)
    assert m == expected
    rounds = range(1, 1001)
    drawn = draw_clients(0, rounds, num_clients, clients_per_round, (m, malicious))
    assert drawn.shape == (1000, clients_per_round)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert ((drawn < malicious).sum(1) == m).all()
    counts = np.bincount(drawn.ravel(), minlength=num_clients)
    for group, size in ((counts[:malicious], m), (counts[malicious:], clients_per_round - m)):
        chance = size / max(1, len(group))
        assert (np.abs(group - 1000 * chance) <= 5 * np.sqrt(1000 * chance * (1 - chance))).all()
    assert np.array_equal(drawn[400:], draw_clients(0, range(401, 1001), num_clients, clients_per_round, (m, malicious)))


def test_participation_of_an_experiment() -> None:
    common: dict[str, Any] = {"malicious": 2, "clients_per_round": 3, "rounds": 12, "evaluate_every": 1}
    counts = {
        kind: [record.malicious for record in simulate(small_run(participation=kind, **common), small_task(malicious=2))]
        for kind in ("pool", "fixed")
    }
    assert counts["fixed"] == [1] * 12
    assert len(set(counts["pool"])) > 1
    with pytest.raises(InputError, match="never draw any of 1 malicious clients: 2 of 6 clients take part"):
        small_run(participation="fixed", malicious=1, clients_per_round=2)


# Local epochs


def small_run(**changes: Any) -> Experiment:
    fields = {"num_clients": 6, "clients_per_round": 6, "malicious": 0, "batch_size": 4, "root_size": 12, "rounds": 3, "local_lr": 0.1}
    return Experiment(**{"dataset": "small", "model": "own", "global_lr": 3e-4, "loss": "sum", **fields, **changes})


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5), size=st.integers(1, 12), epochs=st.integers(1, 3), mean=st.booleans())
def test_an_epoch_takes_every_own_example_once(sizes: list[int], size: int, epochs: int, mean: bool) -> None:
    owned = [100 * i + np.arange(count) for i, count in enumerate(sizes)]
    batches = Epochs(0, "batches", owned, epochs=epochs, size=size, mean=mean)
    batch = batches.draw([1, 2], np.tile(np.arange(len(sizes)), (2, 1)))
    assert batch.examples.shape == batch.loss_weights.shape == (2, len(sizes), batches.steps, batches.size)
    for t in range(2):
        for i, own in enumerate(owned):
            examples, loss_weights = batch.examples[t, i], batch.loss_weights[t, i]
            assert set(examples.ravel().tolist()) <= (set(own.tolist()) or {0})  # what counts nothing repeats own examples
            taken = [step for step in range(batches.steps) if loss_weights[step].any()]
            each = -(-len(own) // batches.size)
            assert taken == list(range(epochs * each))  # the steps that are not taken come last
            for first in range(0, len(taken), each or 1):
                used = loss_weights[first : first + each] > 0
                assert sorted(examples[first : first + each][used].tolist()) == own.tolist()
                assert (used.sum(1)[:-1] == batches.size).all()
            for step in taken:
                counted = loss_weights[step][loss_weights[step] > 0]
                assert counted == pytest.approx(1 / len(counted) if mean else 1)


def test_epochs_are_shuffled_and_depend_on_client_and_round_only() -> None:
    owned = [np.arange(50), 50 + np.arange(40), 90 + np.arange(30)]
    epochs = Epochs(3, "batches", owned, epochs=2, size=8, mean=False)
    everyone = np.tile(np.arange(3), (6, 1))
    together = epochs.draw(range(6), everyone)
    apart = [epochs.draw([t], everyone[:1]) for t in range(6)]
    some = epochs.draw(range(6), everyone[:, [0, 2]])
    for field in ("examples", "loss_weights"):
        whole = getattr(together, field)
        assert np.array_equal(whole, np.concatenate([getattr(part, field) for part in apart]))
        assert np.array_equal(whole[:, [0, 2]], getattr(some, field))
    first = together.examples[:, 0].reshape(6, 2, 7 * 8)  # rounds, epochs, examples
    orders = {tuple(order[:48].tolist()) for order in first.reshape(12, -1)}
    assert len(orders) == 12


def by_hand(task: Task, weights: Tensor, own: np.ndarray, name: tuple[str | int, ...], epochs: int, size: int, *, mean: bool) -> Tensor:
    """The twin: one client, PyTorch's own optimiser, a loop over epochs and batches."""
    module = copy.deepcopy(task.model.module)
    nn.utils.vector_to_parameters(weights.clone(), module.parameters())
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    rng = stream(0, *name)
    for _ in range(epochs):
        order = rng.permutation(own)
        for first in range(0, len(order), size):
            batch = order[first : first + size]
            optimiser.zero_grad()
            cross_entropy(module(task.inputs[batch]), task.targets[batch], reduction="mean" if mean else "sum").backward()
            optimiser.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach() - weights


@pytest.mark.parametrize("gathered", [100_000, 1])
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_local_epochs_equal_a_plain_loop(monkeypatch: pytest.MonkeyPatch, loss: str, epochs: int, gathered: int) -> None:
    monkeypatch.setattr("fltrust.round.GATHERED", gathered)  # 1: one client at a time
    run, task = small_run(local_epochs=epochs, loss=loss, root_batch="batch"), small_task()  # clients of 10 to 15 examples, batches of 4
    weights = task.model.initial_weights
    for t, clients, draw in _draws(run, task, 0):
        assert draw.examples.shape == (6, epochs * 4, 4)
        assert draw.root_examples.shape == (1, epochs * 3, 4)
        sent = client_updates(run, task, weights, draw, 0)
        mean = loss == "mean"
        expected = [by_hand(task, weights, task.clients[i], ("batches", t, i), epochs, 4, mean=mean) for i in clients.tolist()]
        torch.testing.assert_close(sent, torch.stack(expected), rtol=1e-4, atol=1e-6)
        root = by_hand(task, weights, task.root, ("root batches", t, 0), epochs, 4, mean=mean)
        torch.testing.assert_close(server_update(run, task, weights, draw), root, rtol=1e-4, atol=1e-6)


def test_the_server_takes_its_whole_root_set_once_per_epoch() -> None:
    run, task = small_run(local_epochs=3), small_task()
    draw = next(_draws(run, task, 0))[2]
    assert draw.root_examples.tolist() == [[task.root.tolist()] * 3]


def test_epochs_of_chunks_with_crops_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    run, task = small_run(local_epochs=2, augment=True), small_task(side=6)
    draw = next(_draws(run, task, 0))[2]
    whole = client_updates(run, task, task.model.initial_weights, draw, 0)
    monkeypatch.setattr("fltrust.round.GATHERED", 2 * draw.examples[0].numel())
    assert torch.equal(client_updates(run, task, task.model.initial_weights, draw, 0), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [(CNN, (1, 28, 28)), (LogisticRegression, (17,)), (ResNet20, (3, 8, 8))], ids=["cnn", "logistic", "batch norm"]
)
@pytest.mark.parametrize("way", [_threads_over_clients, _batched_clients])
def test_a_step_that_counts_nothing_changes_nothing(way: Any, case: tuple[Any, tuple[int, ...]]) -> None:
    """Bit for bit: steps without weight at the end are as if they were not there, and what they hold does not matter."""
    build, shape = case
    model = Model(initialise(build(shape, 4), np.random.default_rng(0)))
    chance = torch.Generator().manual_seed(1)
    images, labels = torch.rand(3, 4, 5, *shape, generator=chance), torch.randint(0, 4, (3, 4, 5), generator=chance)
    loss_weights = torch.rand(3, 4, 5, generator=chance)
    loss_weights[:, 2:] = 0
    job = Job(model, model.initial_weights, images, labels, loss_weights, 0.05, "float32", CrossEntropy())
    shorter = job._replace(inputs=images[:, :2], targets=labels[:, :2], loss_weights=loss_weights[:, :2])  # the same memory
    updates = way(job)
    assert torch.equal(updates, way(shorter))
    assert updates.norm(dim=1).min() > 1e-3
    for idle in range(4):
        others = torch.full_like(loss_weights, 0.3)
        others[0, idle] = 0
        changed = images.clone()
        changed[0, idle] = 1 - images[0, idle]
        before, after = way(job._replace(loss_weights=others)), way(job._replace(inputs=changed, loss_weights=others))
        assert torch.equal(before, after)
    assert not way(job._replace(loss_weights=torch.zeros_like(loss_weights))).any()


def test_a_run_with_epochs_resumes_and_learns() -> None:
    run = small_run(local_epochs=2, rounds=6, evaluate_every=1, clients_per_round=4, loss="mean", global_lr=1.0, root_batch="batch")
    task = small_task()
    whole = list(simulate(run, task))
    for after in (1, 4):
        rest = list(simulate(run, task, after=after, state=whole[after - 1].state))
        for expected, record in zip(whole[after:], rest, strict=True):
            assert expected.weights is not None
            assert record.weights is not None
            assert torch.equal(expected.weights, record.weights)
    first, last = whole[0].test_error, whole[-1].test_error
    assert first is not None
    assert last is not None
    assert last < min(first, 0.15)


def test_a_client_without_examples_sends_zeros_after_any_number_of_epochs() -> None:
    full = small_task()
    run = small_run(local_epochs=2)
    task = Task(**{**vars(full), "clients": (full.clients[0][:0], *full.clients[1:])})
    draw = next(_draws(run, task, 0))[2]
    noise = Noise(torch.Generator(), torch.Generator())
    _, outcome = play_round(run, task, first_state(run, task), draw, 0, noise)
    assert outcome.sent is not None
    assert not outcome.sent[0].any()
    assert outcome.sent[1:].any(1).all()


def test_epochs_and_steps_are_not_given_together() -> None:
    with pytest.raises(InputError, match="both local_steps and local_epochs"):
        small_run(local_epochs=2, local_steps=3)
    with pytest.raises(InputError, match="local_epochs must be at least 1"):
        small_run(local_epochs=0)


# Crops


def test_crop_and_flip_moves_and_mirrors() -> None:
    images = torch.arange(2 * 3 * 5 * 6.0).reshape(2, 1, 1, 3, 5, 6)
    still = torch.tensor([4, 4, 0]).expand(2, 1, 1, 3)
    assert torch.equal(crop_and_flip(images, still), images)
    moved = crop_and_flip(images, torch.tensor([5, 4, 0]).expand(2, 1, 1, 3))  # one row up
    assert torch.equal(moved[..., :-1, :], images[..., 1:, :])
    assert not moved[..., -1, :].any()
    mirrored = crop_and_flip(images, torch.tensor([4, 4, 1]).expand(2, 1, 1, 3))
    assert torch.equal(mirrored, images.flip(-1))
    shifts = draw_shifts(0, "crop and flip", range(400), (2, 1, 3), np.tile([0, 1], (400, 1)))
    assert shifts.shape == (400, 2, 1, 3, 3)
    assert [sorted(set(shifts[..., i].ravel())) for i in range(3)] == [list(range(9)), list(range(9)), [0, 1]]
