"""Rows of the quantization operators; ONNX's reference is the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, integers, normal, only, uniform
from onnxtrain.types import DataType

FLOAT, INT8, UINT8 = DataType.FLOAT, DataType.INT8, DataType.UINT8


def bytes_of(*shape: int, dtype: DataType = UINT8) -> Input:
    """Any bytes."""
    low = -128 if dtype == INT8 else 0
    return integers(*shape, low=low, high=low + 256, dtype=dtype)


def _quantize(x: Input, scale: Input, zero: Input | None, name: str, **attributes: int) -> Case:
    inputs = [x, scale] if zero is None else [x, scale, zero]
    return Case(
        "QuantizeLinear", inputs, attributes=attributes, dtypes=only(FLOAT), name=name,
        gradient=False,
    )  # fmt: skip


def _dequantize(x: Input, scale: Input, zero: Input | None, name: str, **attributes: int) -> Case:
    inputs = [x, scale] if zero is None else [x, scale, zero]
    return Case("DequantizeLinear", inputs, attributes=attributes, name=name, gradient=False)


def _quantized(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Bytes, with one scale or with one for each index of the second axis."""
    shape = (-1, *[1] * (x.ndim - 2)) if scale.ndim else ()
    shifted = (x / scale.reshape(shape)).round() + zero.reshape(shape).to(x.dtype)
    return shifted.clamp(0, 255).to(torch.uint8)


_SCALES = given([0.5, 0.25, 0.125])
_BLOCKS = given([[0.5, 0.25, 0.125], [0.1, 0.2, 0.4]])
_X = normal(2, 3, 4, scale=20)

QUANTIZE = [
    _quantize(_X, given(0.3), given(100, UINT8), "one-scale"),
    _quantize(_X, given(0.3), given(-3, INT8), "int8"),
    _quantize(_X, given(0.01), given(7, DataType.UINT16), "uint16"),
    _quantize(_X, given(0.3), None, "no-zero-point"),
    _quantize(_X, _SCALES, given([0, 128, 255], UINT8), "per-axis", axis=1),
    _quantize(_X, given([0.5] * 4), None, "last-axis", axis=-1, output_dtype=DataType.INT16),
    _quantize(normal(4, 3, scale=9), _BLOCKS, None, "blocks", axis=0, block_size=2),
    _quantize(normal(3, 3, scale=9), _BLOCKS, None, "last-block-short", axis=0, block_size=2),
    _quantize(_X, given(2.5), None, "int4", output_dtype=DataType.INT4),
    _quantize(_X, given(2.5), None, "uint2", output_dtype=DataType.UINT2),
    _quantize(_X, given(4.0), None, "float4", output_dtype=DataType.FLOAT4E2M1),
    _quantize(_X, given(0.01), None, "float8", output_dtype=DataType.FLOAT8E4M3FN),
    _quantize(_X, given(0.001), None, "float8-infinite", saturate=0,
              output_dtype=DataType.FLOAT8E5M2),
    _quantize(normal(0, 3), given(0.3), given(1, UINT8), "empty"),
    Case("QuantizeLinear", [_X, given(0.3, FLOAT), given(100, UINT8)], _quantized, opset=10,
         dtypes=only(FLOAT), gradient=False),
    Case("QuantizeLinear", [_X, given([0.5, 0.25, 0.125], FLOAT), given([0, 128, 255], UINT8)],
         _quantized, opset=13, dtypes=only(FLOAT), gradient=False),
    Case("QuantizeLinear", [_X, _SCALES], attributes={"output_dtype": DataType.INT8}, opset=21,
         dtypes=only(FLOAT), gradient=False),
]  # fmt: skip
DEQUANTIZE = [
    _dequantize(bytes_of(2, 3, 4), given(0.3), given(100, UINT8), "one-scale"),
    _dequantize(bytes_of(2, 3, 4, dtype=INT8), given(0.3), None, "no-zero-point"),
    _dequantize(bytes_of(2, 3, 4), _SCALES, given([0, 128, 255], UINT8), "per-axis"),
    _dequantize(bytes_of(4, 3), _BLOCKS, None, "blocks", axis=0, block_size=2),
    _dequantize(integers(5, low=-9999, high=9999, dtype=DataType.INT32), given(0.01), None, "wide"),
    _dequantize(bytes_of(0, 3), given(0.3), None, "empty"),
    Case("DequantizeLinear", [bytes_of(2, 3), given(0.3, FLOAT), given(9, UINT8)],
         lambda x, scale, zero: (x.to(scale.dtype) - zero.to(scale.dtype)) * scale, opset=10,
         gradient=False),
    Case("DequantizeLinear", [bytes_of(2, 3), given(0.3)], opset=28, gradient=False,
         attributes={"output_dtype": DataType.FLOAT16}, dtypes=only(FLOAT)),
]  # fmt: skip
DYNAMIC = [
    Case("DynamicQuantizeLinear", [x], outputs=3, dtypes=only(FLOAT), name=name, gradient=False)
    for name, x in (
        ("both-signs", normal(3, 4)),
        ("positive", uniform(3, 4, low=1, high=2)),
        ("negative", uniform(3, 4, low=-2, high=-1)),
        ("zero", given([0.0, 0.0])),
    )
]


def _matmul(a: Input, b: Input, rows: int = 0, name: str = "") -> Case:
    """A product; with rows, each row of a has its own scale and zero point."""
    scale = given([0.01 * (i + 1) for i in range(rows)], FLOAT) if rows else given(0.01, FLOAT)
    kind = a.dtype or UINT8
    zero = given([3 * i for i in range(rows)], kind) if rows else given(5, kind)
    inputs = [a, scale, zero, b, given(0.02, FLOAT), given(7, b.dtype), given(0.5, FLOAT),
              given(9, kind)]  # fmt: skip
    return Case("QLinearMatMul", inputs, name=name, gradient=False)


_CONV = [
    bytes_of(1, 2, 5, 5), given(0.02, FLOAT), given(120, UINT8),
    bytes_of(4, 2, 3, 3), given(0.01, FLOAT), given(130, UINT8),
    given(0.3, FLOAT), given(128, UINT8),
]  # fmt: skip
_PER_CHANNEL = [
    *_CONV[:4], given([0.01, 0.02, 0.03, 0.04], FLOAT), given([130, 120, 110, 100], UINT8),
    *_CONV[6:],
]  # fmt: skip
PRODUCTS = [
    _matmul(bytes_of(3, 4), bytes_of(4, 5), name="matrices"),
    _matmul(bytes_of(2, 3, 4, dtype=INT8), bytes_of(2, 4, 5, dtype=INT8), name="batch"),
    Case("QLinearConv", _CONV, gradient=False),
    Case("QLinearConv", _CONV, attributes={"pads": (1, 0, 2, 1), "strides": (2, 1)},
         name="padded", gradient=False),
    Case("QLinearConv", [*_CONV, given([10, -20, 30, -40], DataType.INT32)], name="bias",
         gradient=False),
    Case("QLinearConv", _PER_CHANNEL, name="per-channel", gradient=False),
]  # fmt: skip

CASES: list[Case] = [*QUANTIZE, *DEQUANTIZE, *DYNAMIC, *PRODUCTS]
