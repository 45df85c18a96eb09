"""Send and Recv: what arrives, when shapes travel too, and what is refused."""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import onnx.parser
import pytest
import torch

from onnxtrain.distributed import ranges
from onnxtrain.distributed.groups import ALONE, Alone, Groups
from onnxtrain.distributed.layout import Mesh
from onnxtrain.kernels.communication.message import Layout, static
from onnxtrain.kernels.communication.point_to_point import recv, send
from onnxtrain.kernels.dtypes import from_torch
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.processes import attempt_world, run_world
from onnxtrain.types import FIXED, DataType

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> main '
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


SEND = """(bool go, int64 to, float[{rows}, 4] x, int64[5] y, float16 z) => (bool done) {{
  done = com.microsoft.Send<tag = 0, element_types = [1, 7, 10]>(go, to, x, y, z)
}}"""
RECV = """(bool go, int64 from) => (bool done, float[{rows}, 4] x, int64[5] y, float16 z) {{
  done, x, y, z = com.microsoft.Recv<tag = 0, element_types = [1, 7, 10]>(go, from)
}}"""


def hand_over(groups: Groups, rows: str, steps: int = 3) -> list[Any]:
    options = SessionOptions(groups=groups)
    text = (SEND if groups.rank == 0 else RECV).format(rows=rows)
    session = InferenceSession(onnx.parser.parse_model(HEAD + text), options)
    go, results = torch.tensor(True), []
    for step in range(steps):
        if groups.rank == 0:
            x, y, z = tensors()
            if rows == "n":
                x = x[:step]
            feeds = {"go": go, "to": torch.tensor(1), "x": x + step, "y": y, "z": z}
        else:
            feeds = {"go": go, "from": torch.tensor(0)}
        results.append([value.tolist() for value in session.run_torch(None, feeds)])
    return results


@pytest.mark.multi
@pytest.mark.parametrize("rows", ["3", "n"])
def test_a_graph_hands_tensors_to_another(rows: str) -> None:
    sent, received = run_world(2, hand_over, rows)
    assert sent == [[True]] * 3
    for step, (done, x, y, z) in enumerate(received):
        true = tensors()[0] if rows == "3" else tensors()[0][:step]
        assert (done, x) == (True, (true + step).tolist())
        assert (y, z) == (tensors()[1].tolist(), 1.5)


def ring(groups: Groups) -> list[int]:
    """Even ranks send first; each hears from its left."""
    size, rank = groups.world_size, groups.rank
    own, seen = torch.tensor([rank]), []

    def give(value: torch.Tensor) -> None:
        options = {"tag": 5, "element_types": (INT64,), "groups": groups}
        send(True, [(rank + 1) % size], value, in_shapes=((), (), (1,)), **options)

    def take() -> torch.Tensor:
        return recv(
            [True],
            (rank - 1) % size,
            tag=5,
            element_types=(INT64,),
            groups=groups,
            out_types=((9, ()), (INT64, (1,))),
            device=CPU,
        )[1]

    for _ in range(size):
        if rank % 2 == 0:
            give(own)
            own = take()
        else:
            heard = take()
            give(own)
            own = heard
        seen.append(int(own))
    return seen


@pytest.mark.multi
def test_a_ring_of_four() -> None:
    assert run_world(4, ring) == [[3, 2, 1, 0], [0, 3, 2, 1], [1, 0, 3, 2], [2, 1, 0, 3]]


EMPTY = """(bool go, int64 peer, float[0, 4] x) => (bool done) {
  done = com.microsoft.Send<tag = 0, element_types = [1]>(go, peer, x)
}"""


def nothing_to_send(groups: Groups) -> list[int]:
    if groups.rank == 0:
        session = InferenceSession(
            onnx.parser.parse_model(HEAD + EMPTY), SessionOptions(groups=groups)
        )
        feeds = {"go": torch.tensor(True), "peer": torch.tensor(1), "x": torch.empty(0, 4)}
        return [int(session.run_torch(None, feeds)[0])]
    known = ((9, ()), (FLOAT, (0, 4)))
    options = {"tag": 0, "element_types": (FLOAT,), "groups": groups, "device": CPU}
    return list(recv(True, 0, out_types=known, **options)[1].shape)


@pytest.mark.multi
def test_no_bytes_are_no_message() -> None:
    assert run_world(2, nothing_to_send) == [[1], [0, 4]]


def unread(groups: Groups) -> list[Any]:
    """A Send whose signal nobody reads still sends."""
    if groups.rank == 0:
        text = """(bool go, int64 to, float[2] x) => (float[2] y) {
          done = com.microsoft.Send<tag = 1, element_types = [1]>(go, to, x)
          y = Neg(x)
        }"""
        session = InferenceSession(
            onnx.parser.parse_model(HEAD + text), SessionOptions(groups=groups)
        )
        feeds = {"go": torch.tensor(True), "to": torch.tensor(1), "x": torch.ones(2)}
        return session.run_torch(None, feeds)[0].tolist()
    options = {"tag": 1, "element_types": (FLOAT,), "groups": groups, "device": CPU}
    return recv(True, 0, out_types=((9, ()), (1, (2,))), **options)[1].tolist()


@pytest.mark.multi
def test_a_send_is_never_dropped() -> None:
    assert run_world(2, unread) == [[-1, -1], [1, 1]]


def disagreeing(groups: Groups) -> str:
    try:
        hand_over(groups, "3" if groups.rank else "n", steps=2)
    except RuntimeError as error:
        return f"{type(error.__cause__).__name__}: {error}"
    return "no error"


@pytest.mark.multi
def test_graphs_that_disagree_about_shapes_end_in_a_time_out() -> None:
    results = run_world(2, disagreeing, timeout=2.0)
    assert any("TimeoutError: node" in text and "within 2 seconds" in text for text in results)
    assert "no error" not in results


def silent_peer(groups: Groups) -> tuple[str, float]:
    if groups.rank == 1:
        time.sleep(4)
        return "", 0.0
    begin = time.monotonic()
    try:
        refused("Recv", groups=groups)
    except TimeoutError as error:
        return str(error), time.monotonic() - begin
    raise AssertionError


@pytest.mark.multi
def test_a_silent_peer_is_a_time_out() -> None:
    (text, seconds), _ = run_world(2, silent_peer, timeout=1.0)
    assert text.startswith("could not receive from rank 1 (tag 1) within 1 seconds")
    assert 0.9 < seconds < 4.0


def killed_peer(groups: Groups, op: str) -> tuple[str, float]:
    if groups.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        refused(op, groups=groups)
    except (ConnectionError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    raise AssertionError


@pytest.mark.multi
@pytest.mark.parametrize("op", ["Send", "Recv"])
def test_a_killed_peer_is_an_error(op: str) -> None:
    survivor, victim = attempt_world(2, killed_peer, op, timeout=5.0)
    assert victim == (False, "died")
    assert survivor[0], survivor[1]
    text, seconds = survivor[1]
    verb = "send to" if op == "Send" else "receive from"
    assert f"Error: could not {verb} rank 1" in text and seconds < 8.0


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
