"""What torch's exporter would write in another way than a module that trains means it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch


def translated(on_gpu: bool) -> dict[Any, Callable[..., Any]]:
    """How operators of torch are written, for kernels of a GPU or not."""
    return {torch.ops.aten._native_batch_norm_legit_functional.default: _batch_norm(on_gpu)}


def _batch_norm(on_gpu: bool) -> Callable[..., Any]:
    """BatchNormalization in training form, which the exporter writes as one that infers."""
    import onnxscript

    op: Any = onnxscript.opset18

    def batch_norm(x, weight, bias, mean, var, training, momentum, eps):  # type: ignore[no-untyped-def]
        channel = op.Shape(x, start=1, end=2)
        one = op.CastLike(op.Constant(value_floats=[1.0]), x)
        scale = op.Expand(one, channel) if weight is None else weight
        shift = op.Expand(op.Sub(one, one), channel) if bias is None else bias
        y, new_mean, new_var = op.BatchNormalization(
            x, scale, shift, mean, var, epsilon=eps, momentum=1.0 - momentum, training_mode=1
        )
        if not on_gpu:
            new_var = _unbiased(op, new_var, x, var, momentum)
        return y, op.Identity(mean), op.Identity(var), new_mean, new_var

    return batch_norm


def _unbiased(op: Any, moved: Any, x: Any, var: Any, momentum: float) -> Any:
    """A running variance that was moved by the biased one of the batch, as kernels of a CPU do."""
    count = op.Cast(op.Div(op.Size(x), op.Size(var)), to=ir.DataType.FLOAT)
    one = op.Constant(value_float=1.0)
    factor = op.CastLike(op.Div(count, op.Max(op.Sub(count, one), one)), var)
    kept = op.Mul(var, op.CastLike(op.Constant(value_float=1.0 - momentum), var))
    return op.Add(kept, op.Mul(op.Sub(moved, kept), factor))
