"""Attention in which queries see only some blocks of the keys, as Phi-3-small has it."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.transformer.attend import first_of
from onnxtrain.kernels.transformer.group_query import group_query_attention
from onnxtrain.types import FLOATS, MS


@kernel("SparseAttention", domain=MS, outputs=3, host=["total_sequence_length"], T=FLOATS)
def sparse_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor,
    past_value: Tensor,
    block_row_indices: Tensor,
    block_col_indices: Tensor,
    total_sequence_length: int | list[int],
    key_total_sequence_lengths: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sparse_block_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """GroupQueryAttention with a cache, among blocks of positions that a layout opens.

    Layouts are matrices of blocks whose rows are lists of columns; heads take them in turns. The
    cache has room for all positions, and what lies behind the new ones stays.
    """
    total = first_of(total_sequence_length)
    assert total is not None
    queries = query.shape[1]
    ends = key_total_sequence_lengths.reshape(-1, 1).to(torch.int64)
    starts = torch.zeros_like(ends) if total == queries else ends - queries
    positions = starts + torch.arange(queries, device=query.device)
    layouts = _opened(block_row_indices, block_col_indices)
    of_head = torch.arange(num_heads, device=query.device) % len(layouts)
    keys = torch.arange(total, device=query.device) // sparse_block_size
    rows = (positions // sparse_block_size)[:, None, :, None]
    opened = layouts[of_head[:, None, None], rows, keys]
    # a finite number: a query of the padding may see nothing at all
    bias = query.new_zeros(opened.shape).masked_fill(~opened, torch.finfo(query.dtype).min)
    y, next_keys, next_values, _ = group_query_attention(
        query,
        key,
        value,
        past_key,
        past_value,
        key_total_sequence_lengths - 1,
        total,
        cos_cache,
        sin_cache,
        attention_bias=bias,
        do_rotary=do_rotary,
        kv_num_heads=kv_num_heads,
        num_heads=num_heads,
        rotary_interleaved=rotary_interleaved,
        scale=scale,
    )
    behind = torch.arange(past_key.shape[2], device=query.device) >= starts + queries
    untouched = behind[:, None, :, None]
    return (
        y,
        torch.where(untouched, past_key, next_keys),
        torch.where(untouched, past_value, next_values),
    )


def _opened(rows: Tensor, columns: Tensor) -> Tensor:
    """[layout, row, column]: whether a block is among those of its row.

    The columns of row i stand from ``rows[i]`` up to ``rows[i + 1]``; unused places hold -1.
    """
    place = torch.arange(columns.shape[1], device=columns.device)
    of_row = (place >= rows[:, :-1, None]) & (place < rows[:, 1:, None])
    names = torch.arange(rows.shape[1] - 1, device=columns.device)
    is_column = columns.unsqueeze(2) == names
    return (of_row.to(torch.float32) @ is_column.to(torch.float32)) > 0
