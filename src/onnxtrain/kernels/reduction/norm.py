"""ReduceAllL2: one norm over many tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType


def _declare(declared: DataType) -> None:
    @kernel("ReduceAllL2", domain=MS, TIn=FLOATS, TOut=frozenset({declared}))
    def reduce_all_l2(*xs: Tensor) -> Tensor:
        known = declared != DataType.UNDEFINED
        return all_l2(*xs).to(to_torch(declared) if known else xs[0].dtype)


def all_l2(*xs: Tensor) -> Tensor:
    """√(Σ x²) over all elements of all inputs, as a scalar in the type of computation."""
    if fast.ready_together(xs):
        found: Tensor | None = fast.load("many").norm(xs)
        if found is not None:
            return found
    norms = torch._foreach_norm(list(xs), 2, dtype=acc(xs[0].dtype))
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


for _result in sorted(FLOATS | {DataType.UNDEFINED}):
    # No input has the type of the norm; where the graph does not declare one, it is the inputs'.
    _declare(_result)
