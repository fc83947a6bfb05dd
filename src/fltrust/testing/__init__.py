"""The laws that every rule and every attack obeys, for yours too: `check_rule(MyRule())`, `check_attack(MyAttack())`.

>>> from fltrust import FedAvg
>>> from fltrust.testing import check_rule
>>> check_rule(FedAvg())

A law is a function that raises an AssertionError; `RULE_LAWS` and `ATTACK_LAWS` list them, for a test per law.
"""

from collections.abc import Callable
from typing import Any

import torch

from fltrust.attacks.attack import Attack
from fltrust.rules.rule import Rule
from fltrust.testing.attack_laws import (
    ATTACK_LAWS,
    attacks_memory_continues,
    crafted_rows_are_finite,
    crafting_again_gives_the_same,
    crafting_leaves_its_input_alone,
    labels_of_the_round_are_labels,
    no_value_decides_what_is_crafted,
    nobody_malicious_nothing_sent,
    odd_rounds_do_not_break_an_attack,
    poisoning_keeps_examples_and_labels_together,
)
from fltrust.testing.rounds import CLIENTS, INF, NAN, ROUNDS, D, N, draw, known, received
from fltrust.testing.rule_laws import (
    RULE_LAWS,
    an_unusable_root_stops_the_round,
    dropped_rows_do_not_end_training,
    extreme_values_stay_finite,
    input_is_left_alone,
    memory_continues,
    no_value_decides_the_path,
    nobody_usable_nothing_moves,
    one_client_is_enough_or_refused,
    order_does_not_matter,
    shapes_and_dtypes_are_kept,
    the_same_again,
    unusable_rows_have_no_influence,
)

__all__ = [
    "ATTACK_LAWS",
    "CLIENTS",
    "INF",
    "NAN",
    "ROUNDS",
    "RULE_LAWS",
    "D",
    "N",
    "an_unusable_root_stops_the_round",
    "attacks_memory_continues",
    "check_attack",
    "check_rule",
    "crafted_rows_are_finite",
    "crafting_again_gives_the_same",
    "crafting_leaves_its_input_alone",
    "draw",
    "dropped_rows_do_not_end_training",
    "extreme_values_stay_finite",
    "input_is_left_alone",
    "known",
    "labels_of_the_round_are_labels",
    "memory_continues",
    "no_value_decides_the_path",
    "no_value_decides_what_is_crafted",
    "nobody_malicious_nothing_sent",
    "nobody_usable_nothing_moves",
    "odd_rounds_do_not_break_an_attack",
    "one_client_is_enough_or_refused",
    "order_does_not_matter",
    "poisoning_keeps_examples_and_labels_together",
    "received",
    "shapes_and_dtypes_are_kept",
    "the_same_again",
    "unusable_rows_have_no_influence",
]


def check_rule(rule: Rule, dtype: torch.dtype = torch.float32) -> None:
    """Raises an AssertionError that names each law that the rule breaks, and how.

    Parameters
    ----------
    rule : Rule
        The rule to check, with its parameters.
    dtype : torch.dtype, default torch.float32
        Of the updates that the laws are tried on.

    Examples
    --------
    >>> from fltrust import Aggregate, Median, Rule
    >>> from fltrust.testing import check_rule
    >>> check_rule(Median())
    >>> class First(Rule):
    ...     def aggregate(self, received):
    ...         return Aggregate(received.updates[0], None)
    >>> check_rule(First())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    AssertionError: First() breaks ... laws:
      The order of the rows does not matter, ...
    """
    _check(rule, RULE_LAWS, dtype)


def check_attack(attack: Attack, dtype: torch.dtype = torch.float32) -> None:
    """Raises an AssertionError that names each law that the attack breaks, and how.

    Parameters
    ----------
    attack : Attack
        The attack to check, with its parameters.
    dtype : torch.dtype, default torch.float32
        Of the updates that the laws are tried on.

    Examples
    --------
    >>> from fltrust import LabelFlip
    >>> from fltrust.testing import check_attack
    >>> check_attack(LabelFlip())
    """
    _check(attack, ATTACK_LAWS, dtype)


def _check(subject: Any, laws: list[Callable[..., None]], dtype: torch.dtype) -> None:
    broken = []
    for law in laws:
        try:
            law(subject, dtype)
        except Exception as problem:  # whatever it is, the law does not hold
            how = str(problem).strip().splitlines() or [""]
            broken.append(f"{(law.__doc__ or '').splitlines()[0]} ({type(problem).__name__}: {how[0]})")
    if broken:
        raise AssertionError(f"{subject} breaks {len(broken)} of {len(laws)} laws:\n  " + "\n  ".join(broken))
