import onnx
import pytest

from graph.text import proto

LOSSES = {
    "(float[N,2] x) => (float[N,3] y) <float[2,3] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }":
        "cross_entropy for labels of 3 classes",
    "(float[N,4] x) => (float[N,1] y) <float[4,1] w = {1,2,3,4}> { y = MatMul(x, w) }":
        "mse for numbers, bce for yes or no",
    "(float[N,4] x) => (float[N,4] y) <float[4] w = {1,2,3,4}> { y = Mul(x, w) }":
        "mse for numbers",
    "(float[N,4] x) => (float[N,4] y) <float[4] w = {1,2,3,4}> { h = Mul(x, w) y = Softmax(h) }":
        "before the Softmax",
    "(float[N,4] x) => (float[N,4] y) <float[4] w = {1,2,3,4}> { h = Mul(x, w) y = Sigmoid(h) }":
        "bce on the scores before the Sigmoid",
    """(float[N,4] x) => (float[N,4] y) <float[4] w = {1,2,3,4}> {
        h = Mul(x, w) s = Softmax(h) d = Cast<to=11>(s) y = Cast<to=1>(d)
    }""": "before the Softmax",
    "(int64[N,T] x) => (float[N,T,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = Gather(w, x) }":
        "next_token (a language model)",
}  # fmt: skip


@pytest.mark.parametrize("text", LOSSES, ids=LOSSES.values())
def test_a_loss_is_suggested(folder, cli, text):
    onnx.save(proto(text), "m.onnx")
    (line,) = (t for t in cli("info", "m.onnx").splitlines() if t.startswith("suggested loss"))
    assert LOSSES[text] in line


def test_a_classifier_of_probabilities_has_a_loss_of_its_own(folder, cli):
    linear = onnx.helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "p"],
        domain="ai.onnx.ml",
        classlabels_ints=[0, 1],
        coefficients=[1.0, 2.0, 3.0, 4.0],
        intercepts=[0.0, 0.0],
        post_transform="SOFTMAX",
    )
    values = [("x", 1, ["N", 2]), ("label", 7, ["N"]), ("p", 1, ["N", 2])]
    x, *outputs = (onnx.helper.make_tensor_value_info(*one) for one in values)
    graph = onnx.helper.make_graph([linear], "g", [x], outputs)
    imports = [onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), "m.onnx")
    assert "suggested loss: likelihood, as 'p' has probabilities" in cli("info", "m.onnx")


def test_what_to_do_about_an_operator_without_gradient(folder, cli):
    model = proto(
        """(float[4] x) => (float[4] y) <float[4] a = {1,2,3,4}, float[4] b = {1,2,3,4}> {
            h = Mul(x, a)
            k = test.Odd(h)
            y = Mul(k, b)
        }"""
    )
    model.opset_import.add(domain="test", version=1)
    model.graph.node[1].name = "strange"
    onnx.save(model, "m.onnx")
    output = cli("info", "m.onnx")
    assert "cannot be trained" in output
    (line,) = (t for t in output.splitlines() if "Odd 'strange'" in t)
    assert "freeze what is before it (a) with --freeze" in line
    assert "an operator of 'test', which nobody here knows" in line
    assert '@gradient("Odd", domain="test")' in line
