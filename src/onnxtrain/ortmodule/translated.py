"""What torch's exporter would write in another way than a module that trains means it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch


def translated(on_gpu: bool) -> dict[Any, Callable[..., Any]]:
    """How operators of torch are written, for kernels of a GPU or not."""
    aten = torch.ops.aten
    return {
        aten._native_batch_norm_legit_functional.default: _batch_norm(on_gpu),
        aten.cross_entropy_loss.default: _cross_entropy,
        aten.scalar_tensor.default: _scalar,
        aten.uniform.default: _uniform,
        aten.normal.Tensor_float: _normal,
        aten.randperm.default: _permutation,
        aten.rrelu_with_noise_functional.default: _random_relu,
    }


def _operators() -> Any:
    import onnxscript

    return onnxscript.opset18


def _batch_norm(on_gpu: bool) -> Callable[..., Any]:
    """BatchNormalization in training form, which the exporter writes as one that infers."""
    op = _operators()

    def batch_norm(x, weight, bias, mean, var, training, momentum, eps):  # type: ignore[no-untyped-def]
        channel = op.Shape(x, start=1, end=2)
        one = op.CastLike(op.Constant(value_floats=[1.0]), x)
        scale = op.Expand(one, channel) if weight is None else weight
        shift = op.Expand(op.Sub(one, one), channel) if bias is None else bias
        wide = x.dtype == ir.DataType.DOUBLE  # an attribute is a number in float32
        kept = 0.0 if wide else 1.0 - momentum
        y, new_mean, new_var = op.BatchNormalization(
            x, scale, shift, mean, var, epsilon=eps, momentum=kept, training_mode=1
        )
        if not on_gpu:
            new_var = _unbiased(op, new_var, x, var, 1.0 - kept)
        if wide:
            new_mean = _moved(op, mean, new_mean, momentum)
            new_var = _moved(op, var, new_var, momentum)
        return y, op.Identity(mean), op.Identity(var), new_mean, new_var

    return batch_norm


def _moved(op: Any, old: Any, new: Any, share: float) -> Any:
    """Some way from old to new, of numbers in float64."""
    way = op.Constant(value=ir.tensor(np.float64(share)))
    return op.Add(old, op.Mul(op.Sub(new, old), way))


def _unbiased(op: Any, moved: Any, x: Any, var: Any, momentum: float) -> Any:
    """A running variance that was moved by the biased one of the batch, as kernels of a CPU do."""
    count = op.Cast(op.Div(op.Size(x), op.Size(var)), to=ir.DataType.DOUBLE)
    one = op.Constant(value=ir.tensor(np.float64(1.0)))
    factor = op.CastLike(op.Div(count, op.Max(op.Sub(count, one), one)), var)
    kept = op.Mul(var, op.CastLike(op.Constant(value_float=1.0 - momentum), var))
    return op.Add(kept, op.Mul(op.Sub(moved, kept), factor))


def _cross_entropy(  # type: ignore[no-untyped-def]
    x, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0
):
    """Cross entropy with smoothed labels or shares of classes, which the exporter leaves out."""
    op = _operators()
    how = ("none", "mean", "sum")[reduction]
    shares = target.dtype.is_floating_point()
    if not shares and not label_smoothing and len(x.shape) > 1:
        loss, _ = op.SoftmaxCrossEntropyLoss(
            x, target, weight, reduction=how, ignore_index=ignore_index
        )
        return loss
    axis = 0 if len(x.shape) == 1 else 1
    scores, axes = op.LogSoftmax(x, axis=axis), op.Constant(value_ints=[axis])
    if weight is not None:
        apart = op.Constant(value_ints=[-1, *[1] * (len(x.shape) - axis - 1)])
        scores = op.Mul(scores, op.Reshape(weight, apart))
    classes = op.Shape(x, start=axis, end=axis + 1)
    even = op.Div(op.Constant(value_float=label_smoothing), op.Cast(classes, to=ir.DataType.FLOAT))
    even = op.CastLike(op.Squeeze(even), x)
    kept = op.CastLike(op.Constant(value_float=1.0 - label_smoothing), x)
    if shares:
        wanted = op.Add(op.Mul(target, kept), even)
        each = op.Neg(op.ReduceSum(op.Mul(scores, wanted), axes, keepdims=0))
        return _reduced(op, each, how, op.Constant(value_float=1.0))
    there = op.Not(op.Equal(target, op.CastLike(op.Constant(value_int=ignore_index), target)))
    label = op.Where(there, target, op.CastLike(op.Constant(value_int=0), target))
    known = op.CastLike(there, x)
    own = op.GatherElements(scores, op.Unsqueeze(label, axes), axis=axis)
    both = op.Add(
        op.Mul(op.Squeeze(own, axes), kept),
        op.Mul(op.ReduceSum(scores, axes, keepdims=0), even),
    )
    share = known if weight is None else op.Mul(op.Gather(weight, label), known)
    return _reduced(op, op.Neg(op.Mul(both, known)), how, share)


def _reduced(op: Any, each: Any, how: str, share: Any) -> Any:
    """Losses of all samples as one; their mean is by the share that each has in it."""
    if how == "none":
        return each
    total = op.ReduceSum(each, keepdims=0)
    if how == "sum":
        return total
    shares = op.Expand(op.CastLike(share, each), op.Shape(each))
    return op.Div(total, op.ReduceSum(shares, keepdims=0))


def _scalar(number, dtype=None, **_):  # type: ignore[no-untyped-def]
    """A number of any type, which the exporter rounds to float32 first."""
    op = _operators()
    kind = ir.DataType.FLOAT if dtype in (None, -1) else ir.DataType(dtype)
    if isinstance(number, (bool, int, float)):
        exact = np.float64(number) if isinstance(number, float) else np.int64(number)
        number = op.Constant(value=ir.tensor(exact))
    return op.Cast(number, to=kind)


def _uniform(x, low=0.0, high=1.0, generator=None):  # type: ignore[no-untyped-def]
    return _operators().RandomUniformLike(x, low=float(low), high=float(high))


def _normal(mean, deviation=1.0, generator=None):  # type: ignore[no-untyped-def]
    op = _operators()
    return op.Add(mean, op.RandomNormalLike(mean, scale=float(deviation)))


def _permutation(count, **_):  # type: ignore[no-untyped-def]
    """The order of random numbers."""
    op = _operators()
    size = op.Constant(value_ints=[count]) if isinstance(count, int) else _as_list(op, count)
    numbers = op.RandomUniformLike(op.ConstantOfShape(size))
    _, order = op.TopK(numbers, size, axis=0)
    return order


def _as_list(op: Any, count: Any) -> Any:
    return op.Reshape(op.Cast(count, to=ir.DataType.INT64), op.Constant(value_ints=[1]))


def _random_relu(  # type: ignore[no-untyped-def]
    x, noise, lower=0.125, upper=1 / 3, training=False, generator=None
):
    """Negative numbers have a slope that is drawn for each, or the middle one."""
    op = _operators()
    if training:
        slope = op.RandomUniformLike(x, low=float(lower), high=float(upper))
    else:
        slope = op.CastLike(op.Constant(value_float=(lower + upper) / 2), x)
    positive = op.Greater(x, op.CastLike(op.Constant(value_float=0.0), x))
    one = op.CastLike(op.Constant(value_float=1.0), x)
    return op.Where(positive, x, op.Mul(x, slope)), op.Where(positive, one, slope)
