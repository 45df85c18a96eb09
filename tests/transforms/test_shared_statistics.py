"""BatchNormalizations of artifacts whose statistics were stored once."""

import onnx_ir as ir
import torch

from onnxtrain.api import Module
from onnxtrain.training.checkpoint import CheckpointState, Parameter
from onnxtrain.transforms.shared_statistics import read_at_their_source

TEXT = """
<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
step (float[n, 2] x, float[2] s, float[2] b, float[2] mean, float[2] var) => (float[n, 2] z)
{
    mm = Identity (mean)
    vv = Identity (var)
    y, m1, v1, sm1, si1 = com.microsoft.BatchNormInternal <training_mode = 1> (x, s, b, mean, var)
    r = Relu (y)
    z, m2, v2, sm2, si2 = com.microsoft.BatchNormInternal <training_mode = 1> (r, s, b, mm, vv)
}
"""


def test_they_are_read_where_they_are_stored() -> None:
    model = ir.from_onnx_text(TEXT)
    read_at_their_source(model)
    norms = [node for node in model.graph if node.op_type == "BatchNormInternal"]
    assert [[v.name for v in node.inputs[3:] if v is not None] for node in norms] == [
        ["mean", "var"]
    ] * 2


def test_every_layer_updates_them_in_its_turn() -> None:
    values = {"s": 1.0, "b": 0.5, "mean": 0.0, "var": 1.0}
    parameters = {name: Parameter(name, torch.full((2,), v), False) for name, v in values.items()}
    state = CheckpointState(parameters)
    module = Module(ir.to_proto(ir.from_onnx_text(TEXT)), state)
    x = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
    module(x)
    mean, variance = torch.zeros(2), torch.ones(2)
    for seen in (x, torch.tensor([[0.0, 0.0], [1.5, 1.5]])):
        mean = 0.9 * mean + 0.1 * seen.mean(0)
        variance = 0.9 * variance + 0.1 * seen.var(0, unbiased=False)
    torch.testing.assert_close(state.parameters["mean"].tensor, mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state.parameters["var"].tensor, variance, rtol=1e-4, atol=1e-6)
