"""Further shapes and settings of ONNX operators, for their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxtrain.testing.case import (
    Case,
    Input,
    apart,
    given,
    integers,
    normal,
    only,
    shape_input,
    uniform,
)
from onnxtrain.testing.cases import (
    attention,
    loss_last_axis,
    ml,
    norm,
    signal,
    tensor_resize,
    tensor_scatter,
    tensor_select,
    tensor_shape,
    vision,
)
from onnxtrain.testing.cases.math import elementwise
from onnxtrain.testing.cases.quantization import bytes_of
from onnxtrain.testing.cases.tensor_inputs import without_repeats
from onnxtrain.types import ML, DataType

TWO = only(DataType.FLOAT, DataType.DOUBLE)


def _row(op: str, inputs: list[Input | None], reference: Any, name: str, **options: Any) -> Case:
    """A row in two types; further words are attributes."""
    own = {key: options.pop(key) for key in ("opset", "outputs") if key in options}
    return Case(op, inputs, reference, options, dtypes=TWO, name=name, **own)


def _number(value: int) -> Input:
    return given(value, constant=True)


_IMAGE, _REGION = normal(1, 2, 5, 4), given([[0.27, 0.53, 2.71, 3.06]])
_FRAMES = [normal(1, 10, 1), _number(3)]
SHAPES = [
    _row("AffineGrid", [normal(1, 2, 3), shape_input(1, 1, 2, 3)], vision._affine, "small"),
    *(
        _row("CastLike", [normal(*shape), given([1.0], DataType.DOUBLE)],
             lambda x, like: x.to(torch.float64), f"rank-{len(shape)}")
        for shape in ((), (4,), (2, 1, 3))
    ),
    *(
        _row("CumProd", [normal(*shape), _number(-1)], elementwise._cumulative(torch.cumprod, 1),
             f"rank-{len(shape)}")
        for shape in ((5,), (2, 2, 3))
    ),
    _row("DFT", [normal(2, 6, 3, 1), None, _number(-3)], signal._dft, "negative-axis"),
    _row("InstanceNormalization", [normal(3, 2, 4), normal(2), normal(2)], norm._instance, "two"),
    _row("LRN", [normal(1, 4, 2)], norm._lrn, "line", size=2, alpha=0.5),
    _row("LpNormalization", [apart(4)], norm._lp, "vector", axis=0),
    _row("LpNormalization", [apart(2, 3)], norm._lp, "matrix", p=1),
    _row("MaxRoiPool", [apart(1, 2, 5, 4), given([[0.0, 0, 1, 3, 4]]).no_grad()], vision._roi_pool,
         "one", pooled_shape=(2, 2)),
    _row("MeanVarianceNormalization", [uniform(2, 3, 4)], norm._mean_variance, "negative",
         axes=(0, -1)),
    _row("MeanVarianceNormalization", [uniform(3, 5)], norm._mean_variance, "matrix", axes=(1,)),
    _row("OptionalGetElement", [normal(3)], lambda x: x, "vector"),
    _row("OptionalGetElement", [normal(2, 1, 2)], lambda x: x, "three"),
    _row("RoiAlign", [_IMAGE, _REGION, given([0])], vision._aligned, "one", output_height=2,
         output_width=2, sampling_ratio=2),
    _row("SpaceToDepth", [normal(1, 2, 2, 2)], tensor_select._space_to_depth, "one-block",
         blocksize=2),
    _row("Squeeze", [normal(1), shape_input(0)], tensor_shape._squeeze, "to-scalar"),
    _row("Tile", [normal(3), shape_input(2)], tensor_shape._tile, "vector"),
    _row("TopK", [apart(2, 5), shape_input(3)], tensor_select._top_k, "smallest", outputs=2,
         largest=0),
    _row("SparseSoftmaxCrossEntropy", [normal(2, 3), integers(2, high=3)], loss_last_axis._sparse,
         "matrix", outputs=2),
    _row("STFT", [*_FRAMES, normal(4)], signal._stft, "one-side", onesided=1),
    _row("STFT", [*_FRAMES, None, _number(5)], signal._stft, "one-side-no-window", onesided=1),
    _row("STFT", [normal(2, 8, 1), _number(2), normal(4)], signal._stft, "two", onesided=1),
    _row("STFT", [normal(2, 8), _number(2), normal(4)], signal._stft, "matrix", onesided=1),
    *(
        _row("Unique", [apart(*shape)], tensor_select._unique, f"distinct-{len(shape)}", outputs=4,
             **attributes)
        for shape, attributes in (((6,), {}), ((3, 2), {"axis": -1}), ((2, 1, 2), {"sorted": 0}))
    ),
    *(
        _row("Scatter", [normal(3, 5), without_repeats(2, 4, size=5, axis=1),
                         normal(2, 4)], tensor_scatter._scatter_elements, f"axis={axis}",
             axis=axis, opset=9)
        for axis in (1, -1)
    ),
    _row("Scatter", [normal(2, 1, 2), given([[[1, 0]]]), normal(1, 1, 2)],
         tensor_scatter._scatter_elements, "three", opset=9),
    *(
        _row("Upsample", [normal(*shape)], tensor_resize._upsampled, "x".join(map(str, shape)),
             mode="nearest", scales=(1.0, 1.0, 2.0, 2.0), opset=7)
        for shape in ((2, 1, 3, 2), (1, 2, 2, 2))
    ),
]  # fmt: skip


def _stepped(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return start + delta * torch.arange(4, dtype=start.dtype)


def _centered(x: Tensor, shape: Tensor, *, axes: Any = None) -> Tensor:
    """Axis by axis: zeros around what is too short, the middle of what is too long."""
    for axis, size in zip(range(x.ndim) if axes is None else axes, shape.tolist(), strict=True):
        missing = size - x.shape[axis]
        if missing < 0:
            x = x.narrow(axis, -missing // 2, size)
        else:
            before, after = list(x.shape), list(x.shape)
            before[axis], after[axis] = missing // 2, missing - missing // 2
            x = torch.cat([x.new_zeros(before), x, x.new_zeros(after)], axis)
    return x


def _put(x: Tensor, places: Tensor, *_: Any, shape: Any, **__: Any) -> Tensor:
    flat = torch.zeros(torch.Size(shape).numel(), dtype=x.dtype)
    there = places.flatten() >= 0
    return flat.scatter(0, places.flatten()[there], x.flatten()[there]).reshape(shape)


def _unpool(shape: tuple[int, ...], places: Any, to: tuple[int, ...]) -> Case:
    window = (2,) * (len(shape) - 2)
    return _row("MaxUnpool", [normal(*shape), given(places)],
                lambda *xs, **a: _put(*xs, shape=to, **a), "x".join(map(str, shape)),
                kernel_shape=window, strides=window)  # fmt: skip


def _written(
    cache: Tensor, update: Tensor, start: Tensor | None = None, *, axis: int = -2, mode: str = ""
) -> Tensor:
    """Sample by sample."""
    axis, room = axis % cache.ndim - 1, cache.shape[axis]
    samples = []
    for index, (old, new) in enumerate(zip(cache, update, strict=True)):
        first = 0 if start is None else int(start[index])
        places = (first + torch.arange(new.shape[axis])) % room
        samples.append(old.index_copy(axis, places, new))
    return torch.stack(samples)


def _dequantized(x: Tensor, scale: Tensor, zero: Tensor, *, axis: int) -> Tensor:
    shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
    scale, zero = scale.reshape(shape), zero.reshape(shape).to(scale.dtype)
    return (x.to(scale.dtype) - zero) * scale


REFERENCES = [
    _row("Range", [given(0.3), given(2.05).no_grad(), given(0.5)], _stepped, "between"),
    _row("CenterCropPad", [normal(3, 6), shape_input(6, 3)], _centered, "both"),
    _row("CenterCropPad", [normal(2, 5, 4), shape_input(3, 7)], _centered, "some", axes=(1, 2)),
    _row("CenterCropPad", [normal(5), shape_input(2)], _centered, "vector", axes=(-1,)),
    _unpool((1, 1, 2, 2), [[[[5, 7], [13, 15]]]], (1, 1, 4, 4)),
    _unpool((1, 2, 2), [[[1, 2], [4, 7]]], (1, 2, 4)),
    _unpool((2, 1, 1, 2), [[[[0, 6]]], [[[9, 15]]]], (2, 1, 2, 4)),
    _unpool((1, 1, 3, 2), [[[[-1, 7], [13, -1], [22, 0]]]], (1, 1, 6, 4)),
    _row("TensorScatter", [normal(2, 4, 3), normal(2, 2, 3), given([1, 2])], _written, "linear"),
    _row("TensorScatter", [normal(2, 3, 4), normal(2, 3, 2), given([3, 1])], _written, "circular",
         axis=-1, mode="circular"),
    _row("TensorScatter", [normal(2, 2, 4, 3), normal(2, 2, 2, 3)], _written, "from-start"),
    _row("TensorScatter", [normal(2, 4, 1, 3), normal(2, 2, 1, 3), given([1, 2])], _written,
         "axis-from-front", axis=1),
    _row("DequantizeLinear", [bytes_of(2, 4), given([0.5, 0.25, 0.125, 2.0]),
                              given([1, 2, 3, 4], DataType.UINT8)], _dequantized, "last-axis",
         axis=-1),
    _row("CausalConvWithState", [normal(1, 2, 4), normal(2, 1, 3)], attention._convolved, "swish",
         outputs=2, activation="swish"),
    Case("DynamicQuantizeLinear", [given([[[0.6], [-2.1]], [[3.3], [1.2]]])], outputs=3,
         dtypes=only(DataType.FLOAT), name="three", gradient=False),
]  # fmt: skip


def _regressed(x: Tensor, *, coefficients: Any, post_transform: str, **more: Any) -> Tensor:
    """x·W + b (the offset of a vector machine is rho), and what is made of it."""
    weights = torch.tensor(coefficients, dtype=x.dtype).reshape(-1, x.shape[1])
    offsets = torch.tensor(more.get("intercepts") or more["rho"], dtype=x.dtype)
    y: Tensor = x @ weights.T + offsets
    if post_transform == "PROBIT":
        y = torch.special.ndtri(y)
        return y
    return torch.sigmoid(y) if post_transform == "LOGISTIC" else y.softmax(-1)


def _classified(x: Tensor, **attributes: Any) -> tuple[Tensor, Tensor]:
    scores = _regressed(x, **attributes)
    return scores.argmax(-1), scores


def _learned(op: str, x: Input, reference: Any, name: str, **attributes: Any) -> Case:
    return Case(op, [x], reference, attributes, ML, dtypes=TWO, name=name, gradient=False)


_FEW = normal(2, 3)
_MACHINE: dict[str, Any] = {"labels": [5, 6, 7], **ml.MACHINE, "kernel_type": "LINEAR"}
_POSITIVE = {"coefficients": [0.3, 0.2, 0.1]}
"""Scores between 0 and 1, as probits need them."""
_TRANSFORMS = ("SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
LEARNING = [
    _learned("Imputer", _FEW, lambda x, **_: x.clone(), "none-missing",
             imputed_value_floats=[5.0], replaced_value_float=-9.0),
    _learned("Imputer", normal(3, 2), lambda x, **_: x.clone(), "three",
             imputed_value_floats=[5.0], replaced_value_float=-9.0),
    _learned("Scaler", _FEW, ml._scaled, "two", offset=[0.5], scale=[2.0]),
    *(ml._row("Normalizer", _FEW, norm=norm, name=f"two-{norm}") for norm in ("MAX", "L1", "L2")),
    *(_learned("LinearRegressor", _FEW, _regressed, how, targets=2, post_transform=how,
               **ml._WEIGHTS) for how in _TRANSFORMS),
    *(_learned("SVMRegressor", _FEW, _regressed, how, coefficients=[0.5, -1.0, 2.0], rho=[0.25],
               post_transform=how) for how in _TRANSFORMS),
    ml._classify("LinearClassifier", _FEW, labels=[5, 6], name="two", **ml._WEIGHTS),
    _learned("LinearRegressor", uniform(2, 3), _regressed, "PROBIT", post_transform="PROBIT",
             intercepts=[0.2], **_POSITIVE),
    _learned("SVMRegressor", uniform(2, 3), _regressed, "PROBIT", post_transform="PROBIT",
             rho=[0.2], **_POSITIVE),
    Case("LinearClassifier", [uniform(2, 3)], _classified, outputs=2, domain=ML, name="PROBIT",
         dtypes=only(DataType.FLOAT), gradient=False,
         attributes={"classlabels_ints": [0, 1], "post_transform": "PROBIT",
                     "coefficients": [0.3, 0.2, 0.1, 0.2, 0.1, 0.3], "intercepts": [0.2, 0.1]}),
    *(ml._classify("SVMClassifier", _FEW, post_transform=how, name=how, **_MACHINE)
      for how in _TRANSFORMS),
]  # fmt: skip

CASES: list[Case] = [*SHAPES, *REFERENCES, *LEARNING]
