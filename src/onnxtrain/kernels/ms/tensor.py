"""Further forward operators of com.microsoft: distances, look-ups, windows, regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.layout import complex_of
from onnxtrain.kernels.nn.conv_transpose import conv_transpose
from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.axes import axis_of, scalar
from onnxtrain.kernels.tensor.create import range_of
from onnxtrain.kernels.tensor.gather_nd import gather_nd
from onnxtrain.kernels.tensor.pad import pad
from onnxtrain.kernels.tensor.select import unique
from onnxtrain.kernels.vision.sample import grid_sample
from onnxtrain.types import FIXED, FLOATS, INTS, MS, NUMBERS, DataType


@kernel("CDist", domain=MS, T=FLOATS)
def cdist(a: Tensor, b: Tensor, *, metric: str = "sqeuclidean") -> Tensor:
    """c[i, j] = |a[i] - b[j]|², or its root."""
    if metric not in ("sqeuclidean", "euclidean"):
        raise ValueError(f"metric is '{metric}', but it must be 'sqeuclidean' or 'euclidean'")
    squares = (widen(a).unsqueeze(1) - widen(b)).square().sum(-1)
    return store(squares if metric == "sqeuclidean" else squares.sqrt(), a)


@kernel("Inverse", domain=MS, T=FLOATS)
def inverse(x: Tensor) -> Tensor:
    """The inverse of each matrix of the last two axes."""
    # without the check, which waits for the device
    found, _ = torch.linalg.inv_ex(widen(x))
    return store(found, x)


@kernel("ComplexMul", domain=MS, T=FLOATS)
def complex_mul(a: Tensor, b: Tensor) -> Tensor:
    """c = a·b of complex numbers, whose two parts are the last axis."""
    return _product(a, b, 1)


@kernel("ComplexMulConj", domain=MS, T=FLOATS)
def complex_mul_conj(a: Tensor, b: Tensor) -> Tensor:
    """c = a·conj(b)."""
    return _product(a, b, -1)


def _product(a: Tensor, b: Tensor, sign: int) -> Tensor:
    (ar, ai), (br, bi) = widen(a).unbind(-1), widen(b).unbind(-1)
    bi = bi * sign
    return store(torch.stack([ar * br - ai * bi, ar * bi + ai * br], -1), a)


@kernel("Rfft", domain=MS, T=FLOATS)
def rfft(x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Tensor:
    """The spectrum of real numbers along the last axes, as pairs of parts."""
    _check_transform(normalized, onesided)
    axes = list(range(-signal_ndim, 0))
    return store(torch.view_as_real(torch.fft.rfftn(widen(x), dim=axes)), x)


@kernel("Irfft", domain=MS, T=FLOATS)
def irfft(x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int) -> Tensor:
    """The real numbers that a spectrum belongs to."""
    _check_transform(normalized, onesided)
    return store(torch.fft.irfftn(complex_of(widen(x)), dim=list(range(-signal_ndim, 0))), x)


def _check_transform(normalized: int, onesided: int) -> None:
    if normalized or not onesided:
        raise ValueError("normalized must be 0 and onesided 1")


@kernel("ExpandDims", domain=MS, view="x", host=["axis"])
def expand_dims(x: Any, axis: Any) -> Any:
    """x with an axis of size 1."""
    place = axis_of(int(scalar(axis)), x.ndim + 1)
    return x.reshape(*x.shape[:place], 1, *x.shape[place:])


@kernel("GatherND", domain=MS, Tind=INTS)
def ms_gather_nd(data: Tensor, indices: Tensor) -> Tensor:
    """y[i...] = data[indices[i...]]."""
    return gather_nd(data, indices)


@kernel("GridSample", domain=MS, T1=FLOATS)
def ms_grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> Tensor:
    """GridSample before it became an operator of ONNX."""
    return grid_sample(x, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)


@kernel("Pad", domain=MS, view="data", host=["pads", "value"], T=FLOATS)
def ms_pad(data: Tensor, pads: Any, value: Any = None, *, mode: str = "constant") -> Tensor:
    """The data between borders; the widths may be a row."""
    widths = pads[0] if pads and isinstance(pads[0], list) else pads
    return pad(data, widths, value, mode=mode)


def _declare_range(dtype: DataType) -> None:
    """Declare the kernel of Range for one type, since host values do not tell theirs."""
    make: Callable[..., Tensor] = range_of(to_torch(dtype))

    @kernel(
        "Range",
        domain=MS,
        host=["start", "limit", "delta"],
        needs=["device"],
        T=frozenset({dtype}),
    )
    def ms_range(start: Any, limit: Any, delta: Any = None, *, device: torch.device) -> Tensor:
        """start + i·delta below the limit, with delta 1 by default."""
        return make(start, limit, 1 if delta is None else delta, device=device)


for _dtype in (DataType.INT16, DataType.INT32, DataType.INT64, DataType.FLOAT, DataType.DOUBLE):
    _declare_range(_dtype)


@kernel("SampleOp", domain=MS, view="x", T=NUMBERS)
def sample_op(x: Tensor) -> Tensor:
    """y = x."""
    return x


@kernel("ScaledSiLU", domain=MS, T=FLOATS, M=FLOATS)
def scaled_silu(x: Tensor, scale: Tensor | None = None, *, alpha: float = 1.0) -> Tensor:
    """y = z·σ(z) with z = scale·x, each rounded to the type of x."""
    factor = alpha if scale is None else widen(scale).reshape(())
    z = (widen(x) * factor).to(x.dtype)
    return store(widen(z) * torch.sigmoid(widen(z)).to(x.dtype), x)


@kernel("GatedAdd", domain=MS, T=FLOATS)
def gated_add(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """x + y·gate."""
    return x + y * gate


@kernel("TorchEmbedding", domain=MS, host=["padding_idx", "scale_grad_by_freq"], T=NUMBERS)
def torch_embedding(
    weight: Tensor, indices: Tensor, padding_idx: Any = None, scale_grad_by_freq: Any = None
) -> Tensor:
    """y[i...] = weight[indices[i...]]; the other inputs are for the gradient."""
    rows = weight.index_select(0, indices.reshape(-1))
    return rows.reshape(*indices.shape, *weight.shape[1:])


@kernel("UnfoldTensor", domain=MS, T=FIXED)
def unfold_tensor(input: Tensor, *, dim: int = -1, size: int, step: int = 1) -> Tensor:
    """Every window of a size along an axis, with the window as the last axis."""
    return input.unfold(dim, size, step).clone(memory_format=torch.contiguous_format)


@kernel("Unique", domain=MS, outputs=3, T=FIXED)
def ms_unique(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct elements in the order of their first places, every element's number, counts."""
    found, _, places, counts = unique(x, sorted=0)
    return found, places, counts


