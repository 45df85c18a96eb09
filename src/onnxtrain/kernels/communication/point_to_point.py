"""Send and Recv: tensors from one process to another, between two control signals.

Both block. Whether shapes are sent is decided on each side by its own graph, as in the reference:
they are if some shape is not known before the run. Graphs that disagree end in a time-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.distributed.groups import Groups, present
from onnxtrain.distributed.ranges import marked
from onnxtrain.kernels.communication.message import (
    Known,
    Layout,
    recv_shapes,
    send_shapes,
    static,
)
from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import MS, DataType

LARGEST_TAG = 2**30 - 1
"""Of each tag two are made, which have 31 bits."""


@kernel(
    "Send",
    domain=MS,
    host=["input_signal", "remote"],
    host_out=[0],
    needs=["groups", "in_shapes"],
    special="effect",
)
def send(
    input_signal: Any,
    remote: Any,
    *data: Tensor,
    tag: int,
    element_types: Sequence[int],
    groups: Groups | None,
    in_shapes: Sequence[Known],
) -> Tensor:
    """Give the data to the Recv of the remote rank, then raise the signal."""
    run = present(groups)
    with marked("PreSend", int(single(remote)), run.device):
        peer = _peer("Send", run, input_signal, remote)
        layout = Layout(_dtypes("Send", tag, element_types), tuple(tuple(x.shape) for x in data))
        _check_types(data, layout.dtypes)
        known = static(in_shapes[2:])
        if known is None:
            send_shapes(layout, run, peer, _shape_tag(tag))
        elif known != layout.shapes:
            raise ValueError(f"Send has data of shapes {layout.shapes}, but the graph says {known}")
    with marked("SendMemcpy", peer, run.device):
        buffer = layout.pack(data, run.device)
    with marked("Send", peer, run.device):
        if layout.nbytes:
            run.send(buffer, peer, _payload_tag(tag))
    return torch.tensor(True)


@kernel(
    "Recv",
    domain=MS,
    host=["input_signal", "remote"],
    host_out=[0],
    needs=["groups", "out_types", "device"],
    outputs=0,
    special="effect",
)
def recv(
    input_signal: Any,
    remote: Any,
    *,
    tag: int,
    element_types: Sequence[int],
    groups: Groups | None,
    out_types: Sequence[tuple[int, Known]],
    device: torch.device,
) -> Sequence[Tensor]:
    """Take the data of the Send of the remote rank; the signal is raised."""
    run = present(groups)
    with marked("PreRecv", int(single(remote)), run.device):
        peer = _peer("Recv", run, input_signal, remote)
        dtypes = _dtypes("Recv", tag, element_types)
        if len(dtypes) != len(out_types) - 1:
            raise ValueError(
                f"Recv has {len(out_types) - 1} data outputs, but {len(dtypes)} element_types"
            )
        shapes = static([shape for _, shape in out_types[1:]])
        layout = (
            recv_shapes(dtypes, run, peer, _shape_tag(tag))
            if shapes is None
            else Layout(dtypes, shapes)
        )
    with marked("Recv", peer, run.device):
        buffer = torch.empty(layout.nbytes, dtype=torch.uint8, device=run.device)
        if layout.nbytes:
            run.recv(buffer, peer, _payload_tag(tag))
    with marked("RecvMemcpy", peer, run.device):
        return [torch.tensor(True), *layout.unpack(buffer, device)]


def _peer(op: str, groups: Groups, signal: Any, remote: Any) -> int:
    """The other rank, if this one may talk to it now."""
    if not single(signal):
        raise ValueError(f"input control signal of {op} must be true before executing the node")
    peer = int(single(remote))
    if peer == groups.rank:
        verb = "send data to" if op == "Send" else "receive data from"
        raise ValueError(f"cannot {verb} rank {peer} on rank {peer}: {op} would wait for itself")
    if not 0 <= peer < groups.world_size:
        raise ValueError(f"{op} with rank {peer}, but the world has {groups.world_size} ranks")
    return peer


def _dtypes(op: str, tag: int, element_types: Sequence[int]) -> tuple[torch.dtype, ...]:
    """The element types of a message."""
    if not 0 <= tag <= LARGEST_TAG:
        wrong = "negative" if tag < 0 else f"too large, the largest one is {LARGEST_TAG}"
        raise ValueError(f"tag {tag} of {op} is {wrong}")
    try:
        return tuple(to_torch(DataType(code)) for code in element_types)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{op} cannot transfer element_types {list(element_types)}: {error}"
        ) from None


def _check_types(data: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> None:
    if len(data) != len(dtypes):
        raise ValueError(f"Send has {len(data)} data inputs, but {len(dtypes)} element_types")
    for index, (tensor, dtype) in enumerate(zip(data, dtypes, strict=True)):
        if tensor.dtype != dtype:
            raise ValueError(f"data {index} of Send is {tensor.dtype}, element_types says {dtype}")


def _shape_tag(tag: int) -> int:
    """Shapes and bytes have tags of their own, so that one is never taken for the other."""
    return 2 * tag


def _payload_tag(tag: int) -> int:
    return 2 * tag + 1
