"""One round on one CUDA device, kernel by kernel: errors against float64, then times of CUDA graph replays (median, 10 % to 90 %).

    PYTHONPATH=src python bench/gpu_kernels.py [cnn] [resnet20] [rules]

n = 100 clients, b = 32 examples each (64 for ResNet-20), a root set of 100; images are random, weights are the paper's initial ones.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from fltrust.fast.cnn_gradients import cnn_gradients
from fltrust.fast.gpu import gram
from fltrust.fast.select import ranked_mean
from fltrust.fast.shared_gradients import PRECISIONS, shared_gradients
from fltrust.models import Model, initialise
from fltrust.registry import MODELS

N, ROOT, LR = 100, 100, 0.1


def row(name: str, text: str) -> None:
    print(f"{name:<58} {text}", flush=True)


def replay(work: Callable[[], object]) -> Callable[[], None]:
    """The work as a CUDA graph; run three times before, on a side stream, so that nothing is compiled while it is recorded."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def timed(name: str, work: Callable[[], object], repeats: int = 200) -> None:
    try:
        again = replay(work)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        row(name, "out of memory")
        return
    times = []
    for _ in range(repeats + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        again()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    low, median, high = np.percentile(times[5:], (10, 50, 90))
    row(name, f"{median:8.3f} ms  ({low:.3f} to {high:.3f}, {repeats} replays)")


def kernels(work: Callable[[], object], repeats: int = 10) -> None:
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as events:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    spent = sorted(((event.self_device_time_total, event.count, event.key) for event in events.key_averages()), reverse=True)
    for total, count, name in spent[:14]:
        row("    " + name[:52], f"{total / repeats / 1000:8.3f} ms  ({count / repeats:.0f} launches)")


def example_batch(shape: tuple[int, ...], n: int, b: int) -> tuple[Tensor, Tensor, Tensor]:
    images = torch.rand(n, b, *shape, device="cuda") * (torch.rand(n, b, *shape, device="cuda") < 0.3)
    return images, torch.randint(0, 10, (n, b), device="cuda"), torch.rand(n, b, device="cuda") / b


def loss(model: Model, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    return (cross_entropy(model.outputs(weights, images), labels, reduction="none") * share).sum()


def loop_gradients(model: Model, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    """The oracle: plain autograd in float64, client by client."""
    rows = []
    for batch in zip(images.double(), labels, share.double(), strict=True):
        leaf = weights.double().requires_grad_()
        rows.append(torch.autograd.grad(loss(model, leaf, *batch), leaf)[0])
    return torch.stack(rows)


def vmap_gradients(model: Model, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor, chunk: int) -> Tensor:
    per_client: Tensor = vmap(grad(loss, argnums=1), in_dims=(None, None, 0, 0, 0), chunk_size=chunk)(model, weights, images, labels, share)
    return per_client


def fltrust(updates: Tensor, root_update: Tensor) -> Tensor:
    norms, root_norm = torch.linalg.vector_norm(updates, dim=1), torch.linalg.vector_norm(root_update)
    trust = torch.relu(updates @ root_update / (norms * root_norm))
    return (trust * root_norm / norms / trust.sum()) @ updates


def errors(name: str, rows: Tensor, reference: Tensor) -> None:
    relative = (rows.double() - reference).norm(dim=1) / reference.norm(dim=1)
    row(name, f"relative error per client: median {relative.median():.1e}, largest {relative.max():.1e}")


def make(name: str, shape: tuple[int, ...]) -> tuple[Model, Tensor]:
    model = Model(initialise(MODELS[name](shape, 10), np.random.default_rng(0)))
    model.module.cuda()
    return model, model.initial_weights.cuda()


def cnn() -> None:
    model, weights = make("cnn", (1, 28, 28))
    batch = example_batch((1, 28, 28), N, 32)
    root = example_batch((1, 28, 28), 1, ROOT)
    reference, root_reference = loop_gradients(model, weights, *batch), loop_gradients(model, weights, *root)
    for precision in PRECISIONS:
        begin = time.perf_counter()
        rows = cnn_gradients(weights, *batch, precision)
        torch.cuda.synchronize()
        row(f"CNN {precision}: first call", f"{time.perf_counter() - begin:8.1f} s with compilation")
        errors(f"CNN {precision}: clients", rows, reference)
        errors(f"CNN {precision}: root set", cnn_gradients(weights, *root, precision), root_reference)
    errors("CNN float16, shared_gradients", shared_gradients(model.module, weights, *batch, "float16"), reference)

    pixels = torch.rand(60000, 1, 28, 28, device="cuda")
    classes = torch.randint(0, 10, (60000,), device="cuda")
    index = torch.randint(0, 60000, (N, 32), device="cuda")
    root_index = torch.randint(0, 60000, (1, ROOT), device="cuda")
    share, root_share = torch.full((N, 32), -LR / 32, device="cuda"), torch.full((1, ROOT), -LR / ROOT, device="cuda")
    missing = -ROOT % 32
    all_index = torch.cat([index.flatten(), root_index.flatten(), index.new_zeros(missing)]).view(-1, 32)
    all_share = torch.cat([share.flatten(), root_share.flatten(), share.new_zeros(missing)]).view(-1, 32)
    side = torch.cuda.Stream()

    for precision in PRECISIONS:

        def clients(precision: str = precision) -> Tensor:
            return cnn_gradients(weights, pixels[index], classes[index], share, precision)

        def root_update(precision: str = precision) -> Tensor:
            return cnn_gradients(weights, pixels[root_index], classes[root_index], root_share, precision)[0]

        def one_after_the_other(precision: str = precision) -> None:
            weights.add_(fltrust(clients(precision), root_update(precision)), alpha=0.0)

        def side_by_side(precision: str = precision) -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                direction = root_update(precision)
            updates = clients(precision)
            torch.cuda.current_stream().wait_stream(side)
            weights.add_(fltrust(updates, direction), alpha=0.0)

        def together(precision: str = precision) -> None:
            rows = cnn_gradients(weights, pixels[all_index], classes[all_index], all_share, precision)
            weights.add_(fltrust(rows[:N], rows[N:].sum(0)), alpha=0.0)

        timed(
            f"CNN {precision}: all clients' gradients, images at hand",
            lambda precision=precision: cnn_gradients(weights, *batch, precision),
        )
        timed(f"CNN {precision}: with the gathering of images", clients)
        timed(f"CNN {precision}: root update alone", root_update)
        timed(f"CNN {precision}: round, root set after the clients", one_after_the_other)
        timed(f"CNN {precision}: round, root set on a side stream", side_by_side)
        timed(f"CNN {precision}: round, root set as four more clients", together)
        kernels(together)
    timed("CNN: shared_gradients, float16", lambda: shared_gradients(model.module, weights, *batch, "float16"))
    timed("CNN: vmap(grad), TF32 in convolutions", lambda: vmap_gradients(model, weights, *batch, chunk=N), 50)


def rules() -> None:
    for n in (100, 1000):
        updates, usable = torch.randn(n, 139960, device="cuda"), torch.rand(n, device="cuda") < 0.9
        root_update = torch.randn(139960, device="cuda")
        for trim in (None, n // 5):
            ranked = updates[usable].double().sort(0).values
            cut = (len(ranked) - 1) // 2 if trim is None else trim
            difference = ranked_mean(updates, usable, trim).double() - ranked[cut : len(ranked) - cut].mean(0)
            row(f"ranked_mean, trim {trim}, {n} clients", f"largest error {difference.abs().max():.1e}")
            timed(
                f"ranked_mean, trim {trim}, {n} clients",
                lambda updates=updates, usable=usable, trim=trim: ranked_mean(updates, usable, trim),
            )
        timed(f"torch.sort over {n} clients", lambda updates=updates: updates.sort(0), 30)
        timed(f"FLTrust in torch, {n} clients", lambda updates=updates, root=root_update: fltrust(updates, root))
        exact = updates.double() @ updates.double().T
        length = exact.diagonal().sqrt()
        wrong = (gram(updates) - exact).abs() / length[:, None] / length
        row(
            f"gram, {n} clients",
            f"largest error {wrong.max():.1e} of the product of two lengths; on the diagonal {wrong.diagonal().max():.1e}",
        )
        timed(f"gram, {n} clients", lambda updates=updates: gram(updates))
        timed(f"torch's product in float32, {n} clients", lambda updates=updates: updates @ updates.t())
        timed(f"one read of the matrix (sum), {n} clients", lambda updates=updates: updates.sum())


def resnet20() -> None:
    model, weights = make("resnet20", (3, 32, 32))
    batch = example_batch((3, 32, 32), N, 64)
    few = tuple(part[:4] for part in batch)
    reference = loop_gradients(model, weights, *few)
    for precision in PRECISIONS:
        begin = time.perf_counter()
        rows = shared_gradients(model.module, weights, *batch, precision)
        torch.cuda.synchronize()
        row(f"ResNet-20 {precision}: first call", f"{time.perf_counter() - begin:8.1f} s with compilation")
        errors(f"ResNet-20 {precision}: four clients", rows[:4], reference)
    root = example_batch((3, 32, 32), 1, ROOT)
    for precision in PRECISIONS:
        timed(
            f"ResNet-20 {precision}: all clients' gradients",
            lambda precision=precision: shared_gradients(model.module, weights, *batch, precision),
            20,
        )
        timed(
            f"ResNet-20 {precision}: root update", lambda precision=precision: shared_gradients(model.module, weights, *root, precision), 20
        )
    kernels(lambda: shared_gradients(model.module, weights, *batch, "float16"), 3)
    timed("ResNet-20: vmap(grad), chunks of 25, TF32 in convolutions", lambda: vmap_gradients(model, weights, *batch, chunk=25), 5)


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, n = {N}", flush=True)
    for part in sys.argv[1:] or ("cnn", "rules", "resnet20"):
        {"cnn": cnn, "rules": rules, "resnet20": resnet20}[part]()
