"""Attention on a CPU: torch's kernel, which never has all scores, or products of some heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from onnxtrain.kernels import blocks
from onnxtrain.kernels.attention.backends.call import Call, Grads, Outputs, Saved
from onnxtrain.kernels.attention.backends.plain import (
    attended,
    drawn_seed,
    generator,
    pulled_back,
    to_mask,
)
from onnxtrain.kernels.precision import acc

_aten = torch.ops.aten
_WIDE = (torch.float32, torch.float64)
HUGE = 64.0
"""What the largest number of a row of a mask may be, or its negative.

The kernel's gradient takes exp(score - log Σ exp), of which such a number takes digits.
"""


class Blocks:
    """Block by block, where nothing is dropped and every query sees something."""

    @staticmethod
    def takes(call: Call) -> bool:
        """Whether torch's kernel and its gradient can compute a call."""
        q, k, v = call.q, call.k, call.v
        square = not call.causal or q.shape[2] == k.shape[2]
        if q.dtype not in _WIDE or not square or q.shape[3] != v.shape[3] or call.dropout:
            return False
        if call.causal and call.factor <= 0:
            return False  # it multiplies the -inf of what lies ahead, too
        return call.mask is None or _is_moderate(call)

    @staticmethod
    def forward(call: Call, rng: torch.Generator | None) -> Outputs:
        """See ``Backend``."""
        y, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu(
            *Blocks._inputs(call), 0.0, call.causal, attn_mask=call.bias, scale=call.factor
        )
        seed = drawn_seed(call, rng)
        return y, logsumexp, seed, torch.zeros_like(seed)

    @staticmethod
    def backward(call: Call, dy: Tensor, saved: Saved, masked: bool) -> Grads:
        """See ``Backend``; torch's kernel has no gradient of a mask."""
        if masked:
            return Heads.backward(call, dy, saved, masked)
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(_in_rows(dy), *Blocks._inputs(call), _in_rows(saved.y), saved.logsumexp),
            *(0.0, call.causal),
            attn_mask=call.bias,
            scale=call.factor,
        )
        return dq, call.gathered(dk), call.gathered(dv), None

    @staticmethod
    def _inputs(call: Call) -> tuple[Tensor, Tensor, Tensor]:
        shared = (call.q, call.shared(call.k), call.shared(call.v))
        return tuple(map(_in_rows, shared))  # type: ignore[return-value]


def _in_rows(x: Tensor) -> Tensor:
    """The tensor with its last axis in one piece, as torch's kernel assumes."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _is_moderate(call: Call) -> bool:
    """Whether a mask lets every query see something, by numbers that are not huge."""
    bias = call.bias
    assert bias is not None, "there is a mask"
    if call.causal:
        sizes = call.q.shape[2], call.k.shape[2]
        bias = bias.masked_fill(~torch.ones(sizes, dtype=torch.bool).tril(), -torch.inf)
    return bool((bias.amax(-1).abs() <= HUGE).all())


class Heads:
    """Products and a softmax for as many heads at once as stay in the cache."""

    @staticmethod
    def forward(call: Call, rng: torch.Generator | None) -> Outputs:
        """See ``Backend``."""
        seed = drawn_seed(call, rng)
        random = generator(call, seed)
        samples, heads, queries, _ = call.q.shape
        # heads lie beside each other, as what reads them wants to have them
        y = call.q.new_empty(samples, queries, heads, call.v.shape[3]).transpose(1, 2)
        logsumexp = call.q.new_empty(samples, heads, queries, dtype=acc(call.q.dtype))
        for part in _parts(call):
            found = attended(part.call, random)
            part.of(y)[:], part.of(logsumexp)[:] = found
        return y, logsumexp, seed, torch.zeros_like(seed)

    @staticmethod
    def backward(call: Call, dy: Tensor, saved: Saved, masked: bool) -> Grads:
        """See ``Backend``."""
        random = generator(call, saved.seed)
        grads = [torch.empty_like(t) for t in (call.q, call.k, call.v)]
        d_mask = None
        if masked and call.mask is not None and call.mask.is_floating_point():
            d_mask = torch.zeros_like(call.mask, dtype=acc(call.q.dtype))
        for part in _parts(call):
            *found, ds = pulled_back(part.call, part.of(dy), random)
            for grad, made, own in zip(grads, found, (True, False, False), strict=True):
                (part.of(grad) if own else part.of_shared(grad)).copy_(made)
            if d_mask is not None:
                into = part.of_mask(d_mask)
                into.add_(ds.sum_to_size(into.shape))
        dq, dk, dv = grads
        return dq, dk, dv, None if d_mask is None else to_mask(call, d_mask)


@dataclasses.dataclass(frozen=True)
class _Part:
    """Some heads of a sample: a call of its own, and where its results belong."""

    call: Call
    sample: int
    own: slice
    shared: slice

    def of(self, x: Tensor) -> Tensor:
        """This part of what has a head for each of the queries'."""
        return x[self.sample : self.sample + 1, self.own]

    def of_shared(self, x: Tensor) -> Tensor:
        """This part of keys or values."""
        return x[self.sample : self.sample + 1, self.shared]

    def of_mask(self, mask: Tensor) -> Tensor:
        """This part of a mask, which may be that of all samples and heads."""
        return _mask_part(mask, self.sample, self.own)


def _parts(call: Call) -> Iterator[_Part]:
    """A call in pieces."""
    samples, count = len(call.q), call.k.shape[1]
    scores = call.groups * call.q.shape[2] * call.k.shape[2]
    each = max(1, blocks.size() // max(1, scores))
    for sample in range(samples):
        for first in range(0, count, each):
            shared = slice(first, min(first + each, count))
            own = slice(shared.start * call.groups, shared.stop * call.groups)
            q = call.q[sample : sample + 1, own]
            k, v = (t[sample : sample + 1, shared] for t in (call.k, call.v))
            mask = None if call.mask is None else _mask_part(call.mask, sample, own)
            yield _Part(dataclasses.replace(call, q=q, k=k, v=v, mask=mask), sample, own, shared)


def _mask_part(mask: Tensor, sample: int, heads: slice) -> Tensor:
    if mask.ndim > 3 and mask.shape[-4] > 1:
        mask = mask[sample : sample + 1]
    return mask[..., heads, :, :] if mask.ndim > 2 and mask.shape[-3] > 1 else mask
