import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graph.text import proto


def row(output: str, *cells: str) -> bool:
    """Whether some line of the output has these cells in this order."""
    return any(line.split()[: len(cells)] == list(cells) for line in output.splitlines())


def test_info_tells_parts_and_what_is_trained(folder, cli):
    output = cli("info", "model.onnx")
    assert "opset ai.onnx 17" in output
    assert row(output, "x", "tensor(float)", "[N,", "8]")
    assert row(output, "logits", "tensor(float)", "[N,", "3]")
    assert row(output, "w1", "float", "[8,", "16]", "128", "yes", "weight")
    assert row(output, "ratio", "float", "[]", "1", "-", "ratio", "of", "Dropout")
    assert row(output, "ai.onnx::Gemm", "2", "yes", "yes", "rule")
    assert "trainable: 4 tensors, 195 elements" in output


def save(path: str, node: onnx.NodeProto, weight: np.ndarray, kind: int) -> None:
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, [2])],
        [helper.make_tensor_value_info("y", kind, [2])],
        [numpy_helper.from_array(weight, "w")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("test", 1)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=imports), path)


def test_info_names_operators_that_are_not_known(folder, cli):
    node = helper.make_node("Mystery", ["x", "w"], ["y"], "m", domain="test")
    save("odd.onnx", node, np.ones(2, np.float32), TensorProto.FLOAT)
    output = cli("info", "odd.onnx")
    assert row(output, "test::Mystery", "1", "no", "no", "no")
    assert "cannot be run: test::Mystery (no kernel)" in output


def test_info_says_whether_a_model_can_be_trained(folder, cli):
    assert cli("info", "model.onnx").rstrip().endswith("can be trained")


def test_info_names_everything_in_the_way_at_once(folder, cli):
    onnx.save(
        proto(
            """(float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {
                a = test.First(x, w)  b = Neg(a)  y = test.Second(b)
            }""",
            test=1,
        ),
        "two.onnx",
    )
    output = cli("info", "two.onnx")
    assert "cannot be run: test::First, test::Second (no kernel)" in output
    assert "cannot be trained: no gradient rule for test::First, test::Second" in output


def test_info_of_a_file_for_one_processor_tells_once_what_helps(folder, cli):
    model = proto(
        """(float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {
            a = nchwc.Conv(x, w)  y = nchwc.ReorderOutput(a)
        }""",
        nchwc=1,
    )
    for part in (*model.graph.node, model.opset_import[1]):
        part.domain = "com.microsoft.nchwc"
    onnx.save(model, "blocked.onnx")
    trained = cli("info", "blocked.onnx").partition("cannot be trained")[2]
    assert trained.count("graph_optimization_level=ORT_ENABLE_EXTENDED") == 1
    assert "write a rule" not in trained


def test_info_lists_weights_inside_branches(folder, cli):
    onnx.save(
        proto(
            """(bool c, float[2] x) => (float[2] y) {
                y = If (c) <then_branch = t () => (float[2] a) <float[2] w = {1.0, 2.0}> {
                              a = Mul(x, w) },
                            else_branch = e () => (float[2] b) { b = Neg(x) }>
            }"""
        ),
        "if.onnx",
    )
    output = cli("info", "if.onnx")
    assert row(output, "w", "float", "[2]", "2", "yes", "weight")
    assert "trainable: 1 tensors, 2 elements" in output


def test_info_of_a_model_without_weights(folder, cli):
    save("ints.onnx", helper.make_node("Add", ["x", "w"], ["y"], "a"), np.ones(2, np.int64), 7)
    output = cli("info", "ints.onnx")
    assert row(output, "w", "int64", "[2]", "2", "-", "not", "floating", "point")
    assert "trainable: 0 tensors" in output
    assert "cannot be trained: there is no weight to train" in output


def test_bad_models_are_explained(folder, cli):
    assert "there is no file 'none.onnx'" in cli("info", "none.onnx", code=1)
    (folder / "cut.onnx").write_bytes((folder / "model.onnx").read_bytes()[:-40])
    assert "'cut.onnx' is not an ONNX model" in cli("info", "cut.onnx", code=1)
