"""Writes the tables of docs/baselines.md for the peers that are installed. PYTHONPATH must hold `tests` (one peer installs a `tests` too).

python -m peers                  # measure, and write the page
python -m peers --search         # first look for the shortest inputs again
python -m peers --only flower
"""

import argparse
import logging

import torch

from .comparison import measured
from .page import write
from .peer import PEERS, Peer
from .shortest import load, search, store

MOST, MOST_IF_THEY_AGREE = 4000, 200  # small inputs to try


def renew(peer: Peer) -> None:
    """Looks for the shortest inputs of this peer anew."""
    store({key: kept for key, kept in load().items() if not key.startswith(f"{peer.module}: ")})
    for comparison in peer.comparisons():
        differs = any(measured(comparison).differ.values())
        shortest = search(comparison, MOST if differs else MOST_IF_THEY_AGREE)
        print(f"{peer.key(comparison)}: {shortest or 'no difference found'}", flush=True)
        if shortest is not None:
            store(load() | {peer.key(comparison): shortest})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--only", nargs="+", choices=[peer.module for peer in PEERS], default=[peer.module for peer in PEERS])
    options = parser.parse_args()
    torch.set_num_threads(1)  # the rows are small
    logging.disable(logging.WARNING)  # Flower writes a line for every round
    for peer in PEERS:
        if peer.module not in options.only:
            continue
        if not peer.there:
            print(f"{peer.label} {peer.version} is not installed: its tables stay as they are")
            continue
        if options.search:
            renew(peer)
        write(peer)
        print(f"{peer.label} {peer.version}: written")


if __name__ == "__main__":
    main()
