"""Rows for pools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxtrain.testing.case import Case, apart, integers, normal, only
from onnxtrain.types import DataType

_OLD = 10
"""A version of the pools before their padding rules were cleaned up."""
LOWEST = torch.finfo(torch.float32).min


def _places(x: Tensor, attributes: dict[str, Any]) -> list[list[list[int]]]:
    """For each axis and each window the places it covers, padding included."""
    rank = x.ndim - 2
    kernel = attributes["kernel_shape"]
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    pads = list(attributes.get("pads") or [0] * 2 * rank)
    mode = attributes.get("auto_pad", "NOTSET")
    fits = not attributes.get("ceil_mode") or mode.startswith("SAME")
    rounding = math.floor if fits else math.ceil
    found = []
    for axis, size in enumerate(x.shape[2:]):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        begin, end = pads[axis], pads[rank + axis]
        if mode.startswith("SAME"):
            total = max((math.ceil(size / strides[axis]) - 1) * strides[axis] + reach - size, 0)
            begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
            end = total - begin
        count = rounding((size + begin + end - reach) / strides[axis]) + 1
        starts = [o * strides[axis] - begin for o in range(count)]
        if rounding is math.ceil:
            starts = [s for s in starts if s < size]
        windows = [[s + k * dilations[axis] for k in range(kernel[axis])] for s in starts]
        found.append([[p for p in window if -begin <= p < size + end] for window in windows])
    return found


def _pooled(x: Tensor, function: Callable[[Tensor, int], Tensor], **attributes: Any) -> Tensor:
    """A function of every window, told the window's values and how many places it covers."""
    places = _places(x, attributes)
    results = []
    for windows in itertools.product(*places):
        inside = x
        for axis, window in enumerate(windows):
            kept = [p for p in window if 0 <= p < x.shape[2 + axis]]
            inside = inside.index_select(2 + axis, torch.tensor(kept, dtype=torch.int64))
        results.append(function(inside.flatten(2), math.prod(map(len, windows))))
    return torch.stack(results, -1).reshape(*x.shape[:2], *map(len, places))


def max_pool(x: Tensor, *, storage_order: int = 0, **attributes: Any) -> tuple[Tensor, Tensor]:
    """Maxima and their places in the whole tensor."""

    def largest(values: Tensor, count: int) -> Tensor:
        return values.amax(-1) if values.shape[-1] else x.new_full(x.shape[:2], LOWEST)

    y = _pooled(x, largest, **attributes)
    sizes = list(x.shape[2:])
    inside = torch.arange(math.prod(sizes))
    if storage_order:
        inside = inside.reshape(sizes[::-1]).permute(*reversed(range(len(sizes))))
    planes = torch.arange(x.shape[0] * x.shape[1]) * math.prod(sizes)
    number = inside.reshape(1, 1, *sizes) + planes.reshape(*x.shape[:2], *[1] * len(sizes))
    # values are distinct within a channel, so a maximum's value tells its place
    flat_x, flat_n = x.detach().flatten(2), number.flatten(2)
    match = y.detach().flatten(2).unsqueeze(-1) == flat_x.unsqueeze(2)
    found = flat_n.gather(2, match.to(torch.uint8).argmax(-1))
    found = found.where(match.any(-1), -1)
    return y, found.reshape(y.shape)


def max_only(x: Tensor, **attributes: Any) -> Tensor:
    """Maxima."""
    return max_pool(x, **attributes)[0]


def average_pool(x: Tensor, *, count_include_pad: int = 0, **attributes: Any) -> Tensor:
    """Means."""

    def mean(values: Tensor, count: int) -> Tensor:
        return values.sum(-1) / max(count if count_include_pad else values.shape[-1], 1)

    return _pooled(x, mean, **attributes)


def _lp_pool(x: Tensor, *, p: float = 2, **attributes: Any) -> Tensor:
    return _pooled(x, lambda values, count: values.abs().pow(p).sum(-1).pow(1 / p), **attributes)


