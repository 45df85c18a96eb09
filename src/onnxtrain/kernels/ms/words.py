"""Vectors of words that are spelled in characters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS, DataType


@kernel("WordConvEmbedding", domain=MS, T=frozenset({DataType.INT32}), T1=FLOATS)
def word_conv_embedding(
    sequence: Tensor,
    w: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> Tensor:
    """y[word, m] = max over windows of tanh(Σ w[m]·c[characters of the window] + b[m]).

    A word has as many characters as numbers above 0; windows end there, but one always fits, over
    the padding 0 of a short word. A word that begins with padding is none and has the vector 0. A
    number without a row in ``c`` stands for zeros.
    """
    _check(sequence, w, b, c)
    for name, given, found in (
        ("embedding_size", embedding_size, w.shape[0]),
        ("conv_window_size", conv_window_size, w.shape[2]),
        ("char_embedding_size", char_embedding_size, c.shape[1]),
    ):
        if given not in (None, -1, found):
            raise ValueError(f"{name} is {given}, but the weights are made for {found}")
    known = (sequence >= 0) & (sequence < len(c))
    rows = functional.embedding(sequence.where(known, 0), widen(c))
    letters = rows.masked_fill(~known.unsqueeze(2), 0.0)
    sums = functional.conv2d(letters.unsqueeze(1), widen(w), widen(b)).squeeze(3)
    counts = (sequence > 0).sum(1, keepdim=True) - w.shape[2] + 1
    windows = torch.arange(sums.shape[2], device=sums.device)
    behind = windows >= counts.clamp(min=1)
    # tanh keeps the order: the largest sum has the largest tanh
    y = sums.masked_fill(behind.unsqueeze(1), -torch.inf).amax(2).tanh()
    return store(y.masked_fill(sequence[:, :1] <= 0, 0.0), c)


def _check(sequence: Tensor, w: Tensor, b: Tensor, c: Tensor) -> None:
    """Refuse shapes that do not fit each other."""
    if sequence.ndim != 2:
        raise ValueError(f"Sequence has shape {list(sequence.shape)}, but it must be [word, place]")
    if c.ndim != 2:
        raise ValueError(f"C has shape {list(c.shape)}, but it must be [character, feature]")
    if w.ndim != 4 or w.shape[1] != 1 or w.shape[3] != c.shape[1]:
        raise ValueError(
            f"W has shape {list(w.shape)}, but it must be [filter, 1, place, {c.shape[1]}], "
            f"for characters of {c.shape[1]} features"
        )
    if list(b.shape) != [len(w)]:
        raise ValueError(f"B has shape {list(b.shape)}, but {len(w)} filters need [{len(w)}]")
    if not 1 <= w.shape[2] <= sequence.shape[1]:
        raise ValueError(
            f"windows of {w.shape[2]} characters do not fit into words with room for "
            f"{sequence.shape[1]}: pad Sequence with 0, or take a W with fewer places"
        )
