"""Layer normalization and its gradients; ``axis`` is the first normalized axis.

Statistics are computed in float32 for 16-bit data and in the data's own type otherwise, and handed
out in the type that ``stash_type`` names.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.reduction.columns import column_sums
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import kept_size
from onnxtrain.types import FLOATS, MS, OWN

Three = tuple[Tensor, Tensor, Tensor]
_native_grad = torch.ops.aten.native_layer_norm_backward.default


@kernel("LayerNormalization", outputs=3, T=FLOATS)
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Three:
    """y = (x - mean) * inv * scale + b, with inv = 1 / sqrt(variance + epsilon)."""
    stash = to_torch(stash_type)
    if fast_norm(x, scale, b, axis, stash):
        found = fast.load("norm").normalize(x, scale, b, epsilon, centred=True, dtype=scale.dtype)
        rows = row_shape(x, axis)
        return found.y, found.mean.view(rows), found.inverse.view(rows)
    y, mean, inverse = normalize(precise(x, stash), scale, b, axis, epsilon)
    return y.to(scale.dtype), mean.to(stash), inverse.to(stash)


@kernel("SkipLayerNormalization", domain=MS, outputs=4, T=FLOATS)
def skip_layer_normalization(
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNormalization of s = input + skip + bias over the last axis; s is the last output."""
    if skip.shape == input.shape and fast_norm(input, gamma, beta, -1, torch.float32, skip, bias):
        found = fast.load("norm").normalize(
            input, gamma, beta, epsilon, centred=True, skip=skip, extra=bias
        )
        rows = row_shape(input, -1)
        return found.y, found.mean.view(rows), found.inverse.view(rows), found.total
    given = [t for t in (input, skip, gamma, beta, bias) if t is not None]
    narrow = acc(input.dtype) != input.dtype
    if narrow and skip.shape == input.shape and blocks.ready(*given):
        rows = row_shape(input, -1)
        y, total = torch.empty_like(input), torch.empty_like(input)
        mean, inverse = (torch.empty(rows, dtype=torch.float32) for _ in range(2))
        gamma, beta = widen(gamma), None if beta is None else widen(beta)
        for x, more, *found in blocks.rows(mean.numel(), input, skip, y, mean, inverse, total):
            part = residual_sum(x, more, bias)
            values = (*normalize(part, gamma, beta, -1, epsilon), part)
            for target, value in zip(found, values, strict=True):
                target.copy_(value)
        return y, mean, inverse, total
    total = residual_sum(input, skip, bias)
    y, mean, inverse = normalize(total, gamma, beta, -1, epsilon)
    return y.to(input.dtype), mean.float(), inverse.float(), total.to(input.dtype)


