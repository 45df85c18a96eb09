"""The cheapest way through a matrix of costs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

LEFT, BOTH, UP = 0, 1, 2
"""Where a way came from: the column before, the row and the column before, the row before."""


@kernel("DynamicTimeWarping", domain=MS, F=FLOATS)
def dynamic_time_warping(costs: Tensor) -> Tensor:
    """Rows and columns [2, steps] of the way from the first to the last place with the least sum.

    A step goes to the next row, column or both. Of ways that cost the same, it is the one whose
    last steps change the column alone, then both.
    """
    if costs.ndim != 2 and (costs.ndim != 3 or len(costs) != 1):
        raise ValueError(
            f"the costs have shape {list(costs.shape)}, but they must be [row, column] or "
            "[1, row, column]"
        )
    matrix = widen(costs.detach()).reshape(costs.shape[-2:])
    # how many steps the way has is known on the host alone
    way = _way(_moves(matrix.cpu().numpy()))
    return torch.tensor(way, dtype=torch.int32, device=costs.device).reshape(-1, 2).T.contiguous()


def _moves(costs: npt.NDArray[np.floating]) -> npt.NDArray[np.int8]:
    """How the cheapest way reaches each place, found along one falling diagonal after another."""
    rows, columns = costs.shape
    moves = np.empty((rows, columns), np.int8)
    total = np.full((rows + 1, columns + 1), np.inf, costs.dtype)
    total[0, 0] = 0
    for diagonal in range(rows + columns - 1):
        i = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        j = diagonal - i
        before = np.stack([total[i + 1, j], total[i, j], total[i, j + 1]])
        moves[i, j] = before.argmin(0)
        total[i + 1, j + 1] = before.min(0) + costs[i, j]
    return moves


def _way(moves: npt.NDArray[np.int8]) -> list[tuple[int, int]]:
    """The places from the first to the last one, found backwards."""
    i, j = moves.shape[0] - 1, moves.shape[1] - 1
    way = [(i, j)] if moves.size else []
    while moves.size and (i, j) != (0, 0):
        # at the border there is one way back, also where all costs are infinite
        move = LEFT if i == 0 else UP if j == 0 else moves[i, j]
        i, j = i - (move != LEFT), j - (move != UP)
        way.append((int(i), int(j)))
    return way[::-1]
