"""Weights of layers that are copies of one belong to their layers again."""

import contextlib
import io

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from graph.text import model
from onnxtrain import Trainer
from onnxtrain.graph.torch_export.folded import sources
from onnxtrain.graph.torch_export.merged import separate

SIGNATURE = """
# inputs
p_a_weight: PARAMETER target='a.weight'
p_b_weight: PARAMETER target='b.weight'
p_b_bias: PARAMETER target='b.bias'
x: USER_INPUT
"""
LAYERS = """(float[N, 2] x) => (float[N, 2] y) <float[2, 2] "a.weight" = {1, 2, 3, 4}> {
    w = Transpose("a.weight")
    h = MatMul(x, w)
    y = MatMul(h, w)
}"""


def traced(first: str, second: str, text: str = LAYERS) -> ir.Model:
    """Two layers that tell the parameters that they were traced with."""
    found = model(text)
    found.graph.metadata_props["pkg.torch.export.ExportedProgram.graph_signature"] = SIGNATURE
    layers = [node for node in found.graph if node.op_type == "MatMul"]
    for node, names in zip(layers, (first, second), strict=True):
        call = f"%linear = call_function[target=aten.linear](args = (%x, {names}), kwargs = {{}})"
        node.metadata_props["pkg.torch.onnx.fx_node"] = call
    return found


def test_a_layer_reads_the_parameter_that_it_was_traced_with():
    merged = traced("%p_a_weight", "%p_b_weight, %p_b_bias")
    assert separate(merged)
    made = {v.name: node for node in merged.graph for v in node.outputs}
    read = [made[name].inputs[1].producer().inputs[0] for name in "hy"]
    assert [value.name for value in read] == ["a.weight", "b.weight"]
    assert read[1].const_value.numpy().tolist() == [[1, 2], [3, 4]]
    onnx.checker.check_model(ir.to_proto(merged), full_check=True)


def test_what_was_computed_from_one_of_them_is_computed_from_the_other():
    text = LAYERS.replace('w = Transpose("a.weight")', "").replace('"a.weight"', "w")
    merged = traced("%p_a_weight", "%p_b_weight", text)
    folded = "pkg.onnxscript.optimizer.folded_from"
    merged.graph.initializers["w"].metadata_props[folded] = repr(["a.weight"])
    assert separate(merged)
    assert sources(merged.graph.initializers["b.w"]) == ["b.weight"]
    assert [node.inputs[1].name for node in merged.graph] == ["w", "b.w"]


@pytest.mark.parametrize(
    "second", ["%p_a_weight", "%p_a_weight, %p_b_weight", "%p_b_bias", "%other", ""]
)
def test_without_a_parameter_of_its_own_a_layer_shares(second):
    assert not separate(traced("%p_a_weight", second))


def test_a_parameter_of_another_name_has_its_own_if_there_is_no_other_operand():
    text = LAYERS.replace('w = Transpose("a.weight")', "").replace(", w)", ', "a.weight")')
    merged = traced("%p_a_weight", "%p_b_bias", text)
    for node in merged.graph:
        node.op_type = "Mul"
    assert separate(merged)
    assert [node.inputs[1].name for node in merged.graph] == ["a.weight", "b.bias"]


def test_a_parameter_that_is_stored_is_not_made_again():
    text = LAYERS.replace("4}>", '4}, float[2, 2] "b.weight" = {5, 6, 7, 8}>')
    assert not separate(traced("%p_a_weight", "%p_b_weight", text))


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.filterwarnings("ignore")
def test_layers_of_a_new_transformer_train_as_in_torch(kind):
    torch.manual_seed(0)

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = {"encoder": nn.TransformerEncoderLayer, "decoder": nn.TransformerDecoderLayer}
            stack = {"encoder": nn.TransformerEncoder, "decoder": nn.TransformerDecoder}
            self.layers = stack[kind](layer[kind](20, 2, 24, dropout=0.0, batch_first=True), 3)
            for one in self.layers.layers:  # the exporter leaves out biases of zeros
                one.self_attn.out_proj.bias.data.fill_(0.1)
                if kind == "decoder":
                    one.multihead_attn.out_proj.bias.data.fill_(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layers(x) if kind == "encoder" else self.layers(x, x)
            return y

    module = Scores().eval()
    x = torch.randn(2, 3, 20)
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(module, (x,), dynamo=True)
    options = {"loss": "mse", "optimizer": "sgd", "lr": 0.5, "device": "cpu"}
    trainer = Trainer(program.model_proto, **options)
    assert len(trainer.parameters) == len(list(module.parameters()))
    descent = torch.optim.SGD(module.parameters(), 0.5)
    (name,) = trainer.input_names
    for step in range(4):
        target = np.random.default_rng(step).normal(size=x.shape).astype(np.float32)
        loss = float(trainer.step({name: x, "target": target}))
        wanted = nn.functional.mse_loss(module(x), torch.tensor(target))
        descent.zero_grad()
        wanted.backward()
        descent.step()
        assert loss == pytest.approx(float(wanted.detach()), rel=1e-4)
