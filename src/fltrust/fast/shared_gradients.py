"""Every client's gradient of any network of convolutions, linear layers and batch norm on a CUDA device, in one shared pass.

Import this file only where the tensors are on such a device: it needs Triton.

All clients start a local step from the same weights, so one forward and one backward pass serve the examples of all of them, as in any
large batch. Two things are per client: the gradients of the weights, and the statistics that batch norm takes from a batch. Calls of
conv2d, linear and batch_norm are intercepted for them, so the network needs no change.

n clients, b examples each, d parameters; images are stored channels last.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fltrust.errors import InputError
from fltrust.fast.batch_norm import channel_sums, combine, normalise, per_channel, statistics_back_kernel, statistics_kernel
from fltrust.fast.convolution import convolution_sums, convolve
from fltrust.models import norm_relu, shortcut

_EXACT = "bf16x6" if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 6) else "tf32x3"  # older ones lack the first
PRECISIONS = {  # the type of matrix products' operands, and how Triton multiplies float32 ones; sums are float32 in all
    "float32": (torch.float32, _EXACT),  # six products of bfloat16 parts, as in `cnn_gradients`, or three of TF32 parts
    "tf32": (torch.float32, "tf32"),
    "float16": (torch.float16, "tf32"),
}


def shared_gradients(module: nn.Module, weights: Tensor, images: Tensor, labels: Tensor, share: Tensor, precision: str) -> Tensor:
    """(n, d): row i is the gradient of sum_j share[i, j] * cross_entropy(logits(images[i, j]), labels[i, j]).

    weights (d,) in the order of the module's parameters, images (n, b, ...), labels (n, b), share (n, b).
    """
    n = len(labels)
    gradients = weights.new_zeros(n, len(weights))
    parameters = [(name, parameter.shape) for name, parameter in module.named_parameters()]
    sizes = [shape.numel() for _, shape in parameters]
    parts = {name: part.view(shape).detach().requires_grad_() for (name, shape), part in zip(parameters, weights.split(sizes), strict=True)}
    per_client = _PerClient(n, PRECISIONS[precision][1])
    for part, columns in zip(parts.values(), gradients.split(sizes, 1), strict=True):
        per_client.gradient[part] = columns.view(n, *part.shape)

    batch = images.flatten(0, 1).to(PRECISIONS[precision][0])
    if batch.dim() == 4:
        batch = batch.contiguous(memory_format=torch.channels_last)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=precision != "float32"), torch.enable_grad():
        with per_client:
            logits = functional_call(module, parts, (batch,))
        loss = functional.cross_entropy(logits.float(), labels.flatten(), reduction="none")
        (loss * share.flatten()).sum().backward()
    elsewhere = [name for name, part in parts.items() if part.grad is not None]
    if elsewhere:
        raise InputError(f"only conv2d, linear and batch_norm have gradients per client; used elsewhere: {', '.join(elsewhere)}")
    return gradients


class _PerClient(TorchFunctionMode):
    """Replaces the calls that have weights by those that leave each client's gradient in `gradient[weight]` (n, ...)."""

    def __init__(self, n: int, product: str) -> None:
        super().__init__()
        self.n, self.product = n, product
        self.gradient: dict[Tensor, Tensor] = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        layers = {
            functional.conv2d: self.conv2d,
            functional.linear: self.linear,
            functional.batch_norm: self.batch_norm,
            norm_relu: self.norm_relu,
            shortcut: _Shortcut.apply,
        }
        return layers.get(function, function)(*args, **(kwargs or {}))

    def conv2d(self, images, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
        stride, padding, dilation = ((pair, pair) if isinstance(pair, int) else tuple(pair) for pair in (stride, padding, dilation))
        square = all(len(set(pair)) == 1 for pair in (weight.shape[2:], stride, padding))
        if not square or groups != 1 or dilation != (1, 1):
            raise InputError("only square convolutions without groups and dilation have gradients per client")
        result = _Convolution.apply(images, weight, self, stride[0], padding[0])
        return result if bias is None else _Bias.apply(result, bias, self)

    def linear(self, features, weight, bias=None):
        if features.dim() != 2:
            raise InputError(
                f"linear layers of {features.dim()}-dimensional input have no gradients per client, only of (examples, features)"
            )
        result = _Linear.apply(features, weight, self)
        return result if bias is None else _Bias.apply(result, bias, self)

    def batch_norm(self, images, mean, variance, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
        if images.dim() != 4 or not training or mean is not None or weight is None or bias is None:
            raise InputError("only batch norm of images, with weights and the statistics of each batch, has gradients per client")
        return _BatchNorm.apply(images, weight, bias, None, False, self, eps)

    def norm_relu(self, images, norm, beside=None):
        return _BatchNorm.apply(images, norm.weight, norm.bias, beside, True, self, norm.eps)


class _Convolution(Function):
    @staticmethod
    def forward(ctx, images, weight, per_client, stride, padding):
        images = images.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(images, weight)
        ctx.rest = per_client, stride, padding
        return convolve(images, weight.to(images.dtype), stride, padding, per_client.product)

    @staticmethod
    def backward(ctx, error):
        (images, weight), (per_client, stride, padding) = ctx.saved_tensors, ctx.rest
        error = error.contiguous(memory_format=torch.channels_last)
        per_client.gradient[weight] += convolution_sums(per_client.n, images, error, weight.shape, stride, padding, per_client.product)
        before = None
        if ctx.needs_input_grad[0]:
            taps = weight.detach().to(error.dtype)
            if stride == 1:  # backward is a convolution too, with the kernel turned round
                before = convolve(error, taps.flip(2, 3).transpose(0, 1), 1, weight.shape[2] - 1 - padding, per_client.product)
            else:
                sizes = (None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [True, False, False])
                before = torch.ops.aten.convolution_backward(error, images, taps.contiguous(memory_format=torch.channels_last), *sizes)[0]
        return before, None, None, None, None


class _Linear(Function):
    @staticmethod
    def forward(ctx, features, weight, per_client):
        ctx.save_for_backward(features, weight)
        ctx.per_client = per_client
        return features @ weight.detach().to(features.dtype).t()

    @staticmethod
    def backward(ctx, error):
        (features, weight), per_client = ctx.saved_tensors, ctx.per_client
        errors, inputs = (tensor.float().unflatten(0, (per_client.n, -1)) for tensor in (error, features))
        per_client.gradient[weight] += errors.mT @ inputs
        return error @ weight.detach().to(error.dtype), None, None


class _Bias(Function):
    @staticmethod
    def forward(ctx, features, bias, per_client):
        ctx.rest = bias, per_client
        return features + bias.detach().to(features.dtype).view(-1, *[1] * (features.dim() - 2))

    @staticmethod
    def backward(ctx, error):
        bias, per_client = ctx.rest
        sums = error.unflatten(0, (per_client.n, -1)).transpose(1, 2).flatten(2).sum(2, dtype=torch.float32)
        per_client.gradient[bias] += sums
        return error, None, None


class _Shortcut(Function):
    """`models.shortcut`, whose gradient stays channels last."""

    @staticmethod
    def forward(ctx, images, stride, new_channels):
        ctx.rest = images.shape, stride
        kept = images[:, :, ::stride, ::stride]
        return _filled(kept, (slice(None), slice(0, images.shape[1])), (len(kept), images.shape[1] + new_channels, *kept.shape[2:]))

    @staticmethod
    def backward(ctx, error):
        shape, stride = ctx.rest
        every = slice(None, None, stride)
        return _filled(error[:, : shape[1]], (slice(None), slice(None), every, every), shape), None, None


def _filled(values: Tensor, place, shape) -> Tensor:
    """The values at their place among zeros."""
    result = torch.empty(shape, dtype=values.dtype, device=values.device, memory_format=torch.channels_last).zero_()
    result[place] = values
    return result


class _BatchNorm(Function):
    """y = weight * (x - mean) / deviation + bias, with mean and deviation of each client's batch; or relu(y), or relu(y + beside)."""

    @staticmethod
    def forward(ctx, images, weight, bias, beside, relu, per_client, eps):
        images = images.contiguous(memory_format=torch.channels_last)
        if beside is not None:
            beside = beside.contiguous(memory_format=torch.channels_last)
        count = images.numel() // (per_client.n * images.shape[1])
        mean, inverse, slope, offset = (torch.empty(per_client.n, images.shape[1], device=images.device) for _ in range(4))
        sums = channel_sums(per_client.n, images, images)
        per_channel(statistics_kernel, sums, count, weight, bias, eps, mean, inverse, slope, offset)
        result = normalise(images, slope, offset, beside, relu)
        # Where ReLU cut is seen again in x, or with something beside it in the result.
        cut = offset if relu and beside is None else None
        ctx.save_for_backward(images, weight, bias, mean, inverse, slope, cut, None if beside is None else result)
        ctx.rest = per_client, count
        return result

    @staticmethod
    def backward(ctx, error):
        (images, weight, bias, mean, inverse, slope, offset, result), (per_client, count) = ctx.saved_tensors, ctx.rest
        error = error.contiguous(memory_format=torch.channels_last)
        cut = None if offset is None else (slope, offset)
        passed = None if result is None else torch.empty_like(error)  # what ReLU lets through, which goes back beside too
        second, third = torch.empty_like(slope), torch.empty_like(slope)
        d_weight, d_bias = per_client.gradient[weight], per_client.gradient[bias]
        sums = channel_sums(per_client.n, error, images, cut, result, passed)
        per_channel(statistics_back_kernel, sums, count, mean, inverse, slope, d_weight, d_bias, d_weight.stride(0), second, third)
        before = combine(error if passed is None else passed, slope, images, second, third, cut)
        return before, None, None, passed, None, None, None
