"""GRU with every option of ONNX, training that keeps its gates, and its gradient.

Gates are ordered z, r, h in W, R and B.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.nn.rnn import activation, scan
from onnxtrain.kernels.nn.rnn.quickest import is_plain, quickest
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.reduction.columns import column_sums
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

DEFAULT = ("sigmoid", "tanh")


@kernel("GRU", outputs=2, T=FLOATS)
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> tuple[Tensor, ...]:
    """h' = (1 - z) * n + z * h; n = G(x W^T + (r * h) R^T + B), z and r likewise with F."""
    x = scan.time_first(x, layout)
    state = None if initial_h is None else scan.time_first(initial_h, layout)
    hidden = r.shape[-1]
    reversals = scan.reversals(direction)
    functions = activation.functions(
        activations, DEFAULT, len(reversals), activation_alpha, activation_beta
    )
    plain = linear_before_reset != 0 and is_plain(activations, DEFAULT, clip, sequence_lens)
    quick = quickest(x, r, w, b, state) if plain else None
    every, finals = [], []
    for d, reverse in enumerate(reversals):
        inputs, hidden_bias = _projected(x, w[d], b, d, linear_before_reset)
        if quick is not None:
            begin = scan.start(state, d, x, hidden)
            ran = quick.gru(inputs, r[d], hidden_bias, begin, reverse=reverse, keep=False)
            every.append(ran.every)
            finals.append(ran.last)
            continue
        step = _cell(r[d], hidden_bias, functions[d], activation.clipped(clip), linear_before_reset)
        first = (scan.start(state, d, x, hidden),)
        records, last = scan.scan(step, inputs, first, reverse=reverse, lens=sequence_lens)
        every.append(scan.sequence(records, 0, x, hidden))
        finals.append(last)
    return scan.outputs(every, finals, layout, x.dtype)


