"""What the attention operators of com.microsoft share: heads, masks, scores and caches."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels.attention.scaled_dot import fused
from onnxtrain.kernels.precision import acc


def working(x: Tensor) -> Tensor:
    """The tensor in the type in which products are computed: 16-bit ones stay so on CUDA."""
    return x if x.is_cuda else x.to(acc(x.dtype))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, head, position, size] of [batch, position, head · size]."""
    if x.ndim != 3 or not heads or x.shape[2] % heads:
        raise ValueError(f"a tensor with shape {list(x.shape)} has no {heads} heads")
    parts: Tensor = x.unflatten(2, (heads, -1))
    return parts.transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[batch, position, head · size] of [batch, head, position, size]."""
    return x.transpose(1, 2).flatten(2)


def scale_of(scale: float, size: int) -> float:
    """The factor of scores: what an attribute says, 1/√size where it says 0."""
    return scale or 1 / math.sqrt(size)


def seen(queries: int, keys: int, past: int, like: Tensor) -> Tensor:
    """Which keys a query may see, if it may not look ahead: [query, key]."""
    key = torch.arange(keys, device=like.device)
    return key <= torch.arange(past, past + queries, device=like.device).unsqueeze(1)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None,
    scale: float,
    causal_from: int | None = None,
) -> Tensor:
    """softmax(q·kᵀ·scale + bias)·v; with ``causal_from``, the first query's position, causal."""
    causal = causal_from == 0 and bias is None
    allowed = None
    if causal_from is not None and not causal:
        allowed = seen(query.shape[2], keys.shape[2], causal_from, query)
    return fused(query, keys, values, allowed, bias, scale, causal)


@dataclasses.dataclass(frozen=True)
class Steps:
    """Attention step by step, where the steps matter: scores are shown, capped or have a sink.

    Attributes:
        scale: Factor of the products.
        softcap: c of c·tanh(x/c), 0 for none.
        sink: A score of each head that takes part in the softmax but has no value.
    """

    scale: float
    softcap: float = 0.0
    sink: Tensor | None = None

    def __call__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        allowed: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """y, the scores before the softmax (of pairs that may not meet, too) and its weights."""
        dtype = acc(query.dtype)
        scores = (query.to(dtype) * self.scale) @ keys.to(dtype).transpose(2, 3)
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores if bias is None else scores + bias.to(dtype)
        weights = self._weights(scores, allowed)
        return weights @ values.to(dtype), scores, weights

    def _weights(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        closed = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
        if self.sink is not None:
            sink = self.sink.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            return torch.softmax(torch.cat([closed, sink], -1), -1)[..., :-1]
        weights = torch.softmax(closed, -1)
        if allowed is None:
            return weights
        return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


@dataclasses.dataclass(frozen=True)
class Padding:
    """A mask of whole numbers, in any of its forms, for a number of queries and keys."""

    batch: int
    queries: int
    keys: int

    def bias(self, mask: Tensor, closed: float, like: Tensor) -> Tensor:
        """What the mask adds to scores: 0 or ``closed``, as [batch, 1, 1 or query, key].

        A vector has lengths; ends and then starts; or lengths and then offsets of packed tokens.
        """
        opened = self._vector(mask) if mask.ndim == 1 else self._raw(mask)
        least = max(closed, torch.finfo(like.dtype).min)
        return torch.where(opened, 0.0, least).to(acc(like.dtype))

    def _vector(self, mask: Tensor) -> Tensor:
        count = mask.shape[0]
        if count not in (self.batch, 2 * self.batch, 3 * self.batch + 2):
            raise ValueError(
                f"a mask of rank 1 has {count} values, but a batch of {self.batch} needs "
                f"{self.batch}, {2 * self.batch} or {3 * self.batch + 2}"
            )
        key = torch.arange(self.keys, device=mask.device)
        opened = key < mask[: self.batch].reshape(-1, 1, 1, 1)
        if count == 2 * self.batch:
            opened = opened & (key >= mask[self.batch :].reshape(-1, 1, 1, 1))
        return opened

    def _raw(self, mask: Tensor) -> Tensor:
        if mask.ndim == 4:
            mask = mask[:, 0, max(self.keys - self.queries, 0) : self.keys, : self.keys]
        allowed = [(self.batch, self.keys), (self.batch, self.queries, self.keys)]
        if tuple(mask.shape) not in allowed:
            raise ValueError(
                f"the mask has shape {list(mask.shape)}, but it must be {list(allowed[0])} or "
                f"{list(allowed[1])} (or hold that in its last two axes, if it has rank 4)"
            )
        opened = mask > 0
        return opened[:, None, None] if mask.ndim == 2 else opened[:, None]


def added(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The sum of what is there."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def appended(past: Tensor | None, new: Tensor, shared: int | None) -> tuple[Tensor, Tensor]:
    """Keys (or values) with the past before them, and the cache for the next call.

    Args:
        past: [..., position, size]
        new: The same for new positions.
        shared: How many positions of the past are in use, if it is a buffer with room for more.
    """
    if past is None:
        return new, new.clone(memory_format=torch.contiguous_format)
    if shared is None:
        joined = torch.cat([past.to(new.dtype), new], -2)
        return joined, joined
    end = shared + new.shape[-2]
    if end > past.shape[-2]:
        raise ValueError(f"a cache of {past.shape[-2]} positions has no room for {end}")
    full = torch.cat([past[..., :shared, :].to(new.dtype), new], -2)
    return full, torch.cat([full, past[..., end:, :].to(new.dtype)], -2)


def unpacked(x: Tensor, token_offset: Tensor) -> Tensor:
    """Tokens [token, ...] at their places in [batch, position, ...], zeros elsewhere."""
    places = token_offset.reshape(-1)[: len(x)].to(torch.int64)
    rows = x.new_zeros(token_offset.numel(), *x.shape[1:])
    full: Tensor = rows.index_copy(0, places, x).unflatten(0, token_offset.shape)
    return full


def first_of(value: int | list[int] | None) -> int | None:
    """The number in a scalar, or in a vector with one element, that was read by the host."""
    return value[0] if isinstance(value, list) else value


def root_mean_square(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x·w/√(mean(x²) + ε) over the last axis."""
    wide = x.to(acc(x.dtype))
    y: Tensor = functional.rms_norm(wide, weight.shape, weight.to(wide.dtype), epsilon)
    return y.to(x.dtype)
