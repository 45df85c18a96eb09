"""Recurrent layers on a GPU: a product and one launch for each step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.nn.rnn.scan import States
from onnxtrain.kernels.nn.rnn.scan import product as multiplied
from onnxtrain.kernels.precision import widen


class Run(NamedTuple):
    """What a direction gives: states of every time, the last states, and what is kept of gates.

    Kept are C and the gates of an LSTM, the gates of a GRU, or nothing.
    """

    every: Tensor
    last: States
    kept: tuple[Tensor, ...] = ()


def order(steps: int, reverse: bool) -> range:
    """Times in the order in which a direction goes through them."""
    return range(steps - 1, -1, -1) if reverse else range(steps)


def lstm(inputs: Tensor, r: Tensor, first: States, *, reverse: bool, keep: bool) -> Run:
    """From x W^T with all biases [time, batch, 4 * hidden], and h and C before it in float32."""
    quick, hidden, kind = fast.load("recurrent"), r.shape[-1], r.dtype
    steps, inputs = len(inputs), inputs.contiguous()
    every = quick.empty_steps(steps, first[0], hidden, kind)
    kept: tuple[Tensor, ...] = ()
    if keep:
        kept = tuple(quick.empty_steps(steps, first[0], n, kind) for n in (hidden, 4 * hidden))
    state, memory = first[0].to(kind), first[1].clone(memory_format=torch.contiguous_format)
    for time in order(steps, reverse):
        product = torch.mm(state, r.transpose(0, 1))
        into = tuple(t[time] for t in kept) or None
        state = every[time]
        quick.lstm_step(state, memory, inputs[time], product, into)
    return Run(every, (state, memory), kept)


def lstm_back(
    r: Tensor, cells: Tensor, gates: Tensor, dh_all: Tensor | None, last: States
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of all gates before their activation [time, batch, 4 * hidden], of h0 and of C0.

    The cells are C before the first step and behind each. Products are in the weight's type, and so
    are the gradients that go into them.
    """
    quick, kind = fast.load("recurrent"), r.dtype
    cells, gates = cells.contiguous(), gates.contiguous()
    steps = None if dh_all is None else dh_all.contiguous()
    dh, dc = last[0].to(kind).contiguous(), last[1].clone(memory_format=torch.contiguous_format)
    da = quick.empty_steps(len(gates), dh, gates.shape[-1], kind)
    for time in order(len(gates), True):
        kept = gates[time], cells[time], cells[time + 1]
        quick.lstm_step_back(da[time], dc, dh, None if steps is None else steps[time], kept)
        dh = torch.mm(da[time], r)
    return da, widen(dh), dc


def gru(
    inputs: Tensor, r: Tensor, bias: Tensor | None, first: Tensor, *, reverse: bool, keep: bool
) -> Run:
    """The same for a layer whose reset gate stands behind the product; the bias is added there."""
    quick, hidden, kind = fast.load("recurrent"), r.shape[-1], r.dtype
    steps, inputs = len(inputs), inputs.contiguous()
    every = quick.empty_steps(steps, first, hidden, kind)
    kept: tuple[Tensor, ...] = ()
    if keep:
        kept = (quick.empty_steps(steps, first, 3 * hidden, kind),)
    state, memory = first.to(kind), first.clone(memory_format=torch.contiguous_format)
    for time in order(steps, reverse):
        product = torch.mm(state, r.transpose(0, 1))
        into = kept[0][time] if keep else None
        state = every[time]
        quick.gru_step(state, memory, inputs[time], product, bias, into)
    return Run(every, (memory,), kept)


def gru_back(
    r: Tensor,
    bias: Tensor,
    previous: Tensor,
    gates: Tensor,
    dh_all: Tensor | None,
    last: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of all gates before their activation [time, batch, 3 * hidden], and of h0."""
    quick, hidden, kind = fast.load("recurrent"), r.shape[-1], r.dtype
    previous, gates = previous.contiguous(), gates.contiguous()
    product = multiplied(previous, r[2 * hidden :]) + bias
    steps = None if dh_all is None else dh_all.contiguous()
    # of h before a step, what goes around the product and what goes through it
    around = last.clone(memory_format=torch.contiguous_format)
    through = torch.zeros_like(around, dtype=kind)
    da = quick.empty_steps(len(gates), last, 3 * hidden, kind)
    inner = torch.empty_like(da[0])
    for time in order(len(gates), True):
        kept = gates[time], previous[time], product[time]
        given = None if steps is None else steps[time]
        quick.gru_step_back(da[time], inner, around, through, given, kept)
        through = torch.mm(inner, r)
    return da, around + through
