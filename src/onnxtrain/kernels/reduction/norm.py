"""ReduceAllL2: one norm over many tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType

FEW, PIECE = 1 << 16, 1 << 18
"""Elements of which torch may add up squares on a CPU, and of pieces of longer tensors. Torch
adds all of a tensor in float32 and few lanes: its norm of 38 million numbers is wrong by 0.3 %, of
others in an odd layout by 28 %."""


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
    others, norms = [*xs], list[Tensor]()
    if xs[0].device.type == "cpu" and not blocks.recorded(*xs):
        norms = [_in_pieces(x, dtype) for x in xs if x.numel() > FEW]
        others = [x.contiguous() for x in xs if x.numel() <= FEW]
    if others:
        norms += torch._foreach_norm(others, 2, dtype)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def _in_pieces(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The norm of one tensor, of which pieces are widened where they stay in the cache."""
    room = torch.empty(0 if x.dtype is dtype else min(PIECE, x.numel()), dtype=dtype)
    squares = []
    for piece in torch.split(x.reshape(-1), PIECE):
        wide = piece.contiguous() if x.dtype is dtype else room[: len(piece)].copy_(piece)
        squares.append(torch.dot(wide, wide))
    return torch.stack(squares).sum().sqrt()


for _result in sorted(FLOATS | {DataType.UNDEFINED}):
    # No input has the type of the norm; where the graph does not declare one, it is the inputs'.
    _declare(_result)
