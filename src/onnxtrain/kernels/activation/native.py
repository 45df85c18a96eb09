"""torch's own fused operators, written into given memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels import blocks


def forward(op: Any, x: Tensor, *more: Any, out: Tensor | None, **options: Any) -> Tensor:
    """Run a function of x into ``out``, or into fresh memory like that of x."""
    result: Tensor
    if out is None and blocks.recorded(x):  # torch cannot go back through what is written so
        result = op.default(x, *more, **options)
    else:
        room = torch.empty_like(x) if out is None else out
        result = op.out(x, *more, out=room, **options)
    return result


def backward(
    op: Any, dy: Tensor, operand: Tensor, *more: Any, out: Tensor | None, **options: Any
) -> Tensor:
    """Run the gradient of a function into ``out``, or into fresh memory."""
    if dy.shape != operand.shape:
        raise ValueError(
            f"dY has shape {tuple(dy.shape)}, allowed is that of the second input, "
            f"{tuple(operand.shape)}"
        )
    result: Tensor
    if out is None:
        result = op.default(dy, operand, *more, **options)
    else:
        result = op.grad_input(dy, operand, *more, grad_input=out, **options)
    return result
