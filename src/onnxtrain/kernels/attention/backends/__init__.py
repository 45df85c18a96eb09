"""Who computes attention: cuDNN, torch's flash and memory-efficient kernels, or plain products."""

from __future__ import annotations

import torch

from onnxtrain.kernels import blocks
from onnxtrain.kernels.attention.backends.call import Backend, Call, Saved
from onnxtrain.kernels.attention.backends.cpu import Blocks, Heads
from onnxtrain.kernels.attention.backends.cuda import Cudnn, Efficient, Flash
from onnxtrain.kernels.attention.backends.plain import Plain
from onnxtrain.kernels.devices import OTHER, capability

__all__ = [
    "Backend", "Blocks", "Call", "Cudnn", "Efficient", "Flash", "Heads", "Plain", "Saved", "choose",
]  # fmt: skip

_HALVES = (torch.float16, torch.bfloat16)
_HALVES_SINCE = (8, 0)
"""Compute capability from which on kernels of torch take half precision of both kinds."""
_LARGE = {(8, 0), (9, 0), (10, 0), (10, 3)}
"""Those with memory on the chip for the gradient of wide heads in the flash kernel."""


def choose(call: Call) -> type[Backend]:
    """The fastest backend that can compute a call and its gradient."""
    q, k, v = call.q, call.k, call.v
    if blocks.recorded(*(t for t in (q, k, v, call.mask) if t is not None)):
        if call.dropout and q.is_cuda:
            raise ValueError(
                "attention with dropout on CUDA can be differentiated once only\n"
                "  set its dropout to 0, or differentiate on the CPU"
            )
        return Plain  # autograd goes back through it as often as asked
    if 0 in (*q.shape, *k.shape, *v.shape):
        return Plain
    if q.is_cuda:
        return Plain if q.dtype is torch.float64 else _on_gpu(call)
    if q.device.type != "cpu":
        return Plain
    return Blocks if Blocks.takes(call) else Heads


def _on_gpu(call: Call) -> type[Backend]:
    q, v = call.q, call.v
    chip = capability(q.get_device())
    square = not call.causal or q.shape[2] == call.k.shape[2]
    old = chip < _HALVES_SINCE
    if call.factor <= 0:
        return Plain  # others also multiply the -inf of pairs that do not meet
    aligned = q.shape[3] % 8 == 0 and v.shape[3] % 8 == 0
    if chip == OTHER or not square or not aligned or (old and q.dtype is torch.bfloat16):
        return Plain
    if q.dtype in _HALVES and not old and call.mask is None and q.shape[3] == v.shape[3]:
        if q.shape[3] <= 128 and not call.deterministic and chip[0] in (9, 10):
            return Cudnn
        if q.shape[3] <= (256 if chip in _LARGE else 192):
            return Flash
    return Plain if call.deterministic else Efficient
