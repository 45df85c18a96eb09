"""Batch normalization: inference, training with running statistics, and its gradient.

The statistics of a channel are taken over the batch and all spatial axes. ``momentum`` weighs the
old running value. 16-bit data is normalized with float32 parameters and statistics.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

Five = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


@kernel("BatchNormalization", since=7, until=13, outputs=5, needs=["wanted"], T=FLOATS)
def batch_normalization_7(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    wanted: tuple[bool, ...],
) -> Five:
    """Training if the node has outputs besides Y; without ``spatial`` every place is a channel."""
    data = x if spatial else x.reshape(x.shape[0], -1)
    weight, shift, old_mean, old_var = (p.reshape(-1) for p in (scale, b, mean, var))
    if len(wanted) == 1:
        y = infer(data, weight, shift, old_mean, old_var, epsilon)
        return y.reshape(x.shape), None, None, None, None
    y, batch_mean, batch_var, _ = train(data, weight, shift, epsilon)
    running = blend(old_mean, batch_mean, momentum), blend(old_var, batch_var, momentum)
    saved = batch_mean.to(mean.dtype), batch_var.to(var.dtype)
    shaped = [t.reshape(mean.shape) for t in (*running, *saved)]
    return y.reshape(x.shape), shaped[0], shaped[1], shaped[2], shaped[3]


@kernel("BatchNormalization", since=14, outputs=3, T=FLOATS)
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """y = (x - mean) / sqrt(var + epsilon) * scale + b, with running or with batch statistics."""
    if not training_mode:
        return infer(x, scale, b, input_mean, input_var, epsilon), None, None
    y, mean, var, _ = train(x, scale, b, epsilon)
    return y, blend(input_mean, mean, momentum), blend(input_var, var, momentum)


@kernel(
    "BatchNormInternal",
    domain=MS,
    outputs=5,
    updates=["input_mean", "input_var"],
    view={"input_mean": 1, "input_var": 2},
    T=FLOATS,
)
def batch_norm_internal(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 1,
    update: bool = False,
) -> Five:
    """BatchNormalization that also returns the batch's mean and 1 / sqrt(var + epsilon).

    The running variance takes the biased variance on a CPU and the unbiased one on CUDA. With
    parameters of several axes every place of a sample is a channel.
    """
    if scale.ndim > 1:
        flat = [p.reshape(-1) for p in (scale, b, input_mean, input_var)]
        y, *rest = batch_norm_internal(
            x.flatten(1),
            *flat,
            epsilon=epsilon,
            momentum=momentum,
            training_mode=training_mode,
            update=update,
        )
        shaped = [None if t is None else t.reshape(scale.shape) for t in rest]
        return y.reshape(x.shape), shaped[0], shaped[1], shaped[2], shaped[3]
    if not training_mode:
        return infer(x, scale, b, input_mean, input_var, epsilon), None, None, None, None
    check(x, scale, b, input_mean, input_var)
    if quick := fast_images(x, x, scale, b, input_mean, input_var):
        running = quick_running(x, input_mean, input_var, momentum, update)
        y, mean, _, inverse = quick.train(x, scale, b, epsilon, running=running)
        return y, *running[:2], mean.to(input_mean.dtype), inverse.to(input_var.dtype)
    y, mean, var, inverse = _train(x, scale, b, epsilon)
    new = moved(x, (input_mean, input_var), (mean, var), momentum, update)
    return y, *new, mean.to(input_mean.dtype), inverse.to(input_var.dtype)


def quick_running(
    x: Tensor, mean: Tensor, variance: Tensor, momentum: float, keep: bool
) -> tuple[Tensor, Tensor, float, float]:
    """What the Triton kernels move in place: running statistics, or copies unless to be kept."""
    count = math.prod(x.shape) // channels(x)
    kept = (mean, variance) if keep else (mean.clone(), variance.clone())
    running: tuple[Tensor, Tensor, float, float] = fast.load("batch_norm").Running(
        *kept, momentum, count / max(count - 1, 1)
    )
    return running


def moved(
    x: Tensor, old: tuple[Tensor, Tensor], batch: tuple[Tensor, Tensor], momentum: float, keep: bool
) -> tuple[Tensor, Tensor]:
    """Running mean and variance, moved by those of a batch; kept in place if they are state."""
    mean, var = batch
    count = math.prod(x.shape) // channels(x)
    if x.is_cuda:
        var = var * (count / max(count - 1, 1))
    if keep and all(t.dtype == mean.dtype for t in old):
        return _blend_in(old[0], mean, momentum), _blend_in(old[1], var, momentum)
    new = blend(old[0], mean, momentum), blend(old[1], var, momentum)
    return (old[0].copy_(new[0]), old[1].copy_(new[1])) if keep else new


@kernel("BatchNormalizationGrad", domain=MS, outputs=3, T=FLOATS)
def batch_normalization_grad(
    dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """dx = scale * r / n * (n * dy - sum(dy) - xhat * sum(dy * xhat)), with r = ``variance``.

    The input called variance holds the inverse standard deviation, so epsilon is not needed.
    """
    check(x, scale, scale, mean, variance)
    if not x.numel():
        # torch divides by the number of elements, which ends the process
        return torch.zeros_like(x), torch.zeros_like(scale), torch.zeros_like(scale)
    if quick := fast_images(x, dy, scale, mean, variance):
        found: tuple[Tensor, Tensor, Tensor] = quick.grad(dy, x, scale, mean, variance)
        return found
    weight, middle, inverse = _dense(x, scale, mean, variance)
    dx, dscale, dbias = torch.ops.aten.native_batch_norm_backward(
        as_batch(dy),
        as_batch(x),
        weight,
        None,
        None,
        middle,
        inverse,
        True,
        epsilon,
        [True, True, True],
    )
    return shaped(dx, x), dscale.to(scale.dtype), dbias.to(scale.dtype)


def infer(x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor, epsilon: float) -> Tensor:
    """Normalize with given statistics."""
    check(x, scale, b, mean, var)
    if not x.numel():
        return torch.empty_like(x)
    w, shift, m, v = _dense(x, scale, b, mean, var)
    y, _, _ = torch.native_batch_norm(as_batch(x), w, shift, m, v, False, 0.0, epsilon)
    return shaped(y, x)


def train(
    x: Tensor, scale: Tensor, b: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize with the batch's statistics; returns y, mean, biased variance, 1 / deviation."""
    check(x, scale, b)
    if quick := fast_images(x, x, scale, b):
        found: tuple[Tensor, Tensor, Tensor, Tensor] = quick.train(x, scale, b, epsilon)
        return found
    return _train(x, scale, b, epsilon)


