"""LongformerAttention gives what the layer of the transformers library gives, and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from onnxtrain.kernels.transformer.longformer import longformer_attention

transformers = pytest.importorskip("transformers", reason="the layer to compare with")
SIZE, HEADS, WINDOW, TOKENS = 12, 3, 2, 12
GLOBAL = [[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]]
LENGTHS = [12, 7]
AS_FLOAT = {"rtol": 1e-5, "atol": 1e-6}
"""Both are in float32: in another type, masked tokens of theirs have gradients of NaN."""


def layer() -> torch.nn.Module:
    from transformers.models.longformer import modeling_longformer

    config = transformers.LongformerConfig(
        hidden_size=SIZE,
        num_attention_heads=HEADS,
        attention_window=[2 * WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    return modeling_longformer.LongformerSelfAttention(config, 0)


def theirs(of: torch.nn.Module, x: Tensor, masked: Tensor, flags: Tensor) -> Tensor:
    mask = torch.where(masked, -10000.0, 0.0) + 10000.0 * flags
    return of(
        x,
        attention_mask=mask,
        is_index_masked=masked,
        is_index_global_attn=flags > 0,
        is_global_attn=bool(flags.any()),
    )[0]


def weights(of: torch.nn.Module, apart: bool) -> list[Tensor]:
    """Weights and biases as the operator takes them."""
    local = [of.query, of.key, of.value]
    others = [of.query_global, of.key_global, of.value_global]
    join = torch.stack if apart else lambda matrices: torch.cat(matrices, 1)
    biases = [[*local, *others[1:]], others[:1]] if apart else [local, others]
    found = []
    for layers, of_layers in zip((local, others), biases, strict=True):
        found += [
            join([linear.weight.T for linear in layers]),
            torch.cat([linear.bias for linear in of_layers]),
        ]
    return found


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_same_as_transformers(some: bool, apart: bool) -> None:
    of = layer()
    x = torch.randn(2, TOKENS, SIZE, requires_grad=True)
    masked = torch.arange(TOKENS) >= torch.tensor(LENGTHS)[:, None]
    flags = torch.tensor(GLOBAL, dtype=torch.int32) * some
    w, b, gw, gb = weights(of, apart)
    mask = torch.where(masked, -10000.0, 0.0)
    ours = longformer_attention(x, w, b, mask, gw, gb, flags, num_heads=HEADS, window=WINDOW)
    want = theirs(of, x, masked, flags)
    torch.testing.assert_close(ours, want, **AS_FLOAT)
    assert not ours[1, LENGTHS[1] :].any()

    seed = torch.randn_like(want)
    wanted = [x, *(p for p in of.parameters() if some or "global" not in names(of)[p])]
    found, true = (torch.autograd.grad(y, wanted, seed, retain_graph=True) for y in (ours, want))
    torch.testing.assert_close(found, true, **AS_FLOAT)


def names(of: torch.nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in of.named_parameters()}


def test_infinite_masks_leave_no_nan() -> None:
    x = torch.randn(1, 8, SIZE, requires_grad=True)
    w, b, gw, gb = (p.detach() for p in weights(layer(), apart=False))
    mask = torch.tensor([[0.0, 0.0, *[-torch.inf] * 6]])
    flags = torch.zeros(1, 8, dtype=torch.int32)
    y = longformer_attention(x, w, b, mask, gw, gb, flags, num_heads=HEADS, window=WINDOW)
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    assert y[:, :2].abs().min() > 0 and not y[:, 2:].any()
    assert torch.isfinite(grad).all() and not grad[:, 2:].any()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"window": 5}, "12 positions, but a window of 5 needs a multiple of 10"),
        ({"window": 0}, "a window of 0"),
        ({"num_heads": 5}, "features that 5 heads share evenly"),
        ({"mask": torch.zeros(2, 6)}, r"mask has shape \[2, 6\].*it must be \[2, 12\]"),
        ({"global_flags": torch.zeros(12)}, r"global has shape \[12\].*it must be \[2, 12\]"),
        ({"bias": torch.zeros(12)}, r"for 12 features they must be .* or \[\[3, 12, 12\], \[60\]"),
    ],
)
def test_refused(changes: dict[str, Tensor | int], why: str) -> None:
    given = {
        "input": torch.zeros(2, TOKENS, SIZE),
        "weight": torch.zeros(SIZE, 3 * SIZE),
        "bias": torch.zeros(3 * SIZE),
        "mask": torch.zeros(2, TOKENS),
        "global_weight": torch.zeros(SIZE, 3 * SIZE),
        "global_bias": torch.zeros(3 * SIZE),
        "global_flags": torch.zeros(2, TOKENS, dtype=torch.int32),
        "num_heads": HEADS,
        "window": WINDOW,
    }
    with pytest.raises(ValueError, match=why):
        longformer_attention(**{**given, **changes})
