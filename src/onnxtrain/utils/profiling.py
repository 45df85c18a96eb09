"""Marks for profilers and a line about memory; without CUDA they do nothing."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
_MIB = 2**20


def torch_nvtx_range_push(msg: str) -> None:
    """Open a named range in NVIDIA's profiler."""
    if torch.cuda.is_available():
        torch.cuda.nvtx.range_push(msg)


def torch_nvtx_range_pop() -> None:
    """Close the range that was opened last."""
    if torch.cuda.is_available():
        torch.cuda.nvtx.range_pop()


def nvtx_function_decorator(func: F) -> F:
    """Put every call of a function into a range of its name."""

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        torch_nvtx_range_push(func.__qualname__)
        try:
            return func(*args, **kwargs)
        finally:
            torch_nvtx_range_pop()

    return wrapped  # type: ignore[return-value]


def log_memory_usage(
    cur_phase: str,
    rank_0_only: bool = True,
    step_info: str = "",
    logger: logging.Logger | None = None,
    module: torch.nn.Module | None = None,
) -> str:
    """Write one line about the memory of the GPU, and of a module's tensors, to the log.

    Args:
        cur_phase: What is going on.
        rank_0_only: Whether other processes than the first stay silent.
        step_info: Printed before the phase.
        logger: Where the line goes; that of this module by default.
        module: Whose parameters, buffers and gradients are counted.

    Returns:
        The line, empty if nothing was written.
    """
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank_0_only and group and torch.distributed.get_rank() != 0:
        return ""
    sizes: dict[str, float] = {}
    if torch.cuda.is_available():
        sizes["allocated"] = torch.cuda.memory_allocated()
        sizes["max allocated"] = torch.cuda.max_memory_allocated()
        sizes["reserved"] = torch.cuda.memory_reserved()
    if module is not None:
        parameters = list(module.parameters())
        sizes["parameters"] = _bytes(parameters)
        sizes["buffers"] = _bytes(list(module.buffers()))
        sizes["gradients"] = _bytes([p.grad for p in parameters if p.grad is not None])
    shown = " | ".join(f"{name}: {size / _MIB:.1f} MiB" for name, size in sizes.items())
    line = " | ".join(part for part in (f"{step_info}{cur_phase}", shown) if part)
    (logger or logging.getLogger(__name__)).info(line)
    return line


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
