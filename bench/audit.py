"""How long the audit takes to read and judge a run: 500 rounds of 1,000 nodes, as a federation records them.

python bench/audit.py --rounds 500 --nodes 1000
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from fltrust.audit import Audit


def write(path: Path, rounds: int, n: int) -> None:
    """A tenth of the nodes points away from the server's update."""
    rng = np.random.default_rng(0)
    ids = sorted(rng.integers(2**62, 2**63, n).tolist())
    declared = {"kind": "federation", "key": "k", "experiment": {"rule": {"name": "fltrust"}}}
    (path / "experiment.json").write_text(json.dumps(declared))
    with (path / "records.jsonl").open("w") as file:
        for t in range(1, rounds + 1):
            cosine = rng.normal(0.4, 0.08, n) * np.where(np.arange(n) < n // 10, -1, 1)
            trust = np.maximum(cosine, 0)
            numbers = {
                "shares": trust / trust.sum(),
                "trust": trust,
                "cosine": cosine,
                "norm": rng.lognormal(0, 0.1, n),
                "peers": cosine / 2,
                "closest": rng.uniform(0.3, 0.6, n),
            }
            record = {
                "round": t,
                "clients": ids,
                **{name: [float(f"{value:.6g}") for value in values] for name, values in numbers.items()},
                "closest_to": [ids[i] for i in rng.integers(0, n, n)],
                "verdict": ["used" if value > 0 else "zero-trust" for value in cosine],
                "reason": [None] * n,
                "detail": [None] * n,
                "root_norm": 1.0,
                "time": "2026-01-01T00:00:00+00:00",
            }
            file.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch)
        write(path, options.rounds, options.nodes)
        megabytes = (path / "records.jsonl").stat().st_size / 1e6
        for _ in range(options.runs):
            began, worked = time.perf_counter(), time.process_time()
            run = Audit(path)
            read = time.process_time() - worked
            hostile = sum(finding.verdict == "hostile" for finding in run.findings())
            took, worked = time.perf_counter() - began, time.process_time() - worked
            print(f"{megabytes:.0f} MB, {hostile} hostile: {took:.2f} s, of processor time {worked:.2f} s ({read:.2f} s of it to read)")


if __name__ == "__main__":
    main()
