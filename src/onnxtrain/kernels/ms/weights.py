"""Products and look-ups with weights of a few bits, which have a scale for each block."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.ms.bits import unpacked
from onnxtrain.kernels.precision import acc, multiply, store, widen
from onnxtrain.kernels.products import of_rows
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.rehearsal import remembered
from onnxtrain.types import FLOAT8, FLOATS, INTS, MS, NARROW, DataType

_UINT8 = frozenset({DataType.UINT8})
_HALF_FP4 = (0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_CODES = {
    0: (*_HALF_FP4, *(-value for value in _HALF_FP4)),
    1: (
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ),
}
"""What the 16 codes of fp4 (0) and of nf4 (1) stand for."""


class _Blocks:
    """Weights [n, k] as steps from a zero point, and where each has its scale."""

    def __init__(
        self,
        packed: Tensor,
        scales: Tensor,
        zero_points: Tensor | None,
        g_idx: Tensor | None,
        size: tuple[int, int],
        bits: int,
        block_size: int,
    ) -> None:
        rows, columns = size
        count = -(-columns // block_size)
        codes = unpacked(packed.reshape(rows, count, -1), bits, block_size)
        self.codes = codes.reshape(rows, -1)[:, :columns]
        self.count = count
        self.scales = widen(scales).reshape(rows, count)
        place = torch.arange(columns, device=packed.device) // block_size
        self.place = place if g_idx is None else g_idx[:columns].to(torch.int64)
        self.steps = self.codes.to(self.scales.dtype) - self._zero(zero_points, rows, bits)

    def _zero(self, points: Tensor | None, rows: int, bits: int) -> Tensor | int:
        if points is None:
            return 1 << (bits - 1)
        if not points.is_floating_point():
            points = unpacked(points.reshape(rows, -1), bits, self.count)
        return points.reshape(rows, self.count).to(self.scales.dtype)[:, self.place]

    def weights(self) -> Tensor:
        """(code - zero point) · scale."""
        return self.steps * self.scales[:, self.place]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over the columns that share a scale."""
        total = values.new_zeros(len(values), self.count)
        return total.index_add(1, self.place, values)


