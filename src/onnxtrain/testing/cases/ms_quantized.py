"""Rows of operators on whole numbers that stand for real ones, outside ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.testing.case import (
    Case,
    Input,
    booleans,
    given,
    integers,
    normal,
    only,
    uniform,
)
from onnxtrain.testing.cases.quantization import bytes_of
from onnxtrain.types import MS, DataType

FLOAT, INT8, UINT8, INT32 = DataType.FLOAT, DataType.INT8, DataType.UINT8, DataType.INT32
LIMITS = {torch.uint8: (0, 255), torch.int8: (-128, 127)}


def real(q: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """(q - zero)·scale, in the type of the scale."""
    return (q.to(scale.dtype) - (0 if zero is None else zero.to(scale.dtype))) * scale


def whole(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """round(x / scale) + zero, saturated."""
    shifted = (x / scale).round() + (0 if zero is None else zero.to(x.dtype))
    return shifted.clamp(*LIMITS[dtype]).to(dtype)


def scale_of(value: float) -> Input:
    """A fixed scale."""
    return given(value, FLOAT)


def _binary(op: str, function: Callable[..., Tensor]) -> list[Case]:
    def reference(a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, sc: Any, zc: Any) -> Tensor:
        return whole(function(real(a, sa, za), real(b, sb, zb)), sc, zc, a.dtype)

    found = []
    for dtype, zeros in ((UINT8, (120, 100, 110)), (INT8, (3, -7, 5))):
        za, zb, zc = (given(zero, dtype) for zero in zeros)
        inputs = [
            bytes_of(2, 3, 4, dtype=dtype), scale_of(0.03137), za,
            bytes_of(3, 1, dtype=dtype), scale_of(0.05719), zb, scale_of(0.1127), zc,
        ]  # fmt: skip
        found.append(Case(op, inputs, reference, domain=MS, name=dtype.name, gradient=False))
    plain = [bytes_of(4), scale_of(0.03137), None, bytes_of(4), scale_of(0.05719), None,
             scale_of(0.1127), None]  # fmt: skip
    return [*found, Case(op, plain, reference, domain=MS, name="no-zeros", gradient=False)]


def _unary(
    op: str,
    function: Callable[..., Tensor],
    x: tuple[int, ...] = (3, 5),
    out: float = 0.00431,
    scale: float = 0.02917,
    **attributes: Any,
) -> list[Case]:
    def reference(x: Any, sx: Any, zx: Any, sy: Any, zy: Any, **options: Any) -> Tensor:
        return whole(function(real(x, sx, zx), **options), sy, zy, x.dtype)

    return [
        Case(op, [bytes_of(*x, dtype=dtype), scale_of(scale), given(zero, dtype), scale_of(out),
                  given(shift, dtype)], reference, attributes, MS, gradient=False,
             name="-".join([dtype.name, *map(str, attributes.values())]).replace(" ", ""))
        for dtype, zero, shift in ((UINT8, 128, 3), (INT8, 4, -120))
    ]  # fmt: skip


def _pool(x: Tensor, *, channels_last: int = 0, **options: Any) -> Tensor:
    pads, rank = options.get("pads", (0, 0)), x.ndim - 2
    y = functional.avg_pool2d(
        x.movedim(-1, 1) if channels_last else x,
        options["kernel_shape"],
        options.get("strides", (1, 1)),
        tuple(pads[:rank]),
        count_include_pad=bool(options.get("count_include_pad", 0)),
    )
    return y.movedim(1, -1) if channels_last else y


def _global(x: Tensor, channels_last: int = 0) -> Tensor:
    return x.mean((1, 2) if channels_last else (2, 3), keepdim=True)


def _old_softmax(x: Tensor, *, axis: int, opset: int) -> Tensor:
    return x.flatten(axis).softmax(-1).reshape(x.shape)


ELEMENTWISE = [
    *_binary("QLinearAdd", torch.add),
    *_binary("QLinearMul", torch.mul),
    *_unary("QLinearSigmoid", torch.sigmoid),
    *_unary("QLinearLeakyRelu", lambda x, alpha: torch.where(x > 0, x, alpha * x), out=0.031,
            alpha=0.21),
    *_unary("QLinearSoftmax", lambda x, axis, opset: x.softmax(axis), axis=0, opset=13),
    *_unary("QLinearSoftmax", _old_softmax, x=(2, 3, 2), axis=1, opset=11),
    *_unary("QLinearGlobalAveragePool", _global, x=(2, 3, 4, 5), out=0.007),
    *_unary("QLinearGlobalAveragePool", _global, x=(2, 4, 5, 3), out=0.007, channels_last=1),
    *_unary("QLinearAveragePool", _pool, x=(2, 3, 5, 6), out=0.01719, kernel_shape=(2, 3),
            strides=(2, 1), pads=(1, 1, 1, 1)),
    *_unary("QLinearAveragePool", _pool, x=(2, 5, 6, 3), out=0.01719, kernel_shape=(3, 2),
            channels_last=1, count_include_pad=1),
    *_unary("QLinearReduceMean", lambda x, axes, keepdims: x.mean(axes, keepdim=bool(keepdims)),
            x=(2, 3, 4), out=0.013, axes=(0, -1), keepdims=0),
]  # fmt: skip


def _concat(sy: Any, zy: Any, *parts: Any, axis: int) -> Tensor:
    each = [parts[i : i + 3] for i in range(0, len(parts), 3)]
    return torch.cat([whole(real(*part), sy, zy, zy.dtype) for part in each], axis)


def _where(c: Any, x: Any, sx: Any, zx: Any, y: Any, sy: Any, zy: Any, sz: Any, zz: Any) -> Tensor:
    return whole(torch.where(c, real(x, sx, zx), real(y, sy, zy)), sz, zz, x.dtype)


JOIN = [
    Case("QLinearConcat", [scale_of(0.05), given(9, UINT8), bytes_of(2, 3), scale_of(0.03),
                           given(100, UINT8), bytes_of(2, 1), scale_of(0.07), given(20, UINT8)],
         _concat, {"axis": -1}, MS, gradient=False),
    Case("QLinearWhere", [booleans(2, 3), bytes_of(2, 3), scale_of(0.03), given(100, UINT8),
                          bytes_of(3), scale_of(0.07), given(20, UINT8), scale_of(0.05),
                          given(9, UINT8)], _where, domain=MS, gradient=False),
]  # fmt: skip


def _along(values: Tensor | None, x: Tensor, axis: int) -> Any:
    if values is None or values.numel() == 1:
        return values
    return values.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _dequantized(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1) -> Tensor:
    return real(x, _along(scale, x, axis), _along(zero, x, axis))


def _quantized(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1) -> Any:
    dtype = torch.uint8 if zero is None else zero.dtype
    low, high = LIMITS.get(dtype, (0, 65535))
    shift = 0 if zero is None else _along(zero.to(x.dtype), x, axis)
    return ((x / _along(scale, x, axis)).round() + shift).clamp(low, high).to(dtype)


_SCALES = given([0.5, 0.25, 0.125])
LINEAR = [
    Case("QuantizeLinear", [normal(2, 3, 4, scale=20), given(0.3, FLOAT), given(100, UINT8)],
         _quantized, domain=MS, dtypes=only(FLOAT), gradient=False, name="one-scale"),
    Case("QuantizeLinear", [normal(2, 3, 4, scale=20), given(0.3, FLOAT)], _quantized, domain=MS,
         dtypes=only(FLOAT), gradient=False, name="no-zero-point"),
    Case("QuantizeLinear", [normal(2, 3, 4, scale=20), given(0.01, FLOAT),
                            given(700, DataType.UINT16)], _quantized, domain=MS,
         dtypes=only(FLOAT), gradient=False, name="uint16"),
    Case("QuantizeLinear", [normal(2, 3, 4, scale=20), given([0.5, 0.25, 0.125], FLOAT),
                            given([0, 128, 255], UINT8)], _quantized, {"axis": 1}, MS,
         dtypes=only(FLOAT), gradient=False, name="per-axis"),
    Case("DequantizeLinear", [bytes_of(2, 3, 4), given(0.3), given(100, UINT8)], _dequantized,
         domain=MS, name="one-scale"),
    Case("DequantizeLinear", [bytes_of(2, 3, 4), _SCALES, given([0, 128, 255], UINT8)],
         _dequantized, {"axis": 1}, MS, name="per-axis"),
    Case("DequantizeLinear", [bytes_of(2, 3, 4), _SCALES, given([0, 128, 255], UINT8)],
         _dequantized, domain=MS, name="axis-not-given"),
    Case("DequantizeLinear", [bytes_of(2, 3, dtype=INT8), _SCALES], _dequantized, {"axis": -1}, MS,
         name="last-axis"),
    Case("DequantizeLinear", [integers(5, low=-999, high=999, dtype=INT32), given([0.25])],
         _dequantized, domain=MS, name="int32"),
]  # fmt: skip


def _conv(
    x: Any, sx: Any, zx: Any, w: Any, sw: Any, zw: Any, sy: Any, zy: Any, b: Any = None,
    *, channels_last: int = 0, pads: Sequence[int] = (0, 0),
) -> Tensor:  # fmt: skip
    image = x.movedim(-1, 1) if channels_last else x
    left, right = (q.to(torch.float64) - z.to(torch.float64) for q, z in ((image, zx), (w, zw)))
    bias = None if b is None else b.to(torch.float64)
    total = functional.conv2d(left, right, bias, padding=tuple(pads[:2]))
    y = whole(total * (sx * sw / sy), torch.ones(()), zy, zy.dtype)
    return y.movedim(1, -1) if channels_last else y


def _qgemm(
    a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, c: Any = None, sy: Any = None,
    zy: Any = None, *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    left = (a.t() if transA else a).to(sa.dtype) - za.to(sa.dtype)
    right = (b.t() if transB else b).to(sa.dtype) - zb.to(sa.dtype)
    y = (left @ right + (0 if c is None else c)) * (alpha * sa * sb)
    return y if sy is None else whole(y, sy, zy, zy.dtype)


_A, _B = bytes_of(3, 4), bytes_of(4, 5)
_QGEMM = [_A, scale_of(0.02), given(120, UINT8), _B, scale_of(0.03), given(130, UINT8)]
_IMAGE = [scale_of(0.02), given(120, UINT8), bytes_of(4, 2, 3, 3), scale_of(0.01),
          given(130, UINT8), scale_of(0.31), given(128, UINT8)]  # fmt: skip


def _product(
    a: Any, b: Any, sa: Any, sb: Any, za: Any = None, zb: Any = None, bias: Any = None
) -> Tensor:
    y = real(a, sa, za) @ real(b, sb, zb)
    return y if bias is None else y + bias


def _dynamic(a: Any, b: Any, sb: Any, zb: Any = None, bias: Any = None) -> Any:
    """The value is that of the rounded a, the gradient goes straight through the rounding."""
    low, high = a.detach().amin().clamp(max=0), a.detach().amax().clamp(min=0)
    scale = (high - low) / 255
    zero = (-low / scale).round()
    rounded = ((a.detach() / scale).round() + zero).clamp(0, 255) - zero
    y = (a + (rounded * scale - a.detach())) @ real(b, sb, zb)
    return y if bias is None else y + bias


PRODUCTS = [
    Case("QLinearConv", [bytes_of(1, 2, 5, 5), *_IMAGE], _conv, domain=MS, gradient=False),
    Case("QLinearConv", [bytes_of(1, 5, 5, 2), *_IMAGE, given([10, -20, 30, -40], INT32)], _conv,
         {"channels_last": 1, "pads": (1, 1, 1, 1)}, MS, gradient=False),
    Case("QGemm", _QGEMM, _qgemm, domain=MS, name="real"),
    Case("QGemm", [*_QGEMM, integers(3, 5, low=-99, high=99, dtype=INT32)], _qgemm, {"alpha": 0.5},
         MS, name="real-bias"),
    Case("QGemm", [*_QGEMM, None, scale_of(0.1127), given(100, UINT8)], _qgemm, domain=MS,
         name="bytes", gradient=False),
    Case("QGemm", [bytes_of(4, 3, dtype=INT8), scale_of(0.02), given(3, INT8),
                   bytes_of(5, 4, dtype=INT8), given([0.01, 0.02, 0.03, 0.04, 0.05], FLOAT),
                   given([0] * 5, INT8), given([1, -2, 3, -4, 5], INT32), scale_of(0.1127),
                   given(-9, INT8)], _qgemm, {"transA": 1, "transB": 1}, MS, name="columns",
         gradient=False),
    Case("MatMulIntegerToFloat", [_A, _B, given(0.02), given(0.03)], _product, domain=MS,
         name="plain"),
    Case("MatMulIntegerToFloat", [bytes_of(2, 3, 4), _B, given(0.02), uniform(5, low=0.01),
                                  given(120, UINT8), given([130] * 5, UINT8), normal(5)],
         _product, domain=MS, name="columns"),
    Case("DynamicQuantizeMatMul", [normal(3, 4), _B, given(0.03)], _dynamic, domain=MS,
         name="plain", gradient=False),
    Case("DynamicQuantizeMatMul", [normal(2, 3, 4), _B, uniform(5, low=0.01),
                                   given([130] * 5, UINT8), normal(5)], _dynamic, domain=MS,
         name="columns", gradient=False),
    *(
        Case("MatMulInteger16", [integers(3, 4, low=low, high=30000, dtype=kind),
                                 integers(4, 5, low=low, high=30000, dtype=kind)],
             lambda a, b: a.to(torch.int64) @ b.to(torch.int64), domain=MS, name=kind.name,
             gradient=False)
        for low, kind in ((-30000, DataType.INT16), (0, DataType.UINT16))
    ),
    Case("MulInteger", [bytes_of(3, 4), given(100, UINT8), bytes_of(4), None],
         lambda a, za, b, zb: (a.to(torch.int64) - za.to(torch.int64)) * b.to(torch.int64),
         domain=MS, gradient=False),
]  # fmt: skip


def _sum(name: str, data: Input, axes: Sequence[int], keepdims: int) -> Case:
    def total(x: Tensor, axes: Sequence[int], keepdims: int) -> Tensor:
        gone = [axis % x.ndim for axis in axes] or range(x.ndim)
        for axis in sorted(gone, reverse=True):
            x = sum(x.to(torch.int64).unbind(axis), torch.tensor(0))
            x = x.unsqueeze(axis) if keepdims else x
        return x

    return Case("ReduceSumInteger", [data], total, {"axes": tuple(axes), "keepdims": keepdims}, MS,
                name=name, gradient=False)  # fmt: skip


SUMS = [
    _sum("signed", bytes_of(2, 300, 3, dtype=INT8), [1], 1),
    _sum("unsigned", bytes_of(2, 300, 3), [0, -2], 0),
    _sum("all", bytes_of(4, 5), [], 1),
]


def _as_bytes(x: Tensor) -> Tensor:
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale = torch.tensor((high - low) / 255 or 1.0, dtype=x.dtype)
    zero = torch.round(-low / scale)
    return ((torch.round(x / scale) + zero).clamp(0, 255) - zero) * scale


def _lstm(
    x: Any, w: Any, r: Any, b: Any, lens: Any, h: Any, c: Any, p: Any, sw: Any, zw: Any, sr: Any,
    zr: Any, *, hidden_size: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    weights, loops = (
        real(q, s.reshape(1, 1, -1), z.reshape(1, 1, -1))[0]
        for q, s, z in ((w, sw, zw), (r, sr, zr))
    )
    h, c = (x.new_zeros(x.shape[1], hidden_size) for _ in range(2))
    every = []
    for step in _as_bytes(x):
        gates = step @ weights + _as_bytes(h) @ loops + (0 if b is None else sum(b[0].chunk(2)))
        i, o, f, g = gates.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        every.append(h)
    return torch.stack(every).unsqueeze(1), h.unsqueeze(0), c.unsqueeze(0)


def _seven_bits(*shape: int) -> Input:
    """Weights whose products onnxruntime adds without overflow on every processor."""
    return integers(*shape, low=-64, high=64, dtype=INT8)


LSTM = [
    Case("DynamicQuantizeLSTM", [normal(4, 2, 3), bytes_of(1, 3, 20), bytes_of(1, 5, 20),
                                 normal(1, 40), None, None, None, None, given([0.01], FLOAT),
                                 given([128], UINT8), given([0.02], FLOAT), given([120], UINT8)],
         _lstm, {"hidden_size": 5}, MS, outputs=3, gradient=False),
    Case("DynamicQuantizeLSTM", [normal(4, 2, 3), _seven_bits(1, 3, 20),
                                 _seven_bits(1, 5, 20), None, None, None, None, None,
                                 given([[0.01] * 20], FLOAT), given([[0] * 20], INT8),
                                 given([[0.02] * 20], FLOAT), given([[0] * 20], INT8)],
         _lstm, {"hidden_size": 5}, MS, outputs=3, name="per-gate", gradient=False),
]  # fmt: skip

CASES: list[Case] = [*ELEMENTWISE, *JOIN, *LINEAR, *PRODUCTS, *SUMS, *LSTM]
