"""Rows for nodes that call torch: autograd functions and operators by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.interop.aten import DOMAIN
from onnxtrain.kernels.interop.registry import qualified_name
from onnxtrain.testing.case import Case, given, normal, only, shape_input
from onnxtrain.types import MS, DataType

FLOAT = DataType.FLOAT


class ScaledProduct(torch.autograd.Function):
    """scale·a·b, and twice a."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, scale: float, b: Tensor) -> tuple[Tensor, Tensor]:
        """Keep both tensors and the scale."""
        ctx.save_for_backward(a, b)
        ctx.scale = scale
        return scale * a * b, 2 * a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor]:
        """scale·b·dy + 2·dz, none for the scale, scale·a·dy."""
        a, b = ctx.saved_tensors
        dy, dz = grads
        return ctx.scale * b * dy + 2 * dz, None, ctx.scale * a * dy


_PYTHON = {
    "func_name": qualified_name(ScaledProduct),
    "input_convention": "dcd",
    "input_tensor_types": [int(FLOAT), int(FLOAT)],
    "input_tensor_ranks": [2, 2],
    "input_float_scalars": [0.5],
    "input_float_scalar_positions": [1],
    "output_tensor_types": [int(FLOAT), int(FLOAT)],
    "output_tensor_ranks": [2, 2],
}
CASES = [
    Case(
        "PythonOp",
        [normal(2, 3), normal(2, 3)],
        lambda a, b, **_: (torch.zeros(()), 0.5 * a * b, 2 * a),
        _PYTHON,
        MS,
        outputs=3,
        dtypes=only(FLOAT),
        gradient=False,
        empty=[0],
    ),
]


def _aten(
    name: str, inputs: list[Any], reference: Any, overload: str = "", outputs: int = 1
) -> Case:
    attributes = {"operator": name, "overload_name": overload}
    return Case(
        "ATen",
        inputs,
        lambda *values, **_: reference(*values),
        attributes,
        DOMAIN,
        outputs=outputs,
        dtypes=only(FLOAT, DataType.DOUBLE),
        gradient=False,
        name=f"{name}.{overload}.{len(inputs)}",
    )


CASES += [
    _aten("aten::erf", [normal(2, 3)], torch.erf),
    _aten("mul", [normal(2, 3), normal(3)], torch.mul, "Tensor"),
    _aten("add", [normal(2, 3), normal(3), given(2)], lambda x, y, a: x + 2 * y, "Tensor"),
    _aten("add", [normal(2, 3), normal(3)], torch.add, "Tensor"),
    _aten(
        "sum",
        [normal(2, 3, 4), shape_input(0, -1), given(True)],
        lambda x, dims, keep: x.sum([0, -1], keepdim=True),
        "dim_IntList",
    ),
    _aten("permute", [normal(2, 3, 4), shape_input(2, 0, 1)], lambda x, d: x.permute(2, 0, 1)),
    _aten("leaky_relu", [normal(5), given(0.25, FLOAT)], lambda x, s: torch.where(x > 0, x, x / 4)),
    _aten("max", [normal(4, 3), given([1])], lambda x, d: tuple(x.max(1)), "dim", outputs=2),
    _aten("clamp", [normal(9), None, given(0.5, FLOAT)], lambda x, low, high: x.clamp(max=0.5)),
]
