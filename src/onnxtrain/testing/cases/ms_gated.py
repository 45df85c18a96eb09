"""Rows of gates, norms and mixtures of experts of newer language models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.testing.case import Case, apart, normal
from onnxtrain.types import MS


def _gated(
    x: Any, scale: Any, gate: Any, *, activation: str = "silu", epsilon: float = 1e-5
) -> Any:
    size = scale.shape[0]
    parts = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    n = parts / ((parts**2).sum(-1, keepdim=True) / size + epsilon) ** 0.5
    factor = 1 / (1 + torch.exp(-gate))
    return (n * scale).reshape(x.shape) * (factor if activation == "sigmoid" else gate * factor)


def _branches(x: Any, scale: Any = None, *, epsilon: float = 1e-5, num_branches: int = 0) -> Tensor:
    parts = x.reshape(*x.shape[:-1], num_branches, -1) if num_branches else x
    y = parts / ((parts**2).mean(-1, keepdim=True) + epsilon) ** 0.5
    if scale is not None and scale.numel() == parts.shape[-1]:
        y = y * scale
    elif scale is not None:
        y = y * scale.reshape(parts.shape[-2:])
    found: Tensor = y.reshape(x.shape)
    return found


def _gates(a: Any, bias: Any, scale: Any, b: Any = None) -> Any:
    decay = scale * torch.log(1 + torch.exp(a + bias))
    return decay if b is None else (decay, 1 / (1 + torch.exp(-b)))


NORMS = [
    *(
        Case("GatedRMSNorm", [normal(2, 3, 8), normal(4), normal(2, 3, 8)], _gated,
             {"activation": gate}, MS)
        for gate in ("silu", "swish")
    ),
    Case("GatedRMSNorm", [normal(5, 3), normal(3), normal(5, 3)], _gated,
         {"activation": "sigmoid", "epsilon": 0.01}, MS),
    Case("BranchwiseRMSNorm", [normal(3, 2, 4)], _branches, domain=MS, name="bare"),
    Case("BranchwiseRMSNorm", [normal(3, 2, 4), normal(4)], _branches, domain=MS, name="shared"),
    Case("BranchwiseRMSNorm", [normal(3, 2, 4), normal(2, 4)], _branches, domain=MS, name="each"),
    Case("BranchwiseRMSNorm", [normal(3, 8), normal(8)], _branches,
         {"num_branches": 2, "epsilon": 0.01}, MS, name="flat"),
    Case("LinearAttentionGate", [normal(2, 3, 4), normal(4), normal(4)], _gates, domain=MS,
         name="decay"),
    Case("LinearAttentionGate", [normal(1, 2, 3), normal(3), normal(3), normal(1, 2, 3)], _gates,
         domain=MS, outputs=2, name="both"),
]  # fmt: skip

_CURVES = {
    "relu": torch.relu,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "identity": torch.clone,
}


def _experts(
    x: Any, router: Any, w1: Any, b1: Any, w2: Any, b2: Any = None, w3: Any = None, b3: Any = None,
    *, activation_type: str = "relu", k: int = 1, normalize_routing_weights: int = 0,
    activation_alpha: float = 1.0, activation_beta: float = 0.0, swiglu_fusion: int = 0,
    swiglu_limit: float = 1e9,
) -> Tensor:  # fmt: skip
    tokens = x.reshape(-1, x.shape[-1])

    def each(given: Any, weights: Any, bias: Any) -> Any:
        y = torch.einsum("...h,eih->...ei" if given.ndim == 2 else "teh,eih->tei", given, weights)
        return y if bias is None else y + bias

    inner = each(tokens, w1, b1)
    if activation_type == "swiglu":
        pair = {0: lambda: (inner, each(tokens, w3, b3)), 1: lambda: (inner[..., ::2],
                inner[..., 1::2]), 2: lambda: inner.chunk(2, -1)}[swiglu_fusion]()  # fmt: skip
        g, line = pair[0].clamp(max=swiglu_limit), pair[1].clamp(-swiglu_limit, swiglu_limit)
        hidden = g * torch.sigmoid(activation_alpha * g) * (line + activation_beta)
    else:
        hidden = _CURVES[activation_type](inner)
        hidden = hidden if w3 is None else hidden * each(tokens, w3, b3)
    shares = router.softmax(-1)
    least = shares.detach().sort(-1, descending=True).values[:, k - 1 : k]
    shares = torch.where(shares.detach() >= least, shares, torch.zeros_like(shares))
    if normalize_routing_weights:
        shares = shares / shares.sum(-1, keepdim=True)
    found: Tensor = torch.einsum("te,teh->th", shares, each(hidden, w2, b2)).reshape(x.shape)
    return found


def _layer(*shape: int, fused: int = 1, side: bool = False) -> list[Any]:
    """Inputs of 3 experts for tokens of 4 numbers, 5 inside."""
    tokens = 1
    for size in shape:
        tokens *= size
    inner = 5 * fused
    inputs = [normal(*shape, 4), apart(tokens, 3), normal(3, inner, 4), normal(3, inner)]
    inputs += [normal(3, 4, 5), normal(3, 4)]
    return inputs + [normal(3, 5, 4), normal(3, 5)] if side else inputs


EXPERTS = [
    Case("MoE", _layer(6), _experts, domain=MS, name="first"),
    Case("MoE", [*_layer(2, 3)[:3], None, _layer(2, 3)[4]], _experts,
         {"k": 2, "activation_type": "gelu"}, MS, name="two-without-bias"),
    Case("MoE", _layer(2, 3), _experts,
         {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1}, MS, name="shared"),
    Case("MoE", _layer(4), _experts, {"k": 3, "activation_type": "identity"}, MS, name="all"),
    Case("MoE", _layer(4, side=True), _experts, {"k": 2, "activation_type": "silu"}, MS,
         name="gated"),
    *(
        Case("MoE", _layer(4, fused=2 if fusion else 1, side=not fusion), _experts,
             {"k": 2, "activation_type": "swiglu", "swiglu_fusion": fusion, "swiglu_limit": 7.0,
              "activation_alpha": 1.7, "activation_beta": 1.0}, MS, name=f"swiglu-{fusion}")
        for fusion in (0, 1, 2)
    ),
]  # fmt: skip

CASES: list[Case] = [*NORMS, *EXPERTS]
