"""Products of float32 matrices on a CPU, by oneDNN where torch's own take twice as long.

Torch multiplies by MKL, which uses AVX-512 on processors of Intel alone. Others that have it are
left with half of their speed.
"""

from __future__ import annotations

import functools
import os
import pathlib

import torch
from torch import Tensor
from torch.nn import functional

from onnxtrain.kernels import blocks

WORTH, NARROW = 1 << 22, 16
"""Multiplications from which on a call of oneDNN is worth what it costs, and the smallest size."""
LARGE = 1 << 20
"""Elements of a transposed matrix from which on to transpose it takes longer than to copy all."""
OTHERS = ("AuthenticAMD", "HygonGenuine")
"""Makers of processors with AVX-512 that MKL does not use it on."""
_CPUINFO = pathlib.Path("/proc/cpuinfo")


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a·b of two matrices, with a row added to each of its rows."""
    if not serves(a, b, bias):
        return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    if bias is None and a.numel() >= LARGE and a.mT.is_contiguous() and b.is_contiguous():
        return _sum_of_rows(a.mT, b)
    row = None if bias is None else bias.reshape(-1).contiguous()
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, dense(b).t(), row, "none", [], "")
    return found


def _sum_of_rows(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ·b of matrices in rows: the gradient of a weight, for which they are not transposed."""
    like = a.new_empty(a.shape[1], b.shape[1])  # of which oneDNN reads the sizes alone
    found: Tensor = torch.ops.aten.mkldnn_linear_backward_weights(
        a.to_mkldnn(), b.to_mkldnn(), like, False
    )[0]
    return found


def of_rows(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a·b for the rows of a, in however many axes, and a matrix b; a row is added to each."""
    if not a.is_cpu or b.ndim != 2 or a.ndim < 2:
        return torch.matmul(a, b) if bias is None else functional.linear(a, b.mT, bias)
    # torch would repeat b for every matrix of what has gaps
    found = product(a.flatten(0, -2), b, bias)
    return found if a.ndim == 2 else found.unflatten(0, a.shape[:-1])


def product_added(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a·b + c of three matrices that ``serves``."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
        a, c.contiguous(), dense(b).t(), None, "add"
    )
    return found


def dense(b: Tensor) -> Tensor:
    """The right matrix without gaps, with which oneDNN would take a thousand times as long."""
    return b if b.is_contiguous() or b.mT.is_contiguous() else b.contiguous()


def serves(a: Tensor, b: Tensor, added: Tensor | None = None) -> bool:
    """Whether oneDNN multiplies two matrices, and adds something, sooner than torch would."""
    if a.dtype is not torch.float32 or not a.is_cpu or not wins():
        return False
    (rows, inner), columns = a.shape, b.shape[1]
    if rows * inner * columns < WORTH or min(rows, inner, columns) < NARROW:
        return False
    return not blocks.recorded(a, b) and (added is None or not blocks.recorded(added))


@functools.cache
def wins() -> bool:
    """Whether oneDNN uses instructions of this processor that MKL leaves alone."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or maker() not in OTHERS:
        return False
    available = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    return available and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def maker() -> str:
    """What a processor says of who made it; empty where that is not to be found out."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        parts = os.environ.get("PROCESSOR_IDENTIFIER", "").split()
        return parts[-1] if parts else ""
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id"))
    return next(found, "")
