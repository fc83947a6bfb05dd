"""What a global model is worth: error on examples, success of a backdoor."""

from typing import NamedTuple

import torch
from torch import Tensor

from fltrust import threads
from fltrust.attacks import Trigger
from fltrust.data import Task


class Measured(NamedTuple):
    train_error: float  # on the clients' examples before any poisoning (at most TRAIN_EXAMPLES of them)
    test_error: float
    success: float | None  # share of triggered test examples, not of the target class, that the model calls the target


TRAIN_EXAMPLES = 10_000  # enough for an error to within half a percent; all 60,000 would cost more than the rounds between
CPU_CHUNK = 50  # images at a time: few, so that their activations stay in the cache
GPU_CHUNK = 5_000  # many, so that all of it is busy


@torch.no_grad()
def measure(task: Task, weights: Tensor, trigger: Trigger | None = None) -> Measured:
    root = torch.from_numpy(task.root).to(task.device)
    predict = task.model.frozen(weights, task.images[root])

    def predicted(chunk: Tensor) -> Tensor:
        with torch.no_grad():  # a thread's own setting
            return predict(chunk).argmax(1)

    def labels_of(images: Tensor) -> Tensor:
        if images.is_cuda:
            return torch.cat([predicted(chunk) for chunk in torch.split(images, GPU_CHUNK)])
        return torch.cat(threads.each(predicted, torch.split(images, CPU_CHUNK)))

    clean = torch.from_numpy(task.clean[:: -(-len(task.clean) // TRAIN_EXAMPLES)]).to(task.device)
    train_error = (labels_of(task.images[clean]) != task.labels[clean]).float().mean()
    test_error = (labels_of(task.test_images) != task.test_labels).float().mean()
    if trigger is None:
        return Measured(train_error.item(), test_error.item(), None)
    others = task.test_images[task.test_labels != trigger.target]
    success = (labels_of(trigger.stamp(others)) == trigger.target).float().mean()
    return Measured(train_error.item(), test_error.item(), success.item())
