"""Who computes attention: cuDNN, torch's flash and memory-efficient kernels, or plain products."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from onnxtrain.kernels.devices import OTHER, capability
from onnxtrain.kernels.precision import acc

Outputs = tuple[Tensor, Tensor, Tensor, Tensor]
Grads = tuple[Tensor, Tensor, Tensor, Tensor | None]
_HALVES = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)
_HALVES_SINCE = (8, 0)
"""Compute capability from which on kernels of torch take half precision of both kinds."""
_LARGE = {(8, 0), (9, 0), (10, 0), (10, 3)}
"""Those with memory on the chip for the gradient of wide heads in the flash kernel."""
_aten = torch.ops.aten


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

    @property
    def backend(self) -> type[Backend]:
        """The fastest that can."""
        return choose(self)

    def shared(self, x: Tensor) -> Tensor:
        """Keys or values with a head for each of the queries'."""
        return x if self.groups == 1 else x.repeat_interleave(self.groups, 1)

    def gathered(self, dx: Tensor) -> Tensor:
        """The gradient of what was shared."""
        return dx if self.groups == 1 else dx.unflatten(1, (-1, self.groups)).sum(2)


def choose(call: Call) -> type[Backend]:
    """The fastest backend that can compute a call and its gradient."""
    q, k, v = call.q, call.k, call.v
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        if call.dropout and q.is_cuda:
            raise ValueError(
                "attention with dropout on CUDA can be differentiated once only\n"
                "  set its dropout to 0, or differentiate on the CPU"
            )
        return Plain  # autograd goes back through it as often as asked
    square = not call.causal or q.shape[2] == k.shape[2]
    if 0 in (*q.shape, *k.shape, *v.shape):
        return Plain
    if q.device.type == "cpu" and q.dtype in _WIDE and square and q.shape[3] == v.shape[3]:
        return Plain if call.dropout or call.mask is not None else Blocks
    if q.dtype is torch.float64 or not q.is_cuda:
        return Plain
    chip = capability(q.get_device())
    old = chip < _HALVES_SINCE
    aligned = q.shape[3] % 8 == 0 and v.shape[3] % 8 == 0
    if chip == OTHER or not square or not aligned or (old and q.dtype is torch.bfloat16):
        return Plain
    if q.dtype in _HALVES and not old and call.mask is None and q.shape[3] == v.shape[3]:
        if q.shape[3] <= 128 and not call.deterministic and chip[0] in (9, 10):
            return Cudnn
        if q.shape[3] <= (256 if chip in _LARGE else 192):
            return Flash
    return Plain if call.deterministic else Efficient


class Plain:
    """Products and a softmax, in float32 or wider; any shape, type and device."""

    @staticmethod
    def forward(call: Call, rng: torch.Generator | None) -> Outputs:
        """See ``Backend``."""
        scores, wide_v = Plain._scores(call), call.shared(call.v).to(acc(call.v.dtype))
        logsumexp = torch.logsumexp(scores, -1)
        kept = Plain._probabilities(scores)
        seed = torch.zeros(1, dtype=torch.int64, device=call.q.device)
        if call.dropout:
            seed.random_(generator=rng)
            kept = kept * Plain._drawn(call, seed)
        y = (kept @ wide_v).to(call.q.dtype)
        return y, logsumexp, seed, torch.zeros_like(seed)

    @staticmethod
    def backward(call: Call, dy: Tensor, saved: Saved, masked: bool) -> Grads:
        """See ``Backend``."""
        wide = acc(call.q.dtype)
        q, dy = call.q.to(wide), dy.to(wide)
        k, v = call.shared(call.k).to(wide), call.shared(call.v).to(wide)
        scores = Plain._scores(call)
        p = Plain._probabilities(scores)
        kept, dp = p, dy @ v.transpose(2, 3)
        if call.dropout:
            drawn = Plain._drawn(call, saved.seed)
            kept, dp = p * drawn, dp * drawn
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        dq = (ds @ k * call.factor).to(call.q.dtype)
        dk = call.gathered(ds.transpose(2, 3) @ q * call.factor).to(call.k.dtype)
        dv = call.gathered(kept.transpose(2, 3) @ dy).to(call.v.dtype)
        return dq, dk, dv, _to_mask(call, ds) if masked else None

    @staticmethod
    def _scores(call: Call) -> Tensor:
        """q·kᵀ·scale plus the mask; -inf for pairs that may not meet."""
        wide = acc(call.q.dtype)
        root = math.sqrt(abs(call.factor))
        q = call.q.to(wide) * (root if call.factor >= 0 else -root)
        scores = q @ (call.shared(call.k).to(wide) * root).transpose(2, 3)
        if call.mask is not None and call.mask.dtype is torch.bool:
            scores = scores.masked_fill(~call.mask, -torch.inf)
        elif call.mask is not None:
            scores = scores + call.mask.to(wide)
        if call.causal:
            open_pairs = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(~open_pairs.tril(), -torch.inf)
        return scores

    @staticmethod
    def _probabilities(scores: Tensor) -> Tensor:
        """softmax(scores), 0 for a query that may see nothing.

        exp(scores - logsumexp) would be wrong where every score is a huge negative number.
        """
        nothing = (scores == -torch.inf).all(-1, keepdim=True)
        return torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)

    @staticmethod
    def _drawn(call: Call, seed: Tensor) -> Tensor:
        """1/(1 - dropout) for pairs that stay, else 0; the same for the same seed."""
        device = call.q.device
        generator = torch.Generator(device).manual_seed(int(seed))
        shape = (*call.q.shape[:3], call.k.shape[2])
        draws = torch.rand(shape, generator=generator, device=device)
        return (draws >= call.dropout).to(acc(call.q.dtype)) / (1 - call.dropout)


