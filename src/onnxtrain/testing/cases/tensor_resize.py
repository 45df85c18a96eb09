"""Rows for Resize, its older forms and its gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import Case, Input, given, normal, only, shape_input
from onnxtrain.testing.cases.tensor_inputs import FLOAT, OLD_FLOATS, halves
from onnxtrain.types import FLOATS, INTEGERS, MS, DataType

_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_UP, _DOWN, _ODD = (1.0, 1.0, 2.0, 3.0), (1.0, 1.0, 0.5, 0.6), (1.0, 1.0, 1.7, 0.8)


def _resized(
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
    extrapolation_value: float = 0.0,
    **how: Any,
) -> Tensor:
    """One matrix per axis, its entries computed one by one, exactly, from ONNX's definition."""
    along = [axis % x.ndim for axis in axes or range(x.ndim)]
    starts, ends = [0.0] * len(along), [1.0] * len(along)
    if roi is not None and roi.numel():
        starts, ends = roi.reshape(2, -1).tolist()
    wanted, factors = _sizes(x, along, scales, sizes, keep_aspect_ratio_policy)
    outside = torch.zeros((), dtype=torch.bool)
    for i, axis in enumerate(along):
        size = x.shape[axis]
        scale, start, end = factors[i], Fraction(starts[i]), Fraction(ends[i])
        places = [_source(k, size, wanted[i], scale, start, end, how) for k in range(wanted[i])]
        matrix = torch.tensor([_row(at, size, scale, how) for at in places], dtype=torch.float64)
        x = torch.tensordot(x, matrix.to(x.dtype), ([axis], [1])).movedim(-1, axis)
        if how.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            mask = torch.tensor([not 0 <= at <= size - 1 for at in places])
            outside = outside | mask.reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    return torch.where(outside, extrapolation_value, x)


def _sizes(
    x: Tensor, along: list[int], scales: Tensor | None, sizes: Tensor | None, policy: str
) -> tuple[list[int], list[Fraction]]:
    """Sizes of the result and factors, by axis."""
    if sizes is None:
        assert scales is not None
        factors = [Fraction(f) for f in scales.tolist()]
        return [math.floor(x.shape[a] * f) for a, f in zip(along, factors, strict=True)], factors
    wanted = sizes.tolist()
    factors = [Fraction(n, x.shape[a]) for a, n in zip(along, wanted, strict=True)]
    if policy == "stretch":
        return wanted, factors
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [math.floor(x.shape[a] * factor + Fraction(1, 2)) for a in along], [factor] * len(along)


def _source(
    k: int,
    size: int,
    out: int,
    scale: Fraction,
    start: Fraction,
    end: Fraction,
    how: dict[str, Any],
) -> Fraction:
    """Where output k lies in the input."""
    coordinates = how.get("coordinate_transformation_mode", "half_pixel")
    width = scale * size
    half, none = Fraction(1, 2), Fraction(0)
    usual = (k + half) / scale - half
    if coordinates == "half_pixel_symmetric":
        return usual + half * size * (1 - out / width)
    if coordinates == "align_corners":
        return none if width == 1 else k * (size - 1) / (width - 1)
    if coordinates == "asymmetric":
        return k / scale
    if coordinates == "tf_half_pixel_for_nn":
        return (k + half) / scale
    if coordinates == "tf_crop_and_resize":
        if out == 1:
            return half * (start + end) * (size - 1)
        return start * (size - 1) + k * (end - start) * (size - 1) / (width - 1)
    return none if coordinates == "pytorch_half_pixel" and out == 1 else usual


def _row(at: Fraction, size: int, scale: Fraction, how: dict[str, Any]) -> list[float]:
    """Weights of all inputs in one output."""
    row = [Fraction(0)] * size
    mode = how.get("mode", "nearest")
    if mode == "nearest":
        place = {
            "round_prefer_floor": math.ceil(at - Fraction(1, 2)),
            "round_prefer_ceil": math.floor(at + Fraction(1, 2)),
            "floor": math.floor(at),
            "ceil": math.ceil(at),
            "by_scale": math.ceil(at) if scale < 1 else math.floor(at),
        }[how.get("nearest_mode", "round_prefer_floor")]
        row[min(max(place, 0), size - 1)] = Fraction(1)
        return [float(weight) for weight in row]
    stretch = min(scale, Fraction(1)) if how.get("antialias") else Fraction(1)
    reach = math.ceil(2 / stretch) + 1
    for place in range(math.floor(at) - reach, math.ceil(at) + reach + 1):
        if how.get("exclude_outside") and not 0 <= place < size:
            continue
        a = Fraction(how.get("cubic_coeff_a", -0.75))
        weight = _kernel(abs(place - at) * stretch, mode, a)
        row[min(max(place, 0), size - 1)] += weight
    total = sum(row)
    return [float(weight / total) for weight in row]


