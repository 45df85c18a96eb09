"""Named ranges in a profiler's time line (NVTX), for work that waits for another process."""

from __future__ import annotations

import contextlib
import contextvars

import torch

batch: contextvars.ContextVar[str] = contextvars.ContextVar("batch", default="")
"""What the ranges of this thread are marked with: the number of the step or micro-batch."""


def marked(what: str, peer: int, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """With: a range ``Batch-<batch> <what>-<peer>`` if the device is a GPU, else nothing."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.nvtx.range(f"Batch-{batch.get()} {what}-{peer}")
