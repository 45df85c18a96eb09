"""ReduceAllL2: one norm over many tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType

PIECE = 1 << 16
"""Elements of which a CPU adds up squares at once. Torch does it one behind the other in float32,
in eight lanes at best: the norm of 38 million numbers is wrong by 0.3 %, of others in an odd layout
by 28 %. Pieces also stay in the cache where they are widened."""


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
    return l2_of(xs, acc(xs[0].dtype))


def l2_of(xs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """√(Σ x²) over all elements of all tensors, as a scalar that was computed in a type."""
    norms = torch._foreach_norm([part for x in xs for part in _pieces(x)], 2, dtype)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def _pieces(x: Tensor) -> Sequence[Tensor]:
    """A tensor cut so that torch adds up few squares in a row; on a GPU it never adds many."""
    if x.device.type != "cpu" or (x.numel() <= PIECE and x.is_contiguous()):
        return (x,)
    return torch.split(x.reshape(-1), PIECE)


for _result in sorted(FLOATS | {DataType.UNDEFINED}):
    # No input has the type of the norm; where the graph does not declare one, it is the inputs'.
    _declare(_result)