def _kernel(d: Fraction, mode: str, a: Fraction) -> Fraction:
    if mode == "linear":
        return max(1 - d, Fraction(0))
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else Fraction(0)


def _resize_grad(
    dy: Tensor,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    **attributes: Any,
) -> Tensor:
    sizes = None
    if scales is None:
        along = attributes.get("axes", range(x.ndim))
        sizes = torch.tensor([dy.shape[axis] for axis in along])
    with torch.enable_grad():
        at = torch.zeros(x.shape, dtype=dy.dtype, requires_grad=True)
        y = _resized(at, roi, scales, sizes, **attributes)
        (dx,) = torch.autograd.grad(y, at, dy)
    return dx


def _upsampled(x: Tensor, scales: Any, *, mode: str = "nearest") -> Tensor:
    return _resized(
        x,
        scales=torch.as_tensor(scales, dtype=torch.float32),
        mode=mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode="by_scale",
    )


def _upsampled_1(x: Tensor, *, height_scale: float, width_scale: float, mode: str) -> Tensor:
    return _upsampled(x, [1.0, 1.0, height_scale, width_scale], mode=mode)


def _scales(*values: float) -> Input:
    return given(list(values), DataType.FLOAT, constant=True)


def _case(
    attributes: dict[str, Any],
    *,
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    shape: Sequence[int] = (1, 1, 4, 5),
    roi: Sequence[float] | None = None,
    **options: Any,
) -> Case:
    region = None if roi is None else given(list(roi), DataType.FLOAT, constant=True)
    factors = None if scales is None else _scales(*scales)
    inputs: list[Input | None] = [normal(*shape), region, factors]
    if sizes is not None:
        inputs.append(shape_input(*sizes))
    shown = {**attributes, "scales": scales, "sizes": sizes, "roi": roi}
    name = ",".join(str(value) for value in shown.values() if value is not None)
    return Case("Resize", inputs, _resized, attributes, name=name, **options)


