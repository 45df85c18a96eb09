"""Results of equal parameters that an exporter made one tensor."""

import onnx_ir as ir
import pytest

from graph.text import model
from onnxtrain.graph.torch_export.merged import separate
from onnxtrain.graph.torch_export.traced import sources

FOLDED = "pkg.onnxscript.optimizer.folded_from"
LAYERS = """(float[2] x) => (float[2] y) <float[2] neg = {-1, -2}%s> {
    h = Mul(x, neg)
    %s
    y = Mul(h, neg)
}"""


def traced(call: str, module: str, names: list[str], stored: str = "", uses: str = "") -> ir.Model:
    """Two layers that read one tensor; the second tells another call and its module."""
    found = model(LAYERS % (stored, uses))
    signature = "".join(f"p_{i}: PARAMETER target='{name}'\n" for i, name in enumerate(names))
    found.graph.metadata_props["pkg.torch.export.ExportedProgram.graph_signature"] = signature
    found.graph.initializers["neg"].metadata_props[FOLDED] = "['exp', 'layers.0.rate']"
    told = {"h": ("%neg", "layers.0"), "y": (call, module)}
    for node in found.graph:
        read, scope = told.get(str(node.outputs[0].name), ("", ""))
        text = f"%mul = call_function[target=aten.mul](args = (%x, {read}), kwargs = {{}})"
        node.metadata_props["pkg.torch.onnx.fx_node"] = text
        node.metadata_props["pkg.torch.onnx.name_scopes"] = repr(["", scope, "mul"])
    return found


def test_a_layer_has_its_own_if_its_parameter_is_nowhere() -> None:
    found = traced("%neg_1", "layers.1", ["layers.0.rate", "layers.1.rate", "layers.2.rate"])
    assert separate(found)
    assert [node.inputs[1].name for node in found.graph if node.inputs[1]] == ["neg", "neg_1"]
    assert sources(found.graph.initializers["neg_1"]) == ["exp", "layers.1.rate"]


def test_a_layer_has_its_own_if_its_parameter_has_the_same_numbers() -> None:
    stored = """, float[2] "layers.0.rate" = {3, 4}, float[2] "layers.1.other" = {3, 4}"""
    uses = 'a = Mul(h, "layers.0.rate") b = Add(a, "layers.1.other")'
    found = traced("%neg_1", "layers.1", ["layers.0.rate", "layers.1.other"], stored, uses)
    assert separate(found)
    assert sources(found.graph.initializers["neg_1"]) == ["exp", "layers.1.other"]


@pytest.mark.parametrize(
    ("call", "module", "names"),
    [
        ("%neg", "layers.1", ["layers.0.rate", "layers.1.rate"]),
        ("%neg_1", "layers.0", ["layers.0.rate", "layers.1.rate"]),
        ("%neg_1", "layers.1", ["layers.0.rate", "layers.1.inner.rate"]),
        ("%neg_1", "layers.1", ["layers.0.rate", "layers.1.bias"]),
        ("%exp_1", "layers.1", ["layers.0.rate", "layers.1.rate"]),
    ],
    ids=["same call", "same layer", "another path", "another name", "another function"],
)
def test_else_layers_share(call: str, module: str, names: list[str]) -> None:
    assert not separate(traced(call, module, names))
