"""A network for token sequences."""

import torch
from torch import Tensor, nn

from fltrust.errors import InputError
from fltrust.registry import MODELS


@MODELS.register("gru", label="GRU", reference="Cho et al., EMNLP 2014")
class GRU(nn.Module):
    """A recurrent network for tokens (k, T): after each token, logits (k, T, M) of the next; 8 numbers per token, 128 hidden ones.

    M is the size of the vocabulary. It is written with plain products, which torch.func.vmap can batch over clients; nn.GRU cannot.
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        if len(shape) != 1:
            raise InputError(f"a network for token sequences cannot take examples of shape {tuple(shape)}")
        self.embedding = nn.Linear(num_classes, 8, bias=False)
        self.into = nn.Linear(8, 3 * 128)  # reset gate, update gate, candidate
        self.again = nn.Linear(128, 3 * 128)
        self.output = nn.Linear(128, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.into(self.embedding.weight.T[tokens])  # (k, T, 3H)
        width = self.again.in_features
        hidden = seen.new_zeros(len(tokens), width)
        after = []
        for step in seen.unbind(1):
            before = self.again(hidden)  # (k, 3H)
            reset, update = (step + before)[:, : 2 * width].sigmoid().chunk(2, 1)
            candidate = (step[:, 2 * width :] + reset * before[:, 2 * width :]).tanh()
            hidden = torch.lerp(candidate, hidden, update)
            after.append(hidden)
        logits: Tensor = self.output(torch.stack(after, 1))
        return logits
