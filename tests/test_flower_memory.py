"""A federation carries what its rule remembers: across rounds, restarts and nodes that join; where nodes are anonymous it is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_federation import (
    MODEL,
    FakeGrid,
    as_record,
    honest,
    reply_with,
    root,
    round_of,
    run,
    same,
    step,
    strategy_of,
)
from flwr.app import Message
from safetensors.numpy import load_file, save

from fltrust.errors import InputError
from fltrust.flower import RobustStrategy
from fltrust.flower.memory import Remembered, read, write
from fltrust.rules import Anchor, CentredClipping, FedAvg, FoolsGold, Received, Rule, take_step
from fltrust.training.optimisers import SGD, Adam, Momentum, ServerOptimiser

pytestmark = pytest.mark.usefixtures("quiet_flower", "clock")
RULES: list[Rule] = [Anchor(), CentredClipping(), FoolsGold()]
every_rule = pytest.mark.parametrize("rule", RULES, ids=repr)


def flat(arrays: dict[str, np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([arrays["weight"].ravel(), arrays["bias"]]))


@every_rule
def test_several_rounds_are_those_of_the_rule_with_its_memory(rule: Rule) -> None:
    arrays = {name: array.copy() for name, array in MODEL.items()}
    memory = rule.init(6, flat(arrays))
    for t in range(1, 5):
        updates = torch.stack([flat(step(node, t, arrays)) - flat(arrays) for node in range(1, 7)])
        root_update = flat(root(arrays)) if rule.needs_root else None
        (update, _), memory = take_step(rule, Received(updates, root_update, client_ids=torch.arange(6)), memory)
        moved = flat(arrays) + update
        arrays = {"weight": moved[:12].reshape(3, 4).numpy(), "bias": moved[12:].numpy()}
    ours, _ = run(rule=rule, rounds=4)
    torch.testing.assert_close(flat(ours), flat(arrays), rtol=1e-4, atol=1e-5)


@every_rule
def test_a_run_that_resumes_equals_one_that_never_stopped(rule: Rule, tmp_path: Path) -> None:
    whole, _ = run(rule=rule, rounds=6, directory=tmp_path / "whole")
    for rounds in (2, 3, 6):
        resumed, _ = run(rule=rule, rounds=rounds, directory=tmp_path / "part")
    assert same(whole, resumed)
    run(rule=rule, rounds=3, directory=tmp_path / "forgets")
    memory = tmp_path / "forgets" / "memory-3.safetensors"
    fresh = Remembered.first(rule, SGD(), flat(MODEL)).knowing(rule, range(1, 7), flat(MODEL))
    memory.write_bytes(write(fresh))
    assert not same(whole, run(rule=rule, rounds=6, directory=tmp_path / "forgets")[0])  # so the memory matters


@every_rule
@pytest.mark.parametrize("damage", ["missing", "torn", "of another rule"])
def test_a_memory_that_is_not_there_is_refused_and_nothing_is_lost(rule: Rule, damage: str, tmp_path: Path) -> None:
    run(rule=rule, rounds=2, directory=tmp_path / "run")
    memory, records = tmp_path / "run" / "memory-2.safetensors", tmp_path / "run" / "records.jsonl"
    before = records.read_bytes()
    if damage == "missing":
        memory.unlink()
    elif damage == "torn":
        memory.write_bytes(memory.read_bytes()[:-20])
    else:
        other = FoolsGold() if isinstance(rule, CentredClipping) else CentredClipping()
        run(rule=other, rounds=2, directory=tmp_path / "other")
        memory.write_bytes((tmp_path / "other" / memory.name).read_bytes())
    with pytest.raises(InputError, match=r"memory-2\.safetensors"):
        run(rule=rule, rounds=4, directory=tmp_path / "run")
    assert records.read_bytes() == before


def test_every_flipped_bit_in_a_memory_is_refused(tmp_path: Path) -> None:
    """The twin of the model's: flipped, it would silently make another model."""
    like = flat(MODEL)
    remembered = Remembered.first(FoolsGold(), Adam(), like).knowing(FoolsGold(), range(1, 7), like)
    whole, file, refused = write(remembered), tmp_path / "memory-3.safetensors", 0
    places = range(0, 8 * len(whole), 11)  # all of them take too long; 11 reaches each bit of a byte
    for place in places:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        try:
            read(file, FoolsGold(), Adam(), like)
        except InputError:
            refused += 1
    assert refused == len(places)


@every_rule
def test_a_memory_of_an_earlier_version_has_no_checksum_and_resumes(rule: Rule, tmp_path: Path) -> None:
    whole, _ = run(rule=rule, rounds=3, directory=tmp_path / "whole")
    run(rule=rule, rounds=2, directory=tmp_path / "part")
    memory = tmp_path / "part" / "memory-2.safetensors"
    memory.write_bytes(save(load_file(memory)))
    assert same(whole, run(rule=rule, rounds=3, directory=tmp_path / "part")[0])


