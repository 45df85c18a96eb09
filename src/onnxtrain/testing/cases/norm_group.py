"""Rows of the group normalization that keeps its statistics, and of its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, normal, uniform
from onnxtrain.types import FLOATS, OWN, DataType


def _statistics(x: Tensor, groups: int, epsilon: float) -> tuple[Tensor, Tensor]:
    rows = x.reshape(x.shape[0], groups, -1)
    variance = rows.var(-1, correction=0)
    return rows.mean(-1), 1 / torch.sqrt(variance + epsilon)


def _act(x: Tensor, activation: str, alpha: float) -> Tensor:
    if activation == "none":
        return x
    return torch.where(x > 0, x, 0) if activation == "relu" else x * torch.sigmoid(alpha * x)


def _forward(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    activation: str = "none",
    alpha: float = 1.0,
) -> tuple[Tensor, ...]:
    mean, inverse = _statistics(x, num_groups, epsilon)
    rows = x.reshape(x.shape[0], num_groups, -1)
    normal_x = ((rows - mean[..., None]) * inverse[..., None]).reshape(*x.shape[:2], -1)
    y = _act(normal_x * scale[:, None] + bias[:, None], activation, alpha)
    return y.reshape(x.shape), mean, inverse


def _backward(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    mean: Tensor,
    inverse: Tensor,
    bias: Tensor | None = None,
    *,
    num_groups: int,
    activation: str = "none",
    alpha: float = 1.0,
    **_: Any,
) -> tuple[Tensor, ...]:
    """The formula; the statistics need not be those of x."""
    rows, (samples, channels) = x.reshape(x.shape[0], num_groups, -1), x.shape[:2]
    n = (rows - mean[..., None]) * inverse[..., None]
    by_channel = dy.reshape(samples, channels, -1)
    if bias is not None:
        with torch.enable_grad():
            line = n.reshape(by_channel.shape) * scale[:, None] + bias[:, None]
            line = line.detach().requires_grad_()
            (by_channel,) = torch.autograd.grad(_act(line, activation, alpha), line, by_channel)
    g = (by_channel * scale[:, None]).reshape(rows.shape)
    even, along = g.mean(-1, keepdim=True), (g * n).mean(-1, keepdim=True)
    dx = (inverse[..., None] * (g - even - n * along)).reshape(x.shape)
    product = by_channel * n.reshape(by_channel.shape)
    return dx, product.sum((0, 2)), by_channel.sum((0, 2))


_SHAPES: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
    ("image", (2, 6, 3, 4), {"num_groups": 3}),
    ("instance", (3, 4, 5), {"num_groups": 4, "epsilon": 0.015625}),
    ("one", (2, 4, 3, 2, 2), {"num_groups": 1}),
    ("relu", (2, 4, 3, 2), {"num_groups": 2, "activation": "relu"}),
    ("silu", (2, 6, 3, 4), {"num_groups": 3, "activation": "swish"}),
    ("quick", (3, 4, 5), {"num_groups": 4, "activation": "swish", "alpha": 1.75}),
)
CASES = [
    *(
        Case("GroupNormalized", [normal(*shape), normal(shape[1]), normal(shape[1])],
             lambda *values, **given: _forward(*values, **given)[0], attributes, domain=OWN,
             dtypes=FLOATS, name=f"{name}_alone")
        for name, shape, attributes in _SHAPES
    ),
    *(
        Case("GroupNormalized", [normal(*shape), normal(shape[1]), normal(shape[1])], _forward,
             attributes, domain=OWN, outputs=3, dtypes=FLOATS, name=name)
        for name, shape, attributes in _SHAPES
    ),
    *(
        Case("GroupNormalizedGrad",
             [normal(*shape), normal(*shape), uniform(shape[1], low=0.5, high=2),
              normal(shape[0], attributes["num_groups"]).typed(DataType.FLOAT),
              uniform(shape[0], attributes["num_groups"], low=0.5, high=2).typed(DataType.FLOAT),
              *([normal(shape[1])] if "activation" in attributes else [])],
             _backward, attributes, domain=OWN, outputs=3, dtypes=FLOATS - {DataType.DOUBLE},
             name=name, gradient=False)
        for name, shape, attributes in _SHAPES
    ),
]  # fmt: skip
