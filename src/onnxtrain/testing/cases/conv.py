"""Rows for convolutions and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxtrain.testing.autograd import pulled_back
from onnxtrain.testing.case import Case, Input, given, integers, normal
from onnxtrain.types import MS, DataType

_CONV = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
_TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


def _conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
) -> Tensor:
    rank = x.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    sides = list(zip(pads[:rank], pads[rank:], strict=True)) if pads else [(0, 0)] * rank
    if auto_pad.startswith("SAME"):
        for axis, (size, k) in enumerate(zip(x.shape[2:], w.shape[2:], strict=True)):
            outputs = (size + strides[axis] - 1) // strides[axis]
            reach = (outputs - 1) * strides[axis] + dilations[axis] * (k - 1) + 1
            less, more = max(reach - size, 0) // 2, (max(reach - size, 0) + 1) // 2
            sides[axis] = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    padded = F.pad(x, [n for side in reversed(sides) for n in side])
    return _CONV[x.ndim](padded, w, b, strides, 0, dilations, group)


def _conv_grad(dy: Tensor, x: Tensor, w: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
    b = torch.zeros(w.shape[0], dtype=w.dtype)
    return pulled_back(lambda *inputs: _conv(*inputs, **attributes), [x, w, b], dy)


# name: shapes of X and W, attributes
_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 3, 9), (4, 3, 3), {"kernel_shape": (3,)}),
    "line_pads": ((2, 3, 9), (4, 3, 4), {"pads": (1, 2), "strides": (2,)}),
    "plane": ((2, 3, 6, 7), (4, 3, 3, 2), {}),
    "pads": ((2, 3, 6, 7), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "uneven_pads": ((2, 3, 6, 7), (4, 3, 3, 3), {"pads": (0, 2, 1, 0), "strides": (2, 1)}),
    "dilations": ((1, 2, 9, 9), (2, 2, 3, 2), {"dilations": (2, 3), "pads": (2, 1, 2, 1)}),
    "strides": ((1, 2, 8, 9), (2, 2, 3, 3), {"strides": (2, 3)}),
    "groups": ((2, 4, 6, 5), (6, 2, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    "depthwise": ((2, 4, 6, 5), (4, 1, 3, 3), {"group": 4}),
    "volume": ((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"pads": (1, 0, 1, 0, 1, 1)}),
    "same_upper": ((1, 2, 7, 6), (2, 2, 4, 3), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    "same_lower": ((1, 2, 7, 6), (2, 2, 4, 3), {"auto_pad": "SAME_LOWER", "strides": (2, 2)}),
    "same_dilated": ((1, 2, 9), (2, 2, 4), {"auto_pad": "SAME_LOWER", "dilations": (2,)}),
    "valid": ((1, 2, 7, 6), (2, 2, 3, 3), {"auto_pad": "VALID", "strides": (2, 1)}),
}


def _output(x: tuple[int, ...], w: tuple[int, ...], forward: Any, **attributes: Any) -> Input:
    """A random gradient of the shape that the forward operator gives."""
    return normal(*forward(torch.zeros(x), torch.zeros(w), **attributes).shape).no_grad()


_CONVS = [
    Case("Conv", [normal(*x), normal(*w), bias], _conv, attributes, name=f"{name}{suffix}")
    for name, (x, w, attributes) in _SHAPES.items()
    for suffix, bias in (("", normal(w[0])), ("_no_bias", None))
]
_CONVS += [
    Case("Conv", [normal(*x), normal(*w)], _conv, attributes, name=name, opset=opset)
    for name, (x, w, attributes) in _SHAPES.items()
    for opset in (7, 11)
    if name in ("plane", "uneven_pads")
]
_CONV_GRADS = [
    Case(
        "ConvGrad",
        [_output(x, w, _conv, **attributes), normal(*x), normal(*w)],
        _conv_grad,
        attributes,
        domain=MS,
        outputs=3,
        gradient=False,
        name=name,
    )
    for name, (x, w, attributes) in _SHAPES.items()
]


def _first_two(*inputs: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
    return _conv_grad(*inputs, **attributes)[:2]


def _only_dx(*inputs: Tensor, **attributes: Any) -> Tensor:
    return _conv_grad(*inputs, **attributes)[0]


_CONV_GRADS += [
    Case(
        "ConvGrad",
        [normal(2, 4, 4, 3), normal(2, 3, 6, 4), normal(4, 3, 3, 2)],
        reference,
        domain=MS,
        outputs=outputs,
        empty=empty,
        gradient=False,
        name=name,
    )
    for name, reference, outputs, empty in (
        ("no_dx", _conv_grad, 3, (0,)),
        ("no_dw", _conv_grad, 3, (1,)),
        ("only_db", _conv_grad, 3, (0, 1)),
        ("only_dw", _first_two, 2, (0,)),
        ("only_dx", _only_dx, 1, ()),
    )
]


def _transposed(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
) -> Tensor:
    """The whole transposed convolution, from which the asked for part is cut."""
    rank = x.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    y = _TRANSPOSED[x.ndim](x, w, None, strides, 0, 0, group, dilations)
    extra = output_padding or [0] * rank
    y = F.pad(y, [n for e in reversed(extra) for n in (0, e)])
    if auto_pad.startswith("SAME") and not output_shape:
        asked = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
        output_shape = [min(n, m) for n, m in zip(asked, y.shape[2:], strict=True)]
    if output_shape:
        totals = [n - t for n, t in zip(y.shape[2:], output_shape, strict=True)]
        small = [t // 2 for t in totals]
        large = [t - t // 2 for t in totals]
        pads = small + large if auto_pad == "SAME_UPPER" else large + small
    pads = pads or [0] * 2 * rank
    cut = [
        -n for side in zip(pads[rank - 1 :: -1], pads[: rank - 1 : -1], strict=True) for n in side
    ]
    y = F.pad(y, cut)
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def _transposed_grad(dy: Tensor, x: Tensor, w: Tensor, **attributes: Any) -> tuple[Tensor, ...]:
    b = torch.zeros(dy.shape[1], dtype=w.dtype)
    return pulled_back(lambda *inputs: _transposed(*inputs, **attributes), [x, w, b], dy)


_TRANSPOSED_SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 3, 5), (3, 4, 3), {"kernel_shape": (3,)}),
    "plane": ((2, 3, 4, 5), (3, 2, 3, 3), {"strides": (2, 3)}),
    "pads": ((2, 3, 4, 5), (3, 2, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "uneven_pads": ((2, 3, 4, 5), (3, 2, 3, 3), {"strides": (2, 2), "pads": (1, 0, 2, 1)}),
    "output_padding": (
        (2, 3, 4, 5),
        (3, 2, 3, 3),
        {"strides": (2, 3), "pads": (1, 1, 1, 1), "output_padding": (1, 2)},
    ),
    "large_output_padding": (
        (1, 2, 3, 3),
        (2, 2, 3, 3),
        {"strides": (2, 2), "output_padding": (3, 1), "pads": (1, 1, 1, 2)},
    ),
    "dilations": ((1, 2, 4, 4), (2, 3, 2, 3), {"dilations": (2, 2), "pads": (0, 1, 1, 0)}),
    "groups": ((2, 4, 3, 4), (4, 2, 3, 3), {"group": 2, "strides": (2, 1)}),
    "volume": ((1, 2, 3, 2, 3), (2, 2, 2, 3, 2), {"strides": (2, 1, 2)}),
    "output_shape": ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": (3, 2), "output_shape": (10, 8)}),
    "smaller_output_shape": (
        (1, 2, 3, 3),
        (2, 2, 4, 3),
        {"strides": (3, 2), "output_shape": (7, 6), "auto_pad": "SAME_UPPER"},
    ),
    "same_upper": ((1, 2, 3, 4), (2, 2, 4, 3), {"strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    "same_lower": ((1, 2, 3, 4), (2, 2, 4, 3), {"strides": (3, 2), "auto_pad": "SAME_LOWER"}),
    **{
        f"{same.lower()}_{name}": (
            (1, 2, 3, 4),
            (2, 2, 2, 3),
            {"strides": (3, 2), "auto_pad": same, **more},
        )
        for same in ("SAME_UPPER", "SAME_LOWER")
        for name, more in (("far", {}), ("output_padding", {"output_padding": (2, 1)}))
    },
    "valid": ((1, 2, 3, 4), (2, 2, 3, 3), {"strides": (2, 2), "auto_pad": "VALID"}),
}
_TRANSPOSES = [
    Case(
        "ConvTranspose",
        [normal(*x), normal(*w), bias],
        _transposed,
        attributes,
        name=f"{name}{suffix}",
    )
    for name, (x, w, attributes) in _TRANSPOSED_SHAPES.items()
    for suffix, bias in (
        ("", normal(w[1] * attributes.get("group", 1))),
        ("_no_bias", None),
    )
]
_TRANSPOSES.append(
    Case(
        "ConvTranspose",
        [normal(2, 3, 4, 5), normal(3, 2, 3, 3)],
        _transposed,
        {"strides": (2, 2), "pads": (1, 0, 2, 1)},
        name="uneven_pads",
        opset=7,
    )
)
_TRANSPOSE_GRADS = [
    Case(
        "ConvTransposeGrad",
        [_output(x, w, _transposed, **attributes), normal(*x), normal(*w)],
        _transposed_grad,
        attributes,
        domain=MS,
        outputs=3,
        gradient=False,
        name=name,
    )
    for name, (x, w, attributes) in _TRANSPOSED_SHAPES.items()
]
_TRANSPOSE_GRADS += [
    Case(
        "ConvTransposeGrad",
        [normal(2, 2, 9, 11), normal(2, 3, 4, 5), normal(3, 2, 3, 3)],
        _transposed_grad,
        {"strides": (2, 2)},
        domain=MS,
        outputs=3,
        empty=empty,
        gradient=False,
        name=f"without_{'_'.join(map(str, empty))}",
    )
    for empty in ((0,), (1,), (2,), (0, 1))
]


def _conv_integer(
    x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, **attributes: Any
) -> Tensor:
    wide_x = x.to(torch.float64) - (0.0 if x_zero is None else x_zero.to(torch.float64))
    zeros = torch.zeros(1) if w_zero is None else w_zero
    wide_w = w.to(torch.float64) - zeros.to(torch.float64).reshape(-1, *[1] * (w.ndim - 1))
    return _conv(wide_x, wide_w, **attributes).round().to(torch.int32)


_INT8, _UINT8 = DataType.INT8, DataType.UINT8
_INTEGERS = [
    Case(
        "ConvInteger",
        [
            integers(1, 2, 5, 6, low=0 if x is _UINT8 else -128, high=128, dtype=x),
            integers(3, 2, 3, 3, low=0 if w is _UINT8 else -128, high=128, dtype=w),
            None if zeros is None else given(5, x),
            None if zeros is None else given(zeros, w),
        ],
        _conv_integer,
        {"pads": (1, 0, 1, 2)},
        gradient=False,
        name=f"{x.name}_{w.name}_{zeros}".lower(),
    )
    for x, w in ((_UINT8, _UINT8), (_UINT8, _INT8), (_INT8, _INT8))
    for zeros in (None, 3, [1, 2, 3])
]

CASES = [*_CONVS, *_CONV_GRADS, *_TRANSPOSES, *_TRANSPOSE_GRADS, *_INTEGERS]
