"""Launches of kernels that were compiled before, without what Triton does anew for each launch.

Triton binds and examines every argument to find the kernel that was compiled for arguments of such
a kind, which takes the host longer than a GPU takes for a few megabytes. Here the kind of all
arguments together is looked up once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from triton.runtime import driver

from onnxtrain.kernels.fast import interpreted

MOST_KINDS = 1024
"""So many kinds of arguments are remembered for a kernel; shapes may change with every batch."""


class Compiled:
    """A Triton function that remembers which kernel served which kind of arguments."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.known: dict[tuple[object, ...], Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """A launch of so many programs, to be called with all arguments in order.

        Then come ``num_warps``, and ``maxnreg`` where a thread is to have no more registers.
        """
        return functools.partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: int | None) -> None:
        if interpreted():
            self.function[grid](*arguments, **options)
            return
        device = driver.active.get_current_device()
        key = (device, *options.values(), *map(_kind, arguments))
        kernel = self.known.get(key)
        if kernel is not None:
            stream = driver.active.get_current_stream(device)
            kernel[(*grid, 1, 1)[:3]](*arguments, stream=stream)
            return
        if len(self.known) >= MOST_KINDS:
            self.known.clear()
        self.known[key] = self.function[grid](*arguments, **options)


def _kind(argument: Any) -> object:
    """What kernels are compiled for: types, whole addresses of 16 bytes, whole numbers, flags."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return None if type(argument) is float else argument
