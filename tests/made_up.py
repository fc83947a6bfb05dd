"""Results that no run produced, for tests of what is made from results: plausible curves and trust, quick to make."""

import dataclasses
import random
from typing import Any

from fltrust.attacks import NoAttack, OptimalAdaptive, Scaling
from fltrust.experiment import Experiment
from fltrust.store.results import TRUST_POINTS, Result

ABOUT: dict[str, Any] = {
    "files": {"train": "0f" * 32},
    "warnings": [],
    "versions": {"fltrust": "0.1", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.7"},
    "hardware": "made up",
}


def made_up(run: Experiment, *, error: float = 0.05, success: float = 0.02, seed: int = 0, **about: Any) -> Result:
    """A finished run of the experiment that ends at this error."""
    run = dataclasses.replace(run, seed=seed)
    chance = random.Random(run.key)
    rounds = tuple(range(run.evaluate_every, run.rounds + 1, run.evaluate_every)) or (run.rounds,)
    rounds = rounds if rounds[-1] == run.rounds else (*rounds, run.rounds)
    falling = [error + (0.85 - error) * 0.0005 ** (t / run.rounds) * chance.uniform(0.9, 1.1) for t in rounds[:-1]]
    test = tuple(min(1.0, max(0.0, value)) for value in (*falling, error))
    trust_rounds = rounds[:: -(-len(rounds) // TRUST_POINTS)] if run.rule.needs_root else ()
    return Result(
        run=run,
        about={**ABOUT, **about},
        seconds=chance.uniform(20, 60),
        rounds=rounds,
        train_error=tuple(0.9 * value for value in test),
        test_error=test,
        success=tuple(success for _ in rounds) if isinstance(run.attack, Scaling) else None,
        trust_rounds=trust_rounds,
        trust=tuple(tuple(_trust(run, client, chance) for client in range(run.num_clients)) for _ in trust_rounds),
    )


def _trust(run: Experiment, client: int, chance: random.Random) -> float:
    attacking = client < run.malicious and not isinstance(run.attack, NoAttack)
    if attacking and isinstance(run.attack, OptimalAdaptive):
        return 0.82
    return max(0.0, chance.gauss(-0.1, 0.08)) if attacking else max(0.0, chance.gauss(0.4, 0.12))


def nested(levels: int, innermost: object = "median") -> object:
    """A rule within a rule within a rule ..."""
    for _ in range(levels):
        innermost = {"name": "nnm", "tolerate": 1, "rule": innermost}
    return innermost