@kernel("LayerNormalizationGrad", domain=MS, outputs=3, T=FLOATS, V=FLOATS)
def layer_normalization_grad(
    y_grad: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    inv_std_dev: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Three:
    """dx = inv / n * (n * g - sum(g) - xhat * sum(g * xhat)), with g = dy * scale."""
    return _layer_grad(y_grad, x, scale, (mean, inv_std_dev), axis, epsilon)[:3]


@kernel("LayerNormalizationGradAdd", domain=OWN, outputs=4, needs=["wanted"], T=FLOATS, V=FLOATS)
def layer_normalization_grad_add(
    y_grad: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    inv_std_dev: Tensor,
    residual: Tensor,
    *,
    wanted: tuple[bool, ...],
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """LayerNormalizationGrad whose dx is added to a gradient that x gets on another way.

    The fourth output has the sums of the total over all axes but the last.
    """
    return _layer_grad(
        y_grad, x, scale, (mean, inv_std_dev), axis, epsilon, residual, wanted[3:] == (True,)
    )


def _layer_grad(
    y_grad: Tensor,
    x: Tensor,
    scale: Tensor,
    statistics: tuple[Tensor, Tensor],
    axis: int,
    epsilon: float,
    residual: Tensor | None = None,
    summed: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    mean, inv_std_dev = statistics
    sizes = normalized_shape(x, axis)
    work = acc(x.dtype)
    if mean.dtype.itemsize < work.itemsize:
        # stashed statistics that are coarser than the data would cost the gradient its precision
        data = x.to(work) if x.is_cuda else x
        _, mean, inv_std_dev = normalize(data, data.new_ones(sizes), None, axis, epsilon)
    given = (x, y_grad) if residual is None else (x, y_grad, residual)
    if (
        fast.ready(*given)
        and not blocks.recorded(scale, mean, inv_std_dev)
        and scale.shape == sizes
        and (not summed or x.shape[-1:] == sizes)
        and (quick := fast.load("norm_grad")).takes(scale, mean, inv_std_dev)
    ):
        dx, sums = quick.norm_grad(y_grad, x, scale, mean, inv_std_dev, residual, summed)
        dscale, dbias, *total = (sums if scale.ndim == 1 else sums.view(-1, *sizes)).unbind()
        return dx, dscale, dbias, total[0].to(dx.dtype) if summed else None
    rows = row_shape(x, axis)
    # CUDA takes 16-bit data with float32 statistics
    one_type = y_grad.dtype == x.dtype == scale.dtype and (x.is_cuda or x.dtype == mean.dtype)
    plain = mean.shape == rows and mean.is_contiguous() and inv_std_dev.is_contiguous()
    if one_type and residual is None and scale.shape == sizes and plain:
        dx, dscale, dbias = _native_grad(
            y_grad, x, sizes, mean, inv_std_dev, scale, scale, [True, True, True]
        )
        return dx, dscale, dbias, column_sums(dx) if summed else None
    kind = x.dtype if one_type else work
    weight = scale.expand(sizes).to(kind).contiguous()
    mean, inverse = (t.to(work).reshape(rows).contiguous() for t in (mean, inv_std_dev))
    if x.dtype != kind and blocks.ready(*given, weight, mean, inverse):
        dx, sums = _grad_in_blocks(given, weight, mean, inverse)
    else:
        dy, data = (t.to(kind).contiguous() for t in (y_grad, x))
        dx, *sums = _native_grad(dy, data, sizes, mean, inverse, weight, weight, [True, True, True])
        dx = (dx if residual is None else dx.to(work) + residual).to(x.dtype)
    dscale, dbias = (t.sum_to_size(scale.shape).to(scale.dtype) for t in sums)
    return dx, dscale, dbias, column_sums(dx) if summed else None


def _grad_in_blocks(
    given: tuple[Tensor, ...], weight: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The gradients of narrow data, from x, dy and, if there is one, the residual.

    torch takes these as they are, but then sums over rows in their type.
    """
    dx, flat = torch.empty_like(given[0]), weight.view(-1)
    sums: list[list[Tensor]] = []
    rooms: list[Tensor] = []
    for target, m, i, *parts in blocks.rows(mean.numel(), dx, mean, inverse, *given):
        # memory for wide copies is used again, as new one costs more to get
        rooms = rooms or [torch.empty(part.shape, dtype=weight.dtype) for part in parts]
        copies = zip(rooms, parts, strict=True)
        x, dy, *more = (room[: len(part)].copy_(part) for room, part in copies)
        found, *each = _native_grad(dy, x, flat.shape, m, i, flat, flat, [True, True, True])
        target.copy_(found.add_(more[0]) if more else found)
        sums.append(each)
    return dx, [torch.stack(t).sum(0).view(weight.shape) for t in zip(*sums, strict=True)]


@kernel("InvertibleLayerNormalizationGrad", domain=MS, outputs=3, V=FLOATS)
def invertible_layer_normalization_grad(
    y_grad: Tensor,
    y: Tensor,
    scale: Tensor,
    bias: Tensor,
    inv_std_var: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Three:
    """LayerNormalizationGrad from the output: xhat = (y - bias) / scale."""
    sizes = normalized_shape(y, axis)
    axes = list(range(y.ndim - len(sizes), y.ndim))
    grad, weight = widen(y_grad), widen(scale)
    normal = (widen(y) - widen(bias)) / weight
    inverse = statistic(inv_std_var, y, len(sizes))
    dscale, dbias = (scale_grad(t, sizes) for t in (grad * normal, grad))
    inner = grad * weight
    dx = inverse * (
        inner - inner.mean(axes, keepdim=True) - normal * (inner * normal).mean(axes, keepdim=True)
    )
    return dx.to(y_grad.dtype), dscale.to(scale.dtype), dbias.to(scale.dtype)


def normalize(x: Tensor, scale: Tensor, bias: Tensor | None, axis: int, epsilon: float) -> Three:
    """y in the type of computation (or x's own), mean and inverse deviation in the former."""
    sizes = normalized_shape(x, axis)
    fits = scale.shape == sizes and (bias is None or bias.shape == sizes)
    if fits and x.is_cuda and scale.dtype == x.dtype:
        return torch.native_layer_norm(x, sizes, scale, bias, epsilon)
    given = [t for t in (x, scale, bias) if t is not None]
    work = acc(x.dtype)
    weight, shift = scale.to(work), None if bias is None else bias.to(work)
    if fits and x.device.type == "cpu" and scale.dtype == x.dtype and not blocks.recorded(*given):
        # a scale that is wider than the data makes torch keep statistics in its type
        return torch.native_layer_norm(x, sizes, weight, shift, epsilon)
    x = widen(x)
    if fits:
        return torch.native_layer_norm(x, sizes, weight, shift, epsilon)
    y, mean, inverse = torch.native_layer_norm(x, sizes, None, None, epsilon)
    y = y * weight if shift is None else y * weight + shift
    return kept_size(y, x, "scale and bias"), mean, inverse


def fast_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    axis: int,
    stash: torch.dtype,
    skip: Tensor | None = None,
    extra: Tensor | None = None,
) -> bool:
    """Whether one Triton launch normalizes x (+ skip + extra), with statistics in float32."""
    vectors = [t for t in (shift, extra) if t is not None]
    return (
        stash is torch.float32
        and fast.ready(x, *([] if skip is None else [skip]))
        and scale.shape == normalized_shape(x, axis)
        and all(t.shape == scale.shape for t in vectors)
        and not blocks.recorded(scale, *vectors)
        and bool(fast.load("norm").takes(scale, *vectors))
    )


def row_shape(x: Tensor, axis: int) -> tuple[int, ...]:
    """Shape of what there is once a row: 1 for every normalized axis."""
    count = len(normalized_shape(x, axis))
    return (*x.shape[: x.ndim - count], *[1] * count)


def precise(x: Tensor, stash: torch.dtype) -> Tensor:
    """x in double if its statistics are to be kept in double."""
    return x.to(stash) if stash is torch.float64 else x


def residual_sum(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    """x + skip + bias in the type of computation."""
    wide = widen(x)
    fresh = wide is not x and skip.shape == x.shape
    total = wide.add_(skip) if fresh else wide + skip
    return total if bias is None else total + bias


def normalized_shape(x: Tensor, axis: int) -> torch.Size:
    """Sizes from the axis on."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis {axis} is outside of X with shape {tuple(x.shape)}")
    return x.shape[axis % x.ndim :]


def statistic(value: Tensor, x: Tensor, normalized: int) -> Tensor:
    """A value for each row of x, in its type of computation and of a shape that broadcasts."""
    rows = x.shape[: x.ndim - normalized]
    return value.to(acc(x.dtype)).reshape(*rows, *[1] * normalized)


def scale_grad(product: Tensor, sizes: torch.Size) -> Tensor:
    """Sum over all rows."""
    rows = list(range(product.ndim - len(sizes)))
    return product.sum(rows) if rows else product.clone()
