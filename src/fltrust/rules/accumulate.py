"""FLTrust one update at a time: what the server must remember has the size of one update, however many clients there are.

updates      (k, d)  some of the clients' updates
root_update  (d,)    the server's own update of this round
"""

import math
from array import array

import numpy as np
import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.rules.rows import Rows, check_like, direction_and_norm, finite, measure, trusted_sum
from fltrust.rules.rule import Aggregate


class TrustAccumulator:
    """The rule `FLTrust` for updates that arrive one at a time.

    g = (sum_i TS_i g_i ||g_0|| / ||g_i||) / (sum_i TS_i). Both sums grow as updates arrive, and no update is kept.

    A client's trust score depends only on its own update and the root update. So the order and grouping of the updates do not matter,
    except for rounding in float64. Accumulators can be merged: clients may report to several aggregators, and these to one.

    Parameters
    ----------
    root_update : Tensor
        (d,), the server's own update of this round.

    Examples
    --------
    >>> import torch
    >>> from fltrust import TrustAccumulator
    >>> total = TrustAccumulator(torch.tensor([2.0, 0.0]))
    >>> total.add(torch.tensor([1.0, 0.0]))
    1.0
    >>> total.add_many(torch.tensor([[3.0, 4.0], [-5.0, 0.0]]))
    tensor([0.6000, 0.0000])
    >>> total.result()
    Aggregate(update=tensor([1.7000, 0.6000]), shares=tensor([0.6250, 0.3750, 0.0000]))
    """

    def __init__(self, root_update: Tensor) -> None:
        if root_update.ndim != 1 or len(root_update) == 0:
            raise InputError(f"the root update must be a vector, not of shape {tuple(root_update.shape)}")
        if root_update.dtype not in (torch.float32, torch.float64):
            raise InputError(f"the root update must be float32 or float64, not {root_update.dtype}")
        root_update = root_update.detach()
        usable = direction_and_norm(root_update)[1] > 0
        self._root_update = torch.where(usable, root_update, 0)  # a copy; zero if it is not usable, and then nobody is trusted
        self._sum = torch.zeros_like(root_update, dtype=torch.float64)  # (d,) of trust * update at the root update's norm
        self._trust = array("d")

    @property
    def count(self) -> int:
        """How many updates were added, trusted or not."""
        return len(self._trust)

    def add(self, update: Tensor) -> float:
        """Adds one client's update (d,) and returns its trust score; 0 for NaN, infinity, zeros or a direction against the root update."""
        check_like(update, self._root_update.shape, self._root_update, "an update")
        return float(self.add_many(update[None])[0])

    def add_many(self, updates: Tensor) -> Tensor:
        """Adds several clients' updates (k, d) and returns their trust scores (k,)."""
        check_like(updates, (*updates.shape[:1], len(self._root_update)), self._root_update, "a matrix of updates")
        if len(updates) == 0:
            return updates.new_empty(0)
        total, trust = trusted_sum(updates.detach(), self._root_update)
        self._sum += total
        self._trust.extend(trust.tolist())
        return trust.to(updates.dtype)

    def add_measured(self, update: Tensor, row: Rows) -> float:
        """Adds an update (d,) whose length and cosine with the root update are already known, and returns its trust score."""
        return self.add(update)

    def merge(self, other: "TrustAccumulator") -> None:
        """Adds all that another accumulator with the same root update has received; the other does not change."""
        check_like(other._root_update, self._root_update.shape, self._root_update, "the other accumulator's root update")
        if not torch.equal(other._root_update, self._root_update):
            raise InputError("accumulators of two different root updates cannot be merged")
        self._sum += other._sum
        self._trust.extend(other._trust[:])

    def result(self) -> Aggregate:
        """What `FLTrust` returns for all updates so far. Shares are in the order of addition; a merged accumulator's come at its merge."""
        total = math.fsum(self._trust)
        scale = 1 / total if total > 0 else 0.0
        update = finite(self._sum * scale, self._root_update)
        shares = torch.tensor(self._trust, dtype=torch.float64) * scale
        return Aggregate(update, shares.to(self._root_update))


_BLOCK = 1 << 15  # values that are worked on at a time, so that they stay in the cache


class ExactTrust(TrustAccumulator):
    """FLTrust as a stream of at most n updates whose sum has no rounding, so that order and grouping cannot show in it.

    No coordinate of a client's share is larger than the root update's norm. So each is first rounded to a multiple of
    u = 2^(e - 52), where 2^e >= n * norm: then every sum is a multiple of u below 2^53 u, which float64 holds exactly. For 1,000 clients
    u is 2^-42 of the root update's norm: less than the rounding of a float32 update, and twelve digits of a float64 one.
    """

    def __init__(self, root_update: Tensor, n: int) -> None:
        super().__init__(root_update)
        self._direction, norm = direction_and_norm(root_update)
        self._norm = float(norm)
        _, exponent = math.frexp(max(n, 4) * self._norm)
        # Added and taken away again it leaves multiples of u: floats of this size are so far apart.
        self._magnet = math.ldexp(1.5, exponent)

    def add_many(self, updates: Tensor) -> Tensor:
        check_like(updates, (*updates.shape[:1], len(self._root_update)), self._root_update, "a matrix of updates")
        trust = [self.add_measured(update, measure(update[None], self._direction)) for update in updates]  # alone, so company cannot show
        return updates.new_tensor(trust)

    def add_measured(self, update: Tensor, row: Rows) -> float:
        trust = float(row.cosine[0].clamp(min=0))
        self._trust.append(trust)
        if trust > 0:
            scale, factor = float(row.scale[0]), trust * self._norm / float(row.length[0])
            numbers, total = update.detach().numpy(), self._sum.numpy()  # numpy, since torch would wake its threads for so little
            for start in range(0, len(total), _BLOCK):
                share = numbers[start : start + _BLOCK] / np.float64(scale)
                share *= factor
                share += self._magnet
                share -= self._magnet
                total[start : start + _BLOCK] += share
        return trust
