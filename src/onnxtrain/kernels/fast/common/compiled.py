"""Launches of kernels that were compiled before, without what Triton does anew for each launch.

Triton binds and examines every argument to find the kernel that was compiled for arguments of such
a kind, asks the driver where each tensor lies, and calls hooks, which takes the host longer than a
GPU takes for a few megabytes. Here the kind of all arguments together is looked up once, and the
kernel gets plain addresses.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.runtime import driver

from onnxtrain.kernels.fast import interpreted
from onnxtrain.kernels.fast.common.launcher import compile_both
from onnxtrain.kernels.rehearsal import rehearsing, request

MOST_KINDS = 1024
"""So many kinds of arguments are remembered for a kernel; shapes may change with every batch."""
FUSED: dict[str, int | None] = {"enable_fp_fusion": True}
"""Products are added in one instruction, whatever versions of Triton do unless they are told."""
_ONES = (1, 1, 1)
_address_of = Tensor.data_ptr
_type_of = operator.attrgetter("dtype")
_device_of = Tensor.get_device


class Ready(NamedTuple):
    """What launches a kernel: grid, stream, these values, then all arguments of the kernel."""

    launch: Callable[..., None]
    values: tuple[Any, ...]
    stream_of: Callable[[int], int]


class Compiled:
    """A Triton function that remembers which kernel served which kind of arguments.

    Tensors are its first arguments; instead of the last ones there may be None, and a kernel then
    has fewer parameters: on an H200 those beyond 48 bytes cost a short launch a tenth of a
    microsecond. What is a float in one launch is one in all. Whole numbers for which no kernel is
    to be specialized must have an annotated type. Hooks of Triton are not called.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.known: dict[tuple[object, ...], Ready] = {}
        self._most = 0
        self._free: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """A launch of so many programs, to be called with all arguments in order.

        Then come ``num_warps``, and ``maxnreg`` where a thread is to have no more registers.
        """
        return functools.partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: int | None) -> None:
        if interpreted():
            self.function[grid](*arguments, **options)
            return
        if rehearsing():
            request(self._inner, arguments, options | self._fixed(arguments[0].device))
            return
        count = self._most or self._examine(arguments)
        while arguments[count - 1] is None:
            count -= 1
        tensors, others = arguments[:count], arguments[count:]
        addresses = [*map(_address_of, tensors)]
        kinds = self._kinds(others) if self._free else others
        odd = functools.reduce(operator.or_, addresses) % 16
        # what kernels are compiled for: types, whole addresses of 16 bytes, whole numbers, flags
        key = (
            kinds,
            *options.values(),
            *map(_device_of, tensors),
            *map(_type_of, tensors),
            *([address % 16 for address in addresses] if odd else ()),
        )
        ready = self.known.get(key)
        if ready is None:
            self._compile(key, grid, arguments, options)
            return
        launch, values, stream_of = ready
        stream = stream_of(_device_of(tensors[0]))
        launch(*grid, *_ONES[len(grid) :], stream, *values, *addresses, *others)

    def _fixed(self, device: torch.device) -> dict[str, int | None]:
        """Options of all launches on a device."""
        return FUSED

    @property
    def _inner(self) -> Any:
        """What Triton compiles; of programs in clusters it is a function inside."""
        return getattr(self.function, "function", self.function)

    def _examine(self, arguments: tuple[Any, ...]) -> int:
        """How many arguments may be tensors; note which of the others may have any value."""
        most = _leading_tensors(arguments)
        parameters = getattr(self.function, "params", ())
        free = {found.num for found in parameters if found.do_not_specialize}
        free |= {place for place, value in enumerate(arguments) if type(value) is float}
        free -= {found.num for found in parameters if found.is_constexpr}
        # counted from the end, as there may be more or fewer tensors
        self._free = [place - len(arguments) for place in sorted(free)]
        self._most = most
        return most

    def _kinds(self, others: tuple[Any, ...]) -> tuple[Any, ...]:
        """What kernels are compiled for among arguments that are no tensors."""
        kinds = [*others]
        for place in self._free:
            kinds[place] = None
        return tuple(kinds)

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
        options = options | self._fixed(arguments[0].device)
        compile_both(self._inner, arguments, options)
        self.known[key] = _ready(self.function[grid](*arguments, **options))


def _ready(kernel: Any) -> Ready:
    """Triton's launcher of a kernel, or what that calls if nothing else is left for it to do."""
    run, function, packed = kernel.run, kernel.function, kernel.packed_metadata
    stream_of, none = driver.active.get_current_stream, (None,) * 3
    if not _is_bare(run):
        return Ready(run, (function, packed, *none), stream_of)
    flags = (run.launch_cooperative_grid, run.launch_pdl)
    return Ready(run.launch, (function, *flags, None, None, packed, *none), stream_of)


def _is_bare(run: Any) -> bool:
    """Whether a launcher is one that takes its arguments in the known order, and no more memory."""
    known = type(run).__module__ == "triton.backends.nvidia.driver"
    if not known or not triton.__version__.startswith("3.6."):
        return False
    return not run.global_scratch_size and not run.profile_scratch_size


def _leading_tensors(arguments: tuple[Any, ...]) -> int:
    """How many arguments are tensors, or stand for some, which come first."""
    places = [place for place, value in enumerate(arguments) if isinstance(value, Tensor)]
    if not places or places[-1] != len(places) - 1:
        raise TypeError("tensors must be the first arguments of a kernel")
    missing = itertools.takewhile(lambda value: value is None, arguments[len(places) :])
    return len(places) + len([*missing])
