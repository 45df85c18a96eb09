"""A message: several tensors in one buffer of bytes, each at an aligned offset, and their shapes.

A receiver that knows all shapes from its graph gets the bytes alone. Otherwise two messages on the
host come first: the rank of each tensor and the total of bytes, then all dimensions end to end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.distributed.groups import Groups

ALIGNMENT = 256
"""Bytes that the offset of each tensor is a multiple of."""

Shape = tuple[int, ...]
Known = tuple[int | None, ...] | None
"""A shape as a graph declares it: None for each unknown size, or for an unknown rank."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the tensors of a message lie.

    Attributes:
        dtypes: Their element types.
        shapes: Their shapes.
    """

    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[Shape, ...]

    def spans(self) -> list[tuple[int, int]]:
        """First byte and end of each tensor."""
        spans: list[tuple[int, int]] = []
        end = 0
        for dtype, shape in zip(self.dtypes, self.shapes, strict=True):
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            end = begin + math.prod(shape) * dtype.itemsize
            spans.append((begin, end))
        return spans

    @property
    def nbytes(self) -> int:
        """Bytes of the whole message; nothing follows the last tensor."""
        return self.spans()[-1][1]

    def pack(self, tensors: Sequence[Tensor], device: torch.device) -> Tensor:
        """The tensors in one new buffer on a device."""
        buffer = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        for tensor, (begin, end) in zip(tensors, self.spans(), strict=True):
            if end > begin:  # an empty array may have strides that no other type can view
                buffer[begin:end].copy_(tensor.contiguous().reshape(-1).view(torch.uint8))
        return buffer

    def unpack(self, buffer: Tensor, device: torch.device) -> list[Tensor]:
        """The tensors of a buffer on a device, each in storage of its own."""
        shared = len(self.shapes) > 1
        parts = [buffer[begin:end].to(device, copy=shared) for begin, end in self.spans()]
        return [
            part.view(dtype).reshape(shape)
            for part, dtype, shape in zip(parts, self.dtypes, self.shapes, strict=True)
        ]


def static(shapes: Sequence[Known]) -> tuple[Shape, ...] | None:
    """The shapes if every size is known, else None."""
    known = []
    for shape in shapes:
        if shape is None or None in shape:
            return None
        known.append(tuple(n for n in shape if n is not None))
    return tuple(known)


def send_shapes(layout: Layout, groups: Groups, peer: int, tag: int) -> None:
    """Tell a receiver the shapes."""
    ranks = [len(shape) for shape in layout.shapes]
    groups.send(torch.tensor([*ranks, layout.nbytes]), peer, tag)
    if sum(ranks):
        groups.send(torch.tensor([n for shape in layout.shapes for n in shape]), peer, tag)


def recv_shapes(dtypes: tuple[torch.dtype, ...], groups: Groups, peer: int, tag: int) -> Layout:
    """Hear the shapes from a sender.

    Raises:
        ValueError: if they do not give the number of bytes that the sender says.
    """
    head = torch.empty(len(dtypes) + 1, dtype=torch.int64)
    groups.recv(head, peer, tag)
    *ranks, nbytes = head.tolist()
    dims = torch.empty(sum(ranks), dtype=torch.int64)
    if sum(ranks):
        groups.recv(dims, peer, tag)
    layout = Layout(dtypes, tuple(tuple(part.tolist()) for part in dims.split(ranks)))
    if layout.nbytes != nbytes:
        raise ValueError(
            f"rank {peer} sends {nbytes} bytes, but tensors of shapes "
            f"{[list(shape) for shape in layout.shapes]} and types {list(dtypes)} take "
            f"{layout.nbytes}; both sides need the same element_types"
        )
    return layout
