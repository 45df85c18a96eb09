"""What some kernels of a GPU compute, where a CPU has none or another one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pretended import limits

_aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
PADDED = 32
"""The logsumexp of the memory-efficient attention has rows of a multiple of this."""


def _heads(t: Tensor, count: int) -> Tensor:
    """In float64, a head for each of the queries'."""
    return t.double().repeat_interleave(count // t.shape[1], 1)


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, factor: float) -> Tensor:
    scores = q.double() @ _heads(k, q.shape[1]).mT * factor
    if bias is not None:
        scores = scores + bias.double()
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _forward(
    *leaves: Tensor, bias: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """y = softmax(q·kᵀ·scale + bias)·v and the logsumexp of its scores."""
    if dropout:
        limits.stop("attention")
    q, k, v = leaves
    scores = _scores(q, k, bias, causal, _factor(q, scale))
    y = scores.softmax(-1).nan_to_num(0) @ _heads(v, q.shape[1])
    return y.to(q.dtype), scores.logsumexp(-1).float()


def _backward(
    *leaves: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys, values and bias."""
    dy, q, k, v = leaves
    factor, dy64 = _factor(q, scale), dy.double()
    weights = _scores(q, k, bias, causal, factor).softmax(-1).nan_to_num(0)
    d_weights = dy64 @ _heads(v, q.shape[1]).mT
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True))
    dq = d_scores @ _heads(k, q.shape[1]) * factor
    dk, dv = d_scores.mT @ q.double() * factor, weights.mT @ dy64
    dk, dv = (d.unflatten(1, (k.shape[1], -1)).sum(2) for d in (dk, dv))
    return tuple(d.to(q.dtype) for d in (dq, dk, dv, d_scores))


def _factor(q: Tensor, scale: float | None) -> float:
    return float(q.shape[-1] ** -0.5) if scale is None else scale


def _seeds() -> tuple[Tensor, Tensor]:
    return torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


def _cudnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    compute: bool,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    y, sums = _forward(q, k, v, bias=bias, dropout=dropout, causal=causal, scale=scale)
    return y, sums.unsqueeze(-1), None, None, q.shape[2], k.shape[2], *_seeds(), torch.zeros(0)


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    y, sums = _forward(q, k, v, bias=None, dropout=dropout, causal=causal, scale=scale)
    return y, sums, None, None, q.shape[2], k.shape[2], *_seeds(), torch.zeros(0)


def _efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    compute: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    y, sums = _forward(q, k, v, bias=bias, dropout=dropout, causal=causal, scale=scale)
    return y, functional.pad(sums, (0, -sums.shape[-1] % PADDED)), *_seeds()


def _cudnn_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *saved: Any, scale: float | None = None
) -> Any:
    *_, bias, _, _, _, _, _, causal = saved
    return _backward(dy, q, k, v, bias=bias, causal=causal, scale=scale)[:3]


def _flash_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *saved: Any, scale: float | None = None
) -> Any:
    *_, causal, _, _ = saved
    return _backward(dy, q, k, v, bias=None, causal=causal, scale=scale)[:3]


def _efficient_backward(*given: Any, scale: float | None = None) -> Any:
    dy, q, k, v, bias, _, _, _, _, _, wanted, *rest = given
    causal = bool(rest and rest[0])
    *found, d_bias = _backward(dy, q, k, v, bias=bias, causal=causal, scale=scale)
    return *found, d_bias if wanted[3] else torch.zeros(0)


def _softmax(op: Callable[..., Tensor], x: Tensor, dim: int, to_float: bool) -> Tensor:
    """A GPU also gives the result for 16 bits in 32."""
    return op(x.float() if to_float else x, dim, False)


def _in_float(op: Callable[..., Any], narrow: int, *args: Any) -> Any:
    """A GPU computes layers of 16 bits in 32, statistics too; so many results have 16 again."""
    dtype = args[0].dtype
    if dtype not in HALVES:
        return op(*args)
    wide = [a.float() if isinstance(a, Tensor) else a for a in args]
    results = op(*wide)
    return *(r if r is None else r.to(dtype) for r in results[:narrow]), *results[narrow:]


def _descend(
    op: Callable[..., None],
    weights: list[Tensor],
    grads: list[Tensor],
    moments: list[Tensor],
    **options: Any,
) -> None:
    """Torch's kernel for a CPU leaves weights of 16 bits as they were if there are no moments."""
    own = [weights, grads, moments]
    wide = [[t.float() if t.dtype in HALVES else t for t in tensors] for tensors in own]
    op(*wide, **options)
    for tensors, computed in zip(own, wide, strict=True):
        for t, c in zip(tensors, computed, strict=True):
            t.copy_(c)


KERNELS: dict[Any, Callable[..., Any]] = {
    _aten._scaled_dot_product_cudnn_attention.default: _cudnn,
    _aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    _aten._scaled_dot_product_flash_attention.default: _flash,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten._scaled_dot_product_efficient_attention.default: _efficient,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}
"""By operator."""
for _op in (_aten._softmax.default, _aten._log_softmax.default):
    KERNELS[_op] = functools.partial(_softmax, _op)
for _op, _narrow in (
    (_aten.native_layer_norm.default, 1),
    (_aten.native_layer_norm_backward.default, 3),
):
    KERNELS[_op] = functools.partial(_in_float, _op, _narrow)
for _op in (_aten._fused_sgd_.default, _aten._fused_sgd_.tensor_lr):
    KERNELS[_op] = functools.partial(_descend, _op)
