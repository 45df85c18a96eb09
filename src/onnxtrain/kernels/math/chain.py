"""Operators that work element by element, one after the other, as one operator.

Each line of such a chain is an operator and the numbers of its operands: inputs count from 0, and
what the lines give comes after them. Numbers are rounded after every line, as those of separate
operators are; truth values stay within the chain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN

QUICK = 1.702
"""The usual factor of QuickGelu."""


class Line(NamedTuple):
    """One operator of a chain."""

    op: str
    alpha: float
    operands: tuple[int, ...]


def _quick_gelu_grad(dy: Tensor, x: Tensor, alpha: float) -> Tensor:
    s = torch.sigmoid(x * alpha)
    return dy * (s * (1 + x * alpha * (1 - s)))


_ONE_BY_ONE: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
    "Sum": lambda *xs: functools.reduce(torch.add, xs),
    "Neg": torch.neg,
    "Abs": torch.abs,
    "Exp": torch.exp,
    "Sqrt": torch.sqrt,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "ReluGrad": lambda dy, x: torch.where(x <= 0, 0.0, dy),
    "Sigmoid": torch.sigmoid,
    "SigmoidGrad": lambda dy, y: dy * (y * (1 - y)),
    "TanhGrad": lambda dy, y: dy * (1 - y * y),
    "Where": torch.where,
    "Greater": torch.gt,
    "Less": torch.lt,
    "GreaterOrEqual": torch.ge,
    "LessOrEqual": torch.le,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Not": torch.logical_not,
}
_WITH_FACTOR: dict[str, Callable[..., Tensor]] = {
    "QuickGelu": lambda x, alpha: x * torch.sigmoid(x * alpha),
    "QuickGeluGrad": _quick_gelu_grad,
}


@functools.lru_cache(maxsize=256)
def parsed(steps: str) -> tuple[Line, ...]:
    """The lines of a chain: ``Add 0 1; QuickGelu:1.702 2``."""
    lines = []
    for text in steps.split(";"):
        name, *operands = text.split()
        op, _, alpha = name.partition(":")
        if op not in _ONE_BY_ONE and op not in _WITH_FACTOR:
            raise ValueError(f"'{op}' is no operator of a chain")
        lines.append(Line(op, float(alpha or QUICK), tuple(map(int, operands))))
    return tuple(lines)


@kernel("Elementwise", domain=OWN, T=FLOATS)
def elementwise(*inputs: Tensor, steps: str) -> Tensor:
    """What the last of several lines gives, each of which is an operator of earlier values."""
    lines = parsed(steps)
    served = inputs[0].is_cuda and fast.serves(inputs[0].get_device())
    if served and (quick := fast.load("generated")).takes(inputs):
        made: Tensor = quick.run(lines, inputs)
        return made
    values = list(inputs)
    for line in lines:
        given = [widen(values[index]) for index in line.operands]
        if line.op in _WITH_FACTOR:
            result = _WITH_FACTOR[line.op](*given, line.alpha)
        else:
            result = _ONE_BY_ONE[line.op](*given)
        values.append(result if result.dtype is torch.bool else result.to(inputs[0].dtype))
    return values[-1]