_WINDOWS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 3, 9), {"kernel_shape": (3,), "strides": (2,)}),
    "line_pads": ((1, 2, 8), {"kernel_shape": (4,), "pads": (3, 1)}),
    "plane": ((2, 2, 5, 6), {"kernel_shape": (2, 3)}),
    "strides": ((1, 2, 7, 8), {"kernel_shape": (3, 2), "strides": (2, 3)}),
    "pads": ((1, 2, 6, 6), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "uneven_pads": ((1, 2, 6, 5), {"kernel_shape": (3, 3), "pads": (0, 2, 1, 0)}),
    "volume": ((1, 2, 4, 5, 6), {"kernel_shape": (2, 3, 2), "strides": (2, 1, 3)}),
    "volume_pads": (
        (1, 2, 4, 3, 5),
        {"kernel_shape": (2, 3, 2), "pads": (1, 0, 0, 0, 1, 1), "strides": (1, 2, 2)},
    ),
    "same_upper": (
        (1, 2, 7, 6),
        {"kernel_shape": (4, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"},
    ),
    "same_lower": (
        (1, 2, 7, 6),
        {"kernel_shape": (4, 3), "strides": (2, 2), "auto_pad": "SAME_LOWER"},
    ),
    # strides above the size of the window: nothing is padded, and nothing cut off
    "same_apart": (
        (1, 2, 8, 6),
        {"kernel_shape": (2, 1), "strides": (5, 3), "auto_pad": "SAME_UPPER"},
    ),
    "same_apart_lower": (
        (1, 2, 8, 6),
        {"kernel_shape": (1, 2), "strides": (4, 5), "auto_pad": "SAME_LOWER"},
    ),
    "valid": ((1, 2, 7, 6), {"kernel_shape": (3, 2), "strides": (2, 2), "auto_pad": "VALID"}),
}
_CEILED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "ceil": ((1, 2, 6, 7), {"kernel_shape": (3, 2), "strides": (2, 2), "ceil_mode": 1}),
    "ceil_valid": (
        (1, 2, 6, 7),
        {"kernel_shape": (3, 2), "strides": (2, 2), "auto_pad": "VALID", "ceil_mode": 1},
    ),
    "ceil_pads": (
        (1, 2, 7, 6),
        {"kernel_shape": (3, 3), "strides": (3, 2), "pads": (1, 0, 0, 1), "ceil_mode": 1},
    ),
    # the window that would start in the padding is left out
    "ceil_outside": (
        (1, 1, 2, 2),
        {"kernel_shape": (3, 3), "strides": (3, 3), "pads": (1, 1, 1, 1), "ceil_mode": 1},
    ),
}
_DILATED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "dilations": (
        (1, 2, 7, 8),
        {"kernel_shape": (3, 2), "dilations": (2, 3), "pads": (1, 0, 0, 1)},
    ),
    "line_dilations": ((2, 2, 9), {"kernel_shape": (3,), "dilations": (2,), "ceil_mode": 1}),
}
_ALL = {**_WINDOWS, **_CEILED, **_DILATED}
# windows of nothing but padding: before the data, behind it, around it
_HOLLOW: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "wide_pads": ((1, 2, 4), {"kernel_shape": (2,), "pads": (3, 2)}),
    "wide_plane": ((2, 2, 3, 4), {"kernel_shape": (2, 3), "pads": (1, 3, 2, 0)}),
    "gaps": (
        (1, 2, 3, 2),
        {"kernel_shape": (2, 2), "dilations": (1, 3), "pads": (0, 2, 0, 2)},
    ),
    "same_gaps": (
        (1, 2, 3),
        {"kernel_shape": (2,), "dilations": (4,), "auto_pad": "SAME_LOWER"},
    ),
    "hollow_volume": (
        (1, 2, 2, 3, 2),
        {"kernel_shape": (1, 2, 2), "dilations": (1, 1, 2), "pads": (1, 0, 1, 0, 2, 1)},
    ),
}


def _rows(
    op: str,
    reference: Callable[..., Any],
    windows: dict[str, tuple[tuple[int, ...], dict[str, Any]]],
    **options: Any,
) -> list[Case]:
    more = options.pop("more", {})
    suffix = options.pop("suffix", "")
    return [
        Case(
            op,
            [apart(*shape)],
            reference,
            {**attributes, **more},
            name=f"{name}{suffix}",
            **options,
        )
        for name, (shape, attributes) in windows.items()
    ]


