"""Local training of all clients at once: Algorithm 1 (ModelUpdate) for n clients side by side.

n clients (the root set is the case n = 1), R local steps, b examples per batch, d parameters.

There are several ways to compute the same; each is registered with what it can do, and the first that fits is taken.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from fltrust import threads
from fltrust.errors import InputError
from fltrust.models import CNN, PAPER_CNN, LogisticRegression, Model, flatten, seed_dropout, trainable
from fltrust.objectives import CrossEntropy, Objective
from fltrust.training.precision import check_precision


class Job(NamedTuple):
    """What is to be computed: R steps of SGD for each of n clients."""

    model: Model
    weights: Tensor  # (d,)
    inputs: Tensor  # (n, R, b, ...)
    targets: Tensor  # (n, R, b, ...)
    loss_weights: Tensor  # (n, R, b)
    lr: float
    precision: str
    objective: Objective
    seeds: Tensor | None = None  # (n, R, b) of dropout

    @property
    def on_cpu(self) -> bool:
        return self.weights.device.type == "cpu"

    @property
    def single_step(self) -> bool:
        return self.inputs.shape[1] == 1

    @property
    def one_class_each(self) -> bool:
        return self.objective == CrossEntropy() and self.targets.dim() == 3


Way = Callable[[Job], Tensor]
_WAYS: list[tuple[Callable[[Job], bool], Way]] = []


def way(fits: Callable[[Job], bool]) -> Callable[[Way], Way]:
    """Registers a way to compute the clients' updates, for the jobs that it fits; those registered first are tried first."""

    def add(compute: Way) -> Way:
        _WAYS.append((fits, compute))
        return compute

    return add


def local_updates(
    model: Model,
    weights: Tensor,
    inputs: Tensor,
    targets: Tensor,
    loss_weights: Tensor,
    lr: float,
    precision: str = "float32",
    objective: Objective = CrossEntropy(),  # noqa: B008
) -> Tensor:
    """(n, d): what each client's weights changed by in R steps of SGD from `weights` (d,).

    inputs (n, R, b, ...), targets (n, R, b, ...); loss_weights (n, R, b): a batch's loss is the sum of loss_weights * loss.
    precision is how a GPU multiplies in the one pass that all clients share: "float32", "tf32" or "float16"; or how a CPU does:
    "float32" or "bfloat16". Logistic regression in closed form stays in float32.
    """
    if precision == "bfloat16":
        check_precision(precision, weights.device.type)
    job = Job(model, weights, inputs, targets, loss_weights, lr, precision, objective, model.seeds)
    return next(compute for fits, compute in _WAYS if fits(job))(job)


def _fits_closed_form(job: Job) -> bool:
    return job.on_cpu and job.single_step and job.one_class_each and job.model.is_as_made(LogisticRegression, job.inputs.shape[3:])


@way(_fits_closed_form)
def _in_closed_form(job: Job) -> Tensor:
    """(n, d) for logistic regression, whose gradient has a closed form: sum_j a_j (softmax(W x_j + b) - y_j) x_j^T.

    Products of one client at a time, so that its bits depend neither on the others nor on the number of cores.
    """
    features, labels, scale = job.inputs[:, 0].flatten(2), job.targets[:, 0], -job.lr * job.loss_weights[:, 0]  # (n, b, F), (n, b), (n, b)
    matrix, bias = job.model.split(job.weights)  # (M, F), (M,)
    logits = torch.bmm(features, matrix.T.expand(len(features), -1, -1)) + bias  # (n, b, M)
    wrong = logits.softmax(2)
    wrong.scatter_add_(2, labels[..., None], wrong.new_tensor(-1.0).expand(*labels.shape, 1))
    wrong *= scale[..., None]
    return torch.cat((torch.bmm(wrong.transpose(1, 2), features).flatten(1), wrong.sum(1)), 1)


Gradient = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]  # weights, inputs, targets, loss weights, seeds -> (d,)


@cache
def _cnn_kernels() -> ModuleType | None:
    try:
        from fltrust.fast import cnn_cpu
    except (ImportError, RuntimeError):  # no numba, or no place where it could keep compiled code
        return None
    return cnn_cpu


def _fits_cnn_kernels(job: Job) -> bool:
    grey = job.inputs.dim() == 6 and job.inputs.shape[3] == 1 and job.inputs.dtype == job.weights.dtype == torch.float32
    return job.on_cpu and grey and job.model.is_as_made(CNN, job.inputs.shape[3:]) and _cnn_kernels() is not None


@way(_fits_cnn_kernels)
def _cnn_in_threads(job: Job) -> Tensor:
    """The paper's CNN in kernels that skip what its poolings drop."""
    from fltrust.fast.cnn_cpu import CNNGradient

    model, objective, (height, width) = job.model, job.objective, job.inputs.shape[4:]

    def gradient() -> Gradient:
        compute = CNNGradient(height, width, model.d, job.precision)

        def of(weights: Tensor, inputs: Tensor, targets: Tensor, loss_weights: Tensor, seeds: Tensor | None) -> Tensor:
            def error_of(examples: slice, outputs: Tensor) -> Tensor:
                outputs.requires_grad_()
                with torch.enable_grad():
                    changeable = outputs.clone()  # a user's own loss may change them in place, as it may a network's outputs
                    loss = (objective.loss(changeable, targets[examples]) * loss_weights[examples]).sum()
                return torch.autograd.grad(loss, outputs)[0]

            return compute(model, weights, inputs, error_of)

        return of

    return _in_threads(job, gradient)


