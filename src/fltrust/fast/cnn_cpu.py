"""The gradient of the paper's CNN on one core of a CPU, for images of one channel.

b examples; images (b, H, W); after the first pooling (b, P, Q, 32), 30 channels and two of zeros; after the second (b, 50 R S).

Of each four values that a pooling sees, one goes on, and ReLU drops many of these. So three quarters or more of what flows back to a
convolution's outputs is 0. The kernels here skip it: backward, a convolution costs less than a quarter of its dense matrix products.
The second convolution forward and the linear layers are dense, from torch.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import conv2d

from fltrust.fast.kernels import compiled
from fltrust.models import Model

Floats = NDArray[np.float32]
Places = NDArray[np.uint8]  # which of four values a pooling took: 2 * row + column

_PAD = np.uint64(32)  # channels of the first convolution with those of zeros, so that vectors are full
_SPAN = np.uint64(96)  # values under one row of the second convolution's kernel
_WIDE = 64  # channels of the second convolution, 50, with those that make it fast
_CHUNK = 16  # examples that it takes at the same time: larger outputs go back to the system after each, and new pages are slow
_BATCH = 32  # examples that go through the network at the same time


@compiled
def _first_layer(images: Floats, taps: Floats, bias: Floats, pooled: Floats, place: Places) -> None:
    """Convolution (taps (9, 32)), pooling and ReLU."""
    a, b, c, d, e, f, g, h, i = taps[0], taps[1], taps[2], taps[3], taps[4], taps[5], taps[6], taps[7], taps[8]
    for example in range(len(pooled)):
        image = images[example]
        for y in range(pooled.shape[1]):
            p, q, r, s = image[2 * y], image[2 * y + 1], image[2 * y + 2], image[2 * y + 3]
            for x in range(pooled.shape[2]):
                k = 2 * x
                p0, p1, p2, p3 = p[k], p[k + 1], p[k + 2], p[k + 3]
                q0, q1, q2, q3 = q[k], q[k + 1], q[k + 2], q[k + 3]
                r0, r1, r2, r3 = r[k], r[k + 1], r[k + 2], r[k + 3]
                s0, s1, s2, s3 = s[k], s[k + 1], s[k + 2], s[k + 3]
                into, where = pooled[example, y, x], place[example, y, x]
                for n in range(32):
                    an, bn, cn, dn, en, fn, gn, hn, jn = a[n], b[n], c[n], d[n], e[n], f[n], g[n], h[n], i[n]
                    one = p0 * an + p1 * bn + p2 * cn + q0 * dn + q1 * en + q2 * fn + r0 * gn + r1 * hn + r2 * jn
                    two = p1 * an + p2 * bn + p3 * cn + q1 * dn + q2 * en + q3 * fn + r1 * gn + r2 * hn + r3 * jn
                    three = q0 * an + q1 * bn + q2 * cn + r0 * dn + r1 * en + r2 * fn + s0 * gn + s1 * hn + s2 * jn
                    four = q1 * an + q2 * bn + q3 * cn + r1 * dn + r2 * en + r3 * fn + s1 * gn + s2 * hn + s3 * jn
                    best, at = one, np.uint8(0)
                    at = np.uint8(1) if two > best or two != two else at
                    best = two if two > best or two != two else best
                    at = np.uint8(2) if three > best or three != three else at
                    best = three if three > best or three != three else best
                    at = np.uint8(3) if four > best or four != four else at
                    best = four if four > best or four != four else best
                    best += bias[n]
                    into[n] = np.float32(0) if best <= 0 else best
                    where[n] = at


@compiled
def _second_pooling(outputs: Floats, bias: Floats, features: Floats, place: Places) -> None:
    """Pooling and ReLU of outputs (b, 2 R, 2 S, 64); features channel by channel, as torch has them."""
    rows, columns, channels = place.shape[1], place.shape[2], place.shape[3]
    best = np.empty(channels, np.float32)
    for example in range(len(features)):
        for y in range(rows):
            for x in range(columns):
                where = place[example, y, x]
                a, b = outputs[example, 2 * y, 2 * x], outputs[example, 2 * y, 2 * x + 1]
                c, d = outputs[example, 2 * y + 1, 2 * x], outputs[example, 2 * y + 1, 2 * x + 1]
                for n in range(channels):
                    value, at = a[n], np.uint8(0)
                    at = np.uint8(1) if b[n] > value or b[n] != b[n] else at
                    value = b[n] if b[n] > value or b[n] != b[n] else value
                    at = np.uint8(2) if c[n] > value or c[n] != c[n] else at
                    value = c[n] if c[n] > value or c[n] != c[n] else value
                    at = np.uint8(3) if d[n] > value or d[n] != d[n] else at
                    value = d[n] if d[n] > value or d[n] != d[n] else value
                    value += bias[n]
                    best[n] = np.float32(0) if value <= 0 else value
                    where[n] = at
                for n in range(channels):
                    features[example, (n * rows + y) * columns + x] = best[n]


@compiled
def _second_back(
    features: Floats, errors: Floats, place: Places, pooled: Floats, weights: Floats, width: int, inputs: Floats, taps: Floats, bias: Floats
) -> None:
    """The errors of the second convolution's inputs (b * P * Q * 32), from weights (50 * 3 * 96); adds to the gradients of taps and bias.

    Each output that went on gives its error times what was under the kernel to the taps, and its error times the weights to what was
    under the kernel. Channel by channel, so that an example and a channel's weights stay in the first cache.
    Unsigned places, and no views or functions: numba checks the one, counts the other, and calls take longer than their 96 sums.
    """
    examples, rows, columns, channels = place.shape
    across, size = np.uint64(width * _PAD), np.uint64(pooled.size // examples)
    start, factor = np.zeros(rows * columns + 4, np.uint64), np.zeros(rows * columns + 4, np.float32)
    inputs[:] = 0
    for example in range(examples):
        for channel in range(channels):
            count, error = 0, np.float32(0)
            for y in range(rows):
                for x in range(columns):
                    k = (channel * rows + y) * columns + x
                    at = place[example, y, x, channel]
                    start[count] = np.uint64((2 * y + (at >> 1)) * width + 2 * x + (at & 1)) * _PAD + np.uint64(example) * size
                    factor[count] = errors[example, k]
                    if features[example, k] != 0:
                        error += errors[example, k]
                        count += 1
            bias[channel] += error
            for k in range(count, count + 4):  # fill up the last four
                start[k], factor[k] = start[0], 0
            begin = np.uint64(channel * 3) * _SPAN
            for first in range(0, count, 4):  # four at a time read and write the taps less often
                p, q, r, s = factor[first], factor[first + 1], factor[first + 2], factor[first + 3]
                for dy in range(np.uint64(3)):
                    into, k = begin + dy * _SPAN, dy * across
                    a, b, c, d = start[first] + k, start[first + 1] + k, start[first + 2] + k, start[first + 3] + k
                    for k in range(_SPAN):
                        taps[into + k] += (p * pooled[a + k] + q * pooled[b + k]) + (r * pooled[c + k] + s * pooled[d + k])
            for one in range(count):
                p = factor[one]
                for dy in range(np.uint64(3)):
                    a, into = begin + dy * _SPAN, start[one] + dy * across
                    for k in range(_SPAN):
                        inputs[into + k] += p * weights[a + k]


@compiled
def _first_taps_back(pooled: Floats, errors: Floats, place: Places, images: Floats, taps: Floats, bias: Floats) -> None:
    """Adds to the gradients of taps (9, 32) and bias."""
    a, b, c, d, e, f, g, h, i = taps[0], taps[1], taps[2], taps[3], taps[4], taps[5], taps[6], taps[7], taps[8]
    for example in range(len(pooled)):
        image = images[example]
        for y in range(pooled.shape[1]):
            p, q, r, s = image[2 * y], image[2 * y + 1], image[2 * y + 2], image[2 * y + 3]
            for x in range(pooled.shape[2]):
                k = 2 * x
                p0, p1, p2, p3 = p[k], p[k + 1], p[k + 2], p[k + 3]
                q0, q1, q2, q3 = q[k], q[k + 1], q[k + 2], q[k + 3]
                r0, r1, r2, r3 = r[k], r[k + 1], r[k + 2], r[k + 3]
                s0, s1, s2, s3 = s[k], s[k + 1], s[k + 2], s[k + 3]
                value, error, where = pooled[example, y, x], errors[example, y, x], place[example, y, x]
                for n in range(32):
                    wrong = error[n] if value[n] != 0 else np.float32(0)
                    at = where[n]
                    one = wrong if at == 0 else np.float32(0)
                    two = wrong if at == 1 else np.float32(0)
                    three = wrong if at == 2 else np.float32(0)
                    four = wrong if at == 3 else np.float32(0)
                    bias[n] += wrong
                    a[n] += one * p0 + two * p1 + three * q0 + four * q1
                    b[n] += one * p1 + two * p2 + three * q1 + four * q2
                    c[n] += one * p2 + two * p3 + three * q2 + four * q3
                    d[n] += one * q0 + two * q1 + three * r0 + four * r1
                    e[n] += one * q1 + two * q2 + three * r1 + four * r2
                    f[n] += one * q2 + two * q3 + three * r2 + four * r3
                    g[n] += one * r0 + two * r1 + three * s0 + four * s1
                    h[n] += one * r1 + two * r2 + three * s1 + four * s2
                    i[n] += one * r2 + two * r3 + three * s2 + four * s3


class CNNGradient:
    """The gradient of a loss of the CNN's outputs. It keeps its buffers from call to call: use one for each thread.

    The precision "bfloat16" is that of the second convolution forward. All else is float32.
    """

    def __init__(self, height: int, width: int, d: int, precision: str) -> None:
        rows, columns = ((height - 2) // 2 - 2) // 2, ((width - 2) // 2 - 2) // 2  # after the second pooling
        self.width = 2 * columns + 2
        self.pooled, self.errors = (torch.empty(_BATCH, 2 * rows + 2, self.width, 32) for _ in range(2))
        self.place = torch.empty(self.pooled.shape, dtype=torch.uint8)
        self.second_place = torch.empty(_BATCH, rows, columns, 50, dtype=torch.uint8)
        self.features = torch.empty(_BATCH, 50 * rows * columns)
        self.first_taps, self.first_bias, self.second_taps = torch.zeros(9, 32), torch.zeros(32), torch.zeros(_WIDE, 3, 3, 32)
        self.gradient, self.precision = torch.empty(d), precision

    def __call__(self, model: Model, weights: Tensor, images: Tensor, error_of: Callable[[slice, Tensor], Tensor]) -> Tensor:
        """(d,), valid until the next call. error_of(examples, outputs) is the gradient of the loss of these examples."""
        parts, gradients = model.split(weights), model.split(self.gradient.zero_())
        self.first_taps[:, :30] = parts[0].view(30, 9).T
        self.first_bias[:30] = parts[1]
        self.second_taps.view(_WIDE, 9, 32).numpy()[:50, :, :30] = parts[2].view(50, 30, 9).mT.numpy()  # faster than torch's copy
        for first in range(0, len(images), _BATCH):
            examples = slice(first, min(first + _BATCH, len(images)))
            pixels = images[examples, 0].contiguous().numpy()
            outputs, hidden = self._forward(parts, pixels)
            self._backward(parts, gradients, pixels, hidden, error_of(examples, outputs))
        return self.gradient

    def _forward(self, parts: list[Tensor], pixels: Floats) -> tuple[Tensor, Tensor]:
        """The outputs (b, classes) and what they follow from in the hidden layer (b, 100)."""
        count, pooled = len(pixels), self.pooled[: len(pixels)]
        _first_layer(pixels, self.first_taps.numpy(), self.first_bias.numpy(), pooled.numpy(), self.place.numpy())
        taps = self.second_taps.permute(0, 3, 1, 2)
        for start in range(0, count, _CHUNK):
            chunk = slice(start, min(start + _CHUNK, count))
            seen = pooled[chunk].permute(0, 3, 1, 2)
            if self.precision == "bfloat16":
                outputs = conv2d(seen.bfloat16(), taps.bfloat16()).float()
            else:  # in halves: one long sum rounds more. A product of patches takes twice as long where MKL leaves AVX-512 unused
                outputs = conv2d(seen[:, :16], taps[:, :16]).add_(conv2d(seen[:, 16:], taps[:, 16:]))
            outputs = outputs.permute(0, 2, 3, 1).contiguous()  # (b, 2 R, 2 S, 64), as oneDNN left it
            _second_pooling(outputs.numpy(), parts[3].numpy(), self.features[chunk].numpy(), self.second_place[chunk].numpy())
        hidden = torch.addmm(parts[5], self.features[:count], parts[4].T).relu_()
        return torch.addmm(parts[7], hidden, parts[6].T), hidden

    def _backward(self, parts: list[Tensor], gradients: list[Tensor], pixels: Floats, hidden: Tensor, error: Tensor) -> None:
        count = len(pixels)
        features, place = self.features[:count], self.second_place[:count].numpy()
        pooled, errors = self.pooled[:count], self.errors[:count]
        gradients[6].addmm_(error.T, hidden)
        gradients[7].add_(error.sum(0))
        error = torch.where(hidden == 0, 0, error @ parts[6])
        gradients[4].addmm_(error.T, features)
        gradients[5].add_(error.sum(0))

        error = error @ parts[4]
        taps = torch.zeros(50, 9, 32)  # of torch, whose memory begins at a cache line
        sent = features.numpy(), error.numpy(), place, pooled.view(-1).numpy(), self.second_taps.view(-1).numpy()
        _second_back(*sent, self.width, errors.view(-1).numpy(), taps.view(-1).numpy(), gradients[3].numpy())
        gradients[2].view(50, 30, 9).numpy()[:] += taps[..., :30].mT.numpy()

        first_taps, bias = np.zeros((9, 32), np.float32), np.zeros(32, np.float32)
        _first_taps_back(pooled.numpy(), errors.numpy(), self.place.numpy(), pixels, first_taps, bias)
        gradients[0].view(30, 9).add_(torch.from_numpy(first_taps[:, :30]).T)
        gradients[1].add_(torch.from_numpy(bias[:30]))