@kernel("MatMulNBits", domain=MS, T1=FLOATS, T2=_UINT8)
def matmul_nbits(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Tensor:
    """y = a·wᵀ + bias with w[n, k] = (code - zero point)·scale, one of each for a block of k."""
    _check_layout(weight_prepacked)
    blocks = _Blocks(b, scales, zero_points, g_idx, (N, K), bits, block_size)
    return multiply(of_rows, a, blocks.weights().to(a.dtype).mT, bias)


def _check_layout(prepacked: int) -> None:
    if prepacked:
        raise ValueError(
            f"weight_prepacked is {prepacked}, but only 0 is known: "
            "export the model without weights packed for one device"
        )


@kernel("MatMulNBitsGrad", domain=MS, outputs=4, needs=["wanted"], T1=FLOATS, T2=_UINT8)
def matmul_nbits_grad(
    dy: Tensor,
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """da = dy·w; with dw = dyᵀ·a the others sum dw·step, -dw·scale, and dy itself."""
    _check_layout(weight_prepacked)
    blocks = _Blocks(b, scales, zero_points, g_idx, (N, K), bits, block_size)
    asked = [*wanted, False, False, False]
    rows = dy.reshape(-1, N)
    da = multiply(of_rows, dy, blocks.weights().to(a.dtype)) if asked[0] else None
    d_scales = d_zero = None
    if asked[1] or asked[2]:
        dw = of_rows(widen(rows).t(), widen(a).reshape(-1, K))
        d_scales = store(blocks.summed(dw * blocks.steps).reshape(scales.shape), scales)
        d_zero = -store(blocks.summed(dw) * blocks.scales, scales)
        d_zero = d_zero if zero_points is None else d_zero.reshape(-1)[: zero_points.numel()]
        d_zero = d_zero if zero_points is None else d_zero.reshape(zero_points.shape)
    d_bias = store(widen(rows).sum(0), dy) if asked[3] else None
    return da, d_scales if asked[1] else None, d_zero if asked[2] else None, d_bias


@remembered(8)
def _codebook(kind: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if kind not in _CODES:
        raise ValueError(f"quant_type is {kind}, but it must be 0 (fp4) or 1 (nf4)")
    return torch.tensor(_CODES[kind], dtype=torch.float32, device=device).to(dtype)


@kernel("MatMulBnb4", domain=MS, T1=FLOATS, T2=_UINT8)
def matmul_bnb4(
    a: Tensor,
    b: Tensor,
    absmax: Tensor,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Tensor:
    """y = a·wᵀ (a·w without transB), w[n, k] = code · largest size of its block of the flat w."""
    table = _codebook(quant_type, acc(a.dtype), a.device)
    codes = torch.stack([b >> 4, b & 15], -1).reshape(-1)[: N * K]
    scales = widen(absmax).repeat_interleave(block_size)[: N * K]
    w = (table[codes.to(torch.int64)] * scales).reshape(N, K).to(a.dtype)
    return multiply(of_rows, a, w.t() if transB else w)


@kernel("GatherBlockQuantized", domain=MS, T1=_UINT8, T2=FLOATS, Tind=INTS)
def gather_block_packed(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    """The same as below with several numbers to a byte; without zero points that of the middle."""
    count = data.shape[-1] * 8 // bits
    if zero_points is None:
        zero = torch.full_like(scales, 1 << (bits - 1))
    else:
        zero = unpacked(zero_points, bits, scales.shape[-1]).to(scales.dtype)
    chosen = _Chosen(indices, data, gather_axis)
    values = unpacked(chosen(data), bits, count)
    return _dequantized(values, chosen, scales, zero, block_size, quantize_axis)


@kernel(
    "GatherBlockQuantized",
    domain=MS,
    T1=FLOAT8 | (NARROW & {DataType.INT4, DataType.UINT4, DataType.FLOAT4E2M1}),
    T2=FLOATS,
    Tind=INTS,
)
def gather_block_quantized(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    """y = (data - zero point)·scale at indices; zeros for indices that are out of range."""
    chosen = _Chosen(indices, data, gather_axis)
    return _dequantized(chosen(data), chosen, scales, zero_points, block_size, quantize_axis)


class _Chosen:
    """What indices pick along an axis, in one flat axis until ``shaped``."""

    def __init__(self, indices: Tensor, data: Tensor, axis: int) -> None:
        self.axis, self.size = axis % data.ndim, data.shape[axis]
        self.shape = indices.shape
        flat = indices.reshape(-1).to(torch.int64)
        place = torch.where(flat < 0, flat + self.size, flat)
        self.inside = (place >= 0) & (place < self.size)
        self.place = place.clamp(0, max(self.size - 1, 0))

    def __call__(self, values: Tensor, block: int = 1) -> Tensor:
        """The chosen slices of a tensor that has one for each block along the axis."""
        if values.shape[self.axis] == 1 and self.size > 1 and block == 1:
            return values
        bits = values.view(torch.uint8) if values.dtype.itemsize == 1 else values
        return bits.index_select(self.axis, self.place // block).view(values.dtype)

    def shaped(self, values: Tensor) -> Tensor:
        """The axes of the indices in the place of the chosen one, zeros where there was none."""
        kept = self.inside.reshape([-1 if i == self.axis else 1 for i in range(values.ndim)])
        values = values.masked_fill(~kept, 0)
        before, behind = values.shape[: self.axis], values.shape[self.axis + 1 :]
        return values.reshape(*before, *self.shape, *behind)


def _dequantized(
    values: Tensor,
    chosen: _Chosen,
    scales: Tensor,
    zero_points: Tensor | None,
    block_size: int,
    axis: int,
) -> Tensor:
    axis %= values.ndim
    inside_blocks = axis == chosen.axis
    length = chosen.size if inside_blocks else values.shape[axis]
    block = block_size or length

    def spread(parameters: Tensor) -> Tensor:
        wide = widen(parameters.to(torch.float32) if parameters.itemsize == 1 else parameters)
        if inside_blocks:
            return chosen(wide, block)
        return chosen(wide).repeat_interleave(block, axis).narrow(axis, 0, length)

    steps = values.to(acc(scales.dtype))
    if zero_points is not None:
        steps = steps - spread(zero_points)
    return chosen.shaped(steps * spread(scales)).to(scales.dtype)