@way(lambda job: job.on_cpu)
def _threads_over_clients(job: Job) -> Tensor:
    def gradient() -> Gradient:
        module = copy.deepcopy(job.model.module).to(job.weights.dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def of(weights: Tensor, inputs: Tensor, targets: Tensor, loss_weights: Tensor, seeds: Tensor | None) -> Tensor:
            with torch.no_grad():
                for parameter, part in zip(trainable(module), job.model.split(weights), strict=True):
                    parameter.copy_(part)
            seed_dropout(module, seeds)
            if inputs.dim() == 4:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16, enabled=job.precision == "bfloat16"):
                outputs = module(inputs).to(weights.dtype)
            loss = (job.objective.loss(outputs, targets) * loss_weights).sum()
            return flatten(torch.autograd.grad(loss, trainable(module), allow_unused=True, materialize_grads=True))

        return of

    return _in_threads(job, gradient)


def _in_threads(job: Job, gradient: Callable[[], Gradient]) -> Tensor:
    """(n, d): the clients spread over the cores, a client at a time on each. Each thread has a gradient of its own."""
    updates = torch.empty(len(job.inputs), job.model.d, dtype=job.weights.dtype)

    def train(clients: Sequence[int]) -> None:
        gradient_of = gradient()
        for i in clients:
            update = updates[i].zero_()
            for step in range(job.inputs.shape[1]):
                used = job.loss_weights[i, step] != 0  # batch norm must not see what only fills up a batch
                if not used.any():  # a client without examples, or one that has finished its epochs
                    continue
                every = slice(None) if used.all() else used
                inputs, targets, loss_weights = (part[i, step][every] for part in (job.inputs, job.targets, job.loss_weights))
                seeds = None if job.seeds is None else job.seeds[i, step][every]
                update.sub_(gradient_of(job.weights + update, inputs, targets, loss_weights, seeds), alpha=job.lr)

    workers = min(threads.cores(), len(updates))
    threads.each(train, [range(first, len(updates), workers) for first in range(workers)])
    return updates


# On the GPU, a single step starts from the same weights for all: one pass over all examples, only the weights' gradients per client.


def _fits_shared_pass(job: Job) -> bool:
    """Whether the shared pass knows all of the network's layers, tried once on one client's batch."""
    if not (job.single_step and job.one_class_each):
        return False
    model = job.model
    if model.shares_pass is None and len(model.names) < len(list(model.module.parameters())):
        model.shares_pass = False  # some are frozen
    if model.shares_pass is None:
        try:
            first = {name: getattr(job, name)[:1] for name in ("inputs", "targets", "loss_weights")}
            _one_shared_pass(job._replace(**first, seeds=None))
            model.shares_pass = True
        except (ImportError, InputError):  # no Triton, or a layer that it does not know
            model.shares_pass = False
        except Exception as problem:
            if not type(problem).__module__.startswith("triton."):
                raise
            said = str(problem).partition("\n")[0]
            warnings.warn(f"this GPU cannot run the fast kernels, so training is slower: {said}", stacklevel=2)
            model.shares_pass = False
    return model.shares_pass


@way(_fits_shared_pass)
def _one_shared_pass(job: Job) -> Tensor:
    """(n, d): the clients' gradients of the weighted loss."""
    from fltrust.fast.cnn_gradients import cnn_gradients
    from fltrust.fast.shared_gradients import shared_gradients

    model, images, labels = job.model, job.inputs[:, 0], job.targets[:, 0]
    scale = -job.lr * job.loss_weights[:, 0]
    if images.shape[2:] == (1, 28, 28) and model.d == PAPER_CNN and model.is_as_made(CNN, (1, 28, 28)):
        return cnn_gradients(job.weights, images, labels, scale, job.precision)
    largest = scale.abs().amax().clamp(min=1e-30)
    scale = scale / largest  # so that float16 holds what flows back, however small the learning rate
    seed_dropout(model.module, None if job.seeds is None else job.seeds[:, 0].flatten())
    gradients = shared_gradients(model.module, job.weights, images, labels, scale, job.precision).mul_(largest)
    seed_dropout(model.module, None)
    return gradients


# Several steps on the GPU: each client's own weights, as one batched computation.


@way(lambda job: True)
def _batched_clients(job: Job) -> Tensor:
    def loss(local: Tensor, inputs: Tensor, targets: Tensor, loss_weights: Tensor) -> Tensor:
        return (job.objective.loss(job.model.outputs(local, inputs), targets) * loss_weights).sum()

    def train(inputs: Tensor, targets: Tensor, loss_weights: Tensor, seeds: Tensor | None) -> Tensor:
        update = torch.zeros_like(job.weights)
        for step in range(inputs.shape[0]):
            seed_dropout(job.model.module, None if seeds is None else seeds[step])
            update = update - job.lr * grad(loss)(job.weights + update, inputs[step], targets[step], loss_weights[step])
        return update

    each = (0, 0, 0, None if job.seeds is None else 0)
    updates: Tensor = vmap(train, each)(job.inputs, job.targets, job.loss_weights, job.seeds)
    seed_dropout(job.model.module, None)
    return updates
