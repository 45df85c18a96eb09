"""LSTM that keeps its gates, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.nn.rnn import activation, scan
from onnxtrain.kernels.nn.rnn.lstm import DEFAULT, cell, pick, projected
from onnxtrain.kernels.nn.rnn.quickest import quickest
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.reduction.columns import column_sums
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS


@kernel("LSTMTraining", domain=MS, outputs=5, T=FLOATS)
def lstm_training(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sl: Tensor | None = None,
    ht0: Tensor | None = None,
    ct0: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Tensor, ...]:
    """LSTM that also returns C and the gates i, o, f, c of every time."""
    _refuse(sl, clip, activations, input_forget)
    scan.check_weights(w, r, 4)
    hidden = r.shape[-1]
    every: list[list[Tensor]] = [[], [], []]
    finals = []
    quick = quickest(x, r, w, b, ht0, ct0) if p is None else None
    for d, reverse in enumerate(scan.reversals(direction)):
        if quick is not None:
            first = tuple(scan.start(state, d, x, hidden) for state in (ht0, ct0))
            inputs = projected(x, w[d], pick(b, d))
            ran = quick.lstm(inputs, r[d], first, reverse=reverse, keep=True)
            finals.append(ran.last)
            for kind, found in enumerate((ran.every, *ran.kept)):
                every[kind].append(found)
            continue
        [functions] = activation.functions(None, DEFAULT, 1, None, None)
        step = cell(r[d], pick(p, d), functions, activation.clipped(None), keep_gates=True)
        first = tuple(scan.start(state, d, x, hidden) for state in (ht0, ct0))
        records, last = scan.scan(step, projected(x, w[d], pick(b, d)), first, reverse=reverse)
        finals.append(last)
        for kind, width in enumerate((hidden, hidden, 4 * hidden)):
            every[kind].append(scan.sequence(records, kind, x, width))
    h_all, h_final, c_final = scan.outputs(every[0], finals, 0, x.dtype)
    c_all, gates = (scan.beside(kind).to(x.dtype) for kind in every[1:])
    return h_all, h_final, c_final, c_all, gates


@kernel("LSTMGrad", domain=MS, outputs=7, needs=["wanted"], T=FLOATS)
def lstm_grad(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    sl: Tensor | None = None,
    ht0: Tensor | None = None,
    ct0: Tensor | None = None,
    h_all: Tensor | None = None,
    c_all: Tensor | None = None,
    iofc: Tensor | None = None,
    dh_all: Tensor | None = None,
    dh_final: Tensor | None = None,
    dc_final: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients in X, W, R, B, H0, C0 and P.

    The peepholes themselves are not among the reference's inputs. Without them C's gradient lacks
    the part that flows through the peepholes, as it does there; with them it is exact.
    """
    _refuse(sl, clip, activations, input_forget)
    if h_all is None or c_all is None or iofc is None:
        raise ValueError("HAll, CAll and iofc are needed, LSTMTraining returns them")
    hidden, wanted = r.shape[-1], (*wanted, *[False] * 7)
    made = []
    for d, reverse in enumerate(scan.reversals(direction)):
        turn = scan.turned(reverse)
        start_h, start_c = (scan.start(state, d, x, hidden) for state in (ht0, ct0))
        cells = scan.before(start_c, turn(c_all[:, d]))
        last = tuple(scan.start(grad, d, x, hidden) for grad in (dh_final, dc_final))
        steps = None if dh_all is None else turn(dh_all[:, d])
        quick = quickest(x, r, h_all, c_all, iofc, dh_all, *last) if p is None else None
        if quick is not None:
            da, dh0, dc0 = quick.lstm_back(r[d], cells, turn(iofc[:, d]), steps, last)
        else:
            da, dh0, dc0 = _back(r[d], pick(p, d), cells, turn(iofc[:, d]), steps, last)
        previous = scan.before(start_h, turn(h_all[:, d]))[: len(x)]
        made.append(
            (
                turn(scan.back(da, scan.factor(w[d]))) if wanted[0] else None,
                scan.weight_grad(da, turn(x)) if wanted[1] else None,
                scan.weight_grad(da, previous) if wanted[2] else None,
                column_sums(da).repeat(2) if wanted[3] else None,
                dh0,
                dc0,
                _peephole_grad(da, cells) if wanted[6] else None,
            )
        )
    return scan.gradients(made, x.dtype)


def _back(
    r: Tensor,
    p: Tensor | None,
    cells: Tensor,
    gates: Tensor,
    dh_all: Tensor | None,
    last: scan.States,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of all gates before their activation [time, batch, 4 * hidden], of h0 and of C0.

    Those of gates are in the type of products, into which they go.
    """
    recurrent, cells = scan.factor(r), widen(cells)
    peep_i, peep_o, peep_f = (0.0, 0.0, 0.0) if p is None else widen(p).chunk(3)
    dh, dc = last
    found = []
    for time in reversed(range(gates.shape[0])):
        i, o, f, c = widen(gates[time]).chunk(4, -1)
        before, now = cells[time], cells[time + 1].tanh()
        if dh_all is not None:
            dh = dh + dh_all[time]
        do = dh * now * o * (1 - o)
        dc = dc + dh * o * (1 - now.square()) + do * peep_o
        di = dc * c * i * (1 - i)
        df = dc * before * f * (1 - f)
        dg = dc * i * (1 - c.square())
        da = torch.cat([di, do, df, dg], -1)
        found.append(da)
        dc = dc * f + di * peep_i + df * peep_f
        dh = widen(scan.back(da, recurrent))
    da = torch.stack(found[::-1]) if found else widen(gates)
    return da.to(recurrent.dtype), dh, dc


def _peephole_grad(da: Tensor, cells: Tensor) -> Tensor:
    """dP = sum of da_i * C before, da_o * C after, da_f * C before."""
    i, o, f, _ = widen(da).chunk(4, -1)
    before, after = cells[:-1], cells[1:]
    return torch.cat([(gate * c).sum((0, 1)) for gate, c in ((i, before), (o, after), (f, before))])


def _refuse(
    lens: Tensor | None, clip: float | None, names: Sequence[str] | None, input_forget: int
) -> None:
    scan.refuse(lens, clip, names, DEFAULT)
    if input_forget:
        raise ValueError("input_forget is not supported by layers with a gradient")
