"""Batches made ready while the step before them runs, in the same order."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxtrain.errors import OptionError

if TYPE_CHECKING:
    import torch

Batch = Mapping[str, Any]
Ready = tuple[dict[str, Any], Any]
"""A batch, and the event after which a device has it (None if nothing was copied)."""
_PATIENCE = 0.1
"""Seconds after which a thread that waits for room looks whether it should stop."""


def prefetch(
    batches: Iterable[Batch],
    device: str | torch.device | None = None,
    *,
    ahead: int = 2,
    host: Collection[str] = (),
) -> Prefetched:
    """Read batches in a thread and copy them to a device before they are asked for.

    An error of the source is raised where its batch would have come. Leave the ``with`` block, or
    call ``close``, to stop early.

    Args:
        batches: Where batches come from; only the thread touches it.
        device: Where tensors go; None takes CUDA if it is there. On the CPU nothing is copied.
        ahead: How many batches may be ready at a time.
        host: Names of values that stay on the host.

    Raises:
        OptionError: if no batch may be ready.
    """
    if ahead < 1:
        raise OptionError(f"ahead is {ahead}, must be at least 1")
    return Prefetched(batches, device, ahead, frozenset(host))


class Prefetched:
    """An iterator over batches that a thread makes ready; see ``prefetch``."""

    def __init__(
        self,
        batches: Iterable[Batch],
        device: str | torch.device | None,
        ahead: int,
        host: frozenset[str],
    ) -> None:
        move = _mover(device, host)
        self._queue: queue.Queue[Ready | BaseException | None] = queue.Queue(ahead)
        self._stop = threading.Event()
        self._ended = False
        arguments = (batches, move, self._queue, self._stop)
        self._thread = threading.Thread(target=_work, args=arguments, daemon=True, name="prefetch")
        weakref.finalize(self, self._stop.set)
        self._thread.start()

    def __iter__(self) -> Prefetched:
        """Itself: batches that were handed out do not come again."""
        return self

    def __next__(self) -> dict[str, Any]:
        """The next batch; waits until it is ready."""
        if self._ended:
            raise StopIteration
        found = self._queue.get()
        if isinstance(found, tuple):
            return _handed_over(*found)
        self.close()
        if found is None:
            raise StopIteration
        raise found

    def close(self) -> None:
        """Stop reading; what is ready is thrown away. Waits for a batch that is being read."""
        self._ended = True
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def __enter__(self) -> Prefetched:
        """With: stops at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop reading."""
        self.close()


def _work(
    batches: Iterable[Batch],
    move: Callable[[Batch], Ready],
    ready: queue.Queue[Ready | BaseException | None],
    stop: threading.Event,
) -> None:
    """What the thread does; it knows nothing of the iterator, which may be forgotten."""
    last: BaseException | None = None
    try:
        source = iter(batches)
        try:
            while not stop.is_set() and (batch := next(source, None)) is not None:
                if not _put(ready, move(batch), stop):
                    return
        finally:
            _close(source)
    except BaseException as error:
        last = error
    _put(ready, last, stop)


def _close(source: Iterator[Batch]) -> None:
    """Let a generator clean up in the thread that ran it."""
    close = getattr(source, "close", None)
    if close is not None:
        close()


def _put(ready: queue.Queue[Any], item: Any, stop: threading.Event) -> bool:
    """Wait for room and hand an item over; False if nobody wants it any more."""
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(item, timeout=_PATIENCE)
            return True
    return False


def _mover(device: str | torch.device | None, host: frozenset[str]) -> Callable[[Batch], Ready]:
    """What makes a batch ready for a device."""
    import torch

    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type != "cuda":
        return lambda batch: (dict(batch), None)
    stream = torch.cuda.Stream(where)

    def move(batch: Batch) -> Ready:
        with torch.cuda.device(where), torch.cuda.stream(stream):
            moved = {
                name: value if name in host else _copied(value, where)
                for name, value in batch.items()
            }
            return moved, stream.record_event()

    return move


def _copied(value: Any, device: torch.device) -> Any:
    """A value on its way to a device, through memory that the device can read by itself."""
    import torch

    from onnxtrain.kernels.dtypes import tensor_of

    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
        value = tensor_of(value)
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    pinned = value if value.is_pinned() else value.pin_memory()
    return pinned.to(device, non_blocking=True)


def _handed_over(batch: dict[str, Any], arrived: Any) -> dict[str, Any]:
    """A batch that work on the current stream may use; the host does not wait for it."""
    if arrived is not None:
        import torch

        for value in batch.values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                stream = torch.cuda.current_stream(value.device)
                stream.wait_event(arrived)
                value.record_stream(stream)
    return batch
