"""Large tensors on a CPU, piece by piece: what is made of a piece on the way stays in the cache.

A temporary tensor of many megabytes is memory that the system clears page by page, every time
anew, which takes longer than the arithmetic does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from onnxtrain.kernels.layout import IMAGES, in_one_order, layout_of
from onnxtrain.kernels.precision import store

SIZE = 1 << 18
"""Elements of a block and thread: few enough for the cache, many enough to hide calls."""
THREADS = 4
"""How many threads make a block larger, at most; they share all of their last cache."""


def size() -> int:
    """Elements of a block. Threads wait for each other in every operation, so there are fewer."""
    return SIZE * min(torch.get_num_threads(), THREADS)


def recorded(*tensors: Tensor) -> bool:
    """Whether autograd watches what is done with any of these."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def ready(*tensors: Tensor, smallest: int | None = None) -> bool:
    """Whether blocks serve these: on a CPU, contiguous, not recorded by autograd.

    There is more than one block, or some smaller number of elements is enough.
    """
    first = tensors[0]
    if first.device.type != "cpu" or first.numel() < (smallest or size() + 1):
        return False
    return all(t.is_contiguous() for t in tensors) and not recorded(*tensors)


def alike(*tensors: Tensor) -> bool:
    """Whether blocks serve tensors of one shape, however small; empty ones have none."""
    shape = tensors[0].shape
    return all(t.shape == shape for t in tensors) and ready(*tensors, smallest=1)


def flat(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same elements of all tensors, block after block."""
    each = size()
    return zip(*(t.view(-1).split(each) for t in tensors), strict=True)


def rows(count: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same of ``count`` rows of all tensors, however long they are in each.

    Blocks have so many that those of the first tensor have the usual size.
    """
    each = max(1, size() * count // tensors[0].numel())
    return zip(*(t.view(count, -1).split(each) for t in tensors), strict=True)


def apply(function: Callable[..., Tensor], *tensors: Tensor, out: Tensor | None) -> Tensor:
    """An elementwise function, rounded once to the type of the first tensor, into ``out``."""
    first = tensors[0]
    alike = all(t.shape == first.shape for t in tensors)
    if not alike or first.is_cuda or recorded(*tensors):
        return store(function(*tensors), first, out)
    # torch takes ten times as long for images of which some have their channels last
    layout = layout_of(first)
    given = (
        [t.contiguous(memory_format=layout) for t in tensors] if first.ndim == IMAGES else tensors
    )
    room = torch.empty_like(given[0]) if out is None else out
    ordered = in_one_order(room, *given)
    if ordered is None or not ready(*ordered):
        return store(function(*given), first, out)
    for target, *parts in flat(*ordered):
        target.copy_(function(*parts))
    return room
