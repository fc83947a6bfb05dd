"""A process that is forked from one that has used its threads."""

import os
import subprocess
import sys

import pytest
from waiting import MOST_SECONDS

FORKED = f"""
import os, signal, threading, torch
from fltrust import FedAvg, FLTrust, Krum, Median
from fltrust.threads import cores, each

torch.set_num_threads(2)
updates = torch.randn(10, 100_000, generator=torch.Generator().manual_seed(0))
root_update = updates[:5].mean(0)
all_there = threading.Barrier(cores())


def work():
    each(lambda part: all_there.wait(), range(cores()))
    return [rule(updates, root_update=root_update).update for rule in (FedAvg(), FLTrust(), Krum(2), Median())]


before = work()
assert torch.get_num_threads() == 2
child = os.fork()
if child == 0:
    signal.alarm({MOST_SECONDS})  # for one that hangs
    torch.testing.assert_close(work(), before)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_rules_work_in_a_forked_process() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True)
