"""What the rules without memory promise beside the laws of `fltrust.testing`, on the plain torch path and on the fast one."""

from typing import cast

import pytest
import torch
from torch import Tensor

from fltrust.errors import InputError
from fltrust.rules import (
    Aggregate,
    FedAvg,
    FLTrust,
    FLTrustNoNorm,
    FLTrustNoReLU,
    FLTrustParNorm,
    FLTrustServer,
    FLTrustTwoLevel,
    FLTrustWithServer,
    Krum,
    Median,
    Received,
    Rule,
    TrimmedMean,
    cosines,
    krum_scores,
    norms,
    rows,
    sq_distances,
    trust_scores,
)
from fltrust.rules.trust import TrustRule
from fltrust.testing import draw

EVERY_RULE: list[Rule] = [
    FedAvg(),
    Krum(2),
    TrimmedMean(2),
    Median(),
    FLTrust(),
    FLTrustServer(),
    FLTrustWithServer(),
    FLTrustNoReLU(),
    FLTrustNoNorm(),
    FLTrustParNorm(),
    FLTrustTwoLevel(),
]
COORDINATE_WISE = (TrimmedMean, Median)
EVERY_TRUSTING_RULE = [rule for rule in EVERY_RULE if rule.needs_root]
NAN, INF = float("nan"), float("inf")

every_rule = pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: type(rule).__name__)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()


@pytest.fixture(params=["plain", "fast"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(rows, "_cpu_kernels", lambda: None)
    else:
        pytest.importorskip("numba")
    return str(request.param)


def close(actual: Tensor, expected: Tensor) -> None:
    tolerance = 1e-5 if expected.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@every_rule
@every_dtype
@pytest.mark.parametrize("device", devices)
def test_input_untouched_dtype_and_device_kept(rule: Rule, dtype: torch.dtype, device: str, path: str) -> None:
    updates, root_update, sizes = (tensor.to(device) for tensor in draw(9, 20, dtype))
    before = [tensor.clone() for tensor in (updates, root_update, sizes)]
    update, weight = rule(updates, root_update, sizes)
    assert all(torch.equal(now, then) for now, then in zip((updates, root_update, sizes), before, strict=True))
    assert (update.shape, update.dtype, update.device) == ((20,), dtype, updates.device)
    assert weight is None or (weight.shape, weight.dtype, weight.device) == ((9,), dtype, updates.device)
    update += 1  # what comes out is not a view of what went in
    assert torch.equal(updates, before[0])
    assert torch.equal(root_update, before[1])


@every_rule
def test_rows_with_a_history_and_rows_in_any_memory_order(rule: Rule, path: str) -> None:
    updates, root_update, sizes = draw(9, 20)
    expected = rule(updates, root_update, sizes).update
    result = rule(updates.clone().requires_grad_(), root_update.clone().requires_grad_(), sizes).update
    assert not result.requires_grad
    assert torch.equal(result, expected)
    close(rule(updates.T.contiguous().T, root_update, sizes).update, expected)


@every_rule
@every_dtype
def test_equal_rows_give_that_row(rule: Rule, dtype: torch.dtype, path: str) -> None:
    updates, root_update, sizes = draw(7, 30, dtype)
    row = updates[0] * 10  # longer than the root update
    at_root_norm = row / row.norm() * root_update.norm()
    expected = row
    if isinstance(rule, FLTrustServer):
        expected = root_update
    elif isinstance(rule, FLTrustWithServer):
        trust = 7 * trust_scores(row[None], root_update)[0]
        expected = (trust * at_root_norm + root_update) / (trust + 1)
    elif isinstance(rule, TrustRule | FLTrustTwoLevel) and not isinstance(rule, FLTrustNoNorm):
        expected = at_root_norm
    close(rule(row.expand(7, -1), root_update, sizes).update, expected)
    close(rule(row.repeat(7, 1), root_update, sizes).update, expected)


@every_rule
@every_dtype
def test_too_few_usable_rows_give_the_zero_update(rule: Rule, dtype: torch.dtype, path: str) -> None:
    if isinstance(rule, FLTrustServer):
        return  # does not look at the rows
    updates, root_update, sizes = draw(9, 12, dtype)
    enough = 1 + (rule.tolerate if isinstance(rule, Krum) else rule.trim if isinstance(rule, TrimmedMean) else 0)
    updates[enough:] = NAN
    assert torch.any(rule(updates, root_update, sizes).update != 0)
    updates[enough - 1] = 0
    update, weight = rule(updates, root_update, sizes)
    if isinstance(rule, FLTrustWithServer):
        close(update, root_update)
    else:
        assert torch.equal(update, torch.zeros(12, dtype=dtype))
    assert weight is None or torch.equal(weight, torch.zeros(9, dtype=dtype))


@every_dtype
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_the_result_grows_with_the_root_update(dtype: torch.dtype, size: float, path: str) -> None:
    updates, root_update, _ = draw(9, 40, dtype)
    for rule in (FLTrust(), FLTrustWithServer(), FLTrustNoReLU()):
        close(rule(updates, root_update * size).update, rule(updates, root_update).update * size)


@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-20, 1e20, 1e37])
def test_extreme_lengths_do_not_matter_to_fltrust(size: float, path: str) -> None:
    updates, root_update, _ = draw(9, 40)
    signs = updates.sign()  # exact at any size
    expected = FLTrust()(signs, root_update)
    for result in (FLTrust()(signs * size, root_update), Aggregate(*FLTrust()(signs.double() * size**7, root_update.double()))):
        close(result.update.float(), expected.update)


