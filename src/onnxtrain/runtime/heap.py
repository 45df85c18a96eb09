"""Memory of the CPU that stays with the process when tensors of a step are freed.

A step frees its tensors, and the next one needs as many again. glibc returns the end of its heap to
the system whenever enough of it is free, and gets large tensors from there each time, so that every
page is cleared and mapped anew: a fifth of the time of a small convolutional network, more or less
by chance. onnxruntime has an arena for it; here glibc keeps what was freed.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What glibc's mallopt calls what it sets."""
KEPT, LARGEST = (1 << 31) - 1, 32 << 20
"""Most bytes at the end of the heap that are kept, and of a tensor that comes from there; glibc
takes no larger numbers."""
SETTINGS = "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"
"""Variables by which users have decided for themselves."""


def keep_freed(device: torch.device) -> bool:
    """Have glibc keep what is freed, once and for the process, if steps run on the CPU.

    Whether it does so: another allocator, or a user's own settings, are left alone.
    """
    return device.type == "cpu" and _keep()


@functools.cache
def _keep() -> bool:
    if platform.libc_ver()[0] != "glibc" or is_set():
        return False
    # each of them alone would end glibc's own adaptation of the other one
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST) and mallopt(_TRIM_THRESHOLD, KEPT))


def is_set() -> bool:
    """Whether the environment says how glibc is to treat memory."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc" in tunables or any(name in os.environ for name in SETTINGS)
