"""Dropout in all its forms: values from the mask, masks from the seed, bits from the mask."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.properties.judge import judge, place
from kernels.properties.strategies import (
    Shape,
    float_types,
    floats,
    layouts,
    numbers,
    row,
    scalar,
    seeds,
    shapes,
    truths,
)
from onnxtrain.kernels.activation.bias_softmax import bias_softmax_dropout
from onnxtrain.kernels.activation.dropout import (
    bias_dropout,
    bitmask_bias_dropout,
    bitmask_dropout,
    dropout,
)
from onnxtrain.kernels.activation.mask import pack, unpack
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.testing.case import given as fixed
from onnxtrain.testing.close import mismatch
from onnxtrain.types import DataType

Tensor = torch.Tensor
ratios = st.one_of(st.just(0.0), floats(0.0, 0.9375))


def kept(x: Tensor, mask: Tensor, ratio: float) -> Tensor:
    """x / (1 - ratio) where the mask is true, in float64."""
    return torch.where(mask, x.double() / (1 - ratio), 0.0)


def packed(mask: Tensor) -> Tensor:
    """The mask as words, bit by bit."""
    flat = mask.reshape(-1).tolist()
    words = [
        sum(bit << place_ for place_, bit in enumerate(flat[start : start + 32]))
        for start in range(0, len(flat), 32)
    ]
    return torch.tensor(words, dtype=torch.int64)


@given(
    data=st.data(),
    shape=shapes(),
    ratio=ratios,
    training=st.sampled_from([None, True, False]),
    dtype=float_types,
    layout=layouts,
)
def test_dropout_grad(
    data: Any,
    shape: Shape,
    ratio: float,
    training: bool | None,
    dtype: DataType,
    layout: int,
    device: str,
) -> None:
    drops = ratio > 0 and training is not False

    def reference(dy: Tensor, mask: Tensor, *_: Any) -> Tensor:
        return kept(dy, mask, ratio) if drops else dy

    inputs = [
        data.draw(numbers(shape)),
        fixed(data.draw(truths(shape)), DataType.BOOL),
        scalar(ratio),
        None if training is None else scalar(training, DataType.BOOL),
    ]
    judge(row("DropoutGrad", inputs, reference), dtype, device, layout)


@given(data=st.data(), shape=shapes(), ratio=ratios, dtype=float_types, layout=layouts)
def test_bitmask_dropout_grad(
    data: Any, shape: Shape, ratio: float, dtype: DataType, layout: int, device: str
) -> None:
    mask = data.draw(truths(shape))
    inputs = [
        data.draw(numbers(shape)),
        fixed(packed(mask), DataType.UINT32),
        scalar(ratio),
    ]
    case = row("BitmaskDropoutGrad", inputs, lambda dy, *_: kept(dy, mask, ratio) if ratio else dy)
    judge(case, dtype, device, layout)


@given(data=st.data(), shape=shapes(), layout=layouts)
def test_masks_and_words(data: Any, shape: Shape, layout: int, device: str) -> None:
    mask = place(data.draw(truths(shape)).to(device), layout)
    words = pack(mask.tensor)
    assert words.dtype == torch.uint32
    assert words.cpu().to(torch.int64).tolist() == packed(mask.tensor.cpu()).tolist()
    apart = place(words, layout + 1)
    assert torch.equal(unpack(apart.tensor, mask.tensor), mask.tensor)
    assert not mask.touched() and not apart.touched()


VARIANTS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "Dropout": lambda x, b, r, **o: dropout(x + b, r, True, **o),  # type: ignore[dict-item,return-value]
    "BitmaskDropout": lambda x, b, r, **o: bitmask_dropout(x + b, r, True, **o),  # type: ignore[dict-item,return-value]
    "BiasDropout": lambda x, b, r, **o: bias_dropout(x, b, None, r, True, **o),
    "BitmaskBiasDropout": lambda x, b, r, **o: bitmask_bias_dropout(x, b, None, r, True, **o),  # type: ignore[dict-item,return-value]
}


@given(data=st.data(), shape=shapes(1), ratio=ratios, seed=seeds, dtype=float_types, layout=layouts)
def test_the_same_seed_drops_the_same_elements_in_every_form(
    data: Any, shape: Shape, ratio: float, seed: int, dtype: DataType, layout: int, device: str
) -> None:
    x = data.draw(numbers(shape)).to(to_torch(dtype)).to(device)
    bias = torch.zeros(shape[-1:], dtype=x.dtype, device=device)
    placed = place(x, layout)
    masks = {}
    for name, variant in VARIANTS.items():
        y, mask = variant(placed.tensor, bias, ratio, seed=seed)
        masks[name] = unpack(mask, x) if mask.dtype == torch.uint32 else mask
        found = mismatch(y, kept(x, masks[name], ratio), 0.0, x.dtype)
        assert found is None, f"{name}: {found}"
    assert all(torch.equal(masks["Dropout"], mask) for mask in masks.values())
    assert not placed.touched()
    soft = bias_softmax_dropout(x, bias, ratio, axis=-1, is_inner_broadcast=1, seed=seed)
    assert torch.equal(soft[1], masks["Dropout"])


@pytest.mark.parametrize("op", ["BiasDropout", "BitmaskBiasDropout"])
@given(data=st.data(), shape=shapes(1), ratio=ratios, dtype=float_types, layout=layouts)
def test_bias_and_residual(
    op: str, data: Any, shape: Shape, ratio: float, dtype: DataType, layout: int, device: str
) -> None:
    x, residual = (data.draw(numbers(shape)) for _ in range(2))
    bias = data.draw(numbers(data.draw(st.sampled_from([shape, shape[-1:]]))))
    training = data.draw(st.booleans())
    rate = ratio if training else 0.0
    # A mask depends on nothing but the seed, so another form of dropout tells it.
    mask = dropout(torch.zeros(shape), rate, True, seed=3)[1]
    assert mask is not None

    def reference(x: Tensor, b: Tensor, residual: Tensor, *_: Any, **__: Any) -> Any:
        y = kept(x.double() + b.double(), mask, rate) + residual.double()
        return y, mask if op == "BiasDropout" else packed(mask)

    inputs = [x, bias, residual, scalar(ratio), scalar(training, DataType.BOOL)]
    case = row(op, inputs, reference, attributes={"seed": 3}, outputs=2)
    judge(case, dtype, device, layout)


@given(data=st.data(), shape=shapes(), ratio=ratios, dtype=float_types)
def test_outside_of_training_nothing_is_dropped(
    data: Any, shape: Shape, ratio: float, dtype: DataType, device: str
) -> None:
    x = data.draw(numbers(shape)).to(to_torch(dtype)).to(device)
    y, mask = dropout(x, ratio, False, seed=1)
    assert torch.equal(y, x) and mask is not None and mask.all()
    y, words = bitmask_dropout(x, ratio, False, seed=1)
    assert torch.equal(y, x) and words is not None and unpack(words, x).all()
