"""Launches that are in place before those that they follow have ended.

A GPU of compute capability 9 has the programs of such a launch begin when the last ones before it
end, or as soon as all of these have announced it; they wait there until everything before them is
written. Behind a copy or zeros it is a launch like any other.
"""

from __future__ import annotations

import functools

import torch
import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.target_info import cuda_capability_geq

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.common.approx import NATIVE
from onnxtrain.kernels.fast.common.compiled import Compiled

CAPABILITY = (9, 0)
"""Of the first GPUs that know such launches."""


@functools.cache
def right_behind(device: torch.device) -> dict[str, int | None]:
    """Options of an early launch on a device that knows such."""
    known = not interpreted() and torch.cuda.get_device_capability(device) >= CAPABILITY
    return {"launch_pdl": True} if known else {}


class Early(Compiled):
    """A Triton function whose launches are early ones: it waits before it does anything else."""

    def _fixed(self, device: torch.device) -> dict[str, int | None]:
        return super()._fixed(device) | right_behind(device)


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