_HOLLOW_MAX = [
    # lowest numbers are those of one type, and no differences can be taken of them
    *_rows("MaxPool", max_only, _HOLLOW, dtypes=only(DataType.FLOAT), gradient=False),
    *(
        row
        for order, name in enumerate(("_indices", "_columns"))
        for row in _rows(
            "MaxPool",
            max_pool,
            _HOLLOW,
            outputs=2,
            dtypes=only(DataType.FLOAT),
            gradient=False,
            more={"storage_order": order},
            suffix=name,
        )
    ),
]
_MAX = [
    *_rows("MaxPool", max_only, _ALL),
    *_rows("MaxPool", max_pool, _ALL, outputs=2, suffix="_indices"),
    *_rows("MaxPool", max_pool, _ALL, outputs=2, more={"storage_order": 1}, suffix="_columns"),
    *_rows("MaxPool", max_only, {"pads": _WINDOWS["pads"]}, opset=7),
    *_rows("MaxPool", max_pool, {"pads": _WINDOWS["pads"]}, opset=8, outputs=2),
    *_rows("MaxPool", max_only, {"ceil": _CEILED["ceil"]}, opset=_OLD),
    *(
        Case(
            "MaxPool",
            [integers(1, 2, 5, 6, low=low, high=100, dtype=dtype)],
            lambda x, **attributes: max_only(x.to(torch.int64), **attributes),
            {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1)},
            gradient=False,
            name=dtype.name.lower(),
        )
        for dtype, low in ((DataType.INT8, -100), (DataType.UINT8, 0))
    ),
]
_AVERAGE = [
    *_rows("AveragePool", average_pool, {**_ALL, **_HOLLOW}),
    *_rows(
        "AveragePool", average_pool, _ALL, more={"count_include_pad": 1}, suffix="_count_padding"
    ),
    *_rows("AveragePool", average_pool, {"pads": _WINDOWS["pads"]}, opset=7),
    *_rows("AveragePool", average_pool, {"wide_pads": _HOLLOW["wide_pads"]}, opset=7),
    *_rows("AveragePool", average_pool, {"uneven_pads": _WINDOWS["uneven_pads"]}, opset=11),
    *_rows("AveragePool", average_pool, {"dilations": _DILATED["dilations"]}, opset=19),
]
_LP = [
    *_rows("LpPool", _lp_pool, {**_ALL, **_HOLLOW}),
    *_rows("LpPool", _lp_pool, _WINDOWS, more={"p": 3}, suffix="_p3"),
    *_rows("LpPool", _lp_pool, {"pads": _WINDOWS["pads"]}, more={"p": 1}, opset=11),
]


def _axes(x: Tensor) -> list[int]:
    return list(range(2, x.ndim))


_GLOBALS: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "GlobalAveragePool": (lambda x: x.mean(_axes(x), keepdim=True), {}),
    "GlobalMaxPool": (lambda x: x.amax(_axes(x), keepdim=True), {}),
    "GlobalLpPool": (
        lambda x, p=2: x.abs().pow(p).sum(_axes(x), keepdim=True).pow(1 / p),
        {"p": 3},
    ),
}
_WHOLE = [
    Case(op, [apart(*shape)], reference, attributes, opset=opset, name=f"rank_{len(shape)}")
    for op, (reference, attributes) in _GLOBALS.items()
    for shape, opset in (
        ((2, 3, 5), None),
        ((2, 3, 4, 5), None),
        ((1, 2, 2, 3, 4), None),
        ((2, 3, 4, 4), 7),
    )
]
_WHOLE.append(Case("GlobalLpPool", [normal(2, 3, 4)], _GLOBALS["GlobalLpPool"][0], name="default"))
_WHOLE.append(
    Case(
        "MaxPool",
        [apart(2, 3, 6, 6)],
        lambda x, **_: F.max_pool2d(x, 2, return_indices=False),
        {"kernel_shape": (2, 2), "strides": (2, 2)},
        name="torch",
    )
)

CASES = [*_MAX, *_HOLLOW_MAX, *_AVERAGE, *_LP, *_WHOLE]
