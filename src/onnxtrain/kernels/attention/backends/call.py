"""One call of attention, and what computes it and its gradient."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Outputs = tuple[Tensor, Tensor, Tensor, Tensor]
Grads = tuple[Tensor, Tensor, Tensor, Tensor | None]


class Saved(NamedTuple):
    """What the operator left for its gradient; logsumexp is [batch, head, query]."""

    y: Tensor
    logsumexp: Tensor
    seed: Tensor
    offset: Tensor


class Backend(Protocol):
    """Computes attention and its gradient; both see the same call."""

    @staticmethod
    def forward(call: Call, rng: torch.Generator | None) -> Outputs:
        """The outputs of FlashAttention."""

    @staticmethod
    def backward(call: Call, dy: Tensor, saved: Saved, masked: bool) -> Grads:
        """Gradients of q, k, v, and of the mask if that is ``masked`` for."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of attention, as the operator and its gradient see it."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    scale: float | None
    deterministic: bool

    @property
    def factor(self) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(self.q.shape[-1]) if self.scale is None else self.scale

    @property
    def groups(self) -> int:
        """How many queries' heads share one of the keys."""
        if self.q.shape[1] % self.k.shape[1]:
            raise ValueError(
                f"{self.q.shape[1]} heads of queries cannot share {self.k.shape[1]} heads of keys"
            )
        return self.q.shape[1] // self.k.shape[1]

    @functools.cached_property
    def bias(self) -> Tensor | None:
        """What is added to the scores, of the queries' type and rank 4; -inf where closed."""
        if self.mask is None:
            return None
        mask = self.mask
        if mask.dtype is torch.bool:
            closed = torch.zeros((), dtype=self.q.dtype, device=mask.device)
            mask = torch.where(mask, closed, -torch.inf)
        return mask.to(self.q.dtype).reshape(*[1] * (4 - mask.ndim), *mask.shape)

    def shared(self, x: Tensor) -> Tensor:
        """Keys or values with a head for each of the queries'."""
        return x if self.groups == 1 else x.repeat_interleave(self.groups, 1)

    def gathered(self, dx: Tensor) -> Tensor:
        """The gradient of what was shared."""
        return dx if self.groups == 1 else dx.unflatten(1, (-1, self.groups)).sum(2)
