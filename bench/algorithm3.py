"""How far the paper's adaptive attack on FLTrust (Algorithm 3) moves, and how much of the exact optimum's damage it does.

    python bench/algorithm3.py har --seeds 5                             # 20 seconds a run on one core
    python bench/algorithm3.py har --seeds 5 --start trusted --step-size 1e-5
    python bench/algorithm3.py mnist-0.5 --rounds 100

A round in which no malicious client moves: all of them send the Trim attack's direction, which has no trust.
"""

import argparse
import statistics
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fltrust import Adaptive, Experiment, FLTrust, Knowledge, OptimalAdaptive, build_task, simulate
from fltrust.rules import cosines

STAYED = 1e-5  # rounding moves a coordinate of a unit vector by less


class Seen(NamedTuple):
    """What one round showed."""

    trusted: float  # share of the malicious clients whose start has positive trust
    moved: float  # share that has left its start
    kept: float  # mean cosine of what is sent with the start
    damage: float  # h of what is sent, as a share of the exact optimum's


@dataclass(frozen=True)
class Watched(Adaptive):
    seen: ClassVar[list[Seen]] = []
    starts: ClassVar[list[Tensor]] = []

    def first(self, known: Knowledge, e_0: Tensor) -> Tensor:
        self.starts[:] = [super().first(known, e_0)]
        return self.starts[0]

    def craft(self, known: Knowledge) -> Tensor:
        crafted = super().craft(known)
        (start,) = self.starts
        assert known.root_update is not None
        trusted = cosines(start, known.root_update) > 0
        sent = torch.nn.functional.normalize(crafted)
        moved = (sent - start).abs().amax(1) > STAYED
        damage = self.damage(known, crafted) / self.damage(known, OptimalAdaptive().craft(known))
        self.seen.append(Seen(trusted.float().mean().item(), moved.float().mean().item(), (sent * start).sum(1).mean().item(), damage))
        return crafted

    def damage(self, known: Knowledge, crafted: Tensor) -> float:
        """h: how far FLTrust's update goes back along the sign of what it is without attack."""
        assert known.others is not None
        before = FLTrust()(known.updates, known.root_update).update
        after = FLTrust()(torch.cat((crafted, known.others)), known.root_update).update
        return float(before.sign() @ (before - after))


def watched(run: Experiment, data_dir: str | None) -> tuple[list[Seen], float]:
    Watched.seen.clear()
    records = list(simulate(run, build_task(run, data_dir=data_dir)))
    return list(Watched.seen), records[-1].test_error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="instead of the data set's own")
    parser.add_argument("--start", choices=("trim", "trusted"), default="trim")
    parser.add_argument("--step-size", type=float, default=Adaptive.step_size)
    parser.add_argument(
        "--turns", type=int, default=Adaptive.rounds, help="V, how often it goes through the clients; 0 sends the start itself"
    )
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    fewer = {} if options.rounds is None else {"rounds": options.rounds}
    settings = f"start {options.start}, step size {options.step_size:g}, V = {options.turns}"
    print(f"{options.dataset}, FLTrust, {settings}, torch {torch.__version__}")
    errors = []
    for seed in range(options.seeds):
        attack = Watched(start=options.start, step_size=options.step_size, rounds=options.turns)
        seen, error = watched(Experiment.on(options.dataset, "fltrust", attack, seed=seed, **fewer), options.data_dir)
        errors.append(error)
        print(f"seed {seed}: test error {error:.4f} after {len(seen):,} rounds")
        tenth = -(-len(seen) // 10)
        for name, part in (("all rounds", seen), ("first tenth", seen[:tenth]), ("last tenth", seen[-tenth:])):
            trusted, moved, kept, damage = zip(*part, strict=True)
            print(
                f"  {name}: nobody moves in {statistics.mean(not share for share in moved):.3f} of the rounds; "
                f"starts trusted {statistics.mean(trusted):.3f}, moved {statistics.mean(moved):.3f}, "
                f"cosine with the start {statistics.mean(kept):.3f}, median damage {statistics.median(damage):.3f} of the optimum's",
                flush=True,
            )
    if len(errors) > 1:
        print(f"test error {statistics.mean(errors):.4f} ± {statistics.stdev(errors):.4f}")


if __name__ == "__main__":
    main()
