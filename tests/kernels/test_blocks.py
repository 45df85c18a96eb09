"""Kernels that go through large tensors block by block, made to do so with small ones."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernels import test_values
from onnxtrain.kernels import blocks
from onnxtrain.kernels.activation import mask as masks
from onnxtrain.kernels.activation.dropout import (
    bias_dropout,
    bitmask_dropout,
    bitmask_dropout_grad,
    dropout_grad,
)
from onnxtrain.kernels.activation.gated import gated_halves, gated_halves_grad
from onnxtrain.kernels.activation.gelu import quick_gelu, quick_gelu_grad
from onnxtrain.kernels.nn.layer_norm import (
    column_sums,
    layer_normalization,
    layer_normalization_grad,
    skip_layer_normalization,
)
from onnxtrain.kernels.nn.rms_norm import (
    simplified_layer_normalization,
    simplified_layer_normalization_grad,
)
from onnxtrain.kernels.tensor.indices import sum_rows
from onnxtrain.testing.case import Case
from onnxtrain.types import DataType

OPERATORS = {
    "BiasDropout",
    "Gated",
    "GatedGrad",
    "GatedHalves",
    "GatedHalvesGrad",
    "LayerNormalizationGrad",
    "LayerNormalizationGradAdd",
    "QuickGelu",
    "QuickGeluGrad",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SimplifiedLayerNormalizationGrad",
    "SimplifiedLayerNormalizationGradAdd",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
}
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Blocks of 32 elements; how many blocks there were in each call."""
    counts: list[int] = []

    def counted(function: Any) -> Any:
        def of(*arguments: Any) -> list[Any]:
            found = list(function(*arguments))
            counts.append(len(found))
            return found

        return of

    monkeypatch.setattr(blocks, "size", lambda: 32)
    monkeypatch.setattr(masks, "_FEW", 1)
    for name in ("flat", "rows"):
        monkeypatch.setattr(blocks, name, counted(getattr(blocks, name)))
    yield counts


