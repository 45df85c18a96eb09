"""Launches of kernels that were compiled before, without what Triton does anew for each launch.

Triton binds and examines every argument to find the kernel that was compiled for arguments of such
a kind, asks the driver where each tensor lies, and calls hooks, which takes the host longer than a
GPU takes for a few megabytes. Here the kind of all arguments together is looked up once, and the
kernel gets plain addresses.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor
from triton.runtime import driver

from onnxtrain.kernels.fast import interpreted

MOST_KINDS = 1024
"""So many kinds of arguments are remembered for a kernel; shapes may change with every batch."""
_type_of = operator.attrgetter("dtype")
_device_of = Tensor.get_device


class Compiled:
    """A Triton function that remembers which kernel served which kind of arguments.

    Tensors are its first arguments, as many in every launch. Whole numbers for which no kernel is
    to be specialized must have an annotated type. Hooks of Triton are not called.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.known: dict[tuple[object, ...], tuple[Any, int, Any]] = {}
        self._tensors: int | None = None
        parameters = enumerate(getattr(function, "params", ()))
        self._free = [place for place, found in parameters if found.do_not_specialize]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """A launch of so many programs, to be called with all arguments in order.

        Then come ``num_warps``, and ``maxnreg`` where a thread is to have no more registers.
        """
        return functools.partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: int | None) -> None:
        if interpreted():
            self.function[grid](*arguments, **options)
            return
        count = self._tensors
        if count is None:
            count = self._tensors = _leading_tensors(arguments)
        tensors, others = arguments[:count], arguments[count:]
        addresses = [*map(Tensor.data_ptr, tensors)]
        kinds = [None if type(value) is float else value for value in others]
        for place in self._free:
            kinds[place - count] = None
        # what kernels are compiled for: types, whole addresses of 16 bytes, whole numbers, flags
        key = (
            *options.values(),
            *map(_device_of, tensors),
            *map(_type_of, tensors),
            *[address % 16 for address in addresses],
            *kinds,
        )
        kernel = self.known.get(key)
        if kernel is None:
            self._compile(key, grid, arguments, options)
            return
        run, function, metadata = kernel
        x, y, z = (*grid, 1, 1)[:3]
        stream = driver.active.get_current_stream(_device_of(tensors[0]))
        run(x, y, z, stream, function, metadata, None, None, None, *addresses, *others)

    def _compile(
        self,
        key: tuple[object, ...],
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        options: dict[str, int | None],
    ) -> None:
        """Launch by Triton itself, and remember the kernel that it has found or compiled."""
        if len(self.known) >= MOST_KINDS:
            self.known.clear()
        kernel = self.function[grid](*arguments, **options)
        self.known[key] = (kernel.run, kernel.function, kernel.packed_metadata)


def _leading_tensors(arguments: tuple[Any, ...]) -> int:
    """How many arguments are tensors, which come first."""
    count = sum(isinstance(argument, Tensor) for argument in arguments)
    if not all(isinstance(argument, Tensor) for argument in arguments[:count]):
        raise TypeError("tensors must be the first arguments of a kernel")
    return count
