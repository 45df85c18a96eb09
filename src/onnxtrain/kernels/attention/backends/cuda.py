"""Torch's attention on a GPU: cuDNN's, the flash and the memory-efficient kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from onnxtrain.kernels.attention.backends.call import Call, Grads, Outputs, Saved
from onnxtrain.kernels.attention.backends.plain import to_mask

_aten = torch.ops.aten


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
        d_mask = to_mask(call, ds) if masked else None
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