def _to_mask(call: Call, ds: Tensor) -> Tensor | None:
    """The gradient of a mask that is added, summed over what it was broadcast along."""
    if call.mask is None or not call.mask.is_floating_point():
        return None
    return ds.sum_to_size(call.mask.shape).to(call.mask.dtype)


class Blocks:
    """Block by block on the CPU, where every query sees something and nothing is dropped."""

    @staticmethod
    def forward(call: Call, rng: torch.Generator | None) -> Outputs:
        """The outputs of FlashAttention."""
        y, logsumexp = _aten._scaled_dot_product_flash_attention_for_cpu(
            *Blocks._inputs(call), 0.0, call.causal, scale=call.factor
        )
        seed = torch.zeros(1, dtype=torch.int64)
        return y, logsumexp, seed, torch.zeros_like(seed)

    @staticmethod
    def backward(call: Call, dy: Tensor, saved: Saved, masked: bool) -> Grads:
        """Gradients of q, k and v; there is no mask."""
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(_in_rows(dy), *Blocks._inputs(call), _in_rows(saved.y), saved.logsumexp),
            *(0.0, call.causal),
            scale=call.factor,
        )
        return dq, call.gathered(dk), call.gathered(dv), None

    @staticmethod
    def _inputs(call: Call) -> tuple[Tensor, Tensor, Tensor]:
        shared = (call.q, call.shared(call.k), call.shared(call.v))
        return tuple(map(_in_rows, shared))  # type: ignore[return-value]


def _in_rows(x: Tensor) -> Tensor:
    """The tensor with its last axis in one piece, as torch's kernel for the CPU assumes."""
    return x if x.stride(-1) == 1 else x.contiguous()


class Cudnn:
    """Half precision without a mask: the fastest there is on Hopper."""

    GROUPS_SINCE = (2, 11)
    """The version of torch from which on it is known to take heads that are shared."""

    @staticmethod
    def forward(call: Call, rng: torch.Generator | None) -> Outputs:
        """See ``Backend``."""
        k, v = Cudnn._keys_and_values(call)
        with drawing_from(rng, call.dropout):
            y, logsumexp, _, _, _, _, seed, offset, _ = _aten._scaled_dot_product_cudnn_attention(
                call.q, k, v, None, True, call.dropout, call.causal, scale=call.factor
            )
        return y, logsumexp.squeeze(-1), seed, offset

    @staticmethod
    def backward(call: Call, dy: Tensor, saved: Saved, masked: bool) -> Grads:
        """See ``Backend``."""
        q, (k, v) = call.q, Cudnn._keys_and_values(call)
        dq, dk, dv = _aten._scaled_dot_product_cudnn_attention_backward(
            *(dy, q, k, v, saved.y, saved.logsumexp.unsqueeze(-1), saved.seed, saved.offset),
            *(None, None, None, q.shape[2], k.shape[2], call.dropout, call.causal),
            scale=call.factor,
        )
        if k is call.k:
            return dq, dk, dv, None
        return dq, call.gathered(dk), call.gathered(dv), None

    @staticmethod
    def _keys_and_values(call: Call) -> tuple[Tensor, Tensor]:
        """With a head for each of the queries' where cuDNN is not known to share them."""
        version = tuple(map(int, torch.__version__.split(".")[:2]))
        if call.groups == 1 or (version >= Cudnn.GROUPS_SINCE and not call.dropout):
            return call.k, call.v
        return call.shared(call.k), call.shared(call.v)


