"""LSTM layers by oneDNN, in one call a direction: float32 on a CPU.

Gates are ordered i, o, f, c here, and i, f, c, o there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.nn.rnn import scan

THEIRS, OURS = (0, 2, 3, 1), (0, 3, 1, 2)
"""Which of our gates is where there, and which of theirs is where here."""
LSTM = 2
"""What torch calls the kind of the layer."""
Layer = tuple[Tensor, Tensor, Tensor, Tensor]
"""Rows of W, R and both biases, for one direction."""


def takes(x: Tensor, r: Tensor) -> bool:
    """Whether there is something that oneDNN can compute."""
    plain = x.is_cpu and x.dtype is torch.float32 and x.numel() > 0 and r.numel() > 0
    return plain and torch.backends.mkldnn.is_available()


def ordered(gates: Tensor, order: tuple[int, ...]) -> Tensor:
    """Rows of gates in another order."""
    return torch.cat([gates.chunk(4)[place] for place in order])


def layer(w: Tensor, r: Tensor, b: Tensor | None) -> Layer:
    """One direction's weights as oneDNN takes them."""
    biases = r.new_zeros(2 * len(r)) if b is None else b
    first, second = biases.chunk(2)
    return tuple(ordered(part, THEIRS) for part in (w, r, first, second))  # type: ignore[return-value]


def forward(
    x: Tensor, weights: Layer, first: scan.States, *, reverse: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States of every step, the last ones, and what the gradient needs if that is kept."""
    # torch keeps nothing where gradients are off, whatever it is told
    with torch.set_grad_enabled(keep):
        found: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.aten.mkldnn_rnn_layer(
            x.contiguous(), *weights, *_whole(first), reverse, *_form(weights), keep
        )
    return found


def backward(
    x: Tensor,
    weights: Layer,
    first: scan.States,
    made: tuple[Tensor, Tensor, Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor],
    *,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Gradients in x, w, r, b and the first states, from what ``forward`` gave."""
    *results, kept = _whole(made)
    batches, kind, hidden, layers, biased, both, batch_first = _form(weights)
    dx, dw, dr, db, again, dh, dc = torch.ops.aten.mkldnn_rnn_layer_backward(
        x.contiguous(), *weights, *_whole(first), *results, *_whole(grads), reverse, kind,
        hidden, layers, biased, True, both, batches, batch_first, kept,
    )  # fmt: skip
    parts = [ordered(part, OURS) for part in (dw, dr, db, again)]
    return dx, parts[0], parts[1], torch.cat(parts[2:]), dh, dc


def _form(weights: Layer) -> tuple[list[int], int, int, int, bool, bool, bool]:
    """Whose samples are of one length, one layer with biases, one direction, time first."""
    return [], LSTM, weights[1].shape[-1], 1, True, False, False


def _whole(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]