def _train(
    x: Tensor, scale: Tensor, b: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same by torch."""
    if not x.numel():
        raise ValueError(f"X has shape {tuple(x.shape)}: a batch of nothing has no mean")
    work = acc(x.dtype)
    mean, var = (torch.zeros(channels(x), dtype=work, device=x.device) for _ in range(2))
    weight, shift = _dense(x, scale, b)
    y, _, inverse = torch.native_batch_norm(
        as_batch(x), weight, shift, mean, var, True, 1.0, epsilon
    )
    # momentum 1 makes torch leave mean and unbiased variance (0 / 0 for one element) in the buffers
    count = math.prod(x.shape) // channels(x)
    biased = var * ((count - 1) / count) if count > 1 else torch.zeros_like(var)
    return shaped(y, x), mean, biased, inverse


def _dense(x: Tensor, *vectors: Tensor) -> list[Tensor]:
    """Vectors in the type that x is normalized in, without strides.

    For images with their channels last torch takes their numbers for neighbours, also of a vector
    that is one number, expanded.
    """
    return [vector.to(acc(x.dtype)).contiguous() for vector in vectors]


def fast_images(x: Tensor, dy: Tensor, *vectors: Tensor) -> ModuleType | None:
    """The Triton kernels for images x with their channels first or last, if they take these.

    A gradient that lies otherwise is copied, which is less than torch would do with it.
    """
    recorded = torch.is_grad_enabled() and dy.requires_grad
    if not x.is_cuda or x.ndim < 2 or dy.dtype != x.dtype or recorded:
        return None
    dense = x if x.is_contiguous() else x.movedim(1, -1)
    return fast.load("batch_norm") if fast.ready(dense, *vectors, smallest=1) else None


def blend(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    """old * momentum + new * (1 - momentum), rounded once to the old value's type."""
    return _blend_in(old.to(new.dtype, copy=True), new, momentum).to(old.dtype)


def _blend_in(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    """The same, in place."""
    return old.mul_(momentum).add_(new, alpha=1 - momentum)


def as_batch(x: Tensor) -> Tensor:
    """[N, C, ...]; a vector is a batch of one channel."""
    return x.reshape(-1, 1) if x.ndim == 1 else x


def shaped(result: Tensor, x: Tensor) -> Tensor:
    """Undo ``as_batch``."""
    return result.reshape(x.shape) if x.ndim == 1 else result


def channels(x: Tensor) -> int:
    """C; 1 for a vector."""
    return 1 if x.ndim == 1 else x.shape[1]


def check(x: Tensor, *parameters: Tensor) -> None:
    """Refuse parameters that do not have one value for each channel."""
    names = ("scale", "B", "mean", "var")
    for name, parameter in zip(names, parameters, strict=False):
        if parameter.shape != (channels(x),):
            raise ValueError(
                f"invalid input {name}: its shape is {tuple(parameter.shape)}, "
                f"X has {channels(x)} channels"
            )
