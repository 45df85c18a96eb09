"""Attention with its own projections, of inputs and of quantized inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.attention.rotary import rotated
from onnxtrain.kernels.ms.qproducts import steps
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.products import of_rows
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.transformer.attend import (
    Padding,
    added,
    appended,
    attend,
    first_of,
    join_heads,
    scale_of,
    split_heads,
    working,
)
from onnxtrain.types import FLOATS, MS

ROTARY_BASE = 10000.0


@kernel(
    "Attention",
    domain=MS,
    outputs=2,
    host=["past_sequence_length"],
    needs=["wanted"],
    T=FLOATS,
)
def attention(
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: int | list[int] | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, Tensor | None]:
    """Attention of q, k, v = x·W + b, and keys and values with the past before them, stacked."""
    product = of_rows(working(input), working(weights))
    heads = projections(product, bias, num_heads, qkv_hidden_sizes)
    used = first_of(past_sequence_length) if past_present_share_buffer else None
    if past_present_share_buffer and (past is None or used is None):
        raise ValueError("past_present_share_buffer needs past and past_sequence_length")
    how = _SelfAttention(scale, mask_filter_value, bool(unidirectional))
    if do_rotary:
        how = dataclasses.replace(how, rotary=rotary_embedding_dim or heads[0].shape[3])
    y, present = how(heads, past, used, mask_index, attention_bias)
    shown = _stacked(*present).to(input.dtype) if len(wanted) > 1 and wanted[1] else None
    return join_heads(y).to(input.dtype), shown


def projections(
    product: Tensor, bias: Tensor | None, heads: int, sizes: Sequence[int] | None = None
) -> list[Tensor]:
    """Queries, keys and values out of one product, each [batch, head, position, size]."""
    product = product if bias is None else product + working(bias)
    width = product.shape[-1]
    parts = list(sizes) if sizes else [width // 3] * 3
    if len(parts) != 3 or sum(parts) != width:
        raise ValueError(f"weights have {width} columns, which sizes {parts} do not divide")
    return [split_heads(part, heads) for part in product.split(parts, -1)]


@dataclasses.dataclass(frozen=True)
class _SelfAttention:
    """Attention over projections, as attributes describe it; ``rotary`` features are turned."""

    scale: float
    closed: float
    causal: bool
    rotary: int = 0

    def __call__(
        self,
        heads: Sequence[Tensor],
        past: Tensor | None,
        used: int | None = None,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """y, and keys and values for the next call; ``used`` positions of a buffer are the past."""
        query, key, value = heads
        before = used if used is not None else 0 if past is None else past.shape[3]
        if self.rotary:
            query, key = (_turned(x, before, self.rotary) for x in (query, key))
        keys, next_keys = appended(None if past is None else past[0], key, used)
        values, next_values = appended(None if past is None else past[1], value, used)
        if mask is not None:
            shape = Padding(len(query), query.shape[2], keys.shape[2])
            bias = added(shape.bias(mask, self.closed, query), bias)
        scale = scale_of(self.scale, query.shape[3])
        y = attend(query, keys, values, bias, scale, before if self.causal else None)
        return y, (next_keys, next_values)


def _stacked(keys: Tensor, values: Tensor) -> Tensor:
    if keys.shape != values.shape:
        raise ValueError(
            f"keys {list(keys.shape)} and values {list(values.shape)} of different sizes "
            "cannot be stacked as the present"
        )
    return torch.stack([keys, values])


def _turned(x: Tensor, start: int, size: int) -> Tensor:
    """Features i and i + d/2 turned by position · 10000^(-2i/d)."""
    steps = torch.arange(0, size, 2, device=x.device, dtype=acc(x.dtype))
    position = torch.arange(start, start + x.shape[2], device=x.device, dtype=steps.dtype)
    angles = torch.outer(position, ROTARY_BASE ** (-steps / size))
    return rotated(x, angles.cos(), angles.sin(), interleaved=False)


@kernel("QAttention", domain=MS, outputs=2, needs=["wanted"], T3=FLOATS)
def quantized_attention(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    past: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, Tensor | None]:
    """Attention of (x - zero)·scale, with weights that were quantized the same way."""
    if past_present_share_buffer:
        raise ValueError("past_present_share_buffer is not supported: no input has the length")
    # whole numbers multiply exactly in float64, and the scales are applied to the exact product
    product = steps(input, input_zero_point) @ steps(weight, weight_zero_point)
    product = product * (input_scale.to(torch.float64) * weight_scale.to(torch.float64))
    heads = projections(product.to(acc(bias.dtype)), bias, num_heads)
    how = _SelfAttention(scale, mask_filter_value, bool(unidirectional))
    if do_rotary:
        how = dataclasses.replace(how, rotary=heads[0].shape[3])
    y, present = how(heads, past, mask=mask_index)
    shown = _stacked(*present).to(bias.dtype) if len(wanted) > 1 and wanted[1] else None
    return join_heads(y).to(bias.dtype), shown
