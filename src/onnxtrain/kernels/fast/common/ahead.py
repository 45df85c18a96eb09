"""Kernels compiled by several threads at once, before they are launched."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import triton
from torch import Tensor

from onnxtrain.kernels.fast.common.launcher import build, missing
from onnxtrain.kernels.rehearsal import asking, rehearsing


class Place:
    """What Triton is told of a tensor that is not there: its type, and how it lies."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self._offset = tensor.storage_offset() * tensor.element_size()

    def data_ptr(self) -> int:
        """An address; memory begins at whole ones of 16 bytes."""
        return int(self._offset)


@contextlib.contextmanager
def compiling(threads: int) -> Iterator[None]:
    """With: this thread rehearses, and others compile what it asks for; all is there at the end.

    What cannot be compiled is left to the launch, which tells why.
    """
    with (
        concurrent.futures.ThreadPoolExecutor(threads) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
    ):

        def request(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            given = tuple(Place(a) if isinstance(a, Tensor) else a for a in arguments)
            source = missing(function, given, options)
            if source is not None:
                pool.submit(build, source)
            function.warmup(*given, grid=(1,), **options)

        with asking(request):
            yield


@contextlib.contextmanager
def noticing(compiled: Callable[[], None]) -> Iterator[None]:
    """With: a function is called when a kernel was compiled that was not in Triton's cache."""
    settings = triton.knobs.compilation
    before = settings.listener

    def listen(**found: Any) -> None:
        if before is not None:
            before(**found)
        if not found["cache_hit"] and not rehearsing():
            compiled()

    settings.listener = listen
    try:
        yield
    finally:
        settings.listener = before