@kernel("ConvTransposeWithDynamicPads", domain=MS, host=["pads"], T=FLOATS)
def conv_transpose_with_dynamic_pads(
    x: Tensor,
    w: Tensor,
    pads: Sequence[int] | None = None,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """ConvTranspose whose pads are an input."""
    return conv_transpose(
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        output_padding=output_padding,
        pads=pads,
        strides=strides,
    )


@kernel("CropAndResize", domain=MS, host=["crop_size"], T1=FLOATS)
def crop_and_resize(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    crop_size: Sequence[int],
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Tensor:
    """Regions (y1, x1, y2, x2) of images, from 0 to 1, as images of one size."""
    if mode not in ("bilinear", "nearest"):
        raise ValueError(f"mode is '{mode}', but it must be 'bilinear' or 'nearest'")
    images, regions = widen(x)[batch_indices.to(torch.int64)], widen(rois)
    lines = [
        _line(regions[:, axis], regions[:, axis + 2], crop_size[axis], x.shape[axis + 2])
        for axis in (0, 1)
    ]
    kinds = [_nearest(line) if mode == "nearest" else _linear(line) for line in lines]
    total = torch.zeros((), dtype=images.dtype, device=x.device)
    for rows, row_weights in kinds[0]:
        for columns, column_weights in kinds[1]:
            values = _at(images, _inside(rows, x.shape[2]), _inside(columns, x.shape[3]))
            weights = row_weights.unsqueeze(-1) * column_weights.unsqueeze(1)
            total = total + values * weights.unsqueeze(1)
    valid = [
        (line >= 0) & (line <= size - 1) for line, size in zip(lines, x.shape[2:], strict=True)
    ]
    known = (valid[0].unsqueeze(-1) & valid[1].unsqueeze(1)).unsqueeze(1)
    return store(torch.where(known, total, extrapolation_value), x)


def _line(start: Tensor, end: Tensor, count: int, size: int) -> Tensor:
    """[regions, count]: where samples lie among pixels; a single one lies in the middle."""
    if count == 1:
        return (0.5 * (start + end) * (size - 1)).unsqueeze(-1)
    steps = torch.arange(count, dtype=start.dtype, device=start.device) / (count - 1)
    return (start.unsqueeze(-1) + steps * (end - start).unsqueeze(-1)) * (size - 1)


def _linear(line: Tensor) -> list[tuple[Tensor, Tensor]]:
    low = line.floor()
    return [(low, 1 - (line - low)), (line.ceil(), line - low)]


def _nearest(line: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [((line + 0.5).floor(), torch.ones_like(line))]


def _inside(places: Tensor, size: int) -> Tensor:
    return places.detach().clamp(0, size - 1).to(torch.int64)


def _at(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """images[n, :, rows[n], columns[n]] for all pairs."""
    sample = torch.arange(len(images), device=images.device).reshape(-1, 1, 1)
    picked = images[sample, :, rows.unsqueeze(-1), columns.unsqueeze(1)]
    return picked.movedim(-1, 1)
