"""Recurrent layers with the usual activations, in few operations a step.

What of a step does not need the one before it is done for all steps at once. Steps write where
their results belong, which autograd could not follow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.nn.rnn import scan
from onnxtrain.kernels.nn.rnn.fused import Run, order
from onnxtrain.kernels.precision import widen


def lstm(inputs: Tensor, r: Tensor, first: scan.States, *, reverse: bool, keep: bool) -> Run:
    """From x W^T with all biases [time, batch, 4 * hidden], which become the gates."""
    recurrent, hidden, inputs = scan.factor(r), r.shape[-1], widen(inputs)
    every = inputs.new_empty((*inputs.shape[:2], hidden))
    cells = torch.empty_like(every) if keep else every
    state, memory = first
    for time in order(len(inputs), reverse):
        gates = inputs[time].add_(scan.product(state, recurrent))
        gates[:, : 3 * hidden].sigmoid_()
        i, o, f, c = gates.chunk(4, -1)
        memory = (f * memory).addcmul_(i, c.tanh_())
        state = torch.mul(o, memory.tanh(), out=every[time])
        if keep:
            cells[time] = memory
    return Run(every, (state, memory), (cells, inputs) if keep else ())


def lstm_back(
    r: Tensor, cells: Tensor, gates: Tensor, dh_all: Tensor | None, last: scan.States
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of all gates before their activation [time, batch, 4 * hidden], of h0 and of C0.

    The cells are C before the first step and behind each.
    """
    recurrent, (dh, dc) = scan.factor(r), last
    i, o, f, c = (gate.contiguous() for gate in widen(gates).chunk(4, -1))
    outside = widen(cells[1:]).tanh()
    # by these d C or, for the second one, d h is multiplied
    slopes = torch.stack(
        [
            c * i * (1 - i),
            outside * o * (1 - o),
            widen(cells[:-1]) * f * (1 - f),
            i * (1 - c.square()),
        ],
        2,
    )
    through = o * (1 - outside.square_())
    da = torch.empty_like(slopes)
    for time in order(len(gates), True):
        if dh_all is not None:
            dh = dh + dh_all[time]
        dc = torch.addcmul(dc, dh, through[time])
        torch.mul(slopes[time], dc[:, None], out=da[time])
        torch.mul(slopes[time, :, 1], dh, out=da[time, :, 1])
        dc.mul_(f[time])
        dh = widen(scan.back(da[time].flatten(1), recurrent))
    return da.flatten(2).to(recurrent.dtype), dh, dc


def gru(
    inputs: Tensor, r: Tensor, bias: Tensor | None, first: Tensor, *, reverse: bool, keep: bool
) -> Run:
    """The same for a layer whose reset gate stands behind the product; the bias is added there."""
    recurrent, hidden, inputs = scan.factor(r), r.shape[-1], widen(inputs)
    every = inputs.new_empty((*inputs.shape[:2], hidden))
    state = first
    for time in order(len(inputs), reverse):
        gates, product = inputs[time], scan.product(state, recurrent)
        both = gates[:, : 2 * hidden].add_(product[:, : 2 * hidden]).sigmoid_()
        z, reset = both.chunk(2, -1)
        inner = product[:, 2 * hidden :]
        inner = inner if bias is None else inner + bias
        n = gates[:, 2 * hidden :].addcmul_(reset, inner).tanh_()
        state = torch.addcmul(n, z, state - n, out=every[time])
    return Run(every, (state,), (inputs,) if keep else ())


def gru_back(
    r: Tensor,
    bias: Tensor,
    previous: Tensor,
    gates: Tensor,
    dh_all: Tensor | None,
    last: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of all gates before their activation [time, batch, 3 * hidden], and of h0."""
    recurrent, hidden, dh = scan.factor(r), r.shape[-1], last
    z, reset, n = (gate.contiguous() for gate in widen(gates).chunk(3, -1))
    product, previous = scan.product(previous, recurrent[2 * hidden :]) + bias, widen(previous)
    slope = (1 - z) * (1 - n.square())
    to_reset = slope * product * reset * (1 - reset)
    slopes = torch.stack([(previous - n) * z * (1 - z), to_reset, slope * reset], 2)
    arrived = torch.empty_like(z)
    for time in order(len(gates), True):
        arrived[time] = dh if dh_all is None else dh + dh_all[time]
        inner = (slopes[time] * arrived[time][:, None]).flatten(1)
        dh = (arrived[time] * z[time]).add_(scan.back(inner, recurrent))
    # behind the product the reset gate is part of the last slope, before it it is not
    slopes[:, :, 2] = slope
    return slopes.mul_(arrived[:, :, None]).flatten(2).to(recurrent.dtype), dh
