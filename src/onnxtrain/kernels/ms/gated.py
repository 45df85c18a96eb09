"""Norms and gates of state space models and of attention that is linear in the length."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "sigmoid": torch.sigmoid,
}


def _unit(x: Tensor, epsilon: float) -> Tensor:
    """x / √(mean(x²) + ε) along the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


@kernel("GatedRMSNorm", domain=MS, T=FLOATS)
def gated_rms_norm(
    x: Tensor, scale: Tensor, gate: Tensor, *, activation: str = "silu", epsilon: float = 1e-5
) -> Tensor:
    """y = x/√(mean(x²) + ε)·scale·f(gate), for each group of as many elements as scale has."""
    if activation not in _GATES:
        raise ValueError(f"activation is '{activation}', but it must be one of {list(_GATES)}")
    groups = widen(x).unflatten(-1, (-1, len(scale)))
    y = (_unit(groups, epsilon) * widen(scale)).flatten(-2)
    return store(y * _GATES[activation](widen(gate)), x)


@kernel("BranchwiseRMSNorm", domain=MS, T=FLOATS, M=FLOATS)
def branchwise_rms_norm(
    x: Tensor, scale: Tensor | None = None, *, epsilon: float = 1e-5, num_branches: int = 0
) -> Tensor:
    """y = x/√(mean(x²) + ε)·scale over the last axis, which may be flat for all branches."""
    wide = widen(x).unflatten(-1, (num_branches, -1)) if num_branches else widen(x)
    y = _unit(wide, epsilon)
    if scale is not None:
        flat = scale.ndim == 1 and len(scale) != wide.shape[-1]
        y = y * widen(scale.reshape(wide.shape[-2:]) if flat else scale)
    return store(y.reshape(x.shape), x)


@kernel("LinearAttentionGate", domain=MS, outputs=2, T=FLOATS, TF=FLOATS)
def linear_attention_gate(
    a: Tensor, dt_bias: Tensor, decay_scale: Tensor, b: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """decay = scale·ln(1 + exp(a + bias)), beta = σ(b)."""
    decay = widen(decay_scale) * functional.softplus(widen(a) + widen(dt_bias))
    return store(decay, a), None if b is None else torch.sigmoid(b)
