"""ReduceAllL2: one norm over many tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
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
    norms = [_in_blocks(x) for x in xs if _is_long(x)]
    if others := [x for x in xs if not _is_long(x)]:
        norms += torch._foreach_norm(others, 2, dtype=acc(xs[0].dtype))
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def _is_long(x: Tensor) -> bool:
    """Whether torch would make a float32 copy that is too large for a CPU's cache."""
    return x.dtype.itemsize < 4 and blocks.ready(x)


def _in_blocks(x: Tensor) -> Tensor:
    """The norm of one tensor in float32."""
    room, squares = torch.empty(blocks.size()), []
    for (block,) in blocks.flat(x):
        wide = room[: len(block)].copy_(block)
        squares.append(torch.dot(wide, wide))
    return torch.stack(squares).sum().sqrt()


for _result in sorted(FLOATS | {DataType.UNDEFINED}):
    # No input has the type of the norm; where the graph does not declare one, it is the inputs'.
    _declare(_result)
