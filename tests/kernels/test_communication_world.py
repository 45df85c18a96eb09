"""Send and Recv between real processes: what arrives, and peers that are silent or gone."""

import os
import pathlib
import signal
import time
from typing import Any

import onnx.parser
import pytest
import torch

from distributed.silence import ended, silent_until
from kernels.test_communication import CPU, FLOAT, INT64, refused, tensors
from onnxtrain.distributed.groups import Groups
from onnxtrain.kernels.communication.point_to_point import recv, send
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.processes import attempt_world, run_world

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> main '


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


def silent_peer(groups: Groups, over: pathlib.Path) -> tuple[str, float]:
    if groups.rank == 1:
        silent_until(over)
        return "", 0.0
    begin = time.monotonic()
    with ended(over), pytest.raises(TimeoutError) as caught:
        refused("Recv", groups=groups)
    return str(caught.value), time.monotonic() - begin


@pytest.mark.multi
def test_a_silent_peer_is_a_time_out(tmp_path: pathlib.Path) -> None:
    (text, seconds), _ = run_world(2, silent_peer, tmp_path / "over", timeout=1.0)
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
