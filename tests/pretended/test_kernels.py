"""Kernels of a pretended GPU compute what torch computes on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pretended.kernels import KERNELS

aten = torch.ops.aten
SCALE = 0.3
CASES = [("cudnn", 1), ("flash", 1), ("efficient", 1), ("cudnn", 3)]
"""Kinds of attention, and how many heads of queries share one of keys."""


def called(
    kind: str, leaves: list[Tensor], dy: Tensor, bias: Tensor | None, causal: bool
) -> tuple[Any, ...]:
    """Result, logsumexp and gradients, with arguments in the order of torch's schemas."""
    forward, backward = (
        getattr(aten, f"_scaled_dot_product_{kind}_attention{side}").default
        for side in ("", "_backward")
    )
    values = {"attn_bias": bias, "dropout_p": 0.0, "is_causal": causal, "grad_out": dy}
    values |= {"grad_out_": dy, "grad_input_mask": [True, True, True, False]}
    values |= dict(zip(("query", "key", "value"), leaves, strict=True))
    found = []
    for op in (forward, backward):
        given = [values.get(a.name) for a in op._schema.arguments if not a.kwarg_only]
        found.append(KERNELS[op](*given, scale=SCALE))
    return *found[0][:2], *found[1][:3]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind, shared", CASES)
def test_attention(kind: str, shared: int, causal: bool) -> None:
    torch.manual_seed(0)
    shapes = [(2, 6, 7, 8), (2, 6 // shared, 7, 8), (2, 6 // shared, 7, 8), (2, 6, 7, 8)]
    *leaves, dy = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    bias = None if kind == "flash" or causal else torch.randn(2, 6, 7, 7, dtype=torch.float64)
    for leaf in leaves:
        leaf.requires_grad_()
    y = functional.scaled_dot_product_attention(
        *leaves, bias, is_causal=causal, scale=SCALE, enable_gqa=True
    )
    own = [leaf.detach() for leaf in leaves]
    found, sums, *gradients = called(kind, own, dy, bias, causal)
    torch.testing.assert_close(found, y.detach())
    for one, other in zip(gradients, torch.autograd.grad(y, leaves, dy), strict=True):
        torch.testing.assert_close(one, other)
    assert sums.dtype is torch.float32 and sums.flatten(2).shape[2] in (7, 32)


def test_softmax_of_16_bits_has_32() -> None:
    x = torch.randn(4, 5, dtype=torch.bfloat16)
    for name, plain in (("_softmax", torch.softmax), ("_log_softmax", torch.log_softmax)):
        assert torch.equal(KERNELS[getattr(aten, name).default](x, 1, True), plain(x.float(), 1))


def test_layers_of_16_bits_have_statistics_of_32() -> None:
    x, w = torch.randn(4, 5, dtype=torch.bfloat16), torch.ones(5, dtype=torch.bfloat16)
    y, mean, scale = KERNELS[aten.native_layer_norm.default](x, [5], w, None, 1e-5)
    assert (y.dtype, mean.dtype, scale.dtype) == (x.dtype, torch.float32, torch.float32)
    given = (y, x, [5], mean, scale, w, None, [True, True, False])
    dx, dw, db = KERNELS[aten.native_layer_norm_backward.default](*given)
    assert dx.dtype == dw.dtype == x.dtype and db is None


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_descent_in_16_bits(momentum: float) -> None:
    torch.manual_seed(0)
    w, g, m = (torch.randn(40).bfloat16() for _ in range(3))
    moments = [m.clone()] if momentum else []
    step = momentum * m.float() + g.float()
    expected = (w.float() - 0.125 * step).bfloat16()
    flags = dict.fromkeys(("nesterov", "maximize", "is_first_step"), False)
    KERNELS[aten._fused_sgd_.default](
        *([w], [g], moments), lr=0.125, momentum=momentum, weight_decay=0.0, dampening=0.0, **flags
    )
    assert torch.equal(w, expected)
    assert all(torch.equal(moment, step.bfloat16()) for moment in moments)
