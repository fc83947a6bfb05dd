"""How fast our rules are beside other packages' rules, on the same rows in one process.

    python bench/peers.py                                  # 100 clients, the paper's CNN (139,960 parameters)
    python bench/peers.py --repeats 5 --rules krum bulyan

Ours and theirs take turns, so that a busy machine disturbs all alike. What a peer needs before it can aggregate (messages, lists) is made
before the clock starts. Peers and rules that are not installed are left out. Whether the results agree is another question:
docs/baselines.md.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # else threads of the contender before keep a core busy for milliseconds

import argparse
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from setting import processor, wait_until_quiet

from fltrust.codec import built
from fltrust.randomness import reseed
from fltrust.rules import RULES, Received, take_step

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from peers.packages import module

Call = Callable[[], object]
Contender = tuple[str, str, Callable[[], Call]]  # rule, who, what makes the call that is measured
MOST_SECONDS = 20.0  # for one contender


def ours(name: str, choice: Any, updates: torch.Tensor, f: int) -> Contender:
    rule = built(RULES, choice, {"tolerate": f, "trim": f})
    n = len(updates)
    received = Received(
        updates, client_ids=torch.arange(n), round=torch.tensor(1), generator=reseed(torch.Generator(), 0), weights=updates[0]
    )
    memory = rule.init(n, updates[0])
    return name, "fltrust", lambda: lambda: take_step(rule, received, memory)


def of_byzfl(array: np.ndarray, f: int) -> list[Contender]:
    rules = module("byzfl.aggregators")
    torch_rows = torch.from_numpy(array)
    steps = {
        "median": rules.Median(), "trim-mean": rules.TrMean(f), "meamed": rules.Meamed(f), "krum": rules.Krum(f),
        "multi-krum": rules.MultiKrum(f), "geometric-median": rules.GeometricMedian(T=8), "caf": rules.CAF(f),
    }  # fmt: skip
    found: list[Contender] = []

    def arc_and_mean(rows: torch.Tensor) -> object:  # ARC changes the rows that it is given
        return rules.Average()(rules.ARC(f)(rows))

    for name, rule in steps.items():
        found.append((name, "byzfl, torch", lambda rule=rule: lambda: rule(torch_rows)))
        found.append((name, "byzfl, numpy", lambda rule=rule: lambda: rule(array)))
    found.append(("centred-clipping", "byzfl, torch", lambda: partial(rules.CenteredClipping(tau=1.0), torch_rows)))
    found.append(("nnm+median", "byzfl, torch", lambda: lambda: rules.Median()(rules.NNM(f)(torch_rows))))
    found.append(("arc+fedavg", "byzfl, torch", lambda: partial(arc_and_mean, torch_rows.clone())))
    found.append(("bucketing+median", "byzfl, torch", lambda: lambda: rules.Median()(rules.Bucketing(2)(torch_rows))))
    return found


def of_byzpy(array: np.ndarray, f: int) -> list[Contender]:
    coordinate, geometric = module("byzpy.aggregators.coordinate_wise"), module("byzpy.aggregators.geometric_wise")
    norm, before = module("byzpy.aggregators.norm_wise"), module("byzpy.pre_aggregators")
    rows = list(torch.from_numpy(array))
    median = coordinate.CoordinateWiseMedian()
    steps = {
        "median": median, "trim-mean": coordinate.CoordinateWiseTrimmedMean(f), "meamed": coordinate.MeanOfMedians(f),
        "krum": geometric.Krum(f), "multi-krum": geometric.MultiKrum(f, len(rows) - f),
        "geometric-median": geometric.GeometricMedian(max_iter=8),
        "centred-clipping": norm.CenteredClipping(c_tau=1.0, M=1, init="zero"),
    }  # fmt: skip
    # its CAF is left out: on some rows it does not return
    found: list[Contender] = [(name, "byzpy", lambda rule=rule: lambda: rule.aggregate(rows)) for name, rule in steps.items()]
    found.append(("nnm+median", "byzpy", lambda: lambda: median.aggregate(before.NearestNeighborMixing(f).pre_aggregate(rows))))
    found.append(("bucketing+median", "byzpy", lambda: lambda: median.aggregate(before.Bucketing(2).pre_aggregate(rows))))
    return found


def of_flower(array: np.ndarray, f: int) -> list[Contender]:
    from flwr.server.strategy import aggregate as older
    from flwr.serverapp import strategy as newer
    from peers.flower import replies

    n, results = len(array), [([row], 1) for row in array]
    strategies = {
        "median": newer.FedMedian(), "trim-mean": newer.FedTrimmedAvg(beta=f / n), "krum": newer.Krum(num_malicious_nodes=f),
        "multi-krum": newer.MultiKrum(num_malicious_nodes=f, num_nodes_to_select=n - f), "bulyan": newer.Bulyan(num_malicious_nodes=f),
    }  # fmt: skip

    def strategy(chosen: Any) -> Call:
        sent = replies(array)  # a strategy empties the messages that it reads
        return lambda: chosen.aggregate_train(1, sent)

    found: list[Contender] = [(name, "flower", lambda chosen=chosen: strategy(chosen)) for name, chosen in strategies.items()]
    found.append(("median", "flower, older", lambda: lambda: older.aggregate_median(results)))
    found.append(("trim-mean", "flower, older", lambda: lambda: older.aggregate_trimmed_avg(results, f / n)))
    found.append(("krum", "flower, older", lambda: lambda: older.aggregate_krum(results, f, 0)))
    return found


def of_torchjd(array: np.ndarray, f: int) -> list[Contender]:
    from torchjd.aggregation import Krum, TrimmedMean

    rows = torch.from_numpy(array)
    steps = {"trim-mean": TrimmedMean(f), "krum": Krum(f), "multi-krum": Krum(f, len(rows) - f)}
    return [(name, "torchjd", lambda rule=rule: lambda: rule(rows)) for name, rule in steps.items()]


def of_geom_median(array: np.ndarray, f: int) -> list[Contender]:
    from geom_median.torch import compute_geometric_median

    rows = list(torch.from_numpy(array))
    return [("geometric-median", "geom-median", lambda: lambda: compute_geometric_median(rows, maxiter=8))]


def of_fedml(array: np.ndarray, f: int) -> list[Contender]:
    from peers import fedml

    return [("krum", "fedml", lambda: lambda: fedml.krum(array, f, 1)), ("rlr", "fedml", lambda: lambda: fedml.rlr(array, f))]


PEERS = {"byzfl": of_byzfl, "byzpy": of_byzpy, "flwr": of_flower, "torchjd": of_torchjd, "geom-median": of_geom_median, "fedml": of_fedml}
OURS: dict[str, Any] = {
    "median": "median", "trim-mean": "trim-mean", "meamed": "meamed", "krum": "krum", "multi-krum": "multi-krum", "bulyan": "bulyan",
    "geometric-median": "geometric-median", "caf": "caf", "rlr": {"name": "rlr", "threshold": 4},
    "centred-clipping": {"name": "centred-clipping", "tau": 1.0},
    "nnm+median": {"name": "nnm", "rule": "median"}, "arc+fedavg": {"name": "arc", "rule": "fedavg"},
    "bucketing+median": {"name": "bucketing", "size": 2, "rule": "median"},
}  # fmt: skip


def contenders(n: int, d: int, f: int) -> list[Contender]:
    updates = torch.randn(n, d, generator=torch.Generator().manual_seed(0)) * 1e-3
    found = [ours(name, choice, updates, f) for name, choice in OURS.items() if all(part in RULES for part in name.split("+"))]
    for peer, listed in PEERS.items():
        try:
            found += listed(updates.numpy(), f)
        except ImportError as problem:
            print(f"{peer} left out: {problem}")
    return found


def race(runners: list[Contender], repeats: int) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of each: once to warm up and compile, then in turns; a slow one less often."""
    times: dict[tuple[str, str], list[float]] = {}

    def run(rule: str, who: str, make: Callable[[], Call]) -> float:
        call = make()
        start = time.perf_counter()
        call()
        times.setdefault((rule, who), []).append(1e3 * (time.perf_counter() - start))
        return times[rule, who][-1] / 1e3

    allowed = {}
    for rule, who, make in runners:
        allowed[rule, who] = max(1, min(repeats, int(MOST_SECONDS / run(rule, who, make))))
    for turn in range(repeats):
        wait_until_quiet()
        for rule, who, make in runners:
            if turn < allowed[rule, who]:
                if turn == 0:
                    times[rule, who].clear()
                run(rule, who, make)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=139_960)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--rules", nargs="+", choices=list(OURS), default=list(OURS))
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    n, d, f = options.clients, options.parameters, options.clients // 5
    there = [runner for runner in contenders(n, d, f) if runner[0] in options.rules]
    times = race(there, options.repeats)
    table = Table(title=f"{n} x {d:,} float32, f = {f}: {processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for heading in ("rule", "who", "median, ms", "fastest to slowest, ms", "runs", "/ ours"):
        table.add_column(heading, justify="left" if heading in ("rule", "who") else "right")
    for rule in options.rules:
        own = times.get((rule, "fltrust"))
        for (name, who), taken in times.items():
            if name == rule:
                ratio = f"{statistics.median(taken) / statistics.median(own):.1f}" if own else "ours is not there"
                table.add_row(rule, who, f"{statistics.median(taken):.1f}", f"{min(taken):.1f} to {max(taken):.1f}", str(len(taken)), ratio)
        table.add_section()
    Console(width=max(130, Console().width)).print(table)


if __name__ == "__main__":
    main()
