"""Layers of which each token uses the few experts that its router prefers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.products import of_rows
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functools.partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "identity": lambda x: x,
}


@kernel("MoE", domain=MS, T=FLOATS)
def mixture_of_experts(
    x: Tensor,
    router_probs: Tensor,
    fc1_experts_weights: Tensor,
    fc1_experts_bias: Tensor | None,
    fc2_experts_weights: Tensor,
    fc2_experts_bias: Tensor | None = None,
    fc3_experts_weights: Tensor | None = None,
    fc3_experts_bias: Tensor | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float = float("inf"),
    use_sparse_mixer: int = 0,
) -> Tensor:
    """y = Σ p_e·(W2_e·f(W1_e·x + b1_e) + b2_e) over the k experts e with the largest softmax p.

    Every expert sees every token, so that no shape depends on values.
    """
    if use_sparse_mixer:
        raise ValueError("use_sparse_mixer is 1, but only 0 is known")
    swiglu = _SwiGLU(activation_alpha, activation_beta, swiglu_limit, swiglu_fusion)
    tokens = widen(x).reshape(-1, x.shape[-1])
    shares = _shares(widen(router_probs), k, bool(normalize_routing_weights))
    total = torch.zeros_like(tokens)
    for expert in range(len(fc1_experts_weights)):
        inner = _linear(tokens, fc1_experts_weights, fc1_experts_bias, expert)
        side = None
        if fc3_experts_weights is not None:
            side = _linear(tokens, fc3_experts_weights, fc3_experts_bias, expert)
        if activation_type == "swiglu":
            hidden = swiglu(inner, side)
        else:
            hidden = _activation(activation_type)(inner)
            hidden = hidden if side is None else hidden * side
        y = _linear(hidden, fc2_experts_weights, fc2_experts_bias, expert)
        total = total + shares[:, expert : expert + 1] * y
    return store(total.reshape(x.shape), x)


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in _ACTIVATIONS:
        known = [*_ACTIVATIONS, "swiglu"]
        raise ValueError(f"activation_type is '{name}', but it must be one of {known}")
    return _ACTIVATIONS[name]


class _SwiGLU:
    """g·σ(α·g)·(l + β) with g and l clipped to a limit."""

    def __init__(self, alpha: float, beta: float, limit: float, fusion: int) -> None:
        self.alpha, self.beta, self.limit, self.fusion = alpha, beta, limit, fusion

    def __call__(self, inner: Tensor, side: Tensor | None) -> Tensor:
        if self.fusion == 1:
            gate, line = inner[:, 0::2], inner[:, 1::2]
        elif self.fusion == 2 or side is None:
            gate, line = inner.chunk(2, -1)
        else:
            gate, line = inner, side
        gate, line = gate.clamp(max=self.limit), line.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (line + self.beta)


def _shares(router: Tensor, k: int, normalized: bool) -> Tensor:
    """How much of each expert a token uses; zero for all but the k that it prefers."""
    shares = torch.softmax(router, -1)
    chosen = torch.zeros_like(shares).scatter(-1, shares.topk(k, -1).indices, 1.0)
    shares = shares * chosen
    return shares / shares.sum(-1, keepdim=True) if normalized else shares


def _linear(x: Tensor, weights: Tensor, biases: Tensor | None, one: int) -> Tensor:
    """x·Wᵀ + b of one expert."""
    bias = None if biases is None else widen(biases[one])
    return of_rows(x, widen(weights[one]).mT, bias)
