"""Attention within windows and to a few tokens that all see, as Longformer has it."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.products import of_rows
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.transformer.attend import attend, join_heads, scale_of, working
from onnxtrain.kernels.transformer.self_attention import projections
from onnxtrain.types import FLOATS, MS


@kernel("LongformerAttention", domain=MS, T=FLOATS)
def longformer_attention(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor,
    global_weight: Tensor,
    global_bias: Tensor,
    global_flags: Tensor,
    *,
    num_heads: int,
    window: int,
) -> Tensor:
    """softmax(q·kᵀ/√size + mask)·v of each token and those it sees; 0 for masked tokens.

    A token sees the ``window`` tokens before and behind it, and global ones. A global token sees
    all, with projections of its own. A token is masked if its mask is below 0.
    """
    _check(input, mask, global_flags, num_heads, window)
    weights = _merged(input.shape[2], weight, bias, global_weight, global_bias)
    x = working(input)
    local, others = (
        projections(of_rows(x, working(w)), b, num_heads) for w, b in (weights[:2], weights[2:])
    )
    is_global = global_flags != 0
    place = torch.arange(x.shape[1], device=x.device)
    near = (place - place.unsqueeze(1)).abs() <= window
    # a finite number, so that a masked token among masked ones has no NaN before it becomes 0
    shift = working(mask).clamp(min=torch.finfo(x.dtype).min)[:, None, None]
    seen = (near | is_global.unsqueeze(1)).unsqueeze(1)
    closed = shift.masked_fill(~seen, -torch.inf)
    of_all, of_seen = (
        attend(q, k, v, rule, scale_of(0.0, q.shape[3]))
        for (q, k, v), rule in ((others, shift), (local, closed))
    )
    y = torch.where(is_global[:, None, :, None], of_all, of_seen)
    return join_heads(y).masked_fill((mask < 0).unsqueeze(2), 0.0).to(input.dtype)


def _check(x: Tensor, mask: Tensor, flags: Tensor, heads: int, window: int) -> None:
    """Refuse sizes that do not fit each other."""
    if x.ndim != 3 or heads < 1 or x.shape[2] % heads:
        raise ValueError(
            f"input has shape {list(x.shape)}, but it must be [batch, position, feature] with "
            f"features that {heads} heads share evenly"
        )
    if window < 1 or x.shape[1] % (2 * window):
        raise ValueError(
            f"input has {x.shape[1]} positions, but a window of {window} needs a multiple of "
            f"{2 * window}: pad it, with a mask below 0"
        )
    for name, found in (("mask", mask), ("global", flags)):
        if found.shape != x.shape[:2]:
            raise ValueError(
                f"{name} has shape {list(found.shape)}, but for input {list(x.shape)} it must be "
                f"{list(x.shape[:2])}"
            )


def _merged(size: int, *given: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights [feature, 3 · feature] and biases for q, k and v, then those of global tokens.

    They may also be three matrices each; then the biases of global k and v stand behind those of
    q, k and v.
    """
    found = [list(x.shape) for x in given]
    beside = [[size, 3 * size], [3 * size]]
    apart = [[3, size, size], [5 * size], [3, size, size], [size]]
    weight, bias, global_weight, global_bias = given
    if found == beside * 2:
        return weight, bias, global_weight, global_bias
    if found != apart:
        raise ValueError(
            f"weights and biases have shapes {found}, but for {size} features they must be "
            f"{beside * 2} or {apart}"
        )
    own, further = bias.split([3 * size, 2 * size])
    local, others = (w.movedim(0, 1).flatten(1) for w in (weight, global_weight))
    return local, own, others, torch.cat([global_bias, further])