@every_dtype
def test_lengths_do_not_matter_to_fltrust(dtype: torch.dtype, path: str) -> None:
    updates, root_update, _ = draw(11, 37, dtype)
    one, other = FLTrust()(updates, root_update), FLTrust()(updates * torch.logspace(-6, 6, 11, dtype=dtype)[:, None], root_update)
    close(other.update, one.update)


@every_dtype
def test_the_opposite_of_the_root_update_gets_no_trust(dtype: torch.dtype, path: str) -> None:
    updates, root_update, _ = draw(5, 37, dtype)
    rows = torch.cat([-root_update[None], updates, -100 * root_update[None]])
    trust = trust_scores(rows, root_update)
    assert trust[0] == trust[-1] == 0
    close(FLTrust()(rows, root_update).update, FLTrust()(updates, root_update).update)
    assert torch.equal(FLTrust()(-root_update.expand(3, -1), root_update).update, torch.zeros(37, dtype=dtype))  # nobody is trusted


@pytest.mark.parametrize("rule", [FLTrust(), FLTrustWithServer(), FLTrustParNorm()], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("seed", range(5))
def test_the_result_is_never_longer_than_the_root_update(rule: Rule, seed: int, path: str) -> None:
    updates, root_update, _ = draw(8, 5, seed=seed)
    assert rule(updates * 1e6, root_update).update.norm() <= root_update.norm() * (1 + 1e-6)


@every_dtype
def test_trim_0_is_the_mean_and_full_trim_is_the_median(dtype: torch.dtype, path: str) -> None:
    for n in (6, 7):
        updates, _, _ = draw(n, 50, dtype)
        close(TrimmedMean(0)(updates).update, updates.mean(dim=0))
        close(TrimmedMean(0)(updates).update, FedAvg()(updates).update)
        assert torch.equal(TrimmedMean((n - 1) // 2)(updates).update, Median()(updates).update)


@every_rule
def test_shares_sum_to_one_unless_the_server_has_one(rule: Rule, path: str) -> None:
    updates, root_update, sizes = draw(9, 25)
    weight = rule(updates, root_update, sizes).shares
    if weight is not None:
        expected = 0.0 if isinstance(rule, FLTrustServer) else 1.0
        if isinstance(rule, FLTrustWithServer):
            trust = trust_scores(updates, root_update).sum()
            expected = float(trust / (trust + 1))
        assert float(weight.sum()) == pytest.approx(expected, abs=1e-6)


def test_sizes_that_cannot_be_count_nothing(path: str) -> None:
    updates, _, _ = draw(5, 8)
    result = FedAvg()(updates, sizes=torch.tensor([NAN, 2.0, INF, 2.0, -5.0]))
    close(result.update, (updates[1] + updates[3]) / 2)
    assert torch.equal(FedAvg()(updates, sizes=torch.zeros(5)).update, torch.zeros(8))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 12])
@pytest.mark.parametrize("d", [3, 256, 300])
@pytest.mark.parametrize("kind", ["random", "ties", "signed zeros", "denormal", "unusable rows"])
def test_fast_kernels_equal_their_plain_twins(n: int, d: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    updates, root_update, sizes = draw(n, d, seed=n * d)
    if kind == "ties":
        updates = updates.round()
    elif kind == "signed zeros":
        updates = torch.where(updates.abs() < 2, updates * 0.0, updates)  # keeps the sign
    elif kind == "denormal":
        updates = updates * 1e-41
    elif kind == "unusable rows":
        updates[n // 2] = 0
        updates[-1, d // 2] = NAN
        updates[0, -1] = INF
    chosen = [rule for rule in EVERY_RULE if not isinstance(rule, Krum | TrimmedMean)]
    chosen += [TrimmedMean(trim) for trim in range((n + 1) // 2)] + [Krum(tolerate) for tolerate in range(n - 2)]
    fast = [rule(updates, root_update, sizes) for rule in chosen] + [Aggregate(norms(updates), cosines(updates, root_update))]
    monkeypatch.setattr(rows, "_cpu_kernels", lambda: None)
    plain = [rule(updates, root_update, sizes) for rule in chosen] + [Aggregate(norms(updates), cosines(updates, root_update))]
    for rule, one, other in zip([*chosen, "norms and cosines"], fast, plain, strict=True):
        scale = float(other.update.nan_to_num(0, 0, 0).abs().max())
        for mine, twin in zip(one, other, strict=True):
            if mine is not None:
                torch.testing.assert_close(mine, twin, rtol=1e-6, atol=1e-6 * scale + 2e-45, equal_nan=True, msg=f"{rule}: {{}}".format)


def test_many_rows_and_threads_equal_the_plain_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    updates, root_update, sizes = draw(103, 1111)
    updates[::7] = updates[3]
    fast = [rule(updates, root_update, sizes).update for rule in EVERY_RULE]
    threads = torch.get_num_threads()
    torch.set_num_threads(5)
    five = [rule(updates, root_update, sizes).update for rule in EVERY_RULE]
    torch.set_num_threads(threads)
    monkeypatch.setattr(rows, "_cpu_kernels", lambda: None)
    for rule, one, other in zip(EVERY_RULE, fast, five, strict=True):
        close(one, rule(updates, root_update, sizes).update)
        close(other, one)


def test_more_rows_than_the_kernels_can_count_take_the_plain_path(path: str) -> None:
    updates = torch.arange(1.0, 32770.0)[:, None]
    assert float(Median()(updates).update) == 16385
    assert rows.kernels_for(updates) is None


def test_norms_and_cosines_are_accurate_for_eleven_million_parameters(path: str) -> None:
    d = 11_000_000
    updates = torch.full((2, d), 0.1)
    updates[:, 0] = 1000.0
    updates[1, 1:] *= -1
    exact_square = 1000.0**2 + (d - 1) * float(torch.tensor(0.1)) ** 2
    torch.testing.assert_close(norms(updates).double(), torch.full((2,), exact_square**0.5, dtype=torch.float64), rtol=1e-7, atol=0)
    opposite = (1000.0**2 - (d - 1) * float(torch.tensor(0.1)) ** 2) / exact_square
    torch.testing.assert_close(cosines(updates, updates[0]).double(), torch.tensor([1.0, opposite]).double(), rtol=1e-6, atol=0)
    close(FLTrust()(updates[:1], updates[0]).update, updates[0])


def test_norms_of_broken_rows_say_so(path: str) -> None:
    rows = torch.tensor([[3.0, 4.0], [NAN, 1.0], [INF, 1.0], [0.0, -0.0]])
    torch.testing.assert_close(norms(rows), torch.tensor([5.0, NAN, INF, 0.0]), equal_nan=True)
    assert torch.equal(cosines(rows, rows[0]), torch.tensor([1.0, 0.0, 0.0, 0.0]))


def test_krum_scores_of_a_batch_are_those_of_its_members() -> None:
    batch = torch.stack([sq_distances(draw(8, 6, seed=seed)[0]) for seed in range(6)]).view(2, 3, 8, 8)
    usable = torch.rand(2, 3, 8, generator=torch.Generator().manual_seed(0)) > 0.2
    together, masked = krum_scores(batch, 2), krum_scores(batch, 2, usable)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(together[i, j], krum_scores(batch[i, j], 2))
            torch.testing.assert_close(masked[i, j], krum_scores(batch[i, j], 2, usable[i, j]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_rule
@every_dtype
def test_every_rule_can_be_captured_in_a_cuda_graph(rule: Rule, dtype: torch.dtype) -> None:
    updates, root_update, sizes = (tensor.cuda() for tensor in draw(20, 300, dtype))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        rule(updates, root_update, sizes)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = rule(updates, root_update, sizes)
    fresh, root, _ = draw(20, 300, dtype, seed=1)
    fresh[3, 5] = NAN  # another number of usable rows than when captured
    updates.copy_(fresh)
    root_update.copy_(root)
    graph.replay()
    close(captured.update.cpu(), rule(fresh, root, sizes.cpu()).update)


def refused(text: str) -> "pytest.RaisesExc[InputError]":
    return pytest.raises(InputError, match=f"^{text}$")


def test_every_mistake_has_its_message() -> None:
    updates, root_update, sizes = draw(100, 4)
    with refused("Krum cannot tolerate 99 of 100: it needs at least 3 more clients than it tolerates"):
        Krum(99)(updates)
    with refused("Krum cannot tolerate 98 of 100: it needs at least 3 more clients than it tolerates"):
        krum_scores(sq_distances(updates), 98)
    with refused("Krum cannot tolerate -1 clients: give 0 or more"):
        Krum(-1)
    with refused("a trimmed mean cannot trim 50 from each side of 100: it needs at least 101 clients"):
        TrimmedMean(50)(updates)
    with refused("a trimmed mean cannot trim -1 values: give 0 or more"):
        TrimmedMean(-1)
    for rule in EVERY_TRUSTING_RULE:
        with refused(f"{type(rule).__name__} needs a root update and got none"):
            rule(updates)
    for rule in EVERY_RULE:
        with refused("there are no updates: a rule needs at least one"):
            rule(updates[:0], root_update)
        with refused(r"updates must be a matrix with one row per client, not of shape \(4,\)"):
            rule(updates[0], root_update)
        with refused(r"updates must be a matrix with one row per client, not of shape \(100, 0\)"):
            rule(updates[:, :0], root_update)
        with refused("updates must be float32 or float64, not torch.float16"):
            rule(updates.half(), root_update)
        with refused("updates must be a torch tensor with one row per client, not a ndarray"):
            rule(cast(Tensor, updates.numpy()), root_update)
        with refused(r"the root update must have the shape \(4,\), not \(3,\)"):
            rule(updates, root_update[:3])
        with refused("the root update must be torch.float32 on cpu, not torch.float64 on cpu"):
            rule(updates, root_update.double())
        with refused(r"sizes must hold one number for each of the 100 clients, not be of shape \(99,\)"):
            rule(updates, root_update, sizes[1:])


@pytest.mark.parametrize("rule", [FedAvg(), FLTrust(), Median(), TrimmedMean(2)], ids=repr)
def test_torch_func_sees_through(rule: Rule) -> None:
    """In float32 too, where whole rows go through kernels of ours: these cannot take what stands for values."""
    several, root_update = torch.randn(3, 9, 20, generator=torch.Generator().manual_seed(0)), torch.ones(20)

    def updated(updates: Tensor) -> Tensor:
        return rule.step(Received(updates, root_update.to(updates.dtype)), ())[0].update

    torch.testing.assert_close(torch.vmap(updated)(several), torch.stack([updated(each) for each in several]))
    exact = several[0].double().requires_grad_()
    updated(exact).square().sum().backward()
    assert exact.grad is not None
    slope = torch.func.grad(lambda updates: updated(updates).square().sum())(several[0])
    torch.testing.assert_close(slope.double(), exact.grad, rtol=1e-4, atol=1e-6)
    assert slope.any()