@kernel("GRUTraining", domain=MS, outputs=3, T=FLOATS)
def gru_training(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sl: Tensor | None = None,
    ht0: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    """GRU that also returns z, r and n of every time."""
    scan.refuse(sl, clip, activations, DEFAULT)
    scan.check_weights(w, r, 3)
    hidden = r.shape[-1]
    quick = quickest(x, r, w, b, ht0) if linear_before_reset else None
    every, gates, finals = [], [], []
    for d, reverse in enumerate(scan.reversals(direction)):
        inputs, hidden_bias = _projected(x, w[d], b, d, linear_before_reset)
        if quick is not None:
            begin = scan.start(ht0, d, x, hidden)
            ran = quick.gru(inputs, r[d], hidden_bias, begin, reverse=reverse, keep=True)
            every.append(ran.every)
            gates.append(ran.kept[0])
            finals.append(ran.last)
            continue
        [functions] = activation.functions(None, DEFAULT, 1, None, None)
        bound = activation.clipped(None)
        step = _cell(r[d], hidden_bias, functions, bound, linear_before_reset, keep_gates=True)
        records, last = scan.scan(step, inputs, (scan.start(ht0, d, x, hidden),), reverse=reverse)
        every.append(scan.sequence(records, 0, x, hidden))
        gates.append(scan.sequence(records, 1, x, 3 * hidden))
        finals.append(last)
    h_all, h_final = scan.outputs(every, finals, 0, x.dtype)
    return h_all, h_final, scan.beside(gates).to(x.dtype)


@kernel("GRUGrad", domain=MS, outputs=5, needs=["wanted"], T=FLOATS)
def gru_grad(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sl: Tensor | None = None,
    ht0: Tensor | None = None,
    h_all: Tensor | None = None,
    zrh: Tensor | None = None,
    dh_all: Tensor | None = None,
    dh_final: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    linear_before_reset: int = 0,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients in X, W, R, B and H0."""
    scan.refuse(sl, clip, activations, DEFAULT)
    if h_all is None or zrh is None:
        raise ValueError("HAll and ZRH are needed, GRUTraining returns them")
    hidden, wanted = r.shape[-1], (*wanted, *[False] * 5)
    made = []
    for d, reverse in enumerate(scan.reversals(direction)):
        turn = scan.turned(reverse)
        first = scan.start(ht0, d, x, hidden)
        previous = scan.before(first, turn(h_all[:, d]))[: len(x)]
        bias = widen(b[d]).chunk(6)[5] if b is not None else first.new_zeros(hidden)
        gates = turn(zrh[:, d])
        steps = None if dh_all is None else turn(dh_all[:, d])
        last = scan.start(dh_final, d, x, hidden)
        quick = quickest(x, r, h_all, zrh, dh_all, last) if linear_before_reset else None
        if quick is not None:
            da, dh0 = quick.gru_back(r[d], bias, previous, gates, steps, last)
        else:
            da, dh0 = _back(r[d], bias, previous, gates, steps, last, linear_before_reset)
        made.append(
            (
                turn(scan.back(da, scan.factor(w[d]))) if wanted[0] else None,
                scan.weight_grad(da, turn(x)) if wanted[1] else None,
                *_recurrent_grads(da, gates, previous, linear_before_reset, wanted[2:4]),
                dh0,
            )
        )
    return scan.gradients(made, x.dtype)


def _back(
    r: Tensor,
    bias: Tensor,
    previous: Tensor,
    gates: Tensor,
    dh_all: Tensor | None,
    dh: Tensor,
    linear_before_reset: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of all gates before their activation [time, batch, 3 * hidden], and of h0."""
    recurrent, hidden = scan.factor(r), r.shape[-1]
    r_gates, r_hidden = recurrent[: 2 * hidden], recurrent[2 * hidden :]
    found = []
    for time in reversed(range(gates.shape[0])):
        z, reset, n = widen(gates[time]).chunk(3, -1)
        before = widen(previous[time])
        if dh_all is not None:
            dh = dh + dh_all[time]
        dz = dh * (before - n) * z * (1 - z)
        dn = dh * (1 - z) * (1 - n.square())
        into = None if linear_before_reset else widen(scan.back(dn, r_hidden))
        dreset = dn * (scan.product(before, r_hidden) + bias) if into is None else into * before
        dr = dreset * reset * (1 - reset)
        found.append(torch.cat([dz, dr, dn], -1))
        if into is None:
            through = scan.back(torch.cat([dz, dr, dn * reset], -1), recurrent)
        else:
            through = into * reset + scan.back(found[-1][:, : 2 * hidden], r_gates)
        dh = dh * z + through
    da = torch.stack(found[::-1]) if found else widen(gates)
    return da.to(recurrent.dtype), dh


def _recurrent_grads(
    da: Tensor,
    gates: Tensor,
    previous: Tensor,
    linear_before_reset: int,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor | None]:
    """dR and dB, if wanted: the reset gate stands before or behind the product with R."""
    hidden = previous.shape[-1]
    both, dn = da[..., : 2 * hidden], da[..., 2 * hidden :]
    reset, previous = scan.factor(gates.chunk(3, -1)[1]), scan.factor(previous)
    inner, entering = (dn * reset, previous) if linear_before_reset else (dn, reset * previous)
    dweight = dbias = None
    if wanted[0]:
        parts = [scan.weight_grad(both, previous), scan.weight_grad(inner, entering)]
        dweight = torch.cat(parts)
    if wanted[1]:
        sums = column_sums(da)
        dbias = torch.cat([sums, sums[: 2 * hidden], column_sums(inner)])
    return dweight, dbias


def _projected(
    x: Tensor, w: Tensor, b: Tensor | None, direction: int, linear_before_reset: int
) -> tuple[Tensor, Tensor | None]:
    """x W^T with the biases that can be added at once, and the bias that the reset gate scales."""
    if b is None:
        return scan.projected(x, w, None), None
    inner, recurrent = widen(b[direction]).chunk(2)
    if not linear_before_reset:
        return scan.projected(x, w, inner + recurrent), None
    z, r, h = recurrent.chunk(3)
    return scan.projected(x, w, inner + torch.cat([z, r, torch.zeros_like(h)])), h


def _cell(
    r: Tensor,
    hidden_bias: Tensor | None,
    functions: Sequence[activation.Activation],
    bound: activation.Activation,
    linear_before_reset: int,
    *,
    keep_gates: bool = False,
) -> scan.Step:
    """One step: the state and the record are h; the gates z, r, n follow if they are kept."""
    recurrent = scan.factor(r)
    hidden = r.shape[-1]
    r_gates, r_hidden = recurrent[: 2 * hidden], recurrent[2 * hidden :]
    f, g = functions

    def step(x: Tensor, states: scan.States) -> tuple[scan.States, scan.States]:
        [h] = states
        x_gates, x_hidden = x[:, : 2 * hidden], x[:, 2 * hidden :]
        z, reset = f(bound(x_gates + scan.product(h, r_gates))).chunk(2, -1)
        if linear_before_reset:
            inner = scan.product(h, r_hidden)
            inner = reset * (inner if hidden_bias is None else inner + hidden_bias)
        else:
            inner = scan.product(reset * h, r_hidden)
        n = g(bound(x_hidden + inner))
        new = (1 - z) * n + z * h
        return (new,), (new, torch.cat([z, reset, n], -1)) if keep_gates else (new,)

    return step
