"""Operators of com.microsoft that transformers are fused into: attention and embeddings."""

from onnxtrain.kernels.transformer import (
    embed,
    group_query,
    longformer,
    multi_head,
    packed,
    position,
    self_attention,
    sparse,
)

__all__ = [
    "embed",
    "group_query",
    "longformer",
    "multi_head",
    "packed",
    "position",
    "self_attention",
    "sparse",
]
