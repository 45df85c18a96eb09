"""FlashAttention: attention that keeps one number a query for its gradient, never the scores.

Who computes it is decided by ``backends.choose``, alike for the operator and its gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.attention import backends
from onnxtrain.kernels.attention.repeated import alike, gathered
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, OWN


@kernel(
    "FlashAttention",
    domain=OWN,
    outputs=4,
    needs=["rng", "deterministic"],
    T=FLOATS,
)
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    dropout: float = 0.0,
    is_causal: int = 0,
    scale: float | None = None,
    rng: torch.Generator | None = None,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """softmax(q·kᵀ·scale + mask)·v, log Σ exp of the scores, and where random numbers began.

    q is [batch, head, query, size]; keys and values may have fewer heads. The mask says which pairs
    may meet, or is added. A query that may see nothing gets 0. A single sample is that of all.
    """
    operands = alike(q, k, v, mask)
    call = backends.Call(*operands, mask, dropout, bool(is_causal), scale, deterministic)
    return backends.choose(call).forward(call, rng)


@kernel(
    "FlashAttentionGrad",
    domain=OWN,
    outputs=4,
    needs=["wanted", "deterministic"],
    T=FLOATS,
)
def flash_attention_grad(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    y: Tensor,
    logsumexp: Tensor,
    seed: Tensor,
    offset: Tensor,
    *,
    dropout: float = 0.0,
    is_causal: int = 0,
    scale: float | None = None,
    wanted: tuple[bool, ...],
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """dq, dk, dv, and d mask where the mask is added.

    With p = exp(scores - logsumexp): ds = p·(dy·vᵀ - Σ dy·y), dq = ds·k·scale,
    dk = dsᵀ·q·scale, dv = pᵀ·dy, d mask = ds.
    """
    operands = alike(q, k, v, mask)
    call = backends.Call(*operands, mask, dropout, bool(is_causal), scale, deterministic)
    saved = backends.Saved(y, logsumexp, seed, offset)
    masked = len(wanted) > 3 and wanted[3]
    dq, dk, dv, d_mask = backends.choose(call).backward(call, dy, saved, masked)
    return gathered(dq, q), gathered(dk, k), gathered(dv, v), d_mask
