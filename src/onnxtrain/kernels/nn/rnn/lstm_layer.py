"""An LSTM and its gradient in one step, which hand on whatever the library wants to keep."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.nn.rnn import onednn, scan
from onnxtrain.kernels.nn.rnn.lstm import pick
from onnxtrain.kernels.nn.rnn.lstm_training import lstm_grad, lstm_training
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import CPU, OWN, DataType

FLOAT = frozenset({DataType.FLOAT})


@kernel("LSTMLayer", domain=OWN, on=CPU, outputs=5, T=FLOAT)
def lstm_layer(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    *,
    direction: str = "forward",
) -> tuple[Tensor, ...]:
    """LSTM, and bytes that its gradient reads: two tensors of them."""
    scan.check_weights(w, r, 4)
    if not onednn.takes(x, r):
        h_all, *finals, c_all, gates = lstm_training(x, w, r, b, None, h0, c0, direction=direction)
        return h_all, *finals, *(_bytes(t) for t in (c_all, gates))
    made = []
    for d, reverse in enumerate(scan.reversals(direction)):
        first = tuple(scan.start(state, d, x, r.shape[-1]) for state in (h0, c0))
        weights = onednn.layer(w[d], r[d], pick(b, d))
        made.append(onednn.forward(x, weights, first, reverse=reverse, keep=True))
    every, last_h, last_c, kept = zip(*made, strict=True)
    nothing = torch.empty(0, dtype=torch.uint8)
    h_all = scan.beside(every)
    return h_all, torch.stack(last_h), torch.stack(last_c), *[*kept, nothing][:2]


@kernel("LSTMLayerGrad", domain=OWN, on=CPU, outputs=6, mutates=["kept", "kept_too"], T=FLOAT)
def lstm_layer_grad(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    h_all: Tensor,
    h_final: Tensor,
    c_final: Tensor,
    kept: Tensor,
    kept_too: Tensor,
    dh_all: Tensor | None = None,
    dh_final: Tensor | None = None,
    dc_final: Tensor | None = None,
    *,
    direction: str = "forward",
) -> tuple[Tensor | None, ...]:
    """Gradients in X, W, R, B, H0 and C0; the library works in what it kept."""
    arrived = [dh_all, dh_final, dc_final]
    if not onednn.takes(x, r):
        c_all, gates = (t.contiguous().view(x.dtype) for t in (kept, kept_too))
        return lstm_grad(
            x, w, r, None, h0, c0, h_all, c_all, gates, *arrived, direction=direction,
            wanted=(True,) * 6,
        )[:6]  # fmt: skip
    results = (h_all.transpose(0, 1), h_final, c_final)
    grads = [
        torch.zeros_like(like) if grad is None else grad
        for grad, like in zip(arrived, (h_all, h_final, c_final), strict=True)
    ]
    grads[0] = grads[0].transpose(0, 1)
    made = []
    for d, reverse in enumerate(scan.reversals(direction)):
        made.append(
            onednn.backward(
                x,
                onednn.layer(w[d], r[d], pick(b, d)),
                tuple(scan.start(state, d, x, r.shape[-1]) for state in (h0, c0)),
                (results[0][d], h_final[d], c_final[d], (kept, kept_too)[d]),
                (grads[0][d], grads[1][d], grads[2][d]),
                reverse=reverse,
            )
        )
    return scan.gradients(made, x.dtype)


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)
