"""Launches that are in place before those that they follow have ended.

A GPU of compute capability 9 has the programs of such a launch begin when the last ones before it
end, or as soon as all of these have announced it; they wait until everything before is written. One
such launch behind another takes a third of a microsecond less, and short ones take one or two.
"""

from __future__ import annotations

import functools

import torch
import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.target_info import cuda_capability_geq

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.approx import NATIVE

CAPABILITY = (9, 0)
"""Of the first GPUs that know such launches."""
OPTIONS = {"launch_pdl": True}
"""Of a launch; its kernel must wait before it does anything else."""


@functools.cache
def is_known_to(device: torch.device) -> bool:
    """Whether a device knows such launches."""
    return not interpreted() and torch.cuda.get_device_capability(device) >= CAPABILITY


@triton.jit
def wait():
    """Wait until the launch before this one has ended, and what it has written can be read."""
    if NATIVE and cuda_capability_geq(9, 0):
        gdc_wait()


@triton.jit
def announce():
    """Let the launch behind this one take its place, where it waits."""
    if NATIVE and cuda_capability_geq(9, 0):
        gdc_launch_dependents()