class Flash:
    """Half precision without a mask; its gradient can be the same from run to run."""

    @staticmethod
    def forward(call: Call, rng: torch.Generator | None) -> Outputs:
        """See ``Backend``."""
        k, v = call.shared(call.k), call.shared(call.v)
        with drawing_from(rng, call.dropout):
            y, logsumexp, _, _, _, _, seed, offset, _ = _aten._scaled_dot_product_flash_attention(
                call.q, k, v, call.dropout, call.causal, False, scale=call.factor
            )
        return y, logsumexp, seed, offset

    @staticmethod
    def backward(call: Call, dy: Tensor, saved: Saved, masked: bool) -> Grads:
        """See ``Backend``."""
        q, k, v = call.q, call.shared(call.k), call.shared(call.v)
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_backward(
            *(dy, q, k, v, saved.y, saved.logsumexp, None, None, q.shape[2], k.shape[2]),
            *(call.dropout, call.causal, saved.seed, saved.offset),
            scale=call.factor,
        )
        return dq, call.gathered(dk), call.gathered(dv), None


class Efficient:
    """Masks that are added, and float32."""

    ROW = 32
    """Its logsumexp is padded to a multiple of this."""
    ALIGNED = 8
    """Rows of a mask begin at multiples of this many elements."""

    @staticmethod
    def forward(call: Call, rng: torch.Generator | None) -> Outputs:
        """See ``Backend``."""
        with drawing_from(rng, call.dropout):
            y, logsumexp, seed, offset = _aten._scaled_dot_product_efficient_attention(
                *(call.q, call.shared(call.k), call.shared(call.v), Efficient._bias(call)),
                *(True, call.dropout, call.causal),
                scale=call.factor,
            )
        return y, logsumexp[..., : call.q.shape[2]], seed, offset

    @staticmethod
    def backward(call: Call, dy: Tensor, saved: Saved, masked: bool) -> Grads:
        """See ``Backend``."""
        k, v = call.shared(call.k), call.shared(call.v)
        missing = -saved.logsumexp.shape[2] % Efficient.ROW
        logsumexp = torch.nn.functional.pad(saved.logsumexp, (0, missing))
        dq, dk, dv, ds = _aten._scaled_dot_product_efficient_attention_backward(
            *(dy, call.q, k, v, Efficient._bias(call), saved.y, logsumexp),
            *(saved.seed, saved.offset, call.dropout, [True, True, True, masked], call.causal),
            scale=call.factor,
        )
        d_mask = _to_mask(call, ds) if masked else None
        return dq, call.gathered(dk), call.gathered(dv), d_mask

    @staticmethod
    def _bias(call: Call) -> Tensor | None:
        """The mask for every pair, in storage whose rows are aligned."""
        if call.bias is None:
            return None
        rows = call.bias.shape[2:3]
        keys = call.k.shape[2]
        missing = -keys % Efficient.ALIGNED
        bias = call.bias.expand(*call.bias.shape[:2], *rows, keys)
        if missing:
            bias = torch.nn.functional.pad(bias, (0, missing))[..., :keys]
        return bias.expand(*call.q.shape[:3], keys)


@contextlib.contextmanager
def drawing_from(rng: torch.Generator | None, dropout: float) -> Iterator[None]:
    """With: torch's own kernels draw from a generator of ours; recorded steps replay that."""
    if rng is None or not dropout or rng.device.type != "cuda":
        yield
        return
    default = torch.cuda.default_generators[rng.device.index or 0]
    before = default.graphsafe_get_state()
    default.graphsafe_set_state(rng.graphsafe_get_state())
    try:
        yield
    finally:
        default.graphsafe_set_state(before)
