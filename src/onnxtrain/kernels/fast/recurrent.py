"""Steps of LSTM and GRU: one launch beside each product, forward and backward.

Gates of a step are [batch, gates * hidden], one kind behind the other. States stay in float32, also
those of narrow layers; what is kept of each step is written where it belongs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv

BLOCK, WARPS = 256, 2
"""Elements of a state that a program has, and its warps: there are few in a step."""
SMALL = tl.constexpr(0.25)
"""Below, the first terms of its series are closer to tanh than a quotient of powers is."""


@triton.jit
def _tanh(x):
    square = x * x
    series = 2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0))
    near = x + x * square * (-1.0 / 3.0 + square * series)
    power = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - power) / (1.0 + power)
    return tl.where(tl.abs(x) < SMALL, near, tl.where(x < 0.0, -far, far))


@triton.jit
def _places(count, hidden, GATES: tl.constexpr, B: tl.constexpr):
    """Elements of a state, which there are, and where their gates begin."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    return at, at < count, at // hidden * (GATES * hidden) + at % hidden


@triton.jit
def _read(pointer, at, there):
    return tl.load(pointer + at, there, 0.0).to(tl.float32)


@triton.jit
def _entering(x, product, at, there):
    """What goes into the activation of a gate."""
    return _read(x, at, there) + _read(product, at, there)


@triton.jit
def _write(pointer, at, value, there):
    tl.store(pointer + at, value.to(pointer.dtype.element_ty), there)


