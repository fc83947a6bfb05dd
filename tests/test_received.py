"""What a rule may look at: ids that name no client, or one twice, are refused in one line."""

from typing import Any

import pytest
import torch

from fltrust.errors import InputError
from fltrust.rules import Aggregate, Anchor, FLDetector, FoolsGold, Received, Rule, take_step
from fltrust.state import Memory


def step(rule: Rule, ids: list[int]) -> None:
    """A round of a federation of three clients."""
    seen: dict[str, Any] = {"client_ids": torch.tensor(ids), "weights": torch.zeros(4), "round": torch.tensor(1)}
    take_step(rule, Received(torch.eye(3, 4), torch.ones(4), generator=torch.Generator(), **seen), rule.init(3, torch.zeros(4)))


@pytest.mark.parametrize("rule", [FoolsGold(), Anchor(), FLDetector()], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([0, 2, 2], "client_ids must name each client once: 2 is there twice"),
        ([0, -1, 2], "client_ids must be 0 or more, not -1"),
        ([0, 1, 3], "client_ids has client 3, and the memory is of clients 0 to 2"),
    ],
)
def test_ids_that_cannot_be_are_refused_in_one_line(rule: Rule, ids: list[int], said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}$"):
        step(rule, ids)


def test_another_error_of_a_rule_is_not_blamed_on_the_ids() -> None:
    class Wrong(FoolsGold):
        def step(self, received: Received, memory: Memory) -> tuple[Aggregate, Memory]:
            raise IndexError("my own mistake")

    with pytest.raises(IndexError, match="my own mistake"):
        take_step(Wrong(), Received(torch.eye(3), client_ids=torch.arange(3)), Wrong().init(3, torch.zeros(3)))