@pytest.mark.parametrize(
    ("case", "dtype"), [t for t in test_values.TRIALS if t.values[0].op in OPERATORS]
)
def test_values_in_blocks(
    case: Case, dtype: DataType, monkeypatch: pytest.MonkeyPatch, poison: None
) -> None:
    monkeypatch.setattr(blocks, "size", lambda: 8)
    test_values.test_values(case, dtype, "cpu", poison)


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_dropout_in_blocks_is_dropout(dtype: torch.dtype, taken: list[int]) -> None:
    x, bias, residual = drawn(7, 15, dtype=dtype), drawn(15, dtype=dtype), drawn(7, 15, dtype=dtype)
    x[0, 0] = float("nan")
    dy, words = bitmask_dropout(x, 0.25, True, seed=3)
    mask = masks.unpack(words, x)
    assert max(taken) == 4 and 0 < mask.sum() < mask.numel()
    assert torch.equal(mask.view(-1), masks._uniform(105, 3, x.device) < 0.75)
    true = torch.where(mask, x * (4 / 3), 0)
    for found in (dy, bitmask_dropout_grad(x, words, 0.25), dropout_grad(x, mask, 0.25)):
        torch.testing.assert_close(found, true, equal_nan=True)
    found, same = bias_dropout(x, bias, residual, 0.25, True, seed=3)
    wide = torch.where(mask, (x.double() + bias) * (4 / 3), 0) + residual
    assert torch.equal(same, mask) and taken.count(4) > 2
    torch.testing.assert_close(found, wide.to(dtype), equal_nan=True)
    room = x.clone()
    assert bitmask_dropout_grad(room, words, 0.25, out=room) is room
    torch.testing.assert_close(room, true, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_results_in_place(dtype: torch.dtype, taken: list[int]) -> None:
    x, dy = drawn(9, 11, dtype=dtype), drawn(9, 11, dtype=dtype, seed=1)
    y, dx = quick_gelu(x), quick_gelu_grad(dy, x)
    assert taken == [4, 4]
    assert torch.equal(quick_gelu_grad(dy, x, out=dy), dx) and torch.equal(dx, dy)
    assert torch.equal(quick_gelu(x, out=x), y) and torch.equal(x, y)


def test_halves_in_place(taken: list[int]) -> None:
    """Rows of both halves, so many at once as a block has room for."""
    x, dy = drawn(9, 10, dtype=torch.float32), drawn(9, 5, dtype=torch.float32, seed=1)
    wide = x.double().requires_grad_()
    y = torch.nn.functional.glu(wide)
    (true,) = torch.autograd.grad(y, wide, dy.double())
    given = {"gate": 1, "activation": "sigmoid"}
    torch.testing.assert_close(gated_halves(x, **given), y.float())
    dx = gated_halves_grad(dy, x, **given)
    torch.testing.assert_close(dx, true.float())
    assert gated_halves_grad(dy, x, **given, out=x) is x and torch.equal(x, dx)
    assert taken == [3, 3, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_that_are_longer_than_a_block(dtype: torch.dtype, taken: list[int]) -> None:
    x, dy = drawn(3, 2, 20, dtype=dtype), drawn(3, 2, 20, dtype=dtype, seed=1)
    scale = drawn(2, 20, dtype=dtype, seed=2)
    wide = [t.double().requires_grad_() for t in (x, scale)]
    width = {"rtol": 2e-2, "atol": 2e-2}
    for forward, backward in (
        (layer_normalization, layer_normalization_grad),
        (simplified_layer_normalization, simplified_layer_normalization_grad),
    ):
        y, *kept = forward(x, scale, axis=1)
        dx, dscale, *_ = backward(dy, x, scale, *kept, axis=1)
        true = forward(*wide, axis=1, stash_type=int(DataType.DOUBLE))[0]
        gradients = torch.autograd.grad(true, wide, dy.double())
        for found, expected in zip((y, dx, dscale), (true, *gradients), strict=True):
            torch.testing.assert_close(found.double(), expected, **width)
    assert taken == [3, 3, 3]


def test_a_wider_scale_keeps_its_digits(taken: list[int]) -> None:
    x, scale = drawn(9, 11, dtype=torch.float32), drawn(11, dtype=torch.float64, seed=1)
    y, inverse = simplified_layer_normalization(x, scale)
    assert torch.equal(y, (x * inverse) * scale) and not torch.equal(y, y.float().double())
    dx, dscale = simplified_layer_normalization_grad(y.float(), x, scale, inverse)
    assert dx.dtype == x.dtype and dscale.dtype == scale.dtype
    assert not taken


def test_what_autograd_records_is_in_one_piece(taken: list[int]) -> None:
    x, skip, scale = (drawn(*shape, dtype=torch.bfloat16) for shape in ((9, 8), (9, 8), (8,)))
    scale.requires_grad_()
    y = skip_layer_normalization(x, skip, scale)[0]
    z = simplified_layer_normalization(x, scale)[0]
    assert not taken and torch.autograd.grad((y + z).sum(), scale)[0].shape == (8,)


def test_strided_tensors_are_in_one_piece(taken: list[int]) -> None:
    x = drawn(9, 8, dtype=torch.bfloat16)
    assert torch.equal(quick_gelu(x.T), quick_gelu(x).T)
    assert taken == [3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_torch_adds_16_bits_in_float32_where_that_is_left_to_it(dtype: torch.dtype) -> None:
    """A sum in the type itself would stop growing at 256 or 2048."""
    ones, count = torch.ones(4000, 3, dtype=dtype), torch.tensor([4000.0] * 3).to(dtype)
    torch.testing.assert_close(column_sums(ones), count, rtol=0, atol=0)
    for rows in (1, 5, 4000):  # as many as there are values, or far fewer
        found = sum_rows(torch.full((4000,), rows - 1), ones, rows, ordered=True)
        torch.testing.assert_close(found[-1], count, rtol=0, atol=0)
        assert not found[:-1].any()
