"""Algorithm 3's loop as one small Triton kernel: its V m Q steps depend on each other, and a launch for each would cost far more.

The twin of `fltrust.attacks.ascend`, whose names it shares; all clients' coordinates stay in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def ascend(start: Tensor, noise: Tensor, terms: Tensor) -> Tensor:
    """From `start` (m, 3) to (m, 4), with `noise` (V, m, Q, 5) and `terms` (6,): see `fltrust.attacks.ascend`."""
    rounds, m, steps, _ = noise.shape
    end = start.new_empty(m, 4)
    draws = torch.cat((noise.flatten(), noise.new_zeros(5)))
    _ascend[(1,)](start.contiguous(), draws, terms, end, rounds, m, steps, triton.next_power_of_2(m), num_warps=1)
    return end


@triton.jit
def _progress(e_root, e_sign, s_root, s_sign, rest_trust, rest_pull):  # type: ignore[no-untyped-def]
    """A numerator and a positive denominator."""
    trust = tl.maximum(e_root, 0.0)
    total = rest_trust + trust
    some = total > 0
    return tl.where(some, rest_pull + trust * (s_root * e_root + s_sign * e_sign), 0.0), tl.where(some, total, 1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _ascend(start, noise, terms, end, rounds, m, steps, block: tl.constexpr):  # type: ignore[no-untyped-def]
    s_root, s_sign, honest_pull = tl.load(terms), tl.load(terms + 1), tl.load(terms + 2)
    honest_trust, gain, smoothing = tl.load(terms + 3), tl.load(terms + 4), tl.load(terms + 5)
    client = tl.arange(0, block)
    roots = tl.load(start + 3 * client, mask=client < m, other=0.0)  # (block,) a coordinate of every client
    signs = tl.load(start + 3 * client + 1, mask=client < m, other=0.0)
    firsts = tl.load(start + 3 * client + 2, mask=client < m, other=0.0)
    lefts = tl.zeros_like(roots)
    draw = noise
    u_root, u_sign, u_first = tl.load(draw), tl.load(draw + 1), tl.load(draw + 2)
    u_left, u_beyond = tl.load(draw + 3), tl.load(draw + 4)
    for _turn in range(rounds):
        for i in range(m):
            moves = client == i
            e_root, e_sign = tl.sum(tl.where(moves, roots, 0.0)), tl.sum(tl.where(moves, signs, 0.0))
            e_first, e_left = tl.sum(tl.where(moves, firsts, 0.0)), tl.sum(tl.where(moves, lefts, 0.0))
            trusts = tl.where(moves, 0.0, tl.maximum(roots, 0.0))
            rest_trust = honest_trust + tl.sum(trusts)
            rest_pull = honest_pull + tl.sum(trusts * (s_root * roots + s_sign * signs))
            for _step in range(steps):
                # Division and roots are what takes the time: one of each for both progresses, one for both lengths.
                now, by = _progress(e_root, e_sign, s_root, s_sign, rest_trust, rest_pull)
                tried, by_tried = _progress(e_root + smoothing * u_root, e_sign + smoothing * u_sign, s_root, s_sign, rest_trust, rest_pull)
                step = gain * ((now * by_tried - tried * by) / (by * by_tried))
                e_root, e_sign, e_first = e_root + step * u_root, e_sign + step * u_sign, e_first + step * u_first
                moved, beyond = e_left + step * u_left, step * u_beyond
                # The next draw is on its way meanwhile; after the last there is one more, of zeros.
                draw += 5
                u_root, u_sign, u_first = tl.load(draw), tl.load(draw + 1), tl.load(draw + 2)
                u_left, u_beyond = tl.load(draw + 3), tl.load(draw + 4)
                left = moved * moved + beyond * beyond
                square = e_root * e_root + e_sign * e_sign + e_first * e_first + left
                shrink = tl.where(square > 0, tl.rsqrt(square), 1.0)
                e_root, e_sign, e_first, e_left = e_root * shrink, e_sign * shrink, e_first * shrink, tl.sqrt(left) * shrink
            roots, signs = tl.where(moves, e_root, roots), tl.where(moves, e_sign, signs)
            firsts, lefts = tl.where(moves, e_first, firsts), tl.where(moves, e_left, lefts)
    tl.store(end + 4 * client, roots, mask=client < m)
    tl.store(end + 4 * client + 1, signs, mask=client < m)
    tl.store(end + 4 * client + 2, firsts, mask=client < m)
    tl.store(end + 4 * client + 3, lefts, mask=client < m)
