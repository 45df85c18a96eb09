"""Signals in time and frequency: Fourier transforms, windows, and the mel scale.

The last axis of a signal has one element for real numbers and two for complex ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.layout import complex_of
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import FLOATS

_WINDOWS: dict[str, tuple[float, ...]] = {
    "HannWindow": (0.5, 0.5),
    "HammingWindow": (25 / 46, 21 / 46),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}
"""Coefficients a of w[n] = a₀ - a₁ cos(2πn/N) + a₂ cos(4πn/N)."""


@kernel("DFT", since=17, until=19, host=["dft_length"], T1=FLOATS)
def dft_17(
    input: Tensor, dft_length: Any = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    """The transform along an axis, given as attribute."""
    return dft(input, dft_length, axis, inverse=inverse, onesided=onesided)


@kernel("DFT", since=20, host=["dft_length", "axis"], T1=FLOATS)
def dft(
    input: Tensor,
    dft_length: Any = None,
    axis: Any = -2,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """y[k] = Σ x[n] exp(-2πi kn/N), or its inverse; one side of it is enough for real signals."""
    place = single(axis) % input.ndim
    length = None if dft_length is None else single(dft_length)
    values = _numbers(input)
    if not inverse:
        return _as_pairs(_spectrum(values, length, place, onesided), input.dtype)
    if onesided:
        real = _transformed(torch.fft.irfft, values, length, place)
        return real.unsqueeze(-1).to(input.dtype)
    return _as_pairs(_transformed(torch.fft.ifft, values, length, place), input.dtype)


def _transformed(
    function: Callable[..., Tensor], x: Tensor, length: int | None, axis: int
) -> Tensor:
    """A transform of torch's; of signals without elements, which no library takes, zeros."""
    if x.numel():
        return function(x, length, axis)
    like = function(x.to("meta"), length, axis)
    return torch.zeros(like.shape, dtype=like.dtype, device=x.device)


def _numbers(x: Tensor) -> Tensor:
    """Real or complex numbers, from one or two elements in the last axis."""
    x = x.to(acc(x.dtype))
    if x.shape[-1] == 1:
        return x.squeeze(-1)
    return complex_of(x)


def _as_pairs(values: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.view_as_real(values.resolve_conj()).to(dtype)


def _spectrum(x: Tensor, length: int | None, axis: int, onesided: int) -> Tensor:
    """The transform of a signal, without the upper half of the frequencies if onesided."""
    if onesided and not x.is_complex():
        return _transformed(torch.fft.rfft, x, length, axis)
    full = _transformed(torch.fft.fft, x, length, axis)
    return full.narrow(axis, 0, full.shape[axis] // 2 + 1) if onesided else full


@kernel("STFT", since=17, host=["frame_step", "frame_length"], T1=FLOATS)
def stft(
    signal: Tensor,
    frame_step: Any,
    window: Tensor | None = None,
    frame_length: Any = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """The transform of each frame of the signal, weighted by a window.

    A matrix has real signals, as onnxruntime takes it.
    """
    values = _numbers(signal if signal.ndim > 2 else signal.unsqueeze(-1))
    length = values.shape[1] if window is None else len(window)
    if frame_length is not None:
        length = single(frame_length)
    frames = values.unfold(1, length, single(frame_step))
    if window is not None:
        frames = frames * window.to(acc(window.dtype))
    return _as_pairs(_spectrum(frames, length, 2, onesided), signal.dtype)


def _declare_window(op: str, coefficients: Sequence[float]) -> None:
    @kernel(op, since=17, host=["size"], needs=["device"])
    def window(
        size: Any, *, output_datatype: int = 1, periodic: int = 1, device: torch.device
    ) -> Tensor:
        count = single(size)
        period = count if periodic else count - 1
        steps = torch.arange(count, dtype=torch.float64, device=device)
        angle = steps * (2 * math.pi / max(period, 1))
        terms = [a * (-1) ** k * torch.cos(k * angle) for k, a in enumerate(coefficients)]
        return torch.stack(terms).sum(0).to(to_torch(output_datatype))


for _op, _coefficients in _WINDOWS.items():
    _declare_window(_op, _coefficients)


@kernel(
    "MelWeightMatrix",
    since=17,
    host=["num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz"],
    needs=["device"],
)
def mel_weight_matrix(
    num_mel_bins: Any,
    dft_length: Any,
    sample_rate: Any,
    lower_edge_hertz: Any,
    upper_edge_hertz: Any,
    *,
    output_datatype: int = 1,
    device: torch.device,
) -> Tensor:
    """Weights [frequency, band]: triangles with peak 1, evenly spaced in mel(f)."""
    bands, length = single(num_mel_bins), single(dft_length)
    low, high = _mel(single(lower_edge_hertz)), _mel(single(upper_edge_hertz))
    step = (high - low) / (bands + 2)
    hertz = [_hertz(low + step * index) for index in range(bands + 2)]
    edges = [int((length + 1) * frequency // single(sample_rate)) for frequency in hertz]
    rows = [
        [_triangle(row, *edges[b : b + 3]) for b in range(bands)] for row in range(length // 2 + 1)
    ]
    return torch.tensor(rows, dtype=torch.float64).to(device, to_torch(output_datatype))


def _mel(frequency: float) -> float:
    return 2595 * math.log10(1 + frequency / 700)


def _hertz(mel: float) -> float:
    return 700 * (10 ** (mel / 2595) - 1)


def _triangle(at: int, left: int, peak: int, right: int) -> float:
    """A line up from left to the peak and down to right, 0 outside."""
    if at == peak:
        return 1.0
    if left <= at < peak:
        return (at - left) / (peak - left)
    return (right - at) / (right - peak) if peak < at < right else 0.0
