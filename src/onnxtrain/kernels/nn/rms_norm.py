"""Normalization by the root of the mean square, and its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.nn.layer_norm import (
    fast_norm,
    normalized_shape,
    precise,
    residual_sum,
    row_shape,
    scale_grad,
    statistic,
)
from onnxtrain.kernels.precision import acc, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import kept_size
from onnxtrain.types import FLOATS, MS, OWN


@kernel("RMSNormalization", since=23, T=FLOATS, V=FLOATS)
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """y = x * inv * scale, with inv = 1 / sqrt(mean(x^2) + epsilon)."""
    return simplified_layer_normalization(
        x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type
    )[0]


@kernel("SimplifiedLayerNormalization", outputs=2, T=FLOATS, V=FLOATS)
def simplified_layer_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, Tensor]:
    """RMSNormalization that also returns inv."""
    stash = to_torch(stash_type)
    if fast_norm(x, scale, None, axis, stash):
        found = fast.load("norm").normalize(
            x, scale, None, epsilon, centred=False, dtype=scale.dtype
        )
        return found.y, found.inverse.view(row_shape(x, axis))
    x = precise(x, stash)
    if scale.shape != normalized_shape(x, axis) or not _in_blocks(x, scale):
        y, inverse = normalize(x, scale, axis, epsilon)
        return y.to(scale.dtype), inverse.to(stash)
    y = torch.empty_like(x, dtype=scale.dtype)
    inverse = torch.empty(row_shape(x, axis), dtype=stash)
    weight = scale.view(-1).to(acc(x.dtype))
    for part, target, root in blocks.rows(inverse.numel(), x, y, inverse):
        _normalize_into(target, root, widen(part), weight, epsilon)
    return y, inverse


@kernel("SkipSimplifiedLayerNormalization", domain=MS, outputs=4, needs=["wanted"], T=FLOATS)
def skip_simplified_layer_normalization(
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    *,
    wanted: tuple[bool, ...] = (True,) * 4,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """RMSNormalization of s = input + skip + bias over the last axis; s is the last output.

    The mean is not subtracted, but the operator has an output for it.
    """
    averaged, like = wanted[1:2] == (True,), skip.shape == input.shape
    if like and not averaged and _fast_skip(input, gamma, skip, bias):
        found = fast.load("norm").normalize(
            input, gamma, None, epsilon, centred=False, skip=skip, extra=bias
        )
        return found.y, None, found.inverse.view(row_shape(input, -1)), found.total
    plain = like and not averaged and gamma.shape == input.shape[-1:]
    if plain and _in_blocks(input, gamma, skip, *([] if bias is None else [bias])):
        y, total = torch.empty_like(input), torch.empty_like(input)
        inverse = torch.empty(row_shape(input, -1), dtype=torch.float32)
        weight = gamma.to(acc(input.dtype))
        for x, more, target, root, sums in blocks.rows(
            inverse.numel(), input, skip, y, inverse, total
        ):
            part = residual_sum(x, more, bias)
            sums.copy_(part)
            _normalize_into(target, root, part, weight, epsilon)
        return y, None, inverse, total
    total = residual_sum(input, skip, bias)
    y, inverse = normalize(total, gamma, -1, epsilon)
    mean = total.mean(-1, keepdim=True).float() if averaged else None
    return y.to(input.dtype), mean, inverse.float(), total.to(input.dtype)


def _fast_skip(x: Tensor, scale: Tensor, skip: Tensor, bias: Tensor | None) -> bool:
    return fast_norm(x, scale, None, -1, torch.float32, skip, bias)


@kernel("SimplifiedLayerNormalizationGrad", domain=MS, outputs=2, T=FLOATS, V=FLOATS)
def simplified_layer_normalization_grad(
    y_grad: Tensor,
    x: Tensor,
    scale: Tensor,
    inv_std_var: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, Tensor]:
    """dx = inv * (g - xhat * mean(g * xhat)), with g = dy * scale and xhat = x * inv."""
    return _simplified_grad(y_grad, x, scale, inv_std_var, axis, epsilon)


@kernel("SimplifiedLayerNormalizationGradAdd", domain=OWN, outputs=2, T=FLOATS, V=FLOATS)
def simplified_layer_normalization_grad_add(
    y_grad: Tensor,
    x: Tensor,
    scale: Tensor,
    inv_std_var: Tensor,
    residual: Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, Tensor]:
    """SimplifiedLayerNormalizationGrad whose dx is added to a gradient that x gets otherwise."""
    return _simplified_grad(y_grad, x, scale, inv_std_var, axis, epsilon, residual)


def _simplified_grad(
    y_grad: Tensor,
    x: Tensor,
    scale: Tensor,
    inv_std_var: Tensor,
    axis: int,
    epsilon: float,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    sizes = normalized_shape(x, axis)
    more = () if residual is None else (residual,)
    if (
        fast.ready(x, y_grad, *more)
        and not blocks.recorded(scale, inv_std_var)
        and scale.shape == sizes
        and inv_std_var.dtype is torch.float32
        and (quick := fast.load("norm_grad")).takes(scale, inv_std_var)
    ):
        quick_dx, sums = quick.norm_grad(y_grad, x, scale, None, inv_std_var, residual)
        return quick_dx, sums.view(scale.shape)
    inverse = statistic(inv_std_var, x, len(sizes))
    if inv_std_var.dtype.itemsize < inverse.dtype.itemsize:
        # a stashed value that is coarser than the data would cost the gradient its precision
        axes = list(range(x.ndim - len(sizes), x.ndim))
        inverse = inverse_root(widen(x), axes, epsilon)
    if scale.shape != sizes or not _in_blocks(x, scale, y_grad, inverse, *more):
        dx, dscale = _grad(y_grad, x, scale, inverse, sizes)
        dx = dx if residual is None else dx + residual
        return dx.to(x.dtype), dscale.sum_to_size(scale.shape).to(scale.dtype)
    dx, weight, sums = torch.empty_like(x), scale.view(-1).to(acc(x.dtype)), []
    for target, dy, part, each, *rest in blocks.rows(
        inverse.numel(), dx, y_grad, x, inverse, *more
    ):
        found, total = _rows_grad(dy, part, weight, each)
        target.copy_(found.add_(widen(rest[0])) if rest else found)
        sums.append(total)
    return dx, torch.stack(sums).sum(0).view(sizes).to(scale.dtype)


def _grad(
    dy: Tensor, x: Tensor, scale: Tensor, inverse: Tensor, sizes: torch.Size
) -> tuple[Tensor, Tensor]:
    """dx, and the gradient of a scale of these sizes, in the type of computation."""
    axes = list(range(x.ndim - len(sizes), x.ndim))
    grad, normal = widen(dy), widen(x) * inverse
    inner = grad * scale
    dx = inverse * (inner - normal * (inner * normal).mean(axes, keepdim=True))
    return dx, scale_grad(grad * normal, sizes)


def _rows_grad(dy: Tensor, x: Tensor, scale: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """The same of rows, in two rooms and one for what is summed; nothing is recorded."""
    grad, normal = widen(dy), widen(x) * inverse
    inner = grad * scale
    products = inner * normal
    mean = products.mean(1, keepdim=True)
    dscale = torch.mul(grad, normal, out=products).sum(0)
    return inner.sub_(normal.mul_(mean)).mul_(inverse), dscale


def _in_blocks(x: Tensor, scale: Tensor, *others: Tensor) -> bool:
    """Whether rows are computed block by block, in memory that is used again.

    The type of computation is that of x, which no scale or other tensor widens.
    """
    work, given = acc(x.dtype), (x, scale, *others)
    if not blocks.ready(*given):
        return False
    return all(torch.promote_types(work, t.dtype) == work for t in given)


def _normalize_into(y: Tensor, inverse: Tensor, x: Tensor, scale: Tensor, epsilon: float) -> None:
    """Write y and inv of rows x; all that is computed has x's type."""
    room = x.square()
    root = torch.rsqrt(room.mean(1, keepdim=True).add_(epsilon))
    inverse.copy_(root)
    result = torch.mul(x, root, out=y if y.dtype == x.dtype else room).mul_(scale)
    if result is not y:
        y.copy_(result)


def normalize(x: Tensor, scale: Tensor, axis: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """y and inv in the type of computation."""
    sizes = normalized_shape(x, axis)
    wide = widen(x)
    inverse = inverse_root(wide, list(range(x.ndim - len(sizes), x.ndim)), epsilon)
    return kept_size(wide * inverse * scale, x, "scale"), inverse


def inverse_root(x: Tensor, axes: list[int], epsilon: float) -> Tensor:
    """1 / sqrt(mean(x^2) + epsilon)."""
    return torch.rsqrt(x.square().mean(axes, keepdim=True) + epsilon)
