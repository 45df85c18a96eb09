"""Padded batches without their padding, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.indices import sum_rows, wrapped
from onnxtrain.types import FLOATS, INTS, MS


@kernel("FlattenAndUnpad", domain=MS, outputs=2, host_out=[1], T=FLOATS | INTS, T_INT=INTS)
def flatten_and_unpad(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """output[k] = rows[indices[k]], where the first two axes of the input become rows."""
    if input.ndim < 2 or indices.ndim != 1:
        raise ValueError(
            f"input must have rank >= 2 and indices rank 1, "
            f"got shapes {list(input.shape)} and {list(indices.shape)}"
        )
    dims = torch.tensor(list(input.shape[:2]), dtype=indices.dtype)
    rows = input.flatten(0, 1)
    return rows.index_select(0, wrapped(indices, rows.shape[0])), dims


@kernel(
    "PadAndUnflatten",
    domain=MS,
    host=["unflatten_dims"],
    needs=["deterministic"],
    T=FLOATS,
    T_INDEX=INTS,
    T_INT=INTS,
)
def pad_and_unflatten(
    input: Tensor, indices: Tensor, unflatten_dims: list[int], *, deterministic: bool = False
) -> Tensor:
    """rows[indices[k]] += input[k], from zeros; the rows become two axes.

    Rows of the same index add up, as the gradient of FlattenAndUnpad must.
    """
    if not isinstance(unflatten_dims, list) or len(unflatten_dims) != 2:
        raise ValueError(f"unflatten_dims must have two values, got {unflatten_dims}")
    if input.shape[:1] != indices.shape:
        raise ValueError(
            f"input must have one row per index, "
            f"got shapes {list(input.shape)} and {list(indices.shape)}"
        )
    count = unflatten_dims[0] * unflatten_dims[1]
    shape = (*unflatten_dims, *input.shape[1:])
    places = wrapped(indices, count).long()
    if input.numel() == 0:
        return input.new_zeros(shape)
    values = input.reshape(len(places), -1)
    return sum_rows(places, values, count, ordered=deterministic).reshape(shape)
