"""Triton kernels for operators that are bound by memory, each beside its portable twin.

The portable kernel asks ``ready`` and hands over; what a Triton kernel does not take stays there.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import operator
import os
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from onnxtrain.kernels.devices import capability

TYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
SMALLEST = 1 << 16
"""Elements below which these are not worth compiling."""
CAPABILITY = (8, 0)
"""The first GPUs that have the instructions of these kernels; older ones run the portable ones."""
_type_of, _needs_gradient = operator.attrgetter("dtype"), operator.attrgetter("requires_grad")


@functools.cache
def load(name: str) -> ModuleType:
    """A module of this package; Triton is imported with the first one."""
    return importlib.import_module(f"onnxtrain.kernels.fast.{name}")


@functools.cache
def installed() -> bool:
    """Whether there is Triton, which not every platform has."""
    return importlib.util.find_spec("triton") is not None


def serves(index: int) -> bool:
    """Whether Triton is installed and can serve a GPU: one of NVIDIA's that is not too old."""
    return installed() and capability(index) >= CAPABILITY


@functools.cache
def interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, which serves tests only."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def ready(
    *tensors: Tensor, smallest: int = SMALLEST, rows: bool = False, images: bool = False
) -> bool:
    """Whether Triton may take these: large enough, contiguous, of the types it knows, on a GPU.

    Matrices may have space between their ``rows`` if the kernel skips it. All of them may be
    ``images`` with their channels last, where the order of elements does not matter.
    """
    first = tensors[0]
    if not first.is_cuda or first.numel() < smallest or not serves(first.get_device()):
        return False
    differentiated = torch.is_grad_enabled()
    last = images and _are_last(tensors)
    for t in tensors:
        if t.dtype not in TYPES or (differentiated and t.requires_grad):
            return False  # autograd cannot go back through Triton
        if not (last or t.is_contiguous()) and not (rows and t.ndim == 2 and t.stride(1) == 1):
            return False
    return True


def _are_last(tensors: Sequence[Tensor]) -> bool:
    """Whether all of these are images, or volumes, with their channels last."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensors[0].ndim)
    if form is None or tensors[0].is_contiguous():
        return False
    return all(t.ndim == tensors[0].ndim and t.is_contiguous(memory_format=form) for t in tensors)


def ready_lists(*lists: Sequence[Tensor]) -> bool:
    """Whether Triton may take all tensors of these lists, however small: each list of one type."""
    first = lists[0][0]
    if not first.is_cuda or not serves(first.get_device()):
        return False
    differentiated = torch.is_grad_enabled()
    for items in lists:
        types = set(map(_type_of, items))
        if len(types) > 1 or not types <= TYPES or not all(map(Tensor.is_contiguous, items)):
            return False
        if differentiated and any(map(_needs_gradient, items)):
            return False
    return set(map(Tensor.get_device, lists[0])) == {first.get_device()}


def ready_together(tensors: Sequence[Tensor]) -> bool:
    """Whether one Triton launch may read all of these, however small, if they lie well."""
    if not tensors or not tensors[0].is_cuda or not serves(tensors[0].get_device()):
        return False
    return not torch.is_grad_enabled() or not any(map(_needs_gradient, tensors))
