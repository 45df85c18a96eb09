"""Biases of zero that an exporter left out."""

import json

import numpy as np
import onnx_ir as ir
import pytest

from graph.text import model
from onnxtrain.graph.torch_export.biases import restore_biases

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
CALL = "pkg.torch.onnx.fx_node"
RULE = "pkg.onnxscript.rewriter.rule_name"
LAYERS = {
    "Gemm": ("y = Gemm(x, w)", "float[N,4]", "float[4,3]", 3),
    "Gemm, turned": ("y = Gemm<transB=1>(x, w)", "float[N,4]", "float[3,4]", 3),
    "Conv": ("y = Conv<group=2>(x, w)", "float[N,4,5]", "float[6,2,1]", 6),
    "ConvTranspose": ("y = ConvTranspose<group=2>(x, w)", "float[N,4,5]", "float[4,3,1]", 6),
}


def left_out(
    layer: str = "Gemm", rule: str = "RemoveOptionalBiasFromGemm", call: str = "%x, %p_w, %p_b"
) -> ir.Model:
    nodes, x, w, _ = LAYERS[layer]
    count = int(np.prod(json.loads(w.removeprefix("float"))))
    numbers = ", ".join(map(str, range(count)))
    found = model(f"({x} x) => (float y) <{w} w = {{{numbers}}}> {{ {nodes} }}")
    found.graph.metadata_props[SIGNATURE] = (
        "# inputs\np_w: PARAMETER target='w'\np_b: PARAMETER target='layer.bias'\n"
        "p_c: PARAMETER target='other.bias'\nb_d: BUFFER target='table'\nx: USER_INPUT\n"
    )
    node = found.graph[0]
    node.metadata_props[RULE] = rule
    node.metadata_props[CALL] = f"%y = call[target=linear](args = ({call}), kwargs = {{}})"
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_its_bias_again(layer: str) -> None:
    found = left_out(layer)
    assert restore_biases(found)
    bias = found.graph[0].inputs[2]
    assert bias is found.graph.initializers["layer.bias"]
    assert bias.const_value is not None
    numbers = bias.const_value.numpy()
    assert numbers.dtype == np.float32 and numbers.tolist() == [0] * LAYERS[layer][3]
    assert not restore_biases(found)


@pytest.mark.parametrize(
    "told",
    [
        {"rule": "SomethingElse"},
        {"call": "%x, %p_w, None"},
        {"call": "%x, %p_w, %b_d"},
        {"call": "%x, %p_w, %p_b, %p_c"},
    ],
    ids=["not dropped", "never had one", "buffer", "which"],
)
def test_nothing_is_made_up(told: dict[str, str]) -> None:
    found = left_out(**told)
    assert not restore_biases(found)
    assert len(found.graph[0].inputs) == 2 and list(found.graph.initializers) == ["w"]


def test_a_layer_that_is_called_twice_has_one() -> None:
    found = left_out()
    first = found.graph[0]
    again = ir.node("Gemm", first.inputs, metadata_props=dict(first.metadata_props))
    found.graph.append(again)
    assert restore_biases(found)
    assert again.inputs[2] is first.inputs[2] is not None