_BY_SCALE = [
    _case({"mode": mode, "coordinate_transformation_mode": how}, scales=scales, dtypes=FLOAT)
    for mode, how in itertools.product(("linear", "cubic", "nearest"), _COORDINATES)
    for scales in (_UP, _DOWN, _ODD)
]
_BY_SIZE = [
    _case({"mode": mode, "coordinate_transformation_mode": how}, sizes=(1, 1, 7, 3), dtypes=FLOAT)
    for mode, how in itertools.product(("linear", "cubic", "nearest"), _COORDINATES)
]
_NEAREST = [
    _case(
        {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": how},
        sizes=(1, 1, 8, 3),
        dtypes=FLOAT,
    )
    for rounding, how in itertools.product(_ROUNDINGS, ("half_pixel", "asymmetric"))
]
_CROP = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
_SPECIAL = [
    _case({"mode": "linear"}, scales=_ODD),
    _case({"mode": "cubic"}, scales=_ODD),
    _case({"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}, scales=_UP),
    _case({"mode": "linear", "exclude_outside": 1}, scales=_ODD, dtypes=FLOAT),
    _case({"mode": "linear", "antialias": 1}, scales=_DOWN),
    _case({"mode": "linear", "antialias": 1}, sizes=(1, 1, 2, 9), dtypes=FLOAT),
    _case({"mode": "cubic", "antialias": 1}, sizes=(1, 1, 2, 3)),
    _case({"mode": "cubic", "antialias": 1, "exclude_outside": 1}, scales=_DOWN, dtypes=FLOAT),
    _case({"mode": "linear", "axes": [2, 3]}, sizes=(7, 3), dtypes=FLOAT),
    _case({"mode": "linear", "axes": [3, 2]}, scales=(2.0, 0.5), dtypes=FLOAT),
    _case({"mode": "nearest", "axes": [-1]}, scales=(2.0,), dtypes=FLOAT),
    _case({"mode": "linear"}, shape=(1, 2, 3), scales=(1.0, 1.0, 2.5), dtypes=FLOAT),
    _case({"mode": "linear"}, shape=(2, 2, 3), sizes=(3, 4, 5), dtypes=FLOAT),
    _case({"mode": "cubic"}, shape=(1, 1, 4, 5), sizes=(1, 1, 1, 1), dtypes=FLOAT),
    _case({"mode": "nearest"}, scales=(1.0, 1.0, 1.0, 1.0), dtypes=FLOAT),
    *(
        _case(
            {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [2, 3]},
            sizes=(7, 8),
            gradient=False,
        )
        for policy in ("not_larger", "not_smaller")
    ),
    *(
        _case(
            {"mode": mode, **_CROP}, sizes=(1, 1, 3, 4), roi=(0.0, 0.0, 0.2, -0.3, 1, 1, 0.9, 1.2)
        )
        for mode in ("linear", "nearest", "cubic")
    ),
]
_BY_ONNX = [
    Case(
        "Resize",
        [normal(1, 1, 4, 5), None, _scales(*scales)],
        attributes={"mode": mode},
        name=f"onnx-{mode}-{scales}",
        gradient=False,
    )
    for mode, scales in itertools.product(("nearest", "linear"), (_UP, _DOWN, _ODD))
]
_WHOLE = [
    Case(
        "Resize",
        [halves(1, 1, 2, 3), None, _scales(*_UP)],
        attributes={"mode": mode},
        dtypes=INTEGERS - only(DataType.UINT64),
        gradient=False,
    )
    for mode in ("nearest", "linear")
]
_OLD = [
    Case(
        "Resize",
        [normal(1, 1, 4, 5), _scales(*scales)],
        _upsampled,
        {"mode": mode},
        opset=10,
        name=f"{mode}-{scales}",
        dtypes=OLD_FLOATS,
    )
    for mode in ("nearest", "linear")
    for scales in (_UP, _DOWN)
] + [
    Case(
        "Resize",
        [normal(1, 1, 4, 5), given([], DataType.FLOAT, constant=True), _scales(*_UP)],
        _resized,
        {"mode": "linear"},
        opset=11,
        dtypes=OLD_FLOATS,
    ),
    Case(
        "Upsample",
        [normal(1, 1, 2, 3), _scales(*_UP)],
        _upsampled,
        {"mode": "linear"},
        opset=9,
        dtypes=OLD_FLOATS,
    ),
    Case(
        "Upsample",
        [normal(1, 1, 2, 3)],
        _upsampled,
        {"mode": "nearest", "scales": _UP},
        opset=7,
        dtypes=OLD_FLOATS,
    ),
    Case(
        "Upsample",
        [normal(1, 1, 2, 3)],
        _upsampled_1,
        {"mode": "nearest", "height_scale": 2.0, "width_scale": 3.0},
        opset=1,
        dtypes=OLD_FLOATS,
        gradient=False,
    ),
]
_GRAD = (
    [
        Case(
            "ResizeGrad",
            [normal(1, 2, 7, 3), normal(1, 2, 4, 5)],
            _resize_grad,
            {"mode": mode, "coordinate_transformation_mode": how},
            domain=MS,
            dtypes=FLOAT,
            gradient=False,
        )
        for mode, how in itertools.product(("linear", "cubic", "nearest"), _COORDINATES)
    ]
    + [
        Case(
            "ResizeGrad",
            [normal(1, 2, 6, 8), normal(1, 2, 4, 5), None, _scales(1, 1, 1.7, 1.7)],
            _resize_grad,
            {"mode": mode},
            domain=MS,
            dtypes=FLOATS,
            name=f"{mode}-scales",
            gradient=False,
        )
        for mode in ("linear", "cubic", "nearest")
    ]
    + [
        Case(
            "ResizeGrad",
            [normal(1, 2, 4, 5), normal(1, 2, 4, 5)],
            _resize_grad,
            {"mode": "linear"},
            domain=MS,
            name="same-shape",
            gradient=False,
        ),
        Case(
            "ResizeGrad",
            [normal(1, 1, 2, 3), normal(1, 1, 4, 5)],
            _resize_grad,
            {"mode": "cubic", "antialias": 1},
            domain=MS,
            dtypes=FLOAT,
            gradient=False,
        ),
        Case(
            "ResizeGrad",
            [normal(1, 1, 4, 3), normal(1, 1, 4, 5)],
            _resize_grad,
            {"mode": "linear", "axes": [3]},
            domain=MS,
            dtypes=FLOAT,
            gradient=False,
        ),
        Case(
            "ResizeGrad",
            [
                normal(1, 1, 3, 4),
                normal(1, 1, 4, 5),
                given([0.0, 0.0, 0.2, -0.3, 1, 1, 0.9, 1.2], constant=True),
            ],
            _resize_grad,
            {"mode": "linear", **_CROP},
            domain=MS,
            dtypes=FLOAT,
            gradient=False,
        ),
    ]
)

CASES: list[Case] = [*_BY_SCALE, *_BY_SIZE, *_NEAREST, *_SPECIAL, *_BY_ONNX, *_WHOLE, *_OLD, *_GRAD]
