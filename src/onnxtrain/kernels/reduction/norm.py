"""ReduceAllL2: one norm over many tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType


def _declare(result: DataType) -> None:
    @kernel("ReduceAllL2", domain=MS, TIn=FLOATS, TOut=frozenset({result}))
    def reduce_all_l2(*xs: Tensor) -> Tensor:
        return all_l2(*xs).to(to_torch(result))


def all_l2(*xs: Tensor) -> Tensor:
    """√(Σ x²) over all elements of all inputs, as a scalar in the type of computation."""
    norms = torch._foreach_norm(list(xs), 2, dtype=acc(xs[0].dtype))
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


for _result in (DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16, DataType.BFLOAT16):
    _declare(_result)
