"""Gradients of a model that is cut into stages, each in a process of its own."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from graph.text import proto
from onnxtrain.distributed.groups import Groups
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.processes import run_world

FIRST = """(bool go, float[{n},2] x, float[2] w) => (bool sent) <int64 to = {{1}}> {{
  m = Mul(x, w)  h = Sin(m)  count = Shape(h)
  sent = com.microsoft.Send<tag = 3, element_types = [1, 7, 1]>(go, to, h, count, m)
}}"""
MIDDLE = """(bool go, float[2] w) => (bool sent) <int64 from = {{0}}, int64 to = {{2}}> {{
  got, h, count, m = com.microsoft.Recv<tag = 3, element_types = [1, 7, 1]>(go, from)
  p = Mul(h, w)  q = Add(p, m)
  sent = com.microsoft.Send<tag = 4, element_types = [1]>(got, to, q)
}}"""
LAST = """(bool go, float[2] w) => (float l) <int64 from = {{1}}> {{
  got, q = com.microsoft.Recv<tag = 4, element_types = [1]>(go, from)
  z = Mul(q, w)  s = Mul(z, z)  l = ReduceSum<keepdims=0>(s)
}}"""
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 2)).astype(np.float32)
W = [RNG.normal(size=2).astype(np.float32) for _ in range(3)]


def stage(rank: int, rows: str) -> onnx.ModelProto:
    """A stage with its gradients; what is received has the declared shape."""
    of = proto((FIRST, MIDDLE, LAST)[rank].format(n=rows), com_microsoft=1)
    size = 3 if rows == "3" else "N"
    info = onnx.helper.make_tensor_value_info
    for name in {1: ["h", "m"], 2: ["q"]}.get(rank, []):
        of.graph.value_info.append(info(name, onnx.TensorProto.FLOAT, [size, 2]))
    if rank == 1:
        of.graph.value_info.append(info("count", onnx.TensorProto.INT64, [2]))
    xs = ["x", "w"] if rank == 0 else ["go", "w"]
    return build_gradient_graph(of, xs, loss="l" if rank == 2 else "sent")


def train(groups: Groups, stages: list[list[bytes]]) -> list[dict[str, Any]]:
    """The outputs of one stage, for each form of the model."""
    results = []
    for stage_of in stages:
        session = InferenceSession(stage_of[groups.rank], SessionOptions(groups=groups))
        feeds = {"go": torch.tensor(True), "w": torch.tensor(W[groups.rank])}
        feeds |= {"x": torch.tensor(X)} if groups.rank == 0 else {}
        names = [value.name for value in session.get_outputs()]
        values = [value.tolist() for value in session.run_torch(None, feeds)]
        results.append(dict(zip(names, values, strict=True)))
    return results


@pytest.mark.multi
def test_three_stages_have_the_gradients_of_the_whole() -> None:
    stages = [[stage(rank, rows).SerializeToString() for rank in range(3)] for rows in "3N"]
    found = run_world(3, train, stages, timeout=45.0, deadline=120.0)
    x, *ws = (torch.tensor(value, requires_grad=True) for value in (X, *W))
    m = x * ws[0]
    loss = (((torch.sin(m) * ws[1] + m) * ws[2]) ** 2).sum()
    grads = torch.autograd.grad(loss, [x, *ws])
    for first, middle, last in zip(*found, strict=True):
        torch.testing.assert_close(torch.tensor(last["l"]), loss.detach())
        torch.testing.assert_close(torch.tensor(first["x_grad"]), grads[0])
        for of, grad in zip((first, middle, last), grads[1:], strict=True):
            torch.testing.assert_close(torch.tensor(of["w_grad"]), grad)
        signals = [first["sent"], middle["sent"], middle["go_grad"], last["go_grad"]]
        assert signals == [True] * 4


def test_the_gradient_of_a_signal_that_two_transfers_wait_for_waits_for_both() -> None:
    text = """(bool go, float[2] x, float[2] y) => (bool a, bool b) <int64 to = {1}> {
      a = com.microsoft.Send<tag = 0, element_types = [1]>(go, to, x)
      b = com.microsoft.Send<tag = 1, element_types = [1]>(go, to, y)
    }"""
    of = build_gradient_graph(proto(text, com_microsoft=1), ["go", "x", "y"], ["a", "b"])
    (last,) = (node for node in of.graph.node if "go_grad" in node.output)
    assert last.op_type == "And"
    assert [node.op_type for node in of.graph.node].count("Recv") == 2


def test_whole_numbers_are_not_sent_back() -> None:
    text = """(bool go, int64[2] i) => (bool sent) <int64 to = {1}> {
      sent = com.microsoft.Send<tag = 0, element_types = [7]>(go, to, i)
    }"""
    of = build_gradient_graph(proto(text, com_microsoft=1), "go", "sent")
    assert [node.op_type for node in of.graph.node] == ["Send", "Identity"]
