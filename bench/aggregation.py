"""How fast the rules aggregate on this CPU, beside one read of the matrix and beside what people use today.

    python bench/aggregation.py            # 100 and 1000 clients, the paper's CNN (139,960 parameters)
    python bench/aggregation.py --clients 100 --repeats 30
    python bench/aggregation.py --rules    # every registered rule beside Krum, without peers; on a CUDA device too if there is one

Every contender gets the same matrix in the same process, in turns, so that a busy machine disturbs all alike. None finds it in
the cache. Peers that are not installed are left out (`pip install byzfl "flwr<1.42"`).
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # else threads of the contender before keep a core busy for milliseconds

import argparse
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from setting import BUSY, CLOCK, processor, usual_fltrust

from fltrust.codec import built
from fltrust.rules import RULES, FedAvg, FLTrust, Krum, Median, Received, Rule, TrimmedMean, take_step
from fltrust.rules.rows import measure
from fltrust.state import Memory

Call = Callable[[], object]
MOST_SECONDS = 20.0  # for one contender
ELSEWHERE = 1 << 25  # values: more than a cache holds


@dataclass
class Contender:
    rule: str
    name: str
    call: Call
    times: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.times)


def contenders(n: int, d: int) -> list[Contender]:
    generator = torch.Generator().manual_seed(0)
    updates = torch.randn(n, d, generator=generator) * 1e-3
    root_update = updates[:10].mean(dim=0)
    trim, array, rows = n // 5, updates.numpy(), list(updates.numpy())

    found: list[tuple[str, str, Call]] = [
        ("read", "torch.sum", lambda: updates.sum()),
        ("read", "four rows at a time", lambda: measure(updates)),
        ("FLTrust", "fltrust", lambda: FLTrust()(updates, root_update)),
        ("FLTrust", "torch, as usually ported", lambda: usual_fltrust(updates, root_update)),
        ("Median", "fltrust", lambda: Median()(updates)),
        ("Median", "torch.median", lambda: updates.median(dim=0).values),
        ("Median", "numpy.median", lambda: np.median(array, axis=0)),
        ("Median", "numpy.sort", lambda: np.sort(array, axis=0)[[(n - 1) // 2, n // 2]].mean(axis=0)),
        ("Trimmed mean", "fltrust", lambda: TrimmedMean(trim)(updates)),
        ("Trimmed mean", "torch.sort", lambda: updates.sort(dim=0).values[trim : n - trim].mean(dim=0)),
        ("Trimmed mean", "numpy.sort", lambda: np.sort(array, axis=0)[trim : n - trim].mean(axis=0)),
        ("Krum", "fltrust", lambda: Krum(trim)(updates)),
        ("Krum", "torch.cdist", lambda: torch.cdist(updates, updates).square().sort(dim=1).values[:, 1 : n - trim - 1].sum(dim=1).argmin()),
        ("FedAvg", "fltrust", lambda: FedAvg()(updates)),
        ("FedAvg", "torch.mean", lambda: updates.mean(dim=0)),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import byzfl
        except Exception as error:  # a peer that does not import is a peer that is not there
            print(f"byzfl left out: {error}")
        else:
            found += [
                ("Median", "byzfl", lambda: byzfl.Median()(updates)),
                ("Trimmed mean", "byzfl, torch", lambda: byzfl.TrMean(trim)(updates)),
                ("Trimmed mean", "byzfl, numpy", lambda: byzfl.TrMean(trim)(array)),
                ("Krum", "byzfl, torch", lambda: byzfl.Krum(trim)(updates)),
            ]
        try:
            from flwr.server.strategy import aggregate as flower
        except Exception as error:
            print(f"flwr left out: {error}")
        else:
            results = [([row], 1) for row in rows]
            found += [
                ("Median", "flwr", lambda: flower.aggregate_median(results)),
                ("Trimmed mean", "flwr", lambda: flower.aggregate_trimmed_avg(results, trim / n)),
                ("FedAvg", "flwr", lambda: flower.aggregate(results)),
            ]
            if n <= 100:  # its distances take n passes over the matrix
                found += [("Krum", "flwr", lambda: flower.aggregate_krum(results, trim, 0))]
    return [Contender(rule, name, call, []) for rule, name, call in found]


def race(runners: list[Contender], repeats: int) -> None:
    """Each once to warm up and compile, then in turns; the slow ones less often."""
    allowed = {}
    elsewhere = torch.zeros(ELSEWHERE)  # read before each call, so that none finds the matrix in the cache, where its rival left it
    for runner in runners:
        runner.call()
        start = CLOCK.now()
        runner.call()
        allowed[id(runner)] = max(3, min(repeats, int(MOST_SECONDS / (CLOCK.now() - start))))
    for turn in range(repeats):
        CLOCK.wait()
        for runner in runners:
            if turn < allowed[id(runner)]:
                elsewhere.sum()
                start = CLOCK.now()
                runner.call()
                runner.times.append(1e3 * (CLOCK.now() - start))


def every_rule(n: int, d: int, repeats: int, device: str) -> Table:
    """One round of each registered rule, with f = n / 5, in turns; at most 3 x Krum is the project's target on a CPU."""
    generator = torch.Generator().manual_seed(0)
    updates = (torch.randn(n, d, generator=generator) * 1e-3).to(device)
    root = updates[:10].mean(dim=0)
    view = Received(
        updates,
        root,
        torch.full((n,), 60, device=device),
        client_ids=torch.arange(n, device=device),
        round=torch.ones((), dtype=torch.int64, device=device),
        generator=torch.Generator(device).manual_seed(0),
        weights=root * 100,
        root_loss=lambda models: models.square().sum(1),
    )
    runners = []
    for name in RULES:
        rule = built(RULES, name, {"tolerate": n // 5, "trim": n // 5, "rule": Median()})
        memory = rule.init(n, root)

        def call(rule: Rule = rule, memory: Memory = memory) -> None:
            take_step(rule, view, memory)
            if device == "cuda":
                torch.cuda.synchronize()

        runners.append(Contender(name, "fltrust", call, []))
    race(runners, repeats)
    krum = next(runner.median for runner in runners if runner.rule == "krum")
    table = Table(title=f"Every rule on {device}, {n} x {d:,}, torch {torch.__version__}")
    for heading in ("rule", "median, ms", "fastest to slowest, ms", "/ Krum"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for runner in sorted(runners, key=lambda runner: runner.median):
        spread = f"{min(runner.times):.2f} to {max(runner.times):.2f}"
        table.add_row(runner.rule, f"{runner.median:.2f}", spread, f"{runner.median / krum:.2f}")
    return table


def verdict(rule: str, ours: float, read: float, group: dict[str, float], n: int) -> str:
    """The project's targets: FLTrust at most 2.5 reads, FedAvg at most 1.2 `torch.mean`; the others so many times faster than a peer."""
    if rule == "FLTrust":
        ratio = ours / read
        return f"{ratio:.2f} reads, target 2.5: {'met' if ratio <= 2.5 else 'missed'}"
    if rule == "FedAvg":
        ratio = ours / group["torch.mean"]
        return f"{ratio:.2f} torch.mean, target 1.2: {'met' if ratio <= 1.2 else 'missed'}"
    targets = {("Median", 100): ("numpy.sort", 6), ("Trimmed mean", 100): ("numpy.sort", 6), ("Krum", 1000): ("torch.cdist", 2)}
    if (rule, n) not in targets:
        return ""
    peer, target = targets[rule, n]
    ratio = group[peer] / ours
    return f"{ratio:.1f} x faster than {peer}, target {target}: {'met' if ratio >= target else 'missed'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--parameters", type=int, default=139_960)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--rules", action="store_true", help="time every registered rule instead of comparing with peers")
    parser.add_argument("--busy", action="store_true", help=BUSY)
    options = parser.parse_args()
    if options.busy:
        CLOCK.on_a_busy_machine()
    console = Console(width=max(150, Console().width))
    if options.rules:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            for n in options.clients:
                console.print(every_rule(n, options.parameters, options.repeats, device))
        return
    table = Table(
        title=f"Aggregation on {processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, numpy {np.__version__}"
    )
    for heading in ("n x d", "rule", "who", "median, ms", "fastest to slowest, ms", "runs", "/ read", "/ ours", "target"):
        table.add_column(heading, justify="left" if heading in ("rule", "who", "target") else "right")
    for n in options.clients:
        runners = contenders(n, options.parameters)
        race(runners, options.repeats)
        read = min(runner.median for runner in runners if runner.rule == "read")
        for rule in dict.fromkeys(runner.rule for runner in runners):
            group = [runner for runner in runners if runner.rule == rule]
            ours = next((runner.median for runner in group if runner.name == "fltrust"), 0.0)
            medians = {runner.name: runner.median for runner in group}
            for runner in sorted(group, key=lambda runner: runner.name != "fltrust"):
                table.add_row(
                    f"{n} x {options.parameters:,}",
                    rule,
                    runner.name,
                    f"{runner.median:.2f}",
                    f"{min(runner.times):.2f} to {max(runner.times):.2f}",
                    str(len(runner.times)),
                    f"{runner.median / read:.1f}",
                    f"{runner.median / ours:.1f}" if ours else "",
                    verdict(rule, ours, read, medians, n) if runner.name == "fltrust" else "",
                )
            table.add_section()
    console.print(table)


if __name__ == "__main__":
    main()
