"""Clients' momentum: what a client sends is a running mean of its updates (worker momentum)."""

import torch
from torch import Tensor

from fltrust.experiment import Experiment
from fltrust.state import Memory


def with_momentum(run: Experiment, updates: Tensor, client_ids: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
    """What clients send (n, d) and the next memory (N, d): m_i <- beta m_i + (1 - beta) u_i, or beta m_i + u_i where it is plain.

    Clients that do not take part keep theirs.
    """
    beta = run.client_momentum
    if not beta:
        return updates, memory
    everyone = len(updates) == run.num_clients  # in order
    before = memory if everyone else memory.index_select(0, client_ids)
    sent = torch.lerp(updates, before, beta) if run.momentum_kind == "normalised" else torch.add(updates, before, alpha=beta)
    return sent, sent if everyone else memory.index_copy(0, client_ids, sent)
