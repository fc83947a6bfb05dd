"""Local training of all clients at once: Algorithm 1 (ModelUpdate) for n clients side by side.

n clients (the root set is the case n = 1), R local steps, b examples per batch, d parameters.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from fltrust import threads
from fltrust.errors import InputError
from fltrust.models import CNN, PAPER_CNN, LogisticRegression, Model, flatten, trainable


def local_updates(
    model: Model, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor, lr: float, precision: str = "float32"
) -> Tensor:
    """(n, d): what each client's weights changed by in R steps of SGD from `weights` (d,).

    images (n, R, b, ...), labels (n, R, b); share (n, R, b): a batch's loss is the sum of share * cross-entropy.
    precision is how a GPU multiplies in the one pass that all clients share: "float32", "tf32" or "float16".
    """
    if weights.device.type == "cpu" and images.shape[1] == 1 and type(model.module) is LogisticRegression and len(model.names) == 2:
        return _in_closed_form(model, weights, images[:, 0], labels[:, 0], -lr * share[:, 0])
    if weights.device.type == "cpu":
        return _threads_over_clients(model, weights, images, labels, share, lr)
    if images.shape[1] == 1 and _can_share(model, weights, images, labels, share, precision):
        return _one_shared_pass(model, weights, images[:, 0], labels[:, 0], -lr * share[:, 0], precision)
    return _batched_clients(model, weights, images, labels, share, lr)


def _loss(logits: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    return (cross_entropy(logits, labels, reduction="none") * share).sum()


def _in_closed_form(model: Model, weights: Tensor, features: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    """(n, d) for logistic regression, whose gradient has a closed form: sum_j share_j (softmax(W x_j + b) - y_j) x_j^T.

    Products of one client at a time, so that its bits depend neither on the others nor on the number of cores.
    """
    features = features.flatten(2)  # (n, b, F)
    matrix, bias = model.split(weights)  # (M, F), (M,)
    logits = torch.bmm(features, matrix.T.expand(len(features), -1, -1)) + bias  # (n, b, M)
    wrong = logits.softmax(2)
    wrong.scatter_add_(2, labels[..., None], wrong.new_tensor(-1.0).expand(*labels.shape, 1))
    wrong *= share[..., None]
    return torch.cat((torch.bmm(wrong.transpose(1, 2), features).flatten(1), wrong.sum(1)), 1)


def _threads_over_clients(model: Model, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor, lr: float) -> Tensor:
    updates = torch.empty(len(images), model.d, dtype=weights.dtype)

    def train(clients: Sequence[int]) -> None:
        module = copy.deepcopy(model.module).to(weights.dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for i in clients:
            update = updates[i].zero_()
            for step in range(images.shape[1]):
                with torch.no_grad():
                    for parameter, part in zip(trainable(module), model.split(weights + update), strict=True):
                        parameter.copy_(part)
                update.sub_(_gradient(module, images[i, step], labels[i, step], share[i, step]), alpha=lr)

    workers = min(threads.cores(), len(images))
    threads.each(train, [range(first, len(images), workers) for first in range(workers)])
    return updates


def _gradient(module: nn.Module, images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
    used = share != 0
    if not used.any():  # a client without examples learns nothing
        return torch.zeros(sum(parameter.numel() for parameter in trainable(module)), dtype=share.dtype)
    if not used.all():  # batch norm must not see what only fills up a batch
        images, labels, share = images[used], labels[used], share[used]
    if images.dim() == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    loss = _loss(module(images), labels, share)
    return flatten(torch.autograd.grad(loss, trainable(module), allow_unused=True, materialize_grads=True))


# On the GPU, a single step starts from the same weights for all: one pass over all examples, only the weights' gradients per client.


def _one_shared_pass(model: Model, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor, precision: str) -> Tensor:
    """(n, d): the clients' gradients of the loss with these shares; images (n, b, ...), labels (n, b), share (n, b)."""
    from fltrust.fast.cnn_gradients import cnn_gradients
    from fltrust.fast.shared_gradients import shared_gradients

    largest = share.abs().amax().clamp(min=1e-30)
    share = share / largest  # so that float16 holds what flows back, however small the learning rate
    if isinstance(model.module, CNN) and model.d == PAPER_CNN and images.shape[2:] == (1, 28, 28):
        return cnn_gradients(weights, images, labels, share, precision).mul_(largest)
    return shared_gradients(model.module, weights, images, labels, share, precision).mul_(largest)


def _can_share(model: Model, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor, precision: str) -> bool:
    """Whether the shared pass knows all of the network's layers, tried once on one client's batch."""
    if model.shares_pass is None and len(model.names) < len(list(model.module.parameters())):
        model.shares_pass = False  # some are frozen
    if model.shares_pass is None:
        try:
            _one_shared_pass(model, weights, images[:1, 0], labels[:1, 0], share[:1, 0], precision)
            model.shares_pass = True
        except (ImportError, InputError):  # no Triton, or a layer that it does not know
            model.shares_pass = False
    return model.shares_pass


# Several steps on the GPU: each client's own weights, as one batched computation.


def _batched_clients(model: Model, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor, lr: float) -> Tensor:
    def loss(local: Tensor, images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        return _loss(model.logits(local, images), labels, share)

    def train(images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        update = torch.zeros_like(weights)
        for step in range(images.shape[0]):
            update = update - lr * grad(loss)(weights + update, images[step], labels[step], share[step])
        return update

    updates: Tensor = vmap(train)(images, labels, share)
    return updates