@Compiled
@triton.jit(do_not_specialize=["count", "hidden"])
def _lstm(
    state, memory, cells, gates, x, product,
    count: tl.int32, hidden: tl.int32, KEPT: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """h = o·tanh(C), C = f·C + i·c; the memory is C in float32, gates are i, o, f, c."""
    at, there, base = _places(count, hidden, 4, B)
    i = tl.sigmoid(_entering(x, product, base, there))
    base_o = base + hidden
    o = tl.sigmoid(_entering(x, product, base_o, there))
    base_f = base_o + hidden
    f = tl.sigmoid(_entering(x, product, base_f, there))
    base_c = base_f + hidden
    c = _tanh(_entering(x, product, base_c, there))
    new = f * _read(memory, at, there) + i * c
    tl.store(memory + at, new, there)
    _write(state, at, o * _tanh(new), there)
    if KEPT:
        _write(cells, at, new, there)
        _write(gates, base, i, there)
        _write(gates, base_o, o, there)
        _write(gates, base_f, f, there)
        _write(gates, base_c, c, there)


@Compiled
@triton.jit(do_not_specialize=["count", "hidden"])
def _lstm_back(
    da, dc, dh, dy, gates, before, now,
    count: tl.int32, hidden: tl.int32, GIVEN: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Gradients of gates before their activation; that of C goes on to the step before."""
    at, there, base = _places(count, hidden, 4, B)
    i, o = _read(gates, base, there), _read(gates, base + hidden, there)
    f, c = _read(gates, base + 2 * hidden, there), _read(gates, base + 3 * hidden, there)
    grad = _read(dh, at, there)
    if GIVEN:
        grad += _read(dy, at, there)
    out = _tanh(_read(now, at, there))
    d_o = grad * out * o * (1.0 - o)
    into = _read(dc, at, there) + grad * o * (1.0 - out * out)
    _write(da, base, into * c * i * (1.0 - i), there)
    _write(da, base + hidden, d_o, there)
    _write(da, base + 2 * hidden, into * _read(before, at, there) * f * (1.0 - f), there)
    _write(da, base + 3 * hidden, into * i * (1.0 - c * c), there)
    tl.store(dc + at, into * f, there)


@Compiled
@triton.jit(do_not_specialize=["count", "hidden"])
def _gru(
    state, memory, gates, x, product, bias,
    count: tl.int32, hidden: tl.int32, BIAS: tl.constexpr, KEPT: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """h = (1 - z)·n + z·h, n = tanh(x + r·(product + bias)); the memory is h in float32."""
    at, there, base = _places(count, hidden, 3, B)
    z = tl.sigmoid(_entering(x, product, base, there))
    base_r = base + hidden
    r = tl.sigmoid(_entering(x, product, base_r, there))
    base_n = base_r + hidden
    inner = _read(product, base_n, there)
    if BIAS:
        inner += _read(bias, at % hidden, there)
    n = _tanh(_read(x, base_n, there) + r * inner)
    new = (1.0 - z) * n + z * _read(memory, at, there)
    tl.store(memory + at, new, there)
    _write(state, at, new, there)
    if KEPT:
        _write(gates, base, z, there)
        _write(gates, base_r, r, there)
        _write(gates, base_n, n, there)


@Compiled
@triton.jit(do_not_specialize=["count", "hidden"])
def _gru_back(
    da, inner, around, through, dy, gates, before, product,
    count: tl.int32, hidden: tl.int32, GIVEN: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Gradients of gates before their activation, and of what is multiplied with R; dh·z.

    That of h comes around the product of the step behind and through it.
    """
    at, there, base = _places(count, hidden, 3, B)
    z, r = _read(gates, base, there), _read(gates, base + hidden, there)
    n = _read(gates, base + 2 * hidden, there)
    grad = _read(around, at, there) + _read(through, at, there)
    if GIVEN:
        grad += _read(dy, at, there)
    d_z = grad * (_read(before, at, there) - n) * z * (1.0 - z)
    d_n = grad * (1.0 - z) * (1.0 - n * n)
    d_r = d_n * _read(product, at, there) * r * (1.0 - r)
    _write(da, base, d_z, there)
    _write(da, base + hidden, d_r, there)
    _write(da, base + 2 * hidden, d_n, there)
    _write(inner, base, d_z, there)
    _write(inner, base + hidden, d_r, there)
    _write(inner, base + 2 * hidden, d_n * r, there)
    tl.store(around + at, grad * z, there)


def _grid(state: Tensor) -> tuple[int]:
    return (cdiv(state.numel(), BLOCK),)


def lstm_step(
    state: Tensor, memory: Tensor, x: Tensor, product: Tensor, kept: tuple[Tensor, Tensor] | None
) -> None:
    """Write the new state, its cells and gates; the memory, C in float32, is changed."""
    cells, gates = (state, state) if kept is None else kept
    _lstm[_grid(memory)](
        *(state, memory, cells, gates, x, product, memory.numel(), memory.shape[-1]),
        *(kept is not None, BLOCK),
        num_warps=WARPS,
    )


def lstm_step_back(
    da: Tensor, dc: Tensor, dh: Tensor, dy: Tensor | None, kept: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Write the gradient of a step's gates; kept are its gates, C before it and C behind it."""
    given = dh if dy is None else dy
    _lstm_back[_grid(dc)](
        *(da, dc, dh, given, *kept, dc.numel(), dc.shape[-1], dy is not None, BLOCK),
        num_warps=WARPS,
    )


def gru_step(
    state: Tensor,
    memory: Tensor,
    x: Tensor,
    product: Tensor,
    bias: Tensor | None,
    gates: Tensor | None,
) -> None:
    """Write the new state and its gates; the memory, h in float32, is changed."""
    _gru[_grid(memory)](
        *(state, memory, state if gates is None else gates, x, product),
        *(x if bias is None else bias, memory.numel(), memory.shape[-1]),
        *(bias is not None, gates is not None, BLOCK),
        num_warps=WARPS,
    )


def gru_step_back(
    da: Tensor,
    inner: Tensor,
    around: Tensor,
    through: Tensor,
    dy: Tensor | None,
    kept: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the gradient of a step's gates, and what it is behind R.

    Around the step goes dh·z, which takes the place of what came there. Kept are its gates, h
    before it, and the product with the last part of R that r scales.
    """
    given = around if dy is None else dy
    _gru_back[_grid(around)](
        *(da, inner, around, through, given, *kept, around.numel(), around.shape[-1]),
        *(dy is not None, BLOCK),
        num_warps=WARPS,
    )


def empty_steps(steps: int, like: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Memory for so many steps of [batch, width]."""
    return torch.empty((steps, like.shape[0], width), dtype=dtype, device=like.device)
