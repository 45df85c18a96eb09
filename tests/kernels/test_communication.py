"""Messages: their layout, when shapes are sent too, what is refused, ranges for profilers."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from onnxtrain.distributed import ranges
from onnxtrain.distributed.groups import ALONE, Alone, Groups
from onnxtrain.distributed.layout import Mesh
from onnxtrain.kernels.communication.message import Layout, static
from onnxtrain.kernels.communication.point_to_point import recv, send
from onnxtrain.kernels.dtypes import from_torch
from onnxtrain.types import FIXED, DataType

CPU = torch.device("cpu")
FLOAT, INT64 = int(DataType.FLOAT), int(DataType.INT64)


def tensors() -> list[torch.Tensor]:
    return [
        torch.arange(12, dtype=torch.float32).reshape(3, 4),
        torch.arange(5) - 2,
        torch.tensor(1.5, dtype=torch.float16),
    ]


def types_of(values: list[torch.Tensor]) -> tuple[int, ...]:
    return tuple(int(from_torch(value.dtype)) for value in values)


def layout_of(values: list[torch.Tensor]) -> Layout:
    return Layout(tuple(v.dtype for v in values), tuple(tuple(v.shape) for v in values))


def test_tensors_lie_at_aligned_offsets() -> None:
    layout = layout_of(tensors())
    assert layout.spans() == [(0, 48), (256, 296), (512, 514)] and layout.nbytes == 514


def test_a_message_of_every_type_comes_back() -> None:
    skipped = {DataType.UINT16, DataType.UINT32, DataType.UINT64}
    values = [torch.ones(3, 2), torch.empty(0, 4), torch.tensor(True), torch.zeros(1, 0)]
    values += [torch.from_numpy(np.zeros(0, np.float32)), torch.zeros(3).expand(0, 3)]
    values += [torch.ones(2, 3, dtype=torch.complex64).t(), torch.arange(6).reshape(2, 3).t()]
    values += [
        torch.arange(7).to(getattr(torch, kind.name.lower().replace("double", "float64")))
        for kind in sorted(FIXED - skipped - {DataType.FLOAT})
    ]
    layout = layout_of(values)
    back = layout.unpack(layout.pack(values, CPU), CPU)
    assert all(map(torch.equal, values, back))
    assert len({tensor.untyped_storage().data_ptr() for tensor in back if tensor.numel()}) == sum(
        tensor.numel() > 0 for tensor in back
    )


@pytest.mark.parametrize(
    ("shapes", "known"),
    [
        ([(2, 3), ()], ((2, 3), ())),
        ([(2, None)], None),
        ([None, (1,)], None),
        ([], ()),
    ],
)
def test_shapes_are_known_or_not(shapes: Any, known: Any) -> None:
    assert static(shapes) == known


@dataclasses.dataclass
class Pair(Groups):
    """One end of a pair in one process: what is sent is kept, what is received was put there."""

    rank: int = 0

    def __post_init__(self) -> None:
        Groups.__init__(self, Mesh(2, 2), self.rank)
        self.log: list[tuple[str, int, int, torch.Tensor]] = []

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> None:
        self.log.append(("send", peer, tag, tensor.clone()))

    def recv(self, tensor: torch.Tensor, peer: int, tag: int) -> None:
        raise AssertionError

    def _sum(self, tensor: torch.Tensor, ranks: tuple[int, ...]) -> None:
        raise AssertionError

    def _gather(self, flat: torch.Tensor, ranks: tuple[int, ...]) -> None:
        raise AssertionError

    def exchange(self, mine: torch.Tensor, theirs: torch.Tensor, peer: int) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


def test_static_shapes_are_not_sent() -> None:
    groups, data = Pair(), tensors()
    shapes = ((), (), *(tuple(v.shape) for v in data))
    done = send(
        True, 1, *data, tag=3, element_types=types_of(data), groups=groups, in_shapes=shapes
    )
    assert done.item() is True and done.ndim == 0
    [(_, peer, tag, payload)] = groups.log
    assert (peer, tag, payload.numel(), payload.dtype) == (1, 7, 514, torch.uint8)


def test_shapes_are_sent_if_one_is_unknown() -> None:
    groups, data = Pair(), tensors()
    shapes = ((), (), (None, 4), (5,), ())
    send(True, 1, *data, tag=3, element_types=types_of(data), groups=groups, in_shapes=shapes)
    assert [(peer, tag) for _, peer, tag, _ in groups.log] == [(1, 6), (1, 6), (1, 7)]
    assert [sent.tolist() for *_, sent in groups.log[:2]] == [[2, 1, 0, 514], [3, 4, 5]]


def refused(op: str, *, groups: Groups = ALONE, signal: Any = True, remote: Any = 1, **more: Any):
    options = {"tag": 0, "element_types": (FLOAT,), "groups": groups, **more}
    if op == "Send":
        return send(signal, remote, torch.ones(2), in_shapes=((), (), (2,)), **options)
    return recv(signal, remote, out_types=((9, ()), (1, (2,))), device=CPU, **options)


@pytest.mark.parametrize("op", ["Send", "Recv"])
def test_refusals(op: str) -> None:
    with pytest.raises(ValueError, match=f"input control signal of {op} must be true"):
        refused(op, signal=False)
    verb = "send data to" if op == "Send" else "receive data from"
    with pytest.raises(ValueError, match=f"cannot {verb} rank 0 on rank 0"):
        refused(op, remote=[0])
    with pytest.raises(ValueError, match=f"{op} with rank 2, but the world has 2 ranks"):
        refused(op, groups=Pair(), remote=2)
    with pytest.raises(ValueError, match=f"{op} with rank 1, but the world has 1 ranks"):
        refused(op)
    with pytest.raises(ValueError, match=f"tag -1 of {op} is negative"):
        refused(op, groups=Pair(), tag=-1)
    with pytest.raises(ValueError, match=f"tag {2**30} of {op} is too large, .* {2**30 - 1}$"):
        refused(op, groups=Pair(), tag=2**30)
    with pytest.raises(ValueError, match=rf"{op} cannot transfer element_types \[8\].*STRING"):
        refused(op, groups=Pair(), element_types=(8,))
    with pytest.raises(ValueError, match=rf"{op} cannot transfer element_types \[99\]"):
        refused(op, groups=Pair(), element_types=(99,))
    with pytest.raises(ValueError, match=f"{op} has 1 data .*, but 2 element_types"):
        refused(op, groups=Pair(), element_types=(FLOAT, FLOAT))


def test_data_of_another_type_or_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data 0 of Send is torch.float32, element_types says"):
        refused("Send", groups=Pair(), element_types=(INT64,))
    with pytest.raises(ValueError, match=r"data of shapes \(\(2,\),\), but the graph says"):
        send(
            True,
            1,
            torch.ones(2),
            tag=0,
            element_types=(FLOAT,),
            groups=Pair(),
            in_shapes=((), (), (3,)),
        )


def test_a_process_alone_has_no_peer() -> None:
    for transfer in (Alone().send, Alone().recv):
        with pytest.raises(ValueError, match="no rank 1 in a world of one"):
            transfer(torch.ones(1), 1, 0)


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the ranges that are opened, as if there were a GPU."""
    names: list[str] = []

    @contextlib.contextmanager
    def opened(name: str) -> Iterator[None]:
        names.append(name)
        yield
        names.append("end")

    monkeypatch.setattr(torch.cuda.nvtx, "range", opened)
    yield names


def test_ranges_name_the_batch_the_part_and_the_peer(pushed: list[str]) -> None:
    with ranges.marked("Send", 3, CPU):
        assert pushed == []
    token = ranges.batch.set("12")
    try:
        with ranges.marked("Send", 3, torch.device("cuda")):
            assert pushed == ["Batch-12 Send-3"]
    finally:
        ranges.batch.reset(token)
    assert pushed[-1] == "end" and ranges.batch.get() == ""


def test_each_part_of_a_transfer_has_a_range(
    pushed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gpu(Pair):
        def recv(self, tensor: torch.Tensor, peer: int, tag: int) -> None:
            tensor.zero_()

    monkeypatch.setattr(Layout, "pack", lambda self, data, device: torch.zeros(8))
    made = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, device=None, **k: made(*a, **k))
    groups = Gpu()
    groups.device = torch.device("cuda")
    refused("Send", groups=groups)
    refused("Recv", groups=groups)
    assert [name for name in pushed if name != "end"] == [
        "Batch- PreSend-1",
        "Batch- SendMemcpy-1",
        "Batch- Send-1",
        "Batch- PreRecv-1",
        "Batch- Recv-1",
        "Batch- RecvMemcpy-1",
    ]
