import numpy as np
import pytest

from gradients.emit import differentiated, run
from graph.text import model

SPLIT = "(double[5,2] x) => (double[2,2] b) <int64[3] s = {{1, 2, 2}}> {{ {outputs} = {op}(x, s) }}"


@pytest.mark.parametrize("op", ["Split", "com.microsoft.SplitTraining"])
def test_parts_that_nobody_uses_count_as_zeros(op: str) -> None:
    of = differentiated(SPLIT.format(outputs="a, b, c", op=op))
    d_b = np.arange(4.0).reshape(2, 2)
    grad = run(of, x=np.ones((5, 2)), d_b=d_b)["x_grad"]
    assert grad.tolist() == [[0, 0], [0, 1], [2, 3], [0, 0], [0, 0]]


def test_parts_without_a_name_count_as_zeros() -> None:
    of = model(SPLIT.format(outputs="a, b, c", op="Split"))
    of.graph[0].outputs[0].name = of.graph[0].outputs[2].name = ""
    found = run(differentiated(of), x=np.ones((5, 2)), d_b=np.ones((2, 2)))
    assert found["x_grad"].tolist() == [[0, 0], [1, 1], [1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("opset", [11, 17])
def test_zeros_are_those_of_a_part_of_the_same_size(opset: int) -> None:
    """Nothing of the forward pass is kept for them."""
    text = "(double[N,6] x) => (double[N,2] b) { a, b, c = Split<axis=-1>(x) }"
    of = differentiated(model(text, opset=opset))
    measured = [v.name for n in of.graph if n.op_type == "Shape" for v in n.inputs]
    assert measured and set(measured) == {"d_b"}
    found = run(of, x=np.ones((3, 6)), d_b=np.full((3, 2), 2.0))["x_grad"]
    assert found.tolist() == [[0, 0, 2, 2, 0, 0]] * 3


def test_only_some_inputs_of_a_concat_need_a_gradient() -> None:
    text = "(double[2] a, double[3] b, double[1] c) => (double[6] y) {{ y = {}<axis=0>(a, b, c) }}"
    feeds = {"a": np.ones(2), "b": np.ones(3), "c": np.ones(1), "d_y": np.arange(6.0)}
    for op in ("Concat", "com.microsoft.ConcatTraining"):
        found = run(differentiated(text.format(op), "b"), **feeds)
        assert found["b_grad"].tolist() == [2, 3, 4]
        assert "a_grad" not in found
