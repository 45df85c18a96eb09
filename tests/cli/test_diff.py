import numpy as np
import onnx
from onnx import helper, numpy_helper

from cli.small import classifier


def test_a_model_does_not_differ_from_itself(folder, cli):
    assert "0 weights have other values, 5 the same; 0 other" in cli("diff", *["model.onnx"] * 2)


def test_weights_are_listed_with_how_far_they_have_moved(folder, cli):
    model = classifier()
    (weight,) = (t for t in model.graph.initializer if t.name == "b2")
    values = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(values + np.float32([3, 0, 4]), "b2"))
    onnx.save(model, "other.onnx")
    output = cli_differs(cli, "model.onnx", "other.onnx")
    (line,) = (line.split() for line in output.splitlines() if line.split()[:1] == ["b2"])
    norm = float(np.linalg.norm(values))
    assert line[1:] == ["[3]", f"{norm:.4g}", "5", f"{5 / norm:.2%}", "4"]


def cli_differs(cli, *files: str) -> str:
    from typer.testing import CliRunner

    from onnxtrain.cli import app

    result = CliRunner().invoke(app, ["diff", *files])
    assert result.exit_code == 1
    return result.output


def test_changes_of_the_graph_are_listed(folder, cli):
    model = classifier()
    model.graph.node[0].attribute.append(helper.make_attribute("alpha", 2.0))
    model.graph.node[1].op_type = "Tanh"
    model.graph.node[3].output[0] = "scores"
    model.graph.node.append(helper.make_node("Softmax", ["scores"], ["logits"], "soft"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "new"))
    model.opset_import[0].version = 18
    onnx.save(model, "other.onnx")
    lines = cli_differs(cli, "model.onnx", "other.onnx").splitlines()
    assert "~ opset ai.onnx: 17 is 18" in lines
    assert "+ node soft (Softmax)" in lines
    assert "~ node first (Gemm): alpha absent is 2.0" in lines
    assert "~ node relu (Relu): it is Tanh now" in lines
    assert "~ node second (Gemm): outputs ['logits'] are ['scores']" in lines
    assert "+ weight new" in lines
    assert "- node soft (Softmax)" in cli_differs(cli, "other.onnx", "model.onnx")
    assert cli_differs(cli, "model.onnx", "other.onnx", "--quiet") == ""