def test_nodes_that_join_get_a_row_and_the_others_keep_theirs() -> None:
    rule, like = FoolsGold(), torch.zeros(3)
    first = Remembered.first(rule, SGD(), like).knowing(rule, [7, 3], like)
    assert first.nodes == (3, 7)
    _, memory = take_step(rule, Received(torch.eye(3)[:2], client_ids=first.ids_of([3, 7])), first.rule)
    later = Remembered(memory, first.nodes).knowing(rule, [9, 7, 1], like)
    assert later.nodes == (3, 7, 1, 9)
    assert later.rule.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    ids = later.ids_of([9, 3])
    assert ids is not None
    assert ids.tolist() == [3, 0]
    assert Remembered.first(CentredClipping(), SGD(), like).knowing(CentredClipping(), [1, 2], like).ids_of([1]) is None


@pytest.mark.usefixtures("clock")
def test_a_round_that_keeps_the_model_is_not_remembered(tmp_path: Path) -> None:
    def silent_in_round_two(node: int, message: Message) -> Any:
        return None if round_of(message) == 2 and node > 2 else honest(node, message)

    strategy = strategy_of(FoolsGold(), min_replies=4, directory=tmp_path)
    grid = FakeGrid(silent_in_round_two)
    strategy.start(grid, as_record(), num_rounds=1, timeout=0.05)
    after_one = strategy._remembered
    strategy.start(grid, as_record(), num_rounds=2, timeout=0.05)
    assert strategy._round is not None
    assert strategy._round.kept == "too-few-replies"
    assert after_one is not None
    assert strategy._remembered is not None
    assert torch.equal(after_one.rule, strategy._remembered.rule)


def test_rules_that_remember_clients_are_refused_where_nodes_are_anonymous() -> None:
    with pytest.raises(InputError, match="FoolsGold remembers each client, and without registered keys nobody knows who a node is"):
        RobustStrategy(FoolsGold())
    RobustStrategy(FoolsGold(), registered=True)
    RobustStrategy(CentredClipping())  # it remembers no client
    RobustStrategy(FedAvg())


def test_a_hostile_node_is_silenced_by_its_history() -> None:
    """Two nodes that always push the same way, and four that do not."""

    def pushing(node: int, message: Message) -> Message:
        arrays = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
        noise = np.random.default_rng((node, round_of(message)))
        push = 1.0 if node <= 2 else noise.standard_normal(arrays["weight"].shape) * 3
        return reply_with(message, {**arrays, "weight": (arrays["weight"] + push).astype(np.float32)})

    strategy = strategy_of(FoolsGold())
    strategy.start(FakeGrid(pushing), as_record(), num_rounds=6, timeout=30)
    assert strategy._round is not None
    shares = {node: entry.share for node, entry in strategy._round.entries.items()}
    assert max(shares[1], shares[2]) < 0.02
    assert sum(shares.values()) == pytest.approx(1, abs=1e-4)


@every_rule
@pytest.mark.usefixtures("clock")
def test_a_first_round_that_keeps_the_model_can_be_resumed(rule: Rule, tmp_path: Path) -> None:
    def silent_at_first(node: int, message: Message) -> Any:
        return None if round_of(message) == 1 else honest(node, message)

    run(silent_at_first, rule=rule, rounds=1, timeout=0.05, directory=tmp_path)
    whole, _ = run(silent_at_first, rule=rule, rounds=3, timeout=0.05)
    resumed, _ = run(silent_at_first, rule=rule, rounds=3, timeout=0.05, directory=tmp_path)
    assert same(whole, resumed)


@pytest.mark.parametrize("server", [Momentum(0.5), Adam()], ids=repr)
def test_the_servers_optimiser_moves_the_model_and_is_resumed(server: ServerOptimiser, tmp_path: Path) -> None:
    arrays, memory = {name: array.copy() for name, array in MODEL.items()}, server.init(flat(MODEL))
    for t in range(1, 4):
        updates = torch.stack([flat(step(node, t, arrays)) - flat(arrays) for node in range(1, 7)])
        direction, memory = server.step(updates.mean(0), memory)
        moved = flat(arrays) + 0.5 * direction
        arrays = {"weight": moved[:12].reshape(3, 4).numpy(), "bias": moved[12:].numpy()}
    whole, _ = run(rule=FedAvg(), rounds=3, server=server, global_lr=0.5)
    torch.testing.assert_close(flat(whole), flat(arrays), rtol=1e-3, atol=1e-3)
    for rounds in (1, 2, 3):
        resumed, _ = run(rule=FedAvg(), rounds=rounds, server=server, global_lr=0.5, directory=tmp_path)
    assert same(whole, resumed)
