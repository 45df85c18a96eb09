"""Attention as products and a softmax: any shape, type and device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels import blocks
from onnxtrain.kernels.attention.backends.call import Call, Grads, Outputs, Saved
from onnxtrain.kernels.precision import acc


class Plain:
    """All scores at once, in float32 or wider; autograd follows it."""

    @staticmethod
    def forward(call: Call, rng: torch.Generator | None) -> Outputs:
        """See ``Backend``."""
        seed = drawn_seed(call, rng)
        y, logsumexp = attended(call, generator(call, seed))
        return y, logsumexp, seed, torch.zeros_like(seed)

    @staticmethod
    def backward(call: Call, dy: Tensor, saved: Saved, masked: bool) -> Grads:
        """See ``Backend``."""
        dq, dk, dv, ds = pulled_back(call, dy, generator(call, saved.seed))
        return dq, dk, dv, to_mask(call, ds) if masked else None


def drawn_seed(call: Call, rng: torch.Generator | None) -> Tensor:
    """Where random numbers begin; 0 if none are drawn."""
    seed = torch.zeros(1, dtype=torch.int64, device=call.q.device)
    return seed.random_(generator=rng) if call.dropout else seed


def generator(call: Call, seed: Tensor) -> torch.Generator | None:
    """What draws the same numbers for the operator and its gradient."""
    return torch.Generator(call.q.device).manual_seed(int(seed)) if call.dropout else None


def attended(call: Call, random: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """y, and log Σ exp of the scores."""
    p, logsumexp = _probabilities(_scores(call))
    kept = p if random is None else p * _drawn(call, random)
    return (kept @ _wide(call, call.shared(call.v))).to(call.q.dtype), logsumexp


def pulled_back(
    call: Call, dy: Tensor, random: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, and of the scores."""
    q, k, v, dy = (_wide(call, t) for t in (call.q, call.shared(call.k), call.shared(call.v), dy))
    p, _ = _probabilities(_scores(call))
    kept, dp = p, dy @ v.transpose(2, 3)
    if random is not None:
        drawn = _drawn(call, random)
        kept, dp = p * drawn, dp * drawn
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
    dq = (ds @ k * call.factor).to(call.q.dtype)
    dk = call.gathered(ds.transpose(2, 3) @ q * call.factor).to(call.k.dtype)
    dv = call.gathered(kept.transpose(2, 3) @ dy).to(call.v.dtype)
    return dq, dk, dv, ds


def to_mask(call: Call, ds: Tensor) -> Tensor | None:
    """The gradient of a mask that is added, summed over what it was broadcast along."""
    if call.mask is None or not call.mask.is_floating_point():
        return None
    return ds.sum_to_size(call.mask.shape).to(call.mask.dtype)


def _wide(call: Call, x: Tensor) -> Tensor:
    return x.to(acc(call.q.dtype))


def _scores(call: Call) -> Tensor:
    """q·kᵀ·scale plus the mask; -inf for pairs that may not meet."""
    root = math.sqrt(abs(call.factor))
    q = _wide(call, call.q) * math.copysign(root, call.factor)
    scores = q @ (_wide(call, call.shared(call.k)) * root).transpose(2, 3)
    if call.mask is not None and call.mask.dtype is torch.bool:
        scores = scores.masked_fill(~call.mask, -torch.inf)
    elif call.mask is not None:
        scores = scores + _wide(call, call.mask)
    if call.causal:
        open_pairs = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(~open_pairs.tril(), -torch.inf)
    return scores


def _probabilities(scores: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(scores), 0 for a query that may see nothing, and log Σ exp.

    exp(scores - logsumexp) would be wrong where every score is a huge negative number.
    """
    if not scores.shape[-1]:
        return scores, scores.new_full(scores.shape[:-1], -torch.inf)
    highest = scores.amax(-1, keepdim=True)
    nothing = highest == -torch.inf
    some = scores.is_cuda or blocks.recorded(scores) or bool(nothing.any())
    p = torch.softmax(scores.masked_fill(nothing, 0.0) if some else scores, -1)
    logsumexp = (highest - p.amax(-1, keepdim=True).log()).squeeze(-1)
    return p.masked_fill(nothing, 0.0) if some else p, logsumexp


def _drawn(call: Call, random: torch.Generator) -> Tensor:
    """1/(1 - dropout) for pairs that stay, else 0; the same from the same state."""
    shape = (*call.q.shape[:3], call.k.shape[2])
    draws = torch.rand(shape, generator=random, device=call.q.device)
    return (draws >= call.dropout).to(acc(call.q.dtype)) / (1 - call.dropout)
